"""Migrations: moving one client's subscription to another edge with nothing lost, step by step.

    WAITING    too many are under way
    PREPARING  the new queue is made, its routes bound; the markers' key is bound to the old queue
    ORDERING   the client is told, again and again, until it answers; meanwhile the markers are on their way
    MOVING     the client attaches, holds, gets the markers, switches
    CANCELLING the client is asked, again and again, whether it has moved after all

Invariants:

- the client alone decides whether it has moved. The old queue is not removed before it has said so; on giving up only
  the new one is, and a client that had moved after all comes back, asks, and finds everything in the old one;
- each phase ends by a time-out, each message is sent a bounded number of times, so every migration ends;
- one migration per client; what is promised to a target counts from the decision on.

Where the subscription goes to, here or to another cluster, is behind `steps`; reports about migrations that we know
nothing of are a matter of `reports`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tidegate_protocol.balancing.migrations import (
    MigrateCancel,
    MigrateOrder,
    MigrationReport,
    MigrationStage,
)
from tidegate_protocol.balancing.sessions import PlannedMove
from tidegate_protocol.decisions import MigrationEnded, MoveOutcome, Rejected, Rejection, WhyNot
from tidegate_protocol.messages import OutputPrepare, Subscription
from tidegate_protocol.names import marker_prefix, output_queue

from ...config import CLIENT_ATTEMPTS_MAX
from ...kit.calls import Answer, Calls, Question, Silence
from ...kit.dispatch import Dispatch
from ...kit.memory import Recent
from ...machine import Action, PublishMarker, Send, SendClient
from ..context import HeadContext
from ..places.knowledge import SEND_AWAY, Knowledge
from ..places.ledger import DISCARDED, Operation
from ..places.removals import Removals
from ..registry import Client, Place, client_of, place_of
from .marker_binds import MarkerBinds
from .steps import Move, NewPlace, Steps

PART: Final = "migration"
WAITING_MAX: Final = 20_000
"""How many migrations may wait for their turn, of all sessions together."""
MARKERS_MAX: Final = 5
"""How often the markers of one migration are published: again if a client starts over."""
FINISHED_MAX: Final = 5_000
"""How many ended migrations are remembered, to answer reports that come late."""
FAILED_REST_RETRIES: Final = 3
"""A client that did not manage to move is left alone for this many of its source's retries."""

OnEnd = Callable[[Move, bool], None]
"""Called with the move, and whether the client moved."""


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
    unreached: int = 0
    """How many of the orders are known not to have reached the client."""
    deadline_s: float = 0.0
    markers: int = 0
    marked_s: float = -1e9
    why: WhyNot | None = None
    """What went wrong, once something did."""

    @property
    def client(self) -> Client:
        return client_of(self.move.subscription)

    @property
    def old(self) -> Place:
        return place_of(self.move.source, self.move.subscription)


class Migrations:
    """The migrations under way in this cluster, by id."""

    def __init__(
        self,
        context: HeadContext,
        removals: Removals,
        knowledge: Knowledge,
        binds: MarkerBinds,
        inside: Steps,
        abroad: Steps,
    ) -> None:
        """`inside` and `abroad` are the steps of moves inside the cluster and to other ones."""
        self._context = context
        self._removals = removals
        self._knowledge = knowledge
        self._binds = binds
        self._inside = inside
        self._abroad = abroad
        self._calls = Calls(context, PART, context.config.reply_timeout_s, self._heard)
        self._running: dict[str, _Migration] = {}
        self._waiting: deque[str] = deque()
        self._finished: Recent[str, bool] = Recent(FINISHED_MAX)
        """Whether the client moved, of those that ended lately."""

    def register(self, dispatch: Dispatch) -> None:
        self._calls.register(dispatch)
        dispatch.on_failure(PublishMarker, self._marker_failed)
        dispatch.stops.append(self._stop)
        dispatch.checks.append(self.validate)

    def __contains__(self, migration: str) -> bool:
        return migration in self._running

    def __len__(self) -> int:
        return len(self._running)

    def _of(self, client: Client) -> _Migration | None:
        """The migration of this client, if there is one."""
        return self._running.get(self._context.ledger.under_way(Operation.MIGRATION, client) or "")

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
    ) -> str | Rejected:
        """Move `subscription` from `source` to `target`, as soon as there is room for one more.

        Returns the migration's id, or why it can't begin.
        """
        client, old = client_of(subscription), place_of(source, subscription)
        why_not = self._why_not(client, old, abroad=target_head != self._context.config.head)
        if why_not is not None:
            return replace(why_not, name=output_queue(*old[1]), target=target)
        migration = self._context.new_name("m")
        move = Move(migration, session, source, subscription, target, target_head, load)
        self._running[migration] = _Migration(move, on_end)
        self._context.promises.promise(migration, target, load)
        self._context.ledger.begin(Operation.MIGRATION, old, client, migration)
        self._waiting.append(migration)
        return migration

    def _why_not(self, client: Client, old: Place, *, abroad: bool) -> Rejected | None:
        """Why this client can't be moved away from `old` now; None if it can."""
        if self._context.stopping:
            return Rejected(client[0], Rejection.STOPPING)
        if self._of(client) is not None:
            return Rejected(client[0], Rejection.MIGRATING)
        if not self._context.ledger.may_begin(Operation.MIGRATION, old):
            return Rejected(client[0], Rejection.UNUSED)
        if len(self._waiting) >= WAITING_MAX:
            return Rejected(client[0], Rejection.LIMIT, limit=float(WAITING_MAX), other="WAITING_MAX")
        # What an edge that was away still has for it, only its own head can have it collect: until then it stays.
        return self._knowledge.gap(SEND_AWAY, client) if abroad else None

    def begin_waiting(self) -> None:
        """Let waiting migrations begin while there is room. Called after each event, so that none begins inside one."""
        while self._waiting and len(self._running) - len(self._waiting) < self._context.config.balancing.migrations_max:
            migration = self._waiting.popleft()
            self._begin(self._running[migration])

    def _begin(self, migration: _Migration) -> None:
        context, move = self._context, migration.move
        migration.phase = Phase.PREPARING
        current = context.registry.get(*migration.old)
        if current is None or context.ledger.runs(Operation.REMOVAL, migration.old):
            self._roll_back(migration, WhyNot(MoveOutcome.GONE))
            return
        migration.deadline_s = context.now + context.config.balancing.migration_timeout_s
        self._calls.wait(move.id, context.config.balancing.migration_timeout_s)
        self._binds.start(move.id, move.source, migration.old[1], move.marker, self._source_bound)
        self._steps(move).prepare(move, self)

    def _steps(self, move: Move) -> Steps:
        return self._inside if move.target_head == self._context.config.head else self._abroad

    def _source_bound(self, subject: str, problem: WhyNot | None) -> None:
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

    def failed(self, migration: str, why: WhyNot) -> None:
        """The steps can't go on, or another part wants it given up: it is, unless the client has moved already."""
        found = self._running.get(migration)
        if found is None:
            return
        if found.phase in (Phase.WAITING, Phase.PREPARING):
            self._roll_back(found, why)
        elif found.phase is not Phase.CANCELLING:
            self._cancel(found, why)

    def vacate(self, place: Place, why: WhyNot) -> bool:
        """Nobody lives at `place`: give up moving a client away from it. False as long as the client is being asked."""
        known = self._context.registry.get(*place)
        found = None if known is None else self._of(client_of(known))
        if found is None or found.old != place:
            return True
        self.failed(found.move.id, why)
        return found.move.id not in self._running

    # The client

    def _order_if_ready(self, migration: _Migration) -> None:
        if not migration.source_bound or migration.place is None:
            return
        config = self._context.config
        migration.phase, migration.unreached = Phase.ORDERING, 0
        # A reply time-out longer than the client's own, so that it is the client who gives up first.
        migration.deadline_s = self._context.now + config.balancing.migration_timeout_s + config.reply_timeout_s
        self._tell(migration, lambda: self._order_message(migration))
        # Both queues are bound, so nothing is gained by waiting until the client is there, and the marker has to pass
        # whatever waits in the old one.
        self._mark(migration, migration.place)

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

    def _cancel(self, migration: _Migration, why: WhyNot) -> None:
        """Find out whether the client has moved, and have it stay if not."""
        migration.phase, migration.why = Phase.CANCELLING, why
        subscriber, pattern = migration.client
        self._tell(migration, MigrateCancel(migration=migration.move.id, subscriber=subscriber, pattern=pattern))

    def _tell(self, migration: _Migration, message: Question) -> None:
        self._calls.ask_client(migration.move.id, migration.client[0], message, attempts_max=CLIENT_ATTEMPTS_MAX)

    def _heard(self, subject: str, answer: Answer) -> None:
        """The client's answer to an order or a cancellation, or the end of the time for a phase.

        Anything but a report means that the client did not begin: it is not there, or its process knows no such
        subscription, or not yet. It is told again.
        """
        migration = self._running[subject]
        if answer is Silence.LATE:
            self._timed_out(migration)
        elif isinstance(answer, MigrationReport) and answer.migration == subject:
            self._follow(migration, answer)
        else:
            migration.unreached += 1

    def _timed_out(self, migration: _Migration) -> None:
        match migration.phase:
            case Phase.PREPARING:
                self._roll_back(migration, WhyNot(MoveOutcome.PLACE_NOT_READY))
            case Phase.ORDERING if migration.unreached >= self._calls.attempts(migration.move.id):
                self._roll_back(migration, WhyNot(MoveOutcome.CLIENT_ABSENT))
            case Phase.ORDERING:
                self._cancel(migration, WhyNot(MoveOutcome.CLIENT_SILENT))
            case Phase.MOVING:
                self._cancel(migration, WhyNot(MoveOutcome.TIME_OUT))
            case Phase.CANCELLING:
                self._roll_back(migration, migration.why or WhyNot(MoveOutcome.CLIENT_STAYED), unheard=True)

    def _marker_failed(self, action: Action, problem: str) -> None:
        assert isinstance(action, PublishMarker)
        for migration in list(self._running):
            if action.key.startswith(f"{marker_prefix(migration)}."):
                self.failed(migration, WhyNot(MoveOutcome.RABBITMQ_REFUSED, (self._context.config.head,), problem))

    # Reports

    def outcome(self, migration: str) -> bool | None:
        """Whether the client moved, of a migration that ended lately; None if we know nothing of it."""
        return self._finished.get(migration)

    def leaving(self, client: Client) -> Place | None:
        """The place that this client is being moved away from."""
        migration = self._of(client)
        return None if migration is None else migration.old

    def just_came(self, client: Client) -> None:
        """A client of which we hear only now that it was moved here is not moved on, unless it was told to already."""
        migration = self._of(client)
        if migration is not None and migration.phase in (Phase.WAITING, Phase.PREPARING):
            self._roll_back(migration, WhyNot(MoveOutcome.JUST_CAME))

    def reported(self, message: MigrationReport) -> None:
        """A client that is being moved says, unasked, where it is."""
        self._follow(self._running[message.migration], message)

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
                why = migration.why or WhyNot(MoveOutcome.CLIENT_STAYED)
                self._roll_back(migration, replace(why, detail=why.detail or message.reason))
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
        self._calls.wait(migration.move.id, migration.deadline_s - self._context.now)

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
        migration = self._of((subscriber, pattern))
        if migration is not None:
            self._roll_back(migration, WhyNot(MoveOutcome.UNSUBSCRIBED))

    def resubscribed(self, edge: str, subscription: Subscription) -> None:
        """The client asked again, and was told its old place. It may have crashed and know nothing of the migration;
        it may have new terms, and then the new place was made with the wrong ones.
        """
        migration = self._of(client_of(subscription))
        if migration is None or place_of(edge, subscription) != migration.old or migration.phase is Phase.CANCELLING:
            return
        if not _same_terms(subscription, migration.move.subscription):
            self.failed(migration.move.id, WhyNot(MoveOutcome.NEW_TERMS))
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
        context.promises.keep(move.id, context.now + balancing.stabilizing_min_s)
        context.cooldowns.rest(migration.client, context.now + balancing.cooldown_s)
        self._close(migration)
        if move.target_head != context.config.head:
            context.ledger.departed(migration.client, place, current or move.subscription)
        if current is not None:
            if unsettled:
                context.ledger.abandon(migration.old)
            else:
                self._removals.discard(migration.old)
            new = context.registry.get(place.edge, (current.subscriber, place.number))
            if new is not None and move.target_head == context.config.head and not _same_terms(current, new):
                # New terms came while the client was switching; the edge is told once, and its next hello shows
                # whether it knows.
                renewed = current.model_copy(update={"number": place.number})
                context.ledger.renew(place.edge, renewed)
                context.do(Send(place.edge, OutputPrepare(subscription=renewed)))
        self._finish(migration, WhyNot(MoveOutcome.MOVED))

    def _roll_back(self, migration: _Migration, why: WhyNot, *, unheard: bool = False) -> None:
        context, move = self._context, migration.move
        balancing = context.config.balancing
        if migration.phase is not Phase.WAITING:
            self._steps(move).end(move, False)
        context.promises.drop(move.id)
        if migration.phase not in (Phase.WAITING, Phase.PREPARING):
            context.cooldowns.rest(migration.client, context.now + FAILED_REST_RETRIES * balancing.retry_s)
        self._close(migration)
        self._finish(migration, why, unheard=unheard)

    def _close(self, migration: _Migration) -> None:
        context, move = self._context, migration.move
        if migration.phase is Phase.WAITING:
            self._waiting.remove(move.id)
        self._binds.stop(move.id)
        self._calls.close(move.id)
        context.ledger.end(Operation.MIGRATION, migration.old, migration.client)
        del self._running[move.id]

    def _finish(self, migration: _Migration, how: WhyNot, *, unheard: bool = False) -> None:
        move = migration.move
        moved = how.outcome is MoveOutcome.MOVED
        self._finished[move.id] = moved
        way, told = (*migration.client, move.source, move.target), (how.outcome, how.who, how.detail, how.unfit)
        session = move.session or move.id
        self._context.decide(MigrationEnded(move.id, *way, *told, unheard, session=session))
        migration.on_end(move, moved)

    def _stop(self) -> None:
        """The process ends: begin nothing new. Clients under way find their own end and tell our successor."""
        for migration in [self._running[name] for name in list(self._waiting)]:
            self._roll_back(migration, WhyNot(MoveOutcome.HEAD_STOPPING))

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        context = self._context
        assert len(self._running) - len(self._waiting) <= context.config.balancing.migrations_max
        self._finished.validate()
        for name, migration in self._running.items():
            assert name == migration.move.id
            assert (migration.phase is Phase.WAITING) == (name in self._waiting), name
            assert context.ledger.runs(Operation.MIGRATION, migration.old), f"{name} is not under way"
            assert self._of(migration.client) is migration, f"{name} is not the one migration of its client"
            if migration.phase not in (Phase.WAITING, Phase.PREPARING):
                assert migration.place is not None, f"{name} was ordered without a place"
            assert context.ledger.state(migration.old) is not DISCARDED, f"the old queue of {name} is being removed"


def _same_terms(one: Subscription, other: Subscription) -> bool:
    return (one.deadline_us, one.expires_s) == (other.deadline_us, other.expires_s)
