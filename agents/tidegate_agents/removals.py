"""Ending subscriptions: asking an edge to delete an output queue until it says that it is gone.

A subscription stays in the registry, and its route bound, until its edge has confirmed. If the edge can't be
reached the one who asked is told to ask again, and nothing has changed. What is gone already counts as
removed, so a repeated request gets the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate_protocol.messages import (
    ControlMessage,
    OutputRemove,
    OutputRemoved,
    Refusal,
    RefusalReason,
    UnsubscribeReply,
    UnsubscribeRequest,
)

from .config import ATTEMPTS_MAX, REPLIES_JOINED_MAX
from .context import HeadContext
from .machine import Decision, ReplyAddress
from .registry import Key


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

    def __contains__(self, place: tuple[str, Key]) -> bool:
        return _subject(*place) in self._pending

    def unsubscribe(self, message: UnsubscribeRequest, reply_to: ReplyAddress | None) -> None:
        context, key = self._context, (message.subscriber, message.number)
        holders = context.registry.holders(key)
        if not holders:
            context.reply(reply_to, UnsubscribeReply(subscriber=message.subscriber, number=message.number))
            return
        limit = context.config.pending_max
        if len(self._pending) + len(holders) > limit:
            text = f"pending_max = {limit} removals are under way"
            context.refuse(reply_to, RefusalReason.LIMIT, text, retry_after_s=context.config.period_s)
            return
        for edge in holders[1:]:
            self.remove(edge, key)
        self.remove(holders[0], key, reply_to)

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
        subscriber, number = removal.key
        for reply_to in removal.replies:
            self._context.reply(reply_to, UnsubscribeReply(subscriber=subscriber, number=number))
        self._context.decide(Decision("removal", f"{subscriber}.{number}", f"deleted by {removal.edge}"))

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
        for subject, removal in self._pending.items():
            assert subject == _subject(removal.edge, removal.key)
            assert removal.key in self._context.busy[removal.edge], f"{subject} is under way but not busy"


def _subject(edge: str, key: Key) -> str:
    return f"{edge} {key[0]} {key[1]}"
