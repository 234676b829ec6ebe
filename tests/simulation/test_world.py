"""Whole runs: what is published arrives exactly once and in order, when arithmetic says so, whatever goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tidegate_agents.config import BalancingConfig
from tidegate_agents.machine import Action, EdgeSampled, Event, HeadSampled
from tidegate_simulator.errors import ScenarioError
from tidegate_simulator.observer import Observer
from tidegate_simulator.scenario import (
    Arrivals,
    ControlSpec,
    EdgeSpec,
    Fault,
    FaultKind,
    HeadSpec,
    PublisherSpec,
    RateChange,
    Scenario,
    SubscriberSpec,
)
from tidegate_simulator.world import World

WARM_S = 8.0
"""By then every subscriber has its place and its routes."""


class Watcher(Observer):
    """Remembers publications and deliveries."""

    def __init__(self) -> None:
        self.published_s: dict[str, float] = {}
        self.deliveries: dict[str, list[tuple[str, float]]] = {}
        self.edge_samples: list[tuple[float, EdgeSampled]] = []
        self.head_samples: list[tuple[float, HeadSampled]] = []
        self.kinds: set[str] = set()
        self.steps = 0
        self.late = 0
        self.collected = 0

    def published(self, publisher: str, topic: str, message_id: str, now: float) -> None:
        assert message_id not in self.published_s
        self.published_s[message_id] = now

    def delivered(
        self, subscriber: str, message_id: str, published_s: float, now: float, *, late: bool, collected: bool
    ) -> None:
        assert published_s == self.published_s[message_id]
        self.deliveries.setdefault(subscriber, []).append((message_id, now))
        self.late += late and published_s >= WARM_S
        self.collected += collected

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        self.steps += 1

    def edge_sampled(self, edge: str, sample: EdgeSampled, now: float) -> None:
        self.edge_samples.append((now, sample))

    def head_sampled(self, head: str, sample: HeadSampled, now: float) -> None:
        self.head_samples.append((now, sample))

    def control_sent(self, sender: str, receiver: str, kind: str, now: float) -> None:
        self.kinds.add(kind)

    def ids(self, subscriber: str) -> list[str]:
        return [message_id for message_id, _ in self.deliveries.get(subscriber, [])]


def small(**changes: object) -> Scenario:
    """One cluster: two edges, three topics, six subscribers, in which nothing goes wrong."""
    scenario = Scenario(
        name="small",
        seed=1,
        duration_s=40.0,
        settle_s=20.0,
        heads=(HeadSpec("h"),),
        edges=(EdgeSpec("e1", "h", 1e5, 1e5, 1e3), EdgeSpec("e2", "h", 1e5, 1e5, 1e3)),
        publishers=tuple(
            PublisherSpec(f"p{n}", "h", f"t.{n}", 20.0, 200.0, starts_s=0.01 * n, delay_s=0.02) for n in range(3)
        ),
        subscribers=tuple(SubscriberSpec(f"s{n}", "h", f"t.{n % 3}", 5.0) for n in range(6)),
    )
    return replace(scenario, **changes)  # type: ignore[arg-type]


def run(scenario: Scenario) -> tuple[World, Watcher]:
    watcher = Watcher()
    world = World(scenario, (watcher,), validate_every_step=True)
    world.run()
    return world, watcher


def sequence(message_id: str) -> int:
    return int(message_id.rpartition(":")[2])


def check_complete(world: World, watcher: Watcher, in_order: bool = True) -> None:
    """Everything published once the subscriptions stood came exactly once, and in the order of each publisher."""
    for name, subscriber in world.subscribers.items():
        got = watcher.ids(name)
        assert len(got) == len(set(got)), f"{name}, seed {world.scenario.seed}: doubles"
        owed = {
            message_id
            for message_id, at_s in watcher.published_s.items()
            if at_s >= WARM_S and message_id.split(":")[1] == subscriber.spec.pattern
        }
        lost = owed - set(got)
        assert not lost, f"{name}, seed {world.scenario.seed}: {len(lost)} lost, e.g. {min(lost)}"
        if in_order:
            by_publisher: dict[str, list[int]] = {}
            for message_id in got:
                by_publisher.setdefault(message_id.split(":")[0], []).append(sequence(message_id))
            assert all(numbers == sorted(numbers) for numbers in by_publisher.values()), f"{name}: out of order"


# Without faults


@pytest.mark.parametrize("instant", [False, True])
@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_everything_arrives_once_and_in_order(instant: bool, arrivals: Arrivals) -> None:
    scenario = small(control=ControlSpec(instant=instant, jitter_s=0.05))
    scenario = replace(scenario, publishers=tuple(replace(p, arrivals=arrivals) for p in scenario.publishers))
    world, watcher = run(scenario)
    check_complete(world, watcher)
    assert world.counters.deliveries == sum(len(got) for got in watcher.deliveries.values())
    assert world.counters.published == len(watcher.published_s)
    assert sum(subscriber.late for subscriber in world.subscribers.values()) == 0


def test_a_latency_is_the_sum_of_its_parts() -> None:
    scenario = Scenario(
        name="one",
        seed=1,
        duration_s=20.0,
        settle_s=5.0,
        heads=(HeadSpec("h", uplink_bytes_per_s=2e5, downlink_bytes_per_s=1e5),),
        edges=(EdgeSpec("e", "h", 1e4, 5e4, 500.0, head_delay_s=0.1, client_delay_s=0.2),),
        publishers=(PublisherSpec("p", "h", "t", 2.0, 1000.0, delay_s=0.05),),
        subscribers=(SubscriberSpec("s", "h", "t", 0.5),),
    )
    _, watcher = run(scenario)
    # publisher, head in, head out, link, edge in, matching, edge out, subscriber
    expected_s = 0.05 + 0.01 + 0.005 + 0.1 + 0.02 + 0.002 + 0.1 + 0.2
    got = [(m, at_s) for m, at_s in watcher.deliveries["s"] if watcher.published_s[m] >= WARM_S]
    assert len(got) == 24
    for message_id, at_s in got:
        assert at_s - watcher.published_s[message_id] == pytest.approx(expected_s, abs=1e-9)
    assert watcher.late == 0
    slower = replace(scenario, subscribers=(SubscriberSpec("s", "h", "t", expected_s - 0.001),))
    assert run(slower)[1].late == 24


def test_clusters_exchange_what_is_subscribed_behind_them_and_nothing_else() -> None:
    heads = (HeadSpec("h1", ("h2",)), HeadSpec("h2", ("h1", "h3"), neighbour_delay_s=0.3), HeadSpec("h3", ("h2",)))
    scenario = Scenario(
        name="chain",
        seed=3,
        duration_s=30.0,
        settle_s=10.0,
        heads=heads,
        edges=tuple(EdgeSpec(f"e{n}", f"h{n}", head_delay_s=0.1, client_delay_s=0.2) for n in (1, 2, 3)),
        publishers=(PublisherSpec("p1", "h1", "a.x", 5.0, 100.0), PublisherSpec("p3", "h3", "b.y", 5.0, 100.0)),
        subscribers=(SubscriberSpec("s3", "h3", "a.*", 5.0), SubscriberSpec("s1", "h1", "a.*", 5.0)),
    )
    _, watcher = run(scenario)
    for name, expected_s in (("s1", 0.3), ("s3", 0.9)):
        took = {
            round(at_s - watcher.published_s[m], 9)
            for m, at_s in watcher.deliveries[name]
            if watcher.published_s[m] >= WARM_S
        }
        assert took == {expected_s}
        assert {m.split(":")[1] for m in watcher.ids(name)} == {"a.x"}


def test_samples_tell_rates_where_messages_are_enqueued() -> None:
    edges = (EdgeSpec("e", "h", uplink_bytes_per_s=6_000.0),)
    _, watcher = run(small(edges=edges, control=ControlSpec(instant=True), duration_s=20.0))
    at_s, sample = next(taken for taken in watcher.edge_samples if taken[0] >= 14.5)
    # 3 topics of 20 messages/s and 200 bytes, two subscribers each: 24,000 bytes/s asked of 6,000.
    assert sample.broker.bytes_offered_per_s == pytest.approx(24_000.0, rel=0.02)
    assert sample.broker.messages_in_per_s == pytest.approx(60.0, rel=0.02)
    assert sample.broker.bytes_in_per_s == pytest.approx(12_000.0, rel=0.02)
    for one in sample.subscriptions:
        assert one.enqueue_per_s == pytest.approx(20.0, abs=1.0)
        assert one.drain_per_s == pytest.approx(5.0, abs=2.0)
        assert one.message_bytes == 200.0
        assert one.round_trip_s == 0.4
        assert one.depth == pytest.approx(15.0 * at_s, rel=0.15)
    _, head = watcher.head_samples[14]
    assert {one.topic: round(one.messages_per_s) for one in head.publishers} == {"t.0": 20, "t.1": 20, "t.2": 20}
    assert {one.publisher: one.round_trip_s for one in head.publishers} == {"p0~1": 0.04, "p1~1": 0.04, "p2~1": 0.04}


def test_rates_change_when_they_are_told_to() -> None:
    publisher = PublisherSpec(
        "p",
        "h",
        "t.0",
        10.0,
        100.0,
        stops_s=30.0,
        changes=(RateChange(10.0, 3.0), RateChange(20.0, 0.0), RateChange(25.0, 1.0)),
    )
    _, watcher = run(small(publishers=(publisher,)))
    times = list(watcher.published_s.values())

    def between(low_s: float, high_s: float) -> int:
        return sum(low_s <= at_s < high_s for at_s in times)

    assert [between(20.05, 25), between(30, 60)] == [0, 0]
    assert between(0, 10) == pytest.approx(100, abs=1)
    assert between(10, 20) == pytest.approx(300, abs=1)
    assert between(25, 30) == pytest.approx(50, abs=1)


def test_who_leaves_gets_nothing_more_and_leaves_nothing_behind() -> None:
    scenario = small()
    leaving = replace(scenario.subscribers[0], leaves_s=15.0)
    world, watcher = run(replace(scenario, subscribers=(leaving, *scenario.subscribers[1:])))
    assert world.subscribers["s0"].left
    assert max(at_s for _, at_s in watcher.deliveries["s0"]) < 16.0
    names = [name for edge in world.edges.values() for name in edge.plane.queues]
    assert not any(name.startswith("out.s0.") for name in names)
    assert len(names) == 5


def test_a_slow_application_gets_everything_late_but_in_order() -> None:
    scenario = small(duration_s=20.0, settle_s=60.0)
    slow = replace(scenario.subscribers[0], takes_per_s=10.0, prefetch=10)
    world, watcher = run(replace(scenario, subscribers=(slow, *scenario.subscribers[1:])))
    check_complete(world, watcher)
    times = [at_s for _, at_s in watcher.deliveries["s0"]]
    assert min(b - a for a, b in pairwise(times)) >= 0.1 - 1e-9
    assert world.subscribers["s0"].late > 0


# The same run twice


def fault_ridden(seed: int = 5) -> Scenario:
    return small(
        seed=seed,
        control=ControlSpec(jitter_s=0.05),
        faults=(
            Fault(10.0, FaultKind.CONTROL, "*", 20.0, loss=0.2, duplication=0.2, delay_max_s=0.3),
            Fault(12.0, FaultKind.CRASH, "e1", 16.0),
            Fault(14.0, FaultKind.PUBLISHER_CUT, "p1", 15.0),
            Fault(15.0, FaultKind.LINK_DOWN, "e2", 18.0),
        ),
    )


def test_the_same_seed_takes_the_same_course() -> None:
    first, second, other = World(fault_ridden()), World(fault_ridden()), World(fault_ridden(6))
    for world in (first, second, other):
        world.run()
    assert first.trace_hash == second.trace_hash
    assert first.counters == second.counters
    assert first.trace_hash != other.trace_hash


def test_watching_changes_nothing() -> None:
    alone = World(fault_ridden())
    watched = World(fault_ridden(), (Watcher(),), trace_lines_max=100, validate_every_step=True)
    for world in (alone, watched):
        world.run()
    assert alone.trace_hash == watched.trace_hash
    assert len(watched.trace) == 100
    assert alone.trace == ()


def test_the_course_does_not_hang_on_the_hash_seed() -> None:
    code = (
        "from tests.simulation.test_world import fault_ridden\n"
        "from tidegate_simulator.world import World\n"
        "world = World(fault_ridden()); world.run(); print(world.trace_hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert len(hashes) == 1, hashes
    world = World(fault_ridden())
    world.run()
    assert hashes == {world.trace_hash}


# Moving: the agents and client machines of production at work


def burst(instant: bool) -> Scenario:
    """At 20 s one of three topics on two edges more than doubles, which is too much for its edge."""
    topics = (("a", 20.0, (RateChange(20.0, 2.2),)), ("b", 20.0, ()), ("c", 10.0, ()))
    return small(
        duration_s=60.0,
        control=ControlSpec(instant=instant),
        edges=(EdgeSpec("e1", "h", 20e3, 1e5, 1e3), EdgeSpec("e2", "h", 20e3, 1e5, 1e3)),
        publishers=tuple(
            PublisherSpec(f"p{n}", "h", topic, rate, 200.0, starts_s=0.01 * n, changes=changes)
            for n, (topic, rate, changes) in enumerate(topics)
        ),
        subscribers=tuple(SubscriberSpec(f"s{n}", "h", "abc"[n % 3], 2.0) for n in range(6)),
    )


@pytest.mark.parametrize("instant", [True, False])
def test_subscriptions_move_with_nothing_lost_doubled_or_out_of_order(instant: bool) -> None:
    world, watcher = run(burst(instant))
    check_complete(world, watcher)
    places = {name: edge for edge in world.edges for name in world.edges[edge].plane.queues}
    assert len(places) == 6, places
    moved = [name for name in places if not name.endswith(".0")]
    assert moved, "nothing moved, so that nothing was shown"
    assert watcher.late == 0
    assert {"balance-request", "migrate-order", "migration-report", "session-notice"} <= watcher.kinds


def test_what_waited_on_an_edge_that_was_away_is_collected() -> None:
    outage = Fault(12.0, FaultKind.EDGE_DOWN, "e1", 35.0)
    world, watcher = run(small(faults=(outage,), settle_s=60.0))
    check_complete(world, watcher, in_order=False)
    assert watcher.collected == sum(subscriber.collected for subscriber in world.subscribers.values()) > 0
    assert sum(len(edge.plane.queues) for edge in world.edges.values()) == 6


def heads(**changes: Any) -> Scenario:
    """At 20 s one of two publishers becomes too much for its head; the other head has room."""
    scenario = Scenario(
        name="heads",
        seed=1,
        duration_s=60.0,
        settle_s=20.0,
        heads=(HeadSpec("h1", ("h2",), 20e3, 20e3), HeadSpec("h2", ("h1",), 40e3, 40e3)),
        edges=(EdgeSpec("e1", "h1"), EdgeSpec("e2", "h2")),
        publishers=(
            PublisherSpec("p0", "h1", "a", 30.0, 200.0, changes=(RateChange(20.0, 2.5),)),
            PublisherSpec("p1", "h1", "b", 20.0, 200.0, starts_s=0.01),
        ),
        subscribers=(
            SubscriberSpec("s0", "h2", "a", 5.0),
            SubscriberSpec("s1", "h2", "b", 5.0),
            SubscriberSpec("s2", "h1", "b", 5.0),
        ),
    )
    return replace(scenario, **changes)


def test_a_publisher_moves_to_another_head_and_keeps_its_order() -> None:
    world, watcher = run(heads())
    check_complete(world, watcher)
    assert {name: world.publisher_head(name) for name in world.publishers} == {"p0": "h2", "p1": "h1"}


def test_a_publisher_that_closes_in_the_middle_of_its_move_leaves_nothing_unsent() -> None:
    """What it had been given while it was paused went with it."""
    moving, steady = heads().publishers
    paused = 0
    for stops_s in (22.0 + 0.2 * step for step in range(20)):
        world, watcher = run(heads(publishers=(replace(moving, stops_s=stops_s), steady), duration_s=30.0))
        check_complete(world, watcher)
        paused += watcher.kinds >= {"publisher-move-order"} and world.publisher_head("p0") == "h1"
    assert paused, "it never closes before it has moved: the scenario shows nothing"


@pytest.mark.parametrize("obedient", [True, False])
def test_a_publisher_that_floods_is_contained(obedient: bool) -> None:
    scenario = small(balancing=BalancingConfig(publisher_messages_per_s_max=40.0))
    flooding = replace(scenario.publishers[0], changes=(RateChange(10.0, 10.0),), obedient=obedient)
    world, watcher = run(replace(scenario, publishers=(flooding, *scenario.publishers[1:])))
    check_complete(world, watcher)
    free, _ = run(replace(scenario, publishers=(flooding, *scenario.publishers[1:]), balancing=BalancingConfig()))
    assert world.publishers["p0"].published < 0.7 * free.publishers["p0"].published


# With faults

FAULTS: dict[str, tuple[Fault, ...]] = {
    "crash of a head": (Fault(12.0, FaultKind.CRASH, "h", 20.0),),
    "crash of an edge": (Fault(12.0, FaultKind.CRASH, "e1", 20.0),),
    "frozen head": (Fault(12.0, FaultKind.FREEZE, "h", 20.0),),
    "frozen edge": (Fault(12.0, FaultKind.FREEZE, "e1", 20.0),),
    "edges down": (Fault(12.0, FaultKind.EDGE_DOWN, "e1", 16.0), Fault(22.0, FaultKind.EDGE_DOWN, "e2", 25.0)),
    "links down": (Fault(12.0, FaultKind.LINK_DOWN, "e1", 16.0), Fault(14.0, FaultKind.LINK_DOWN, "e2", 17.0)),
    "control": (Fault(0.0, FaultKind.CONTROL, "*", 6.0, loss=0.3, duplication=0.3, delay_max_s=1.0),),
    "clocks": (
        Fault(5.0, FaultKind.CLOCK, "h", amount=5.0, drift=0.05),
        Fault(6.0, FaultKind.CLOCK, "e1", amount=-5.0, drift=-0.05),
        Fault(7.0, FaultKind.CLOCK, "s0", amount=-5.0),
    ),
    "cut subscribers": (Fault(12.0, FaultKind.CLIENT_CUT, "s0", 15.0), Fault(20.0, FaultKind.CLIENT_CUT, "s1", 20.0)),
    "cut publishers": (Fault(12.0, FaultKind.PUBLISHER_CUT, "p0", 13.0), Fault(20.0, FaultKind.PUBLISHER_CUT, "p1")),
    "crash while down": (Fault(12.0, FaultKind.CRASH, "e1", 20.0), Fault(14.0, FaultKind.EDGE_DOWN, "e1", 17.0)),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_nothing_is_lost_doubled_or_out_of_order(name: str, seed: int) -> None:
    world, watcher = run(small(seed=seed, faults=FAULTS[name]))
    check_complete(world, watcher)


def test_the_faults_do_bite() -> None:
    """Each fault leaves a mark; otherwise the test above would show nothing."""

    def mark(faults: tuple[Fault, ...], of: Callable[[World], int]) -> int:
        world, _ = run(small(faults=faults))
        return of(world)

    def duplicates(world: World) -> int:
        return sum(subscriber.inbox.duplicates for subscriber in world.subscribers.values())

    assert mark((), duplicates) == 0
    assert mark(FAULTS["links down"], duplicates) > 0
    assert mark(FAULTS["edges down"], duplicates) > 0
    assert mark(FAULTS["cut subscribers"], duplicates) > 0
    assert mark(FAULTS["cut publishers"], duplicates) > 0
    assert mark(FAULTS["control"], lambda world: world.network.lost) > 0
    assert mark(FAULTS["control"], lambda world: world.network.doubled) > 0
    assert mark(FAULTS["crash of a head"], lambda world: world.heads["h"].incarnation) == 2
    assert mark(FAULTS["crash while down"], lambda world: world.edges["e1"].incarnation) == 2


def test_a_subscriber_that_crashed_finds_what_waited_for_it() -> None:
    world, watcher = run(small(faults=(Fault(12.0, FaultKind.CLIENT_CRASH, "s0", 18.0),)))
    assert world.subscribers["s0"].incarnation == 2
    got = set(watcher.ids("s0"))
    owed = {m for m, at_s in watcher.published_s.items() if at_s >= WARM_S and m.split(":")[1] == "t.0"}
    assert owed <= got, f"{len(owed - got)} lost"


def test_a_drained_edge_gets_no_newcomers() -> None:
    scenario = small(faults=(Fault(2.0, FaultKind.DRAIN, "e1", 39.0),), publishers=())
    late = tuple(SubscriberSpec(f"late{n}", "h", f"u.{n}", 5.0, joins_s=10.0) for n in range(4))
    watcher = Watcher()
    world = World(replace(scenario, subscribers=late), (watcher,))
    world.run()
    assert {"drain-request", "drain-reply"} <= watcher.kinds
    assert not world.edges["e1"].plane.queues
    assert len(world.edges["e2"].plane.queues) == 4


def test_an_edge_is_used_again_although_an_old_wish_to_drain_it_comes_last() -> None:
    slow = Fault(1.5, FaultKind.CONTROL, "h", 4.6, loss=0.2, delay_max_s=3.0)
    for seed in range(20):
        world = World(small(seed=seed, faults=(slow, Fault(2.0, FaultKind.DRAIN, "e1", 4.5)), publishers=()))
        world.run()
        assert not world.heads["h"].agent._context.registry.edges["e1"].draining, f"seed {seed}"


# What can't be simulated

IMPOSSIBLE: dict[str, tuple[dict[str, object], str]] = {
    "no head": ({"heads": ()}, "head"),
    "edge of no head": ({"edges": (EdgeSpec("e1", "nobody"),)}, "nobody"),
    "no edges": ({"edges": ()}, "edge"),
    "unknown neighbour": ({"heads": (HeadSpec("h", ("x",)),)}, "x"),
    "one-sided neighbours": ({"heads": (HeadSpec("h", ("g",)), HeadSpec("g"))}, "g"),
    "no tree": (
        {"heads": (HeadSpec("h", ("g", "f")), HeadSpec("g", ("h", "f")), HeadSpec("f", ("h", "g")))},
        "tree",
    ),
    "two islands": ({"heads": (HeadSpec("h"), HeadSpec("g"))}, "connected"),
    "name used twice": ({"edges": (EdgeSpec("h", "h"),)}, "h"),
    "negative rate": ({"publishers": (PublisherSpec("p", "h", "t", -1.0, 100.0),)}, "messages_per_s"),
    "negative delay": ({"edges": (EdgeSpec("e1", "h", head_delay_s=-0.1),)}, "head_delay_s"),
    "publisher without a head": ({"publishers": (PublisherSpec("p", "x", "t", 1.0, 100.0),)}, "x"),
    "pattern as topic": ({"publishers": (PublisherSpec("p", "h", "t.*", 1.0, 100.0),)}, "wildcard"),
    "fault that names nothing": ({"faults": (Fault(1.0, FaultKind.CRASH, "nobody", 2.0),)}, "nobody"),
    "fault that ends first": ({"faults": (Fault(2.0, FaultKind.CRASH, "h", 1.0),)}, "until_s|ends before"),
}


@pytest.mark.parametrize("name", sorted(IMPOSSIBLE))
def test_an_impossible_scenario_is_refused_before_it_runs(name: str) -> None:
    changes, named = IMPOSSIBLE[name]
    with pytest.raises(ScenarioError, match=named):
        World(small(**changes))
