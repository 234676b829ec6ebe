"""Messages of operators: what is going on, why, what would be done now, and balancing switched off and on.

    operator → head   overview-request     states, metrics against thresholds, sessions, culprits
    operator → head   explain-request      the decisions about one session, broker, subscriber or publisher
    operator → head   plan-request         what would be moved now; nothing is moved
    operator → head   pause-request        start no sessions from now on, or start some again
    head     → edge   inspect-request      the edge's part of an answer: its load, its queues, its decisions
    head     → edge   rehearse-request     whom would you move, if these candidates were offered?

A head asks all its edges and answers when all of them have answered, or after a while; `missing` names the edges that
have not. Everything in an answer is bounded: the worst queues, the latest decisions.

Agents have clocks of their own, so that a decision is dated by its age at the moment of the answer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from .balancing.loads import BrokerLoad, MetricReport
from .balancing.sessions import Candidate, PlannedMove
from .decisions import AnyDecision, BundleMove, Cause, Effect, Finding, PlanOutcome, Quota, Rejected, UnknownDecision
from .insight import InsightState
from .parts import Capacity, Id, LoadState, Message, Micros, Name, Part, Text

QUEUES_TOLD_MAX: Final = 20
"""Queues of one edge in one answer; of one subscriber there may be more."""
SUBSCRIPTIONS_TOLD_MAX: Final = 100
"""Queues of one subscriber in one answer."""
DECISIONS_TOLD_MAX: Final = 1_000
SESSIONS_TOLD_MAX: Final = 50
CULPRITS_TOLD_MAX: Final = 50
DROPS_TOLD_S: Final = 600.0
"""How long drops are told of in the state of an edge."""
QUOTAS_TOLD_MAX: Final = 100
NAMES_TOLD_MAX: Final = 50
"""Of slow subscribers, infeasible subscriptions, and the like."""


# What answers are made of.


class Told(Part):
    """One decision of an agent: the record, who made it, and when."""

    broker: Name
    ago_us: Micros
    """How long before the answer it was made."""
    decision: Id
    """What kind of decision it is, e.g. `session-planned`."""
    session: Annotated[str, Field(max_length=120)] = ""
    """The session, or another subject that several decisions share."""
    record: AnyDecision = UnknownDecision()
    """Unknown where its broker is of another version."""


class QueueState(Part):
    """One subscription on an edge: what waits for it, against what may wait."""

    edge: Name
    queue: Text
    subscriber: Name
    number: int
    pattern: Text
    deadline_s: float
    allowed_wait_s: float
    """t_e: what of the deadline is left for waiting. Not above 0: no broker behind these links could meet it."""
    depth: float
    threshold: float | None = None
    """None where the deadline is infeasible, or nothing has been sampled yet."""
    enqueue_per_s: float = 0.0
    drain_per_s: float = 0.0
    migrating: bool = False
    away: bool = False
    slow: bool = False
    infeasible: bool = False


class Role(StrEnum):
    """Which kind of broker a load belongs to; decides which metrics it has."""

    HEAD = "head"
    EDGE = "edge"


class Activity(StrEnum):
    """What a broker is doing, as far as that keeps it from beginning something else."""

    SOURCE = "source"
    TARGET = "target"
    STABILIZING = "stabilizing"
    WAITING = "waiting"
    DRAINING = "draining"
    STOPPING = "stopping"
    PAUSED = "paused"
    LEADING = "leading"
    MOVING_PUBLISHERS = "moving-publishers"


class SourcePhase(StrEnum):
    """How far an edge is with a session that it asked for."""

    REQUESTED = "requested"
    PLANNED = "planned"
    MOVING = "moving"


class Doing(Part):
    """What a broker is doing now."""

    activity: Activity
    sessions: tuple[Id, ...] = ()
    """The sessions that it is about."""
    phase: SourcePhase | None = None
    """Of a source."""
    left_s: float | None = None
    """Of a broker that waits: for how long."""


class BrokerState(Part):
    """One broker: its load against the thresholds, and what it is doing about it."""

    broker: Name
    role: Role
    state: LoadState
    doing: Doing | None = None
    """None if it only watches."""
    samples: int = 0
    """0: nothing is known about its load yet."""
    metrics: dict[str, MetricReport] = Field(default_factory=dict)
    unknown: tuple[Text, ...] = ()
    """Metrics without a known capacity: not judged."""
    capacity: Capacity = Capacity()
    session_s: float = 0.0
    """t_LB: how long a session takes, as learned so far."""
    subscriptions: int = 0
    past: int = 0
    """Queues past their threshold."""
    queues: Annotated[tuple[QueueState, ...], Field(max_length=QUEUES_TOLD_MAX)] = ()
    """The queues nearest to their thresholds, or furthest past them."""
    slow: Annotated[tuple[Text, ...], Field(max_length=NAMES_TOLD_MAX)] = ()
    infeasible: Annotated[tuple[Text, ...], Field(max_length=NAMES_TOLD_MAX)] = ()
    alarms: Annotated[tuple[Text, ...], Field(max_length=NAMES_TOLD_MAX)] = ()
    """Alarms of its RabbitMQ."""
    dropped: int = 0
    """Messages that subscriptions here did not get in the last while (`DROPS_TOLD_S`), for whatever reason but their
    own or their head's order."""
    dropping: Annotated[tuple[Text, ...], Field(max_length=NAMES_TOLD_MAX)] = ()
    """The output queues that they were dropped from."""


class SessionState(Part):
    """One session: who asked for it, why, and how far it is, or how it ended."""

    session: Id
    source: Text
    phase: Text
    began: AnyDecision = UnknownDecision()
    """The decision with which it began."""
    started_ago_us: Micros
    ended_ago_us: Micros | None = None
    moved: int = 0
    failed: int = 0
    targets: dict[str, int] = Field(default_factory=dict)
    """How many went where."""


class Culprit(Part):
    """Who would harm others: a publisher that floods, a subscriber that does not keep up, an account that sends what is
    not its to send."""

    what: Id
    """The kind of the decision that named it: `flooding-publisher`, `slow-subscriber`, `account-refused`."""
    client: Text
    """The client; of refused messages, the account that sent them, empty if they do not name one."""
    broker: Name
    ago_us: Micros
    text: Text = ""
    """Of brokers of earlier versions, which insist on it."""
    record: AnyDecision = UnknownDecision()
    """What was found; of a slow subscriber, with the numbers of this moment."""


class QuotaUse(Part):
    """What an account, or all accounts of a tenant, use of one quota."""

    account: Annotated[str, Field(max_length=255)] = ""
    """Empty where it is the quota of a tenant."""
    tenant: Annotated[str, Field(max_length=255)] = ""
    quota: Quota
    used: float
    limit: float

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit > 0.0 else 1.0


class EdgeStatus(Part):
    """An edge as its head knows it without asking."""

    edge: Name
    alive: bool
    draining: bool
    subscriptions: int
    patterns: int
    capacity: Capacity = Capacity()
    seen_ago_s: float


class NeighbourStatus(Part):
    head: Name
    alive: bool
    needs: int
    """Patterns wanted behind that head: what we forward to it."""
    offered: int
    """Patterns we asked that head to forward to us."""


# Overview.


class OverviewRequest(Message):
    kind: Literal["overview-request"] = "overview-request"
    queues: Annotated[int, Field(ge=0, le=QUEUES_TOLD_MAX)] = 3
    """How many of the worst queues of each edge."""


class OverviewReply(Message):
    kind: Literal["overview-reply"] = "overview-reply"
    cluster: Name
    head: Name
    version: Text
    policy: Text
    paused: bool = False
    edges: tuple[EdgeStatus, ...] = ()
    neighbours: tuple[NeighbourStatus, ...] = ()
    clusters: dict[str, LoadState] = Field(default_factory=dict)
    """What the neighbouring clusters have reported, by their head."""
    publishers: int = 0
    brokers: tuple[BrokerState, ...] = ()
    """The head first, then the edges that answered."""
    sessions: Annotated[tuple[SessionState, ...], Field(max_length=SESSIONS_TOLD_MAX)] = ()
    """The latest first."""
    culprits: Annotated[tuple[Culprit, ...], Field(max_length=CULPRITS_TOLD_MAX)] = ()
    missing: tuple[Name, ...] = ()
    """Edges that did not answer."""
    insight: InsightState | None = None
    """The one in force."""
    quotas: Annotated[tuple[QuotaUse, ...], Field(max_length=QUOTAS_TOLD_MAX)] = ()
    """The most used first."""
    links: Annotated[tuple[Told, ...], Field(max_length=NAMES_TOLD_MAX)] = ()
    """What is wrong with links now: limits that differ, links that could not be helped."""


# Explaining.


class Explained(StrEnum):
    """What a name turned out to be."""

    CLUSTER = "cluster"
    SESSION = "session"
    BROKER = "broker"
    SUBSCRIBER = "subscriber"
    PUBLISHER = "publisher"
    ACCOUNT = "account"


class ExplainRequest(Message):
    kind: Literal["explain-request"] = "explain-request"
    about: Text = ""
    """A session, a broker, a subscriber, a publisher or an account; empty for the cluster."""


class ExplainReply(Message):
    kind: Literal["explain-reply"] = "explain-reply"
    about: Text
    what: Explained
    cluster: Name
    head: Name
    policy: Text
    paused: bool = False
    decisions: Annotated[tuple[Told, ...], Field(max_length=DECISIONS_TOLD_MAX)] = ()
    """Oldest first."""
    cut: int = 0
    """Decisions that did not fit into the answer."""
    brokers: tuple[BrokerState, ...] = ()
    """The brokers it is about."""
    queues: Annotated[tuple[QueueState, ...], Field(max_length=SUBSCRIPTIONS_TOLD_MAX)] = ()
    """A subscriber's subscriptions, or the ones that a session is about, as far as they are still there."""
    sessions: Annotated[tuple[SessionState, ...], Field(max_length=SESSIONS_TOLD_MAX)] = ()
    culprits: Annotated[tuple[Culprit, ...], Field(max_length=CULPRITS_TOLD_MAX)] = ()
    missing: tuple[Name, ...] = ()
    insight: InsightState | None = None


# Planning.


class NothingDue(StrEnum):
    """Why an edge would move nothing now."""

    NOT_SAMPLED = "not-sampled"
    POLICY_NONE = "policy-none"
    NO_DANGER = "no-danger"
    UPLINK_HAS_ROOM = "uplink-has-room"
    WORKED_OFF = "worked-off"


class HeadPlan(StrEnum):
    """What a head would do about its own load now."""

    NOTHING = "nothing"
    UNDER_WAY = "under-way"
    NO_NEIGHBOUR = "no-neighbour"
    ASK_NEIGHBOURS = "ask-neighbours"


class Rehearsal(Part):
    """What an edge would do now."""

    edge: Name
    state: LoadState
    due: bool = False
    """Whether there is a reason to move load away."""
    blocked: Doing | None = None
    """Why nothing would be started all the same."""
    cause: Cause | None = None
    """The reason, if there is one."""
    nothing: NothingDue | None = None
    """Why there is none."""
    worst: Finding | None = None
    """What is past its threshold all the same."""
    outcome: PlanOutcome | None = None
    """What the plan would come to."""
    neighbours_first: bool = False
    """Whether other clusters would be asked before: the cluster has no room, and the plan is a last resort."""
    relieved: bool = False
    moves: tuple[PlannedMove, ...] = ()
    bundles: tuple[BundleMove, ...] = ()
    effects: tuple[Effect, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    closest: QueueState | None = None
    """The queue that is nearest to its threshold."""


class PlanRequest(Message):
    kind: Literal["plan-request"] = "plan-request"


class PlanReply(Message):
    kind: Literal["plan-reply"] = "plan-reply"
    cluster: Name
    head: Name
    policy: Text
    paused: bool = False
    head_state: LoadState
    head_plan: HeadPlan = HeadPlan.NOTHING
    neighbours: tuple[Name, ...] = ()
    """The heads that it could ask to take publishers."""
    edges: tuple[Rehearsal, ...] = ()
    missing: tuple[Name, ...] = ()


# Pausing.


class PauseRequest(Message):
    """Sessions under way end as they would; drains go on."""

    kind: Literal["pause-request"] = "pause-request"
    paused: bool


class PauseReply(Message):
    kind: Literal["pause-reply"] = "pause-reply"
    cluster: Name
    paused: bool
    changed: bool
    """False if it was so already."""
    under_way: int = 0
    """Sessions that have not ended yet."""


# Head to edge, and the answers.


class InspectRequest(Message):
    """Tell your load, and what you know about a session, a subscriber or another broker, or your latest decisions."""

    kind: Literal["inspect-request"] = "inspect-request"
    queues: Annotated[int, Field(ge=0, le=QUEUES_TOLD_MAX)] = 0
    latest: Annotated[int, Field(ge=0, le=DECISIONS_TOLD_MAX)] = 0
    session: Annotated[str, Field(max_length=120)] = ""
    subscriber: Text = ""
    broker: Text = ""


class InspectReply(Message):
    kind: Literal["inspect-reply"] = "inspect-reply"
    state: BrokerState
    load: BrokerLoad
    decisions: Annotated[tuple[Told, ...], Field(max_length=DECISIONS_TOLD_MAX)] = ()
    cut: int = 0
    queues: Annotated[tuple[QueueState, ...], Field(max_length=SUBSCRIPTIONS_TOLD_MAX)] = ()
    culprits: Annotated[tuple[Culprit, ...], Field(max_length=CULPRITS_TOLD_MAX)] = ()


class RehearseRequest(Message):
    kind: Literal["rehearse-request"] = "rehearse-request"
    candidates: tuple[Candidate, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    """Edges that could not be asked, and why."""
    resting: tuple[Id, ...] = ()


class RehearseReply(Message):
    kind: Literal["rehearse-reply"] = "rehearse-reply"
    rehearsal: Rehearsal


OperationMessage = (
    OverviewRequest
    | OverviewReply
    | ExplainRequest
    | ExplainReply
    | PlanRequest
    | PlanReply
    | PauseRequest
    | PauseReply
    | InspectRequest
    | InspectReply
    | RehearseRequest
    | RehearseReply
)
"""The part of the union `messages.ControlMessage` that this module defines."""
