"""Each checker of deliveries finds what it is for, and lets pass what it says it lets pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.fake_world import ADDRESS, FakeWorld, leaving, scenario
from tidegate_agents.machine import MessageReceived, SendClient
from tidegate_protocol.balancing.places import CollectOrder
from tidegate_protocol.messages import SubscribeRequest
from tidegate_simulator.checkers.deliveries import Deliveries
from tidegate_simulator.links import Message
from tidegate_simulator.scenario import Fault, FaultKind, Scenario

OUT = ["out-of-order"]


def world(plan: Scenario | None = None) -> FakeWorld:
    return FakeWorld(plan or scenario(), Deliveries())


def test_all_is_well() -> None:
    run = world()
    run.publish(0, 1.0)  # before the grant: nobody owes it
    run.grant(2.0)
    for sequence in (1, 2, 3):
        run.publish(sequence, 2.0 + sequence)
        run.deliver(sequence, 2.5 + sequence)
    assert run.end() == []


def test_lost() -> None:
    run = world()
    run.grant(2.0)
    for sequence in range(4):
        run.publish(sequence, 3.0 + sequence)
    for sequence in (0, 1, 3):
        run.deliver(sequence, 8.0)
    assert run.end() == ["lost"]


def test_the_last_one_lost() -> None:
    run = world()
    run.grant(2.0)
    run.publish(0, 3.0)
    assert run.end() == ["lost"]


def test_what_a_limit_cost_is_not_lost() -> None:
    run = world()
    run.grant(2.0)
    run.publish(0, 3.0)
    run.dropped.add(("s", "p~1:t:0"))
    assert run.end() == []


def waiting(run: FakeWorld) -> None:
    run.grant(2.0)
    run.publish(0, 3.0)
    run.queue("e0").ready.append(Message("p~1:t:0", 1, "t", 100.0, 3.0))


def test_what_waits_for_a_slow_application_is_not_lost() -> None:
    plan = scenario()
    run = world(replace(plan, subscribers=(replace(plan.subscribers[0], takes_per_s=0.1),)))
    waiting(run)
    assert run.end() == []


def test_nor_what_its_client_has() -> None:
    plan = scenario()
    run = world(replace(plan, subscribers=(replace(plan.subscribers[0], takes_per_s=0.1),)))
    run.grant(2.0)
    run.publish(0, 3.0)
    run.subscribers["s"].buffered = (Message("p~1:t:0", 1, "t", 100.0, 3.0),)
    assert run.end() == []


def test_what_waits_for_anybody_else_is() -> None:
    run = world()
    waiting(run)
    assert run.end() == ["lost"]


def test_who_leaves_gives_up_what_is_on_its_way() -> None:
    run = world(scenario(subscribers=leaving(6.0)))
    run.grant(2.0)
    for sequence in range(5):
        run.publish(sequence, 3.0 + sequence)
    run.deliver(0, 3.5)
    run.deliver(1, 4.5)
    assert run.end() == []


def test_who_leaves_has_no_holes() -> None:
    run = world(scenario(subscribers=leaving(6.0)))
    run.grant(2.0)
    for sequence in range(3):
        run.publish(sequence, 3.0 + sequence)
    run.deliver(0, 3.5)
    run.deliver(2, 5.5)
    assert run.end() == ["lost"]


def test_who_leaves_may_have_something_on_an_edge_that_is_away() -> None:
    run = world(scenario(subscribers=leaving(6.0)))
    run.grant(2.0)
    again = SubscribeRequest(subscriber="s", pattern="t", deadline_us=1_000_000, unreachable="e0")
    run.step("h0", 3.0, event=MessageReceived(again, ADDRESS))
    for sequence in range(3):
        run.publish(sequence, 3.0 + sequence)
    run.deliver(2, 5.5)
    assert run.end() == []


def collect_order(timeout_s: float = 1.0) -> CollectOrder:
    return CollectOrder(
        migration="m",
        subscriber="s",
        pattern="t",
        edge="e0",
        number=0,
        url="amqp://e0",
        queue="out.s.0",
        heads=("h0",),
        timeout_us=round(timeout_s * 1e6),
    )


def test_who_leaves_may_have_something_to_collect() -> None:
    """A head that begins anew may know only later that the client, which crashed meanwhile, had a queue before."""
    run = world(scenario(subscribers=leaving(6.0)))
    run.grant(2.0)
    for sequence in range(3):
        run.publish(sequence, 3.0 + sequence)
    run.step("h0", 5.2, SendClient("s", collect_order()))
    run.deliver(2, 5.5)
    assert run.end() == []


def test_a_head_that_was_awaited_owes_nothing_until_its_route_is_there() -> None:
    run = world(scenario(heads=2))
    run.queue("e0")
    run.grant(2.0, awaiting=("h1",))
    run.publish(0, 3.0)
    run.route("h1", "h0", "t")
    run.route("h0", "e0", "#")
    run.publish(1, 4.0)
    run.deliver(1, 4.5)
    assert run.end() == []


def test_and_everything_from_then_on_even_if_the_route_goes_away_again() -> None:
    run = world(scenario(heads=2))
    run.queue("e0")
    run.grant(2.0, awaiting=("h1",))
    run.route("h1", "h0", "t")
    run.route("h0", "e0", "#")
    run.publish(0, 3.0)
    run.deliver(0, 3.5)
    run.route("h1", "h0")
    run.publish(1, 4.0)
    assert run.end() == ["lost"]


def test_a_route_that_is_left_over_from_before_promises_nothing() -> None:
    run = world(scenario(heads=2))
    run.queue("e0")
    run.grant(2.0, awaiting=("h1",))
    run.route("h1", "h0", "t")
    run.route("h0", "e0", "#")
    run.heads["h0"].agent.has_confirmed = lambda neighbour: False
    run.publish(0, 3.0)
    run.deliver(0, 3.5)
    run.route("h1", "h0")
    run.publish(1, 4.0)
    assert run.end() == []
    run.heads["h0"].agent.has_confirmed = lambda neighbour: True
    run.route("h1", "h0", "t")
    run.publish(2, 5.0)
    assert run.end() == ["lost"]


def test_a_head_that_was_not_awaited_owes_at_once() -> None:
    run = world(scenario(heads=2))
    run.grant(2.0)
    run.publish(0, 3.0)
    assert run.end() == ["lost"]


def test_doubled() -> None:
    run = world()
    run.grant(2.0)
    run.publish(0, 3.0)
    run.deliver(0, 3.5)
    run.deliver(0, 3.6)
    assert run.end() == ["doubled"]


def test_doubled_by_collecting() -> None:
    run = world()
    run.grant(2.0)
    run.publish(0, 3.0)
    run.deliver(0, 3.5)
    run.deliver(0, 9.0, collected=True)
    assert run.end() == ["doubled"]


CRASH = Fault(4.0, FaultKind.CLIENT_CRASH, "s", 5.0)


def test_a_client_without_memory_may_get_it_again() -> None:
    run = world(scenario(CRASH))
    run.grant(2.0)
    for sequence in (0, 1):
        run.publish(sequence, 3.0)
        run.deliver(sequence, 3.5)
    # A link that was cut has made repetitions, and the crash put them back.
    for sequence in (1, 0):
        run.deliver(sequence, 6.0 - sequence / 10)
    assert run.end() == []


def test_but_not_twice_in_its_new_life() -> None:
    run = world(scenario(CRASH))
    run.grant(2.0)
    run.publish(0, 3.0)
    for now in (3.5, 6.0, 6.1):
        run.deliver(0, now)
    assert run.end() == ["doubled"]


def test_out_of_order() -> None:
    run = world()
    run.grant(2.0)
    for sequence in (0, 1):
        run.publish(sequence, 3.0)
    run.deliver(1, 3.5)
    run.deliver(0, 3.6)
    assert run.end() == ["out-of-order"]


def test_out_of_order_in_a_new_life() -> None:
    run = world(scenario(CRASH))
    run.grant(2.0)
    for sequence in (0, 1):
        run.publish(sequence, 3.0)
    run.deliver(1, 6.0)
    run.deliver(0, 6.1)
    assert run.end() == ["out-of-order"]


def test_what_was_collected_has_no_order() -> None:
    run = world()
    run.grant(2.0)
    for sequence in (0, 1, 2):
        run.publish(sequence, 3.0)
    run.deliver(1, 3.5)
    run.deliver(0, 9.0, collected=True)
    run.deliver(2, 9.5)
    assert run.end() == []


def test_but_comes_behind_what_was_published_before_it() -> None:
    run = world()
    run.grant(2.0)
    for sequence in (0, 1, 2):
        run.publish(sequence, 3.0)
    run.deliver(0, 3.5)
    run.deliver(2, 9.5, collected=True)
    run.deliver(1, 9.7)
    assert run.end() == OUT


@pytest.mark.parametrize(("ordered_s", "came_s", "found"), [(4.0, 3.5, []), (6.0, 3.5, OUT), (4.0, 6.0, OUT)])
def test_unless_that_came_no_nearer_for_as_long_as_is_waited(ordered_s: float, came_s: float, found: list[str]) -> None:
    run = world()
    run.grant(2.0)
    for sequence in (0, 1, 2, 3):
        run.publish(sequence, 3.0)
    run.deliver(0, came_s)
    run.step("h0", ordered_s, SendClient("s", collect_order(timeout_s=10.0)))
    run.step("h0", 9.0, SendClient("s", collect_order(timeout_s=10.0)))  # told again
    run.deliver(2, 9.5, collected=True)
    run.deliver(3, 9.6, collected=True)
    run.deliver(1, 9.7)
    assert run.end() == found


def test_what_comes_through_the_queue_in_use_has_its_order_all_the_same() -> None:
    run = world()
    run.grant(2.0)
    for sequence in range(5):
        run.publish(sequence, 3.0)
    run.deliver(0, 3.5)
    run.step("h0", 4.0, SendClient("s", collect_order(timeout_s=10.0)))
    run.deliver(4, 9.5, collected=True)
    run.deliver(2, 9.7)
    run.deliver(1, 9.8)
    run.deliver(3, 9.9)
    assert run.end() == OUT


@pytest.mark.parametrize(("edge", "published_s", "found"), [("e1", 5.5, []), ("e1", 6.5, OUT), ("e0", 5.5, OUT)])
def test_what_waits_to_be_collected_and_was_sent_again_has_no_order(
    edge: str, published_s: float, found: list[str]
) -> None:
    run = world()
    run.grant(2.0)
    for sequence in (0, 1):
        run.publish(sequence, published_s)
    run.grant(6.0, edge=edge, unreachable="e0")
    run.deliver(1, 7.0, published_s=published_s)
    run.deliver(0, 7.5, published_s=published_s)
    assert run.end() == found


def test_what_a_limit_dropped_and_was_sent_again_has_no_order() -> None:
    run = world()
    run.grant(2.0)
    for sequence in (0, 1):
        run.publish(sequence, 3.0)
    run.dropped.add(("s", "p~1:t:0"))
    run.deliver(1, 3.5)
    run.deliver(0, 9.0)
    assert run.end() == []


def test_what_nobody_owes_has_no_order() -> None:
    run = world()
    run.publish(0, 1.0)
    run.grant(2.0)
    run.publish(1, 3.0)
    run.deliver(1, 3.5)
    run.deliver(0, 3.6)
    assert run.end() == []


@pytest.mark.parametrize("count", [3, 50])
def test_a_checker_stays_readable(count: int) -> None:
    run = world()
    run.grant(2.0)
    run.publish(0, 3.0)
    for _ in range(count + 1):
        run.deliver(0, 3.5)
    assert len(run.end()) == min(count, 10)
