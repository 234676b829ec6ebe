"""Every control message, as one versioned, discriminated union.

A control message is JSON: `{"v": 1, "kind": "...", ...}`. Receivers ignore fields they don't know, so that a newer
peer may add some; a new meaning of an old field takes a new version. `decode` raises `MalformedMessage` for all else,
with a reason from a fixed set, so that it can be counted under a bounded label. Nothing in here sends anything.

Times on the wire are whole microseconds (`_us`); rates and capacities are floats per second.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .errors import InvalidValue, MalformedMessage
from .ids import check_name, check_publisher_id
from .topics import check_pattern, check_topic

VERSION: Final = 1
CONTROL_BYTES_MAX: Final = 1 << 20
REGISTRY_PAGE_MAX: Final = 500
ROUTES_PER_UPDATE_MAX: Final = 1_500
TOPICS_PER_PUBLISHER_MAX: Final = 256
DEADLINE_US_MAX: Final = 24 * 3600 * 1_000_000


def _name(value: str) -> str:
    return check_name(value)


Name = Annotated[str, AfterValidator(_name)]
Pattern = Annotated[str, AfterValidator(check_pattern)]
Topic = Annotated[str, AfterValidator(check_topic)]
PublisherId = Annotated[str, AfterValidator(check_publisher_id)]
Text = Annotated[str, Field(max_length=1_000)]
Url = Annotated[str, Field(min_length=1, max_length=500)]
DeadlineUs = Annotated[int, Field(gt=0, le=DEADLINE_US_MAX)]


class _Part(BaseModel):
    # JSON has no infinity: it would be written as null and refused by the receiver, so the sender must not make it.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class _Message(_Part):
    v: Literal[1] = 1


class Capacity(_Part):
    """What a broker can carry; None where it is not configured."""

    uplink_bytes_per_s: Annotated[float, Field(gt=0)] | None = None
    downlink_bytes_per_s: Annotated[float, Field(gt=0)] | None = None
    matching_per_s: Annotated[float, Field(gt=0)] | None = None


class Subscription(_Part):
    """One subscription as an edge keeps it: who, what, how fast, how long it waits for an absent subscriber."""

    subscriber: Name
    number: Annotated[int, Field(ge=0, le=1_000_000)]
    pattern: Pattern
    deadline_us: DeadlineUs
    expires_s: Annotated[int, Field(gt=0, le=30 * 24 * 3600)]


class RefusalReason(StrEnum):
    """Why a request was not granted. Bounded, because it labels a metric."""

    NO_EDGE = "no-edge"
    NOT_READY = "not-ready"
    UNKNOWN = "unknown"
    CONFLICT = "conflict"
    LIMIT = "limit"
    INVALID = "invalid"
    FAILED = "failed"


class LoadState(StrEnum):
    """How loaded a broker is, and N/A for one that takes no part."""

    LOW = "LOW"
    HIGH = "HIGH"
    OVERLOAD = "OVERLOAD"
    NOT_AVAILABLE = "N/A"


# Client to HOM, and the answers.


class SubscribeRequest(_Message):
    kind: Literal["subscribe-request"] = "subscribe-request"
    subscriber: Name
    pattern: Pattern
    deadline_us: DeadlineUs
    expires_s: Annotated[int, Field(gt=0, le=30 * 24 * 3600)] = 600


class SubscribeReply(_Message):
    """Sent once the route is live. `awaiting` names heads that had not confirmed theirs in time."""

    kind: Literal["subscribe-reply"] = "subscribe-reply"
    subscription: Subscription
    edge: Name
    url: Url
    queue: Text
    awaiting: tuple[Name, ...] = ()


class UnsubscribeRequest(_Message):
    kind: Literal["unsubscribe-request"] = "unsubscribe-request"
    subscriber: Name
    number: Annotated[int, Field(ge=0)]


class UnsubscribeReply(_Message):
    kind: Literal["unsubscribe-reply"] = "unsubscribe-reply"
    subscriber: Name
    number: int


class PublisherHello(_Message):
    """A publisher tells its head that it is there, again and again; it is forgotten three periods after the last."""

    kind: Literal["publisher-hello"] = "publisher-hello"
    publisher: PublisherId
    topics: Annotated[tuple[Topic, ...], Field(max_length=TOPICS_PER_PUBLISHER_MAX)] = ()


class PublisherWelcome(_Message):
    kind: Literal["publisher-welcome"] = "publisher-welcome"
    publisher: PublisherId
    head: Name
    period_s: Annotated[float, Field(gt=0)]


class PublisherGoodbye(_Message):
    kind: Literal["publisher-goodbye"] = "publisher-goodbye"
    publisher: PublisherId


class StatusRequest(_Message):
    kind: Literal["status-request"] = "status-request"


class EdgeStatus(_Part):
    edge: Name
    alive: bool
    draining: bool
    subscriptions: int
    patterns: int
    capacity: Capacity = Capacity()
    seen_ago_s: float


class NeighbourStatus(_Part):
    head: Name
    alive: bool
    needs: int
    """Patterns wanted behind that head: what we forward to it."""
    offered: int
    """Patterns we asked that head to forward to us."""


class StatusReply(_Message):
    kind: Literal["status-reply"] = "status-reply"
    cluster: Name
    head: Name
    version: Text
    edges: tuple[EdgeStatus, ...] = ()
    neighbours: tuple[NeighbourStatus, ...] = ()
    publishers: int = 0


class Refusal(_Message):
    """The answer to any request that can't be granted: which field, why, and when asking again may help."""

    kind: Literal["refusal"] = "refusal"
    reason: RefusalReason
    message: Text
    field: Text | None = None
    retry_after_s: float | None = None


# Edge to HOM, HOM to edge.


class EdgeHello(_Message):
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


class EdgeWelcome(_Message):
    kind: Literal["edge-welcome"] = "edge-welcome"
    head: Name
    cluster: Name
    period_s: Annotated[float, Field(gt=0)]


class EdgeGoodbye(_Message):
    """The edge's process stops. Its RabbitMQ goes on delivering; no new subscription goes there until it is back."""

    kind: Literal["edge-goodbye"] = "edge-goodbye"
    edge: Name


class OutputPrepare(_Message):
    kind: Literal["output-prepare"] = "output-prepare"
    subscription: Subscription


class OutputReady(_Message):
    kind: Literal["output-ready"] = "output-ready"
    subscription: Subscription
    queue: Text


class OutputRemove(_Message):
    kind: Literal["output-remove"] = "output-remove"
    subscriber: Name
    number: Annotated[int, Field(ge=0)]


class OutputRemoved(_Message):
    kind: Literal["output-removed"] = "output-removed"
    edge: Name
    subscriber: Name
    number: int


class RegistryRequest(_Message):
    kind: Literal["registry-request"] = "registry-request"
    after: Text | None = None
    """The last queue name of the page before; None for the first page."""


class RegistryPage(_Message):
    kind: Literal["registry-page"] = "registry-page"
    edge: Name
    digest: Text
    subscriptions: Annotated[tuple[Subscription, ...], Field(max_length=REGISTRY_PAGE_MAX)] = ()
    after: Text | None = None
    """Ask for the next page with this; None on the last one."""


# Head to head.


class RoutesUpdate(_Message):
    """What is subscribed behind the sender, as a change against version `base`, or whole where `base` is None.

    A whole set larger than one message is sent as a whole first part and changes after it: a part with fewer than
    `ROUTES_PER_UPDATE_MAX` additions is the last one, and nothing is unbound before it. An update whose version is its
    own base changes nothing: it asks whether the receiver still has that version.
    """

    kind: Literal["routes-update"] = "routes-update"
    head: Name
    version: Annotated[int, Field(gt=0)]
    base: int | None = None
    add: Annotated[tuple[Pattern, ...], Field(max_length=ROUTES_PER_UPDATE_MAX)] = ()
    remove: Annotated[tuple[Pattern, ...], Field(max_length=ROUTES_PER_UPDATE_MAX)] = ()
    wait_s: Annotated[float, Field(ge=0, le=60)]
    """How long the receiver may wait for the heads behind it before it answers."""


class RoutesAccepted(_Message):
    """The routes are live at the sender and, but for the heads in `awaiting`, at all heads behind it."""

    kind: Literal["routes-accepted"] = "routes-accepted"
    head: Name
    version: int
    awaiting: tuple[Name, ...] = ()


class RoutesUnknownBase(_Message):
    """The receiver does not have the version that the change builds on: send the whole set."""

    kind: Literal["routes-unknown-base"] = "routes-unknown-base"
    head: Name
    have: int | None = None


# Load reports (PIE).


class MetricReport(_Part):
    value: float
    low: float | None = None
    high: float | None = None


class PieLocal(_Message):
    """The load of one broker, for the brokers of its cluster."""

    kind: Literal["pie-local"] = "pie-local"
    broker: Name
    cluster: Name
    state: LoadState
    metrics: dict[str, MetricReport] = {}
    period_s: Annotated[float, Field(gt=0)]


class PieGlobal(_Message):
    """The load of one cluster, for its neighbours: the mean of each metric over the brokers that can take load."""

    kind: Literal["pie-global"] = "pie-global"
    cluster: Name
    head: Name
    state: LoadState
    metrics: dict[str, MetricReport] = {}
    period_s: Annotated[float, Field(gt=0)]


ControlMessage = Annotated[
    SubscribeRequest
    | SubscribeReply
    | UnsubscribeRequest
    | UnsubscribeReply
    | PublisherHello
    | PublisherWelcome
    | PublisherGoodbye
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
    | RoutesUpdate
    | RoutesAccepted
    | RoutesUnknownBase
    | PieLocal
    | PieGlobal,
    Field(discriminator="kind"),
]

CLIENT_KINDS: Final = frozenset(
    {"subscribe-request", "unsubscribe-request", "publisher-hello", "publisher-goodbye", "status-request"}
)
"""The kinds a client may send to `HOM_KEY`. Any other kind arriving there is dropped as malformed."""

_ADAPTER: Final[TypeAdapter[ControlMessage]] = TypeAdapter(ControlMessage)


def encode(message: ControlMessage) -> bytes:
    """The wire form: compact JSON with `None` fields left out."""
    return message.model_dump_json(exclude_none=True).encode()


def decode(body: bytes) -> ControlMessage:
    """Read a control message; raise `MalformedMessage` with a reason from a bounded set."""
    if len(body) > CONTROL_BYTES_MAX:
        raise MalformedMessage("too-large", f"{len(body)} bytes, at most {CONTROL_BYTES_MAX}")
    try:
        return _ADAPTER.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MalformedMessage(_reason(first["type"], first["loc"]), f"{where or 'message'}: {first['msg']}") from None
    except InvalidValue as error:  # pragma: no cover - pydantic wraps ValueErrors, this is a second line
        raise MalformedMessage("invalid-field", str(error)) from None


def _reason(error_type: str, where: tuple[int | str, ...]) -> str:
    if error_type == "json_invalid":
        return "not-json"
    if error_type in {"union_tag_invalid", "union_tag_not_found"}:
        return "unknown-kind"
    if where and where[-1] == "v":
        return "unknown-version"
    return "invalid-field"
