"""Clients that were moved into this cluster from another one, and the head they came from.

A client that starts anew asks the head it was configured with. That head knows where the client went (`ledger`) until
it starts anew itself; then the heads that have its clients tell it. Where a subscription came from is written with its
queue (`Subscription.origin`), so it is known here even after all processes were restarted. Invariants:

- a neighbour that begins anew is told all clients of its own that are here, or went on from here; also if there are
  none. Each list is repeated until it is acknowledged, at most `ATTEMPTS_MAX` times, or the neighbour begins anew once
  more. As long as we have just started ourselves, and edges have still to tell us what they hold, it is told that there
  may be more, and then the rest. A head without `publisher_url` names none of the clients it has: they would not find
  it;
- a neighbour that began anew while a client was on its way here is told again once the client has come: it has
  forgotten which clients it had sent;
- a head that has just started gives no new place to a client as long as a neighbour that is there has not told it all:
  the client may be over there;
- a client that has a place in our own cluster is here, whatever a neighbour says. A place that is being removed does
  not count. The neighbour is told so: the client may never have come to it. Once it has noted that, it is told again
  only if our place is another one or if it begins anew: two heads that each have a place made for the other would never
  be silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.balancing.abroad import GUESTS_MAX, Guest, GuestKey, GuestList, GuestsNoted
from tidegate_protocol.decisions import DepartureLearned, GuestsUnheard, GuestsUnheardReason
from tidegate_protocol.messages import Subscription
from tidegate_protocol.names import output_queue

from ...config import ATTEMPTS_MAX
from ...kit.calls import Answer, Calls, Silence
from ...kit.dispatch import Dispatch
from ...kit.subscriptions import Key, key_of
from ...machine import ReplyAddress
from ..context import HeadContext
from ..events import EdgeRead, NeighbourAnew
from ..moving.steps import NewPlace
from ..neighbours import stranger
from ..places.knowledge import Knowledge
from ..places.ledger import RESERVED
from ..registry import Place, client_of, place_of

PART: Final = "guests"
HERE_MAX: Final = 10_000
"""Clients of one neighbour that are remembered to have a place here as well. Beyond that it is not told."""


@dataclass(slots=True)
class _Both:
    """A client that a neighbour has named, with its places here."""

    places: frozenset[Place]
    noted: bool = False
    """Whether the neighbour knows."""


@dataclass(slots=True)
class _Neighbour:
    """What one neighbour was told, and what it is still to be told."""

    anew_s: float = float("-inf")
    """When it last began anew."""
    due: bool = False
    """Whether it is told with the next tick: it has forgotten a client which has come since, or names one that is
    here."""
    more: bool = False
    """Whether we have told it that there may be more."""
    message: GuestList | None = None
    """The list that is under way; None while nothing is."""
    left: Iterator[GuestList] = field(default_factory=lambda: iter(()))
    """The lists that follow it."""
    both: dict[Key, _Both] = field(default_factory=dict)
    """The clients that it has named and that have a place here, by their numbers over there."""


class Guests:
    """Who is here from other clusters, for those clusters; and what they tell us of the same kind."""

    def __init__(self, context: HeadContext, knowledge: Knowledge) -> None:
        self._context = context
        self._knowledge = knowledge
        self._calls = Calls(context, PART, context.config.reply_timeout_s, self._heard)
        self._neighbours = {name: _Neighbour() for name in sorted(context.routes.offers)}

    def register(self, dispatch: Dispatch) -> None:
        self._calls.register(dispatch)
        dispatch.on_event(NeighbourAnew, lambda event: self._began_anew(event.neighbour))
        dispatch.on_event(EdgeRead, lambda event: self._edge_read(event.edge))
        dispatch.ticks.append(self._tick)
        dispatch.checks.append(self.validate)

    # What we tell

    def _began_anew(self, neighbour: str) -> None:
        record = self._neighbours[neighbour]
        record.anew_s = self._context.now
        record.both = {key: both for key, both in record.both.items() if not both.noted}
        self._tell(neighbour)

    def guest_came(self, neighbour: str, since_s: float) -> None:
        """A client has come that this neighbour had asked us at that moment to take."""
        if self._neighbours[neighbour].anew_s >= since_s:
            self._neighbours[neighbour].due = True  # told with the next tick: many may come at once

    def _both_have(self, neighbour: str, subscription: Subscription) -> None:
        """A client has a place here and this one over there."""
        record, key = self._neighbours[neighbour], key_of(subscription)
        places = frozenset(self._context.ledger.places(client_of(subscription)))
        known = record.both.get(key)
        if known is None and len(record.both) >= HERE_MAX:
            return
        if known is None or known.places != places:
            record.both[key] = known = _Both(places)
        record.due |= not known.noted

    def _tell(self, neighbour: str) -> None:
        self._forget(neighbour)
        record = self._neighbours[neighbour]
        record.due, record.more = False, self._knowledge.is_new() and not self._knowledge.all_read
        record.left = self._lists(neighbour, record)
        self._tell_next(neighbour, record)

    def _tell_next(self, neighbour: str, record: _Neighbour) -> None:
        record.message = next(record.left, None)
        if record.message is None:
            self._calls.close(neighbour)
        else:
            self._calls.ask(neighbour, neighbour, record.message)

    def _edge_read(self, edge: str) -> None:
        context = self._context
        subscriptions, offers = context.registry.edges[edge].subscriptions.values(), context.routes.offers
        for client in [client_of(subscription) for subscription in subscriptions]:
            departure = context.ledger.departure(client)
            if departure is not None and departure.place.head in offers and context.ledger.has_place(client):
                self._both_have(departure.place.head, departure.subscription)
        origins = {s.origin for s in subscriptions if s.origin is not None and s.origin in offers}
        for neighbour, record in self._neighbours.items():
            if record.more or neighbour in origins:
                self._tell(neighbour)

    def _tick(self) -> None:
        """Every period: tell who has come. An edge that is still silent now has nothing to tell."""
        for neighbour, record in self._neighbours.items():
            if record.due or (record.more and not self._knowledge.is_new()):
                self._tell(neighbour)

    def _lists(self, neighbour: str, record: _Neighbour) -> Iterator[GuestList]:
        head, guests, all_read = self._context.config.head, self._guests(neighbour), not record.more
        here = [GuestKey(subscriber=key[0], number=key[1]) for key, both in record.both.items() if not both.noted]
        count = max(len(guests), len(here), 1)
        for first in range(0, count, GUESTS_MAX):
            last = first + GUESTS_MAX
            complete = all_read and last >= count
            yield GuestList(
                head=head, guests=tuple(guests[first:last]), complete=complete, here=tuple(here[first:last])
            )

    def _guests(self, neighbour: str) -> list[Guest]:
        """Its clients that are here, and those that went on from here."""
        context, config = self._context, self._context.config
        here = [
            (edge, url, subscription)
            for edge, subscription in context.registry
            if subscription.origin == neighbour
            and context.ledger.state(place_of(edge, subscription)) is not RESERVED
            and (url := context.registry.edges[edge].client_url)
        ]
        if here and not config.publisher_url:
            context.decide(GuestsUnheard(neighbour, GuestsUnheardReason.NO_URL, len(here)))
            here = []
        found = [
            Guest(
                subscription=subscription,
                edge=edge,
                url=url,
                queue=output_queue(subscription.subscriber, subscription.number),
                head=config.head,
                head_url=config.publisher_url,
            )
            for edge, url, subscription in here
        ]
        for departure in context.ledger.departures.values():
            place = departure.place
            if departure.subscription.origin == neighbour and place.head != neighbour:
                guest = Guest(
                    subscription=departure.subscription,
                    edge=place.edge,
                    url=place.url,
                    queue=place.queue,
                    head=place.head,
                    head_url=place.head_url,
                )
                found.append(guest)
        return found

    def _heard(self, neighbour: str, answer: Answer) -> None:
        record = self._neighbours[neighbour]
        if isinstance(answer, GuestsNoted):
            assert record.message is not None
            for told in record.message.here:
                both = record.both.get((told.subscriber, told.number))
                if both is not None:
                    both.noted = True
            self._tell_next(neighbour, record)
        elif isinstance(answer, Silence):
            self._forget(neighbour)  # when it is there again, it begins anew
            if answer is Silence.LATE:
                self._context.decide(GuestsUnheard(neighbour, GuestsUnheardReason.NO_ANSWER, ATTEMPTS_MAX))
        # A neighbour that is starting refuses everything: then it is told again.

    def _forget(self, neighbour: str) -> None:
        self._neighbours[neighbour].message = None
        self._calls.close(neighbour)

    # What we are told

    def noted(self, message: GuestList, reply_to: ReplyAddress | None) -> None:
        context = self._context
        if (unknown := stranger(context, message.head)) is not None:
            context.refuse(reply_to, unknown)
            return
        for guest in message.guests:
            subscription = guest.subscription
            client = client_of(subscription)
            if guest.head == context.config.head:
                continue
            if context.ledger.has_place(client):
                self._both_have(message.head, subscription)
                continue
            place = NewPlace(
                edge=guest.edge,
                number=subscription.number,
                url=guest.url,
                queue=guest.queue,
                head=guest.head,
                heads=(),
                head_url=guest.head_url,
            )
            known = context.ledger.departure(client)
            if known is None:
                context.decide(DepartureLearned(*client, message.head, guest.edge))
            origin = None if known is None else known.subscription.origin
            context.ledger.departed(client, place, subscription.model_copy(update={"origin": origin}))
        if message.complete:
            self._knowledge.neighbour_told(message.head)
        context.reply(reply_to, GuestsNoted(head=context.config.head))

    def validate(self) -> None:
        """Raise AssertionError if a neighbour is not told what it is to be told."""
        for neighbour, record in self._neighbours.items():
            assert (record.message is not None) == (neighbour in self._calls), neighbour
            assert len(record.both) <= HERE_MAX, neighbour
