"""The checker of plain messages, which carry no id, finds what is doubled, lost and out of order, and lets pass what no
client can tell.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.fake_world import FakeWorld, scenario
from tidegate_agents.machine import SendClient
from tidegate_protocol.balancing.migrations import MigrateOrder
from tidegate_protocol.balancing.places import CollectOrder
from tidegate_simulator.checkers.deliveries import Deliveries
from tidegate_simulator.scenario import Fault, FaultKind, SubscriberSpec


def granted(*faults: Fault, contents: int = 0, published: int = 4) -> FakeWorld:
    """A subscriber of a plain publisher whose contents repeat after so many messages, or never (0)."""
    plan = scenario(*faults)
    plan = replace(plan, publishers=tuple(replace(one, obedient=False, contents=contents) for one in plan.publishers))
    run = FakeWorld(plan, Deliveries())
    run.grant(2.0)
    for sequence in range(published):
        run.publish(sequence, 3.0)
    return run


def deliver(run: FakeWorld, *sequences: int) -> list[str]:
    for sequence in sequences:
        run.deliver(sequence, 4.0)
    return run.end()


@pytest.mark.parametrize("contents", [0, 1, 3])
def test_all_is_well(contents: int) -> None:
    assert deliver(granted(contents=contents), 0, 1, 2, 3) == []


@pytest.mark.parametrize(
    ("came", "found"),
    [((0, 1, 1, 2, 3), ["doubled"]), ((0, 2, 1, 3), ["out-of-order"]), ((0, 1, 3), ["lost"])],
)
def test_what_is_wrong_is_found(came: tuple[int, ...], found: list[str]) -> None:
    assert deliver(granted(), *came) == found


@pytest.mark.parametrize(("came", "found"), [((0, 1, 2, 3, 3), ["doubled"]), ((0, 1, 2), ["lost"])])
def test_messages_that_are_all_alike_are_counted(came: tuple[int, ...], found: list[str]) -> None:
    assert deliver(granted(contents=1), *came) == found


def test_what_rabbitmq_delivers_again_may_come_twice_but_nothing_else_may() -> None:
    run = granted()
    run.redelivered.add(("s", "p:t:1"))
    assert deliver(run, 0, 1, 1, 2, 3) == []
    assert deliver(run, 2) == ["doubled"]


def test_nor_is_anything_lost_by_that() -> None:
    run = granted()
    run.redelivered.add(("s", "p:t:1"))
    assert deliver(run, 0, 1, 3) == ["lost"]


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (Fault(1.0, FaultKind.LINK_DOWN, "e0", 2.0), []),
        (Fault(1.0, FaultKind.PUBLISHER_CUT, "p"), []),
        (Fault(50.0, FaultKind.PUBLISHER_CUT, "p"), ["doubled"]),
        (Fault(1.0, FaultKind.CLIENT_CUT, "s", 2.0), ["doubled"]),
    ],
)
def test_a_repetition_that_is_no_moves(fault: Fault, found: list[str]) -> None:
    assert deliver(granted(fault), 0, 1, 1, 2, 3) == found


@pytest.mark.parametrize(("contents", "came", "found"), [(1, 3, []), (1, 2, ["lost"]), (0, 3, ["lost"])])
def test_a_move_may_cost_one_of_messages_that_are_alike(contents: int, came: int, found: list[str]) -> None:
    run = granted(contents=contents)
    order = MigrateOrder(
        migration="h0~1~m1",
        subscriber="s",
        pattern="t",
        edge_from="e0",
        number_from=0,
        edge="e1",
        number=1,
        url="amqp://e1",
        queue="q",
        head="h0",
        heads=("h0",),
        timeout_us=1,
    )
    run.step("h0", 3.5, SendClient("s", order, "1"))
    assert deliver(run, *range(came)) == found


def test_what_excuses_one_subscriber_excuses_no_other() -> None:
    plan = scenario(subscribers=(SubscriberSpec("s", "h0", "t", 1.0), SubscriberSpec("z", "h0", "t", 1.0)))
    plan = replace(plan, publishers=tuple(replace(one, obedient=False, contents=1) for one in plan.publishers))
    run = FakeWorld(plan, Deliveries())
    for subscriber in ("s", "z"):
        run.grant(2.0, subscriber)
    run.publish(0, 3.0)
    order = CollectOrder(
        migration="m",
        subscriber="s",
        pattern="t",
        edge="e0",
        number=0,
        url="amqp://e0",
        queue="out.s.0",
        heads=("h0",),
        timeout_us=1,
    )
    run.step("h0", 3.5, SendClient("s", order))
    assert run.end() == ["lost"]
