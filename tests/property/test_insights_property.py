"""Whatever an insight says, it stays within its bounds: random clusters, random advice."""

from __future__ import annotations

from copy import copy

from hypothesis import given, strategies as st

from tidegate_agents.load.anticipation import RISE_MAX, THRESHOLD_SHARE_MIN, anticipate
from tidegate_agents.load.threshold import ThresholdKind
from tidegate_agents.policy.interface import QueueLoad, ThresholdRule
from tidegate_agents.policy.placement import LOW_UTILIZATION, EdgeView, ExpectedLoad, Placement, place
from tidegate_protocol.messages import Capacity

PATTERNS = ("a", "b", "c", "d", "e")
rates = st.floats(0.0, 1e3)
anything = st.floats(-1e12, 1e12)


@st.composite
def clusters(draw: st.DrawFn) -> list[EdgeView]:
    """Up to five edges, with subscriptions to some patterns each; `e` is new to all of them."""
    found = []
    for number in range(draw(st.integers(1, 5))):
        held = draw(st.dictionaries(st.sampled_from(PATTERNS[:-1]), st.integers(1, 4), max_size=3))
        uplink = draw(st.none() | st.floats(100.0, 1e4))
        found.append(EdgeView(f"e{number}", Capacity(uplink_bytes_per_s=uplink), sum(held.values()), held))
    return found


expectations = st.dictionaries(st.sampled_from(PATTERNS), st.builds(ExpectedLoad, rates, rates), max_size=5)
partners = st.frozensets(st.sampled_from((*PATTERNS, "unknown")))


def utilization(placement: Placement) -> float:
    """What the decision says of the edge that was chosen; 0 where nothing is known of its load."""
    (chosen,) = (score for score in placement.decision.scores if score.edge == placement.edge)
    return chosen.utilization or 0.0


@given(clusters(), expectations, partners)
def test_correlations_choose_among_edges_that_stay_low(
    edges: list[EdgeView], expected: dict[str, ExpectedLoad], partners: frozenset[str]
) -> None:
    plain = place("e", edges, expected=expected)
    advised = place("e", edges, expected=expected, correlated={"e": partners})
    assert plain is not None
    assert advised is not None
    before, after = map(utilization, (plain, advised))
    assert after <= LOW_UTILIZATION or before > LOW_UTILIZATION
    clashes = {view.name for view in edges if partners & view.patterns.keys()}
    if not clashes:
        assert advised == plain


@given(clusters(), expectations, partners)
def test_subscribers_of_one_pattern_stay_together(
    edges: list[EdgeView], expected: dict[str, ExpectedLoad], partners: frozenset[str]
) -> None:
    pattern = next((name for view in edges for name in view.patterns), "e")
    if pattern != "e":
        assert place(pattern, edges, expected=expected, correlated={pattern: partners}) == place(
            pattern, edges, expected=expected
        )


@st.composite
def queues(draw: st.DrawFn) -> list[QueueLoad]:
    rule = ThresholdRule(draw(st.sampled_from(list(ThresholdKind))), draw(st.floats(0.1, 10.0)))
    found = []
    for number in range(draw(st.integers(1, 4))):
        queue = QueueLoad(f"q{number}", "s", number, draw(st.sampled_from(PATTERNS)), 1.0)
        queue.enqueue_per_s = queue.enqueue_predicted_per_s = draw(rates)
        queue.drain_per_s = queue.drain_predicted_per_s = draw(rates)
        queue.message_bytes = draw(st.floats(1.0, 1e4))
        queue.allowed_wait_s = draw(st.floats(-1.0, 10.0))
        queue.threshold = rule.of(queue)
        found.append(queue)
    return found


@given(queues(), st.dictionaries(st.sampled_from(PATTERNS), anything), rates, st.none() | st.floats(1e-3, 1e7))
def test_forecasts_only_lower_thresholds_and_leave_half_of_each(
    followed: list[QueueLoad], forecasts: dict[str, float], offered: float, uplink: float | None
) -> None:
    before = [copy(queue) for queue in followed]
    anticipate(followed, forecasts, offered, uplink, ThresholdRule())
    for was, queue in zip(before, followed, strict=True):
        assert queue.enqueue_per_s == was.enqueue_per_s
        assert queue.enqueue_predicted_per_s >= was.enqueue_predicted_per_s
        risen = queue.enqueue_predicted_per_s > was.enqueue_predicted_per_s
        assert not risen or queue.enqueue_predicted_per_s <= RISE_MAX * queue.enqueue_per_s
        if was.threshold is None or was.threshold <= 0.0:
            assert queue == was
        else:
            assert queue.threshold is not None
            assert THRESHOLD_SHARE_MIN * was.threshold <= queue.threshold <= was.threshold
