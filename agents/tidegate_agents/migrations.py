"""Migrations: moving one client's subscription to another edge with nothing lost, step by step.

    WAITING    too many are under way
    PREPARING  the new queue is made, its routes bound; the markers' key is bound to the old queue
    ORDERING   the client is told, again and again, until it answers; meanwhile the markers are on their way
    MOVING     the client attaches, holds, gets the markers, switches
    CANCELLING the client is asked, again and again, whether it has moved after all

What always holds:

- the client alone decides whether it has moved. The old queue is not removed before it has said so; on giving up only
  the new one is, and a client that had moved after all comes back, asks, and finds everything in the old one;
- each phase ends by a time-out, each message is sent a bounded number of times, so every migration ends;
- a client's report is answered whatever we know about it: after a restart we know nothing, and believe the client;
- one migration per client; what is promised to a target counts from the decision on.

Where the subscription goes to, here or to another cluster, is behind `migration_steps`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate_protocol.balancing import (
    MigrateCancel,
    MigrateOrder,
    MigrationAck,
    MigrationReport,
    MigrationStage,
    PlannedMove,
)
from tidegate_protocol.messages import ControlMessage, OutputPrepare, Subscription
from tidegate_protocol.names import marker_prefix

from .config import ATTEMPTS_MAX
from .context import HeadContext
from .dispatch import Dispatch
from .late_reports import believe
from .local_steps import LocalSteps
from .machine import Action, Decision, PublishMarker, ReplyAddress, Send, SendClient
from .marker_binds import MarkerBinds
from .migration_steps import Move, NewPlace, Steps
from .preparations import Preparations
from .registry import Key, key_of
from .removals import Removals

PART: Final = "migration"
WAITING_MAX: Final = 20_000
"""How many migrations may wait for their turn, of all sessions together."""
CLIENT_ATTEMPTS_MAX: Final = ATTEMPTS_MAX + 2
"""How often a client is told or asked the same thing: its way is longer than that to a broker."""
MARKERS_MAX: Final = 5
"""How often the markers of one migration are published: again if a client starts over."""
FINISHED_MAX: Final = 5_000
"""How many ended migrations are remembered, to answer reports that come late."""
FAILED_REST_RETRIES: Final = 3
"""A client that did not manage to move is left alone for this many of its source's retries."""

OnEnd = Callable[[Move, bool, str], None]
"""Called with the move, whether the client moved, and why not."""


class Phase(StrEnum):
    """Where a migration is."""

    WAITING = "waiting"
    PREPARING = "preparing"
    ORDERING = "ordering"
    MOVING = "moving"
    CANCELLING = "cancelling"


@dataclass(slots=True)
class _Migration:
    move: Move
    on_end: OnEnd
    phase: Phase = Phase.WAITING
    place: NewPlace | None = None
    source_bound: bool = False
    attempts: int = 0
    unreached: int = 0
    """How many of the attempts are known not to have reached the client."""
    request_id: str = ""
    deadline_s: float = 0.0
    markers: int = 0
    marked_s: float = -1e9
    why: str = ""
    """What went wrong, once something did."""

    @property
    def client(self) -> tuple[str, str]:
        return self.move.subscription.subscriber, self.move.subscription.pattern

    @property
    def old(self) -> tuple[str, Key]:
        return self.move.source, key_of(self.move.subscription)


class Migrations:
    """The migrations under way in this cluster, by id."""

    def __init__(self, context: HeadContext, preparations: Preparations, removals: Removals) -> None:
        self._context = context
        self._removals = removals
        self._binds = MarkerBinds(context)
        self._local: Steps = LocalSteps(context, preparations, self)
        self._remote: Steps | None = None
        self._running: dict[str, _Migration] = {}
        self._waiting: deque[str] = deque()
        self._by_client: dict[tuple[str, str], str] = {}
        self._finished: dict[str, bool] = {}
        """Whether the client moved, of those that ended lately."""
        self._last = 0

    def register(self, dispatch: Dispatch) -> None:
        self._binds.register(dispatch)
        dispatch.on_request(PART, self._answered, self._undeliverable)
        dispatch.on_timer(PART, self._timed_out)
        dispatch.on_failure(PublishMarker, self._marker_failed)
        dispatch.stops.append(self._stop)
        dispatch.checks.append(self.validate)

    def use_remote(self, steps: Steps) -> None:
        """From now on moves to other clusters are possible, by these steps."""
        self._remote = steps

    @property
    def binds(self) -> MarkerBinds:
        return self._binds

    def __contains__(self, migration: str) -> bool:
        return migration in self._running

    def __len__(self) -> int:
        return len(self._running)

    def of(self, subscriber: str, pattern: str) -> str | None:
        """The migration of this client, if there is one."""
        return self._by_client.get((subscriber, pattern))

    # Beginning

    def start(
        self,
        session: str,
        source: str,
        subscription: Subscription,
        target: str,
        target_head: str,
        load: PlannedMove,
        on_end: OnEnd,
    ) -> str | None:
        """Move `subscription` from `source` to `target`, as soon as there is room for one more.

        Returns the migration's id, or None if it can't begin: the client is being moved, it does not use that place
        any more, it has something to collect before it goes to another cluster, or too many wait.
        """
        client, old = (subscription.subscriber, subscription.pattern), (source, key_of(subscription))
        unused = self._removals.is_discarded(old) or old in self._context.abandoned or old in self._context.reserved
        # What an edge that was away still has for it, only its own head can have it collect: until then it stays.
        kept = target_head != self._context.config.head and self._left_behind(*client)
        if unused or kept or client in self._by_client or len(self._waiting) >= WAITING_MAX or self._context.stopping:
            return None
        config = self._context.config
        self._last += 1
        migration = f"{config.head}~{config.incarnation}~m{self._last}"
        move = Move(migration, session, source, subscription, target, target_head, load)
        self._running[migration] = _Migration(move, on_end)
        self._by_client[client] = migration
        self._context.promises.promise(migration, target, load)
        self._context.begin(source, key_of(subscription))
        self._waiting.append(migration)
        return migration

    def _left_behind(self, subscriber: str, pattern: str) -> bool:
        """Whether an edge has something for this client, or may have: one that was away when we started, and has not
        told yet what it holds.
        """
        context = self._context
        found = context.registry.find(subscriber, pattern)
        return any((edge, key_of(subscription)) in context.abandoned for edge, subscription in found) or any(
            not record.settled and context.routes.is_carried(name, pattern)
            for name, record in context.registry.edges.items()
        )

    def begin_waiting(self) -> None:
        """Let those begin for whom there is room. Called after every event, so that nothing begins inside another."""
        while self._waiting and len(self._running) - len(self._waiting) < self._context.config.balancing.migrations_max:
            migration = self._waiting.popleft()
            self._begin(self._running[migration])

    def _begin(self, migration: _Migration) -> None:
        context, move = self._context, migration.move
        migration.phase = Phase.PREPARING
        current = context.registry.get(*migration.old)
        if current is None or migration.old in self._removals:
            self._roll_back(migration, "the subscription is not on its source any more")
            return
        if move.target_head != context.config.head and self._remote is None:
            self._roll_back(migration, "no way to other clusters")
            return
        migration.deadline_s = context.now + context.config.balancing.migration_timeout_s
        self._set_timer(migration, context.config.balancing.migration_timeout_s)
        self._binds.start(move.id, move.source, migration.old[1], move.marker, self._source_bound)
        self._steps(move).prepare(move)

    def _steps(self, move: Move) -> Steps:
        if move.target_head == self._context.config.head or self._remote is None:
            return self._local
        return self._remote

    def _source_bound(self, subject: str, problem: str | None) -> None:
        migration = self._running.get(subject)
        if migration is None or migration.phase is not Phase.PREPARING:
            return
        if problem is not None:
            self._roll_back(migration, problem)
            return
        migration.source_bound = True
        self._order_if_ready(migration)

    def prepared(self, migration: str, place: NewPlace) -> None:
        """The steps have made a new place."""
        found = self._running.get(migration)
        if found is not None and found.phase is Phase.PREPARING:
            found.place = place
            self._order_if_ready(found)

    def failed(self, migration: str, why: str) -> None:
        """The steps can't go on, or somebody wants it given up: so be it, unless the client has moved already."""
        found = self._running.get(migration)
        if found is None:
            return
        if found.phase in (Phase.WAITING, Phase.PREPARING):
            self._roll_back(found, why)
        elif found.phase is not Phase.CANCELLING:
            self._cancel(found, why)

    def vacate(self, place: tuple[str, Key], why: str) -> bool:
        """Nobody lives at `place`: give up moving a client away from it. False as long as the client is being asked."""
        known = self._context.registry.get(*place)
        found = None if known is None else self.of(known.subscriber, known.pattern)
        if found is None or self._running[found].old != place:
            return True
        self.failed(found, why)
        return found not in self._running

    # The client

    def _order_if_ready(self, migration: _Migration) -> None:
        if not migration.source_bound or migration.place is None:
            return
        config = self._context.config
        migration.phase = Phase.ORDERING
        migration.attempts = migration.unreached = 0
        # A reply time-out longer than the client's own, so that it is the client who gives up first.
        migration.deadline_s = self._context.now + config.balancing.migration_timeout_s + config.reply_timeout_s
        self._order(migration)
        # Both queues are bound, so nothing is gained by waiting until the client is there, and the marker has to pass
        # whatever waits in the old one.
        self._mark(migration, migration.place)

    def _order(self, migration: _Migration) -> None:
        migration.attempts += 1
        self._tell(migration, self._order_message(migration))
        self._set_timer(migration, self._context.config.reply_timeout_s)

    def _order_message(self, migration: _Migration) -> MigrateOrder:
        move, place, config = migration.move, migration.place, self._context.config
        assert place is not None
        left_s = max(migration.deadline_s - config.reply_timeout_s - self._context.now, 0.0)
        return MigrateOrder(
            migration=move.id,
            subscriber=move.subscription.subscriber,
            pattern=move.subscription.pattern,
            edge_from=move.source,
            number_from=move.subscription.number,
            edge=place.edge,
            number=place.number,
            url=place.url,
            queue=place.queue,
            head=place.head,
            head_url=place.head_url,
            heads=place.heads,
            timeout_us=round(left_s * 1e6),
        )

    def _cancel(self, migration: _Migration, why: str) -> None:
        """Find out whether the client has moved, and have it stay if not."""
        if migration.phase is not Phase.CANCELLING:
            migration.phase, migration.why, migration.attempts = Phase.CANCELLING, why, 0
        migration.attempts += 1
        subscriber, pattern = migration.client
        self._tell(migration, MigrateCancel(migration=migration.move.id, subscriber=subscriber, pattern=pattern))
        self._set_timer(migration, self._context.config.reply_timeout_s)

    def _tell(self, migration: _Migration, message: ControlMessage) -> None:
        self._context.drop_request(migration.request_id)
        migration.request_id = self._context.send_client(migration.client[0], message, PART, migration.move.id)

    def _set_timer(self, migration: _Migration, after_s: float) -> None:
        self._context.set_timer(f"{PART} {migration.move.id}", after_s)

    def _answered(self, subject: str, message: ControlMessage) -> None:
        """The client's answer to an order or a cancellation.

        Anything but a report means that it did not begin: its process knows no such subscription, or not yet.
        """
        migration = self._running.get(subject)
        if migration is None:
            return
        if isinstance(message, MigrationReport) and message.migration == subject:
            self._follow(migration, message)
        else:
            migration.unreached += 1

    def _undeliverable(self, subject: str) -> None:
        """The client is not there at this moment; the timer asks again."""
        if subject in self._running:
            self._running[subject].unreached += 1

    def _timed_out(self, subject: str) -> None:
        migration = self._running.get(subject)
        if migration is None:
            return
        match migration.phase:
            case Phase.PREPARING:
                self._roll_back(migration, "the new place was not ready in time")
            case Phase.ORDERING if migration.attempts < CLIENT_ATTEMPTS_MAX:
                self._order(migration)
            case Phase.ORDERING if migration.unreached >= migration.attempts:
                self._roll_back(migration, "the client is not there")
            case Phase.ORDERING:
                self._cancel(migration, "the client does not answer")
            case Phase.MOVING:
                self._cancel(migration, "the client did not move in time")
            case Phase.CANCELLING if migration.attempts < CLIENT_ATTEMPTS_MAX:
                self._cancel(migration, migration.why)
            case Phase.CANCELLING:
                self._roll_back(migration, f"{migration.why}; it does not say where it is")

    def _marker_failed(self, action: Action, problem: str) -> None:
        assert isinstance(action, PublishMarker)
        for migration in list(self._running):
            if action.key.startswith(f"{marker_prefix(migration)}."):
                self.failed(migration, f"the marker could not be published: {problem}")

    # Reports

    def report(self, message: MigrationReport, reply_to: ReplyAddress | None) -> None:
        """A client says, unasked, where it is."""
        migration = self._running.get(message.migration)
        if migration is None and self._too_early(message):
            return  # it says so again, and by then we know more
        if migration is None:
            self._late(message)
        else:
            self._follow(migration, message)
        if not self._in_vain(message):
            self._context.reply(reply_to, MigrationAck(migration=message.migration))

    def _late(self, message: MigrationReport) -> None:
        """A report about a migration that is over here, or was never known."""
        moved = self._finished.get(message.migration)
        other = self.of(message.subscriber, message.pattern)
        leaving = None if other is None else self._running[other].old
        if moved and message.stage is MigrationStage.MOVED and not message.unsettled:
            self._settled(message)
        if moved is None or (message.stage is MigrationStage.MOVED and not moved):
            believe(self._context, self._removals, message, leaving)
            self._just_came(message, other)
        if moved is None and leaving is None and self._context.routes.offers:
            self._context.late_report(message)

    def _just_came(self, message: MigrationReport, other: str | None) -> None:
        """Whom we hear to have been moved only now is not moved on, if it has not been told yet."""
        phase = None if other is None else self._running[other].phase
        if message.stage is MigrationStage.MOVED and phase in (Phase.WAITING, Phase.PREPARING):
            self._roll_back(self._running[other or ""], "its client has only just come here")

    def _settled(self, message: MigrationReport) -> None:
        """The application of a client that had moved before has now taken all that its old queue brought."""
        context, key = self._context, (message.subscriber, message.other_number or 0)
        old = (message.other_edge or "", key)
        if old in context.abandoned and key not in context.busy.get(old[0], {}):
            self._removals.discard(*old)

    def _too_early(self, message: MigrationReport) -> bool:
        """Whether we have just started and can't tell yet whether the edges it names are ours."""
        context = self._context
        named = {message.edge, message.other_edge or message.edge}
        unheard = any(edge not in context.registry.edges for edge in named)
        return unheard and context.is_new()

    def _in_vain(self, message: MigrationReport) -> bool:
        """Whether we would forget in a crash what we are told: that a client has left our cluster, and a place there
        that is still to be removed, or is on an edge that has not told yet what it holds. It is to say so again. So it
        is if it has still something to take from that place, and if we gave the move up before: then the other head
        takes the new place away, and a client whose move was not confirmed comes back to us.
        """
        registry = self._context.registry
        left = registry.edges.get(message.other_edge or "")
        if message.stage is not MigrationStage.MOVED or message.edge in registry.edges or left is None:
            return False
        if message.unsettled or self._finished.get(message.migration) is False:
            return True
        old = (left.name, (message.subscriber, message.other_number or 0))
        removing = old in self._removals or self._removals.is_discarded(old)
        return not left.settled or (removing and registry.get(*old) is not None)

    def _follow(self, migration: _Migration, message: MigrationReport) -> None:
        place = migration.place
        if place is None or message.subscriber != migration.client[0]:
            return  # not ordered yet: a report about something else
        match message.stage:
            case MigrationStage.MOVED if message.unsettled and migration.move.target_head != self._context.config.head:
                pass  # only its own head could have it collect what it left: it stays, if it takes too long
            case MigrationStage.MOVED:
                self._commit(migration, message.unsettled)
            case MigrationStage.STAYED | MigrationStage.UNKNOWN:
                reason = message.reason or "it gave no reason"
                self._roll_back(migration, f"{migration.why or 'the client stayed'}: {reason}")
            case MigrationStage.ORDERED if migration.phase is Phase.ORDERING:
                self._moving(migration)
            case MigrationStage.ATTACHED if migration.phase is not Phase.CANCELLING:
                if migration.phase is Phase.ORDERING:
                    self._moving(migration)
                self._mark(migration, place)
            case _:
                pass

    def _moving(self, migration: _Migration) -> None:
        migration.phase = Phase.MOVING
        self._set_timer(migration, migration.deadline_s - self._context.now)

    def _mark(self, migration: _Migration, place: NewPlace) -> None:
        """Publish the markers; again only for a client that may have started over, not for a doubled report."""
        now = self._context.now
        if migration.markers >= MARKERS_MAX or now - migration.marked_s < self._context.config.reply_timeout_s:
            return
        migration.markers, migration.marked_s = migration.markers + 1, now
        self._steps(migration.move).publish_markers(migration.move, place)

    # What the client does meanwhile

    def unsubscribed(self, subscriber: str, pattern: str) -> None:
        """The client does not want the subscription any more; all its places are about to be removed."""
        migration = self.of(subscriber, pattern)
        if migration is not None:
            self._roll_back(self._running[migration], "unsubscribed")

    def resubscribed(self, edge: str, subscription: Subscription) -> None:
        """The client asked again, and was told its old place. It may have crashed and know nothing of the migration;
        it may have new terms, and then the new place was made with the wrong ones.
        """
        found = self.of(subscription.subscriber, subscription.pattern)
        if found is None:
            return
        migration = self._running[found]
        if (edge, key_of(subscription)) != migration.old or migration.phase is Phase.CANCELLING:
            return
        if not _same_terms(subscription, migration.move.subscription):
            self.failed(found, "the subscription got new terms")
        elif migration.phase in (Phase.ORDERING, Phase.MOVING):
            migration.marked_s = -1e9
            self._context.do(SendClient(subscription.subscriber, self._order_message(migration)))

    # The end

    def _commit(self, migration: _Migration, unsettled: bool) -> None:
        """The client has moved. What is `unsettled` of its old queue, it collects before that is removed."""
        context, move, place = self._context, migration.move, migration.place
        assert place is not None
        balancing = context.config.balancing
        current = context.registry.get(*migration.old)
        self._steps(move).end(move, True)
        context.granted.discard(migration.old)
        context.promises.keep(move.id, context.now + balancing.stabilizing_min_s)
        context.cooldowns.rest(migration.client, context.now + balancing.cooldown_s)
        self._close(migration)
        if move.target_head != context.config.head:
            context.departures.remember(migration.client, place, current or move.subscription)
        if current is not None:
            if unsettled:
                context.abandoned.add(migration.old)
            else:
                self._removals.discard(*migration.old)
            new = context.registry.get(place.edge, (current.subscriber, place.number))
            if new is not None and move.target_head == context.config.head and not _same_terms(current, new):
                # New terms came while the client was switching; the edge is told once, and its next hello shows
                # whether it knows.
                renewed = current.model_copy(update={"number": place.number})
                context.enter(place.edge, renewed)
                context.do(Send(place.edge, OutputPrepare(subscription=renewed)))
        self._finish(migration, True, "moved")

    def _roll_back(self, migration: _Migration, why: str) -> None:
        context, move = self._context, migration.move
        balancing = context.config.balancing
        if migration.phase is not Phase.WAITING:
            self._steps(move).end(move, False)
        context.promises.drop(move.id)
        if migration.phase not in (Phase.WAITING, Phase.PREPARING):
            context.cooldowns.rest(migration.client, context.now + FAILED_REST_RETRIES * balancing.retry_s)
        self._close(migration)
        self._finish(migration, False, why)

    def _close(self, migration: _Migration) -> None:
        context, move = self._context, migration.move
        if migration.phase is Phase.WAITING:
            self._waiting.remove(move.id)
        self._binds.stop(move.id)
        context.drop_request(migration.request_id)
        context.cancel_timer(f"{PART} {move.id}")
        context.end(*migration.old)
        del self._running[move.id]
        del self._by_client[migration.client]

    def _finish(self, migration: _Migration, moved: bool, why: str) -> None:
        move = migration.move
        self._finished[move.id] = moved
        if len(self._finished) > FINISHED_MAX:
            del self._finished[next(iter(self._finished))]
        subject = f"{migration.client[0]} {migration.client[1]} from {move.source} to {move.target}"
        kind = "migration-ended" if moved else "migration-failed"
        self._context.decide(Decision(kind, subject, why[:1_000], session=move.session or move.id))
        migration.on_end(move, moved, why)

    def _stop(self) -> None:
        """The process ends: begin nothing new. Clients under way find their own end and tell our successor."""
        for migration in [self._running[name] for name in list(self._waiting)]:
            self._roll_back(migration, "this head is being stopped")

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        context = self._context
        assert set(self._by_client.values()) == self._running.keys(), "one migration per client"
        assert len(self._running) - len(self._waiting) <= context.config.balancing.migrations_max
        assert len(self._finished) <= FINISHED_MAX
        for name, migration in self._running.items():
            assert name == migration.move.id
            assert (migration.phase is Phase.WAITING) == (name in self._waiting), name
            assert migration.old[1] in context.busy[migration.old[0]], f"{name} is under way but not busy"
            if migration.phase not in (Phase.WAITING, Phase.PREPARING):
                assert migration.place is not None, f"{name} was ordered without a place"
            assert not self._removals.is_discarded(migration.old), f"the old queue of {name} is being removed"


def _same_terms(one: Subscription, other: Subscription) -> bool:
    return (one.deadline_us, one.expires_s) == (other.deadline_us, other.expires_s)
