"""Decisions of load-balancing sessions: why one begins, who is asked, what is planned, what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from ..parts import Metric, RefusalReason
from .base import Cause, Decision, Effect, Finding, Hints, Measured, Rejected


class NotStarted(StrEnum):
    NO_MOVE_HELPS = "no-move-helps"


@dataclass(frozen=True, slots=True)
class SessionNotStarted(Decision):
    """An edge is in OVERLOAD, and its policy sees nothing that a move would help."""

    kind: ClassVar[str] = "session-not-started"
    labels: ClassVar[type[StrEnum]] = NotStarted

    source: str
    policy: str
    finding: Finding
    uplink_limits: bool
    """Whether the uplink may be what holds the queues back."""

    @property
    def reason(self) -> NotStarted:
        return NotStarted.NO_MOVE_HELPS


@dataclass(frozen=True, slots=True)
class Danger:
    """The queue that a session is started for, with what its threshold was worked out from."""

    queue: str
    depth: float
    threshold: float
    enqueue_per_s: float
    """λ, predicted."""
    drain_per_s: float
    """μ, predicted."""
    deadline_s: float
    allowed_wait_s: float


@dataclass(frozen=True, slots=True)
class SessionRequested(Decision):
    """An edge asks its head for help."""

    kind: ClassVar[str] = "session-requested"
    labels: ClassVar[type[StrEnum]] = Metric

    source: str
    cause: Cause
    necessary: bool
    """Whether a deadline is predicted to be missed, or a static high threshold passed."""
    remote: bool
    """Whether other clusters are asked from the beginning."""
    candidates: int
    session_s: float
    """t_LB, as learned so far."""
    margin: float
    period_s: float
    queues_past: int = 0
    danger: Danger | None = None
    """None where something else than a queue is the cause."""
    uplink: float | None = None
    hints: Hints | None = None
    rejected: tuple[Rejected, ...] = ()
    """Brokers that are not candidates."""

    @property
    def reason(self) -> Metric:
        return self.cause.metric


class SessionRefusal(StrEnum):
    SESSION_OVER = "session-over"
    STOPPING = "stopping"
    PAUSED = "paused"
    NOT_KNOWN_YET = "not-known-yet"
    DRAINING = "draining"
    IN_SESSION = "in-session"
    STABILIZING = "stabilizing"


@dataclass(frozen=True, slots=True)
class SessionRefused(Decision):
    """A head does not begin the session that an edge asks for."""

    kind: ClassVar[str] = "session-refused"
    labels: ClassVar[type[StrEnum]] = SessionRefusal

    source: str
    reason: SessionRefusal
    other: str = ""
    """The session that the edge takes part in."""


@dataclass(frozen=True, slots=True)
class SessionCandidates(Decision):
    """A head has asked the candidates for their load and offers the ones that have room."""

    kind: ClassVar[str] = "session-candidates"
    labels: ClassVar[type[StrEnum]] = Metric

    source: str
    metric: Metric
    candidates: int
    remote: int
    """How many of them are of other clusters."""
    cause: Cause | None = None
    """None where the edge is of a version that does not tell."""
    rejected: tuple[Rejected, ...] = ()

    @property
    def reason(self) -> Metric:
        return self.metric


class RemoteOutcome(StrEnum):
    FOUND = "found"
    NO_ROOM = "no-room"


@dataclass(frozen=True, slots=True)
class RemoteBroker:
    """An edge of another cluster, and the head of that cluster."""

    head: str
    broker: str


@dataclass(frozen=True, slots=True)
class RemotesAsked(Decision):
    """A head has asked its neighbours which of their edges have room."""

    kind: ClassVar[str] = "remote-candidates"
    labels: ClassVar[type[StrEnum]] = RemoteOutcome

    head: str
    found: tuple[RemoteBroker, ...]
    rejected: tuple[Rejected, ...] = ()

    @property
    def outcome(self) -> RemoteOutcome:
        return RemoteOutcome.FOUND if self.found else RemoteOutcome.NO_ROOM


class PlanOutcome(StrEnum):
    """What a plan is predicted to do; of a plan that moves no client, why."""

    RELIEVED = "relieved"
    PARTLY_RELIEVED = "partly-relieved"
    BALANCED = "balanced"
    OVERLOAD_PASSED = "overload-passed"
    NO_CANDIDATE = "no-candidate"
    NO_ROOM = "no-room"
    NO_IMPROVEMENT = "no-improvement"
    NOBODY_MOVABLE = "nobody-movable"
    POLICY_NONE = "policy-none"


class Reach(StrEnum):
    """How far a session looks for help, in this order: it goes on only if what is there does not suffice."""

    HERE = "here"
    """Edges of the cluster that are LOW."""
    ABROAD = "other-clusters"
    """Edges of other clusters."""
    LAST_RESORT = "last-resort"
    """Edges of the cluster that are not LOW, but not overloaded either."""
    OCCUPIED = "occupied"
    """The same, also if they take part in another session, or did a moment ago: they are waited for."""

    @property
    def fills_up(self) -> bool:
        """Whether brokers that are not LOW will do."""
        return self in (Reach.LAST_RESORT, Reach.OCCUPIED)

    def is_beyond(self, other: Reach) -> bool:
        """Whether this comes after the other."""
        order = tuple(Reach)
        return order.index(self) > order.index(other)


@dataclass(frozen=True, slots=True)
class SessionWidened(Decision):
    """The candidates don't suffice, so that others are asked too."""

    kind: ClassVar[str] = "session-widened"
    labels: ClassVar[type[StrEnum]] = Reach

    source: str
    reason: Reach
    plan: PlanOutcome
    """What the candidates up to now would come to."""
    candidates: int
    resting: int = 0
    """Subscriptions that were moved too recently to be moved again."""
    occupied: int = 0
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleMove:
    """So many subscribers of one pattern to one broker."""

    pattern: str
    target: str
    subscribers: int


@dataclass(frozen=True, slots=True)
class SessionPlanned(Decision):
    """An edge has decided which subscribers go where, or that none can."""

    kind: ClassVar[str] = "session-planned"
    labels: ClassVar[type[StrEnum]] = PlanOutcome

    source: str
    outcome: PlanOutcome
    moves: tuple[BundleMove, ...]
    candidates: int
    resting: int = 0
    subscribers: int = 0
    """How many move in all."""
    drain_factor: float | None = None
    """How many times as fast the queues that stay on the source are predicted to be drained."""
    effects: tuple[Effect, ...] = ()
    """On the source and on each target."""
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionPlan(Decision):
    """A head has taken a plan over and begins its migrations."""

    kind: ClassVar[str] = "session-plan"
    labels: ClassVar[type[StrEnum]] = PlanOutcome

    source: str
    outcome: PlanOutcome
    moves: int
    refused: int
    rejected: tuple[Rejected, ...] = ()
    """Moves that could not begin."""


class SessionOutcome(StrEnum):
    """How a session ended; of a session without a move, why."""

    MOVES_ENDED = "moves-ended"
    NOTHING_MOVED = "nothing-moved"
    NO_MOVE_BEGUN = "no-move-begun"
    TIME_OUT = "time-out"
    NO_PLAN = "no-plan"
    ASKED_ANEW = "asked-anew"
    END_UNHEARD = "end-unheard"
    HEAD_RESTARTED = "head-restarted"
    STOPPING = "stopping"
    REFUSED = "refused"
    HEAD_ABSENT = "head-absent"
    NO_ANSWER = "no-answer"
    OVERLOAD_PASSED = "overload-passed"
    NO_CANDIDATE = "no-candidate"
    NO_ROOM = "no-room"
    NO_IMPROVEMENT = "no-improvement"
    NOBODY_MOVABLE = "nobody-movable"
    POLICY_NONE = "policy-none"


ENDS: Final[Mapping[PlanOutcome, SessionOutcome]] = {
    PlanOutcome.OVERLOAD_PASSED: SessionOutcome.OVERLOAD_PASSED,
    PlanOutcome.NO_CANDIDATE: SessionOutcome.NO_CANDIDATE,
    PlanOutcome.NO_ROOM: SessionOutcome.NO_ROOM,
    PlanOutcome.NO_IMPROVEMENT: SessionOutcome.NO_IMPROVEMENT,
    PlanOutcome.NOBODY_MOVABLE: SessionOutcome.NOBODY_MOVABLE,
    PlanOutcome.POLICY_NONE: SessionOutcome.POLICY_NONE,
}
"""Plans that move no client, and how a session with such a plan ends."""


@dataclass(frozen=True, slots=True)
class SessionFailed(Decision):
    """A session came to nothing; its source waits before it asks again."""

    kind: ClassVar[str] = "session-failed"
    labels: ClassVar[type[StrEnum]] = SessionOutcome

    source: str
    outcome: SessionOutcome
    retry_after_s: float
    attempts: int = 0
    """Requests in the step it ended in."""
    failed: int = 0
    """Migrations that did not succeed."""
    refusal: RefusalReason | None = None
    detail: str = ""
    """What the head said."""


@dataclass(frozen=True, slots=True)
class SessionEnded(Decision):
    """A session is over: told by its source, and by the head that led it."""

    kind: ClassVar[str] = "session-ended"
    labels: ClassVar[type[StrEnum]] = SessionOutcome

    source: str
    outcome: SessionOutcome
    moved: int
    failed: int
    duration_s: float | None = None
    moved_after_s: float | None = None
    """When the last client that moved had moved: what t_LB is learned from."""
    session_s: float | None = None
    """t_LB, as learned so far."""


@dataclass(frozen=True, slots=True)
class SessionLeft(Decision):
    """An edge leaves a session of another edge, because no broker has ended it."""

    kind: ClassVar[str] = "session-left"
    labels: ClassVar[type[StrEnum]] = SessionOutcome

    edge: str
    reason: SessionOutcome


class StabilizedReason(StrEnum):
    LOAD_MOVED = "load-moved"
    NOT_AS_PREDICTED = "not-as-predicted"
    TIME_OUT = "time-out"


@dataclass(frozen=True, slots=True)
class ClosestQueue:
    """The queue that is nearest to its threshold, or furthest past it."""

    queue: str
    depth: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Stabilized(Decision):
    """The load of a source or a target has settled after a session: what came of it."""

    kind: ClassVar[str] = "stabilized"
    labels: ClassVar[type[StrEnum]] = StabilizedReason

    edge: str
    reason: StabilizedReason
    after_s: float
    """Since the end of the session."""
    offered_bytes_per_s: float
    predicted_bytes_per_s: float | None = None
    """On the source."""
    metrics: tuple[Measured, ...] = ()
    queues_past: int = 0
    closest: ClosestQueue | None = None
