"""Decisions about insights: taken, refused, over; and what an edge was told of one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from .base import Decision


@dataclass(frozen=True, slots=True)
class InsightTaken(Decision):
    """An insight that is newer than any other is in force."""

    kind: ClassVar[str] = "insight-taken"

    cluster: str
    pairs: int
    forecasts: int
    capacities: int
    age_s: float
    left_s: float


class InsightRefusal(StrEnum):
    OTHER_CLUSTER = "other-cluster"
    EXPIRED = "expired"
    OLDER = "older"


@dataclass(frozen=True, slots=True)
class InsightRefused(Decision):
    """An insight is not taken."""

    kind: ClassVar[str] = "insight-refused"
    labels: ClassVar[type[StrEnum]] = InsightRefusal

    cluster: str
    reason: InsightRefusal
    pairs: int
    forecasts: int
    capacities: int
    other: str = ""
    """The cluster that it is about."""
    by_s: float | None = None
    """How long ago it expired; how much older it is than the one in force."""


class InsightEnd(StrEnum):
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class InsightOver(Decision):
    """An insight is in force no more, at its head or on an edge."""

    kind: ClassVar[str] = "insight-over"
    labels: ClassVar[type[StrEnum]] = InsightEnd

    broker: str
    reason: InsightEnd


@dataclass(frozen=True, slots=True)
class InsightTold(Decision):
    """An edge was told what of an insight concerns it."""

    kind: ClassVar[str] = "insight-told"

    edge: str
    forecasts: int
    left_s: float
    uplink_bytes_per_s: float | None = None
