"""Markers of all heads: a request that floods the tree, and the names of the heads that have answered it.

For a migration to another cluster every head publishes a marker of its own, because publications of one head can't
be told to be complete by the marker of another. A request goes from neighbour to neighbour, away from where it came
from; a head answers when its own marker is published and all heads behind it have answered. Invariants:

- an answer names every head behind its sender, and none is left out: if one head does not answer, no head before it on
  the way answers;
- a request that is repeated while it is under way joins it, so that repetitions don't multiply from head to head;
  repeated later it publishes the markers again, which does no harm;
- the same flood with an id that no queue is bound for finds out which heads there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.balancing.markers import HEADS_MAX, MarkerRequest, MarkerSent
from tidegate_protocol.decisions import MoveOutcome, WhyNot
from tidegate_protocol.names import marker_key, marker_prefix
from tidegate_protocol.rendering import refusals

from ...config import ATTEMPTS_MAX
from ...kit.answers import why_not
from ...kit.calls import Answer, Silence
from ...kit.dispatch import Dispatch
from ...kit.gather import Gatherings
from ...kit.outbox import joined
from ...machine import MarkerPublished, PublishMarker, ReplyAddress
from ..context import HeadContext
from ..neighbours import stranger

PART = "flood"

FLOODS_MAX: Final = 2_000
"""Floods under way at one head, its own and those that pass."""

FloodDone = Callable[[str, tuple[str, ...], WhyNot | None], None]
"""Called with the migration, the heads that have published, and the problem: there is one of the two."""


@dataclass(slots=True)
class _Flood:
    migration: str
    sender: str
    """The neighbour it came from; empty for one of our own."""
    done: FloodDone | None = None
    replies: list[ReplyAddress] = field(default_factory=list)
    heads: set[str] = field(default_factory=set)
    silent: list[str] = field(default_factory=list)
    """Heads that did not answer in time."""


class MarkerFlood:
    """The floods under way, by migration."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        self._floods: dict[str, _Flood] = {}
        self._gatherings = Gatherings(context, PART, self._heard, self._finish)

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(MarkerRequest, self.on_request)
        dispatch.on_event(MarkerPublished, self.on_published)
        dispatch.on_failure(PublishMarker, self._publishing_failed)
        self._gatherings.register(dispatch)
        dispatch.checks.append(self.validate)

    def __contains__(self, migration: str) -> bool:
        return migration in self._floods

    def start(self, migration: str, done: FloodDone) -> None:
        """Have every head publish its marker for `migration`."""
        assert migration not in self._floods, f"{migration} is being flooded already"
        if len(self._floods) >= FLOODS_MAX:
            done(migration, (), WhyNot(MoveOutcome.NO_MARKERS, (self._context.config.head,)))
            return
        self._spread(_Flood(migration, "", done))

    def stop(self, migration: str) -> None:
        """The part that started it has lost interest."""
        flood = self._floods.get(migration)
        if flood is not None and not flood.sender:
            self._close(flood)

    def on_request(self, message: MarkerRequest, reply_to: ReplyAddress | None) -> None:
        """A neighbour passes a request on."""
        context = self._context
        flood = self._floods.get(message.migration)
        if (unknown := stranger(context, message.head)) is not None:
            context.refuse(reply_to, unknown)
        elif message.key != marker_prefix(message.migration):
            context.refuse(reply_to, refusals.wrong_key(message.key, message.migration, "key"))
        elif flood is not None and flood.sender != message.head:
            context.refuse(reply_to, refusals.no_tree(message.migration))
        elif flood is not None:
            flood.replies = joined(flood.replies, reply_to)
        elif len(self._floods) >= FLOODS_MAX:
            context.refuse(reply_to, refusals.limit("FLOODS_MAX", FLOODS_MAX))
        else:
            self._spread(_Flood(message.migration, message.head, replies=[reply_to] if reply_to else []))

    def _spread(self, flood: _Flood) -> None:
        context, head = self._context, self._context.config.head
        self._floods[flood.migration] = flood
        flood.heads.add(head)
        context.do(PublishMarker(marker_key(flood.migration, head)))
        request = MarkerRequest(migration=flood.migration, head=head, key=marker_prefix(flood.migration))
        questions = dict.fromkeys(context.routes.offers.keys() - {flood.sender}, request)
        # Our own marker is awaited as the answers are, and nobody is asked for it.
        within_s = context.config.reply_timeout_s
        self._gatherings.ask(flood.migration, {head: None, **questions}, within_s=within_s, attempts_max=ATTEMPTS_MAX)

    def on_published(self, event: MarkerPublished) -> None:
        """RabbitMQ has taken a marker; also those of migrations inside the cluster, which are not ours."""
        head = self._context.config.head
        for migration in [name for name in self._floods if marker_key(name, head) == event.key]:
            self._gatherings.done(migration, head)

    def _publishing_failed(self, action: PublishMarker, problem: str) -> None:
        head = self._context.config.head
        for flood in [flood for name, flood in self._floods.items() if marker_key(name, head) == action.key]:
            self._fail(flood, WhyNot(MoveOutcome.RABBITMQ_REFUSED, (head,), problem))

    def _heard(self, migration: str, head: str, answer: Answer) -> None:
        flood = self._floods[migration]
        if answer is Silence.LATE:
            flood.silent.append(head)
        elif not isinstance(answer, MarkerSent) or answer.migration != migration or head not in answer.heads:
            self._fail(flood, why_not(head, answer))
        else:
            flood.heads |= set(answer.heads)
            if len(flood.heads) > HEADS_MAX:
                self._fail(flood, WhyNot(MoveOutcome.NO_MARKERS, (head,)))

    def _finish(self, migration: str) -> None:
        flood = self._floods[migration]
        if flood.silent:
            self._fail(flood, WhyNot(MoveOutcome.NO_MARKERS, tuple(flood.silent)))
            return
        self._close(flood)
        heads = tuple(sorted(flood.heads))
        self._context.reply(flood.replies, MarkerSent(migration=flood.migration, heads=heads))
        if flood.done is not None:
            flood.done(flood.migration, heads, None)

    def _fail(self, flood: _Flood, problem: WhyNot) -> None:
        self._close(flood)
        self._context.refuse(flood.replies, refusals.not_moved(problem))
        if flood.done is not None:
            flood.done(flood.migration, (), problem)

    def _close(self, flood: _Flood) -> None:
        del self._floods[flood.migration]
        self._gatherings.stop(flood.migration)

    def validate(self) -> None:
        """Raise AssertionError if a flood waits for nothing."""
        assert len(self._floods) <= FLOODS_MAX
        for flood in self._floods.values():
            missing = self._gatherings.missing(flood.migration)
            assert missing, f"{flood.migration} waits for nothing"
            assert flood.sender not in missing, f"{flood.migration} goes back where it came from"
