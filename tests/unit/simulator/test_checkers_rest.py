"""What must hold at rest: each rule can be seen to be broken."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.fake_world import FakeWorld, leaving, scenario, subscription
from tidegate_agents.head.moving.cooldowns import Cooldowns
from tidegate_agents.machine import Send, SendClient
from tidegate_protocol.balancing.migrations import MigrateOrder
from tidegate_protocol.decisions import Decision, Drained, Removed
from tidegate_protocol.messages import OutputRemove
from tidegate_simulator.checkers.rest import BoundedMemory, OnePlaceEach, entries, maximal
from tidegate_simulator.links import Message
from tidegate_simulator.scenario import EVERYBODY, Fault, FaultKind


def at_rest() -> FakeWorld:
    run = FakeWorld(scenario(heads=2), OnePlaceEach())
    run.queue("e0")
    run.route("h0", "e0", "t")
    run.route("h1", "h0", "t")
    return run


def test_all_is_well() -> None:
    assert at_rest().end() == []


def test_no_queue() -> None:
    run = at_rest()
    run.edges["e0"].plane.queues.clear()
    assert set(run.end()) == {"no-queue", "not-attached", "wrong-routes"}


def test_a_second_queue() -> None:
    run = at_rest()
    run.queue("e1", subscription(number=1), consumed=False)
    run.route("h0", "e1", "t")
    assert set(run.end()) == {"orphan"}


def test_a_slow_application_that_is_still_collecting_is_not_at_rest() -> None:
    slow = (replace(scenario().subscribers[0], takes_per_s=1.0),)
    run = FakeWorld(scenario(subscribers=slow), OnePlaceEach())
    run.queue("e0")
    left_behind = run.queue("e1", subscription(number=1))
    run.route("h0", "e0", "t")
    run.route("h0", "e1", "t")
    left_behind.ready.append(Message("p~1:t:0", 1, "t", 100.0, 3.0))
    assert run.end() == []
    left_behind.ready.clear()
    assert set(run.end()) == {"orphan", "not-attached"}


def test_attached_twice() -> None:
    run = at_rest()
    run.queue("e1", subscription(number=1))
    run.route("h0", "e1", "t")
    assert set(run.end()) == {"orphan", "not-attached"}


def test_not_attached() -> None:
    run = at_rest()
    run.queue("e0", consumed=False)
    assert run.end() == ["not-attached"]


def test_a_marker_that_was_left_behind() -> None:
    run = at_rest()
    run.queue("e0").markers["tidegate.marker.m.*"] = None
    assert run.end() == ["leftover"]


@pytest.mark.parametrize(
    ("head", "target", "patterns"),
    [("h0", "e0", ()), ("h0", "e0", ("t", "u")), ("h1", "h0", ()), ("h0", "h1", ("t",)), ("h0", "e1", ("t",))],
)
def test_a_route_too_few_or_too_many(head: str, target: str, patterns: tuple[str, ...]) -> None:
    run = at_rest()
    run.route(head, target, *patterns)
    assert run.end() == ["wrong-routes"]


def test_who_has_left_has_no_queue() -> None:
    run = FakeWorld(scenario(subscribers=leaving(50.0)), OnePlaceEach())
    assert run.end() == []
    run.queue("e0", consumed=False)
    run.route("h0", "e0", "t")
    assert run.end() == ["orphan"]


@pytest.mark.parametrize(
    "client", [SimpleNamespace(up=False, machine=None), SimpleNamespace(up=True, machine=SimpleNamespace(place=None))]
)
def test_unless_it_could_not_say_so(client: SimpleNamespace) -> None:
    run = FakeWorld(scenario(subscribers=leaving(50.0)), OnePlaceEach())
    run.queue("e0", consumed=False)
    run.route("h0", "e0", "t")
    run.subscribers["s"] = client
    assert run.end() == []


def order(head: str) -> SendClient:
    message = MigrateOrder(
        migration="h0~1~m1",
        subscriber="s",
        pattern="t",
        edge_from="e1",
        number_from=1,
        edge="e0",
        number=0,
        url="amqp://e0",
        queue="q",
        head=head,
        heads=("h0", "h1"),
        timeout_us=1,
    )
    return SendClient("s", message, "1")


@pytest.mark.parametrize(
    ("head", "crash_s", "found"), [("h1", 45.0, []), ("h1", 30.0, ["orphan"]), ("h0", 45.0, ["orphan"])]
)
def test_or_its_head_crashed_in_the_middle_of_a_move_abroad(head: str, crash_s: float, found: list[str]) -> None:
    crash = Fault(crash_s, FaultKind.CRASH, "h0", 60.0)
    run = FakeWorld(scenario(crash, heads=2, subscribers=leaving(50.0)), OnePlaceEach())
    run.step("h0", 40.0, order(head))
    run.queue("e0", consumed=False)
    run.route("h0", "e0", "t")
    run.route("h1", "h0", "t")
    assert run.end() == found


@pytest.mark.parametrize(
    ("kind", "away_s", "crash_s", "found"),
    [
        (FaultKind.EDGE_DOWN, (40.0, 60.0), 55.0, []),
        (FaultKind.EDGE_DOWN, (40.0, 60.0), 70.0, ["orphan"]),
        (FaultKind.EDGE_DOWN, (10.0, 20.0), 55.0, ["orphan"]),
        (FaultKind.CRASH, (40.0, 60.0), 55.0, ["orphan"]),
    ],
)
def test_or_its_head_crashed_before_the_edge_was_back(
    kind: FaultKind, away_s: tuple[float, float], crash_s: float, found: list[str]
) -> None:
    run = forgotten(Fault(away_s[0], kind, "e0", away_s[1]), Fault(crash_s, FaultKind.CRASH, "h0", 80.0))
    assert run.end() == found


REMOVE = Send("e0", OutputRemove(subscriber="s", number=0))


def forgotten(*faults: Fault) -> FakeWorld:
    """It has left at 50.0, and its queue is still there."""
    run = FakeWorld(scenario(*faults, subscribers=leaving(50.0)), OnePlaceEach())
    run.queue("e0", consumed=False)
    run.route("h0", "e0", "t")
    return run


@pytest.mark.parametrize(
    "deaf",
    [
        (FaultKind.EDGE_DOWN, "e0"),
        (FaultKind.CRASH, "e0"),
        (FaultKind.FREEZE, "e0"),
        (FaultKind.CONTROL, "e0"),
        (FaultKind.CONTROL, "h0"),
        (FaultKind.CONTROL, EVERYBODY),
    ],
)
@pytest.mark.parametrize(
    ("ordered_s", "crash_s", "found"),
    [
        (45.0, 62.0, []),
        (52.0, 62.0, []),
        (52.0, 70.0, ["orphan"]),  # there was time to hear of it
        (30.0, 62.0, ["orphan"]),  # it could be heard when it was said
        (45.0, 49.0, ["orphan"]),  # a client that is still there can be asked
        (63.0, 62.0, ["orphan"]),  # the next run of the head has found out
    ],
)
def test_or_its_head_crashed_before_the_edge_had_heard_that_it_is_to_go(
    deaf: tuple[FaultKind, str], ordered_s: float, crash_s: float, found: list[str]
) -> None:
    run = forgotten(Fault(40.0, *deaf, 60.0), Fault(crash_s, FaultKind.CRASH, "h0", 80.0))
    run.step("h0", ordered_s, REMOVE)
    assert run.end() == found


@pytest.mark.parametrize(
    "other",
    [
        (FaultKind.CONTROL, "s"),
        (FaultKind.CRASH, "e1"),
        (FaultKind.LINK_DOWN, "e0"),
        (FaultKind.CLIENT_CUT, "s"),
        (FaultKind.FREEZE, "h0"),
    ],
)
def test_but_what_else_went_wrong_is_no_excuse(other: tuple[FaultKind, str]) -> None:
    run = forgotten(Fault(40.0, *other, 60.0), Fault(62.0, FaultKind.CRASH, "h0", 80.0))
    run.step("h0", 45.0, REMOVE)
    assert run.end() == ["orphan"]


def test_nor_is_it_if_nobody_had_ordered_it() -> None:
    run = forgotten(Fault(40.0, FaultKind.CONTROL, "e0", 60.0), Fault(55.0, FaultKind.CRASH, "h0", 80.0))
    run.step("h0", 45.0, Send("e1", REMOVE.message), Send("e0", OutputRemove(subscriber="s", number=1)))
    assert run.end() == ["orphan"]


def test_nor_if_the_head_was_told_that_it_is_gone() -> None:
    run = forgotten(Fault(40.0, FaultKind.CONTROL, "e0", 60.0), Fault(55.0, FaultKind.CRASH, "h0", 80.0))
    run.step("h0", 45.0, REMOVE)
    run.decide("h0", Removed("s", 0, "e0"), 46.0)
    assert run.end() == ["orphan"]


@pytest.mark.parametrize(("again_s", "found"), [(62.0, []), (65.0, ["orphan"])])
def test_one_fault_may_follow_another(again_s: float, found: list[str]) -> None:
    faults = (
        Fault(40.0, FaultKind.CRASH, "e0", 60.0),
        Fault(again_s, FaultKind.CONTROL, EVERYBODY, 80.0),
        Fault(75.0, FaultKind.CRASH, "h0", 80.0),
    )
    run = forgotten(*faults)
    run.step("h0", 45.0, REMOVE)
    assert run.end() == found


def test_the_covering_set_by_brute_force() -> None:
    assert maximal({"a", "a.b", "a.*", "#.a", "#.#.a"}) == {"a.*", "#.#.a"}


class Machine:
    """Like an agent: tables, parts with tables of their own, a story."""

    __module__ = "tidegate_agents.made_up"

    def __init__(self, size: int) -> None:
        self.table = {number: [number] for number in range(size)}
        self.part = Cooldowns()
        self.story: deque[Decision] = deque(Drained("e0") for _ in range(10_000))
        self.myself = self


def test_entries_are_counted_in_all_parts() -> None:
    machine = Machine(10)
    assert entries(machine) == 20
    machine.part.rest(("s", "t"), 5.0)
    # One in its table, one in its heap, and what those are made of.
    assert entries(machine) > 21


@pytest.mark.parametrize(("size", "found"), [(10, []), (5_000, ["memory"])])
def test_a_memory_that_grows(size: int, found: list[str]) -> None:
    run = FakeWorld(scenario(), BoundedMemory())
    run.brokers["h0"] = SimpleNamespace(up=True, agent=Machine(size))
    assert run.end() == found
