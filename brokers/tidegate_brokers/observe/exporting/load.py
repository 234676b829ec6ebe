"""The load of a broker as gauges, made when Prometheus asks for them: state, utilizations, thresholds, topics.

They are read from the agent's last judgement. Only the labels of topics are kept here.

Invariants: labels are from fixed sets, except topics, of which there are at most as many as configured, and `other`. A
utilization without a known capacity is left out and never shown as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.load.metrics import BrokerSample, Metric, Role, SubscriptionSample, utilizations
from tidegate_agents.load.overview import fullness
from tidegate_agents.load.states import THRESHOLDS, Limits
from tidegate_agents.policy.interface import QueueLoad
from tidegate_protocol.parts import LoadState

from ...sensing.gauges import Sensed
from .classes import TopicLabels

FULLNESS_MAX: Final = 5.0
"""Told where something waits although nothing may, and at most: more would tell nothing and hide the rest."""
Utilizations = Mapping[Metric, float | None]
LimitsOf = Mapping[tuple[Role, Metric], Limits]


class Activity(StrEnum):
    """What an edge's balancing does."""

    WATCHING = "watching"
    SOURCE = "source"
    """Gives load away."""
    TARGET = "target"
    """Takes some."""
    STABILIZING = "stabilizing"
    """Waits until a session shows in its load."""


@dataclass(slots=True)
class _Topic:
    """The subscriptions of one class on this edge."""

    subscriptions: int = 0
    waiting: float = 0.0
    enqueued: float = 0.0
    drained: float = 0.0
    past: int = 0
    infeasible: int = 0
    deadline_s: float = float("inf")
    fullness: float = -1.0
    depth: float = 0.0
    threshold: float | None = None

    def add(self, queue: QueueLoad) -> None:
        self.subscriptions += 1
        self.waiting += queue.depth
        self.enqueued += queue.enqueue_per_s
        self.drained += queue.drain_per_s
        if queue.deadline_s < self.deadline_s:
            self.deadline_s = queue.deadline_s
        threshold = queue.threshold
        if threshold is None:
            self.infeasible += 1
        elif not (queue.migrating or queue.slow or queue.away):
            used = fullness(queue)
            self.past += used > 1.0
            if used > self.fullness:
                self.fullness, self.depth, self.threshold = used, queue.depth, threshold


class EdgeLoadMetrics(Collector):
    """Gauges of an edge."""

    def __init__(self, agent: EdgeAgent, sensed: Sensed, limits: LimitsOf, topics_max: int) -> None:
        self._agent = agent
        self._sensed = sensed
        self._limits = limits
        self._labels = TopicLabels(topics_max)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry for every answer to /metrics."""
        agent = self._agent
        detector, balancing = agent.detector, agent.balancing
        yield state_family(balancing.reported_state)
        yield one_of("tidegate_broker_activity_info", "1 for what balancing does here", "activity", Activity,
                     self._activity())  # fmt: skip
        yield gauge("tidegate_session_expected_seconds", "How long a session takes until it helps, as learned so far",
                    detector.session_time.average_s)  # fmt: skip
        slow, infeasible = len(detector.slow), len(detector.infeasible)
        yield gauge("tidegate_subscriptions_slow_count", "Subscriptions whose subscriber is too slow", slow)
        yield gauge("tidegate_subscriptions_infeasible_count",
                    "Subscriptions whose deadline no broker behind these links could meet", infeasible)  # fmt: skip
        past = len(detector.assessment.overloaded_queues)
        yield gauge("tidegate_subscriptions_past_threshold_count", "Output queues that hold more than they may", past)
        if detector.samples:
            yield from self._utilizations(detector.broker)
        yield from self._topics(detector.view({}).queues)

    def _activity(self) -> Activity:
        balancing = self._agent.balancing
        if balancing.phase is not None:
            return Activity.SOURCE
        if balancing.stabilizing:
            return Activity.STABILIZING
        return Activity.TARGET if balancing.busy else Activity.WATCHING

    def _utilizations(self, broker: BrokerSample) -> Iterator[GaugeMetricFamily]:
        values, capacity = utilizations(broker), broker.capacity
        carried = carried_bytes_per_s(self._sensed.subscriptions)
        used = dict(values)
        if capacity.uplink_bytes_per_s is not None:
            used[Metric.UPLINK] = carried / capacity.uplink_bytes_per_s
        yield from utilization_families(values, used, {m: self._limits[Role.EDGE, m] for m in values})
        yield gauge("tidegate_broker_used_bytes_per_second", "What the uplink carried: acknowledged", carried)

    def _topics(self, queues: Iterable[QueueLoad]) -> Iterator[GaugeMetricFamily]:
        by_pattern: dict[str, list[QueueLoad]] = {}
        for queue in queues:
            by_pattern.setdefault(queue.pattern, []).append(queue)
        self._labels.keep(by_pattern.keys())
        topics: dict[str, _Topic] = {}
        for pattern in sorted(by_pattern):
            label, _ = self._labels.label(pattern)
            topic = topics.get(label)
            if topic is None:
                topic = topics[label] = _Topic()
            for queue in by_pattern[pattern]:
                topic.add(queue)
        yield from topic_families(topics)


class HeadLoadMetrics(Collector):
    """Gauges of a head. Its load is that of the last sample, its state as its agent judged it."""

    def __init__(self, sensed: Sensed, state: Callable[[], LoadState], paused: Callable[[], bool]) -> None:
        self._sensed = sensed
        self._state = state
        self._paused = paused

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry for every answer to /metrics."""
        yield state_family(self._state())
        yield gauge("tidegate_balancing_paused_info", "1 while an operator has balancing paused", self._paused())
        yield gauge("tidegate_publishers_count", "Publishers that reported lately", self._sensed.publishers)
        broker = self._sensed.broker
        if broker is not None:
            values = utilizations(broker)
            yield from utilization_families(values, None, {m: THRESHOLDS[Role.HEAD, m] for m in values})


# Families


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """One value without labels."""
    return GaugeMetricFamily(name, text, float(value))


def one_of(name: str, text: str, label: str, members: Iterable[str], current: str) -> GaugeMetricFamily:
    """1 for the member that holds, 0 for the others."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for member in members:
        family.add_metric([str(member)], float(member == current))
    return family


def state_family(state: LoadState) -> GaugeMetricFamily:
    """The load state."""
    return one_of("tidegate_broker_state_info", "1 for the load state of this broker", "state", LoadState, state)


def utilization_families(
    offered: Utilizations, used: Utilizations | None, limits: Mapping[Metric, Limits]
) -> Iterator[GaugeMetricFamily]:
    """What is asked for and what is used of each capacity, with the static thresholds it is judged by."""
    told = [("tidegate_broker_offered_utilization_ratio", "What is asked of a capacity; may pass 1", offered)]
    if used is not None:
        told.append(("tidegate_broker_used_utilization_ratio", "What is carried of it", used))
    for name, text, values in told:
        family = GaugeMetricFamily(name, text, labels=["resource"])
        for metric, value in values.items():
            if value is not None:
                family.add_metric([str(metric)], value)
        yield family
    family = GaugeMetricFamily(
        "tidegate_broker_threshold_utilization_ratio", "Below low everywhere: LOW; above high anywhere: OVERLOAD",
        labels=["resource", "bound"],
    )  # fmt: skip
    for metric, limit in limits.items():
        for bound, value in (("low", limit.low), ("high", limit.high)):
            if value is not None:
                family.add_metric([str(metric), bound], value)
    yield family


def topic_families(topics: Mapping[str, _Topic]) -> Iterator[GaugeMetricFamily]:
    """One line per class and gauge. Depth, threshold and share are those of its queue nearest to the threshold."""
    tell: tuple[tuple[str, str, Callable[[_Topic], float | None]], ...] = (
        ("subscriptions_count", "Subscriptions", lambda topic: topic.subscriptions),
        ("waiting_messages", "Messages that wait in all its output queues", lambda topic: topic.waiting),
        ("enqueued_messages_per_second", "What comes for all of them, smoothed", lambda topic: topic.enqueued),
        ("drained_messages_per_second", "What their subscribers take, smoothed", lambda topic: topic.drained),
        ("past_threshold_count", "Output queues that hold more than they may", lambda topic: topic.past),
        ("infeasible_count", "Subscriptions whose deadline can't be met", lambda topic: topic.infeasible),
        ("deadline_seconds", "The shortest deadline", lambda topic: _finite(topic.deadline_s)),
        ("depth_messages", "What waits in the queue nearest to its threshold", _told(lambda topic: topic.depth)),
        ("threshold_messages", "What may wait in that queue", _told(lambda topic: topic.threshold)),
        (
            "threshold_used_ratio",
            "The first over the second: past 1 the deadline is in danger",
            _told(lambda topic: min(topic.fullness, FULLNESS_MAX)),
        ),
    )
    for name, text, value_of in tell:
        family = GaugeMetricFamily(f"tidegate_topic_{name}", text, labels=["topic"])
        for label, topic in topics.items():
            value = value_of(topic)
            if value is not None:
                family.add_metric([label], value)
        yield family


def _told(value: Callable[[_Topic], float | None]) -> Callable[[_Topic], float | None]:
    """Only where some queue of the class is judged."""
    return lambda topic: None if topic.fullness < 0.0 else value(topic)


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def carried_bytes_per_s(subscriptions: Iterable[SubscriptionSample]) -> float:
    """What subscribers acknowledged, in bytes on the wire."""
    return sum(sample.drain_per_s * sample.message_bytes for sample in subscriptions if sample.drain_per_s > 0.0)
