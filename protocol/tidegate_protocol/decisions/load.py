"""Decisions about load: states of brokers, slow subscribers, deadlines that can't be met, alarms."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ..parts import LoadState, Metric
from .base import Decision, Finding, Hints


class LoadReason(StrEnum):
    """The metric that decides a load state, the worst first; or that there is none."""

    QUEUE_DEPTH = "queue-depth"
    UPLINK = "uplink"
    DOWNLINK = "downlink"
    MATCHING = "matching"
    ALL_LOW = "all-low"


@dataclass(frozen=True, slots=True)
class LoadStateChanged(Decision):
    """A broker's load state is another one than before, or the first one after its start."""

    kind: ClassVar[str] = "load-state"
    labels: ClassVar[type[StrEnum]] = LoadReason

    broker: str
    state: LoadState
    findings: tuple[Finding, ...] = ()
    """Worst first; of many, the worst."""
    others: int = 0
    """How many findings there are besides the worst."""
    unknown: tuple[Metric, ...] = ()
    """Metrics without a known capacity: not judged."""
    infeasible: tuple[str, ...] = ()
    """Queues whose deadline is infeasible: not judged; of many, some."""
    hints: Hints | None = None

    @property
    def reason(self) -> LoadReason:
        return LoadReason(self.findings[0].metric) if self.findings else LoadReason.ALL_LOW


class SlownessOutcome(StrEnum):
    SLOW = "slow"
    KEEPS_UP = "keeps-up"


@dataclass(frozen=True, slots=True)
class SlowSubscriber(Decision):
    """A subscriber takes less than the uplink would give it, so that it is not judged, not moved, and limited; or it
    keeps up again.
    """

    kind: ClassVar[str] = "slow-subscriber"
    labels: ClassVar[type[StrEnum]] = SlownessOutcome

    queue: str
    subscriber: str
    pattern: str
    outcome: SlownessOutcome
    enqueue_per_s: float
    drain_per_s: float
    depth: float
    fair_share: float | None = None
    """Of what comes for it: what the uplink would give it."""
    threshold: float | None = None
    uplink: float | None = None
    messages_max: int | None = None
    """How many may wait for a slow one; the oldest beyond are dropped."""


class DeadlineOutcome(StrEnum):
    INFEASIBLE = "infeasible"
    FEASIBLE = "feasible"


@dataclass(frozen=True, slots=True)
class DeadlineOfQueue:
    """An output queue, its deadline, and what of the deadline is left for waiting in the queue."""

    queue: str
    deadline_s: float
    allowed_wait_s: float


@dataclass(frozen=True, slots=True)
class DeadlinesJudged(Decision):
    """Deadlines were found that no broker behind these links can meet, or that can be met again."""

    kind: ClassVar[str] = "infeasible-deadline"
    labels: ClassVar[type[StrEnum]] = DeadlineOutcome

    edge: str
    outcome: DeadlineOutcome
    count: int
    queues: tuple[DeadlineOfQueue, ...]
    """Of many, some."""


@dataclass(frozen=True, slots=True)
class UplinkNarrowed(Decision):
    """All subscribers alike get less than they are sent: the uplink carries less than was learned."""

    kind: ClassVar[str] = "uplink-narrowed"

    edge: str
    offered_bytes_per_s: float
    before_bytes_per_s: float | None = None
    uplink_bytes_per_s: float | None = None


class AlarmOutcome(StrEnum):
    RAISED = "raised"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class AlarmsChanged(Decision):
    """A broker's RabbitMQ blocks publishers, or does so no more."""

    kind: ClassVar[str] = "rabbitmq-alarm"
    labels: ClassVar[type[StrEnum]] = AlarmOutcome

    broker: str
    outcome: AlarmOutcome
    alarms: tuple[str, ...] = ()
