"""Decisions about publishers: moved between heads, expected from others, contained where they flood."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from ..parts import Metric
from .base import Cause, Decision, Effect, Rejected
from .sessions import PlanOutcome, SessionOutcome


@dataclass(frozen=True, slots=True)
class PublisherSession(Decision):
    """An overloaded head asks its neighbours to take publishers."""

    kind: ClassVar[str] = "publisher-session"
    labels: ClassVar[type[StrEnum]] = Metric

    head: str
    causes: Annotated[tuple[Cause, ...], Field(min_length=1)]
    """Worst first; there is one at least, which `reason` tells."""

    @property
    def reason(self) -> Metric:
        return self.causes[0].metric


@dataclass(frozen=True, slots=True)
class PublisherMove:
    """A publisher, and the head that it is to go to."""

    publisher: str
    target: str


@dataclass(frozen=True, slots=True)
class PublisherPlan(Decision):
    """A head has decided which publishers are to go where, or that none can."""

    kind: ClassVar[str] = "publisher-plan"
    labels: ClassVar[type[StrEnum]] = PlanOutcome

    head: str
    outcome: PlanOutcome
    moves: tuple[PublisherMove, ...]
    effects: tuple[Effect, ...] = ()
    rejected: tuple[Rejected, ...] = ()


class PublisherOutcome(StrEnum):
    """How the move of one publisher ended: it publishes at the new head, or why it stayed."""

    MOVED = "moved"
    STAYED = "stayed"
    ABSENT = "client-absent"
    NO_ANSWER = "no-answer"
    NOT_PAUSED = "not-paused"
    NO_FENCE = "no-fence"
    NO_ROUTE = "no-route"
    PROCESS_ABSENT = "process-absent"
    RABBITMQ_REFUSED = "rabbitmq-refused"
    REFUSED = "refused"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class PublisherMoveEnded(Decision):
    """A publisher was moved to another head, or stayed."""

    kind: ClassVar[str] = "publisher-move-ended"
    labels: ClassVar[type[StrEnum]] = PublisherOutcome

    publisher: str
    source: str
    target: str
    outcome: PublisherOutcome
    who: str = ""
    """The party that did not do its part: the publisher or the target."""
    detail: str = ""
    unheard: bool = False
    """Whether the publisher did not say how it went on."""

    @property
    def moved(self) -> bool:
        return self.outcome is PublisherOutcome.MOVED


@dataclass(frozen=True, slots=True)
class PublisherSessionEnded(Decision):
    """A head's session is over."""

    kind: ClassVar[str] = "publisher-session-ended"
    labels: ClassVar[type[StrEnum]] = SessionOutcome

    head: str
    outcome: SessionOutcome
    moved: int
    failed: int
    duration_s: float
    retry_after_s: float | None = None
    """Where no publisher moved: when the next session may begin."""


@dataclass(frozen=True, slots=True)
class PublisherExpected(Decision):
    """An overloaded neighbour sends a publisher, and this head watches for its fence."""

    kind: ClassVar[str] = "publisher-expected"

    publisher: str
    head: str


class ExpectationOutcome(StrEnum):
    FENCE_SEEN = "fence-seen"
    HEAD_ABSENT = "head-absent"
    NO_ANSWER = "no-answer"
    NO_FENCE = "no-fence"


@dataclass(frozen=True, slots=True)
class ExpectationEnded(Decision):
    """A publisher is expected no more: its fence was seen and its old head knows, or something failed."""

    kind: ClassVar[str] = "publisher-expectation-ended"
    labels: ClassVar[type[StrEnum]] = ExpectationOutcome

    publisher: str
    head: str
    outcome: ExpectationOutcome


class Flood(StrEnum):
    """Which limit is passed."""

    MESSAGES = "messages"
    BYTES = "bytes"
    USELESS = "useless"


@dataclass(frozen=True, slots=True)
class FloodingPublisher(Decision):
    """A publisher is above a limit: it is asked to slow down or, if it did not, disconnected."""

    kind: ClassVar[str] = "flooding-publisher"
    labels: ClassVar[type[StrEnum]] = Flood

    publisher: str
    reason: Flood
    disconnected: bool
    value_per_s: float
    limit_per_s: float
    allowed_messages_per_s: float
    containment_s: float
    samples: int
    """How many samples above the limit led to this."""
    topics: tuple[str, ...] = ()
    """Where most of it is published."""


@dataclass(frozen=True, slots=True)
class PublisherBehaves(Decision):
    """A publisher that was asked to slow down has kept to the limits since."""

    kind: ClassVar[str] = "publisher-behaves"

    publisher: str
    containment_s: float


@dataclass(frozen=True, slots=True)
class PublishersFull(Decision):
    """A head follows as many streams as it can: the ones of this publisher that are new are not followed."""

    kind: ClassVar[str] = "publishers-full"

    publisher: str
    streams_max: int
