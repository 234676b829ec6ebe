"""How migrations into this cluster ended, and the places of clients that may never have come.

The old head of a client says whether the client has come. If it does not say so, the place is kept, because the client
may be using it; a place that no client uses expires by itself. Invariants:

- a place that is kept is removed only if the client, asked through its old head, says that it is elsewhere, or if the
  old head says after all that the client has stayed. No client is moved away from such a place;
- a place that its client never came to is remembered until it is gone, so that the old head can be told;
- two heads that were both restarted may each have a place for one client, and neither remembers that it expected the
  client: such a place is treated as one that was kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing.abroad import AcceptEnd, GuestList
from tidegate_protocol.balancing.places import PlaceReply, PlaceRequest
from tidegate_protocol.decisions import MoveOutcome, WhyNot
from tidegate_protocol.messages import Subscription

from ...kit.calls import Answer, Calls, Silence
from ...kit.dispatch import Dispatch
from ...kit.memory import Recent
from ...kit.subscriptions import Key
from ...machine import ReplyAddress
from ..context import HeadContext
from ..moving.migrations import Migrations
from ..places.ledger import DISCARDED, SPOKEN_FOR
from ..places.removals import Removals
from ..registry import Place
from .guests import Guests

DOUBTS_MAX: Final = 1_000
"""Places kept in doubt about which is asked."""
DOUBT_ATTEMPTS_MAX: Final = 6
ENDED_MAX: Final = 5_000
"""Ended migrations that are remembered, in case a request about one comes late."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A migration that is over, with the places of a client that has not come, or may not have."""

    places: tuple[Place, ...] = ()
    kept: bool = False
    """Whether they are kept, because nobody knows how it ended; otherwise they are being removed."""
    left: tuple[str, int] | None = None
    """Of places that are kept: a client that is served from this edge and number has not come. Where none is named, a
    client that is in another cluster has not."""


class Endings:
    """The migrations into this cluster that are over, by id."""

    def __init__(self, context: HeadContext, removals: Removals, migrations: Migrations, guests: Guests) -> None:
        self._context = context
        self._removals = removals
        self._migrations = migrations
        self._guests = guests
        self._ended: Recent[str, _Ended] = Recent(ENDED_MAX)
        timeout_s = context.config.balancing.migration_timeout_s
        self._calls = Calls(context, "doubt", timeout_s, self._place_told)

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(GuestList, self.on_guests)
        self._calls.register(dispatch)
        dispatch.checks.append(self.validate)

    def __contains__(self, migration: str) -> bool:
        return migration in self._ended

    def ended(self, migration: str, unused: Place | None = None) -> None:
        """A migration is over; `unused` is the place of a client that has not come, which is being removed."""
        self._ended[migration] = _Ended(() if unused is None else (unused,))

    def unheard(self, migration: str, head: str, terms: Subscription, place: Place) -> None:
        """Nobody said how a migration from `head` ended: its place is kept, and its client asked where it is."""
        self._keep(migration, head, terms, place, None)

    def unremoved(self, migration: str) -> str | None:
        """The edge on which a place that nobody came to is still to be removed; None if there is none."""
        registry, ledger = self._context.registry, self._context.ledger
        places = self._ended.get(migration, _Ended()).places
        left = (p[0] for p in places if ledger.state(p) is DISCARDED and registry.get(*p) is not None)
        return next(left, None)

    def stayed(self, message: AcceptEnd) -> bool:
        """A migration is over here, or was never known, and its client has not come. False if that can't be dealt with
        yet: somebody moves the client on from here.
        """
        ended = self._ended.get(message.migration)
        places = self._never_came(message) if ended is None else ended.places
        if ended is not None and not ended.kept:
            return True
        return self._give_up(message.migration, places)

    def _give_up(self, migration: str, places: tuple[Place, ...]) -> bool:
        """Nobody came to these places: remove them. False as long as somebody moves a client away from one: after a
        restart we took such a place for the client's own, and may have begun to.
        """
        if not all(self._migrations.vacate(place, WhyNot(MoveOutcome.NEVER_CAME)) for place in places):
            return False
        for place in places:
            self._removals.discard(place)
        self._ended[migration] = _Ended(places)
        return True

    def _never_came(self, message: AcceptEnd) -> tuple[Place, ...]:
        """What was made before we were started, for a client that has stayed where it was. Without a number, whatever
        nobody uses is meant.
        """
        if message.edge is None or message.subscriber is None or message.pattern is None:
            return ()
        ledger = self._context.ledger
        places = ledger.places((message.subscriber, message.pattern))
        meant = [p for p in places if p[0] == message.edge and message.number in (None, p[1][1])]
        return tuple(place for place in meant if ledger.state(place) not in SPOKEN_FOR)

    # Places in doubt

    def on_guests(self, message: GuestList, reply_to: ReplyAddress | None) -> None:
        """A neighbour names our clients that it has, and the clients of its own that it has too."""
        for key in message.here if message.head in self._context.routes.offers else ():
            self.guest_in_doubt(message.head, (key.subscriber, key.number))
        self._guests.noted(message, reply_to)

    def guest_in_doubt(self, head: str, key: Key) -> None:
        """Both we and the head that says so have a place of this client."""
        context = self._context
        for edge in context.registry.holders(key):
            place, known = (edge, key), context.registry.get(edge, key)
            if known is None or known.origin != head or known.origin_edge is None or known.origin_number is None:
                continue
            name = f"guest {edge} {key[0]} {key[1]}"
            known_of = name in self._calls or context.ledger.state(place) in SPOKEN_FOR
            if not known_of and len(self._calls) < DOUBTS_MAX:
                self._keep(name, head, known, place, (known.origin_edge, known.origin_number))

    def _keep(self, name: str, head: str, terms: Subscription, place: Place, left: tuple[str, int] | None) -> None:
        if len(self._calls) < DOUBTS_MAX:
            question = PlaceRequest(subscriber=terms.subscriber, pattern=terms.pattern)
            self._calls.ask(name, head, question, attempts_max=DOUBT_ATTEMPTS_MAX)
        self._ended[name] = _Ended((place,), kept=True, left=left)

    def _place_told(self, name: str, answer: Answer) -> None:
        """The client is somewhere else for certain, or we are no wiser than before and ask again."""
        ended = self._ended.get(name, _Ended())
        if answer is Silence.LATE:
            self._calls.close(name)
        if not isinstance(answer, PlaceReply) or answer.edge is None or answer.migration is not None:
            return
        here = answer.edge in self._context.registry.edges
        elsewhere = not here if ended.left is None else ended.left == (answer.edge, answer.number)
        if not (elsewhere and ended.kept) or self._give_up(name, ended.places):
            self._calls.close(name)

    def validate(self) -> None:
        """Raise AssertionError if more is remembered than may be."""
        self._ended.validate()
        assert len(self._calls) <= DOUBTS_MAX
