"""Allocation: a client asks for a subscription and is told which edge and queue to take it from.

A subscription is granted when its edge has the output queue, the edge's link is bound, and the neighbours
have confirmed their routes or the time for that is over. Invariants:

- one allocation per subscriber and pattern is under way; repetitions are answered together, with the latest
  terms;
- a subscription that exists keeps its edge and number, so that a client coming back finds what waited for it.
  It keeps them even while its edge's process is not there, because the edge's RabbitMQ goes on without it. Only if
  the edge has been silent for long and the client can't reach it either, it gets another place; the old one is
  *abandoned*, and what waits there is fetched when the edge is back;
- of several places without a grant the oldest wins: everything that its client lacks is there. Whether the other places
  are of any use is found out by `doubts`; nothing is removed here but what this allocation made in vain;
- during a migration the client is told its old place, and about the migration once more;
- an edge that does not answer, or refuses, is passed over for the next best one, at most `EDGES_TRIED_MAX` in
  all. The next one gets another number: the first may have made its queue after all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate_protocol.decisions import (
    MoveOutcome,
    PlaceAbandoned,
    Placed,
    PlacementReason,
    Rejected,
    SentAfter,
    WhyNot,
)
from tidegate_protocol.messages import (
    OutputPrepare,
    OutputReady,
    OutputRemove,
    Refusal,
    SubscribeReply,
    SubscribeRequest,
    Subscription,
)
from tidegate_protocol.names import output_queue
from tidegate_protocol.rendering import refusals

from ...config import EDGES_TRIED_MAX
from ...kit.answers import rejected_for
from ...kit.calls import Answer, Calls, Silence
from ...kit.dispatch import Dispatch
from ...kit.outbox import joined
from ...kit.subscriptions import Key
from ...machine import ReplyAddress, Send
from ..context import HeadContext
from ..edges import Edges
from ..moving.migrations import Migrations
from ..neighbours import Neighbours
from ..registry import Client, Place, client_of, place_of
from .doubts import Doubts
from .knowledge import PLACE, Knowledge
from .ledger import ABANDONED, RESERVED, USED, Operation
from .placing import Placing


@dataclass(slots=True)
class _Allocation:
    request: SubscribeRequest
    replies: list[ReplyAddress]
    edge: str
    subscription: Subscription
    known: Subscription | None
    """What this subscriber had on this edge before, if anything."""
    instead_of: Place | None = None
    """The place on an edge that is away, to be abandoned once another is granted."""
    tried: dict[str, Rejected] = field(default_factory=dict)
    ready: bool = False
    awaiting: set[str] | None = None
    decision: Placed | None = None

    @property
    def client(self) -> Client:
        return client_of(self.subscription)

    @property
    def place(self) -> Place:
        return place_of(self.edge, self.subscription)


class Allocations:
    """The allocations under way, by subscriber and pattern."""

    def __init__(
        self,
        context: HeadContext,
        edges: Edges,
        neighbours: Neighbours,
        migrations: Migrations,
        knowledge: Knowledge,
        placing: Placing,
        doubts: Doubts,
    ) -> None:
        self._context = context
        self._edges = edges
        self._neighbours = neighbours
        self._migrations = migrations
        self._knowledge = knowledge
        self._placing = placing
        self._doubts = doubts
        self._calls = Calls(context, "prepare", context.config.reply_timeout_s, self._heard)
        self._pending: dict[str, _Allocation] = {}

    def register(self, dispatch: Dispatch) -> None:
        self._calls.register(dispatch)
        dispatch.on_wait("grant", self.routes_live, self.routes_failed)
        dispatch.stops.append(self.stop)
        dispatch.checks.append(self.validate)

    def __len__(self) -> int:
        return len(self._pending)

    def holds(self, key: Key) -> bool:
        """Whether an allocation of this subscriber and number is under way."""
        context = self._context
        return any(context.ledger.runs(Operation.ALLOCATION, (edge, key)) for edge in context.registry.holders(key))

    def subscribe(self, request: SubscribeRequest, reply_to: ReplyAddress | None) -> None:
        if reply_to is None:
            return  # nobody to tell where to go
        subject = f"{request.subscriber} {request.pattern}"
        if subject in self._pending:
            self._join(subject, request, reply_to)
            return
        limit = self._context.config.pending_max
        if len(self._pending) >= limit:
            self._put_off(reply_to, refusals.limit("pending_max", limit))
            return
        found = self._existing(request)
        moving = self._context.ledger.under_way(Operation.MIGRATION, (request.subscriber, request.pattern))
        if found is None and self._is_reserved(request):
            self._put_off(reply_to, refusals.being_moved())
        elif found is None and not self._sent_after(request, reply_to):
            self._allocate_new(subject, request, reply_to)
        elif found is None:
            return
        elif request.unreachable != found[0] or not self._edges.away(found[0]):
            self._confirm_existing(subject, request, reply_to, found)
        elif moving is not None:
            self._migrations.failed(moving, WhyNot(MoveOutcome.CLIENT_UNREACHABLE, (found[0],)))
            self._put_off(reply_to, refusals.being_moved())
        else:
            self._allocate_new(subject, request, reply_to, place_of(*found))

    def _sent_after(self, request: SubscribeRequest, reply_to: ReplyAddress) -> bool:
        """Whether the client was moved to another cluster, does not know, and was told now.

        It asks that head from now on, so that it will also be that head who finds it another place if this one is gone.
        """
        client = (request.subscriber, request.pattern)
        departure = self._context.ledger.departure(client)
        if departure is None:
            return False
        place = departure.place
        if request.unreachable is not None:
            self._context.ledger.returned(client)
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
                checked_accounts=self._context.accounts.allowed,
                checked_times=self._context.config.checked_times,
            ),
        )
        self._context.decide(SentAfter(*client, place.head, place.edge))
        return True

    def _existing(self, request: SubscribeRequest) -> tuple[str, Subscription] | None:
        """The place that this client is to use, of those there are."""
        ledger = self._context.ledger

        def preference(place: tuple[str, Subscription]) -> tuple[bool, bool, int, str]:
            edge, subscription = place
            state = ledger.state(place_of(edge, subscription))
            return state is ABANDONED, state is not USED, subscription.number, edge

        found = self._context.registry.find(request.subscriber, request.pattern)
        places = [place for place in found if ledger.may_begin(Operation.ALLOCATION, place_of(*place))]
        return min(places, key=preference, default=None)

    def _is_reserved(self, request: SubscribeRequest) -> bool:
        return bool(self._context.ledger.places_in((request.subscriber, request.pattern), RESERVED))

    def _join(self, subject: str, request: SubscribeRequest, reply_to: ReplyAddress) -> None:
        allocation = self._pending[subject]
        allocation.replies = joined(allocation.replies, reply_to)
        allocation.request = request
        known = allocation.subscription
        wanted = _renewed(known, request)
        if wanted != known:
            allocation.subscription = wanted
            if allocation.known is None:
                self._context.ledger.renew(allocation.edge, allocation.subscription)
            self._prepare(subject, allocation)

    def _confirm_existing(
        self,
        subject: str,
        request: SubscribeRequest,
        reply_to: ReplyAddress,
        found: tuple[str, Subscription],
    ) -> None:
        context, (edge, known) = self._context, found
        if context.ledger.runs(Operation.REMOVAL, place_of(edge, known)):
            self._put_off(reply_to, refusals.being_removed())
            return
        if not context.registry.edges[edge].client_url:
            self._put_off(reply_to, refusals.no_address(edge))
            return
        allocation = _Allocation(request, [reply_to], edge, _renewed(known, request), known)
        self._begin(subject, allocation)

    def _allocate_new(
        self,
        subject: str,
        request: SubscribeRequest,
        reply_to: ReplyAddress,
        instead_of: Place | None = None,
    ) -> None:
        context, config = self._context, self._context.config
        unknown = self._knowledge.gap(PLACE, (request.subscriber, request.pattern))
        if unknown is not None:
            self._put_off(reply_to, refusals.rejected(unknown))
            return
        limit = config.subscriptions_per_subscriber_max
        if context.registry.count_of(request.subscriber) >= limit:
            context.refuse(reply_to, refusals.limit("subscriptions_per_subscriber_max", limit, "subscriber"))
            return
        over = context.usage.refuses_subscription(request.subscriber) if instead_of is None else None
        if over is not None:
            context.refuse(reply_to, refusals.over_quota(over, "subscriber"))
            return
        if len(context.registry) >= config.subscriptions_max:
            context.refuse(reply_to, refusals.limit("subscriptions_max", config.subscriptions_max))
            return
        allocation = _Allocation(request, [reply_to], "", _subscription(request, 0), None, instead_of)
        self._try_next(subject, allocation)

    # One edge after another

    def _try_next(self, subject: str, allocation: _Allocation) -> None:
        context, request = self._context, allocation.request
        placement, excluded = self._placing.place(request.pattern, request.subscriber, tried=allocation.tried)
        if placement is None or len(allocation.tried) >= EDGES_TRIED_MAX:
            named = tuple(sorted(excluded, key=lambda why: why.name))
            nowhere = Placed(request.pattern, PlacementReason.NO_EDGE, subscriber=request.subscriber, rejected=named)
            self._put_off(allocation.replies, refusals.no_edge(named))
            context.decide(nowhere)
            return
        allocation.edge = placement.edge
        allocation.subscription = _subscription(request, self._edges.number_for(request.subscriber))
        allocation.decision = placement.decision
        context.ledger.ask(placement.edge, allocation.subscription)
        self._begin(subject, allocation)

    def _begin(self, subject: str, allocation: _Allocation) -> None:
        self._pending[subject] = allocation
        allocation.ready, allocation.awaiting = False, None
        self._context.ledger.begin(Operation.ALLOCATION, allocation.place, allocation.client, subject)
        self._prepare(subject, allocation)
        budget_s = self._context.config.routes_wait_s
        self._neighbours.open_wait(f"grant {subject}", allocation.edge, budget_s)

    def _prepare(self, subject: str, allocation: _Allocation) -> None:
        allocation.ready = False
        self._calls.ask(subject, allocation.edge, OutputPrepare(subscription=allocation.subscription), attempts_max=1)

    def _heard(self, subject: str, answer: Answer) -> None:
        allocation = self._pending[subject]
        self._calls.close(subject)
        if isinstance(answer, OutputReady) and answer.subscription == allocation.subscription:
            self._context.ledger.renew(allocation.edge, allocation.subscription)
            allocation.ready = True
            self._finish_if_live(subject)
            return
        if answer is Silence.ABSENT:
            self._edges.lost(allocation.edge)
        self._edge_failed(subject, answer)

    def _edge_failed(self, subject: str, answer: Answer) -> None:
        allocation, refused = self._pending[subject], not isinstance(answer, Silence)
        if allocation.known is None:
            self._give_back(subject, allocation, tell=answer is not Silence.ABSENT)
            allocation.tried[allocation.edge] = rejected_for(allocation.edge, answer)
            self._try_next(subject, allocation)
        elif allocation.known == allocation.subscription and not refused:
            # The queue was there when its edge was last heard of, and its RabbitMQ goes on without our
            # process.
            allocation.ready = True
            self._finish_if_live(subject)
        else:
            self._close(subject, allocation)
            self._put_off(allocation.replies, refusals.rejected(rejected_for(allocation.edge, answer)))

    def _give_back(self, subject: str, allocation: _Allocation, tell: bool) -> None:
        """Undo what was reserved on an edge. Tell it, as it may have made the queue all the same."""
        edge, key = allocation.place
        self._close(subject, allocation)
        self._context.ledger.withdraw((edge, key))
        self._context.ledger.discard((edge, key))
        if tell:
            self._context.do(Send(edge, OutputRemove(subscriber=key[0], number=key[1])))

    def _close(self, subject: str, allocation: _Allocation) -> None:
        del self._pending[subject]
        self._context.ledger.end(Operation.ALLOCATION, allocation.place, allocation.client)
        self._calls.close(subject)
        self._context.close_wait(f"grant {subject}")

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
        self._put_off(allocation.replies, refusals.no_route(problem))

    def _finish_if_live(self, subject: str) -> None:
        allocation = self._pending[subject]
        if not allocation.ready or allocation.awaiting is None:
            return
        context = self._context
        edge, key = allocation.place
        self._close(subject, allocation)
        if context.registry.get(edge, key) is None or context.ledger.is_leaving((edge, key)):
            # Its client moved, or left, while its edge was asked: what holds now is found by asking anew.
            for reply_to in allocation.replies:
                self.subscribe(allocation.request, reply_to)
            return
        old = allocation.instead_of
        if old is not None and context.registry.get(*old) is not None:
            context.ledger.abandon(old)
            context.decide(PlaceAbandoned(allocation.request.subscriber, allocation.request.pattern, old[0]))
        context.ledger.use((edge, key))
        client = allocation.client
        context.ledger.told(client)
        self._doubts.client_told(client)
        reply = SubscribeReply(
            subscription=allocation.subscription,
            edge=edge,
            url=context.registry.edges[edge].client_url,
            queue=output_queue(*key),
            awaiting=tuple(sorted(allocation.awaiting)),
            checked_accounts=context.accounts.allowed,
            checked_times=context.config.checked_times,
        )
        context.reply(allocation.replies, reply)
        if allocation.decision is not None:
            context.decide(allocation.decision)
        self._migrations.resubscribed(edge, allocation.subscription)

    def forbid(self, client: Client, refusal: Refusal) -> None:
        """This client may not have this subscription any more: who waits for it is told."""
        subject = f"{client[0]} {client[1]}"
        allocation = self._pending.get(subject)
        if allocation is None:
            return
        if allocation.known is None:
            self._give_back(subject, allocation, tell=True)
        else:
            self._close(subject, allocation)
        self._context.refuse(allocation.replies, refusal)

    def stop(self) -> None:
        """The process ends: clients that wait may ask its successor."""
        for subject, allocation in sorted(self._pending.items()):
            if allocation.known is None:
                self._give_back(subject, allocation, tell=True)
            else:
                self._close(subject, allocation)
            self._put_off(allocation.replies, refusals.stopping(self._context.config.head))

    def _put_off(self, reply_to: ReplyAddress | list[ReplyAddress], refusal: Refusal) -> None:
        self._context.refuse(reply_to, refusal, self._context.config.period_s)

    def validate(self) -> None:
        for subject, allocation in self._pending.items():
            assert subject == f"{allocation.request.subscriber} {allocation.request.pattern}"
            assert self._context.ledger.runs(Operation.ALLOCATION, allocation.place), f"{subject} is not under way"
            if allocation.known is None:
                assert self._context.registry.get(*allocation.place) is not None, f"{subject} has no place"
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
