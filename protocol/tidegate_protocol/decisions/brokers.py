"""Decisions about brokers: who is there, what their registries hold, draining, pausing, what was refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ..parts import RefusalReason
from .base import Decision, Rejected


class Presence(StrEnum):
    """Whether a broker is there, and how it is known."""

    HEARD = "heard"
    GOODBYE = "goodbye"
    NO_ANSWER = "no-answer"
    PROCESS_ABSENT = "process-absent"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class EdgePresence(Decision):
    """An edge is there, or is not."""

    kind: ClassVar[str] = "edge-presence"
    labels: ClassVar[type[StrEnum]] = Presence

    edge: str
    reason: Presence

    @property
    def alive(self) -> bool:
        return self.reason is Presence.HEARD


@dataclass(frozen=True, slots=True)
class NeighbourPresence(Decision):
    """A neighbouring head is there, or is not."""

    kind: ClassVar[str] = "neighbour-presence"
    labels: ClassVar[type[StrEnum]] = Presence

    head: str
    reason: Presence

    @property
    def alive(self) -> bool:
        return self.reason is Presence.HEARD


@dataclass(frozen=True, slots=True)
class EdgeForgotten(Decision):
    """An edge has been silent for so long that its head forgets it."""

    kind: ClassVar[str] = "edge-forgotten"

    edge: str
    silent_s: float


class RegistryOutcome(StrEnum):
    READ = "read"
    TOO_MANY = "too-many"
    """More than `subscriptions_max`."""
    WRONG_ANSWER = "wrong-answer"
    NO_ANSWER = "no-answer"
    PROCESS_ABSENT = "process-absent"


@dataclass(frozen=True, slots=True)
class RegistryRead(Decision):
    """An edge's digest differed from what its head knows, so that its registry was read anew; or could not be read."""

    kind: ClassVar[str] = "registry-read"
    labels: ClassVar[type[StrEnum]] = RegistryOutcome

    edge: str
    outcome: RegistryOutcome
    listed: int = 0
    added: int = 0
    removed: int = 0
    orphans: int = 0
    """Queues without a subscription of ours, which are removed."""


@dataclass(frozen=True, slots=True)
class HelloRefused(Decision):
    """A head does not take an edge as its own."""

    kind: ClassVar[str] = "hello-refused"
    labels: ClassVar[type[StrEnum]] = RefusalReason

    edge: str
    reason: RefusalReason
    detail: str


class RoutesRefusal(StrEnum):
    LIMIT = "limit"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RoutesRefused(Decision):
    """A neighbour does not take the patterns that are needed here."""

    kind: ClassVar[str] = "routes-refused"
    labels: ClassVar[type[StrEnum]] = RoutesRefusal

    head: str
    reason: RoutesRefusal
    offered: int
    detail: str


@dataclass(frozen=True, slots=True)
class ActionRefused(Decision):
    """RabbitMQ refused for good what was to be done."""

    kind: ClassVar[str] = "action-failed"

    action: str
    """The name of the action's class."""
    detail: str


class DrainOrder(StrEnum):
    DRAIN = "drain"
    UNDRAIN = "undrain"


@dataclass(frozen=True, slots=True)
class DrainOrdered(Decision):
    """An operator has an edge emptied, or used again."""

    kind: ClassVar[str] = "drain"
    labels: ClassVar[type[StrEnum]] = DrainOrder

    edge: str
    reason: DrainOrder


@dataclass(frozen=True, slots=True)
class Drained(Decision):
    """Nothing is left on an edge that is drained."""

    kind: ClassVar[str] = "drained"

    edge: str


@dataclass(frozen=True, slots=True)
class DrainWaits(Decision):
    """No edge can take a subscription that is to leave an edge."""

    kind: ClassVar[str] = "drain-waits"

    edge: str
    pattern: str
    rejected: tuple[Rejected, ...] = ()


class BalancingSwitch(StrEnum):
    PAUSED = "paused"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True)
class BalancingSwitched(Decision):
    """An operator switched balancing off or on in a cluster."""

    kind: ClassVar[str] = "balancing-switched"
    labels: ClassVar[type[StrEnum]] = BalancingSwitch

    cluster: str
    outcome: BalancingSwitch


class AccountsOutcome(StrEnum):
    ALLOWED = "allowed"
    WITHHELD = "withheld"


@dataclass(frozen=True, slots=True)
class AccountsAllowed(Decision):
    """A head lets publishers name their accounts, as all links pass them on, or does not any more."""

    kind: ClassVar[str] = "accounts-allowed"
    labels: ClassVar[type[StrEnum]] = AccountsOutcome

    head: str
    outcome: AccountsOutcome
    stopping: tuple[str, ...] = ()
    """Where the links lead to that do not pass accounts on, as far as this head knows."""


class ControlRefusal(StrEnum):
    """Why a control message was not taken."""

    NOT_YOURS = "not-yours"
    DEAD_LETTERED = "dead-lettered"
    COPIED = "copied"
    UNREADABLE_HEADERS = "unreadable-headers"
    WRONG_KEY = "wrong-key"
    KIND_NOT_ALLOWED = "kind-not-allowed"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class AccountRefused(Decision):
    """An account sent control messages that are not its to send, or sent them by a detour; none was obeyed."""

    kind: ClassVar[str] = "account-refused"
    labels: ClassVar[type[StrEnum]] = ControlRefusal

    account: str
    """As RabbitMQ has checked; empty if the messages do not name one."""
    reason: ControlRefusal
    messages: int
    """How many there were so far."""
    detail: str
    """What was said of the last one."""
