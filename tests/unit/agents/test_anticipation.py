"""Forecasts and capacities from an insight at an edge: what they do to its judgement, and that they can't do more."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.decisions import of_kind
from tests.support.edge_driver import AT_ONCE
from tidegate_agents.config import EdgeConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.load.anticipation import RISE_MAX, THRESHOLD_SHARE_MIN
from tidegate_agents.load.detector import Detector
from tidegate_agents.load.metrics import BrokerSample, Metric, Role, SubscriptionSample, utilizations
from tidegate_agents.machine import Decision, EdgeSampled, MessageReceived, Record, Started
from tidegate_agents.policy import policy_named
from tidegate_agents.policy.interface import QueueLoad
from tidegate_protocol import decisions as d
from tidegate_protocol.insight import EdgeInsight, PatternForecast
from tidegate_protocol.messages import Capacity, LoadState, Subscription

SIZE = 100.0
RATE = 50.0


def subscription(subscriber: str, pattern: str) -> Subscription:
    return Subscription(subscriber=subscriber, number=0, pattern=pattern, deadline_us=2_000_000, expires_s=600)


def edge(uplink: float | None = 10_000.0) -> Detector:
    """One subscription each to two topics; together they offer 10,000 B/s."""
    found = Detector("e", AT_ONCE, Capacity(uplink_bytes_per_s=uplink), policy_named(AT_ONCE.policy))
    for topic in ("rain", "calm"):
        found.track(subscription(topic, topic))
    return found


def sample(depth: float = 0.0, drained: float = RATE, rate: float = RATE) -> EdgeSampled:
    queues = tuple(
        SubscriptionSample(f"out.{topic}.0", topic, rate, drained, depth, 0, 0.0, SIZE) for topic in ("rain", "calm")
    )
    return EdgeSampled(BrokerSample("e", Role.EDGE, 0.0, 2 * rate * SIZE, 2 * rate), queues)


def judged(
    found: Detector, forecasts: Mapping[str, float], depth: float = 0.0, samples: int = 4
) -> tuple[QueueLoad, QueueLoad]:
    """The queues of `rain` and `calm` after a few equal samples."""
    found.forecasts = forecasts
    for _ in range(samples):
        found.sampled(sample(depth))
        found.validate(["out.rain.0", "out.calm.0"])
    rain, calm = found.queue("out.rain.0"), found.queue("out.calm.0")
    assert rain is not None
    assert calm is not None
    return rain, calm


def test_a_rise_beyond_the_uplink_lowers_the_threshold_of_that_queue_alone() -> None:
    plain, other = judged(edge(), {})
    rain, calm = judged(edge(), {"rain": 60.0})
    assert rain.threshold is not None
    assert plain.threshold is not None
    assert THRESHOLD_SHARE_MIN * plain.threshold <= rain.threshold < plain.threshold
    assert rain.threshold_measured == plain.threshold
    assert calm.threshold == other.threshold
    assert rain.enqueue_per_s == plain.enqueue_per_s, "what is measured stays as it is"


@pytest.mark.parametrize("expected", [100.0, 1e3, 1e9])
def test_no_forecast_takes_more_than_its_share_of_a_threshold(expected: float) -> None:
    plain, _ = judged(edge(), {})
    rain, _ = judged(edge(), {"rain": expected})
    assert plain.threshold is not None
    assert rain.threshold is not None
    assert rain.threshold >= THRESHOLD_SHARE_MIN * plain.threshold
    assert rain.enqueue_predicted_per_s <= RISE_MAX * rain.enqueue_per_s


@pytest.mark.parametrize("expected", [0.0, 1.0, RATE, -1e9])
def test_a_forecast_of_less_than_is_measured_changes_nothing(expected: float) -> None:
    plain, _ = judged(edge(), {})
    rain, _ = judged(edge(), {"rain": expected, "unknown": 1e9})
    assert rain == plain


@pytest.mark.parametrize("uplink", [None, 1e6])
def test_a_rise_that_the_uplink_carries_or_of_which_nobody_can_say_changes_nothing(uplink: float | None) -> None:
    plain, _ = judged(edge(uplink), {})
    rain, _ = judged(edge(uplink), {"rain": 1e9})
    assert rain == plain


def test_a_queue_in_which_nothing_waits_is_in_time_whatever_is_forecast() -> None:
    found = edge()
    judged(found, {"rain": 1e9, "calm": 1e9})
    assert found.assessment.state is not LoadState.OVERLOAD


def test_a_backlog_is_seen_sooner_and_the_decision_says_why() -> None:
    plain = edge()
    rain, _ = judged(plain, {})
    assert rain.threshold is not None
    depth = 0.75 * rain.threshold
    judged(plain, {}, depth)
    assert plain.assessment.state is not LoadState.OVERLOAD
    warned = edge()
    warned.forecasts = {"rain": 100.0, "calm": 100.0}
    found = [decision for _ in range(3) for decision in warned.sampled(sample(depth)).decisions]
    assert warned.assessment.state is LoadState.OVERLOAD
    decision = next(one for one in of_kind(found, d.LoadStateChanged) if one.state is LoadState.OVERLOAD)
    assert decision.hints is not None
    hint = next(one for one in decision.hints.forecasts if one.queue == "out.rain.0")
    assert hint.forecast_per_s == 100.0
    assert hint.threshold_measured > depth


def test_what_was_forecast_leaves_no_trace_when_it_is_over() -> None:
    found = edge()
    judged(found, {"rain": 100.0})
    rain, _ = judged(found, {})
    plain, _ = judged(edge(), {}, samples=8)
    assert rain == plain


# Capacities


def test_a_capacity_fills_in_only_where_nothing_is_known() -> None:
    configured, unknown = edge(20_000.0), edge(None)
    for found in (configured, unknown):
        found.uplink.hint = 40_000.0
        judged(found, {})
    assert configured.broker.capacity.uplink_bytes_per_s == 20_000.0
    assert not configured.uplink.hinted
    assert utilizations(unknown.broker)[Metric.UPLINK] == 0.25
    assert unknown.uplink.hinted


@pytest.mark.parametrize("hint", [1e-6, 1.0, 9_999.0])
def test_a_capacity_is_never_below_what_was_carried(hint: float) -> None:
    plain, found = edge(None), edge(None)
    found.uplink.hint = hint
    before, _ = judged(plain, {})
    after, _ = judged(found, {})
    assert found.broker.capacity.uplink_bytes_per_s == 2 * RATE * SIZE
    assert after == before, "neither thresholds nor what is feasible hang on it"


@pytest.mark.parametrize("hint", [1.0, 1e13])
def test_the_first_backlog_that_the_uplink_causes_replaces_the_hint(hint: float) -> None:
    plain, found = edge(None), edge(None)
    found.uplink.hint = hint
    for one in (plain, found):
        for depth in range(0, 600, 60):
            one.sampled(sample(float(depth), drained=RATE - 10.0))
    assert found.broker == plain.broker
    assert found.assessment == plain.assessment
    assert not found.uplink.hinted
    assert found.uplink_limits


# Told by the head


class Edge:
    """An edge's agent that is sampled and told by hand."""

    def __init__(self) -> None:
        config = EdgeConfig("e", "c", "h", client_url="amqp://e", link_url="amqp://e", incarnation=1)
        self.agent = EdgeAgent(config)
        self.now = 0.0
        self.agent.handle(Started(outputs=(subscription("rain", "rain"), subscription("calm", "calm"))), self.now)

    def tell(self, number: int, *, left_s: float = 60.0, **given: object) -> list[Decision]:
        message = EdgeInsight.model_validate(
            {"head": "h", "incarnation": 1, "number": number, "made_at_us": 1, "left_us": round(left_s * 1e6), **given}
        )
        return self._give(MessageReceived(message))

    def sample(self) -> list[Decision]:
        self.now += 1.0
        return self._give(sample())

    def _give(self, event: MessageReceived | EdgeSampled) -> list[Decision]:
        actions = self.agent.handle(event, self.now)
        self.agent.validate()
        return [action.decision for action in actions if isinstance(action, Record)]


def rising(pattern: str, level: float, trend: float = 0.0, left_s: float = 60.0) -> PatternForecast:
    return PatternForecast(pattern=pattern, level_per_s=level, trend_per_s=trend, left_us=round(left_s * 1e6))


def test_forecasts_go_on_by_their_trend_until_their_horizon() -> None:
    driver = Edge()
    driver.tell(1, forecasts=(rising("rain", 50.0, trend=2.0), rising("calm", 70.0, left_s=1.5)))
    driver.sample()
    assert driver.agent.detector.forecasts == {"rain": 52.0, "calm": 70.0}
    driver.sample()
    assert driver.agent.detector.forecasts == {"rain": 54.0}


def test_what_has_expired_or_was_overtaken_is_not_used() -> None:
    driver = Edge()
    driver.tell(2, uplink_bytes_per_s=5e4, left_s=2.0)
    driver.tell(1, uplink_bytes_per_s=7e4)
    driver.sample()
    assert driver.agent.detector.uplink.hint == 5e4
    said = driver.sample()
    assert driver.agent.detector.uplink.hint is None
    assert [one.kind for one in said if one.kind.startswith("insight")] == ["insight-over"]
    assert not [one for one in driver.sample() if one.kind.startswith("insight")]


def test_an_edge_says_what_it_was_told_once() -> None:
    driver = Edge()
    assert [one.kind for one in driver.tell(1, uplink_bytes_per_s=5e4)] == ["insight-told"]
    assert not driver.tell(2, uplink_bytes_per_s=5e4)
    assert [one.kind for one in driver.tell(3, left_s=0.0)] == ["insight-over"]
