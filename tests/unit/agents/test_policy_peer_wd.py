"""The policies `peer-wd`, `none` and `random`: whom they ask, what they choose, what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from tests.support.decisions import rejections
from tidegate_agents.load.metrics import BrokerSample, Metric, Role, utilizations
from tidegate_agents.load.states import LoadState, assess
from tidegate_agents.policy import policy_named
from tidegate_agents.policy.interface import LoadView, QueueLoad, Selection, Trigger, sample_of
from tidegate_agents.policy.placement import EdgeView
from tidegate_protocol.balancing.loads import BrokerLoad, MetricReport, PieLocal
from tidegate_protocol.balancing.sessions import Candidate
from tidegate_protocol.decisions import PlanOutcome, Rejection
from tidegate_protocol.messages import Capacity

WD = policy_named("peer-wd")
UPLINK = Capacity(uplink_bytes_per_s=10_000)


def queue(
    name: str, pattern: str, rate: float = 10, depth: float = 0, wait_s: float = 1.0, size: float = 100
) -> QueueLoad:
    return QueueLoad(
        name, name, 0, pattern, 1.0, rate, rate, rate, rate, size, depth, wait_s, threshold=0.8 * wait_s * rate
    )


def view(
    queues: list[QueueLoad],
    values: dict[Metric, float | None] | None = None,
    peers: dict[str, PieLocal] | None = None,
    *,
    capacity: Capacity = UPLINK,
    limits_queues: bool = True,
) -> LoadView:
    offered = sum(q.bytes_per_s for q in queues)
    arriving = {q.pattern: q for q in queues}.values()
    broker = BrokerSample(
        "me",
        Role.EDGE,
        sum(q.bytes_per_s for q in arriving),
        offered,
        sum(q.enqueue_per_s for q in arriving),
        capacity,
    )
    assessment = assess(Role.EDGE, values or utilizations(broker), [(q, q.threshold) for q in queues])
    return LoadView(broker, assessment, queues, peers=peers or {}, uplink_limits=limits_queues)


def candidate(
    name: str,
    offered: float = 0.0,
    state: LoadState = LoadState.LOW,
    *,
    busy: bool = False,
    capacity: Capacity = UPLINK,
) -> Candidate:
    load = BrokerLoad(
        broker=name,
        state=state,
        busy=busy,
        bytes_in_per_s=0.0,
        bytes_offered_per_s=offered,
        messages_in_per_s=0.0,
        capacity=capacity,
    )
    return Candidate(cluster="c", head="h", load=load)


def peer(name: str, uplink: float, state: LoadState = LoadState.LOW, *, busy: bool = False) -> PieLocal:
    metrics = {"uplink": MetricReport(value=uplink)}
    return PieLocal(broker=name, cluster="c", state=state, busy=busy, metrics=metrics, period_s=1.0)


def overloaded(limits_queues: bool = True) -> LoadView:
    """Eleven subscriptions on an uplink that carries ten; one is past its threshold."""
    queues = [queue(f"q{n}", f"t{n % 4}", depth=1.0) for n in range(10)]
    queues.append(queue("late", "t9", depth=9.0))
    peers = {p.broker: p for p in (peer("busy", 0, busy=True), peer("far", 0.6), peer("near", 0.2))}
    peers["high"] = peer("high", 0.1, LoadState.HIGH)
    return view(queues, peers=dict(sorted(peers.items())), limits_queues=limits_queues)


def trigger_of(seen: LoadView) -> Trigger:
    found = WD.detect(seen)
    assert found is not None
    return found


def select(seen: LoadView, *candidates: Candidate, resting: frozenset[str] = frozenset()) -> Selection:
    trigger = trigger_of(seen)
    return WD.select(seen, trigger, WD.rank(trigger, candidates, session="s"), resting=resting)


def test_an_overload_is_triggered_with_whoever_is_low_and_free() -> None:
    trigger = trigger_of(overloaded())
    assert trigger.necessary
    assert trigger.metric is Metric.QUEUE_DEPTH
    assert trigger.candidates == ("near", "far")
    assert rejections(trigger) == {"busy": Rejection.BUSY, "high": Rejection.STATE}
    assert trigger.patterns[-1] == "t9"


def test_a_queue_past_its_threshold_on_an_uplink_with_room_is_no_reason_to_move_anyone() -> None:
    assert WD.detect(overloaded(limits_queues=False)) is None


def test_a_backlog_that_an_uplink_works_off_is_a_danger_only_where_it_waits_too_long_already() -> None:
    def seen(depth: float) -> LoadView:
        # The uplink carries all it is offered; 0.8 · 1 s · 10/s may wait, and by the queue's own threshold only 5.
        queues = [queue(f"q{n}", f"t{n % 4}", depth=1.0) for n in range(9)] + [queue("late", "t9", depth=depth)]
        queues[-1].threshold = 5.0
        return view(queues)

    assert WD.detect(seen(7.0)) is None
    assert WD.detect(seen(9.0)) is not None


def test_a_busy_edge_that_is_not_late_is_left_alone() -> None:
    seen = view([queue(f"q{n}", f"t{n}") for n in range(10)])
    assert seen.assessment.state is LoadState.HIGH
    assert WD.detect(seen) is None


def test_candidates_are_tried_least_utilized_first() -> None:
    trigger = trigger_of(overloaded())
    ranked = WD.rank(trigger, [candidate("b", 500), candidate("c", 100), candidate("a", 500)], session="s")
    assert [c.load.broker for c in ranked] == ["c", "a", "b"]


def test_a_bundle_moves_whole_and_no_more_than_is_needed() -> None:
    chosen = select(overloaded(), candidate("near"))
    assert [(move.bundle.topic, len(move.bundle.clients), move.some_stay) for move in chosen.moves] == [
        ("t0", 3, False)
    ]
    assert chosen.relieved
    assert chosen.source_after is not None
    assert chosen.source_after.bytes_offered_per_s == 8_000


def test_a_bundle_is_split_only_if_none_fits_whole() -> None:
    queues = [queue(f"q{n}", "t0", depth=1.0) for n in range(10)] + [queue("late", "t9", 10, 9.0)]
    chosen = select(view(queues), candidate("near", 6_500))
    # The late one itself would fit, and goes before half of the others.
    assert [move.bundle.topic for move in chosen.moves] == ["t9"]
    chosen = select(view(queues), candidate("near", 6_500), resting=frozenset({"late"}))
    (move,) = chosen.moves
    assert move.some_stay
    assert 1 <= len(move.bundle.clients) <= 2
    assert chosen.relieved


def test_promises_of_earlier_moves_in_the_same_selection_count() -> None:
    queues = [queue(f"q{n}", f"t{n}", depth=1.0) for n in range(20)] + [queue("late", "t99", 10, 9.0)]
    chosen = select(view(queues), candidate("a", 7_500), candidate("b", 7_000))
    given: dict[str, float] = {"a": 7_500, "b": 7_000}
    for move in chosen.moves:
        given[move.target] += move.bundle.bytes_out_per_s
    assert all(load < 9_000 for load in given.values())
    assert len(chosen.moves) == 2


def test_half_of_the_help_is_enough_only_if_there_is_time() -> None:
    queues = [queue(f"q{n}", f"t{n}", depth=1.0) for n in range(20)] + [queue("late", "t99", 10, 9.0)]
    seen = view(queues)
    urgent = replace(trigger_of(seen), urgent=True)
    half = select(seen, candidate("a", 7_500), candidate("b", 7_000))
    assert half.moves
    assert not half.relieved, "19 of 21 stay on an uplink that carries 10"
    assert urgent.lacks(half)
    assert not replace(urgent, urgent=False).lacks(half), "another session may follow"
    enough = select(overloaded(), candidate("near"))
    assert enough.relieved
    assert not urgent.lacks(enough)
    nothing = select(seen, candidate("a", state=LoadState.HIGH))
    assert urgent.lacks(nothing)
    assert replace(urgent, urgent=False).lacks(nothing)


def test_where_small_ones_would_use_up_the_room_the_large_ones_go_first() -> None:
    # 13,400 are offered to an uplink of 10,000. By the offloading order both small ones go to the emptier candidate,
    # and what is left there is too little for a large one.
    small = [queue(f"s{n}", f"small{n}", rate=7, wait_s=50.0) for n in range(2)]
    large = [queue(f"l{n}", "large", rate=30, depth=40.0) for n in range(4)]
    chosen = select(view([*small, *large]), candidate("a", 5_700), candidate("b", 8_200))
    assert {(move.target, move.bundle.topic, len(move.bundle.clients)) for move in chosen.moves} == {
        ("a", "large", 1),
        ("b", "small0", 1),
    }
    assert chosen.source_after is not None
    assert chosen.source_after.bytes_offered_per_s == 9_700


def test_what_grows_until_a_session_takes_effect_counts() -> None:
    def chosen(session_s: float) -> Selection:
        # Eleven are offered for ten that are carried, and each queue grows by one message per second.
        queues = [queue(f"q{n}", f"t{n}", rate=11.0, depth=5.0) for n in range(10)]
        for one in queues:
            one.drain_per_s = one.drain_predicted_per_s = 10.0
            one.threshold = 4.0
        seen = view(queues)
        seen = replace(seen, rule=replace(seen.rule, session_s=session_s))
        return select(seen, candidate("near"))

    # One bundle less, and 11.1 are drained per second, which is what may wait: 8 after 3 s, but 12 after 7 s.
    assert (soon := chosen(3.0)).relieved
    assert (later := chosen(7.0)).relieved
    assert (len(soon.moves), len(later.moves)) == (1, 2)


def test_candidates_that_are_not_low_any_more_get_nothing() -> None:
    chosen = select(overloaded(), candidate("a", state=LoadState.HIGH), candidate("b", busy=True))
    assert chosen.moves == ()
    assert rejections(chosen) == {"a": Rejection.STATE, "b": Rejection.BUSY}
    assert chosen.outcome is PlanOutcome.NO_ROOM


def test_nothing_is_moved_if_the_overload_has_gone() -> None:
    trigger = trigger_of(overloaded())
    calm = view([queue(f"q{n}", f"t{n}") for n in range(5)])
    chosen = WD.select(calm, trigger, [candidate("a")])
    assert chosen.moves == ()
    assert chosen.relieved


def test_what_has_no_traffic_is_not_moved_because_it_would_not_help() -> None:
    queues = [queue("idle", "t-idle", 0.0), queue("late", "t9", 100, 90.0), queue("other", "t1", 10, 5.0)]
    chosen = select(view(queues), candidate("a"))
    assert "t-idle" not in {move.bundle.topic for move in chosen.moves}
    assert rejections(chosen)["t-idle"] is Rejection.NO_RELIEF


def test_slow_and_migrating_queues_stay_and_make_their_bundles_stay_in_part() -> None:
    seen = overloaded()
    next(q for q in seen.queues if q.name == "q0").slow = True
    next(q for q in seen.queues if q.name == "q4").migrating = True
    chosen = select(seen, candidate("near"))
    moved = {name for move in chosen.moves for name in move.bundle.clients}
    assert not moved & {"q0", "q4"}
    assert next(move for move in chosen.moves if move.bundle.topic == "t0").some_stay


def test_backlog_that_no_move_could_save_does_not_empty_the_source() -> None:
    queues = [queue(f"q{n}", f"t{n}", depth=500.0) for n in range(11)]
    chosen = select(view(queues), *(candidate(f"b{n}") for n in range(5)))
    assert chosen.source_after is not None
    assert 0.8 <= chosen.source_after.bytes_offered_per_s / 10_000 < 0.9


def test_an_overloaded_matcher_is_relieved_by_bundles_that_go_whole() -> None:
    capacity = Capacity(uplink_bytes_per_s=1e6, matching_per_s=100)
    queues = [queue(f"q{n}", f"t{n % 10}") for n in range(20)]
    seen = view(queues, capacity=capacity)
    trigger = trigger_of(seen)
    assert trigger.metric is Metric.MATCHING
    chosen = WD.select(seen, trigger, [candidate("a", capacity=capacity)])
    assert [len(move.bundle.clients) for move in chosen.moves] == [2]
    assert chosen.relieved


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.floats(0, 30), st.floats(0, 50), st.sampled_from([0.2, 1.0, 30.0])), max_size=25
    ),
    st.lists(st.floats(0, 9_500), max_size=4),
    st.sampled_from(["peer-wd", "random"]),
)
def test_no_selection_pushes_a_candidate_out_of_low(
    rows: list[tuple[int, float, float, float]], loads: list[float], name: str
) -> None:
    seen = view([queue(f"q{n:02}", f"t{p}", rate, depth, wait) for n, (p, rate, depth, wait) in enumerate(rows)])
    policy = policy_named(name, 7)
    trigger = policy.detect(seen)
    if trigger is None:
        return
    candidates = [candidate(f"b{n}", load) for n, load in enumerate(loads)]
    chosen = policy.select(seen, trigger, policy.rank(trigger, candidates, session="s"), session="s")
    samples = {c.load.broker: sample_of(c.load) for c in candidates}
    out = dict.fromkeys(samples, 0.0)
    moved: list[str] = []
    for move in chosen.moves:
        out[move.target] += move.bundle.bytes_out_per_s
        moved += move.bundle.clients
    assert len(moved) == len(set(moved))
    assert set(moved) <= {q.name for q in seen.queues}
    for broker, sample in samples.items():
        assert out[broker] == 0 or sample.bytes_offered_per_s + out[broker] < 9_000
    assert chosen == policy.select(seen, trigger, policy.rank(trigger, candidates, session="s"), session="s")


# none and random


def test_none_never_asks() -> None:
    policy = policy_named("none")
    assert policy.detect(overloaded()) is None
    edges = [EdgeView("a", UPLINK, 5), EdgeView("b", UPLINK, 1)]
    placed = policy.place("t", edges)
    assert placed is not None
    assert placed == WD.place("t", edges)


def test_random_is_decided_by_its_seed() -> None:
    edges = [EdgeView(name) for name in "abcdef"]

    def places(seed: int) -> list[str]:
        found = [policy_named("random", seed).place("t", edges, subject=f"s{n}") for n in range(40)]
        return [place.edge for place in found if place is not None]

    assert places(1) == places(1)
    assert places(1) != places(2)
    assert len(set(places(1))) == 6
    assert policy_named("random").place("t", []) is None


def test_an_unknown_policy_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="no policy 'best': there are none, peer, peer-wd, random"):
        policy_named("best")
