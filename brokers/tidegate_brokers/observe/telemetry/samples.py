"""From the samples of a broker to its load records, and for an edge to records of the queues nearest to their
thresholds.

Records are made right after the agent has judged the sample, from what the agent knows then. Time is an argument.

Invariants: load is recorded at most once per `period_s`; thresholds are recorded at most once per `detail_s`, and of a
bounded number of queues. The load of a head is its last sample; the load of an edge is smoothed as its agent judges it.
"""

from __future__ import annotations

from typing import Final

from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.load.metrics import Metric, utilizations
from tidegate_agents.load.overview import worst_queues
from tidegate_agents.machine import EdgeSampled, HeadSampled
from tidegate_agents.policy.interface import QueueLoad
from tidegate_protocol.parts import LoadState
from tidegate_protocol.telemetry import (
    QUEUES_MAX,
    SHORT_LENGTH_MAX,
    LoadSample,
    QueueThreshold,
    TelemetryRecord,
    Thresholds,
)

from .origin import Origin

EARLY_SHARE: Final = 0.25
"""A sample that comes so much of a period too early counts as due: periods of samples vary a little."""


class Due:
    """Whether something that is done every so often is to be done now."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next_s = float("-inf")

    def __call__(self, now: float) -> bool:
        if now + EARLY_SHARE * self._period_s < self._next_s:
            return False
        self._next_s = max(self._next_s, now) + self._period_s
        return True


class EdgeSamples:
    """Records of an edge's samples."""

    def __init__(self, origin: Origin, agent: EdgeAgent, period_s: float, detail_s: float) -> None:
        self._origin = origin
        self._agent = agent
        self._load_due = Due(period_s)
        self._thresholds_due = Due(detail_s)

    def sampled(self, event: EdgeSampled, time_us: int, now: float) -> list[TelemetryRecord]:
        """The records that are due."""
        records: list[TelemetryRecord] = []
        if self._load_due(now):
            records.append(self._load(event, time_us))
        if event.subscriptions and self._thresholds_due(now):
            records.append(self._thresholds(time_us))
        return records

    def _load(self, event: EdgeSampled, time_us: int) -> LoadSample:
        detector = self._agent.detector
        broker, capacity = detector.broker, detector.broker.capacity
        values = utilizations(broker)
        used = waiting = 0.0
        for sample in event.subscriptions:
            if sample.drain_per_s > 0.0:
                used += sample.drain_per_s * sample.message_bytes
            if sample.ready > 0.0 or sample.unacknowledged > 0.0:
                waiting += sample.depth
        return LoadSample(
            **self._origin.header(time_us),
            role=self._origin.role,
            state=self._agent.balancing.reported_state,
            uplink=values[Metric.UPLINK],
            downlink=values[Metric.DOWNLINK],
            matching=values[Metric.MATCHING],
            bytes_in_per_s=broker.bytes_in_per_s,
            bytes_offered_per_s=broker.bytes_offered_per_s,
            bytes_used_per_s=used,
            messages_in_per_s=broker.messages_in_per_s,
            uplink_bytes_per_s=capacity.uplink_bytes_per_s,
            downlink_bytes_per_s=capacity.downlink_bytes_per_s,
            matching_per_s=capacity.matching_per_s,
            subscriptions=len(event.subscriptions),
            waiting=waiting,
            queues_past=len(detector.assessment.overloaded_queues),
        )

    def _thresholds(self, time_us: int) -> Thresholds:
        detector = self._agent.detector
        queues = detector.view({}).queues
        return Thresholds(
            **self._origin.header(time_us),
            session_us=round(detector.session_time.average_s * 1e6),
            subscriptions=len(queues),
            queues=tuple(_threshold(queue) for queue in worst_queues(queues, QUEUES_MAX)),
        )


class HeadSamples:
    """Records of a head's samples."""

    def __init__(self, origin: Origin, period_s: float) -> None:
        self._origin = origin
        self._load_due = Due(period_s)

    def sampled(self, event: HeadSampled, state: LoadState, time_us: int, now: float) -> list[TelemetryRecord]:
        """The record, if it is due."""
        if not self._load_due(now):
            return []
        broker, values = event.broker, utilizations(event.broker)
        return [
            LoadSample(
                **self._origin.header(time_us),
                role=self._origin.role,
                state=state,
                uplink=values[Metric.UPLINK],
                downlink=values[Metric.DOWNLINK],
                bytes_in_per_s=broker.bytes_in_per_s,
                bytes_offered_per_s=broker.bytes_offered_per_s,
                messages_in_per_s=broker.messages_in_per_s,
                uplink_bytes_per_s=broker.capacity.uplink_bytes_per_s,
                downlink_bytes_per_s=broker.capacity.downlink_bytes_per_s,
                publishers=len({one.publisher for one in event.publishers}),
            )
        ]


def _threshold(queue: QueueLoad) -> QueueThreshold:
    return QueueThreshold(
        queue=queue.name[:SHORT_LENGTH_MAX],
        subscriber=queue.subscriber,
        pattern=queue.pattern,
        deadline_us=max(1, round(queue.deadline_s * 1e6)),
        allowed_wait_us=round(queue.allowed_wait_s * 1e6),
        depth=queue.depth,
        threshold=queue.threshold,
        enqueue_per_s=queue.enqueue_per_s,
        drain_per_s=queue.drain_per_s,
        enqueue_predicted_per_s=queue.enqueue_predicted_per_s,
        drain_predicted_per_s=queue.drain_predicted_per_s,
        migrating=queue.migrating,
        away=queue.away,
        slow=queue.slow,
    )
