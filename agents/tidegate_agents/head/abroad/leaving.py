"""Moving subscriptions to another cluster: the side of the head they leave.

When a cluster has no room, the neighbouring heads are asked which of their edges have some (`candidates`). A
migration to such an edge then takes the course of any other (`migrations`), by the steps here: the other head makes
the place (`arriving`), and the markers are those of *all* heads, because the two edges are reached from every head
by different ways. Invariants:

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

from tidegate_protocol.balancing.abroad import AcceptEnd, AcceptReply, AcceptRequest
from tidegate_protocol.balancing.migrations import MigrationAck, MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import PlaceRequest
from tidegate_protocol.decisions import AcceptEndUnheard, MoveOutcome, WhyNot
from tidegate_protocol.messages import Subscription
from tidegate_protocol.rendering import refusals

from ...config import ATTEMPTS_MAX
from ...kit.answers import why_not
from ...kit.calls import Answer, Calls, Silence
from ...kit.dispatch import Dispatch
from ...machine import ReplyAddress
from ..context import HeadContext
from ..moving.marker_flood import MarkerFlood
from ..moving.steps import Move, NewPlace, Progress
from ..neighbours import Neighbours
from ..places.knowledge import Knowledge
from ..places.removals import Removals

HEADS_FRESH_S: Final = 60.0
"""How long the names of all heads are believed; a head that joins meanwhile is noticed when markers are published."""

END_ATTEMPTS_MAX: Final = 10
END_ATTEMPTS_SOON: Final = 3
"""So many of them soon after each other; then the pause doubles each time, because somebody is away."""
ENDS_MAX: Final = 5_000
"""Migrations whose end another head has not acknowledged; of more, the latest."""

PLACES_ASKED_MAX: Final = 1_000
"""Questions of other heads to our clients under way at once."""


@dataclass(slots=True)
class _Remote:
    move: Move
    progress: Progress
    live: bool = False
    reply: AcceptReply | None = None
    heads: tuple[str, ...] = ()
    failed: bool = False
    again: bool = False
    """Whether the markers are to be sent once more, as soon as those under way are."""


class RemoteSteps:
    """The steps of migrations that lead to another cluster."""

    def __init__(
        self,
        context: HeadContext,
        knowledge: Knowledge,
        neighbours: Neighbours,
        removals: Removals,
        flood: MarkerFlood,
    ) -> None:
        self._context = context
        self._knowledge = knowledge
        self._neighbours = neighbours
        self._removals = removals
        self._flood = flood
        within_s = context.config.reply_timeout_s + context.config.routes_wait_s
        self._calls = Calls(context, "accept", within_s, self._heard)
        self._moves: dict[str, _Remote] = {}
        self._end_calls = Calls(context, "accept-end", context.config.reply_timeout_s, self._end_heard)
        self._ends: dict[str, AcceptEnd] = {}
        """What other heads have still to acknowledge, by migration and head."""
        self._heads: tuple[str, ...] = ()
        self._heads_s = 0.0
        self._discovery = ""
        self._place_calls = Calls(
            context, "remote-place", ATTEMPTS_MAX * context.config.reply_timeout_s, self._place_heard
        )
        self._places: dict[str, ReplyAddress] = {}
        self._last_place = 0

    def register(self, dispatch: Dispatch) -> None:
        self._calls.register(dispatch)
        dispatch.on_wait("remote", self._routes_live, self._routes_failed)
        self._end_calls.register(dispatch)
        self._place_calls.register(dispatch)
        dispatch.on_message(PlaceRequest, self.place_asked)
        dispatch.checks.append(self.validate)

    # Preparing

    def prepare(self, move: Move, progress: Progress) -> None:
        """Have the other head make a place, the markers' routes bound, and all heads named."""
        context = self._context
        remote = self._moves[move.id] = _Remote(move, progress)
        # What is still to be told of an earlier attempt must not be taken for news of this one; if it names a place, it
        # can't be.
        client = (move.subscription.subscriber, move.subscription.pattern)
        for key, message in list(self._ends.items()):
            if (message.subscriber, message.pattern) == client and message.number is None:
                self._forget_end(key)
        context.routes.need(move.source, move.marker)
        self._neighbours.open_wait(f"remote {move.id}", move.source, context.config.routes_wait_s)
        request = AcceptRequest(
            migration=move.id,
            head=context.config.head,
            edge=move.target,
            subscription=move.subscription,
            marker=move.marker,
            load=move.load,
            source=move.source,
        )
        self._calls.ask(move.id, move.target_head, request)
        if self._heads and context.now - self._heads_s < HEADS_FRESH_S:
            remote.heads = self._heads
        elif not self._discovery:
            self._discovery = context.new_name("h")
            self._flood.start(self._discovery, self._discovered)

    def _heard(self, migration: str, answer: Answer) -> None:
        remote = self._moves[migration]
        self._calls.close(migration)
        if isinstance(answer, AcceptReply) and (answer.migration, answer.edge) == (migration, remote.move.target):
            remote.reply = answer
            self._tell_if_ready(remote)
        else:
            self._fail(remote, why_not(remote.move.target_head, answer))

    def _routes_live(self, migration: str, awaiting: set[str]) -> None:
        remote = self._moves.get(migration)
        if remote is None:
            return
        self._context.close_wait(f"remote {migration}")
        if awaiting:
            self._fail(remote, WhyNot(MoveOutcome.NO_ROUTE, tuple(sorted(awaiting))))
            return
        remote.live = True
        self._tell_if_ready(remote)

    def _routes_failed(self, migration: str, problem: str) -> None:
        remote = self._moves.get(migration)
        if remote is not None:
            self._fail(remote, WhyNot(MoveOutcome.RABBITMQ_REFUSED, (self._context.config.head,), problem))

    def _discovered(self, discovery: str, heads: tuple[str, ...], problem: WhyNot | None) -> None:
        self._discovery = ""
        if heads:
            self._heads, self._heads_s = heads, self._context.now
        for name in sorted(self._moves):
            remote = self._moves.get(name)
            if remote is None or remote.heads:
                continue
            if problem is not None:
                self._fail(remote, problem)
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
        remote.progress.prepared(remote.move.id, place)

    def _fail(self, remote: _Remote, why: WhyNot) -> None:
        if not remote.failed:
            remote.failed = True
            remote.progress.failed(remote.move.id, why)

    # Markers

    def publish_markers(self, move: Move, place: NewPlace) -> None:
        remote = self._moves[move.id]
        if move.id in self._flood:
            remote.again = True
        else:
            self._flood.start(move.id, self._published)

    def _published(self, migration: str, heads: tuple[str, ...], problem: WhyNot | None) -> None:
        remote = self._moves.get(migration)
        if remote is None:
            return
        if problem is not None:
            self._fail(remote, problem)
        elif heads != remote.heads:
            self._heads = ()
            missing = sorted(set(remote.heads) ^ set(heads))
            self._fail(remote, WhyNot(MoveOutcome.NO_MARKERS, tuple(missing)))
        elif remote.again:
            remote.again = False
            self._flood.start(migration, self._published)

    # The end

    def end(self, move: Move, moved: bool) -> None:
        """Undo what was done here, and have the other head do the same."""
        context = self._context
        remote = self._moves.pop(move.id)
        self._calls.close(move.id)
        context.close_wait(f"remote {move.id}")
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
            known = self._context.registry.get(*old)
            # An edge that has not told yet what it holds may hold this.
            left = known.pattern == message.pattern if known is not None else self._knowledge.is_unread(old[0])
            if edge not in edges and left and not message.unsettled:
                self._removals.discard(old)
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
        message = self._ends[key] = AcceptEnd(
            migration=migration,
            head=self._context.config.head,
            moved=moved,
            edge=edge,
            subscriber=client.subscriber,
            pattern=client.pattern,
            number=number,
        )
        self._end_calls.ask(key, head, message, attempts_max=END_ATTEMPTS_MAX, soon=END_ATTEMPTS_SOON)

    def _end_heard(self, key: str, answer: Answer) -> None:
        """A head that is not there at this moment, or can't acknowledge it yet, is told again."""
        if isinstance(answer, MigrationAck):
            self._forget_end(key)
        elif answer is Silence.LATE:
            migration, _, head = key.rpartition(" ")
            self._forget_end(key)
            self._context.decide(AcceptEndUnheard(head, END_ATTEMPTS_MAX, session=migration))

    def _forget_end(self, key: str) -> None:
        del self._ends[key]
        self._end_calls.close(key)

    # Where is it? Asked by a head that was never told how a migration ended

    def place_asked(self, message: PlaceRequest, reply_to: ReplyAddress | None) -> None:
        """Only the client knows; ask it on behalf of the other head."""
        if reply_to is None or len(self._places) >= PLACES_ASKED_MAX:
            self._context.refuse(reply_to, refusals.limit("PLACES_ASKED_MAX", PLACES_ASKED_MAX))
            return
        self._last_place += 1
        subject = str(self._last_place)
        self._places[subject] = reply_to
        self._place_calls.ask_client(subject, message.subscriber, message, attempts_max=1)

    def _place_heard(self, subject: str, answer: Answer) -> None:
        self._place_calls.close(subject)
        reply_to = self._places.pop(subject)
        if answer is Silence.ABSENT:
            self._context.refuse(reply_to, refusals.client_absent())
        elif not isinstance(answer, Silence):
            self._context.reply(reply_to, answer)
        # Of a client that does not answer nothing is said: the head that asked has given up before.

    def validate(self) -> None:
        """Raise AssertionError if a migration is both under way and ended, or its markers have no route."""
        assert not self._moves.keys() & {end.migration for end in self._ends.values()}
        assert len(self._ends) <= ENDS_MAX
        for remote in self._moves.values():
            move = remote.move
            assert self._context.routes.is_carried(move.source, move.marker), f"the markers of {move.id}"
