"""Subscriptions that come from another cluster: the side of the head that takes them over.

A neighbour that was told which of our edges have room (`room`) asks to make a place for one subscription after the
other. Invariants:

- a place is confirmed only when it is made and its routes, and the routes of its markers, are live at every head: a
  head that has not confirmed would leave a gap in what the client gets;
- every request may be repeated and gets the same answer; a request that comes after the end of its migration is
  refused;
- the old head gets its acknowledgement when a place that nobody came to is gone, not before: should we be restarted
  meanwhile, and have forgotten, it tells us again;
- a client that leaves before its old head has heard that it moved is kept waiting while we tell it: otherwise
  its old place would wait for it for ever.

What is known of migrations that are over is in `endings`, which edge takes part in which session in `hosting`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing.abroad import AcceptEnd, AcceptReply, AcceptRequest
from tidegate_protocol.balancing.migrations import MigrationAck, MigrationReport, MigrationStage
from tidegate_protocol.decisions import AcceptanceEnded, MoveOutcome, WhyNot
from tidegate_protocol.messages import Refusal
from tidegate_protocol.names import marker_pattern
from tidegate_protocol.rendering import refusals
from tidegate_protocol.rights import may_subscribe

from ...kit.dispatch import Dispatch
from ...kit.outbox import joined
from ...kit.subscriptions import Key
from ...machine import ReplyAddress, Send
from ..context import HeadContext
from ..moving.sessions import Sessions
from ..neighbours import stranger
from ..places.knowledge import Knowledge
from ..places.ledger import USED
from ..places.preparations import Preparations, Prepared
from ..registry import client_of
from .endings import Endings
from .guests import Guests
from .hosting import Hosting

KEPT_TIMEOUTS: Final = 3
"""How many migration time-outs to wait for the end of a migration; the client and its old head need two of them."""

LEAVING_ATTEMPTS_MAX: Final = 6
"""How often a client that leaves is kept waiting until its old head knows that it has moved."""


@dataclass(slots=True)
class _Acceptance:
    request: AcceptRequest
    replies: list[ReplyAddress]
    started_s: float
    reply: AcceptReply | None = None
    told: int = 0
    """How often the old head of a client that leaves already was told that it had moved."""


class Acceptances:
    """The subscriptions on their way to this cluster, by migration."""

    def __init__(
        self,
        context: HeadContext,
        knowledge: Knowledge,
        preparations: Preparations,
        sessions: Sessions,
        guests: Guests,
        endings: Endings,
    ) -> None:
        self._context = context
        self._knowledge = knowledge
        self._preparations = preparations
        self._guests = guests
        self._endings = endings
        self._hosting = Hosting(context, sessions)
        self._accepting: dict[str, _Acceptance] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(AcceptRequest, self.accept)
        dispatch.on_message(AcceptEnd, self.end)
        dispatch.on_timer("acceptance", self._unheard)
        dispatch.checks.append(self.validate)

    # Taking over

    def accept(self, message: AcceptRequest, reply_to: ReplyAddress | None) -> None:
        context = self._context
        known = self._accepting.get(message.migration)
        if known is not None:
            if known.reply is not None:
                context.reply(reply_to, known.reply)
            else:
                known.replies = joined(known.replies, reply_to)
            return
        why_not = self._refusal(message)
        if why_not is not None:
            context.refuse(reply_to, why_not)
            return
        acceptance = _Acceptance(message, [reply_to] if reply_to else [], context.now)
        self._accepting[message.migration] = acceptance
        self._hosting.began(message)
        context.promises.promise(message.migration, message.edge, message.load)
        # Needed before the place is, so that waiting for its routes is waiting for those of the markers too.
        context.routes.need(message.edge, message.marker)
        number = None if message.source is None else message.subscription.number
        origin = {"origin": message.head, "origin_edge": message.source, "origin_number": number}
        terms = message.subscription.model_copy(update=origin)
        self._preparations.start(
            message.migration, message.edge, terms, message.marker, self._prepared, everywhere=True
        )

    def _refusal(self, message: AcceptRequest) -> Refusal | None:
        context, config, edge = self._context, self._context.config, message.edge
        subscription = message.subscription
        if (unknown := stranger(context, message.head)) is not None:
            return unknown
        if message.marker != marker_pattern(message.migration):
            return refusals.wrong_key(message.marker, message.migration, "marker")
        if message.migration in self._endings:
            return refusals.move_over(message.migration)
        if context.stopping or not config.publisher_url:
            return refusals.takes_nothing_new(config.head)
        if edge not in context.registry.edges:
            return refusals.no_such_edge(edge, sorted(context.registry.edges))
        busy = self._hosting.busy(message)
        if busy is not None:
            return refusals.rejected(busy)
        if len(self._accepting) >= config.balancing.migrations_max:
            return refusals.limit("migrations_max", config.balancing.migrations_max)
        limit = config.subscriptions_per_subscriber_max
        if context.registry.count_of(subscription.subscriber) >= limit:
            return refusals.limit("subscriptions_per_subscriber_max", limit)
        if len(context.registry) >= config.subscriptions_max:
            return refusals.limit("subscriptions_max", config.subscriptions_max)
        judgement = may_subscribe(*client_of(subscription), context.rules)
        if not judgement.allowed:
            return refusals.not_allowed(judgement)
        if context.ledger.places_in(client_of(subscription), USED):
            return refusals.has_it_already(subscription.subscriber)
        return None

    def _prepared(self, migration: str, how: Prepared) -> None:
        context = self._context
        acceptance = self._accepting.get(migration)
        if acceptance is None:
            return
        problem = how.problem
        if problem is None and how.awaiting:
            problem = WhyNot(MoveOutcome.NO_ROUTE, how.awaiting)
        replies, acceptance.replies = acceptance.replies, []
        if problem is not None:
            context.refuse(replies, refusals.not_moved(problem))
            self._close(acceptance, moved=False, why=problem)
            return
        acceptance.reply = AcceptReply(
            migration=migration,
            edge=how.edge,
            number=how.subscription.number,
            url=context.registry.edges[how.edge].client_url,
            queue=how.queue,
            head_url=context.config.publisher_url,
        )
        context.reply(replies, acceptance.reply)
        wait_s = KEPT_TIMEOUTS * context.config.balancing.migration_timeout_s
        context.set_timer(f"acceptance {migration}", wait_s)

    def end(self, message: AcceptEnd, reply_to: ReplyAddress | None) -> None:
        """The old head says how it ended."""
        context, acceptance = self._context, self._accepting.get(message.migration)
        edge = message.edge or ""
        if acceptance is None and message.migration not in self._endings and self._knowledge.is_unread(edge):
            # We have just started and may have made a place for it before.
            context.refuse(reply_to, refusals.unread(edge))
            return
        if acceptance is not None and acceptance.request.head == message.head:
            outcome = MoveOutcome.MOVED if message.moved else MoveOutcome.CLIENT_STAYED
            self._close(acceptance, message.moved, WhyNot(outcome))
        elif acceptance is None and message.moved:
            self._came_before_we_started(message)
        elif acceptance is None and not self._endings.stayed(message):
            context.refuse(reply_to, refusals.moves_on(message.subscriber or ""))
            return
        left = self._endings.unremoved(message.migration)
        if left is not None:
            context.refuse(reply_to, refusals.not_removed_yet(left))
        else:
            context.reply(reply_to, MigrationAck(migration=message.migration))

    def _unheard(self, migration: str) -> None:
        """Nobody said how it ended."""
        acceptance = self._accepting.get(migration)
        if acceptance is None or acceptance.reply is None:
            return
        reply, message = acceptance.reply, acceptance.request
        self._close(acceptance, moved=True, why=WhyNot(MoveOutcome.END_UNHEARD))
        place = (reply.edge, (message.subscription.subscriber, reply.number))
        self._endings.unheard(migration, message.head, message.subscription, place)

    # Leaving right after coming

    def leaves_too_early(self, key: Key) -> bool:
        """Whether this subscription, which its client wants to end, is one that its old head still counts as its own.

        Then that head is told that the client has moved, a bounded number of times, and answers with `AcceptEnd`.
        """
        for acceptance in self._accepting.values():
            reply, terms = acceptance.reply, acceptance.request.subscription
            if reply is not None and (terms.subscriber, reply.number) == key:
                return self._tell_moved(acceptance, reply)
        return False

    def _tell_moved(self, acceptance: _Acceptance, reply: AcceptReply) -> bool:
        if acceptance.told >= LEAVING_ATTEMPTS_MAX:
            return False
        acceptance.told += 1
        terms = acceptance.request.subscription
        report = MigrationReport(
            migration=reply.migration,
            subscriber=terms.subscriber,
            stage=MigrationStage.MOVED,
            pattern=terms.pattern,
            edge=reply.edge,
            number=reply.number,
            other_edge=acceptance.request.source,
            other_number=terms.number,
        )
        self._context.do(Send(acceptance.request.head, report))
        return True

    def _close(self, acceptance: _Acceptance, moved: bool, why: WhyNot) -> None:
        context, message = self._context, acceptance.request
        migration, balancing = message.migration, context.config.balancing
        del self._accepting[migration]
        unused = not moved and migration in self._preparations
        self._endings.ended(migration, self._preparations.place(migration) if unused else None)
        context.cancel_timer(f"acceptance {migration}")
        if moved:
            self._preparations.taken(migration)
            self._guests.guest_came(message.head, acceptance.started_s)
            context.promises.keep(migration, context.now + balancing.stabilizing_min_s)
            context.cooldowns.rest(client_of(message.subscription), context.now + balancing.cooldown_s)
        else:
            self._preparations.given_up(migration)
            context.promises.drop(migration)
        context.routes.release(message.edge, message.marker)
        self._hosting.ended(message, moved)
        context.refuse(acceptance.replies, refusals.move_over(migration))
        way = *client_of(message.subscription), message.head, message.edge
        context.decide(AcceptanceEnded(*way, why.outcome, why.who, why.detail, why.unfit, session=migration))

    def _came_before_we_started(self, message: AcceptEnd) -> None:
        """A client has moved here that we don't remember having accepted. It has been moved all the same, and rests."""
        context = self._context
        subscriber, pattern = message.subscriber, message.pattern
        if message.migration not in self._endings and subscriber is not None and pattern is not None:
            context.cooldowns.rest((subscriber, pattern), context.now + context.config.balancing.cooldown_s)
        self._endings.ended(message.migration)

    def validate(self) -> None:
        """Raise AssertionError if a migration is both under way and ended, or its markers have no route."""
        for migration, acceptance in self._accepting.items():
            edge, marker = acceptance.request.edge, acceptance.request.marker
            assert migration not in self._endings, f"{migration} is over"
            assert self._context.routes.is_carried(edge, marker), f"the markers of {migration}"
            assert migration in self._preparations, f"{migration} has no place here"
        self._hosting.validate({(one.request.edge, migration) for migration, one in self._accepting.items()})
