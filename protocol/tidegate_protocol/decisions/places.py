"""Decisions about places: which edge a subscription goes to, which place its client uses, which are removed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from .base import Decision, Rejected


class PlacementReason(StrEnum):
    """Which rule decided."""

    ONLY_EDGE = "only-edge"
    SAME_PATTERN = "same-pattern"
    APART_FROM_CORRELATED = "apart-from-correlated"
    """Without what is known of correlations another edge would have been chosen."""
    MOST_CAPACITY_LEFT = "most-capacity-left"
    NEAR_TIE_FASTER = "near-tie-faster"
    FEWEST_SUBSCRIPTIONS = "fewest-subscriptions"
    ENTRY_BROKER = "entry-broker"
    BY_LOT = "by-lot"
    NO_EDGE = "no-edge"


@dataclass(frozen=True, slots=True)
class EdgeScore:
    """An edge that was compared with others, with what of it was known."""

    edge: str
    subscriptions: int | None = None
    left_bytes_per_s: float | None = None
    utilization: float | None = None
    """The highest of any metric after the placement."""
    correlated_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class UplinkHint:
    """What the uplink of an edge carries, by an insight."""

    edge: str
    uplink_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Advice:
    """What an insight had to do with a placement."""

    age_s: float
    coefficient: float | None = None
    """The strongest correlation with something that an edge holds."""
    uplinks: tuple[UplinkHint, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed(Decision):
    """Which edge a subscription goes to; none if no edge can take it."""

    kind: ClassVar[str] = "placement"
    labels: ClassVar[type[StrEnum]] = PlacementReason

    pattern: str
    reason: PlacementReason
    edge: str = ""
    subscriber: str = ""
    """Where no edge can take it: whose."""
    scores: tuple[EdgeScore, ...] = ()
    advice: Advice | None = None
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class PlaceSettled(Decision):
    """A client has several places and says which it uses: the others are abandoned."""

    kind: ClassVar[str] = "place-settled"

    subscriber: str
    pattern: str
    edge: str
    left: tuple[str, ...]
    """The edges of the other places."""


@dataclass(frozen=True, slots=True)
class PlaceAbandoned(Decision):
    """A client can't reach an edge that is away and was given another place."""

    kind: ClassVar[str] = "place-abandoned"

    subscriber: str
    pattern: str
    edge: str


@dataclass(frozen=True, slots=True)
class Removed(Decision):
    """An edge has deleted the queue of a subscription."""

    kind: ClassVar[str] = "removal"

    subscriber: str
    number: int
    edge: str


class CollectionOutcome(StrEnum):
    COLLECTED = "collected"
    CLIENT_ABSENT = "client-absent"
    CLIENT_REFUSED = "client-refused"
    NOT_BOUND = "not-bound"
    NOT_TAKEN = "not-taken"
    RABBITMQ_REFUSED = "rabbitmq-refused"
    TIME_OUT = "time-out"


@dataclass(frozen=True, slots=True)
class CollectionEnded(Decision):
    """A client has taken what waited in a place that it left, or could not this time."""

    kind: ClassVar[str] = "collection-ended"
    labels: ClassVar[type[StrEnum]] = CollectionOutcome

    collection: str
    subscriber: str
    pattern: str
    edge: str
    outcome: CollectionOutcome
    detail: str = ""


class OutputOutcome(StrEnum):
    ADOPTED = "adopted"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class OutputListed(Decision):
    """RabbitMQ lists an output queue that its edge did not know, or lists one no more: expired, or deleted."""

    kind: ClassVar[str] = "output-listed"
    labels: ClassVar[type[StrEnum]] = OutputOutcome

    queue: str
    outcome: OutputOutcome
