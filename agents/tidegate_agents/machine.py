"""The vocabulary between an agent and whatever runs it.

Events are what happened, named in the past; actions are what is to be done, named as imperatives. Both are
frozen. Invariants:

- an agent never waits: what takes time is an action whose completion comes back as an event;
- actions are carried out in the order given; those on the data plane one after another;
- every request that expects an answer has an id chosen by the agent, and a timer of the agent's own guards
  it;
- a timer has a name; setting it again replaces it, and one that was cancelled does not fire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tidegate_protocol.decisions import (
    Decision,
    DropReason,
    LinkLimitDiffers,
    LinkRelayed,
    MessageSetAside,
    UntrueReports,
)
from tidegate_protocol.drops import DropsReply
from tidegate_protocol.messages import ControlMessage, Subscription
from tidegate_protocol.rights import Rules

from .actions import (
    Action as Action,
    AllowAccounts as AllowAccounts,
    Announce as Announce,
    BindMarker as BindMarker,
    CancelTimer as CancelTimer,
    ChangeRoutes as ChangeRoutes,
    DeclareOutput as DeclareOutput,
    DeleteOutput as DeleteOutput,
    DisconnectPublisher as DisconnectPublisher,
    DropLink as DropLink,
    EnsureLink as EnsureLink,
    KeepOut as KeepOut,
    LimitOutput as LimitOutput,
    LinkKind as LinkKind,
    PublishMarker as PublishMarker,
    Record as Record,
    Reply as Reply,
    ReplyAddress as ReplyAddress,
    SampleSoon as SampleSoon,
    Send as Send,
    SendClient as SendClient,
    SetTimer as SetTimer,
    TendDrops as TendDrops,
    UnbindMarker as UnbindMarker,
    UnwatchFence as UnwatchFence,
    WatchFence as WatchFence,
)
from .load.metrics import AccountSample, BrokerSample, PublisherSample, SubscriptionSample

# Events


@dataclass(frozen=True, slots=True)
class Started:
    """The runtime is up. `routes` holds what a predecessor left bound, per link target; `outputs` its output
    queues; `accounts_allowed` whether it let publishers name their accounts.
    """

    routes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    outputs: tuple[Subscription, ...] = ()
    accounts_allowed: bool = False


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A control message came in. `reply_to` is set where the sender wants an answer."""

    message: ControlMessage
    reply_to: ReplyAddress | None = None
    account: str = ""
    """Whose it is, as RabbitMQ has checked; empty where the sender does not say."""


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
    waiting: int = 0
    """Messages that were in it."""


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
class LinkObserved:
    """What the runtime of a head found out about a link. It has acted on it already: links wait for nobody."""

    found: MessageSetAside | LinkRelayed | LinkLimitDiffers


@dataclass(frozen=True, slots=True)
class LinkLimitFits:
    """A limit that differed at the two ends of the link to `target` does so no more."""

    target: str


@dataclass(frozen=True, slots=True)
class EdgeSampled:
    """The load of an edge over the last period, everything seen at one moment."""

    broker: BrokerSample
    subscriptions: tuple[SubscriptionSample, ...]
    head_round_trip_s: float = 0.0
    """Of a small probe to the head and back, over the data links."""


@dataclass(frozen=True, slots=True)
class HeadSampled:
    """The load of a head over the last period, and which publisher makes how much of it."""

    broker: BrokerSample
    publishers: tuple[PublisherSample, ...] = ()
    neighbour_round_trip_s: Mapping[str, float] = field(default_factory=dict)
    unheard: frozenset[str] = frozenset()
    """Publishers of which nothing new was heard in that period: their figures are those of the sample before."""
    accounts: tuple[AccountSample, ...] | None = None
    """What RabbitMQ has measured anew of the accounts that send something; None where nothing new was measured."""
    untrue: tuple[UntrueReports, ...] = ()
    """Reports that are not in `publishers` as they were sent: what was measured speaks against them."""


@dataclass(frozen=True, slots=True)
class MarkerBound:
    """The marker key is bound to the output queue of this subscription."""

    subscriber: str
    number: int
    key: str


@dataclass(frozen=True, slots=True)
class MarkerPublished:
    """RabbitMQ has taken the marker and put it into every link queue it had to reach."""

    key: str


@dataclass(frozen=True, slots=True)
class FenceArrived:
    """The fence we watch for has come in from a neighbour: what was sent before it has passed too."""

    key: str


@dataclass(frozen=True, slots=True)
class AlarmsSeen:
    """The alarms of this broker's RabbitMQ have changed: these are raised now. Each blocks what is published to it."""

    raised: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LinkChecked:
    """Whether the account of a link passes on the accounts of publishers was tried out.

    `target`: the neighbouring head that the link leads to; for an edge, itself.
    """

    target: str
    passes_accounts: bool


@dataclass(frozen=True, slots=True)
class ControlRefused:
    """A control message was not taken. `account`: who sent it, as RabbitMQ has checked; empty if it does not say."""

    account: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """This broker's own RabbitMQ has gone, or is there again and set up."""

    there: bool


@dataclass(frozen=True, slots=True)
class RulesSeen:
    """What accounts may publish and subscribe has changed: these rules hold from now on."""

    rules: Rules


@dataclass(frozen=True, slots=True)
class DropCount:
    """Messages dropped from one output queue for one reason; an empty name where the queue is not known."""

    queue: str
    reason: DropReason
    messages: int


@dataclass(frozen=True, slots=True)
class DropsCounted:
    """RabbitMQ has dropped messages since the last such event."""

    counts: tuple[DropCount, ...]


@dataclass(frozen=True, slots=True)
class DropsTended:
    """What an operator wanted with dropped messages is done, or begun; this is the answer."""

    reply_to: ReplyAddress
    reply: DropsReply


@dataclass(frozen=True, slots=True)
class DropsTold:
    """Something came of what an operator wanted: a replay has ended, or kept messages were given up."""

    decision: Decision


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
    | EdgeSampled
    | HeadSampled
    | MarkerBound
    | MarkerPublished
    | FenceArrived
    | AlarmsSeen
    | LinkChecked
    | ControlRefused
    | LinkObserved
    | LinkLimitFits
    | ServerSeen
    | RulesSeen
    | DropsCounted
    | DropsTended
    | DropsTold
    | StopRequested
)


class Agent(Protocol):
    """What a runtime drives."""

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        ...

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant. Called after every step in tests."""
        ...
