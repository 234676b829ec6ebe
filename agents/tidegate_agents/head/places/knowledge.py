"""What a head that has started does not know yet, and whether it knows enough about a client to act.

A head's knowledge is soft. After a start its edges have still to tell which places they hold, and its neighbours which
of our clients they took over. An edge may hold something that its client has still to collect. A head that acts without
knowing gives a client two places, or leaves one behind for which nobody will ask. `gap` is the one answer, with its
reason, for every act that could do such harm. What must be known differs:

| act | the edges | the neighbours | the client |
| --- | --- | --- | --- |
| PLACE: give it a new place | those that may hold its pattern have told, or the first seconds are over | the same | |
| END: forget that it has a place | all have told | | |
| SEND_AWAY: move it to another cluster | those that may hold its pattern have told | | has collected all |

An edge is *unread* until it has told, since our start, what it holds; it is *unheard of* as long as we can't tell
whether there is an edge of that name. Invariant: an unread edge that we do hear of is waited for longer than a silent
edge: what it holds is there to be had, and only its answers are late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate_protocol.decisions import Rejected, Rejection

from ...kit.dispatch import Dispatch
from ...machine import Started
from ..neighbours import Neighbours
from ..registry import Client
from .ledger import ABANDONED

if TYPE_CHECKING:
    from ..context import HeadContext

PATIENT_GRACES: Final = 6
"""For how many times `adopt_grace_s` an edge is waited for that is there and has not told yet what it holds."""


@dataclass(frozen=True, slots=True)
class Act:
    """What must be known before something is done with a client."""

    for_good: bool
    """Whether edges are waited for until they have told, and not in the first seconds only."""
    any_pattern: bool = False
    """Whether edges count that can't hold the client's pattern."""
    neighbours: bool = False
    collected: bool = False


PLACE: Final = Act(for_good=False, neighbours=True)
END: Final = Act(for_good=True, any_pattern=True)
SEND_AWAY: Final = Act(for_good=True, collected=True)


class Knowledge:
    """What one head does not know yet."""

    def __init__(self, context: HeadContext, neighbours: Neighbours) -> None:
        self._context = context
        self._neighbours = neighbours
        self._started_s = 0.0
        self._told: set[str] = set()
        """Neighbours that have told, since our start, which of our clients they have."""

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(Started, self._start)

    def _start(self, _: Started) -> None:
        self._started_s = self._context.now

    def neighbour_told(self, neighbour: str) -> None:
        """This neighbour has told all."""
        self._told.add(neighbour)

    def is_new(self, graces: int = 1) -> bool:
        """Whether we have just started, so that edges and neighbours may still have to tell what they hold."""
        return self._context.now - self._started_s < graces * self._context.config.adopt_grace_s

    def is_unheard(self, edge: str) -> bool:
        """Whether we have just started and can't tell yet whether this edge is ours."""
        return edge not in self._context.registry.edges and self.is_new()

    def is_unread(self, edge: str) -> bool:
        """Whether this edge of ours has not told since our start what it holds, so that it may hold anything."""
        edges = self._context.registry.edges
        return edge in edges and not edges[edge].settled

    @property
    def all_read(self) -> bool:
        """Whether every edge that we know of has told what it holds."""
        return all(record.settled for record in self._context.registry.edges.values())

    def gap(self, act: Act, client: Client) -> Rejected | None:
        """Why this can't be done with this client yet, and which edge or neighbour (`other`) is waited for; None if
        enough is known.
        """
        context = self._context
        for place in context.ledger.places_in(client, ABANDONED) if act.collected else ():
            return Rejected(client[0], Rejection.UNCOLLECTED, other=place[0])
        for name in sorted(context.registry.edges):
            record = context.registry.edges[name]
            if record.settled or not (act.for_good or self.is_new(PATIENT_GRACES if record.alive else 1)):
                continue
            if act.any_pattern or record.listed or context.routes.is_carried(name, client[1]):
                return Rejected(client[0], Rejection.EDGE_UNREAD, other=name)
        for name in sorted(self._neighbours.present()) if act.neighbours and self.is_new() else ():
            if name not in self._told:
                return Rejected(client[0], Rejection.NEIGHBOUR_UNHEARD, other=name)
        return None
