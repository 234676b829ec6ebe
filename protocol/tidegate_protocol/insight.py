"""What analytics has learned, on its way back to the agents: correlated topics, rate forecasts, capacities.

    operator → head   insight         of one cluster; answered with insight-taken, or a refusal that says why
    head     → edge   edge-insight    what of it concerns that edge; whole each time, unanswered

An insight is advice from outside and may be wrong, stale or forged; an agent bounds what it can do
(`tidegate_agents.head.insights`). It carries the time by the clock of its maker, which orders insights, and its age
when it was sent, which says how long it is still good for: clocks of different machines are never compared.

The sender leaves out what does not fit into one message, the weakest pairs first.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from .decisions import AnyDecision, UnknownDecision
from .parts import Message, Name, Part, Pattern, Text, Topic

PAIRS_MAX: Final = 2_000
FORECASTS_MAX: Final = 2_000
CAPACITIES_MAX: Final = 256
UNUSED_TOLD_MAX: Final = 16
VALID_US_MAX: Final = 7 * 24 * 3600 * 1_000_000
RATE_PER_S_MAX: Final = 1e9
"""Messages per second; more is no rate of a topic but a mistake."""
UPLINK_BYTES_PER_S_MAX: Final = 1e13

Micros = Annotated[int, Field(ge=0, le=1 << 53)]
Rate = Annotated[float, Field(ge=0, le=RATE_PER_S_MAX)]
Uplink = Annotated[float, Field(gt=0, le=UPLINK_BYTES_PER_S_MAX)]
ValidUs = Annotated[int, Field(gt=0, le=VALID_US_MAX)]


class CorrelatedPair(Part):
    """Two topics whose rates rise together."""

    topic_a: Topic
    topic_b: Topic
    coefficient: Annotated[float, Field(gt=0, le=1)]


class RateForecast(Part):
    """What a topic's rate is expected to be: `level_per_s` at `made_at_us`, changing by `trend_per_s` every second."""

    topic: Topic
    level_per_s: Rate
    trend_per_s: Annotated[float, Field(ge=-RATE_PER_S_MAX, le=RATE_PER_S_MAX)] = 0.0
    error_per_s: Rate
    """The root mean square of what such forecasts were off by."""
    horizon_us: ValidUs
    """For how long after `made_at_us` it holds."""


class EdgeUplink(Part):
    """What the uplink of an edge was seen to carry while messages waited."""

    edge: Name
    uplink_bytes_per_s: Uplink


class Insight(Message):
    kind: Literal["insight"] = "insight"
    cluster: Name
    made_at_us: Micros
    """Microseconds since 1970 by the clock of its maker. A newer one replaces an older one, never the reverse."""
    age_us: Micros = 0
    """How long ago that was when it was sent."""
    valid_for_us: ValidUs
    """How long after `made_at_us` it expires."""
    withdraws: bool = False
    """Instead of telling anything: forget the one in force."""
    pairs: Annotated[tuple[CorrelatedPair, ...], Field(max_length=PAIRS_MAX)] = ()
    """Strongest first."""
    forecasts: Annotated[tuple[RateForecast, ...], Field(max_length=FORECASTS_MAX)] = ()
    capacities: Annotated[tuple[EdgeUplink, ...], Field(max_length=CAPACITIES_MAX)] = ()


class UnusedReason(StrEnum):
    NO_SUCH_EDGE = "no-such-edge"
    CONFIGURED = "configured"
    HORIZON_PASSED = "horizon-passed"


class Unused(Part):
    """A part of an insight that is not, or not now, of any use: the uplink of an edge, or the forecast of a topic."""

    name: Text
    reason: UnusedReason


class InsightReply(Message):
    """The insight is in force, or was so already, or has been withdrawn."""

    kind: Literal["insight-taken"] = "insight-taken"
    cluster: Name
    head: Name
    made_at_us: Micros
    left_us: Micros
    """For how long it holds; 0 if it was withdrawn."""
    repeated: bool = False
    pairs: int = 0
    forecasts: int = 0
    capacities: int = 0
    """How many of each are kept."""
    unused: Annotated[tuple[Unused, ...], Field(max_length=UNUSED_TOLD_MAX)] = ()


class InsightState(Part):
    """The insight in force, as operators are told."""

    made_at_us: Micros
    age_us: Micros
    left_us: Micros
    pairs: int = 0
    forecasts: int = 0
    capacities: int = 0
    placements: int = 0
    """Placements that would have been others without it."""
    refused: int = 0
    """Insights that were refused since the head was started."""
    last_refusal: AnyDecision = UnknownDecision()


class PatternForecast(Part):
    """What is expected of all topics of a pattern together, from the moment it is told on, for `left_us`."""

    pattern: Pattern
    level_per_s: Rate
    trend_per_s: float = 0.0
    left_us: Micros


class EdgeInsight(Message):
    """What holds from now on for one edge; empty where nothing does any more."""

    kind: Literal["edge-insight"] = "edge-insight"
    head: Name
    incarnation: Annotated[int, Field(ge=0)]
    number: Annotated[int, Field(ge=0)]
    """Of the head's run, and of the message in it: what is older has been overtaken."""
    made_at_us: Micros
    left_us: Micros
    forecasts: Annotated[tuple[PatternForecast, ...], Field(max_length=FORECASTS_MAX)] = ()
    """Less what such forecasts are usually off by."""
    uplink_bytes_per_s: Uplink | None = None


InsightMessage = Insight | InsightReply | EdgeInsight
"""The part of the union `messages.ControlMessage` that this module defines."""
