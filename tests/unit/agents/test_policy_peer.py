"""PEER: two steps of detection, balancing to equality, and deadlines that reach no decision."""

from __future__ import annotations

import pytest

from tests.support import ews
from tests.support.decisions import rejections
from tidegate_agents.load.metrics import BrokerSample, Metric, Role, utilizations
from tidegate_agents.load.states import LoadState, assess
from tidegate_agents.policy.interface import LoadView, QueueLoad
from tidegate_agents.policy.peer import LIMITS, PeerPolicy
from tidegate_agents.policy.placement import EdgeView
from tidegate_protocol.balancing.loads import BrokerLoad, MetricReport, PieLocal
from tidegate_protocol.balancing.sessions import Candidate
from tidegate_protocol.decisions import PlanOutcome, Rejection
from tidegate_protocol.messages import Capacity

WIDE = Capacity(uplink_bytes_per_s=1000.0, downlink_bytes_per_s=1e6, matching_per_s=1e6)
POLICY = PeerPolicy()


def queue(number: int, pattern: str, per_s: float, depth: float = 0.0, threshold: float = 1e9) -> QueueLoad:
    return QueueLoad(
        f"out.s{number}.0",
        f"s{number}",
        0,
        pattern,
        deadline_s=1.0,
        enqueue_per_s=per_s,
        drain_per_s=per_s,
        message_bytes=1.0,
        depth=depth,
        allowed_wait_s=0.7,
        threshold=threshold,
    )


def report(broker: str, uplink: float, state: LoadState = LoadState.LOW, busy: bool = False) -> PieLocal:
    metrics = {"uplink": MetricReport(value=uplink), "matching": MetricReport(value=0.0)}
    return PieLocal(broker=broker, cluster="c", state=state, busy=busy, metrics=metrics, period_s=1.0)


def view(queues: list[QueueLoad], *peers: PieLocal, capacity: Capacity = WIDE) -> LoadView:
    offered = sum(one.bytes_per_s for one in queues)
    coming_in = sum({one.pattern: one.bytes_per_s for one in queues}.values())
    broker = BrokerSample("b1", Role.EDGE, coming_in, offered, coming_in, capacity)
    judged = [(one, one.threshold) for one in queues]
    assessment = assess(Role.EDGE, utilizations(broker), judged, thresholds=LIMITS)
    return LoadView(broker, assessment, tuple(queues), peers={one.broker: one for one in peers})


def candidate(broker: str, offered: float, *patterns: str, capacity: Capacity = WIDE) -> Candidate:
    load = BrokerLoad(
        broker=broker,
        state=LoadState.LOW,
        bytes_in_per_s=0.0,
        bytes_offered_per_s=offered,
        messages_in_per_s=0.0,
        capacity=capacity,
    )
    return Candidate(cluster="c", head="h", load=load, patterns=patterns)


def test_an_overload_is_balanced_with_the_least_loaded_that_is_low_and_free() -> None:
    seen = view(
        [queue(1, "a", 480), queue(2, "b", 480)],
        report("b0", 0.5),
        report("b2", 0.3),
        report("b3", 0.2, busy=True),
        report("b4", 0.1, LoadState.HIGH),
    )
    trigger = POLICY.detect(seen)
    assert trigger is not None
    assert trigger.metric is Metric.UPLINK
    assert trigger.candidates == ("b2", "b0")
    assert {one.name for one in trigger.rejected} == {"b3", "b4"}
    assert not trigger.necessary, "a busy uplink alone puts no deadline in danger"


def test_a_session_is_necessary_if_a_deadline_is_in_danger_or_the_matching_overloaded() -> None:
    late = view([queue(1, "a", 480, depth=100.0, threshold=10.0), queue(2, "b", 480)], report("b0", 0.5))
    slow = Capacity(uplink_bytes_per_s=2000.0, downlink_bytes_per_s=1e6, matching_per_s=1000.0)
    matching = view([queue(1, "a", 480), queue(2, "b", 480)], report("b0", 0.5), capacity=slow)
    for seen, metric in ((late, Metric.UPLINK), (matching, Metric.MATCHING)):
        trigger = POLICY.detect(seen)
        assert trigger is not None
        assert trigger.metric is metric
        assert trigger.necessary


def test_with_everybody_in_a_session_it_waits_and_without_anybody_it_asks_outside() -> None:
    queues = [queue(1, "a", 480), queue(2, "b", 480)]
    assert POLICY.detect(view(queues, report("b0", 0.5, busy=True), report("b2", 0.99, LoadState.OVERLOAD))) is None
    trigger = POLICY.detect(view(queues, report("b0", 0.93, LoadState.HIGH), report("b2", 0.99, LoadState.OVERLOAD)))
    assert trigger is not None
    assert trigger.candidates == ()


def test_between_the_two_thresholds_it_neither_gives_nor_takes() -> None:
    seen = view([queue(1, "a", 460), queue(2, "b", 460)], report("b0", 0.1))
    assert seen.assessment.state is LoadState.HIGH
    assert POLICY.detect(seen) is None


@pytest.mark.parametrize(("other", "triggers"), [(0.39, True), (0.41, False)])
def test_a_difference_of_more_than_a_tenth_is_balanced_and_unnecessary(other: float, triggers: bool) -> None:
    trigger = POLICY.detect(view([queue(1, "a", 250), queue(2, "b", 250)], report("b0", other), report("b2", 0.45)))
    assert (trigger is not None) is triggers
    if trigger is not None:
        assert trigger.candidates == ("b0",)
        assert not trigger.necessary


def test_the_largest_difference_comes_first() -> None:
    trigger = POLICY.detect(view([queue(1, "a", 500)], report("b0", 0.35), report("b2", 0.1), report("b3", 0.2)))
    assert trigger is not None
    assert trigger.candidates == ("b2",), "one partner at a time"


def test_whoever_is_not_overloaded_waits_until_the_overloaded_have_begun() -> None:
    queues = [queue(1, "a", 500)]
    waiting = report("b3", 0.99, LoadState.OVERLOAD)
    begun = report("b3", 0.99, LoadState.OVERLOAD, busy=True)
    assert POLICY.detect(view(queues, report("b0", 0.1), waiting)) is None
    assert POLICY.detect(view(queues, report("b0", 0.1), begun)) is not None
    # The overloaded themselves do not wait for each other.
    overloaded = view([queue(1, "a", 500), queue(2, "b", 470)], report("b0", 0.1), waiting)
    assert POLICY.detect(overloaded) is not None


def test_a_deadline_in_danger_triggers_nothing_by_itself() -> None:
    seen = view([queue(1, "a", 500, depth=100.0, threshold=10.0)], report("b0", 0.45))
    assert seen.assessment.state is LoadState.OVERLOAD
    assert POLICY.detect(seen) is None


def test_both_are_equally_loaded_afterwards() -> None:
    seen = view([queue(n, "a", 50) for n in range(8)] + [queue(n, "b", 30) for n in range(8, 16)], report("b0", 0.1))
    trigger = POLICY.detect(seen)
    assert trigger is not None
    selection = POLICY.select(seen, trigger, [candidate("b0", 100.0)])
    moved = sum(move.bundle.bytes_out_per_s for move in selection.moves)
    assert 640 - moved == pytest.approx(100 + moved, abs=2 * 30), "one more would go beyond it"
    assert 640 - moved >= 100 + moved, "never beyond it"
    assert selection.source_after is not None
    assert selection.source_after.bytes_offered_per_s == pytest.approx(640 - moved)


def test_wide_and_narrow_brokers_end_with_the_same_utilization() -> None:
    narrow = Capacity(uplink_bytes_per_s=500.0, downlink_bytes_per_s=1e6, matching_per_s=1e6)
    seen = view([queue(n, "a", 10) for n in range(84)], report("b0", 0.0))
    trigger = POLICY.detect(seen)
    assert trigger is not None
    selection = POLICY.select(seen, trigger, [candidate("b0", 0.0, capacity=narrow)])
    (move,) = selection.moves
    assert len(move.bundle.clients) == 28
    assert move.some_stay


def test_the_target_stays_below_its_lower_threshold() -> None:
    seen = view([queue(n, "a", 100) for n in range(20)], report("b0", 0.5))
    trigger = POLICY.detect(seen)
    assert trigger is not None
    selection = POLICY.select(seen, trigger, [candidate("b0", 500.0)])
    assert sum(len(move.bundle.clients) for move in selection.moves) == 3, "a fourth would bring it to 90 %"
    assert not selection.relieved


def test_what_the_target_carries_already_goes_first() -> None:
    seen = view([queue(1, "a", 200), queue(2, "b", 200)], report("b0", 0.0))
    trigger = POLICY.detect(seen)
    assert trigger is not None
    selection = POLICY.select(seen, trigger, [candidate("b0", 0.0, "b")])
    assert [move.bundle.topic for move in selection.moves] == ["b"]
    assert selection.moves[0].target_has_topic


def test_the_resting_stay_and_count_as_staying() -> None:
    seen = view([queue(1, "a", 200), queue(2, "a", 200)], report("b0", 0.0))
    trigger = POLICY.detect(seen)
    assert trigger is not None
    selection = POLICY.select(seen, trigger, [candidate("b0", 0.0)], resting={"out.s1.0"})
    assert [move.bundle.clients for move in selection.moves] == [("out.s2.0",)]
    assert selection.moves[0].some_stay
    nobody = POLICY.select(seen, trigger, [candidate("b0", 0.0)], resting={"out.s1.0", "out.s2.0"})
    assert nobody.moves == ()
    assert nobody.outcome is PlanOutcome.NOBODY_MOVABLE


def test_a_subscriber_larger_than_the_difference_stays() -> None:
    seen = view([queue(1, "a", 600)], report("b0", 0.2))
    trigger = POLICY.detect(seen)
    assert trigger is not None
    selection = POLICY.select(seen, trigger, [candidate("b0", 200.0)])
    assert selection.moves == ()
    assert rejections(selection) == {"a to b0": Rejection.OVERSHOOTS}


def test_the_second_candidate_is_taken_where_the_first_can_take_nobody() -> None:
    seen = view([queue(1, "a", 400), queue(2, "b", 300)], report("b0", 0.3), report("b2", 0.2))
    trigger = POLICY.detect(seen)
    assert trigger is not None
    ranked = POLICY.rank(trigger, [candidate("b0", 0.0), candidate("b2", 650.0)], session="x")
    assert [one.load.broker for one in ranked] == ["b0", "b2"]
    selection = POLICY.select(seen, trigger, list(reversed(ranked)))
    assert {move.target for move in selection.moves} == {"b0"}


def test_everybody_is_placed_on_the_same_entry_broker() -> None:
    edges = [
        EdgeView(name, Capacity(uplink_bytes_per_s=ews.bandwidth(name), matching_per_s=float(mhz)))
        for name, (mhz, _) in ews.EDGES.items()
    ]
    placed = {POLICY.place(f"t{topic}", edges).edge for topic in ews.TOPICS}  # type: ignore[union-attr]
    assert placed == {"b1"}, "seed 000 §V: all the subscribers are initially connected to b1"
    assert POLICY.place("a", []) is None
