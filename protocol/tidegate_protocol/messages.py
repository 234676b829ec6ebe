"""Every control message, as one versioned, discriminated union.

A control message is JSON: `{"v": 1, "kind": "...", ...}`. Receivers ignore fields they don't know, so that a newer
peer may add some; a new meaning of an old field takes a new version. `decode` raises `MalformedMessage` for all else,
with a reason from a fixed set, so that it can be counted under a bounded label. Nothing in here sends anything.

Times on the wire are whole microseconds (`_us`); rates and capacities are floats per second.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, field_validator

from . import drops, insight, operations, quarantine, reports
from .balancing import abroad, drains, loads, markers, migrations, paths, places, publishers, sessions
from .names import ANSWER_KEY, HOM_KEY, OPERATOR_KEY
from .operations import EdgeStatus as EdgeStatus, NeighbourStatus as NeighbourStatus
from .parts import (
    ALARMS_MAX as ALARMS_MAX,
    CONTROL_BYTES_MAX as CONTROL_BYTES_MAX,
    DEADLINE_US_MAX as DEADLINE_US_MAX,
    INTEGER_MAX,
    REGISTRY_PAGE_MAX as REGISTRY_PAGE_MAX,
    ROUTES_PER_UPDATE_MAX as ROUTES_PER_UPDATE_MAX,
    TOPICS_PER_PUBLISHER_MAX as TOPICS_PER_PUBLISHER_MAX,
    VERSION as VERSION,
    Capacity as Capacity,
    DeadlineUs as DeadlineUs,
    HeldPattern,
    LoadState as LoadState,
    Message as Message,
    Micros,
    Name as Name,
    Number,
    Part as Part,
    Passing as Passing,
    Pattern as Pattern,
    Period,
    PublisherId as PublisherId,
    RefusalReason as RefusalReason,
    Subscription as Subscription,
    Text as Text,
    Topic as Topic,
    Url as Url,
    read_json,
)
from .rights import Patterns
from .topics import is_pattern

MESSAGES_REPORTED_MAX: Final = 10**12
BYTES_REPORTED_MAX: Final = 10**15
ELAPSED_US_MAX: Final = 10**13
"""Of one topic in one report, and how long after the one before: more than anybody sends, and a process may have been
stopped for months. Rates and sizes made from these numbers are numbers themselves."""
GAP_S_SUM_MAX: Final = 1e9

# Client to HOM, and the answers.


class SubscribeRequest(Message):
    kind: Literal["subscribe-request"] = "subscribe-request"
    subscriber: Name
    pattern: Pattern
    deadline_us: DeadlineUs
    expires_s: Annotated[int, Field(gt=0, le=30 * 24 * 3600)] = 600
    unreachable: Name | None = None
    """The edge that was to serve this subscription and that the client can't reach."""


class SubscribeReply(Message):
    """Sent once the route is live. `awaiting` names heads that had not confirmed theirs in time."""

    kind: Literal["subscribe-reply"] = "subscribe-reply"
    subscription: Subscription
    edge: Name
    url: Url
    queue: Text
    awaiting: tuple[Name, ...] = ()
    head: Name | None = None
    head_url: Annotated[str, Field(max_length=500)] = ""
    """The head to ask from now on, where the subscription was moved to another cluster; None where it stays the same.
    A client that started anew does not know that it was moved."""
    checked_accounts: bool = False
    """Whether publications carry the account of their publisher, checked by RabbitMQ and passed on by every link: then
    an id without an account is nobody's."""
    checked_times: bool = False
    """Whether the head's RabbitMQ stamps every publication with its own time: then the publisher's is checked by it."""


class UnsubscribeRequest(Message):
    """A client ends a subscription: the place that it knows under this number, and all others made for it."""

    kind: Literal["unsubscribe-request"] = "unsubscribe-request"
    subscriber: Name
    number: Number
    pattern: Pattern | None = None
    """So that places under other numbers are found, of a migration that a restarted head knows nothing of."""


class UnsubscribeReply(Message):
    kind: Literal["unsubscribe-reply"] = "unsubscribe-reply"
    subscriber: Name
    number: int


class PublisherHello(Message):
    """A publisher tells its head that it is there, again and again; it is forgotten three periods after the last."""

    kind: Literal["publisher-hello"] = "publisher-hello"
    publisher: PublisherId
    topics: Annotated[tuple[Topic, ...], Field(max_length=TOPICS_PER_PUBLISHER_MAX)] = ()
    round_trip_us: Micros = 0
    """From publishing until RabbitMQ's confirm."""


class PublisherWelcome(Message):
    kind: Literal["publisher-welcome"] = "publisher-welcome"
    publisher: PublisherId
    head: Name
    period_s: Period
    checked_accounts: bool = False
    """Whether every link passes on the account of a publisher (`user_id`), so that it may be said. A publisher that has
    said it once goes on saying it: its messages are known by it."""
    publish: Patterns | None = None
    """What the publisher's account may publish, so that it need not find out by being disconnected; None: any topic."""


class PublisherGoodbye(Message):
    kind: Literal["publisher-goodbye"] = "publisher-goodbye"
    publisher: PublisherId


class TopicCount(Part):
    """What was published on one topic. `bytes` counts the bodies.

    The times between successive publications, for the squared coefficient of variation n·Σg² ÷ (Σg)² − 1: how many
    there are, their sum and the sum of their squares. The first one reaches back to the last publication reported.
    """

    topic: Topic
    messages: Annotated[int, Field(ge=0, le=MESSAGES_REPORTED_MAX)]
    bytes: Annotated[int, Field(ge=0, le=BYTES_REPORTED_MAX)]
    gaps: Annotated[int, Field(ge=0, le=MESSAGES_REPORTED_MAX)] | None = None
    gap_s_sum: Annotated[float, Field(ge=0, le=GAP_S_SUM_MAX)] | None = None
    gap_s2_sum: Annotated[float, Field(ge=0, le=GAP_S_SUM_MAX**2)] | None = None


class PublisherReport(Message):
    """What a publisher has sent since its last report, about once a second while it publishes. Unanswered.

    A topic that does not fit is left for the next report, so that `elapsed_us` always belongs to all that are named.
    """

    kind: Literal["publisher-report"] = "publisher-report"
    publisher: PublisherId
    elapsed_us: Annotated[int, Field(gt=0, le=ELAPSED_US_MAX)]
    """How long ago the last report was sent, or publishing began. The last one before a goodbye may be very short."""
    topics: Annotated[tuple[TopicCount, ...], Field(max_length=TOPICS_PER_PUBLISHER_MAX)] = ()
    round_trip_us: Micros = 0
    """From publishing until RabbitMQ's confirm; 0 where it is not known."""


class StatusRequest(Message):
    kind: Literal["status-request"] = "status-request"


class StatusReply(Message):
    kind: Literal["status-reply"] = "status-reply"
    cluster: Name
    head: Name
    version: Text
    edges: tuple[EdgeStatus, ...] = ()
    neighbours: tuple[NeighbourStatus, ...] = ()
    publishers: int = 0


class Refusal(Message):
    """The answer to any request that can't be granted: which field, why, and when asking again may help."""

    kind: Literal["refusal"] = "refusal"
    reason: RefusalReason
    message: Text
    field: Text | None = None
    retry_after_s: float | None = None
    quota: operations.QuotaUse | None = None
    """The quota that is used up, where that is the reason."""


# Edge to HOM, HOM to edge.


class EdgeHello(Message):
    """An edge's sign of life. The digest tells the head whether it knows the edge's subscriptions."""

    kind: Literal["edge-hello"] = "edge-hello"
    edge: Name
    cluster: Name
    client_url: Url
    link_url: Url
    capacity: Capacity = Capacity()
    registry_count: Annotated[int, Field(ge=0)]
    registry_digest: Text
    draining: bool = False
    paused: bool = False
    pause_version: Annotated[int, Field(ge=0)] = 0
    """Whether balancing is paused, as far as it knows: a head that restarts learns it from its edges. What has the
    higher version holds."""
    alarms: Annotated[tuple[Text, ...], Field(max_length=ALARMS_MAX)] = ()
    """What its RabbitMQ is short of; as long as that is so, it takes in nothing."""
    accounts_passed: Passing = Passing.NO
    """Whether the account in `link_url` passes on the accounts of publishers, as its RabbitMQ was seen to do."""


class EdgeWelcome(Message):
    kind: Literal["edge-welcome"] = "edge-welcome"
    head: Name
    cluster: Name
    period_s: Period
    incarnation: Annotated[int, Field(ge=0)] = 0
    """Larger at every start of the head, which then knows nothing of the sessions before."""
    paused: bool = False
    pause_version: Annotated[int, Field(ge=0)] = 0


class EdgeGoodbye(Message):
    """The edge's process stops. Its RabbitMQ goes on delivering; no new subscription goes there until it is back."""

    kind: Literal["edge-goodbye"] = "edge-goodbye"
    edge: Name


class OutputPrepare(Message):
    kind: Literal["output-prepare"] = "output-prepare"
    subscription: Subscription
    marker: Pattern | None = None
    """Bind this key too: markers of a migration come with it."""


class OutputReady(Message):
    kind: Literal["output-ready"] = "output-ready"
    subscription: Subscription
    queue: Text


class OutputRemove(Message):
    kind: Literal["output-remove"] = "output-remove"
    subscriber: Name
    number: Number


class OutputRemoved(Message):
    kind: Literal["output-removed"] = "output-removed"
    edge: Name
    subscriber: Name
    number: int


class RegistryRequest(Message):
    kind: Literal["registry-request"] = "registry-request"
    after: Text | None = None
    """The last queue name of the page before; None for the first page."""


class RegistryPage(Message):
    kind: Literal["registry-page"] = "registry-page"
    edge: Name
    digest: Text
    subscriptions: Annotated[tuple[Subscription, ...], Field(max_length=REGISTRY_PAGE_MAX)] = ()
    after: Text | None = None
    """Ask for the next page with this; None on the last one."""

    @field_validator("subscriptions", mode="before")
    @classmethod
    def _leave_out_unservable(cls, value: object) -> object:
        """An edge of an earlier version may hold a subscription whose pattern is refused today, and ends it when it is
        upgraded. Until then that subscription gets no route, and the others of the page keep theirs.
        """
        if not isinstance(value, list | tuple):
            return value
        return [item for item in value if not (isinstance(item, dict) and _is_unservable(item.get("pattern")))]


def _is_unservable(pattern: object) -> bool:
    return isinstance(pattern, str) and not is_pattern(pattern)


# Between any two brokers.


class Takes(Part):
    """What a broker's RabbitMQ takes."""

    message_bytes: Annotated[int, Field(gt=0, le=INTEGER_MAX)] | None = None
    """The largest body; None: at least what the SDK sends at most."""
    frame_bytes: Annotated[int, Field(gt=0, le=INTEGER_MAX)] | None = None


class Probe(Message):
    """Answered at once by the other broker's process: its way there and back is a round trip of the link."""

    kind: Literal["probe"] = "probe"
    broker: Name | None = None
    takes: Takes | None = None
    """What the sender's RabbitMQ takes, once that is known."""


class ProbeReply(Message):
    kind: Literal["probe-reply"] = "probe-reply"
    clock_us: Micros
    """The wall clock of the broker that answers; compared with ours it tells how far the two clocks are apart."""


# Head to head.


class RoutesUpdate(Message):
    """What is subscribed behind the sender, as a change against version `base`, or whole where `base` is None.

    A whole set larger than one message is sent as a whole first part and changes after it: a part with fewer than
    `ROUTES_PER_UPDATE_MAX` additions is the last one, and nothing is unbound before it. An update whose version is its
    own base changes nothing: it asks whether the receiver still has that version.
    """

    kind: Literal["routes-update"] = "routes-update"
    head: Name
    version: Annotated[int, Field(gt=0)]
    base: int | None = None
    add: Annotated[tuple[HeldPattern, ...], Field(max_length=ROUTES_PER_UPDATE_MAX)] = ()
    """The receiver leaves out what is no legal pattern: a head of an earlier version may offer such a pattern, and the
    other routes of the update must not wait for it."""
    remove: Annotated[tuple[HeldPattern, ...], Field(max_length=ROUTES_PER_UPDATE_MAX)] = ()
    wait_s: Annotated[float, Field(ge=0, le=60)]
    """How long the receiver may wait for the heads behind it before it answers."""
    accounts_passed: Passing = Passing.NO
    """Whether all links of the sender, and of all heads behind it, pass on the accounts of publishers."""


class RoutesAccepted(Message):
    """The routes are live at the sender and, but for the heads in `awaiting`, at all heads behind it."""

    kind: Literal["routes-accepted"] = "routes-accepted"
    head: Name
    version: int
    awaiting: tuple[Name, ...] = ()


class RoutesUnknownBase(Message):
    """The receiver does not have the version that the change builds on: send the whole set."""

    kind: Literal["routes-unknown-base"] = "routes-unknown-base"
    head: Name
    have: int | None = None


ControlMessage = Annotated[
    SubscribeRequest
    | SubscribeReply
    | UnsubscribeRequest
    | UnsubscribeReply
    | PublisherHello
    | PublisherWelcome
    | PublisherGoodbye
    | PublisherReport
    | StatusRequest
    | StatusReply
    | Refusal
    | EdgeHello
    | EdgeWelcome
    | EdgeGoodbye
    | OutputPrepare
    | OutputReady
    | OutputRemove
    | OutputRemoved
    | RegistryRequest
    | RegistryPage
    | Probe
    | ProbeReply
    | RoutesUpdate
    | RoutesAccepted
    | RoutesUnknownBase
    | abroad.AbroadMessage
    | drains.DrainMessage
    | loads.LoadMessage
    | markers.MarkerMessage
    | migrations.MigrationMessage
    | paths.PathMessage
    | places.PlaceMessage
    | publishers.PublisherMessage
    | sessions.SessionMessage
    | operations.OperationMessage
    | drops.DropsMessage
    | reports.ReportMessage
    | insight.InsightMessage
    | quarantine.QuarantineMessage,
    Field(discriminator="kind"),
]

CLIENT_KINDS: Final = frozenset(
    {
        "subscribe-request",
        "unsubscribe-request",
        "publisher-hello",
        "publisher-goodbye",
        "publisher-report",
        "subscriber-report",
        "migration-report",
        "publisher-move-report",
    }
)
"""The kinds a client may send to `HOM_KEY`. Any other kind arriving there is dropped as malformed."""
ANSWER_KINDS: Final = frozenset({"migration-report", "place-reply", "publisher-move-report", "refusal"})
"""The kinds a client may answer an order with, at `ANSWER_KEY`."""
OPERATOR_KINDS: Final = frozenset(
    {
        "status-request",
        "drain-request",
        "overview-request",
        "explain-request",
        "plan-request",
        "pause-request",
        "drops-request",
        "insight",
        "quarantine-request",
    }
)
"""The kinds an operator may send to `OPERATOR_KEY`."""
ADMITTED_KINDS: Final = {HOM_KEY: CLIENT_KINDS, ANSWER_KEY: ANSWER_KINDS, OPERATOR_KEY: OPERATOR_KINDS}
"""What may come by keys that others than brokers write to."""


def request_key(message: ControlMessage) -> str:
    """Where a request to a head is sent."""
    return OPERATOR_KEY if message.kind in OPERATOR_KINDS else HOM_KEY


def client_of(message: ControlMessage) -> str | None:
    """The client that a message of a client's is about; None if it names none."""
    for field in ("subscriber", "publisher"):
        name = getattr(message, field, None)
        if isinstance(name, str):
            return name
    return None


_ADAPTER: Final[TypeAdapter[ControlMessage]] = TypeAdapter(ControlMessage)


def encode(message: ControlMessage) -> bytes:
    """The wire form: compact JSON with `None` fields left out."""
    return message.model_dump_json(exclude_none=True).encode()


def decode(body: bytes) -> ControlMessage:
    """Read a control message; raise `MalformedMessage` with a reason from a bounded set."""
    return read_json(_ADAPTER, body, CONTROL_BYTES_MAX, "message", "v")
