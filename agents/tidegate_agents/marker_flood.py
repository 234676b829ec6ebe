"""Markers of all heads: a request that floods the tree, and the names of those who have answered it.

For a migration to another cluster every head publishes a marker of its own, because publications of one head can't
be told to be complete by the marker of another. A request goes from neighbour to neighbour, away from where it came
from; a head answers when its own marker is published and all heads behind it have answered. What always holds:

- an answer names every head behind its sender, and none is left out: if one does not answer, nobody before it does;
- a request that is repeated while it is under way joins it, so that repetitions don't multiply from head to head;
  repeated later it publishes the markers again, which does no harm;
- the same flood with an id that no queue is bound for finds out which heads there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.balancing import HEADS_MAX, MarkerRequest, MarkerSent
from tidegate_protocol.messages import ControlMessage, Refusal, RefusalReason
from tidegate_protocol.names import marker_key, marker_prefix

from .config import ATTEMPTS_MAX, REPLIES_JOINED_MAX
from .context import HeadContext
from .dispatch import Dispatch
from .machine import MarkerPublished, PublishMarker, ReplyAddress

PART = "flood"

FLOODS_MAX: Final = 2_000
"""Floods under way at one head, its own and those that pass."""

Done = Callable[[str, tuple[str, ...], str], None]
"""Called with the migration, the heads that have published, and the problem: one of the two is empty."""


@dataclass(slots=True)
class _Flood:
    migration: str
    sender: str
    """The neighbour it came from; empty for one of our own."""
    done: Done | None = None
    replies: list[ReplyAddress] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    """Neighbours that have not answered, with the request each was sent."""
    attempts: int = 0
    published: bool = False
    heads: set[str] = field(default_factory=set)


class MarkerFlood:
    """The floods under way, by migration."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        self._floods: dict[str, _Flood] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(MarkerRequest, self.asked)
        dispatch.on_event(MarkerPublished, self.published)
        dispatch.on_request(PART, self._answered, self._undeliverable)
        dispatch.on_timer(PART, self._timed_out)
        dispatch.checks.append(self.validate)

    def __contains__(self, migration: str) -> bool:
        return migration in self._floods

    def start(self, migration: str, done: Done) -> None:
        """Have every head publish its marker for `migration`."""
        assert migration not in self._floods, f"{migration} is being flooded already"
        if len(self._floods) >= FLOODS_MAX:
            done(migration, (), f"FLOODS_MAX = {FLOODS_MAX} floods are under way")
            return
        self._spread(_Flood(migration, "", done))

    def stop(self, migration: str) -> None:
        """Whoever started it has lost interest."""
        flood = self._floods.get(migration)
        if flood is not None and not flood.sender:
            self._close(flood)

    def asked(self, message: MarkerRequest, reply_to: ReplyAddress | None) -> None:
        """A neighbour passes a request on."""
        context = self._context
        flood = self._floods.get(message.migration)
        if message.head not in context.routes.offers:
            text = f"{message.head} is not a neighbour of {context.config.head}"
            context.refuse(reply_to, RefusalReason.UNKNOWN, text, "head")
        elif message.key != marker_prefix(message.migration):
            text = f"{message.key} is not what markers of {message.migration} start with"
            context.refuse(reply_to, RefusalReason.INVALID, text, "key")
        elif flood is not None and flood.sender != message.head:
            context.refuse(reply_to, RefusalReason.CONFLICT, "this flood came from elsewhere; heads form no tree")
        elif flood is not None:
            if reply_to is not None:
                flood.replies = [*flood.replies, reply_to][-REPLIES_JOINED_MAX:]
        elif len(self._floods) >= FLOODS_MAX:
            context.refuse(reply_to, RefusalReason.LIMIT, f"FLOODS_MAX = {FLOODS_MAX} floods are under way")
        else:
            self._spread(_Flood(message.migration, message.head, replies=[reply_to] if reply_to else []))

    def _spread(self, flood: _Flood) -> None:
        context, head = self._context, self._context.config.head
        self._floods[flood.migration] = flood
        flood.heads.add(head)
        context.do(PublishMarker(marker_key(flood.migration, head)))
        for name in sorted(context.routes.offers):
            if name != flood.sender:
                flood.waiting[name] = ""
        self._ask(flood)

    def _ask(self, flood: _Flood) -> None:
        context = self._context
        flood.attempts += 1
        for name in sorted(flood.waiting):
            context.drop_request(flood.waiting[name])
            message = MarkerRequest(
                migration=flood.migration, head=context.config.head, key=marker_prefix(flood.migration)
            )
            flood.waiting[name] = context.request(name, message, PART, f"{flood.migration} {name}")
        context.set_timer(f"{PART} {flood.migration}", context.config.reply_timeout_s)

    def published(self, event: MarkerPublished) -> None:
        """RabbitMQ has taken a marker; also those of migrations inside the cluster, which are not ours."""
        for flood in list(self._floods.values()):
            if marker_key(flood.migration, self._context.config.head) == event.key:
                flood.published = True
                self._finish_if_done(flood)

    def publishing_failed(self, key: str, problem: str) -> None:
        for flood in list(self._floods.values()):
            if marker_key(flood.migration, self._context.config.head) == key:
                self._fail(flood, f"{self._context.config.head} could not publish its marker: {problem}")

    def _answered(self, subject: str, message: ControlMessage) -> None:
        migration, _, name = subject.partition(" ")
        flood = self._floods.get(migration)
        if flood is None or flood.waiting.pop(name, None) is None:
            return
        if not isinstance(message, MarkerSent) or message.migration != migration or name not in message.heads:
            text = message.message if isinstance(message, Refusal) else f"answered with {message.kind}"
            self._fail(flood, f"{name}: {text}")
            return
        flood.heads |= set(message.heads)
        if len(flood.heads) > HEADS_MAX:
            self._fail(flood, f"more than HEADS_MAX = {HEADS_MAX} heads")
            return
        self._finish_if_done(flood)

    def _undeliverable(self, subject: str) -> None:
        migration, _, name = subject.partition(" ")
        flood = self._floods.get(migration)
        if flood is not None and name in flood.waiting:
            self._fail(flood, f"the process of {name} is not there")

    def _timed_out(self, migration: str) -> None:
        flood = self._floods.get(migration)
        if flood is None:
            return
        if flood.attempts < ATTEMPTS_MAX:
            self._ask(flood)
        else:
            missing = sorted(flood.waiting) or [self._context.config.head]
            self._fail(flood, f"no marker from {', '.join(missing)} in time")

    def _finish_if_done(self, flood: _Flood) -> None:
        if flood.waiting or not flood.published:
            return
        self._close(flood)
        heads = tuple(sorted(flood.heads))
        for reply_to in flood.replies:
            self._context.reply(reply_to, MarkerSent(migration=flood.migration, heads=heads))
        if flood.done is not None:
            flood.done(flood.migration, heads, "")

    def _fail(self, flood: _Flood, problem: str) -> None:
        self._close(flood)
        for reply_to in flood.replies:
            self._context.refuse(reply_to, RefusalReason.NOT_READY, problem[:1_000])
        if flood.done is not None:
            flood.done(flood.migration, (), problem)

    def _close(self, flood: _Flood) -> None:
        del self._floods[flood.migration]
        self._context.cancel_timer(f"{PART} {flood.migration}")
        for request_id in flood.waiting.values():
            self._context.drop_request(request_id)

    def validate(self) -> None:
        """Raise AssertionError if a flood waits for nothing."""
        assert len(self._floods) <= FLOODS_MAX
        for flood in self._floods.values():
            assert flood.waiting or not flood.published, f"{flood.migration} waits for nothing"
            assert flood.sender not in flood.waiting, f"{flood.migration} goes back where it came from"
