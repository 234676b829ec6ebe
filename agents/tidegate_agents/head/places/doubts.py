"""Places in doubt: subscriptions found on two edges, and queues whose clients live elsewhere by now.

A head that was restarted in the middle of something may find one subscription on two edges and know neither why nor
which of them its client uses. It asks the client. What the client does not use is *abandoned*: it may hold what the
client never got, so the client is ordered to collect it, and only then it is removed. The same happens with the place
of a client that went elsewhere because its edge was away, once that edge is back.

Invariants:

- nothing is removed here before its client has said that it has taken what was in it. A client that never answers keeps
  all its places; RabbitMQ expires the queues that no client takes from;
- a marker that got lost is followed by another one: a later one says the same;
- a client is asked less and less often; an abandoned place is ordered to be collected until its client has failed at it
  `ORDERS_MAX` times. A client that is away, or busy with another collection, has not failed; nor has a client that
  began to collect: what is left gets less each time. A client that asks for its place has begun anew, and may try as
  often again;
- a place that a migration, an allocation or a removal explains is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing.migrations import MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import CollectOrder, PlaceReply, PlaceRequest
from tidegate_protocol.decisions import CollectionEnded, CollectionOutcome, PlaceSettled, WhyNot
from tidegate_protocol.messages import Refusal, RefusalReason
from tidegate_protocol.names import marker_key, marker_pattern, output_queue

from ...config import CLIENT_ATTEMPTS_MAX
from ...kit.answers import detail_of
from ...kit.backoff import Backoff
from ...kit.calls import Answer, Calls, Silence
from ...kit.dispatch import Dispatch
from ...machine import PublishMarker
from ..context import HeadContext
from ..moving.marker_binds import MarkerBinds
from ..registry import Client, Place, client_of
from .ledger import ABANDONED, USED, Operation
from .removals import Removals

ASK_PART: Final = "place"
PART: Final = "collect"
INQUIRIES_MAX: Final = 100
"""How many clients are asked at once where they are."""
COLLECTIONS_MAX: Final = 100
"""How many places are collected at once."""
ORDERS_MAX: Final = 8
"""At how many collections of one place its client may fail before it is left to RabbitMQ."""
LATER: Final = (RefusalReason.CONFLICT, RefusalReason.NOT_READY)
"""How a client refuses what it may do another time: it collects something else, or has only just started."""
COLLECTION_TIMEOUTS: Final = 4
"""How many times as long as a migration a collection may take: a backlog has its length, and nobody waits for it."""
SLICES_MAX: Final = 1_000
"""How often a client that does collect, but not all of it in time, is ordered to go on."""
PAUSE_MAX_S: Final = 300.0
"""The longest pause between two questions, or two collections, about the same thing."""


@dataclass(slots=True)
class _Inquiry:
    due_s: float
    backoff: Backoff
    asked_s: float = 0.0


@dataclass(slots=True)
class _Waiting:
    """An abandoned place, and when its collection is tried next."""

    due_s: float
    backoff: Backoff
    orders: int = 0
    """How many its client answered and did not carry out."""
    slices: int = 0
    """How often its client collected some of it."""


@dataclass(slots=True)
class _Collection:
    id: str
    place: Place
    pattern: str
    bound: bool = False
    marked_s: float = 0.0
    """When its marker was last asked for."""
    answered: bool = False
    attached: bool = False
    """Whether its client has begun to take what is there."""
    ordered_s: float | None = None
    """When it was first told."""

    @property
    def client(self) -> Client:
        return self.place[1][0], self.pattern


class Doubts:
    """Inquiries and collections of one head."""

    def __init__(self, context: HeadContext, removals: Removals, binds: MarkerBinds) -> None:
        self._context = context
        self._removals = removals
        self._binds = binds
        within_s = context.config.reply_timeout_s
        self._questions = Calls(context, ASK_PART, within_s, self._told)
        self._orders = Calls(context, PART, within_s, self._heard)
        self._inquiries: dict[Client, _Inquiry] = {}
        self._waiting: dict[Place, _Waiting] = {}
        self._collections: dict[str, _Collection] = {}

    def register(self, dispatch: Dispatch) -> None:
        self._questions.register(dispatch)
        self._orders.register(dispatch)
        dispatch.on_failure(PublishMarker, self._marker_failed)
        dispatch.ticks.append(self.tick)
        dispatch.checks.append(self.validate)

    def tick(self) -> None:
        """Every period: ask and order what is due."""
        if not self._context.stopping:
            self._inquire()
            self._collect_due()
            self._mark_again()

    # Two places

    def _inquire(self) -> None:
        context = self._context
        if not context.registry.doubled and not self._inquiries:
            return
        in_doubt = [client for client in sorted(context.registry.doubled) if self._is_in_doubt(client)]
        wanted = set(in_doubt)
        for client in [client for client in self._inquiries if client not in wanted]:
            self._forget_inquiry(client)
        for client in in_doubt:
            inquiry = self._inquiries.setdefault(
                client, _Inquiry(context.now, Backoff(context.config.reply_timeout_s, PAUSE_MAX_S))
            )
            subject = f"{client[0]} {client[1]}"
            idle = subject not in self._questions and len(self._questions) < INQUIRIES_MAX
            if idle and inquiry.due_s <= context.now:
                message = PlaceRequest(subscriber=client[0], pattern=client[1])
                inquiry.asked_s = context.now
                self._questions.ask_client(subject, client[0], message, attempts_max=1)

    def _is_in_doubt(self, client: Client) -> bool:
        return self._context.ledger.is_free(client) and len(self._context.ledger.homes(client)) > 1

    def _told(self, subject: str, answer: Answer) -> None:
        """A client said where it lives, or did not: if that settles nothing it is asked again, later each time."""
        subscriber, _, pattern = subject.partition(" ")
        client = (subscriber, pattern)
        inquiry = self._inquiries[client]
        self._questions.close(subject)
        inquiry.due_s = self._context.now + inquiry.backoff.take()
        if not isinstance(answer, PlaceReply) or (answer.subscriber, answer.pattern) != client:
            return
        if answer.edge is None or answer.number is None or answer.migration is not None:
            return
        if not self._context.ledger.was_told(client, inquiry.asked_s):
            self._settle(client, (answer.edge, (subscriber, answer.number)))

    def _forget_inquiry(self, client: Client) -> None:
        del self._inquiries[client]
        self._questions.close(f"{client[0]} {client[1]}")

    def _settle(self, client: Client, used: Place) -> None:
        """The client uses this place: the others are abandoned."""
        context, ledger = self._context, self._context.ledger
        homes = ledger.homes(client)
        others = [place for place in homes if place != used]
        known = used in homes or ledger.state(used) is ABANDONED
        if not known or not ledger.is_free(client) or not ledger.keep(used):
            return
        for place in others:
            ledger.abandon(place)
        ledger.use(used)
        context.decide(PlaceSettled(*client, used[0], tuple(sorted(place[0] for place in others))))

    # Abandoned places

    def _collect_due(self) -> None:
        context = self._context
        abandoned, edges = sorted(context.ledger.all_in(ABANDONED)), context.registry.edges
        self._waiting = {place: self._waiting[place] for place in abandoned if place in self._waiting}
        places = [p for p in abandoned if edges[p[0]].alive and not context.ledger.runs(Operation.COLLECTION, p)]
        for place in places:
            self._waiting.setdefault(
                place, _Waiting(context.now, Backoff(context.config.balancing.retry_s, PAUSE_MAX_S))
            )
        # Who has waited longest comes first: many who never answer would keep all others from their turn.
        for place in sorted(places, key=lambda p: self._waiting[p].due_s):
            waiting = self._waiting[place]
            due = waiting.due_s <= context.now and waiting.orders < ORDERS_MAX
            if due and len(self._collections) < COLLECTIONS_MAX and self._can_collect(place):
                self._begin(place)

    def _can_collect(self, place: Place) -> bool:
        """Whether its edge is back and its client has another place to live in."""
        context = self._context
        record, known = context.registry.edges[place[0]], context.registry.get(*place)
        if known is None or not record.ready or context.ledger.is_busy(place):
            return False
        client = client_of(known)
        return bool(context.ledger.places_in(client, USED)) and context.ledger.is_free(client)

    def _begin(self, place: Place) -> None:
        context = self._context
        known = context.registry.get(*place)
        assert known is not None
        collection = _Collection(context.new_name("c"), place, known.pattern)
        self._collections[collection.id] = collection
        context.ledger.begin(Operation.COLLECTION, place)
        self._orders.wait(collection.id, context.config.balancing.migration_timeout_s)
        self._mark(collection)

    def _mark(self, collection: _Collection) -> None:
        collection.marked_s = self._context.now
        edge, key = collection.place
        self._binds.start(collection.id, edge, key, marker_pattern(collection.id), self._bound)

    def _bound(self, subject: str, problem: WhyNot | None) -> None:
        collection = self._collections.get(subject)
        if collection is None:
            return
        if problem is not None:
            if not collection.bound:
                self._give_up(collection, CollectionOutcome.NOT_BOUND, problem.detail, failed=False)
            return
        # Everything that went to this queue alone was sent before its client got another place, and so before this.
        self._context.do(PublishMarker(marker_key(subject, self._context.config.head), (collection.place[0],)))
        if not collection.bound:
            collection.bound = True
            self._order(collection)

    def _mark_again(self) -> None:
        """The queue of a client that was too slow is limited and drops what is oldest, markers too: without another one
        its client would wait in vain until the time is over.
        """
        pause_s = self._context.config.balancing.migration_timeout_s
        for name in sorted(self._collections):
            collection = self._collections[name]
            if collection.attached and self._context.now - collection.marked_s >= pause_s:
                self._mark(collection)

    def _order(self, collection: _Collection) -> None:
        context, (edge, key) = self._context, collection.place
        if collection.ordered_s is None:
            collection.ordered_s = context.now
        balancing = context.config.balancing
        order = CollectOrder(
            migration=collection.id,
            subscriber=key[0],
            pattern=collection.pattern,
            edge=edge,
            number=key[1],
            url=context.registry.edges[edge].client_url,
            queue=output_queue(*key),
            heads=(context.config.head,),
            timeout_us=round(COLLECTION_TIMEOUTS * balancing.migration_timeout_s * 1e6),
        )
        self._orders.ask_client(collection.id, key[0], order, attempts_max=CLIENT_ATTEMPTS_MAX)

    def _heard(self, subject: str, answer: Answer) -> None:
        """A client's answer to an order, or the end of the time for what is awaited."""
        collection = self._collections[subject]
        if answer is Silence.ABSENT:
            self._give_up(collection, CollectionOutcome.CLIENT_ABSENT, failed=False)
        elif answer is Silence.LATE:
            untold = not collection.answered and not self._orders.attempts(subject)
            if collection.bound and untold:
                self._order(collection)
            else:
                self._give_up(collection, CollectionOutcome.TIME_OUT, failed=collection.answered)
        elif isinstance(answer, MigrationReport) and answer.migration == subject:
            self._follow(collection, answer)
        else:
            later = isinstance(answer, Refusal) and answer.reason in LATER
            self._give_up(collection, CollectionOutcome.CLIENT_REFUSED, detail_of(answer), failed=not later)

    def client_told(self, client: Client) -> None:
        """A client that has just been told its place may have started anew: it knows of no collection, and a marker
        that came through before it did will not come again. What it failed at before, it may manage now, and need not
        wait for as long as somebody who was away.
        """
        retry_s = self._context.config.balancing.retry_s
        for place in self._context.ledger.places(client):
            waiting = self._waiting.get(place)
            if waiting is not None:
                waiting.orders = 0
                waiting.backoff.reset()
                waiting.due_s = min(waiting.due_s, self._context.now + retry_s)
        for name in sorted(self._collections):
            collection = self._collections[name]
            if collection.bound and collection.client == client:
                collection.answered, collection.marked_s = False, float("-inf")
                self._orders.wait(name, self._context.config.reply_timeout_s)

    def _marker_failed(self, action: PublishMarker, problem: str) -> None:
        for name, collection in sorted(self._collections.items()):
            if action.key == marker_key(name, self._context.config.head):
                self._give_up(collection, CollectionOutcome.RABBITMQ_REFUSED, problem, failed=False)

    def reported(self, message: MigrationReport) -> bool:
        """A client says, unasked, where it is. False if that is not about a collection."""
        collection = self._collections.get(message.migration)
        if collection is not None and message.subscriber == collection.place[1][0]:
            self._follow(collection, message)
        return collection is not None

    def _follow(self, collection: _Collection, message: MigrationReport) -> None:
        context, config = self._context, self._context.config
        collection.attached |= message.stage is MigrationStage.ATTACHED
        match message.stage:
            case MigrationStage.STAYED if message.unsettled:
                self._give_up(collection, CollectionOutcome.NOT_TAKEN)
            case MigrationStage.STAYED:
                abandoned = context.ledger.state(collection.place) is ABANDONED
                self._close(collection)
                if abandoned:
                    self._removals.discard(collection.place)
                    self._ended(collection, CollectionOutcome.COLLECTED)
            case MigrationStage.UNKNOWN | MigrationStage.MOVED:
                used = (message.edge, (message.subscriber, message.number))
                self._give_up(collection, CollectionOutcome.CLIENT_REFUSED, message.reason)
                told = context.ledger.was_told(collection.client, collection.ordered_s or 0.0)
                if used == collection.place and not told:
                    self._settle(collection.client, used)
            case _ if not collection.answered:
                collection.answered = True
                limit_s = COLLECTION_TIMEOUTS * config.balancing.migration_timeout_s + config.reply_timeout_s
                self._orders.wait(collection.id, limit_s)

    def _give_up(
        self, collection: _Collection, outcome: CollectionOutcome, detail: str = "", *, failed: bool = True
    ) -> None:
        """Not this time. `failed`: its client has answered, and could not do it."""
        self._close(collection)
        waiting = self._waiting.get(collection.place)
        if waiting is not None and collection.attached and waiting.slices < SLICES_MAX:
            # It took some of it: what is left is less, and worth another order soon.
            waiting.slices += 1
            waiting.due_s = self._context.now + self._context.config.balancing.retry_s
        elif waiting is not None:
            waiting.orders += failed
            waiting.due_s = self._context.now + waiting.backoff.take()
        self._ended(collection, outcome, detail)

    def _ended(self, collection: _Collection, outcome: CollectionOutcome, detail: str = "") -> None:
        edge, (subscriber, _) = collection.place
        self._context.decide(CollectionEnded(collection.id, subscriber, collection.pattern, edge, outcome, detail))

    def _close(self, collection: _Collection) -> None:
        del self._collections[collection.id]
        self._binds.stop(collection.id)
        self._orders.close(collection.id)
        self._context.ledger.end(Operation.COLLECTION, collection.place)

    def unsubscribed(self, subscriber: str, pattern: str) -> None:
        """The client does not want the subscription any more; all its places are about to be removed."""
        for collection in [self._collections[name] for name in sorted(self._collections)]:
            if collection.client == (subscriber, pattern):
                self._close(collection)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        assert len(self._collections) <= COLLECTIONS_MAX
        for name, collection in self._collections.items():
            assert name == collection.id
            assert self._context.ledger.runs(Operation.COLLECTION, collection.place), f"{name} is not under way"
