"""Detection and analysis on random loads: monotone thresholds, total and consistent states, one order."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st

from tests.support.formulas import Rate, SubscriberLoad, follow
from tidegate_agents.load.metrics import UTILIZATIONS, BrokerSample, Metric, Role, utilizations
from tidegate_agents.load.rates import LearnedCapacity
from tidegate_agents.load.states import THRESHOLDS, LoadState, assess
from tidegate_agents.load.threshold import ThresholdKind, paper_depth, projected_depth
from tidegate_agents.policy.bundles import (
    OFFLOADING,
    PublisherLoad,
    offloading_order,
    publisher_bundles,
    subscriber_bundles,
)
from tidegate_agents.policy.effects import drain_factor, subscribers_moved
from tidegate_agents.policy.interface import QueueLoad
from tidegate_protocol.decisions import LoadReason
from tidegate_protocol.messages import Capacity

RATES = st.floats(0, 1e5)
SECONDS = st.floats(0, 100)
SHORT = st.floats(0, 1)
KINDS = st.sampled_from(ThresholdKind)
STATE_ORDER = [LoadState.LOW, LoadState.HIGH, LoadState.OVERLOAD]


def threshold_of(
    kind: ThresholdKind, wait_s: float, arriving: float, draining: float, session_s: float
) -> float | None:
    formula = paper_depth if kind is ThresholdKind.PAPER else projected_depth
    return formula(wait_s, arriving, draining, session_s)


def depth_of(threshold: float | None) -> float:
    return -math.inf if threshold is None else threshold


@given(KINDS, st.floats(-1, 100), SECONDS, RATES, RATES, SECONDS)
def test_a_longer_wait_never_lowers_the_threshold(
    kind: ThresholdKind, wait: float, more: float, arriving: float, draining: float, session: float
) -> None:
    shorter, longer = (threshold_of(kind, value, arriving, draining, session) for value in (wait, wait + more))
    assert depth_of(shorter) <= depth_of(longer)


@given(KINDS, SECONDS, RATES, RATES, RATES, SECONDS)
def test_a_higher_enqueue_rate_never_raises_the_threshold(
    kind: ThresholdKind, wait: float, arriving: float, more: float, draining: float, session: float
) -> None:
    lower = threshold_of(kind, wait, arriving + more, draining, session)
    assert depth_of(lower) <= depth_of(threshold_of(kind, wait, arriving, draining, session))


@given(KINDS, SECONDS, RATES, RATES, SECONDS, SECONDS)
def test_a_longer_session_never_raises_the_threshold(
    kind: ThresholdKind, wait: float, arriving: float, draining: float, session: float, more: float
) -> None:
    slower = threshold_of(kind, wait, arriving, draining, session + more)
    assert depth_of(slower) <= depth_of(threshold_of(kind, wait, arriving, draining, session))


@given(st.floats(0.01, 100), st.floats(1, 1e5), st.floats(0, 1e-3), st.floats(0, 1e-3))
def test_both_thresholds_agree_where_sessions_are_short_and_growth_is_small(
    wait: float, draining: float, session_share: float, growth_share: float
) -> None:
    """The paper's assumption t_LB ≪ t_e. What is left between them is at most what was assumed to be small."""
    session, growth = session_share * wait, growth_share * wait * draining
    paper = paper_depth(wait, draining + growth, draining, session)
    projected = projected_depth(wait, draining + growth, draining, session, margin=0.0)
    assert paper is not None
    assert projected is not None
    assumed_small = (session_share + growth_share * max(session, 1.0)) * wait * draining
    assert abs(paper - projected) <= assumed_small + 1e-9 * wait * draining


@given(st.lists(RATES, min_size=1, max_size=30))
def test_rates_stay_inside_what_was_seen_and_predictions_are_not_negative(samples: list[float]) -> None:
    rate: Rate | None = None
    learned = LearnedCapacity()
    for sample in samples:
        rate = follow(rate, sample)
        learned = learned.seen(sample, backlog=True)
        assert rate.predicted >= 0
    assert rate is not None
    assert min(samples) - 1e-6 <= rate.level <= max(samples) + 1e-6
    assert learned.per_s == (max(samples) or None)


VALUES = st.one_of(st.none(), st.floats(0, 2), st.sampled_from([0.90, 0.95]))


Load = tuple[Role, dict[Metric, float | None], list[tuple[QueueLoad, float | None]]]


@st.composite
def loads(draw: st.DrawFn) -> Load:
    role = draw(st.sampled_from(Role))
    values = {metric: draw(VALUES) for metric in UTILIZATIONS[role]}
    queues = []
    for number in range(draw(st.integers(0, 4)) if role is Role.EDGE else 0):
        arriving, draining = draw(st.floats(0, 100)), draw(st.floats(0, 100))
        depth, migrating = draw(st.floats(0, 198)), draw(st.booleans())
        queue = QueueLoad(f"s{number}.0", f"s{number}", 0, "t", 1.0, depth=depth, migrating=migrating)
        queues.append((queue, threshold_of(draw(KINDS), draw(st.floats(-1, 3)), arriving, draining, 0.5)))
    return role, values, queues


@given(loads())
def test_states_are_table_iii(load: Load) -> None:
    role, values, queues = load
    assessment = assess(role, values, queues)
    known = [(value, THRESHOLDS[role, metric]) for metric, value in values.items() if value is not None]
    judged = [(s.depth, high) for s, high in queues if not s.migrating and high is not None]
    above_high = any(limits.high is not None and value > limits.high for value, limits in known)
    above_high = above_high or any(depth > high for depth, high in judged)
    all_below_low = all(limits.low is None or value < limits.low for value, limits in known)
    if above_high:
        assert assessment.state is LoadState.OVERLOAD
    else:
        assert assessment.state is (LoadState.LOW if all_below_low else LoadState.HIGH)
    assert bool(assessment.findings) is (assessment.state is not LoadState.LOW)
    assert bool(assessment.overloads) is (assessment.state is LoadState.OVERLOAD)
    assert all(finding.value >= finding.threshold for finding in assessment.findings)
    assert not assessment.overloaded_queues & {sample.name for sample, _ in queues if sample.migrating}
    assert assess(role, values, queues[::-1]) == assessment
    decision = assessment.decision("b")
    assert (decision.broker, decision.state) == ("b", assessment.state)
    worst = str(assessment.findings[0].metric) if assessment.findings else LoadReason.ALL_LOW
    assert decision.label == worst
    assert decision.findings == assessment.findings[: len(decision.findings)]
    assert 1 + decision.others == max(len(assessment.findings) + assessment.unnamed, 1)


@given(loads(), st.sampled_from(list(Metric)), st.floats(0, 1))
def test_more_load_is_never_a_better_state(
    load: Load,
    metric: Metric,
    more: float,
) -> None:
    role, values, queues = load
    heavier = {m: v + more if m is metric and v is not None else v for m, v in values.items()}
    before, after = assess(role, values, queues).state, assess(role, heavier, queues).state
    assert STATE_ORDER.index(before) <= STATE_ORDER.index(after)


@given(loads(), st.integers(1, 4))
def test_an_overload_is_confirmed_after_as_many_samples_as_were_asked_for(load: Load, needed: int) -> None:
    role, values, queues = load
    at_once = assess(role, values, queues).state
    asked = dict.fromkeys(Metric, needed)
    assessment = assess(role, values, queues, samples_needed=asked)
    for _ in range(needed - 1):
        assert assessment.state is (LoadState.HIGH if at_once is LoadState.OVERLOAD else at_once)
        assessment = assess(role, values, queues, above=assessment.above, samples_needed=asked)
    assert assessment.state is at_once


SUBSCRIBERS = st.lists(
    st.builds(
        SubscriberLoad,
        st.text("abcdef", min_size=1, max_size=4),
        st.sampled_from(["t1", "t2", "t3", "t4"]),
        st.floats(0, 100),
        st.floats(1, 1000),
        st.sampled_from([0.5, 1.0, 30.0]),
        st.sampled_from([0.0, 5.0]),
        st.booleans(),
        st.booleans(),
    ),
    unique_by=lambda client: client.name,
    max_size=12,
)
PUBLISHERS = st.lists(
    st.builds(
        PublisherLoad,
        st.text("abcdef", min_size=1, max_size=4),
        st.sampled_from(["t1", "t2", "t3", "t4"]),
        st.integers(0, 100).map(float),
        st.integers(1, 1000).map(float),
        st.integers(0, 2),
        st.frozensets(st.sampled_from(["h1", "h2"])),
    ),
    unique_by=lambda client: client.name,
    max_size=12,
)


@given(SUBSCRIBERS, st.data())
def test_the_order_of_subscribers_is_total_and_does_not_depend_on_the_input(
    clients: list[SubscriberLoad], data: st.DataObject
) -> None:
    names = [client.name for client in clients]
    overloaded = data.draw(st.frozensets(st.sampled_from(names))) if names else frozenset()
    shuffled = data.draw(st.permutations(clients))
    bundles = subscriber_bundles(clients, overloaded)
    for role, metric in OFFLOADING:
        if role is Role.EDGE:
            order = offloading_order(role, metric, bundles)
            assert sorted(name for bundle in order for name in bundle.clients) == sorted(names)
            assert [b.clients for b in order] == [
                b.clients for b in offloading_order(role, metric, subscriber_bundles(shuffled, overloaded))
            ]


@given(PUBLISHERS, st.data())
def test_the_order_of_publishers_is_total_and_does_not_depend_on_the_input(
    clients: list[PublisherLoad], data: st.DataObject
) -> None:
    bundles = publisher_bundles(clients)
    again = publisher_bundles(data.draw(st.permutations(clients)))
    for role, metric in OFFLOADING:
        if role is Role.HEAD:
            order = offloading_order(role, metric, bundles)
            assert sorted(b.topic for b in order) == sorted({client.topic for client in clients})
            assert order == offloading_order(role, metric, again)


@given(SUBSCRIBERS.filter(bool), st.booleans(), st.booleans())
def test_a_move_relieves_the_source_and_loads_the_target(
    clients: list[SubscriberLoad], target_has_topic: bool, some_stay: bool
) -> None:
    capacity = Capacity(uplink_bytes_per_s=1e6, downlink_bytes_per_s=1e6, matching_per_s=1e4)
    bundles = subscriber_bundles(clients)
    source = BrokerSample(
        "e1",
        Role.EDGE,
        sum(bundle.bytes_in_per_s for bundle in bundles),
        sum(bundle.bytes_out_per_s for bundle in bundles),
        sum(bundle.messages_in_per_s for bundle in bundles),
        capacity,
    )
    target = BrokerSample("e2", Role.EDGE, 1000, 1000, 10, capacity)
    for bundle in bundles:
        effect = subscribers_moved(bundle, source, target, target_has_topic=target_has_topic, some_stay=some_stay)
        for metric in UTILIZATIONS[Role.EDGE]:
            assert (utilizations(effect.source_after)[metric] or 0) <= (utilizations(source)[metric] or 0)
            assert (effect.target_values[metric] or 0) >= (utilizations(target)[metric] or 0)
        assert drain_factor(source, effect.source_after) >= 1 >= drain_factor(target, effect.target_after)
        before = source.bytes_offered_per_s + target.bytes_offered_per_s
        after = effect.source_after.bytes_offered_per_s + effect.target_after.bytes_offered_per_s
        assert math.isclose(before, after, rel_tol=1e-9)
