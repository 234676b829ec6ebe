"""Routes between heads: what we tell each neighbour, and what each neighbour tells us.

To each neighbour goes, as numbered changes, the covering set of what is needed behind us. Invariants:

- one update is under way per neighbour; it is sent again, with the same routes, until it is accepted or its base is
  unknown;
- an update whose version equals its base changes nothing. It asks whether the neighbour still has that
  version: a sign of life, and the way a neighbour that lost its state is found. One goes out every period;
- a neighbour that does not have the base gets the whole set. Versions grow from one run of a head to the
  next, so what an earlier run sent, however late it comes, is recognised as old;
- a whole set in several parts replaces the old set with its first part, but nothing is unbound before its
  last one. A part with fewer than `ROUTES_PER_UPDATE_MAX` additions is the last; if the set ends with a full
  part, an empty one follows;
- a neighbour that refuses a set for its size is told nothing but signs of life until what we offer has become smaller
  than that, or until it starts anew; then it gets the whole set. Meanwhile no subscription waits for it;
- we accept an update when its routes are bound here and confirmed by the heads behind us, or when the time it
  granted is over; heads that had not confirmed are named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.decisions import NeighbourPresence, Presence, RoutesRefusal, RoutesRefused
from tidegate_protocol.messages import (
    ROUTES_PER_UPDATE_MAX,
    ControlMessage,
    NeighbourStatus,
    Passing,
    Refusal,
    RefusalReason,
    RoutesAccepted,
    RoutesUnknownBase,
    RoutesUpdate,
)
from tidegate_protocol.rendering import refusals
from tidegate_protocol.topics import is_pattern

from ..config import HOP_WAIT_SHARE, SILENT_PERIODS_MAX
from ..kit.answers import detail_of
from ..kit.dispatch import Answer, Dispatch, Silence
from ..kit.outbox import joined
from ..machine import ReplyAddress
from ..topics.waits import Wait
from .context import HeadContext
from .events import NeighbourAnew

VERSIONS_PER_INCARNATION: Final = 1_000
"""Versions of one run start at its incarnation times this: room for so many updates per millisecond."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    update: RoutesUpdate
    request_id: str
    changes: int
    """The number of the offer change that is complete once this update is accepted."""


@dataclass(slots=True)
class _Accepting:
    version: int
    replies: list[ReplyAddress]


@dataclass(slots=True)
class _Neighbour:
    name: str
    version: int
    alive: bool = False
    lost: bool = False
    """Known not to be there, so nobody waits for it. At the start we know nothing, and wait."""
    heard_s: float = 0.0
    sent_s: float = 0.0
    whole_due: bool = True
    part_due: bool = False
    probe_due: bool = False
    in_flight: _InFlight | None = None
    confirmed: int = -1
    awaiting: frozenset[str] = frozenset()
    have: int | None = None
    told: set[str] = field(default_factory=set)
    accepting: _Accepting | None = None
    refused: str = ""
    """Why it refused an update, once that is recorded, until it has accepted all."""
    too_many: int | None = None
    """It refused a set of this size. Every attempt after that is smaller, so they come to an end."""


def stranger(context: HeadContext, head: str) -> Refusal | None:
    """Why a message that only neighbours may send is refused; None if `head` is one."""
    if head in context.routes.offers:
        return None
    return refusals.stranger(head, context.config.head)


class Neighbours:
    """The exchange of routes with all neighbouring heads."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        first = max(context.config.incarnation, 1) * VERSIONS_PER_INCARNATION
        self._neighbours = {name: _Neighbour(name, first) for name in context.routes.offers}

    def __contains__(self, name: str) -> bool:
        return name in self._neighbours

    def present(self) -> list[str]:
        """Those that are there, as far as we know."""
        return [name for name, neighbour in self._neighbours.items() if not neighbour.lost]

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(RoutesUpdate, self.on_update)
        dispatch.on_request("update", self.answered)
        dispatch.on_timer("update", self.timed_out)
        dispatch.on_wait("accept", self.routes_live)
        dispatch.ticks.append(self.tick)
        dispatch.checks.append(self.validate)

    def tick(self) -> None:
        """Every period: ask each neighbour that had no update for a while, and notice which have gone silent."""
        context = self._context
        for neighbour in self._neighbours.values():
            if context.now - neighbour.sent_s >= context.config.period_s:
                neighbour.probe_due = True
            if neighbour.alive and context.now - neighbour.heard_s > SILENT_PERIODS_MAX * context.config.period_s:
                self._lose(neighbour, Presence.SILENT)

    def has_confirmed(self, name: str) -> bool:
        """Whether this neighbour has all that it was offered so far."""
        return self._neighbours[name].confirmed == self._context.routes.offers[name].changes

    def open_wait(self, key: str, target: str, budget_s: float, without: str | None = None) -> None:
        """Wait until what `target` needs now is bound here and confirmed by all neighbours but `without`."""
        context = self._context
        context.bindings.flush()
        wait = Wait(key, context.now + budget_s, changes=context.bindings.outstanding(target))
        for name, neighbour in self._neighbours.items():
            if name == without:
                continue
            changes = context.routes.offers[name].changes
            if neighbour.confirmed == changes:
                wait.awaiting |= neighbour.awaiting
            elif neighbour.lost or self._is_too_much(neighbour):
                wait.awaiting.add(name)
            else:
                wait.neighbours[name] = changes
        context.waits.open(wait)
        if wait.neighbours:
            context.set_timer(f"wait {key}", budget_s)

    # What we tell them

    def pump(self) -> None:
        """Send what is due to every neighbour that has no update under way."""
        for neighbour in self._neighbours.values():
            if neighbour.in_flight is not None:
                continue
            offer = self._context.routes.offers[neighbour.name]
            if self._is_too_much(neighbour):
                if neighbour.probe_due:
                    self._probe(neighbour)
            elif neighbour.whole_due or neighbour.part_due or neighbour.probe_due or offer.mirror:
                self._send_next(neighbour)
            elif neighbour.confirmed != offer.changes:
                # Changes that undid each other before they were sent: the neighbour has confirmed this very
                # set.
                self._confirm(neighbour, offer.changes)

    def _is_too_much(self, neighbour: _Neighbour) -> bool:
        """Whether this neighbour is known not to take as many patterns as we have for it."""
        offered = len(self._context.routes.offers[neighbour.name].patterns.maximal)
        return neighbour.too_many is not None and offered >= neighbour.too_many

    def _probe(self, neighbour: _Neighbour) -> None:
        """Only a sign of life; the answer tells whether the neighbour has started anew."""
        neighbour.probe_due = False
        version = neighbour.version
        update = RoutesUpdate(head=self._context.config.head, version=version, base=version, wait_s=0)
        self._transmit(neighbour, update, neighbour.confirmed)

    def _send_next(self, neighbour: _Neighbour) -> None:
        offer = self._context.routes.offers[neighbour.name]
        base = None if neighbour.whole_due else neighbour.version
        if neighbour.whole_due:
            offer.mirror.reset(offer.patterns.maximal)
        if neighbour.whole_due or neighbour.part_due or offer.mirror:
            neighbour.version += 1
        add, remove = offer.mirror.take(ROUTES_PER_UPDATE_MAX)
        neighbour.whole_due = neighbour.probe_due = False
        neighbour.part_due = len(add) == ROUTES_PER_UPDATE_MAX
        complete = not offer.mirror and not neighbour.part_due
        update = RoutesUpdate(
            head=self._context.config.head,
            version=neighbour.version,
            base=base,
            add=add,
            remove=remove,
            wait_s=0,
        )
        self._transmit(neighbour, update, offer.changes if complete else neighbour.confirmed)

    def _transmit(self, neighbour: _Neighbour, update: RoutesUpdate, changes: int) -> None:
        context = self._context
        left_s = context.waits.longest_left_s(neighbour.name, context.now)
        wait_s = min((context.config.period_s if left_s is None else left_s) * HOP_WAIT_SHARE, 60.0)
        passing = Passing.of(context.accounts.passing(without=neighbour.name))
        update = update.model_copy(update={"wait_s": wait_s, "accounts_passed": passing})
        request_id = context.request(neighbour.name, update, "update", neighbour.name)
        neighbour.in_flight = _InFlight(update, request_id, changes)
        neighbour.sent_s = context.now
        context.set_timer(f"update {neighbour.name}", wait_s + context.config.reply_timeout_s)

    def _retransmit(self, neighbour: _Neighbour) -> None:
        if neighbour.in_flight is not None:
            self._context.drop_request(neighbour.in_flight.request_id)
            self._transmit(neighbour, neighbour.in_flight.update, neighbour.in_flight.changes)

    def timed_out(self, name: str) -> None:
        """No answer in time, or time to try again after a failure."""
        neighbour = self._neighbours[name]
        if neighbour.in_flight is None:
            return
        if self._context.now - neighbour.heard_s > SILENT_PERIODS_MAX * self._context.config.period_s:
            self._lose(neighbour, Presence.NO_ANSWER)
        self._retransmit(neighbour)

    def answered(self, name: str, message: Answer) -> None:
        neighbour = self._neighbours[name]
        if isinstance(message, Silence):
            # Its process is not there: nobody waits for it; it is asked again every period.
            self._lose(neighbour, Presence.PROCESS_ABSENT)
            self._context.set_timer(f"update {name}", self._context.config.period_s)
            return
        if isinstance(message, RoutesAccepted | RoutesUnknownBase | Refusal):
            self._hear(neighbour, resend=False)
        if isinstance(message, RoutesAccepted):
            self._accepted(neighbour, message)
        elif isinstance(message, RoutesUnknownBase):
            neighbour.version = max(neighbour.version, message.have or 0)
            if message.have is None:
                neighbour.too_many = None  # it has started anew, perhaps with another limit
            self._begin_anew(neighbour)
        else:
            self._refused(neighbour, message)

    def _begin_anew(self, neighbour: _Neighbour) -> None:
        """What is under way is of no use any more: the whole set comes next."""
        neighbour.in_flight, neighbour.whole_due, neighbour.confirmed = None, True, -1
        self._context.cancel_timer(f"update {neighbour.name}")

    def _refused(self, neighbour: _Neighbour, message: ControlMessage) -> None:
        context, name = self._context, neighbour.name
        offer = context.routes.offers[name]
        problem = detail_of(message)
        if problem != neighbour.refused:
            neighbour.refused = problem
            limit = isinstance(message, Refusal) and message.reason is RefusalReason.LIMIT
            reason = RoutesRefusal.LIMIT if limit else RoutesRefusal.REFUSED
            context.decide(RoutesRefused(name, reason, len(offer.patterns.maximal), problem))
        if isinstance(message, Refusal) and message.reason is RefusalReason.LIMIT:
            # Repeated, it would be refused for ever, and keep back what makes the set smaller.
            neighbour.too_many = len(offer.mirror.held)
            self._begin_anew(neighbour)
            if self._is_too_much(neighbour):
                context.waits.neighbour_lost(name)
        else:
            context.set_timer(f"update {name}", context.config.reply_timeout_s)

    def _accepted(self, neighbour: _Neighbour, message: RoutesAccepted) -> None:
        in_flight = neighbour.in_flight
        if in_flight is None or in_flight.update.version != message.version:
            return
        neighbour.in_flight = None
        neighbour.awaiting = frozenset(message.awaiting) - {self._context.config.head}
        self._context.drop_request(in_flight.request_id)
        self._context.cancel_timer(f"update {neighbour.name}")
        self._confirm(neighbour, in_flight.changes)

    def _confirm(self, neighbour: _Neighbour, changes: int) -> None:
        neighbour.confirmed = changes
        if changes >= 0:
            neighbour.refused, neighbour.too_many = "", None
        self._context.waits.neighbour_confirmed(neighbour.name, changes, neighbour.awaiting)

    # What they tell us

    def on_update(self, message: RoutesUpdate, reply_to: ReplyAddress | None) -> None:
        context = self._context
        neighbour = self._neighbours.get(message.head)
        if neighbour is None:
            context.refuse(reply_to, refusals.stranger(message.head, context.config.head))
            return
        self._hear(neighbour)
        context.accounts.heard(message.head, message.accounts_passed.known)
        have = neighbour.have
        if have is not None and message.version == have:
            self._answer_again(neighbour, reply_to)
        elif self._is_stale(neighbour, message):
            context.reply(reply_to, RoutesUnknownBase(head=context.config.head, have=have))
        else:
            self._apply(neighbour, message, reply_to)

    @staticmethod
    def _is_stale(neighbour: _Neighbour, message: RoutesUpdate) -> bool:
        """Whether an update that is not the last one applied is older, or builds on what we do not have."""
        have = neighbour.have
        if message.base == message.version or (have is not None and message.version < have):
            return True
        return message.base is not None and message.base != have

    def _apply(self, neighbour: _Neighbour, message: RoutesUpdate, reply_to: ReplyAddress | None) -> None:
        context, name = self._context, neighbour.name
        last_part = len(message.add) < ROUTES_PER_UPDATE_MAX
        before: set[str] = set() if message.base is None else neighbour.told
        told = (before | {pattern for pattern in message.add if is_pattern(pattern)}) - set(message.remove)
        limit = context.config.patterns_per_link_max
        if len(told) > limit:
            context.refuse(reply_to, refusals.limit("patterns_per_link_max", limit, "add"))
            return
        if message.base is None:
            # A neighbour that starts anew has forgotten what we told it: find out now rather than next
            # period.
            neighbour.probe_due = True
            if not last_part:
                context.routes.keep_until_settled(name)
        for pattern in sorted(told - neighbour.told):
            context.routes.need(name, pattern)
        for pattern in sorted(neighbour.told - told):
            context.routes.release(name, pattern)
        neighbour.told, neighbour.have = told, message.version
        if last_part:
            context.routes.settle(name)
        neighbour.accepting = _Accepting(message.version, [reply_to] if reply_to else [])
        self.open_wait(f"accept {name}", name, message.wait_s, without=name)
        if message.base is None:
            context.tell_parts(NeighbourAnew(name))

    def _answer_again(self, neighbour: _Neighbour, reply_to: ReplyAddress | None) -> None:
        if reply_to is None:
            return
        if neighbour.accepting is not None:
            neighbour.accepting.replies = joined(neighbour.accepting.replies, reply_to)
            return
        assert neighbour.have is not None
        self._accept(neighbour, neighbour.have, [reply_to], self._unconfirmed(neighbour.name))

    def routes_live(self, name: str, awaiting: set[str]) -> None:
        """What `name` asked for is bound here and confirmed behind us, but for `awaiting`."""
        neighbour = self._neighbours[name]
        accepting, neighbour.accepting = neighbour.accepting, None
        if accepting is not None:
            self._context.close_wait(f"accept {name}")
            self._accept(neighbour, accepting.version, accepting.replies, awaiting)

    def _accept(self, neighbour: _Neighbour, version: int, replies: list[ReplyAddress], awaiting: set[str]) -> None:
        names = tuple(sorted(awaiting - {neighbour.name}))
        message = RoutesAccepted(head=self._context.config.head, version=version, awaiting=names)
        self._context.reply(replies, message)

    def _unconfirmed(self, without: str) -> set[str]:
        """The heads behind us, other than behind `without`, that have not confirmed all of our routes."""
        names: set[str] = set()
        for name, neighbour in self._neighbours.items():
            if name != without and not self.has_confirmed(name):
                names.add(name)
            elif name != without:
                names |= neighbour.awaiting
        return names

    # Who is there

    def _hear(self, neighbour: _Neighbour, resend: bool = True) -> None:
        neighbour.heard_s = self._context.now
        if neighbour.alive:
            return
        if neighbour.lost and resend:
            self._retransmit(neighbour)
        neighbour.alive, neighbour.lost = True, False
        self._context.decide(NeighbourPresence(neighbour.name, Presence.HEARD))

    def _lose(self, neighbour: _Neighbour, why: Presence) -> None:
        if neighbour.alive or not neighbour.lost:
            self._context.decide(NeighbourPresence(neighbour.name, why))
        neighbour.alive, neighbour.lost = False, True
        self._context.waits.neighbour_lost(neighbour.name)

    def status(self) -> tuple[NeighbourStatus, ...]:
        routes = self._context.routes
        return tuple(
            NeighbourStatus(
                head=name,
                alive=neighbour.alive,
                needs=len(routes.needs(name)),
                offered=len(routes.offers[name].patterns.maximal),
            )
            for name, neighbour in self._neighbours.items()
        )

    def validate(self) -> None:
        for name, neighbour in self._neighbours.items():
            offer = self._context.routes.offers[name]
            assert not (neighbour.alive and neighbour.lost), name
            assert neighbour.confirmed <= offer.changes, name
            needed = self._context.routes.needs(name) | self._context.routes.leftovers(name)
            assert all(p in needed or self._context.routes.is_carried(name, p) for p in neighbour.told), name
            if neighbour.confirmed == offer.changes and neighbour.in_flight is None and not neighbour.whole_due:
                assert offer.mirror.held == offer.patterns.maximal, f"{name} is in step but not told all"
