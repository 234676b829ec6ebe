"""Draining: emptying an edge for maintenance, by the same migrations that balance load.

Invariants:

- an edge that is to be drained takes nothing new from the moment it is asked for, whatever its own hello still says;
  it is told until its hello says so too, and so a head that restarts goes on with it;
- subscriptions leave one after another, those of one pattern together, each to the edge where a new one would be
  placed. At most `LEAVING_PER_PERIOD` begin to leave in a period, evenly spread over it: each move costs RabbitMQ and
  its client a burst of work, and clients that do not move would wait behind many moves at once;
- a subscription that can't be moved now (no edge can take it, or its client is not there) stays where it is, works, and
  is tried again later, after all others that can leave; the operator sees how many are left;
- an edge that is used again takes new subscriptions; nothing is moved back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate_protocol.balancing.drains import DrainNotice, DrainReply, DrainRequest
from tidegate_protocol.balancing.sessions import PlannedMove
from tidegate_protocol.decisions import Drained, DrainOrder, DrainOrdered, DrainWaits, MoveOutcome, Rejected, WhyNot
from tidegate_protocol.messages import Subscription
from tidegate_protocol.names import DRAIN_PREFIX
from tidegate_protocol.rendering import refusals

from ...kit.dispatch import Dispatch
from ...kit.subscriptions import Key, key_of
from ...machine import ReplyAddress, Send
from ..context import HeadContext
from ..places.ledger import Operation
from ..places.placing import Placing
from ..registry import EdgeRecord, client_of, place_of
from .migrations import Migrations
from .steps import Move

PART: Final = "drain"
LEAVING_PER_PERIOD: Final = 10
"""How many subscriptions of one edge begin to leave in a period, and how many may be under way."""
SETTLED_PERIODS: Final = 30
"""Longer than a control message may be on its way."""


@dataclass(slots=True)
class _Emptying:
    """How far one edge is."""

    leaving: set[str] = field(default_factory=set)
    """The migrations under way."""
    line: deque[Key] = field(default_factory=deque)
    """The subscriptions that leave next. While there is such a line, a timer runs."""
    not_before_s: dict[Key, float] = field(default_factory=dict)
    """The subscriptions that could not leave, and when each is tried again."""
    told_empty: bool = False
    """Whether it was recorded that nothing is left."""
    in_use_s: float | None = None
    """If the edge is to be used again: since when it says that it is."""


class Drains:
    """The edges being emptied, and those to be used again."""

    def __init__(self, context: HeadContext, migrations: Migrations, placing: Placing) -> None:
        self._context = context
        self._migrations = migrations
        self._placing = placing
        self._edges: dict[str, _Emptying] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(DrainRequest, self.requested)
        dispatch.on_timer(PART, self._next)
        dispatch.ticks.append(self.tick)
        dispatch.checks.append(self.validate)

    def requested(self, message: DrainRequest, reply_to: ReplyAddress | None) -> None:
        """An operator wants an edge emptied or used again, or to know how far it is."""
        context, edge = self._context, message.edge
        record = context.registry.edges.get(edge)
        if record is None:
            context.refuse(reply_to, refusals.no_such_edge(edge, sorted(context.registry.edges)))
            return
        if record.draining != message.draining:
            context.decide(DrainOrdered(edge, DrainOrder.DRAIN if message.draining else DrainOrder.UNDRAIN))
        record.drain_ordered = record.draining = message.draining
        if not message.draining:
            self._stop(edge, self._of(edge))
        self._notify(record)
        self._empty_next(record)
        left = len(record.subscriptions)
        context.reply(reply_to, DrainReply(edge=edge, draining=message.draining, left=left))

    def _of(self, edge: str) -> _Emptying:
        return self._edges.setdefault(edge, _Emptying())

    def _stop(self, edge: str, emptying: _Emptying) -> None:
        emptying.told_empty, emptying.not_before_s = False, {}
        self._end_line(edge, emptying)
        for migration in sorted(emptying.leaving):
            self._migrations.failed(migration, WhyNot(MoveOutcome.UNDRAINED, (edge,)))

    def _notify(self, record: EdgeRecord) -> None:
        wanted = record.drain_ordered
        if wanted is not None and record.alive and record.says_draining != wanted:
            self._context.do(Send(record.name, DrainNotice(draining=wanted)))

    def tick(self) -> None:
        """Every period: tell edges that don't know, and let the next ones leave."""
        edges = self._context.registry.edges
        for name in sorted(edges):
            record = edges[name]
            if record.drain_ordered is not None:
                self._notify(record)
                self._forget_if_settled(record)
            if record.draining:
                self._empty_next(record)
            elif name in self._edges:
                self._edges[name].told_empty = False
        for name in [name for name in self._edges if name not in edges]:
            self._end_line(name, self._edges.pop(name))

    def _forget_if_settled(self, record: EdgeRecord) -> None:
        """An edge that has said for a while that it is in use needs no watching any more. Not at once: a notice from
        before may still be on its way, and would drain it for ever.
        """
        context, emptying = self._context, self._of(record.name)
        if record.drain_ordered or record.says_draining:
            emptying.in_use_s = None
        elif emptying.in_use_s is None:
            emptying.in_use_s = context.now
        elif context.now - emptying.in_use_s >= SETTLED_PERIODS * context.config.period_s:
            record.drain_ordered = emptying.in_use_s = None

    # Emptying

    def _empty_next(self, record: EdgeRecord) -> None:
        name, emptying = record.name, self._of(record.name)
        if not self._can_be_left(record):
            return
        was_told, emptying.told_empty = emptying.told_empty, not record.subscriptions
        if not record.subscriptions:
            if not was_told:
                self._context.decide(Drained(name))
            return
        room = LEAVING_PER_PERIOD - len(emptying.leaving)
        if room <= 0 or emptying.line:
            return
        ready = [subscription for subscription in record.subscriptions.values() if self._may_leave(name, subscription)]
        # Subscriptions that failed last come last: clients that are away take up a place for as long as they are waited
        # for, and must not keep others from their turn.
        pauses = emptying.not_before_s
        leaving = sorted(ready, key=lambda s: (pauses.get(key_of(s), 0.0), s.pattern, s.subscriber, s.number))[:room]
        if leaving:
            emptying.line.extend(key_of(subscription) for subscription in leaving)
            self._next(name)

    def _can_be_left(self, record: EdgeRecord) -> bool:
        return record.draining and record.ready and not self._context.stopping

    def _may_leave(self, name: str, subscription: Subscription) -> bool:
        ledger, place = self._context.ledger, place_of(name, subscription)
        paused = self._of(name).not_before_s.get(place[1], 0.0) > self._context.now
        return not paused and not ledger.is_busy(place) and ledger.may_begin(Operation.MIGRATION, place)

    def _next(self, name: str) -> None:
        """Let the first subscription in the line leave, if it still can, and the next one a little later."""
        context, emptying = self._context, self._edges.get(name)
        record = context.registry.edges.get(name)
        if emptying is None or not emptying.line:
            return
        if record is None or not self._can_be_left(record):
            self._end_line(name, emptying)
            return
        subscription = record.subscriptions.get(emptying.line.popleft())
        if emptying.line:
            context.set_timer(f"{PART} {name}", context.config.period_s / LEAVING_PER_PERIOD)
        if subscription is not None and self._may_leave(name, subscription):
            self._move(name, subscription)

    def _end_line(self, name: str, emptying: _Emptying) -> None:
        if emptying.line:
            emptying.line.clear()
            self._context.cancel_timer(f"{PART} {name}")

    def _move(self, name: str, subscription: Subscription) -> None:
        context, pattern = self._context, subscription.pattern
        if context.ledger.under_way(Operation.ALLOCATION, client_of(subscription)) is not None:
            return
        placement, unfit = self._placing.place(pattern, subscription.subscriber, leaving=name)
        if placement is None:
            self._pause(name, key_of(subscription))
            context.decide(DrainWaits(name, pattern, unfit))
            return
        if placement.decision.advice is not None:
            context.decide(replace(placement.decision, session=f"{DRAIN_PREFIX}{name}"))
        load = self._placing.expected(pattern)
        bytes_per_s, messages_per_s = (load.bytes_per_s, load.messages_per_s) if load is not None else (0.0, 0.0)
        has_it = pattern in context.registry.edges[placement.edge].patterns
        planned = PlannedMove(
            subscriber=subscription.subscriber,
            number=subscription.number,
            target=placement.edge,
            bytes_in_per_s=0.0 if has_it else bytes_per_s,
            bytes_out_per_s=bytes_per_s,
            messages_in_per_s=0.0 if has_it else messages_per_s,
        )
        migration = self._migrations.start(
            f"{DRAIN_PREFIX}{name}",
            name,
            subscription,
            placement.edge,
            context.config.head,
            planned,
            self._migrated,
        )
        if isinstance(migration, Rejected):
            self._pause(name, key_of(subscription))
        else:
            self._of(name).leaving.add(migration)

    def _migrated(self, move: Move, moved: bool) -> None:
        self._of(move.source).leaving.discard(move.id)
        if not moved:
            self._pause(move.source, key_of(move.subscription))

    def _pause(self, edge: str, key: Key) -> None:
        """Leave this subscription alone for a while, and forget the pauses of those that are gone."""
        context, emptying = self._context, self._of(edge)
        subscriptions = context.registry.edges[edge].subscriptions
        if len(emptying.not_before_s) > len(subscriptions):
            emptying.not_before_s = {key: s for key, s in emptying.not_before_s.items() if key in subscriptions}
        emptying.not_before_s[key] = context.now + context.config.balancing.retry_s

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        for edge, emptying in self._edges.items():
            assert len(emptying.leaving) <= LEAVING_PER_PERIOD, edge
            assert all(migration in self._migrations for migration in emptying.leaving), edge
