"""Control messages of load management: load reports, sessions, migrations, publishers' moves, containment.

The course of a session (seed 000 §IV.D), and of each migration in it:

    edge   → head    balance-request      the source is overloaded; these candidates it knows to be LOW
    head   → edges   load-request         to each candidate; answered with load-reply
    head   → edge    balance-candidates   the answer to the request, promises of running migrations included
    edge   → head    balance-plan         who is to go where; answered with balance-accepted
    head   → edges   output-prepare       the target makes and binds the new queue (and its marker key)
    head   → edge    marker-bind          the source binds the marker key to the old queue
    head   → client  migrate-order        attach to the new queue and hold; answered with migration-report
    client → head    migration-report     attached; answered with migration-ack. Now the markers are published
    client → head    migration-report     moved or stayed; answered with migration-ack
    head   → edge    output-remove        the old queue, if the client moved; the new one, if it stayed
    head   → edges   session-notice       ended

Every request may be repeated and gets the same answer. Whoever hears nothing gives up by a time-out of its own; the
client alone decides whether it has moved.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from .parts import (
    Capacity,
    LoadState,
    Message,
    Micros,
    Name,
    Number,
    Part,
    Pattern,
    Period,
    PublisherId,
    Rate,
    Subscription,
    Text,
    Topic,
    Url,
    Value,
)

CANDIDATES_MAX: Final = 64
"""Candidates asked for, and offered, in one session."""
MOVES_PER_SESSION_MAX: Final = 1_000
SHARED_PATTERNS_MAX: Final = 5_000
PATHS_PER_MESSAGE_MAX: Final = 500
TOPICS_PER_REPORT_MAX: Final = 1_000
HEADS_MAX: Final = 256
GUESTS_MAX: Final = 100
"""Clients named in one message to the head they came from."""

Id = Annotated[str, Field(min_length=1, max_length=120)]


# Load reports (PIE).


class MetricReport(Part):
    value: Value
    low: Value | None = None
    high: Value | None = None


class PieLocal(Message):
    """The load of one broker, for the brokers of its cluster."""

    kind: Literal["pie-local"] = "pie-local"
    broker: Name
    cluster: Name
    state: LoadState
    busy: bool = False
    """In a session, or waiting for one to show: not to be asked to take load."""
    metrics: dict[str, MetricReport] = Field(default_factory=dict)
    period_s: Period


class PieGlobal(Message):
    """The load of one cluster, for its neighbours: the mean of each metric over the brokers that can take load."""

    kind: Literal["pie-global"] = "pie-global"
    cluster: Name
    head: Name
    state: LoadState
    metrics: dict[str, MetricReport] = Field(default_factory=dict)
    period_s: Period


class BrokerLoad(Part):
    """Everything the effect of a move is estimated from: the load in absolute numbers, and what carries it."""

    broker: Name
    state: LoadState
    busy: bool = False
    bytes_in_per_s: Rate
    bytes_offered_per_s: Rate
    messages_in_per_s: Rate
    capacity: Capacity = Capacity()


# Sessions.


class BalanceRequest(Message):
    """An overloaded edge asks for help. `metric` is what is overloaded, `candidates` whom it knows to be LOW."""

    kind: Literal["balance-request"] = "balance-request"
    session: Id
    edge: Name
    metric: Text
    reason: Text
    patterns: Annotated[tuple[Pattern, ...], Field(max_length=SHARED_PATTERNS_MAX)] = ()
    """The patterns it might give away; if there are more than fit, those it would give away first."""
    candidates: Annotated[tuple[Name, ...], Field(max_length=CANDIDATES_MAX)] = ()
    fallbacks: Annotated[tuple[Name, ...], Field(max_length=CANDIDATES_MAX)] = ()
    """If it is urgent: whom it would ask as a last resort. Where there is no other cluster to be asked before, they are
    asked along, to save a round of questions."""
    remote: bool = False
    """Whether the cluster has no room and other clusters are asked for."""
    last_resort: bool = False
    """Whether candidates will do that are HIGH: nobody stays LOW, and a deadline would be missed otherwise."""
    patient: bool = False
    """As a last resort: whether to wait a moment for candidates in other sessions, and take those that stabilize."""


class LoadRequest(Message):
    kind: Literal["load-request"] = "load-request"
    session: Id


class LoadReply(Message):
    kind: Literal["load-reply"] = "load-reply"
    session: Id
    load: BrokerLoad


class Candidate(Part):
    """A broker that may take load. The promises of running migrations are part of its load already."""

    cluster: Name
    head: Name
    load: BrokerLoad
    patterns: tuple[Pattern, ...] = ()
    """Those patterns of the source that it carries already."""
    extra_path_us: Micros = 0
    """How much longer the way to it is than to the source, for a candidate in another cluster."""


class BalanceCandidates(Message):
    kind: Literal["balance-candidates"] = "balance-candidates"
    session: Id
    candidates: Annotated[tuple[Candidate, ...], Field(max_length=CANDIDATES_MAX)] = ()
    resting: tuple[Id, ...] = ()
    """Queues on the source whose subscription was moved too recently to be moved again."""
    occupied: Annotated[tuple[Name, ...], Field(max_length=CANDIDATES_MAX)] = ()
    """As a last resort: brokers asked for that are in another session, or stabilize after one."""
    fallbacks_asked: bool = False
    """Whether the fallbacks of the request are among those asked."""


class PlannedMove(Part):
    """One subscription to be moved, and the load that goes with it."""

    subscriber: Name
    number: Number
    target: Name
    bytes_in_per_s: Rate = 0.0
    bytes_out_per_s: Rate = 0.0
    messages_in_per_s: Rate = 0.0


class BalancePlan(Message):
    """What the source decided. No moves: it found none that would help, and `reason` says why."""

    kind: Literal["balance-plan"] = "balance-plan"
    session: Id
    edge: Name
    moves: Annotated[tuple[PlannedMove, ...], Field(max_length=MOVES_PER_SESSION_MAX)] = ()
    reason: Text = ""
    last_resort: bool = False
    """Whether candidates are filled up beyond LOW."""


class BalanceAccepted(Message):
    kind: Literal["balance-accepted"] = "balance-accepted"
    session: Id
    moves: int


class SessionPhase(StrEnum):
    STARTED = "started"
    ENDED = "ended"


class SessionNotice(Message):
    """Tells the brokers of a session that it begins and ends. `moved` and `failed` count migrations; its source learns
    from `duration_us` how long it took until the load had moved: until the last of those that did move.
    """

    kind: Literal["session-notice"] = "session-notice"
    session: Id
    phase: SessionPhase
    source: Name
    moved: int = 0
    failed: int = 0
    duration_us: Micros = 0


# Migration of a subscription.


class MarkerBind(Message):
    """Have the markers of a migration reach the old queue too."""

    kind: Literal["marker-bind"] = "marker-bind"
    subscriber: Name
    number: Number
    key: Pattern


class MarkerBound(Message):
    kind: Literal["marker-bound"] = "marker-bound"
    subscriber: Name
    number: Number
    key: Pattern


class MigrateOrder(Message):
    """Move a subscription from the queue `number` to another edge.

    Attach to `queue` and hold what comes; report `attached`; go on with the old queue until the markers of all
    `heads` have come through both; then switch. After `timeout_us` go back on your own.
    """

    kind: Literal["migrate-order"] = "migrate-order"
    migration: Id
    subscriber: Name
    pattern: Pattern
    edge_from: Name
    number_from: Number
    edge: Name
    number: Number
    url: Url
    queue: Text
    head: Name
    head_url: Annotated[str, Field(max_length=500)] = ""
    """The head to talk to afterwards; empty where it stays the same."""
    heads: Annotated[tuple[Name, ...], Field(min_length=1, max_length=HEADS_MAX)]
    timeout_us: Micros


class MigrationStage(StrEnum):
    """Where a client is with a migration. The last three are final."""

    ORDERED = "ordered"
    ATTACHED = "attached"
    MOVED = "moved"
    STAYED = "stayed"
    UNKNOWN = "unknown"


class MigrationReport(Message):
    """A client says where it is: unasked (the head answers with migration-ack), or as the answer to an order or a
    cancellation. `edge` and `number` are those of the queue it delivers from.
    """

    kind: Literal["migration-report"] = "migration-report"
    migration: Id
    subscriber: Name
    stage: MigrationStage
    pattern: Pattern
    edge: Name
    number: Number
    other_edge: Name | None = None
    """The edge it left, if it moved, or did not go to, if it stayed; with `other_number` the queue there."""
    other_number: Number | None = None
    reason: Text = ""
    unsettled: bool = False
    """Whether the application has still to take what the other queue brought: removed now, a crash would lose it."""


class MigrationAck(Message):
    kind: Literal["migration-ack"] = "migration-ack"
    migration: Id


class MigrateCancel(Message):
    """Give the migration up unless you have moved already; the answer is a migration-report that says which."""

    kind: Literal["migrate-cancel"] = "migrate-cancel"
    migration: Id
    subscriber: Name
    pattern: Pattern


class PlaceRequest(Message):
    """A head that finds a subscription on two edges asks its client which one it uses.

    A head that took over a subscription, and was never told how that ended, asks the head it came from to ask for it.
    """

    kind: Literal["place-request"] = "place-request"
    subscriber: Name
    pattern: Pattern


class PlaceReply(Message):
    """`edge` is None where the client knows no such subscription."""

    kind: Literal["place-reply"] = "place-reply"
    subscriber: Name
    pattern: Pattern
    edge: Name | None = None
    number: Number | None = None
    migration: Id | None = None
    """The migration under way, if there is one."""


class Guest(Part):
    """A client that came from another cluster, and where it is served from now."""

    subscription: Subscription
    edge: Name
    url: Url
    queue: Text
    head: Name
    head_url: Url


class GuestKey(Part):
    subscriber: Name
    number: Number


class GuestList(Message):
    """Told to a head that begins anew: clients of yours that are with us, so that you can send them after their queues.

    Several of them where one does not suffice; `complete` in the last.
    """

    kind: Literal["guest-list"] = "guest-list"
    head: Name
    guests: Annotated[tuple[Guest, ...], Field(max_length=GUESTS_MAX)] = ()
    complete: bool
    here: Annotated[tuple[GuestKey, ...], Field(max_length=GUESTS_MAX)] = ()
    """Guests that you have named, and that have a place here as well: they may never have come to you."""


class GuestsNoted(Message):
    kind: Literal["guests-noted"] = "guests-noted"
    head: Name


class CollectOrder(Message):
    """An edge that was away is back: fetch what waited there for a subscription that lives elsewhere by now.

    The client attaches to `queue`, takes what it has not seen, and reports `stayed` for this migration when the marker
    of `heads` has come through it.
    """

    kind: Literal["collect-order"] = "collect-order"
    migration: Id
    subscriber: Name
    pattern: Pattern
    edge: Name
    number: Number
    url: Url
    queue: Text
    heads: Annotated[tuple[Name, ...], Field(min_length=1, max_length=HEADS_MAX)]
    timeout_us: Micros


# Migration to another cluster: head to head.


class RemoteLoadsRequest(Message):
    """Which of your edges could take load? Asked of the neighbouring heads when a cluster has no room."""

    kind: Literal["remote-loads-request"] = "remote-loads-request"
    session: Id
    head: Name
    patterns: Annotated[tuple[Pattern, ...], Field(max_length=SHARED_PATTERNS_MAX)] = ()


class RemoteLoads(Message):
    kind: Literal["remote-loads"] = "remote-loads"
    session: Id
    candidates: Annotated[tuple[Candidate, ...], Field(max_length=CANDIDATES_MAX)] = ()


class AcceptRequest(Message):
    """Take over a subscription on `edge`; its number is yours to choose. Answered when its routes are live."""

    kind: Literal["accept-request"] = "accept-request"
    migration: Id
    head: Name
    edge: Name
    subscription: Subscription
    marker: Pattern
    load: PlannedMove
    source: Name | None = None
    """The edge it leaves."""


class AcceptReply(Message):
    kind: Literal["accept-reply"] = "accept-reply"
    migration: Id
    edge: Name
    number: Number
    url: Url
    queue: Text
    head_url: Url


class AcceptEnd(Message):
    """How a migration into your cluster ended; answered with migration-ack, repeated until then."""

    kind: Literal["accept-end"] = "accept-end"
    migration: Id
    head: Name
    moved: bool
    edge: Name | None = None
    subscriber: Name | None = None
    pattern: Pattern | None = None
    number: Number | None = None
    """The place it was about, as far as the sender knows: for a receiver that has started anew since."""


class MarkerRequest(Message):
    """Publish a marker of your own for this migration, and pass the request on, away from the sender."""

    kind: Literal["marker-request"] = "marker-request"
    migration: Id
    head: Name
    """The sender."""
    key: Topic
    """What every marker of this migration starts with; a head adds its name as the last word."""


class MarkerSent(Message):
    """The heads that have published their markers: the sender and those behind it."""

    kind: Literal["marker-sent"] = "marker-sent"
    migration: Id
    heads: Annotated[tuple[Name, ...], Field(max_length=HEADS_MAX)]


# Publishers: where they are, how far away, moving them, containing them.


class TopicPath(Part):
    topic: Topic
    path_us: Micros
    """From the worst publisher of the topic to the head that says this."""


class PublishedTopics(Message):
    """What is published behind the sender. Topics beyond the limit are covered by `other_path_us`."""

    kind: Literal["published-topics"] = "published-topics"
    head: Name
    topics: Annotated[tuple[TopicPath, ...], Field(max_length=TOPICS_PER_REPORT_MAX)] = ()
    other_path_us: Micros | None = None


class PatternPath(Part):
    """How the publications of one pattern reach the head: the worst way, and from which side."""

    pattern: Pattern
    path_us: Micros
    local: bool = False
    remote: bool = False


class PatternPaths(Message):
    """A head tells an edge about the publishers of its patterns: only what changed."""

    kind: Literal["pattern-paths"] = "pattern-paths"
    head: Name
    paths: Annotated[tuple[PatternPath, ...], Field(max_length=PATHS_PER_MESSAGE_MAX)] = ()


class HeadLoadRequest(Message):
    """An overloaded head asks its neighbours whether they could take publishers."""

    kind: Literal["head-load-request"] = "head-load-request"
    session: Id
    head: Name


class HeadLoad(Message):
    kind: Literal["head-load"] = "head-load"
    session: Id
    load: BrokerLoad
    publisher_url: Url


class PublisherExpect(Message):
    """A publisher is about to come to you: watch for the fence that follows its last message."""

    kind: Literal["publisher-expect"] = "publisher-expect"
    move: Id
    head: Name
    publisher: PublisherId
    fence: Topic


class PublisherExpected(Message):
    kind: Literal["publisher-expected"] = "publisher-expected"
    move: Id


class PublisherMoveOrder(Message):
    """Publish through another head: connect to it, pause, wait for all confirms, report `paused`."""

    kind: Literal["publisher-move-order"] = "publisher-move-order"
    move: Id
    publisher: PublisherId
    head: Name
    url: Url
    timeout_us: Micros


class PublisherStage(StrEnum):
    ORDERED = "ordered"
    PAUSED = "paused"
    MOVED = "moved"
    STAYED = "stayed"


class PublisherMoveReport(Message):
    """Where a publisher is with its move: unasked (answered with publisher-move-ack), or as an answer."""

    kind: Literal["publisher-move-report"] = "publisher-move-report"
    move: Id
    publisher: PublisherId
    stage: PublisherStage
    reason: Text = ""


class PublisherMoveAck(Message):
    kind: Literal["publisher-move-ack"] = "publisher-move-ack"
    move: Id


class FenceSeen(Message):
    """Everything published before the fence has passed here; answered with publisher-move-ack."""

    kind: Literal["fence-seen"] = "fence-seen"
    move: Id
    head: Name


class PublisherResume(Message):
    """Go on: at the new head, or back at the old one. Answered with publisher-move-report."""

    kind: Literal["publisher-resume"] = "publisher-resume"
    move: Id
    publisher: PublisherId
    moved: bool


class ThrottleOrder(Message):
    """A publisher that floods is asked to keep to these limits for a while."""

    kind: Literal["throttle-order"] = "throttle-order"
    publisher: PublisherId
    messages_per_s: Annotated[float, Field(gt=0)]
    for_us: Micros
    reason: Text


# Operators.


class DrainRequest(Message):
    """Empty an edge for maintenance, or use it again. Asking again tells how far it is."""

    kind: Literal["drain-request"] = "drain-request"
    edge: Name
    draining: bool = True


class DrainReply(Message):
    kind: Literal["drain-reply"] = "drain-reply"
    edge: Name
    draining: bool
    left: int
    """Subscriptions that are still there."""


class DrainNotice(Message):
    """Tells an edge that it is being drained, so that its hello says so from now on, even to a head that restarts."""

    kind: Literal["drain-notice"] = "drain-notice"
    draining: bool
