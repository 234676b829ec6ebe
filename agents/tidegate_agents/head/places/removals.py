"""Ending subscriptions: asking an edge to delete an output queue until it says that it is gone.

A subscription stays in the registry, and its route bound, until its edge has confirmed. If the edge can't be reached,
the client that asked is told to ask again, and nothing has changed. A queue that is gone already counts as removed, so
a repeated request gets the same answer.

A *discarded* place (`ledger`) is removed again and again until it is gone, also after its edge was away: what a client
left when it moved, or what was made for it in vain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.decisions import Removed, SubscriptionRevoked
from tidegate_protocol.messages import (
    OutputRemove,
    OutputRemoved,
    Subscription,
    UnsubscribeReply,
    UnsubscribeRequest,
)
from tidegate_protocol.rendering import refusals
from tidegate_protocol.rights import may_subscribe

from ...kit.answers import rejected_for
from ...kit.calls import Answer, Calls, Silence
from ...kit.dispatch import Dispatch
from ...kit.outbox import joined
from ...kit.subscriptions import Key
from ...machine import ReplyAddress
from ..context import HeadContext
from ..events import EdgeAbsent
from ..registry import Place, client_of, place_of
from .ledger import DISCARDED, PROMISED, USED, Operation

PART: Final = "remove"
NEVER_S: Final = float("-inf")


@dataclass(slots=True)
class _Removal:
    place: Place
    replies: list[ReplyAddress] = field(default_factory=list)


class Removals:
    """The removals under way, by edge and subscription."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        self._calls = Calls(context, PART, context.config.reply_timeout_s, self._heard)
        self._pending: dict[str, _Removal] = {}

    def register(self, dispatch: Dispatch) -> None:
        self._calls.register(dispatch)
        dispatch.ticks.append(self.tick)
        dispatch.checks.append(self.validate)

    # Discarded places

    def discard(self, place: Place) -> None:
        """Nobody uses this place: remove it, now or when its edge is back."""
        self._context.ledger.discard(place)
        self.remove(place)

    def remove_orphan(self, edge: str, subscription: Subscription) -> bool:
        """Remove a place that an edge has listed, if it is known that nobody uses it, or nobody may."""
        ledger, place = self._context.ledger, place_of(edge, subscription)
        unused = ledger.state(place) is DISCARDED or ledger.removed_s(place) > NEVER_S
        # Of a client that has left nobody is there to be told, unless it has come back since.
        unused |= self._context.registry.get(*place) is None and ledger.has_left(client_of(subscription))
        judgement = may_subscribe(*client_of(subscription), self._context.rules)
        if not judgement.allowed:
            self._context.decide(SubscriptionRevoked(*client_of(subscription), edge, judgement.verdict))
        if unused or not judgement.allowed:
            self.remove(place)
        return unused or not judgement.allowed

    def tick(self) -> None:
        """Every period: try again what could not be removed before."""
        ledger, registry = self._context.ledger, self._context.registry
        ledger.forget_gone()
        for place in ledger.all_in(DISCARDED):
            listed = registry.get(*place) is not None and registry.edges[place[0]].alive
            if listed and not ledger.runs(Operation.REMOVAL, place):
                self.remove(place)

    def unsubscribe(self, message: UnsubscribeRequest, reply_to: ReplyAddress | None) -> None:
        context, places = self._context, self._places_of(message)
        for pattern in self.patterns_of(message):
            context.ledger.left((message.subscriber, pattern))
        if not places:
            context.reply(reply_to, UnsubscribeReply(subscriber=message.subscriber, number=message.number))
            return
        limit = context.config.pending_max
        if len(self._pending) + len(places) > limit:
            context.refuse(reply_to, refusals.limit("pending_max", limit), context.config.period_s)
            return
        for place in places[1:]:
            self.discard(place)
        self.remove(places[0], reply_to)

    def patterns_of(self, message: UnsubscribeRequest) -> list[str]:
        """What the subscription that a client wants to end is for, as far as it says or we know."""
        registry, meant = self._context.registry, self._meant((message.subscriber, message.number))
        found = {s.pattern for place in meant if (s := registry.get(*place)) is not None}
        return sorted(found if found or message.pattern is None else {message.pattern})

    def _meant(self, key: Key) -> list[Place]:
        """Two edges may use one number for different patterns after a restart: the one we granted is meant."""
        named = [(edge, key) for edge in self._context.registry.holders(key)]
        return [place for place in named if self._context.ledger.state(place) is USED] or named

    def _places_of(self, message: UnsubscribeRequest) -> list[Place]:
        """All places of the subscription that a client knows under this number; first the one it means.

        If that is gone already, the request may be an old one: then only those are left that nobody was told to use.
        """
        ledger, subscriber = self._context.ledger, message.subscriber
        meant, patterns = self._meant((subscriber, message.number)), self.patterns_of(message)
        others = [place for pattern in patterns for place in ledger.places((subscriber, pattern))]
        if not meant and not self._is_current(message, patterns):
            others = [place for place in others if ledger.state(place) not in PROMISED]
        return [*meant, *(place for place in others if place not in meant)]

    def _is_current(self, message: UnsubscribeRequest, patterns: list[str]) -> bool:
        """Whether we took away lately what the client calls its place, and have told it of no other since: it had moved
        there, and we had given the move up.
        """
        context, key = self._context, (message.subscriber, message.number)
        removed_s = max((context.ledger.removed_s((edge, key)) for edge in context.registry.edges), default=NEVER_S)
        return removed_s > NEVER_S and not any(context.ledger.was_told((key[0], p), removed_s) for p in patterns)

    def remove(self, place: Place, reply_to: ReplyAddress | None = None) -> None:
        """Have its edge delete this output queue."""
        edge, (subscriber, number) = place
        subject = f"{edge} {subscriber} {number}"
        removal = self._pending.get(subject)
        if removal is None:
            if reply_to is None and len(self._pending) >= self._context.config.pending_max:
                return  # an orphan: the edge's next hello brings it up again
            removal = self._pending[subject] = _Removal(place)
            self._context.ledger.begin(Operation.REMOVAL, place)
            self._calls.ask(subject, edge, OutputRemove(subscriber=subscriber, number=number))
        removal.replies = joined(removal.replies, reply_to)

    def _heard(self, subject: str, answer: Answer) -> None:
        context, removal = self._context, self._pending.pop(subject)
        edge, (subscriber, number) = removal.place
        self._calls.close(subject)
        context.ledger.end(Operation.REMOVAL, removal.place)
        if isinstance(answer, OutputRemoved):
            context.ledger.removed(removal.place)
            context.reply(removal.replies, UnsubscribeReply(subscriber=subscriber, number=number))
            context.decide(Removed(subscriber, number, edge))
            return
        context.refuse(removal.replies, refusals.rejected(rejected_for(edge, answer)), context.config.period_s)
        if answer is Silence.ABSENT:
            context.tell_parts(EdgeAbsent(edge))

    def validate(self) -> None:
        for subject, removal in self._pending.items():
            assert self._context.ledger.runs(Operation.REMOVAL, removal.place), f"{subject} is not under way"
