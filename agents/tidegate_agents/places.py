"""Places in doubt: subscriptions found on two edges, and queues whose clients live elsewhere by now.

A head that was restarted in the middle of something may find one subscription on two edges and know neither why nor
which of them its client uses. It asks the client. What the client does not use is *abandoned*: it may hold what the
client never got, so the client is ordered to collect it, and only then it is removed. The same happens with the place
of a client that went elsewhere because its edge was away, once that edge is back.

What always holds:

- nothing is removed here before its client has said that it has taken what was in it. Who never answers keeps all
  places; RabbitMQ expires the queues that nobody takes from;
- a marker that got lost is followed by another one: a later one says the same;
- a client is asked less and less often; an abandoned place is ordered to be collected until its client has failed at
  it `ORDERS_MAX` times. A client that is away, or busy with another collection, has not failed; nor has one that began:
  what is left gets less each time. Who asks for its place has begun anew, and may try as often again;
- what a migration, an allocation or a removal explains is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing import (
    CollectOrder,
    MigrationAck,
    MigrationReport,
    MigrationStage,
    PlaceReply,
    PlaceRequest,
)
from tidegate_protocol.messages import ControlMessage, Refusal, RefusalReason
from tidegate_protocol.names import marker_key, marker_pattern, output_queue

from .allocation import Allocations
from .context import HeadContext
from .dispatch import Dispatch
from .machine import Decision, PublishMarker, ReplyAddress
from .migrations import CLIENT_ATTEMPTS_MAX, Migrations
from .registry import Key, key_of
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

Client = tuple[str, str]
Place = tuple[str, Key]


@dataclass(slots=True)
class _Inquiry:
    due_s: float
    pause_s: float
    request_id: str | None = None
    """Set while an answer may come."""
    asked_s: float = 0.0


@dataclass(slots=True)
class _Waiting:
    """An abandoned place, and when its collection is tried next."""

    due_s: float
    pause_s: float
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
    ordered_s: float = 0.0
    attempts: int = 0
    request_id: str = ""


class Places:
    """Inquiries and collections of one head."""

    def __init__(
        self, context: HeadContext, removals: Removals, migrations: Migrations, allocations: Allocations
    ) -> None:
        self._context = context
        self._removals = removals
        self._migrations = migrations
        self._allocations = allocations
        self._inquiries: dict[Client, _Inquiry] = {}
        self._waiting: dict[Place, _Waiting] = {}
        self._collections: dict[str, _Collection] = {}
        self._last = 0
        context.when_told = self._asks_anew

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(MigrationReport, self.report)
        dispatch.on_request(ASK_PART, self._told, self._not_told)
        dispatch.on_timer(ASK_PART, self._not_told)
        dispatch.on_request(PART, self._answered, self._undeliverable)
        dispatch.on_timer(PART, self._timed_out)
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
        under_way = sum(inquiry.request_id is not None for inquiry in self._inquiries.values())
        for client in in_doubt:
            inquiry = self._inquiries.setdefault(client, _Inquiry(context.now, context.config.reply_timeout_s))
            if inquiry.request_id is None and inquiry.due_s <= context.now and under_way < INQUIRIES_MAX:
                under_way += 1
                subject = f"{client[0]} {client[1]}"
                message = PlaceRequest(subscriber=client[0], pattern=client[1])
                inquiry.asked_s = context.now
                inquiry.request_id = context.send_client(client[0], message, ASK_PART, subject)
                context.set_timer(f"{ASK_PART} {subject}", context.config.reply_timeout_s)

    def _is_in_doubt(self, client: Client) -> bool:
        if self._migrations.of(*client) is not None or self._allocations.allocates(*client):
            return False
        return len(self._places(client)) > 1

    def _places(self, client: Client) -> list[Place]:
        """Where the client may be, as far as we know."""
        context = self._context
        places = [(edge, key_of(subscription)) for edge, subscription in context.registry.find(*client)]
        return [
            place
            for place in places
            if place not in context.reserved
            and place not in context.abandoned
            and place not in self._removals
            and not self._removals.is_discarded(place)
        ]

    def _told(self, subject: str, message: ControlMessage) -> None:
        subscriber, _, pattern = subject.partition(" ")
        client = (subscriber, pattern)
        inquiry = self._inquiries.get(client)
        if inquiry is None:
            return
        self._ask_later(client, inquiry)
        if not isinstance(message, PlaceReply) or (message.subscriber, message.pattern) != client:
            return
        if message.edge is None or message.number is None or message.migration is not None:
            return
        if self._is_current(client, inquiry.asked_s):
            self._settle(client, (message.edge, (subscriber, message.number)))

    def _not_told(self, subject: str) -> None:
        subscriber, _, pattern = subject.partition(" ")
        inquiry = self._inquiries.get((subscriber, pattern))
        if inquiry is not None:
            self._ask_later((subscriber, pattern), inquiry)

    def _ask_later(self, client: Client, inquiry: _Inquiry) -> None:
        self._context.drop_request(inquiry.request_id)
        self._context.cancel_timer(f"{ASK_PART} {client[0]} {client[1]}")
        inquiry.request_id = None
        inquiry.due_s = self._context.now + inquiry.pause_s
        inquiry.pause_s = min(inquiry.pause_s * 2, PAUSE_MAX_S)

    def _forget_inquiry(self, client: Client) -> None:
        inquiry = self._inquiries.pop(client)
        self._context.drop_request(inquiry.request_id)
        self._context.cancel_timer(f"{ASK_PART} {client[0]} {client[1]}")

    def _is_current(self, client: Client, asked_s: float) -> bool:
        """Whether what a client says of its place still holds: not if it was told of a place since it was asked."""
        return self._context.told_s.get(client, float("-inf")) < asked_s

    def _settle(self, client: Client, used: Place) -> None:
        """The client uses this place: the others are abandoned."""
        context = self._context
        places = self._places(client)
        if used in context.abandoned:
            places.append(used)
        if used not in places or not self._is_free(client) or not self._removals.keep(*used):
            return
        context.abandoned.discard(used)
        for place in places:
            if place != used:
                context.granted.discard(place)
                context.abandoned.add(place)
        context.granted.add(used)
        left = ", ".join(sorted(place[0] for place in places if place != used))
        context.decide(Decision("place-settled", f"{client[0]} {client[1]}", f"it uses {used[0]}, not {left}"))

    def _is_free(self, client: Client) -> bool:
        return self._migrations.of(*client) is None and not self._allocations.allocates(*client)

    # Abandoned places

    def _collect_due(self) -> None:
        context = self._context
        if not context.abandoned and not self._waiting:
            return
        self._waiting = {place: w for place, w in self._waiting.items() if place in context.abandoned}
        collecting = {collection.place for collection in self._collections.values()}
        edges = context.registry.edges
        places = sorted(p for p in context.abandoned if edges[p[0]].alive and p not in collecting)
        for place in places:
            self._waiting.setdefault(place, _Waiting(context.now, context.config.balancing.retry_s))
        # Who has waited longest comes first: many who never answer would keep all others from their turn.
        for place in sorted(places, key=lambda p: self._waiting[p].due_s):
            waiting = self._waiting[place]
            due = waiting.due_s <= context.now and waiting.orders < ORDERS_MAX
            if due and len(self._collections) < COLLECTIONS_MAX and self._can_collect(place):
                self._begin(place)

    def _can_collect(self, place: Place) -> bool:
        """Whether its edge is back and its client has another place to live in."""
        context, (edge, key) = self._context, place
        record, known = context.registry.edges[edge], context.registry.get(*place)
        if known is None or not record.alive or not record.settled or key in context.busy.get(edge, ()):
            return False
        places = [(other, key_of(s)) for other, s in context.registry.find(key[0], known.pattern)]
        return any(other in context.granted for other in places) and self._is_free((key[0], known.pattern))

    def _begin(self, place: Place) -> None:
        context = self._context
        known = context.registry.get(*place)
        assert known is not None
        self._last += 1
        collection = _Collection(
            f"{context.config.head}~{context.config.incarnation}~c{self._last}", place, known.pattern
        )
        self._collections[collection.id] = collection
        context.begin(*place)
        context.set_timer(f"{PART} {collection.id}", context.config.balancing.migration_timeout_s)
        self._mark(collection)

    def _mark(self, collection: _Collection) -> None:
        collection.marked_s = self._context.now
        edge, key = collection.place
        self._migrations.binds.start(collection.id, edge, key, marker_pattern(collection.id), self._bound)

    def _bound(self, subject: str, problem: str | None) -> None:
        collection = self._collections.get(subject)
        if collection is None:
            return
        if problem is not None:
            if not collection.bound:
                self._give_up(collection, problem, failed=False)
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
        if not collection.attempts:
            collection.ordered_s = context.now
        collection.attempts += 1
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
        context.drop_request(collection.request_id)
        collection.request_id = context.send_client(key[0], order, PART, collection.id)
        context.set_timer(f"{PART} {collection.id}", context.config.reply_timeout_s)

    def _answered(self, subject: str, message: ControlMessage) -> None:
        collection = self._collections.get(subject)
        if collection is None:
            return
        if isinstance(message, MigrationReport) and message.migration == subject:
            self._follow(collection, message)
        else:
            later = isinstance(message, Refusal) and message.reason in LATER
            self._give_up(collection, f"its client answered with {message.kind}", failed=not later)

    def _undeliverable(self, subject: str) -> None:
        if subject in self._collections:
            self._give_up(self._collections[subject], "its client is not there", failed=False)

    def _timed_out(self, subject: str) -> None:
        collection = self._collections.get(subject)
        if collection is None:
            return
        if collection.bound and not collection.answered and collection.attempts < CLIENT_ATTEMPTS_MAX:
            self._order(collection)
        else:
            self._give_up(collection, "not collected in time", failed=collection.answered)

    def _asks_anew(self, client: Client) -> None:
        """A client that has just been told its place may have started anew: it knows of no collection, and a marker
        that came through before it did will not come again. What it failed at before, it may manage now, and need not
        wait for as long as somebody who was away.
        """
        retry_s = self._context.config.balancing.retry_s
        for edge, subscription in self._context.registry.find(*client):
            waiting = self._waiting.get((edge, key_of(subscription)))
            if waiting is not None:
                waiting.orders, waiting.pause_s = 0, retry_s
                waiting.due_s = min(waiting.due_s, self._context.now + retry_s)
        for name in sorted(self._collections):
            collection = self._collections[name]
            if collection.bound and (collection.place[1][0], collection.pattern) == client:
                collection.answered, collection.attempts, collection.marked_s = False, 1, float("-inf")
                self._context.set_timer(f"{PART} {name}", self._context.config.reply_timeout_s)

    def _marker_failed(self, action: PublishMarker, problem: str) -> None:
        for name, collection in sorted(self._collections.items()):
            if action.key == marker_key(name, self._context.config.head):
                self._give_up(collection, f"the marker could not be published: {problem}", failed=False)

    def report(self, message: MigrationReport, reply_to: ReplyAddress | None) -> None:
        """A client says where it is, with a collection or with a migration."""
        collection = self._collections.get(message.migration)
        if collection is None:
            self._migrations.report(message, reply_to)
            return
        self._context.reply(reply_to, MigrationAck(migration=message.migration))
        if message.subscriber == collection.place[1][0]:
            self._follow(collection, message)

    def _follow(self, collection: _Collection, message: MigrationReport) -> None:
        context, config = self._context, self._context.config
        collection.attached |= message.stage is MigrationStage.ATTACHED
        match message.stage:
            case MigrationStage.STAYED if message.unsettled:
                self._give_up(collection, "its application has not taken yet what was collected")
            case MigrationStage.STAYED:
                abandoned = collection.place in context.abandoned
                self._close(collection)
                if abandoned:
                    self._removals.discard(*collection.place)
                    context.decide(Decision("place-collected", collection.id, f"from {collection.place[0]}"))
            case MigrationStage.UNKNOWN | MigrationStage.MOVED:
                used = (message.edge, (message.subscriber, message.number))
                self._give_up(collection, message.reason or "its client could not collect it")
                client = (message.subscriber, collection.pattern)
                if used == collection.place and self._is_current(client, collection.ordered_s):
                    self._settle(client, used)
            case _ if not collection.answered:
                collection.answered = True
                limit_s = COLLECTION_TIMEOUTS * config.balancing.migration_timeout_s + config.reply_timeout_s
                context.set_timer(f"{PART} {collection.id}", limit_s)

    def _give_up(self, collection: _Collection, why: str, *, failed: bool = True) -> None:
        """Not this time. `failed`: its client has answered, and could not do it."""
        self._close(collection)
        waiting = self._waiting.get(collection.place)
        if waiting is not None and collection.attached and waiting.slices < SLICES_MAX:
            # It took some of it: what is left is less, and worth another order soon.
            waiting.slices += 1
            waiting.due_s = self._context.now + self._context.config.balancing.retry_s
        elif waiting is not None:
            waiting.orders += failed
            waiting.due_s = self._context.now + waiting.pause_s
            waiting.pause_s = min(waiting.pause_s * 2, PAUSE_MAX_S)
        self._context.decide(Decision("collection-failed", collection.id, why[:1_000]))

    def _close(self, collection: _Collection) -> None:
        del self._collections[collection.id]
        self._migrations.binds.stop(collection.id)
        self._context.drop_request(collection.request_id)
        self._context.cancel_timer(f"{PART} {collection.id}")
        self._context.end(*collection.place)

    def unsubscribed(self, subscriber: str, pattern: str) -> None:
        """The client does not want the subscription any more; all its places are about to be removed."""
        for collection in [self._collections[name] for name in sorted(self._collections)]:
            if (collection.place[1][0], collection.pattern) == (subscriber, pattern):
                self._close(collection)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        assert len(self._collections) <= COLLECTIONS_MAX
        for name, collection in self._collections.items():
            assert name == collection.id
            edge, key = collection.place
            assert key in self._context.busy[edge], f"{name} is under way but not busy"
        places = [collection.place for collection in self._collections.values()]
        assert len(places) == len(set(places)), "one collection per place"
