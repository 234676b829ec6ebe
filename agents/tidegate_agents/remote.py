"""Moving subscriptions to another cluster: the side of the head they leave.

When a cluster has no room, the neighbouring heads are asked which of their edges have some (`remote_candidates`). A
migration to such an edge then takes the course of any other (`migrations`), by the steps here: the other head makes
the place (`acceptances`), and the markers are those of *all* heads, because the two edges are reached from every head
by different ways. What always holds:

- the markers' pattern is routed to the old edge from every head before the client is told to move; a head that has
  not confirmed its routes, or does not answer, stops the migration before it begins;
- the heads named to the client are those that publish markers: where the two differ, the migration is given up;
- the other head is told how it ended, again and again until it has drawn its conclusions, at most `END_ATTEMPTS_MAX`
  times; after that it helps itself by a time-out;
- a head that was restarted meanwhile hears from the client how it ended, and tells all neighbours: it does not know
  any more which of them it concerns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing import (
    AcceptEnd,
    AcceptReply,
    AcceptRequest,
    MigrationAck,
    MigrationReport,
    MigrationStage,
    PlaceRequest,
)
from tidegate_protocol.messages import ControlMessage, Refusal, RefusalReason, Subscription

from .config import ATTEMPTS_MAX
from .context import HeadContext
from .dispatch import Dispatch
from .machine import Decision, ReplyAddress
from .marker_flood import MarkerFlood
from .migration_steps import Move, NewPlace, Progress
from .neighbours import Neighbours
from .removals import Removals

HEADS_FRESH_S: Final = 60.0
"""How long the names of all heads are believed; a head that joins meanwhile is noticed when markers are published."""

END_ATTEMPTS_MAX: Final = 10
END_ATTEMPTS_SOON: Final = 3
"""So many of them soon after each other; then the pause doubles each time, because somebody is away."""
END_PAUSE_MAX_S: Final = 60.0
ENDS_MAX: Final = 5_000
"""Migrations whose end another head has not acknowledged; of more, the latest."""

PLACES_ASKED_MAX: Final = 1_000
"""Questions of other heads to our clients under way at once."""


@dataclass(slots=True)
class _Remote:
    move: Move
    live: bool = False
    reply: AcceptReply | None = None
    heads: tuple[str, ...] = ()
    attempts: int = 0
    request_id: str | None = None
    failed: bool = False
    again: bool = False
    """Whether the markers are to be sent once more, as soon as those under way are."""


@dataclass(slots=True)
class _End:
    message: AcceptEnd
    to: str
    attempts: int = 0
    request_id: str | None = None


class RemoteSteps:
    """The steps of migrations that lead to another cluster."""

    def __init__(
        self,
        context: HeadContext,
        neighbours: Neighbours,
        removals: Removals,
        flood: MarkerFlood,
        progress: Progress,
    ) -> None:
        self._context = context
        self._neighbours = neighbours
        self._removals = removals
        self._flood = flood
        self._progress = progress
        self._moves: dict[str, _Remote] = {}
        self._ends: dict[str, _End] = {}
        self._heads: tuple[str, ...] = ()
        self._heads_s = 0.0
        self._discovery = ""
        self._discoveries = 0
        self._places: dict[str, tuple[str, ReplyAddress, float]] = {}
        self._last_place = 0

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_request("accept", self._answered, self._undeliverable)
        dispatch.on_timer("accept", self._timed_out)
        dispatch.on_wait("remote", self._routes_live, self._routes_failed)
        dispatch.on_request("accept-end", self._end_answered, self._end_unheard)
        dispatch.on_timer("accept-end", self._end_timed_out)
        dispatch.on_message(PlaceRequest, self.place_asked)
        dispatch.on_request("remote-place", self._place_told, self._place_unknown)
        dispatch.checks.append(self.validate)

    # Preparing

    def prepare(self, move: Move) -> None:
        """Have the other head make a place, the markers' routes bound, and all heads named."""
        context = self._context
        remote = self._moves[move.id] = _Remote(move)
        # What is still to be told of an earlier attempt must not be taken for news of this one; if it names a place, it
        # can't be.
        client = (move.subscription.subscriber, move.subscription.pattern)
        for key, message in [(key, end.message) for key, end in self._ends.items()]:
            if (message.subscriber, message.pattern) == client and message.number is None:
                self._forget_end(key)
        context.routes.need(move.source, move.marker)
        self._neighbours.open_wait(f"remote {move.id}", move.source, context.config.routes_wait_s)
        self._ask(remote)
        if self._heads and context.now - self._heads_s < HEADS_FRESH_S:
            remote.heads = self._heads
        elif not self._discovery:
            self._discoveries += 1
            self._discovery = f"{context.config.head}~{context.config.incarnation}~h{self._discoveries}"
            self._flood.start(self._discovery, self._discovered)

    def _ask(self, remote: _Remote) -> None:
        context, move = self._context, remote.move
        context.drop_request(remote.request_id)
        message = AcceptRequest(
            migration=move.id,
            head=context.config.head,
            edge=move.target,
            subscription=move.subscription,
            marker=move.marker,
            load=move.load,
            source=move.source,
        )
        remote.attempts += 1
        remote.request_id = context.request(move.target_head, message, "accept", move.id)
        context.set_timer(f"accept {move.id}", context.config.reply_timeout_s + context.config.routes_wait_s)

    def _answered(self, migration: str, message: ControlMessage) -> None:
        remote = self._moves.get(migration)
        if remote is None or remote.reply is not None:
            return
        if isinstance(message, AcceptReply) and message.migration == migration and message.edge == remote.move.target:
            remote.reply, remote.request_id = message, None
            self._context.cancel_timer(f"accept {migration}")
            self._tell_if_ready(remote)
        else:
            text = message.message if isinstance(message, Refusal) else f"answered with {message.kind}"
            self._fail(remote, f"{remote.move.target_head}: {text}")

    def _undeliverable(self, migration: str) -> None:
        remote = self._moves.get(migration)
        if remote is not None:
            self._fail(remote, f"the process of {remote.move.target_head} is not there")

    def _timed_out(self, migration: str) -> None:
        remote = self._moves.get(migration)
        if remote is None or remote.reply is not None:
            return
        if remote.attempts < ATTEMPTS_MAX:
            self._ask(remote)
        else:
            self._fail(remote, f"{remote.move.target_head} does not answer")

    def _routes_live(self, migration: str, awaiting: set[str]) -> None:
        remote = self._moves.get(migration)
        if remote is None:
            return
        self._context.cancel_timer(f"wait remote {migration}")
        if awaiting:
            self._fail(remote, f"no confirmed routes at {', '.join(sorted(awaiting))}")
            return
        remote.live = True
        self._tell_if_ready(remote)

    def _routes_failed(self, migration: str, problem: str) -> None:
        remote = self._moves.get(migration)
        if remote is not None:
            self._fail(remote, f"the route of the markers could not be bound: {problem}")

    def _discovered(self, discovery: str, heads: tuple[str, ...], problem: str) -> None:
        self._discovery = ""
        if heads:
            self._heads, self._heads_s = heads, self._context.now
        for name in sorted(self._moves):
            remote = self._moves.get(name)
            if remote is None or remote.heads:
                continue
            if problem:
                self._fail(remote, f"not all heads can publish markers: {problem}")
            else:
                remote.heads = heads
                self._tell_if_ready(remote)

    def _tell_if_ready(self, remote: _Remote) -> None:
        reply = remote.reply
        if remote.failed or reply is None or not remote.live or not remote.heads:
            return
        place = NewPlace(
            edge=reply.edge,
            number=reply.number,
            url=reply.url,
            queue=reply.queue,
            head=remote.move.target_head,
            heads=remote.heads,
            head_url=reply.head_url,
        )
        self._progress.prepared(remote.move.id, place)

    def _fail(self, remote: _Remote, why: str) -> None:
        if not remote.failed:
            remote.failed = True
            self._progress.failed(remote.move.id, why)

    # Markers

    def publish_markers(self, move: Move, place: NewPlace) -> None:
        remote = self._moves[move.id]
        if move.id in self._flood:
            remote.again = True
        else:
            self._flood.start(move.id, self._published)

    def _published(self, migration: str, heads: tuple[str, ...], problem: str) -> None:
        remote = self._moves.get(migration)
        if remote is None:
            return
        if problem:
            self._fail(remote, f"not all heads have published their markers: {problem}")
        elif heads != remote.heads:
            self._heads = ()
            self._fail(remote, f"markers came from {', '.join(heads)} instead of {', '.join(remote.heads)}")
        elif remote.again:
            remote.again = False
            self._flood.start(migration, self._published)

    # The end

    def end(self, move: Move, moved: bool) -> None:
        """Undo what was done here, and have the other head do the same."""
        context = self._context
        remote = self._moves.pop(move.id)
        context.drop_request(remote.request_id)
        context.cancel_timer(f"accept {move.id}")
        context.waits.close(f"remote {move.id}")
        context.cancel_timer(f"wait remote {move.id}")
        context.routes.release(move.source, move.marker)
        self._flood.stop(move.id)
        number = remote.reply.number if remote.reply is not None else None
        self._tell_head(move.target_head, move.id, moved, move.target, move.subscription, number)

    def late_report(self, message: MigrationReport) -> None:
        """A client tells how a migration ended that we have forgotten: if it led out of the cluster, pass it on."""
        edges = self._context.registry.edges
        if message.stage is MigrationStage.MOVED:
            edge, number = message.edge, message.number
            old = (message.other_edge or "", (message.subscriber, message.other_number or 0))
            known, record = self._context.registry.get(*old), edges.get(old[0])
            # An edge that has not told yet what it holds may hold this.
            left = known.pattern == message.pattern if known is not None else record is not None and not record.settled
            if edge not in edges and left and not message.unsettled:
                self._removals.discard(*old)
        elif message.stage in (MigrationStage.STAYED, MigrationStage.UNKNOWN) and message.other_edge is not None:
            edge, number = message.other_edge, message.other_number or 0
        else:
            return
        if edge not in edges:
            moved = message.stage is MigrationStage.MOVED
            for name in sorted(self._context.routes.offers):
                self._tell_head(name, message.migration, moved, edge, message, number)

    def _tell_head(
        self,
        head: str,
        migration: str,
        moved: bool,
        edge: str,
        client: Subscription | MigrationReport,
        number: int | None,
    ) -> None:
        key = f"{migration} {head}"
        if key in self._ends:
            return
        if len(self._ends) >= ENDS_MAX:
            self._forget_end(next(iter(self._ends)))
        message = AcceptEnd(
            migration=migration,
            head=self._context.config.head,
            moved=moved,
            edge=edge,
            subscriber=client.subscriber,
            pattern=client.pattern,
            number=number,
        )
        self._ends[key] = _End(message, head)
        self._tell_end(key)

    def _tell_end(self, key: str) -> None:
        end = self._ends[key]
        end.attempts += 1
        self._context.drop_request(end.request_id)
        end.request_id = self._context.request(end.to, end.message, "accept-end", key)
        doublings = max(end.attempts - END_ATTEMPTS_SOON, 0)
        pause_s = min(self._context.config.reply_timeout_s * 2**doublings, END_PAUSE_MAX_S)
        self._context.set_timer(f"accept-end {key}", pause_s)

    def _end_answered(self, key: str, message: ControlMessage) -> None:
        if key in self._ends and isinstance(message, MigrationAck):
            self._forget_end(key)

    def _end_unheard(self, key: str) -> None:
        """The other head is not there at this moment; the timer tells it again."""

    def _end_timed_out(self, key: str) -> None:
        end = self._ends.get(key)
        if end is None:
            return
        if end.attempts < END_ATTEMPTS_MAX:
            self._tell_end(key)
        else:
            self._forget_end(key)
            migration = end.message.migration
            reason = f"{end.to} was told {end.attempts} times how it ended and did not answer"
            self._context.decide(Decision("accept-end-unheard", migration, reason, session=migration))

    def _forget_end(self, key: str) -> None:
        end = self._ends.pop(key)
        self._context.drop_request(end.request_id)
        self._context.cancel_timer(f"accept-end {key}")

    # Where is it? Asked by a head that was never told how a migration ended

    def place_asked(self, message: PlaceRequest, reply_to: ReplyAddress | None) -> None:
        """Only the client knows; ask it on behalf of the other head."""
        if reply_to is None or len(self._places) >= PLACES_ASKED_MAX:
            text = f"PLACES_ASKED_MAX = {PLACES_ASKED_MAX} questions are under way"
            self._context.refuse(reply_to, RefusalReason.LIMIT, text)
            return
        self._last_place += 1
        subject = str(self._last_place)
        request_id = self._context.send_client(message.subscriber, message, "remote-place", subject)
        self._places[subject] = (request_id, reply_to, self._context.now)

    def _place_told(self, subject: str, message: ControlMessage) -> None:
        _, reply_to, _ = self._places.pop(subject)
        self._context.reply(reply_to, message)

    def _place_unknown(self, subject: str) -> None:
        _, reply_to, _ = self._places.pop(subject)
        self._context.refuse(reply_to, RefusalReason.UNKNOWN, "this client is not there")

    def tick(self) -> None:
        """Every period: give up questions that no client has answered. Whoever asked has given up before."""
        for subject, (request_id, _, asked_s) in list(self._places.items()):
            if self._context.now - asked_s > ATTEMPTS_MAX * self._context.config.reply_timeout_s:
                self._context.drop_request(request_id)
                del self._places[subject]

    def validate(self) -> None:
        """Raise AssertionError if a migration is both under way and ended, or its markers have no route."""
        assert not self._moves.keys() & {end.message.migration for end in self._ends.values()}
        assert len(self._ends) <= ENDS_MAX
        for remote in self._moves.values():
            move = remote.move
            assert self._context.routes.is_carried(move.source, move.marker), f"the markers of {move.id}"
