"""Ending subscriptions: asking an edge to delete an output queue until it says that it is gone.

A subscription stays in the registry, and its route bound, until its edge has confirmed. If the edge can't be
reached the one who asked is told to ask again, and nothing has changed. What is gone already counts as
removed, so a repeated request gets the same answer.

A *discarded* place is one that nobody uses and that holds nothing anybody lacks: what a client left when it moved,
or what was made for it in vain. It is removed again and again until it is gone, also after its edge was away; the
memory of them is bounded by `DISCARDED_MAX`, and what falls out of it is treated as a place in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar

from tidegate_protocol.messages import (
    ControlMessage,
    OutputRemove,
    OutputRemoved,
    Refusal,
    RefusalReason,
    Subscription,
    UnsubscribeReply,
    UnsubscribeRequest,
)

from .config import ATTEMPTS_MAX, REPLIES_JOINED_MAX
from .context import HeadContext
from .dispatch import Dispatch
from .machine import Decision, ReplyAddress
from .registry import Key, key_of

T = TypeVar("T")

DISCARDED_MAX: Final = 10_000
"""How many discarded places are remembered, the latest ones; and how many that were removed."""
GONE_PERIODS: Final = 30
"""Longer than a control message may be on its way."""


@dataclass(slots=True)
class _Removal:
    edge: str
    key: Key
    replies: list[ReplyAddress] = field(default_factory=list)
    attempts: int = 0
    request_id: str = ""


class Removals:
    """The removals under way, by edge and subscription."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        self._pending: dict[str, _Removal] = {}
        self._discarded: dict[tuple[str, Key], None] = {}
        self._gone_until_s: dict[tuple[str, Key], float] = {}
        """Places removed lately, and until when their showing up again means nothing."""
        self._left_until_s: dict[tuple[str, str], float] = {}
        """The same for clients (subscriber and pattern) that have unsubscribed."""

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_timer("remove", self.timed_out)
        dispatch.ticks.append(self.tick)
        dispatch.checks.append(self.validate)

    def __contains__(self, place: tuple[str, Key]) -> bool:
        return _subject(*place) in self._pending

    # Discarded places

    def discard(self, edge: str, key: Key) -> None:
        """Nobody uses this place: remove it, now or when its edge is back."""
        self.note_discarded(edge, key)
        self.remove(edge, key)

    def note_discarded(self, edge: str, key: Key) -> None:
        """Should `edge` list this place, then nobody uses it."""
        self._discarded.pop((edge, key), None)
        self._discarded[edge, key] = None
        for places in (self._context.granted, self._context.reserved, self._context.abandoned):
            places.discard((edge, key))
        if len(self._discarded) > DISCARDED_MAX:
            del self._discarded[next(iter(self._discarded))]

    def is_discarded(self, place: tuple[str, Key]) -> bool:
        return place in self._discarded

    def keep(self, edge: str, key: Key) -> bool:
        """Somebody does use this place after all. False if it is too late: its removal is under way."""
        if (edge, key) in self:
            return False
        self._discarded.pop((edge, key), None)
        return True

    def has_place(self, subscriber: str, pattern: str) -> bool:
        """Whether a client has a place to live in. One that is being removed is none: so are those found meanwhile."""
        found = self._context.registry.find(subscriber, pattern)
        places = [(edge, key_of(subscription)) for edge, subscription in found]
        return any(place not in self and place not in self._discarded for place in places)

    def remove_orphan(self, edge: str, subscription: Subscription) -> bool:
        """Remove a place that an edge has listed, if it is known that nobody uses it."""
        key, now, registry = key_of(subscription), self._context.now, self._context.registry
        unused = (edge, key) in self._discarded
        if registry.get(edge, key) is None:
            unused |= self._gone_until_s.get((edge, key), 0.0) > now
            client = (subscription.subscriber, subscription.pattern)
            # Nobody is left to tell its client about, unless it has come back since.
            unused |= self._left_until_s.get(client, 0.0) > now and not self.has_place(*client)
        if unused:
            self.remove(edge, key)
        return unused

    def tick(self) -> None:
        """Every period: try again what could not be removed before."""
        registry, now = self._context.registry, self._context.now
        _expire(self._gone_until_s, now)
        _expire(self._left_until_s, now)
        for edge, key in list(self._discarded):
            if (edge, key) not in self and registry.get(edge, key) is not None and registry.edges[edge].alive:
                self.remove(edge, key)

    def unsubscribe(self, message: UnsubscribeRequest, reply_to: ReplyAddress | None) -> None:
        context, key = self._context, (message.subscriber, message.number)
        places = self._places_of(message)
        for pattern in self.patterns_of(message):
            # An edge that has not told yet what it holds may have a place of this client too.
            _remember(self._left_until_s, (key[0], pattern), context.now + GONE_PERIODS * context.config.period_s)
        if not places:
            context.reply(reply_to, UnsubscribeReply(subscriber=message.subscriber, number=message.number))
            return
        limit = context.config.pending_max
        if len(self._pending) + len(places) > limit:
            text = f"pending_max = {limit} removals are under way"
            context.refuse(reply_to, RefusalReason.LIMIT, text, retry_after_s=context.config.period_s)
            return
        for place in places[1:]:
            self.discard(*place)
        self.remove(*places[0], reply_to)

    def patterns_of(self, message: UnsubscribeRequest) -> list[str]:
        """What the subscription that a client wants to end is for, as far as it says or we know."""
        registry, meant = self._context.registry, self._meant((message.subscriber, message.number))
        found = {s.pattern for place in meant if (s := registry.get(*place)) is not None}
        return sorted(found if found or message.pattern is None else {message.pattern})

    def _meant(self, key: Key) -> list[tuple[str, Key]]:
        """Two edges may use one number for different patterns after a restart: the one we granted is meant."""
        named = [(edge, key) for edge in self._context.registry.holders(key)]
        return [place for place in named if place in self._context.granted] or named

    def _places_of(self, message: UnsubscribeRequest) -> list[tuple[str, Key]]:
        """All places of the subscription that a client knows under this number; first the one it means.

        If that is gone already, the request may be an old one: then only those are left that nobody was told to use.
        """
        context, subscriber = self._context, message.subscriber
        meant, patterns = self._meant((subscriber, message.number)), self.patterns_of(message)
        found = [context.registry.find(subscriber, pattern) for pattern in patterns]
        others = [(edge, key_of(s)) for places in found for edge, s in places]
        if not meant and not self._is_current(message, patterns):
            others = [place for place in others if place not in context.granted and place not in context.reserved]
        return [*meant, *(place for place in others if place not in meant)]

    def _is_current(self, message: UnsubscribeRequest, patterns: list[str]) -> bool:
        """Whether we took away lately what the client calls its place, and have told it of no other since: it had moved
        there, and we had given the move up.
        """
        context, key = self._context, (message.subscriber, message.number)
        gone_until_s = max((self._gone_until_s.get((edge, key), 0.0) for edge in context.registry.edges), default=0.0)
        gone_s = gone_until_s - GONE_PERIODS * context.config.period_s
        told_s = max((context.told_s.get((key[0], p), float("-inf")) for p in patterns), default=float("-inf"))
        return gone_until_s > context.now and told_s < gone_s

    def remove(self, edge: str, key: Key, reply_to: ReplyAddress | None = None) -> None:
        """Have `edge` delete the output queue of `key`."""
        subject = _subject(edge, key)
        removal = self._pending.get(subject)
        if removal is None:
            if reply_to is None and len(self._pending) >= self._context.config.pending_max:
                return  # an orphan: the edge's next hello brings it up again
            removal = self._pending[subject] = _Removal(edge, key)
            self._context.begin(edge, key)
            self._ask(subject, removal)
        if reply_to is not None:
            removal.replies = [*removal.replies, reply_to][-REPLIES_JOINED_MAX:]

    def _ask(self, subject: str, removal: _Removal) -> None:
        removal.attempts += 1
        message = OutputRemove(subscriber=removal.key[0], number=removal.key[1])
        removal.request_id = self._context.request(removal.edge, message, "remove", subject)
        self._context.set_timer(f"remove {subject}", self._context.config.reply_timeout_s)

    def answered(self, subject: str, message: ControlMessage) -> None:
        removal = self._pending.get(subject)
        if removal is None:
            return
        if not isinstance(message, OutputRemoved):
            text = message.message if isinstance(message, Refusal) else f"{removal.edge} answered with {message.kind}"
            self._fail(subject, RefusalReason.FAILED, text)
            return
        self._finish(subject)
        self._context.withdraw(removal.edge, removal.key)
        self._discarded.pop((removal.edge, removal.key), None)
        self._note_gone(removal.edge, removal.key)
        subscriber, number = removal.key
        for reply_to in removal.replies:
            self._context.reply(reply_to, UnsubscribeReply(subscriber=subscriber, number=number))
        self._context.decide(Decision("removal", f"{subscriber}.{number}", f"deleted by {removal.edge}"))

    def _note_gone(self, edge: str, key: Key) -> None:
        """An order to make this queue may still be on its way, overtaken by that to remove it. Should the queue show
        up again soon, it is nobody's; numbers are not used again so quickly.
        """
        until_s = self._context.now + GONE_PERIODS * self._context.config.period_s
        _remember(self._gone_until_s, (edge, key), until_s)

    def timed_out(self, subject: str) -> None:
        removal = self._pending.get(subject)
        if removal is None:
            return
        self._context.drop_request(removal.request_id)
        if removal.attempts < ATTEMPTS_MAX:
            self._ask(subject, removal)
        else:
            self._fail(subject, RefusalReason.NOT_READY, f"{removal.edge} does not answer")

    def undeliverable(self, subject: str) -> str | None:
        """Its edge is not there. Returns the name of that edge."""
        removal = self._pending.get(subject)
        if removal is None:
            return None
        self._fail(subject, RefusalReason.NOT_READY, f"the process of {removal.edge} is not there")
        return removal.edge

    def _fail(self, subject: str, reason: RefusalReason, text: str) -> None:
        removal = self._finish(subject)
        for reply_to in removal.replies:
            self._context.refuse(reply_to, reason, text, retry_after_s=self._context.config.period_s)

    def _finish(self, subject: str) -> _Removal:
        removal = self._pending.pop(subject)
        self._context.drop_request(removal.request_id)
        self._context.cancel_timer(f"remove {subject}")
        self._context.end(removal.edge, removal.key)
        return removal

    def validate(self) -> None:
        assert not self._discarded.keys() & self._context.granted, "a place that a client uses is discarded"
        for subject, removal in self._pending.items():
            assert subject == _subject(removal.edge, removal.key)
            assert removal.key in self._context.busy[removal.edge], f"{subject} is under way but not busy"


def _remember(memory: dict[T, float], what: T, until_s: float) -> None:
    """Put it last; beyond the bound the oldest is forgotten."""
    memory.pop(what, None)
    memory[what] = until_s
    if len(memory) > DISCARDED_MAX:
        del memory[next(iter(memory))]


def _expire(memory: dict[T, float], now: float) -> None:
    while memory and next(iter(memory.values())) <= now:
        del memory[next(iter(memory))]


def _subject(edge: str, key: Key) -> str:
    return f"{edge} {key[0]} {key[1]}"
