"""What an agent wants done: the actions, named as imperatives and frozen (`machine`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate_protocol.balancing.loads import PieLocal
from tidegate_protocol.decisions import Decision, FloodingAccount, FloodingPublisher
from tidegate_protocol.drops import DropsRequest
from tidegate_protocol.messages import ControlMessage, Subscription


@dataclass(frozen=True, slots=True)
class ReplyAddress:
    """Where an answer goes. Opaque to the agent; the runtime made it when the request came in."""

    token: str
    request: str


class LinkKind(StrEnum):
    """Where a link leads; decides which exchange it writes to on the other side."""

    EDGE = "edge"
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class Send:
    """Send to the process of a broker. With `request_id`, its answer comes back as `ReplyReceived`."""

    to: str
    message: ControlMessage
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class SendClient:
    """Send to a client of this head, by the name of its subscriber or the id of its publisher.

    A client that is not there is `Undeliverable`.
    """

    client: str
    message: ControlMessage
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Announce:
    """Send a load report to every other broker of the cluster, its head included."""

    message: PieLocal


@dataclass(frozen=True, slots=True)
class Reply:
    to: ReplyAddress
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class SetTimer:
    name: str
    after_s: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    name: str


@dataclass(frozen=True, slots=True)
class EnsureLink:
    """Have a durable link queue and a running shovel to `target`; replace the shovel if `url` changed.

    `passes_accounts`: whether messages keep the account of their publisher on this link. If not, they get the link's
    own, which its RabbitMQ always takes: one message that names another would stop the link. None: as it is.
    """

    target: str
    kind: LinkKind
    url: str
    passes_accounts: bool | None = None


@dataclass(frozen=True, slots=True)
class AllowAccounts:
    """Let publishers know, through RabbitMQ, whether they may name their accounts."""

    allowed: bool


@dataclass(frozen=True, slots=True)
class DropLink:
    """Remove the shovel and, once it is empty, the queue of a link that nobody needs any more."""

    target: str


@dataclass(frozen=True, slots=True)
class ChangeRoutes:
    """Bind, then unbind, patterns on the link to `target`. Completion comes back as
    `RoutesChanged(change_id)`.
    """

    change_id: int
    target: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeclareOutput:
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class DeleteOutput:
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class BindMarker:
    """Have messages with this key reach the output queue too. Completion comes back as `MarkerBound`."""

    subscriber: str
    number: int
    key: str


@dataclass(frozen=True, slots=True)
class UnbindMarker:
    subscriber: str
    number: int
    key: str


@dataclass(frozen=True, slots=True)
class PublishMarker:
    """Publish an empty message with this key, to be confirmed by RabbitMQ; comes back as `MarkerPublished`.

    It goes into the links named in `targets` and nowhere else; where none is named, wherever the routes lead its key.
    It follows everything that has been published here before on each of those links.
    """

    key: str
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchFence:
    """Tell when a message with this key comes in from `neighbour`. Until it came, or the watch is ended."""

    neighbour: str
    key: str


@dataclass(frozen=True, slots=True)
class UnwatchFence:
    neighbour: str
    key: str


@dataclass(frozen=True, slots=True)
class LimitOutput:
    """Bound what may wait for a subscription that is too slow: the oldest beyond `messages_max` are dropped.

    None lifts the limit.
    """

    subscriber: str
    number: int
    messages_max: int | None


@dataclass(frozen=True, slots=True)
class SampleSoon:
    """Take the next sample so soon, and not a whole period after the last one."""

    after_s: float


@dataclass(frozen=True, slots=True)
class DisconnectPublisher:
    """Close the connection of a publisher that floods and does not listen."""

    publisher: str
    found: FloodingPublisher


@dataclass(frozen=True, slots=True)
class KeepOut:
    """Close all connections of an account and take no new ones for a lease; then let it in again, without being told.

    Refused (`ActionFailed`) where nobody here may do that.
    """

    account: str
    lease_s: float
    found: FloodingAccount


@dataclass(frozen=True, slots=True)
class Record:
    """A decision, for the log and for operators who ask why."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class TendDrops:
    """Do with dropped messages what an operator wants; comes back as `DropsTended`."""

    request: DropsRequest
    reply_to: ReplyAddress


Action = (
    Send
    | SendClient
    | Announce
    | Reply
    | SetTimer
    | CancelTimer
    | EnsureLink
    | AllowAccounts
    | DropLink
    | ChangeRoutes
    | DeclareOutput
    | DeleteOutput
    | BindMarker
    | UnbindMarker
    | PublishMarker
    | WatchFence
    | UnwatchFence
    | LimitOutput
    | SampleSoon
    | DisconnectPublisher
    | TendDrops
    | KeepOut
    | Record
)
