"""What every decision record has, and the parts that several of them share.

Invariant: a record holds names, enums and numbers, never a sentence. Text that came from outside (RabbitMQ's error, a
peer's refusal, a client's report) stands in a field `detail`; it is shown and never read by a program. English is made
of records in `tidegate_protocol.rendering` and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final

from ..parts import LoadState, Metric

NO_REASON: Final = "none"
"""The label of a decision whose kind says it all."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of an agent. `kind` is public: it names the decision in telemetry, logs and metrics.

    Fields have the same names in all records, so that a reader finds out whom a record is about without a list of
    kinds: `subscriber`, `publisher`, `pattern`, `queue`; `edge`, `head`, `source`, `target` for brokers; `rejected` for
    the alternatives.
    """

    kind: ClassVar[str] = ""
    labels: ClassVar[type[StrEnum] | None] = None
    """The enum of `outcome` or `reason`, from which the label of a metric comes; None where a kind has neither."""

    session: str = field(default="", kw_only=True)
    """The session or migration it belongs to; empty where it belongs to none."""

    @property
    def label(self) -> str:
        """Why, or with which outcome, as the label of a metric: a member of `labels`, or `NO_REASON`."""
        return str(getattr(self, "outcome", "") or getattr(self, "reason", NO_REASON))


class Rejection(StrEnum):
    """Why an alternative was not taken."""

    ALARM = "alarm"
    AWAY = "away"
    BUSY = "busy"
    CORRELATED = "correlated"
    DRAINING = "draining"
    EDGE_UNREAD = "edge-unread"
    FLOODS = "floods"
    FOREIGN_CLIENT = "foreign-client"
    GONE = "gone"
    IN_SESSION = "in-session"
    LESS_LEFT = "less-left"
    LIMIT = "limit"
    LINK_FULL = "link-full"
    METRIC_TOO_HIGH = "metric-too-high"
    METRIC_UNKNOWN = "metric-unknown"
    MIGRATING = "migrating"
    MORE_SUBSCRIPTIONS = "more-subscriptions"
    MOVED_RECENTLY = "moved-recently"
    NEIGHBOUR_UNHEARD = "neighbour-unheard"
    NO_ANSWER = "no-answer"
    NO_RELIEF = "no-relief"
    NO_ROOM = "no-room"
    NOT_ALIVE = "not-alive"
    NOT_CANDIDATE = "not-candidate"
    NOT_ENTRY_BROKER = "not-entry-broker"
    OVERSHOOTS = "overshoots"
    PATTERN_ELSEWHERE = "pattern-elsewhere"
    PROCESS_ABSENT = "process-absent"
    REFUSED = "refused"
    REGISTRY_UNKNOWN = "registry-unknown"
    SLOWER = "slower"
    STABILIZING = "stabilizing"
    STATE = "state"
    STOPPING = "stopping"
    TOO_FAR = "too-far"
    TOO_MANY = "too-many"
    TOO_SLOW = "too-slow"
    UNCOLLECTED = "uncollected"
    UNUSED = "unused"
    WORSE = "worse"
    WOULD_OVERLOAD = "would-overload"
    WRONG_ANSWER = "wrong-answer"


@dataclass(frozen=True, slots=True)
class Rejected:
    """An alternative that was not taken: a broker, or a pattern, a queue or a publisher that was not to go to `target`.

    The numbers mean what `reason` says: `value` was compared with `limit`.
    """

    name: str
    reason: Rejection
    target: str = ""
    part: bool = False
    """Whether only a part of the subscribers of a pattern was tried."""
    state: LoadState | None = None
    metric: Metric | None = None
    value: float | None = None
    limit: float | None = None
    other: str = ""
    """What else `reason` is about: a session, a pattern, a broker, the name of a limit, the kind of an answer."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One value, the threshold it was compared with, and which state that asks for."""

    metric: Metric
    queue: str
    """For a queue depth: whose. Empty otherwise."""
    value: float
    threshold: float
    state: LoadState
    samples: int = 1
    """In how many consecutive samples it has been above its high threshold; 1 for a low one."""
    samples_needed: int = 1


@dataclass(frozen=True, slots=True)
class Cause:
    """Why load is to be moved: a value above a threshold or, with `partner`, above the same value of that broker by
    more than the threshold.
    """

    metric: Metric
    value: float
    threshold: float
    queue: str = ""
    partner: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """One metric of one broker, as it was when a session was planned and as it is predicted to become."""

    broker: str
    metric: Metric
    before: float | None = None
    after: float = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Measured:
    """One metric after a session, and on the source what it was predicted to be."""

    metric: Metric
    measured: float
    predicted: float | None = None


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """A forecast that lowered the threshold of a queue, and what the threshold would be without it."""

    queue: str
    forecast_per_s: float
    threshold_measured: float


@dataclass(frozen=True, slots=True)
class Hints:
    """What an insight had to do with a judgement: the capacity of the uplink taken from it, and forecasts."""

    uplink_bytes_per_s: float | None = None
    forecasts: tuple[QueueForecast, ...] = ()
