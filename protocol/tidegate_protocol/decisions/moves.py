"""Decisions about single moves of subscribers: migrations, acceptances by other clusters, and what they left behind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from .base import Decision, Rejected


class MoveOutcome(StrEnum):
    """How the move of one client ended: it moved, or why it stayed."""

    MOVED = "moved"
    CLIENT_STAYED = "client-stayed"
    CLIENT_ABSENT = "client-absent"
    CLIENT_SILENT = "client-silent"
    CLIENT_UNREACHABLE = "client-unreachable"
    END_UNHEARD = "end-unheard"
    GONE = "gone"
    HEAD_STOPPING = "stopping"
    NEVER_CAME = "never-came"
    NEW_TERMS = "new-terms"
    JUST_CAME = "just-came"
    NO_ANSWER = "no-answer"
    NO_MARKERS = "no-markers"
    NO_ROUTE = "no-route"
    PLACE_NOT_READY = "place-not-ready"
    PROCESS_ABSENT = "process-absent"
    RABBITMQ_REFUSED = "rabbitmq-refused"
    REFUSED = "refused"
    SESSION_OVER = "session-over"
    TIME_OUT = "time-out"
    UNDRAINED = "undrained"
    UNFIT = "unfit"
    UNSUBSCRIBED = "unsubscribed"


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why a move can't go on: passed on from the part that notices it until the move ends."""

    outcome: MoveOutcome
    who: tuple[str, ...] = ()
    """The brokers that could not do their part."""
    detail: str = ""
    """Text of RabbitMQ, of a peer or of the client."""
    unfit: Rejected | None = None
    """Where the outcome is `unfit`: why the target can't take it."""


@dataclass(frozen=True, slots=True)
class MigrationEnded(Decision):
    """A subscription was moved from one broker to another, or stayed where it was."""

    kind: ClassVar[str] = "migration-ended"
    labels: ClassVar[type[StrEnum]] = MoveOutcome

    migration: str
    subscriber: str
    pattern: str
    source: str
    target: str
    outcome: MoveOutcome
    who: tuple[str, ...] = ()
    detail: str = ""
    unfit: Rejected | None = None
    unheard: bool = False
    """Whether the client does not say where it is."""

    @property
    def moved(self) -> bool:
        return self.outcome is MoveOutcome.MOVED


@dataclass(frozen=True, slots=True)
class AcceptanceEnded(Decision):
    """A subscription of another cluster came here, or did not. `outcome` `end-unheard`: no head said how it ended, so
    that its place is kept.
    """

    kind: ClassVar[str] = "acceptance-ended"
    labels: ClassVar[type[StrEnum]] = MoveOutcome

    subscriber: str
    pattern: str
    head: str
    """The head that it comes from."""
    edge: str
    outcome: MoveOutcome
    who: tuple[str, ...] = ()
    detail: str = ""
    unfit: Rejected | None = None


@dataclass(frozen=True, slots=True)
class AcceptEndUnheard(Decision):
    """Another head was told how a migration ended and did not answer."""

    kind: ClassVar[str] = "accept-end-unheard"

    head: str
    attempts: int


@dataclass(frozen=True, slots=True)
class MoveBelieved(Decision):
    """A client says that it has moved; this head does not know of the migration and believes it."""

    kind: ClassVar[str] = "move-believed"

    subscriber: str
    pattern: str
    edge: str


@dataclass(frozen=True, slots=True)
class DepartureLearned(Decision):
    """A neighbour says that a client of this head is with it."""

    kind: ClassVar[str] = "departure-learned"

    subscriber: str
    pattern: str
    head: str
    edge: str


@dataclass(frozen=True, slots=True)
class SentAfter(Decision):
    """A client asks where it was before it was moved to another cluster: it is told its new place."""

    kind: ClassVar[str] = "sent-after"

    subscriber: str
    pattern: str
    head: str
    edge: str


class GuestsUnheardReason(StrEnum):
    NO_URL = "no-url"
    NO_ANSWER = "no-answer"


@dataclass(frozen=True, slots=True)
class GuestsUnheard(Decision):
    """A neighbour could not be told which of its clients are here."""

    kind: ClassVar[str] = "guests-unheard"
    labels: ClassVar[type[StrEnum]] = GuestsUnheardReason

    head: str
    reason: GuestsUnheardReason
    count: int
    """Of its clients here, or of attempts."""
