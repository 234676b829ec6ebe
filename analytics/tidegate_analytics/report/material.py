"""What a report is made of, as plain data: bounded, and with nothing left to work out but places on paper.

Times are microseconds since 1970. What is not known is None. Knows neither Spark nor how anything is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

US: Final = 1_000_000
STATES: Final = ("N/A", "LOW", "HIGH", "OVERLOAD")
"""States by their weight: of a window the heaviest is shown."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time that is shown, and the windows it is cut into."""

    start_us: int
    end_us: int
    window_s: int
    """Of what brokers sample."""
    detail_s: int
    """Of what clients report, which they do less often."""

    @property
    def seconds(self) -> float:
        return (self.end_us - self.start_us) / US

    def after_s(self, at_us: float) -> float:
        """Seconds since the start."""
        return (at_us - self.start_us) / US


class LoadPoint(NamedTuple):
    """One broker in one window."""

    at_us: int
    uplink: float
    """The mean of what the uplink was asked for, as a share of what it carries."""
    state: str


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    cluster: str
    broker: str
    points: tuple[LoadPoint, ...]

    @property
    def highest(self) -> LoadPoint:
        return max(self.points, key=lambda point: point.uplink)

    def share_of(self, state: str) -> float:
        """In which share of its windows it was in that state."""
        return sum(point.state == state for point in self.points) / len(self.points)


class QueuePoint(NamedTuple):
    at_us: int
    depth: float
    threshold: float
    broker: str


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """One subscription: what waited for it and what might have."""

    subscriber: str
    pattern: str
    deadline_us: int
    nearest: float
    """The largest depth ÷ threshold; above 1 it was past."""
    points: tuple[QueuePoint, ...]


class LatenessPoint(NamedTuple):
    at_us: int
    received: int
    late: int
    p99_us: float | None


@dataclass(frozen=True, slots=True)
class TopicLateness:
    """All subscriptions of one pattern together."""

    cluster: str
    pattern: str
    deadline_us: int
    """The strictest of theirs."""
    received: int
    late: int
    points: tuple[LatenessPoint, ...]

    @property
    def late_share(self) -> float:
        return self.late / self.received if self.received else 0.0


@dataclass(frozen=True, slots=True)
class Session:
    session: str
    source: str
    clients: str
    policy: str
    began_us: int
    ended_us: int | None
    necessary: bool | None
    moved: int
    failed: int


@dataclass(frozen=True, slots=True)
class Move:
    """Clients of one topic that went from one broker to another in one session."""

    session: str
    source: str
    target: str
    pattern: str
    began_us: int
    ended_us: int
    moved: int
    failed: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """One metric of one broker after one session. A share of 1."""

    session: str
    broker: str
    metric: str
    side: str
    predicted: float
    measured: float


@dataclass(frozen=True, slots=True)
class MetricError:
    """How wrong the predictions of one metric were, on one side."""

    metric: str
    side: str
    predictions: int
    measured: int
    error_mean: float | None
    error_absolute_mean: float | None
    error_absolute_max: float | None


@dataclass(frozen=True, slots=True)
class Correlations:
    """The busiest topics: how their rates go together."""

    topics: tuple[str, ...]
    coefficients: tuple[tuple[float | None, ...], ...]
    """Row by row; None where a rate hardly changes."""
    told: frozenset[tuple[str, str]]
    """The pairs, in order, that neither chance nor drift can explain: those of the job `correlation`."""
    windows: int
    window_s: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over everything in the span, whatever is drawn of it."""

    records: int = 0
    refused: int = 0
    subscriptions: int = 0
    topics: int = 0
    received: int = 0
    late: int = 0
    lost: int = 0
    """Messages that subscriptions still miss."""
    duplicates: int = 0
    sessions: int = 0
    """Asked for."""
    sessions_moving: int = 0
    """In which somebody moved."""
    unnecessary: int = 0
    moves: int = 0
    moves_failed: int = 0
    returns: int = 0
    edges: int = 0
    policies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Material:
    """All of a report."""

    span: Span
    totals: Totals
    loads: tuple[BrokerLoad, ...] = ()
    queues: tuple[QueueDepth, ...] = ()
    topics: tuple[TopicLateness, ...] = ()
    sessions: tuple[Session, ...] = ()
    moves: tuple[Move, ...] = ()
    predictions: tuple[Predicted, ...] = ()
    errors: tuple[MetricError, ...] = ()
    correlations: Correlations | None = None
    clusters: tuple[str, ...] = field(default=())
