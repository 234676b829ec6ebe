"""Rate mode against numbers worked out by hand, and against itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import ews
from tidegate_experiments.burst.scenario import EwsOptions, scenario, topic_of_subscriber
from tidegate_experiments.rate.sampling import Rest
from tidegate_experiments.rate.scale import SETTLED_S, ScaleOptions, ScaleScenario, run_scale, scale_scenario
from tidegate_experiments.rate.uplink import Uplink, late_between
from tidegate_experiments.rate.world import FlowOptions, FlowWorld
from tidegate_protocol import decisions as d
from tidegate_protocol.names import output_queue
from tidegate_simulator.errors import ScenarioError
from tidegate_simulator.observer import Observer
from tidegate_simulator.scenario import Fault, FaultKind

BURST_S = float(ews.BURST_S)


def uplink_of(edge: str) -> Uplink:
    """An edge of the early-warning experiment with its topics placed, before the burst."""
    uplink = Uplink(ews.bandwidth(edge))
    for number in ews.PLACED[edge]:
        topic = ews.TOPICS[number]
        allowed_s = topic.deadline_s - ews.BROKER_TO_BROKER_S - ews.TO_SUBSCRIBER_S
        for index in range(topic.subscribers):
            uplink.add(
                f"t{number}-{index}", f"t{number}", allowed_s, ews.rate(number, burst=False), topic.message_bytes, 0
            )
    return uplink


def burst(uplink: Uplink, edge: str) -> None:
    for number in ews.PLACED[edge]:
        uplink.set_rate(f"t{number}", ews.rate(number, burst=True), ews.TOPICS[number].message_bytes, BURST_S)


def depth(uplink: Uplink, topic: int) -> float:
    (group,) = uplink.of_pattern(f"t{topic}")
    return group.depth


@pytest.mark.parametrize("edge", sorted(ews.EDGES))
def test_depths_in_the_burst_are_those_worked_out_by_hand(edge: str) -> None:
    uplink = uplink_of(edge)
    burst(uplink, edge)
    for at_s in (30.0, 31.0, 34.0, 41.7):
        uplink.advance(at_s)
        for number in ews.PLACED[edge]:
            assert depth(uplink, number) == pytest.approx(ews.depth_at(edge, number, at_s), rel=1e-9, abs=1e-9)


def test_it_does_not_matter_how_finely_time_is_divided() -> None:
    coarse, fine = uplink_of("b1"), uplink_of("b1")
    for uplink, steps in ((coarse, 1), (fine, 997)):
        burst(uplink, "b1")
        for step in range(1, steps + 1):
            uplink.advance(BURST_S + 10.0 * step / steps)
        for queue in [f"t1-{index}" for index in range(8)]:
            uplink.remove(queue, BURST_S + 10.0)
        for step in range(1, steps + 1):
            uplink.advance(BURST_S + 10.0 + 20.0 * step / steps)
    assert depth(fine, 8) == pytest.approx(depth(coarse, 8), rel=1e-6)
    assert fine.delivered.messages == pytest.approx(coarse.delivered.messages, rel=1e-9)
    assert fine.delivered.late == pytest.approx(coarse.delivered.late, rel=1e-6)


def test_bytes_are_neither_made_nor_lost() -> None:
    uplink = uplink_of("b1")
    burst(uplink, "b1")
    uplink.advance(50.0)
    came = ews.offered_on("b1", burst=False) * 30.0 + ews.offered_on("b1", burst=True) * 20.0
    left = sum(group.drained * group.message_bytes * len(group.members) for group in uplink.groups)
    assert left + uplink.backlog_bytes == pytest.approx(came)
    assert left == pytest.approx(ews.offered_on("b1", burst=False) * 30.0 + ews.bandwidth("b1") * 20.0)


def test_topic_8_is_late_from_when_the_wait_reaches_what_it_may_wait() -> None:
    uplink = uplink_of("b1")
    burst(uplink, "b1")
    uplink.advance(60.0)
    growth = ews.offered_on("b1", burst=True) / ews.bandwidth("b1") - 1.0
    late_from_s = BURST_S + 0.8 / growth
    assert uplink.delivered.late_first_s == pytest.approx(late_from_s)
    assert 40.0 < late_from_s < 42.0
    by_hand = ews.rate(8, burst=True) * 7 * (60.0 - late_from_s)
    others_s = {1: 1.5, 3: 1.3}  # what the other tight ones on b1 may wait
    for number, allowed_s in others_s.items():
        since_s = BURST_S + allowed_s / growth
        by_hand += ews.rate(number, burst=True) * ews.TOPICS[number].subscribers * max(60.0 - since_s, 0.0)
    assert uplink.delivered.late == pytest.approx(by_hand)


def test_without_topic_1_the_backlog_goes_as_fast_as_the_uplink_allows() -> None:
    uplink = uplink_of("b1")
    burst(uplink, "b1")
    for index in range(8):
        uplink.remove(f"t1-{index}", 34.0)
    waiting = uplink.backlog_bytes
    spare = ews.bandwidth("b1") - (ews.offered_on("b1", burst=True) - ews.offered(1, burst=True))
    uplink.advance(200.0)
    assert uplink.delivered.backlog_cleared_s == pytest.approx(34.0 + waiting / spare)
    assert uplink.backlog_bytes == 0.0
    assert uplink.delivered.late == 0.0


def test_a_queue_made_while_others_wait_begins_empty_and_shares_their_wait() -> None:
    uplink = uplink_of("b1")
    burst(uplink, "b1")
    uplink.advance(40.0)
    before_s = uplink.wait_s(40.0)
    uplink.add("late-comer", "t8", 0.8, ews.rate(8, burst=True), 400, 40.0)
    assert uplink.wait_s(40.0) == before_s
    first, new = uplink.of_pattern("t8")
    assert new.depth == 0.0
    uplink.advance(300.0)
    # With the same input for long enough both have the same depth: who came late is forgotten.
    assert new.depth == pytest.approx(first.depth, rel=0.05)


def test_groups_of_a_pattern_become_one_when_nothing_waits() -> None:
    uplink = Uplink(1000.0)
    uplink.add("a", "t", 1.0, 6.0, 200.0, 0.0)
    uplink.advance(1.0)
    uplink.add("b", "t", 1.0, 6.0, 200.0, 1.0)
    assert len(uplink.of_pattern("t")) == 2
    uplink.set_rate("t", 1.0, 200.0, 1.0)
    uplink.advance(10.0)
    uplink.merge()
    (group,) = uplink.of_pattern("t")
    assert sorted(group.members) == ["a", "b"]
    uplink.remove("b", 11.0)
    assert "b" not in uplink
    assert "a" in uplink


@pytest.mark.parametrize(
    ("allowed_s", "wait_s", "growth", "between"),
    [
        (1.0, 0.0, 0.1, (0.0, 0.0)),
        (1.0, 0.5, 0.1, (5.0, 8.0)),
        (1.0, 1.5, -0.1, (0.0, 5.0)),
        (1.0, 2.0, -0.1, (0.0, 8.0)),
        (1.0, 1.0, 0.0, (0.0, 0.0)),
        (-0.1, 0.0, 0.0, (0.0, 8.0)),
    ],
)
def test_when_the_wait_is_too_long(
    allowed_s: float, wait_s: float, growth: float, between: tuple[float, float]
) -> None:
    assert late_between(allowed_s, 8.0, wait_s, growth) == pytest.approx(between)


# With agents


class Course(Observer):
    """What agents decided about sessions, and when."""

    def __init__(self) -> None:
        self.sessions_s: list[float] = []
        self.decisions: list[tuple[float, str, d.Decision]] = []

    def decided(self, broker: str, decision: d.Decision, now: float) -> None:
        self.decisions.append((now, broker, decision))
        if isinstance(decision, d.SessionRequested):
            self.sessions_s.append(now)


def topics_on_edges(world: FlowWorld) -> dict[str, list[int]]:
    found: dict[str, set[int]] = {}
    for subscriber, (edge, _) in world.clients.places.items():
        found.setdefault(edge, set()).add(topic_of_subscriber(subscriber))
    return {edge: sorted(topics) for edge, topics in sorted(found.items())}


def test_the_burst_of_the_paper() -> None:
    course = Course()
    world = FlowWorld(scenario(EwsOptions()), FlowOptions(validated=True, wire=True), (course,))
    world.run(until_s=BURST_S - 1.0)
    assert topics_on_edges(world) == ews.PLACED
    world.run()
    (first_s,) = course.sessions_s
    assert first_s == pytest.approx(34.0, abs=1.0)
    moved = {edge: list(topics) for edge, topics in ews.PLACED.items()}
    moved["b1"].remove(1)
    moved["b0"] = sorted([1, *moved["b0"]])
    assert topics_on_edges(world) == moved
    delivered = world.delivered()
    assert delivered.backlog_cleared_s == pytest.approx(62.0, abs=2.0)
    assert delivered.late == 0.0


def test_without_balancing_topic_8_is_late_from_41_s_on() -> None:
    world = FlowWorld(scenario(EwsOptions(policy="none")))
    world.run()
    delivered = world.delivered()
    assert delivered.late_first_s == pytest.approx(41.0, abs=1.0)
    assert delivered.late > 10_000
    assert world.clients.moved == 0


def small(duration_s: float = 150.0) -> ScaleScenario:
    return scale_scenario(ScaleOptions(edges=10, subscriptions_per_edge=40, duration_s=duration_s, seed=3))


def run_small(options: FlowOptions, prepared: ScaleScenario | None = None) -> tuple[FlowWorld, Course]:
    prepared = prepared or small()
    course = Course()
    world = FlowWorld(prepared.scenario, options, (course,))
    world.adopt(prepared.subscriptions())
    world.run()
    return world, course


def test_ten_edges_relieve_those_in_the_burst_before_anything_is_late() -> None:
    world, course = run_small(FlowOptions(wire=True, sampled_from_s=SETTLED_S, staggered=True))
    for broker in world.brokers.values():
        broker.agent.validate()
    delivered = world.delivered()
    assert course.sessions_s
    assert min(course.sessions_s) > 60.0
    assert world.clients.moved > 0
    assert world.clients.stayed == 0
    assert delivered.late == 0.0
    assert delivered.backlog_cleared_s < 150.0
    burst = {broker for _, broker, decision in course.decisions if isinstance(decision, d.SessionRequested)}
    assert burst <= {"h000-e0", "h000-e1"}
    # Every subscriber is where a queue is, and nowhere else.
    queues = {
        queue: broker.name for broker in world.edges for group in broker.plane.uplink.groups for queue in group.members
    }
    assert len(queues) == len(world.scenario.subscribers)
    for subscriber, (edge, number) in world.clients.places.items():
        assert queues[output_queue(subscriber, number)] == edge


def test_an_edge_at_rest_would_have_said_nothing_new() -> None:
    rested, rested_course = run_small(FlowOptions(sampled_from_s=SETTLED_S, rest=Rest(heartbeat=40)))
    awake, awake_course = run_small(FlowOptions(sampled_from_s=SETTLED_S, rest=Rest(after=None)))
    assert rested_course.decisions == awake_course.decisions
    assert rested.clients.places == awake.clients.places
    assert rested.delivered().messages == pytest.approx(awake.delivered().messages)
    assert rested.sampling.heartbeats_differing == 0
    assert rested.sampling.samples < awake.sampling.samples / 2
    assert rested.control.kinds == awake.control.kinds


def test_the_same_run_twice_gives_the_same_trace_and_the_wire_changes_nothing() -> None:
    prepared = small(duration_s=90.0)
    hashes = {
        run_small(FlowOptions(traced=True, wire=wire, sampled_from_s=SETTLED_S, staggered=True), prepared)[0].trace_hash
        for wire in (False, False, True)
    }
    assert len(hashes) == 1


def test_two_clusters_with_their_heads_exchange_routes() -> None:
    prepared = scale_scenario(ScaleOptions(edges=20, subscriptions_per_edge=20, duration_s=70.0))
    world, _ = run_small(FlowOptions(sampled_from_s=SETTLED_S), prepared)
    expected = sum(
        spec.messages_per_s
        for spec in prepared.scenario.publishers
        for s in prepared.scenario.subscribers
        if s.pattern == spec.topic
    )
    # Before the burst all that is published reaches its subscribers, that of the other cluster too.
    offered = sum(group.per_s * len(group.members) for broker in world.edges for group in broker.plane.uplink.groups)
    assert offered >= expected


def test_what_rate_mode_does_not_simulate_is_refused() -> None:
    usual = scenario(EwsOptions())
    fault = Fault(1.0, FaultKind.CRASH, "b1", 2.0)
    with pytest.raises(ScenarioError, match="faults are not simulated in rate mode"):
        FlowWorld(replace(usual, faults=(fault,)))
    slow = replace(usual.subscribers[0], takes_per_s=1.0)
    with pytest.raises(ScenarioError, match="t1-s1, which is slow or leaves"):
        FlowWorld(replace(usual, subscribers=(slow,)))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"edges": 15}, "edges is 15; use a multiple of 10"),
        ({"edges": 0}, "edges is 0"),
        ({"subscriptions_per_edge": 1}, "subscriptions_per_edge is 1; use 10"),
        ({"burst_s": 700.0}, "burst_s is 700"),
    ],
)
def test_an_impossible_size_is_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        ScaleOptions(**options)


def test_sessions_before_the_burst_do_not_count_as_balancing_it() -> None:
    """At this size two sessions come before the burst, and none in the two seconds after it."""
    result = run_scale(ScaleOptions(edges=10, subscriptions_per_edge=20, duration_s=62.0))
    assert result.sessions > 0
    assert result.sessions_after_burst == 0
    assert result.balanced_s is None


def test_a_size_is_measured() -> None:
    seen: list[tuple[str, int, int]] = []
    result = run_scale(
        ScaleOptions(edges=10, subscriptions_per_edge=20, duration_s=120.0), lambda *step: seen.append(step)
    )
    assert (result.edges, result.clusters, result.subscriptions) == (10, 1, 200)
    assert result.sessions >= result.sessions_after_burst > 0
    assert result.migrations > 0
    assert result.balanced_s is not None
    assert result.settling_s is not None
    assert result.settling_max_s is not None
    assert 0.0 < result.balanced_s < 60.0
    assert 0.0 < result.settling_s <= result.settling_max_s
    # A hello and its answer every second, a report every other one.
    assert 2.5 <= result.control_messages_per_edge_per_s < 5.0
    assert seen[-1] == ("10 edges", 120, 120)
