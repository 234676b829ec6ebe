"""The vocabulary between a client's machines and their drivers: the engines of the SDK, and the simulator.

An event says what happened, in the past tense; an action says what to do, as an imperative. Both are frozen.

Invariants:

- a machine never waits: what takes time is an action, and its completion comes back as an event;
- a driver carries out actions in the order given;
- an attachment is known by its *slot*, a number that the machine chooses and never uses twice. So an event that comes
  late, of an attachment that was given up, is recognised;
- a request that expects an answer has a key. Its repetitions have the same key, and a timer of the machine guards it;
- a timer has a name. Setting it again replaces it, and a cancelled timer does not fire. The driver may fire a timer a
  little late, by chance, so that clients do not come back all at once: a machine has no randomness.

Nothing here knows connections, clocks or threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tidegate_protocol.messages import ControlMessage, Refusal
from tidegate_protocol.names import marker_prefix

MARKER_START: Final = marker_prefix("")
"""What the routing key of every marker and fence starts with."""


def parse_marker(key: str) -> tuple[str, str] | None:
    """The migration (as it is spelled in keys) and the head of a marker; None for the key of a message.

    A delivery with such a key is never for the application, even if its subscription matches: it is told to the
    machine with `MarkerArrived` and acknowledged at once.
    """
    if not key.startswith(MARKER_START):
        return None
    migration, _, head = key[len(MARKER_START) :].rpartition(".")
    return (migration, head) if migration and head else None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a subscription's messages wait."""

    edge: str
    url: str
    queue: str
    number: int


# Events of both machines


@dataclass(frozen=True, slots=True)
class Ordered:
    """The head sent this. `reply_to` is given back with the `Answer`; None where the head wants none."""

    message: ControlMessage
    reply_to: Any = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The head's answer to the `Request` with this key."""

    key: str
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class TimerFired:
    name: str


# Events of a subscription


@dataclass(frozen=True, slots=True)
class Opened:
    """The subscription begins: find its place."""


@dataclass(frozen=True, slots=True)
class Attached:
    """The consumer of this slot is there; deliveries may follow."""

    slot: int


@dataclass(frozen=True, slots=True)
class AttachmentLost:
    """The attachment could not be made, or is lost. `gone`: because the queue does not exist any more; `in_use`:
    because another consumer has it, so the edge can be reached.
    """

    slot: int
    gone: bool = False
    problem: str = ""
    in_use: bool = False
    unsettled: bool = False
    """Whether the application has still to settle what it brought."""


@dataclass(frozen=True, slots=True)
class Detached:
    """What `Detach` asked for is done: nothing more comes from the slot, what it brought is settled, and the
    acknowledgements are on their way. A queue that is removed before they arrive loses nothing by it.
    """

    slot: int
    unsettled: bool = False
    """Whether not all of it is settled: the application took longer than was reasonable to wait for."""


@dataclass(frozen=True, slots=True)
class MarkerArrived:
    """A delivery whose routing key is a marker's."""

    slot: int
    key: str


@dataclass(frozen=True, slots=True)
class ClosedByApplication:
    """The application is done with it."""


# Actions of both machines


@dataclass(frozen=True, slots=True)
class Answer:
    """Reply to an order."""

    to: Any
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class Request:
    """Ask or tell the head at `head_url` (empty: the one the client was given at its start). Its answer comes back
    as `Answered`; silence is the machine's to notice.
    """

    key: str
    message: ControlMessage
    head_url: str = ""


@dataclass(frozen=True, slots=True)
class SetTimer:
    name: str
    after_s: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    name: str


@dataclass(frozen=True, slots=True)
class ChangeHead:
    """From now on the client belongs to this head: listen for its orders there too, and greet it."""

    head: str
    url: str


@dataclass(frozen=True, slots=True)
class LeaveHead:
    """Nothing is to be said to or heard from this former head any more."""

    url: str


# Actions of a subscription


@dataclass(frozen=True, slots=True)
class Attach:
    """Consume from the place, at most `prefetch` unacknowledged. Comes back as `Attached` or `AttachmentLost`."""

    slot: int
    place: Place
    prefetch: int


@dataclass(frozen=True, slots=True)
class Detach:
    """Stop consuming; acknowledge what is settled of it and leave the rest to RabbitMQ. Comes back as `Detached`.

    Its deliveries that the application has not settled yet should be waited for, within reason: the machine gives
    the queue up only when this came back, or `patience_s` later, and then says whether it may be removed.
    """

    slot: int
    patience_s: float
    hurry: bool = False
    """Whether the queue goes with it: then what its edge has not sent yet only takes room on an uplink that may be
    overloaded, and it is better not waited for. Acknowledgements that get lost by that lose nothing."""


@dataclass(frozen=True, slots=True)
class HeldDelivery:
    """A delivery kept back; `payload` is what `admit` was given."""

    slot: int
    identity: str | None
    payload: Any
    collected: bool = False
    content: bytes | None = None
    """The fingerprint of a plain message (`overlap`)."""


@dataclass(frozen=True, slots=True)
class Release:
    """Judge `items` with the deduplicator and deliver the new ones, in this order; they may be acknowledged
    from now on. Acknowledge `surplus` and deliver none of it: the old queue has brought it.
    """

    items: tuple[HeldDelivery, ...]
    surplus: tuple[HeldDelivery, ...] = ()


@dataclass(frozen=True, slots=True)
class TellRefusal:
    """The head refused the subscription without naming a time to ask again. The machine goes on asking, slowly;
    the driver may rather give up.
    """

    refusal: Refusal


SubscriptionEvent = (
    Opened
    | Ordered
    | Answered
    | TimerFired
    | Attached
    | AttachmentLost
    | Detached
    | MarkerArrived
    | ClosedByApplication
)
SubscriptionAction = (
    Attach | Detach | Release | Answer | Request | SetTimer | CancelTimer | ChangeHead | LeaveHead | TellRefusal
)


# Events and actions of a publisher's move


@dataclass(frozen=True, slots=True)
class NewHeadConnected:
    """The connection that `ConnectNewHead` asked for is there."""

    move: str


@dataclass(frozen=True, slots=True)
class NewHeadLost:
    """It could not be made, or is lost."""

    move: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class WindowEmptied:
    """While paused: everything written to the channel is confirmed or rejected; nothing is in flight."""


@dataclass(frozen=True, slots=True)
class HeadLost:
    """The connection that the publisher publishes through is lost: what was in flight will be sent again."""


@dataclass(frozen=True, slots=True)
class ConnectNewHead:
    """Open a second connection, to `url`, and publish nothing on it yet."""

    move: str
    head: str
    url: str


@dataclass(frozen=True, slots=True)
class DropNewHead:
    """Close the second connection; the publisher stays where it was."""

    move: str


@dataclass(frozen=True, slots=True)
class PausePublishing:
    """Write nothing more to the channel (the window goes on filling); say `WindowEmptied` once nothing is in flight,
    at once if that is so already.
    """


@dataclass(frozen=True, slots=True)
class ResumePublishing:
    """Write again: through the second connection, which takes the place of the first (that one is to be closed), if
    `moved`, otherwise through the first one.
    """

    moved: bool


PublisherEvent = (
    Ordered | Answered | TimerFired | NewHeadConnected | NewHeadLost | WindowEmptied | HeadLost | ClosedByApplication
)
PublisherAction = (
    ConnectNewHead
    | DropNewHead
    | PausePublishing
    | ResumePublishing
    | Answer
    | Request
    | SetTimer
    | CancelTimer
    | ChangeHead
    | LeaveHead
)
