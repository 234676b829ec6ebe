"""What one part of a head finds and others want to know: led by the dispatch, after the part that found it is done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EdgeAbsent:
    """The process of an edge is not there."""

    edge: str


@dataclass(frozen=True, slots=True)
class EdgeRead:
    """The subscriptions of an edge are known for the first time since our start."""

    edge: str


@dataclass(frozen=True, slots=True)
class NeighbourAnew:
    """A neighbour begins anew and has forgotten what it was told."""

    neighbour: str
