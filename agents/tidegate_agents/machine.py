"""The vocabulary between an agent and whatever runs it.

Events are what happened, named in the past; actions are what is to be done, named as imperatives. Both are
frozen. What always holds:

- an agent never waits: what takes time is an action whose completion comes back as an event;
- actions are carried out in the order given; those on the data plane one after another;
- every request that expects an answer has an id chosen by the agent, and a timer of the agent's own guards
  it;
- a timer has a name; setting it again replaces it, and one that was cancelled does not fire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

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


# Events


@dataclass(frozen=True, slots=True)
class Started:
    """The runtime is up. `routes` holds what a predecessor left bound, per link target; `outputs` its output
    queues.
    """

    routes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    outputs: tuple[Subscription, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A control message came in. `reply_to` is set where the sender wants an answer."""

    message: ControlMessage
    reply_to: ReplyAddress | None = None


@dataclass(frozen=True, slots=True)
class ReplyReceived:
    """The answer to the request `request_id` of this agent."""

    request_id: str
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """The request `request_id` reached nobody: its addressee's process is not there."""

    request_id: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    name: str


@dataclass(frozen=True, slots=True)
class RoutesChanged:
    """The bindings asked for with this id are in place."""

    change_id: int


@dataclass(frozen=True, slots=True)
class OutputDeclared:
    """The output queue of this subscription exists and is bound."""

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class OutputDeleted:
    subscriber: str
    number: int


@dataclass(frozen=True, slots=True)
class OutputsListed:
    """What the edge's RabbitMQ holds now, queue by queue: some may have expired or been deleted."""

    outputs: tuple[Subscription, ...]


@dataclass(frozen=True, slots=True)
class ActionFailed:
    """RabbitMQ refused a data-plane action for good; failures that may pass are retried by the runtime
    itself.
    """

    action: Action
    problem: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The process is about to end: say goodbye and start nothing new. RabbitMQ goes on without it."""


Event = (
    Started
    | MessageReceived
    | ReplyReceived
    | Undeliverable
    | TimerFired
    | RoutesChanged
    | OutputDeclared
    | OutputDeleted
    | OutputsListed
    | ActionFailed
    | StopRequested
)


# Actions


@dataclass(frozen=True, slots=True)
class Send:
    """Send to the process of a broker. With `request_id`, its answer comes back as `ReplyReceived`."""

    to: str
    message: ControlMessage
    request_id: str | None = None


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
    """Have a durable link queue and a running shovel to `target`; replace the shovel if `url` changed."""

    target: str
    kind: LinkKind
    url: str


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
class Record:
    """A decision, for the log and for whoever asks why."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision that explains itself."""

    kind: str
    subject: str
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)


Action = (
    Send | Reply | SetTimer | CancelTimer | EnsureLink | DropLink | ChangeRoutes | DeclareOutput | DeleteOutput | Record
)


class Agent(Protocol):
    """What a runtime drives."""

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        ...

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant. Called after every step in tests."""
        ...
