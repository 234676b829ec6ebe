"""Allocation: a client asks for a subscription and is told which edge and queue to take it from.

A subscription is granted when its edge has the output queue, the edge's link is bound, and the neighbours
have confirmed their routes or the time for that is over. What always holds:

- one allocation per subscriber and pattern is under way; repetitions are answered together, with the latest
  terms;
- a subscription that exists keeps its edge and number, so that a client coming back finds what waited for it.
  It keeps them even while its edge's process is not there, because the edge's RabbitMQ goes on without it. Only if
  the edge has been silent for long and the client can't reach it either, it gets another place; the old one is
  *abandoned*, and what waits there is fetched when the edge is back;
- of several places without a grant the oldest wins: everything that its client lacks is there. Whether the others are
  of any use is found out elsewhere; nothing is removed here but what this allocation made in vain;
- during a migration the client is told its old place, and about the migration once more;
- an edge that does not answer, or refuses, is passed over for the next best one, at most `EDGES_TRIED_MAX` in
  all. The next one gets another number: the first may have made its queue after all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate_protocol.messages import (
    ControlMessage,
    OutputPrepare,
    OutputReady,
    OutputRemove,
    Refusal,
    RefusalReason,
    SubscribeReply,
    SubscribeRequest,
    Subscription,
)
from tidegate_protocol.names import output_queue

from .config import EDGES_TRIED_MAX, REPLIES_JOINED_MAX
from .context import HeadContext
from .dispatch import Dispatch
from .edges import Edges
from .guests import Guests
from .insights import Insights
from .machine import Decision, ReplyAddress, Send
from .migrations import Migrations
from .neighbours import Neighbours
from .policies import policy_named
from .registry import Key, key_of
from .removals import Removals


@dataclass(slots=True)
class _Allocation:
    request: SubscribeRequest
    replies: list[ReplyAddress]
    edge: str
    subscription: Subscription
    known: Subscription | None
    """What this subscriber had on this edge before, if anything."""
    instead_of: tuple[str, Key] | None = None
    """The place on an edge that is away, to be abandoned once another is granted."""
    tried: dict[str, str] = field(default_factory=dict)
    request_id: str = ""
    ready: bool = False
    awaiting: set[str] | None = None
    decision: Decision | None = None

    @property
    def place(self) -> tuple[str, Key]:
        return self.edge, key_of(self.subscription)


class Allocations:
    """The allocations under way, by subscriber and pattern."""

    def __init__(
        self,
        context: HeadContext,
        edges: Edges,
        removals: Removals,
        neighbours: Neighbours,
        migrations: Migrations,
        guests: Guests,
        insights: Insights,
    ) -> None:
        self._context = context
        self._edges = edges
        self._removals = removals
        self._neighbours = neighbours
        self._migrations = migrations
        self._guests = guests
        self._insights = insights
        self._policy = policy_named(context.config.balancing.policy, context.config.balancing.seed)
        self._pending: dict[str, _Allocation] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_request("prepare", self.answered, self.undeliverable)
        dispatch.on_timer("prepare", self.timed_out)
        dispatch.on_wait("grant", self.routes_live, self.routes_failed)
        dispatch.stops.append(self.stop)
        dispatch.checks.append(self.validate)

    def __len__(self) -> int:
        return len(self._pending)

    def holds(self, key: Key) -> bool:
        """Whether an allocation of this subscriber and number is under way."""
        return any(key_of(a.subscription) == key for a in self._pending.values() if a.request.subscriber == key[0])

    def allocates(self, subscriber: str, pattern: str) -> bool:
        return f"{subscriber} {pattern}" in self._pending

    def subscribe(self, request: SubscribeRequest, reply_to: ReplyAddress | None) -> None:
        if reply_to is None:
            return  # nobody to tell where to go
        subject = f"{request.subscriber} {request.pattern}"
        if subject in self._pending:
            self._join(subject, request, reply_to)
            return
        limit = self._context.config.pending_max
        if len(self._pending) >= limit:
            self._put_off(reply_to, RefusalReason.LIMIT, f"pending_max = {limit} allocations are under way")
            return
        found = self._existing(request)
        moving = self._migrations.of(request.subscriber, request.pattern)
        if found is None and self._is_reserved(request):
            self._put_off(reply_to, RefusalReason.CONFLICT, "this subscription is just being moved")
        elif found is None and not self._sent_after(request, reply_to):
            self._allocate_new(subject, request, reply_to)
        elif found is None:
            return
        elif request.unreachable != found[0] or not self._edges.away(found[0]):
            self._confirm_existing(subject, request, reply_to, found)
        elif moving is not None:
            self._migrations.failed(moving, f"its client can't reach {found[0]}")
            self._put_off(reply_to, RefusalReason.CONFLICT, "this subscription was just being moved")
        else:
            self._allocate_new(subject, request, reply_to, (found[0], key_of(found[1])))

    def _sent_after(self, request: SubscribeRequest, reply_to: ReplyAddress) -> bool:
        """Whether the client was moved to another cluster, does not know, and was told now.

        It asks that head from now on, so that it will also be that head who finds it another place if this one is gone.
        """
        client = (request.subscriber, request.pattern)
        departure = self._context.departures.find(client)
        if departure is None:
            return False
        place = departure.place
        if request.unreachable is not None:
            self._context.departures.forget(client)
            return False
        self._context.reply(
            reply_to,
            SubscribeReply(
                subscription=departure.subscription,
                edge=place.edge,
                url=place.url,
                queue=place.queue,
                head=place.head,
                head_url=place.head_url,
            ),
        )
        reason = f"it was moved to {place.edge} of {place.head} and asks where it was before"
        self._context.decide(Decision("sent-after", f"{client[0]} {client[1]}", reason))
        return True

    def _existing(self, request: SubscribeRequest) -> tuple[str, Subscription] | None:
        """The place that this client is to use, of those there are."""
        context = self._context

        def preference(place: tuple[str, Subscription]) -> tuple[bool, bool, int, str]:
            edge, subscription = place
            at = (edge, key_of(subscription))
            return at in context.abandoned, at not in context.granted, subscription.number, edge

        places = [
            (edge, subscription)
            for edge, subscription in context.registry.find(request.subscriber, request.pattern)
            if (edge, key_of(subscription)) not in context.reserved
            and not self._removals.is_discarded((edge, key_of(subscription)))
        ]
        return min(places, key=preference, default=None)

    def _is_reserved(self, request: SubscribeRequest) -> bool:
        found = self._context.registry.find(request.subscriber, request.pattern)
        return any((edge, key_of(subscription)) in self._context.reserved for edge, subscription in found)

    def _join(self, subject: str, request: SubscribeRequest, reply_to: ReplyAddress) -> None:
        allocation = self._pending[subject]
        allocation.replies = [*allocation.replies, reply_to][-REPLIES_JOINED_MAX:]
        allocation.request = request
        known = allocation.subscription
        wanted = _renewed(known, request)
        if wanted != known:
            self._context.drop_request(allocation.request_id)
            allocation.subscription = wanted
            if allocation.known is None:
                self._context.enter(allocation.edge, allocation.subscription)
            self._prepare(subject, allocation)

    def _confirm_existing(
        self,
        subject: str,
        request: SubscribeRequest,
        reply_to: ReplyAddress,
        found: tuple[str, Subscription],
    ) -> None:
        context, (edge, known) = self._context, found
        if (edge, key_of(known)) in self._removals:
            self._put_off(reply_to, RefusalReason.CONFLICT, "this subscription is just being removed")
            return
        if not context.registry.edges[edge].client_url:
            self._put_off(reply_to, RefusalReason.NOT_READY, f"the address of {edge} is not known yet")
            return
        allocation = _Allocation(request, [reply_to], edge, _renewed(known, request), known)
        self._begin(subject, allocation)

    def _allocate_new(
        self,
        subject: str,
        request: SubscribeRequest,
        reply_to: ReplyAddress,
        instead_of: tuple[str, Key] | None = None,
    ) -> None:
        context, config = self._context, self._context.config
        unread = self._edges.may_hold(request.pattern)
        if unread is not None:
            self._put_off(reply_to, RefusalReason.NOT_READY, f"just started; {unread} may hold this subscription")
            return
        unheard = self._guests.unheard()
        if unheard is not None:
            self._put_off(reply_to, RefusalReason.NOT_READY, f"just started; {unheard} may have this client")
            return
        limit = config.subscriptions_per_subscriber_max
        if context.registry.count_of(request.subscriber) >= limit:
            text = f"{request.subscriber} has subscriptions_per_subscriber_max = {limit} subscriptions"
            context.refuse(reply_to, RefusalReason.LIMIT, text, "subscriber")
            return
        if len(context.registry) >= config.subscriptions_max:
            text = f"this cluster holds subscriptions_max = {config.subscriptions_max} subscriptions"
            context.refuse(reply_to, RefusalReason.LIMIT, text)
            return
        allocation = _Allocation(request, [reply_to], "", _subscription(request, 0), None, instead_of)
        self._try_next(subject, allocation)

    # One edge after another

    def _try_next(self, subject: str, allocation: _Allocation) -> None:
        context, request = self._context, allocation.request
        excluded = dict(allocation.tried)
        fit = []
        for name in sorted(context.registry.edges):
            why_not = self._edges.unfit(name, request.pattern)
            if name in allocation.tried:
                continue
            if why_not is not None:
                excluded[name] = why_not
            else:
                fit.append(context.registry.edges[name])
        healthy = [record for record in fit if not record.alarms]
        for record in fit if healthy else ():
            if record.alarms:
                excluded[record.name] = f"its RabbitMQ has an alarm: {', '.join(record.alarms)}"
        candidates = [record.view() for record in healthy or fit]
        placement = None
        if len(allocation.tried) < EDGES_TRIED_MAX:
            placement = self._insights.place(
                self._policy,
                request.pattern,
                candidates,
                expected=context.expected(),
                excluded=excluded,
                subject=request.subscriber,
            )
        if placement is None:
            self._refuse_all(allocation, RefusalReason.NO_EDGE, _no_edge_text(excluded))
            context.decide(Decision("placement", subject, "no edge", rejected=excluded))
            return
        allocation.edge = placement.edge
        allocation.subscription = _subscription(request, self._edges.number_for(request.subscriber))
        allocation.decision = placement.decision
        self._removals.keep(*allocation.place)
        context.enter(placement.edge, allocation.subscription)
        self._begin(subject, allocation)

    def _begin(self, subject: str, allocation: _Allocation) -> None:
        self._pending[subject] = allocation
        allocation.ready, allocation.awaiting = False, None
        self._context.begin(*allocation.place)
        self._prepare(subject, allocation)
        budget_s = self._context.config.routes_wait_s
        self._neighbours.open_wait(f"grant {subject}", allocation.edge, budget_s)

    def _prepare(self, subject: str, allocation: _Allocation) -> None:
        allocation.ready = False
        message = OutputPrepare(subscription=allocation.subscription)
        allocation.request_id = self._context.request(allocation.edge, message, "prepare", subject)
        self._context.set_timer(f"prepare {subject}", self._context.config.reply_timeout_s)

    def answered(self, subject: str, message: ControlMessage) -> None:
        allocation = self._pending.get(subject)
        if allocation is None:
            return
        if isinstance(message, OutputReady) and message.subscription == allocation.subscription:
            self._context.cancel_timer(f"prepare {subject}")
            self._context.enter(allocation.edge, allocation.subscription)
            allocation.ready = True
            self._finish_if_live(subject)
            return
        text = message.message if isinstance(message, Refusal) else f"answered with {message.kind}"
        self._edge_failed(subject, text, refused=True)

    def timed_out(self, subject: str) -> None:
        if subject in self._pending:
            self._edge_failed(subject, "did not answer in time")

    def undeliverable(self, subject: str) -> None:
        """Its edge is not there."""
        allocation = self._pending.get(subject)
        if allocation is not None:
            self._edges.lost(allocation.edge)
            self._edge_failed(subject, "its process is not there", reached=False)

    def _edge_failed(self, subject: str, why: str, refused: bool = False, reached: bool = True) -> None:
        allocation = self._pending[subject]
        self._context.drop_request(allocation.request_id)
        if allocation.known is None:
            self._give_back(subject, allocation, tell=reached)
            allocation.tried[allocation.edge] = why
            self._try_next(subject, allocation)
        elif allocation.known == allocation.subscription and not refused:
            # The queue was there when its edge was last heard of, and its RabbitMQ goes on without our
            # process.
            allocation.ready = True
            self._finish_if_live(subject)
        else:
            self._close(subject, allocation)
            reason = RefusalReason.FAILED if refused else RefusalReason.NOT_READY
            self._refuse_all(allocation, reason, f"{allocation.edge}: {why}")

    def _give_back(self, subject: str, allocation: _Allocation, tell: bool) -> None:
        """Undo what was reserved on an edge. Tell it, as it may have made the queue all the same."""
        edge, key = allocation.place
        self._close(subject, allocation)
        self._context.withdraw(edge, key)
        self._removals.note_discarded(edge, key)
        if tell:
            self._context.do(Send(edge, OutputRemove(subscriber=key[0], number=key[1])))

    def _close(self, subject: str, allocation: _Allocation) -> None:
        del self._pending[subject]
        self._context.end(*allocation.place)
        self._context.drop_request(allocation.request_id)
        self._context.waits.close(f"grant {subject}")
        self._context.cancel_timer(f"prepare {subject}")
        self._context.cancel_timer(f"wait grant {subject}")

    # The end

    def routes_live(self, subject: str, awaiting: set[str]) -> None:
        """The edge's link is bound and the neighbours have confirmed, but for `awaiting`."""
        allocation = self._pending.get(subject)
        if allocation is not None:
            allocation.awaiting = awaiting
            self._finish_if_live(subject)

    def routes_failed(self, subject: str, problem: str) -> None:
        """RabbitMQ refused the binding."""
        allocation = self._pending.get(subject)
        if allocation is None:
            return
        if allocation.known is None:
            self._give_back(subject, allocation, tell=True)
        else:
            self._close(subject, allocation)
        self._refuse_all(allocation, RefusalReason.FAILED, f"the route could not be bound: {problem}")

    def _finish_if_live(self, subject: str) -> None:
        allocation = self._pending[subject]
        if not allocation.ready or allocation.awaiting is None:
            return
        context = self._context
        edge, key = allocation.place
        self._close(subject, allocation)
        if allocation.known is not None and not self._still_there(edge, key):
            # Its client moved, or left, while its edge was asked: what holds now is found by asking anew.
            for reply_to in allocation.replies:
                self.subscribe(allocation.request, reply_to)
            return
        old = allocation.instead_of
        if old is not None and context.registry.get(*old) is not None:
            context.granted.discard(old)
            context.abandoned.add(old)
            context.decide(Decision("place-abandoned", subject, f"{old[0]} is away and its client can't reach it"))
        context.abandoned.discard((edge, key))
        context.granted.add((edge, key))
        client = (allocation.request.subscriber, allocation.request.pattern)
        context.departures.forget(client)
        context.note_told(client)
        reply = SubscribeReply(
            subscription=allocation.subscription,
            edge=edge,
            url=context.registry.edges[edge].client_url,
            queue=output_queue(*key),
            awaiting=tuple(sorted(allocation.awaiting)),
        )
        for reply_to in allocation.replies:
            context.reply(reply_to, reply)
        if allocation.decision is not None:
            context.decide(allocation.decision)
        self._migrations.resubscribed(edge, allocation.subscription)

    def _still_there(self, edge: str, key: Key) -> bool:
        place = (edge, key)
        gone = self._removals.is_discarded(place) or place in self._removals
        return self._context.registry.get(edge, key) is not None and not gone

    def stop(self) -> None:
        """The process ends: whoever waits may ask its successor."""
        for subject, allocation in sorted(self._pending.items()):
            if allocation.known is None:
                self._give_back(subject, allocation, tell=True)
            else:
                self._close(subject, allocation)
            self._refuse_all(allocation, RefusalReason.NOT_READY, "this head is being stopped; ask again")

    def _refuse_all(self, allocation: _Allocation, reason: RefusalReason, text: str) -> None:
        for reply_to in allocation.replies:
            self._put_off(reply_to, reason, text)

    def _put_off(self, reply_to: ReplyAddress, reason: RefusalReason, text: str) -> None:
        self._context.refuse(reply_to, reason, text[:1_000], retry_after_s=self._context.config.period_s)

    def validate(self) -> None:
        for subject, allocation in self._pending.items():
            assert subject == f"{allocation.request.subscriber} {allocation.request.pattern}"
            edge, key = allocation.place
            assert key in self._context.busy[edge], f"{subject} is under way but not busy"
            if allocation.known is None:
                assert self._context.registry.get(edge, key) is not None, f"{subject} has no place reserved"
            assert not (allocation.ready and allocation.awaiting is not None), f"{subject} is live but not granted"


def _subscription(request: SubscribeRequest, number: int) -> Subscription:
    return Subscription(
        subscriber=request.subscriber,
        number=number,
        pattern=request.pattern,
        deadline_us=request.deadline_us,
        expires_s=request.expires_s,
    )


def _renewed(known: Subscription, request: SubscribeRequest) -> Subscription:
    """What we know of it, on the terms of the request."""
    return known.model_copy(update={"deadline_us": request.deadline_us, "expires_s": request.expires_s})


def _no_edge_text(excluded: dict[str, str]) -> str:
    if not excluded:
        return "no edge has been heard of yet; start one, or ask again"
    return "no edge can take it: " + "; ".join(f"{name}: {why}" for name, why in sorted(excluded.items()))
