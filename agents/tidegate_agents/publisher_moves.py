"""Moving publishers away from an overloaded head, with the order of their messages kept: the old head's side.

    old head → neighbours  head-load-request     who has room? Answered with head-load
    old head → new head    publisher-expect      watch for the fence; answered with publisher-expected
    old head → publisher   publisher-move-order  connect there, pause, wait for all confirms
    publisher → old head   paused                now the fence is published, behind everything the publisher sent
    new head → old head    fence-seen            all of it has passed through the new head, which has our routes by now
    old head → publisher   publisher-resume      go on at the new head
    publisher → old head   moved

What always holds:

- one publisher session at a time, never while this head awaits publishers itself;
- nobody is told to go on at the new head before the fence was seen there and it has confirmed all that was
  subscribed behind us when the fence was sent; and once a publisher has been told how to go on, it is never told
  otherwise in the same move;
- whatever fails or takes too long ends with the publisher going on here: told so, or by its own time-out;
- a report is always acknowledged, also one about a move that we know nothing of (any more): whoever is paused then
  is told to go on here;
- a publisher that was moved, or could not be, rests for the cool-down; after a session nothing is started before
  what has moved shows in the load, or `stabilizing_max_s` is over; a session that came to nothing is not repeated
  before a time that doubles up to `retry_max_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tidegate_protocol.balancing import (
    FenceSeen,
    HeadLoad,
    HeadLoadRequest,
    PublisherExpect,
    PublisherExpected,
    PublisherMoveAck,
    PublisherMoveOrder,
    PublisherMoveReport,
    PublisherResume,
    PublisherStage,
)
from tidegate_protocol.messages import ControlMessage, LoadState, Refusal
from tidegate_protocol.names import marker_key

from .config import ATTEMPTS_MAX
from .context import HeadContext
from .cooldowns import Cooldowns
from .machine import Decision, PublishMarker, ReplyAddress, SendClient
from .metrics import BrokerSample, Metric
from .neighbours import Neighbours
from .publisher_choice import ChosenPublisher, choose_publishers
from .publishers import Publishers
from .states import Assessment

ROUTES_PART: Final = "publisher-routes"
RESUME_ATTEMPTS_MAX: Final = 5
"""How often a publisher is told to go on before we leave it to its own time-out."""

SETTLED_SHARE: Final = 0.1
"""The load has come out as predicted when it differs by at most this share."""


class Phase(StrEnum):
    """Where one publisher's move is, in this order."""

    EXPECTING = "expecting"
    ORDERING = "ordering"
    PAUSING = "pausing"
    FENCING = "fencing"
    RESUMING = "resuming"


@dataclass(slots=True)
class _Move:
    id: str
    publisher: str
    target: str
    url: str
    fence: str
    phase: Phase = Phase.EXPECTING
    attempts: int = 0
    request_id: str | None = None
    fenced: bool = False
    """Whether the fence was seen at the target."""
    routed: bool = False
    """Whether the target has confirmed our routes."""
    moved: bool = False
    """What the publisher is told when it is told to go on."""
    reason: str = ""


@dataclass(slots=True)
class _Session:
    id: str
    metrics: tuple[Metric, ...]
    started_s: float
    waiting: dict[str, str] = field(default_factory=dict)
    """Neighbours that have not told their load yet, with the request each was sent."""
    loads: dict[str, HeadLoad] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    moves: dict[str, _Move] = field(default_factory=dict)
    predicted: BrokerSample | None = None
    moved: int = 0
    failed: int = 0


class PublisherMoves:
    """The publisher session of a head, if one is under way, and when the next may be."""

    def __init__(
        self, context: HeadContext, neighbours: Neighbours, publishers: Publishers, contained: Callable[[str], bool]
    ) -> None:
        self._context = context
        self._neighbours = neighbours
        self._publishers = publishers
        self._contained = contained
        self._session: _Session | None = None
        self._cooldowns = Cooldowns()
        self._count = 0
        self._failures = 0
        self._not_before_s = 0.0
        self._settling: tuple[float, BrokerSample] | None = None
        self._assessment: Assessment | None = None
        self._sample: BrokerSample | None = None

    @property
    def busy(self) -> bool:
        """Whether a session is under way or has not shown in the load yet."""
        return self._session is not None or self._settling is not None

    def rest(self, publisher: str) -> None:
        """Leave this publisher alone for the cool-down: it came, or was to come, from another head."""
        self._cooldowns.rest((publisher, ""), self._context.now + self._context.config.balancing.cooldown_s)

    # When to begin

    def assessed(self, assessment: Assessment, sample: BrokerSample, expecting: bool) -> None:
        """This head's load has been judged anew. `expecting`: it awaits publishers itself."""
        self._assessment, self._sample = assessment, sample
        self._cooldowns.expire(self._context.now)
        self._settle(sample)
        if assessment.state is not LoadState.OVERLOAD:
            self._failures, self._not_before_s = 0, 0.0
            return
        idle = not self.busy and not expecting and not self._context.stopping and not self._context.paused
        if idle and self._context.now >= self._not_before_s and self._context.config.balancing.policy != "none":
            self._begin(assessment)

    def _settle(self, sample: BrokerSample) -> None:
        if self._settling is None:
            return
        config, (ended_s, predicted) = self._context.config.balancing, self._settling
        passed_s = self._context.now - ended_s
        pairs = (
            (sample.bytes_in_per_s, predicted.bytes_in_per_s),
            (sample.bytes_offered_per_s, predicted.bytes_offered_per_s),
        )
        near = all(now <= then * (1.0 + SETTLED_SHARE) for now, then in pairs)
        if passed_s >= config.stabilizing_max_s or (passed_s >= config.stabilizing_min_s and near):
            self._settling = None

    def _begin(self, assessment: Assessment) -> None:
        context, config = self._context, self._context.config
        self._count += 1
        name = f"{config.head}~{config.incarnation}~p{self._count}"
        session = self._session = _Session(name, assessment.overloaded_metrics, context.now)
        reason = "; ".join(finding.text for finding in assessment.overloads)
        context.decide(Decision("publisher-session", config.head, reason, session=name))
        for neighbour in sorted(context.routes.offers):
            request = HeadLoadRequest(session=name, head=config.head)
            session.waiting[neighbour] = context.request(neighbour, request, "head-load", f"{name} {neighbour}")
        context.set_timer(f"publisher-session {name}", config.balancing.load_reply_timeout_s)
        if not session.waiting:
            self._choose(session)

    # Whom the neighbours can take

    def load_answered(self, subject: str, message: ControlMessage) -> None:
        session, neighbour = self._asked(subject)
        if session is None:
            return
        if not isinstance(message, HeadLoad) or message.load.broker != neighbour:
            text = message.message if isinstance(message, Refusal) else f"answered with {message.kind}"
            session.rejected[neighbour] = text
        elif message.load.busy:
            session.rejected[neighbour] = "busy with another session"
        elif message.load.state is not LoadState.LOW:
            session.rejected[neighbour] = f"is {message.load.state}"
        else:
            session.loads[neighbour] = message
        if not session.waiting:
            self._choose(session)

    def load_undeliverable(self, subject: str) -> None:
        session, neighbour = self._asked(subject)
        if session is not None:
            session.rejected[neighbour] = "its process is not there"
            if not session.waiting:
                self._choose(session)

    def _asked(self, subject: str) -> tuple[_Session | None, str]:
        name, _, neighbour = subject.partition(" ")
        session = self._session
        if session is None or session.id != name or session.waiting.pop(neighbour, None) is None:
            return None, neighbour
        return session, neighbour

    def session_timed_out(self, name: str) -> None:
        session = self._session
        if session is None or session.id != name or not session.waiting:
            return
        for neighbour, request_id in sorted(session.waiting.items()):
            self._context.drop_request(request_id)
            session.rejected[neighbour] = "did not tell its load in time"
        session.waiting = {}
        self._choose(session)

    def _choose(self, session: _Session) -> None:
        context = self._context
        context.cancel_timer(f"publisher-session {session.id}")
        assert self._sample is not None
        assert self._assessment is not None
        overloaded = self._assessment.overloaded_metrics
        if not overloaded:
            self._end(session, "the overload has passed by itself")
            return
        loads = self._publishers.loads() if session.loads else ()
        choice = choose_publishers(
            self._sample,
            overloaded,
            loads,
            [session.loads[name] for name in sorted(session.loads)],
            excluded=self._excluded({load.name for load in loads}),
        )
        names = " ".join(f"{one.publisher}>{one.target}" for one in choice.chosen)
        reason = names or ("no publisher can be moved" if session.loads else "no neighbour has room")
        rejected = session.rejected | dict(choice.rejected)
        context.decide(
            Decision("publisher-plan", context.config.head, reason, choice.numbers, rejected, session=session.id)
        )
        if not choice.chosen:
            self._end(session, reason)
            return
        session.predicted = choice.source_after
        for number, one in enumerate(choice.chosen):
            self._expect_first(session, number, one)

    def _excluded(self, names: set[str]) -> Mapping[str, str]:
        """Who is not to be moved, and why."""
        excluded: dict[str, str] = {}
        for name in sorted(names):
            if not self._publishers.is_client(name):
                excluded[name] = "a foreign client, which takes no orders"
            elif self._contained(name):
                excluded[name] = "floods, and is contained here"
            elif self._cooldowns.rests((name, ""), self._context.now):
                excluded[name] = "was moved too recently"
        return excluded

    # One publisher

    def _expect_first(self, session: _Session, number: int, one: ChosenPublisher) -> None:
        name = f"{session.id}-{number}"
        fence = marker_key(name, self._context.config.head)
        move = session.moves[name] = _Move(name, one.publisher, one.target, one.url, fence)
        self._expect(move)

    def _expect(self, move: _Move) -> None:
        head = self._context.config.head
        message = PublisherExpect(move=move.id, head=head, publisher=move.publisher, fence=move.fence)
        self._ask(move, self._context.request(move.target, message, "publisher-move", move.id))

    def _order(self, move: _Move) -> None:
        message = PublisherMoveOrder(
            move=move.id,
            publisher=move.publisher,
            head=move.target,
            url=move.url,
            timeout_us=round(self._context.config.balancing.migration_timeout_s * 1_000_000),
        )
        self._ask(move, self._context.send_client(move.publisher, message, "publisher-move", move.id))

    def _ask(self, move: _Move, request_id: str) -> None:
        move.attempts += 1
        move.request_id = request_id
        self._context.set_timer(f"publisher-move {move.id}", self._context.config.reply_timeout_s)

    def _enter(self, move: _Move, phase: Phase) -> None:
        self._context.drop_request(move.request_id)
        move.phase, move.attempts, move.request_id = phase, 0, None

    def _wait_for_pause(self, move: _Move) -> None:
        self._enter(move, Phase.PAUSING)
        # From the order on, as the publisher counts; what sending it took is little against it.
        self._context.set_timer(f"publisher-move {move.id}", self._context.config.balancing.migration_timeout_s)

    def _publish_fence(self, move: _Move) -> None:
        self._enter(move, Phase.FENCING)
        self._context.set_timer(f"publisher-move {move.id}", self._context.config.balancing.migration_timeout_s)
        self._context.do(PublishMarker(move.fence, targets=(move.target,)))
        routes_wait_s = self._context.config.routes_wait_s
        self._neighbours.open_wait(f"{ROUTES_PART} {move.id}", move.target, routes_wait_s)

    def routes_live(self, name: str, awaiting: set[str]) -> None:
        """The neighbours have what is subscribed behind us, but for those in `awaiting`."""
        move = self._find(name)
        if move is None or move.phase is not Phase.FENCING:
            return
        if move.target in awaiting:
            self._resume(move, False, f"{move.target} has not confirmed the routes to what is subscribed here")
        else:
            move.routed = True
            self._resume_if_safe(move)

    def _resume_if_safe(self, move: _Move) -> None:
        if move.fenced and move.routed:
            self._resume(move, True, "the fence was seen")

    def _resume(self, move: _Move, moved: bool, reason: str) -> None:
        self._enter(move, Phase.RESUMING)
        self._stop_waiting(move)
        move.moved, move.reason = moved, reason
        self._send_resume(move)

    def _stop_waiting(self, move: _Move) -> None:
        self._context.waits.close(f"{ROUTES_PART} {move.id}")
        self._context.cancel_timer(f"wait {ROUTES_PART} {move.id}")

    def _send_resume(self, move: _Move) -> None:
        self._context.drop_request(move.request_id)
        message = PublisherResume(move=move.id, publisher=move.publisher, moved=move.moved)
        self._ask(move, self._context.send_client(move.publisher, message, "publisher-move", move.id))

    def answered(self, name: str, message: ControlMessage) -> None:
        """The answer to what was last asked in this move."""
        move = self._find(name)
        if move is None:
            return
        text = message.message if isinstance(message, Refusal) else f"answered with {message.kind}"
        if move.phase is Phase.EXPECTING:
            if isinstance(message, PublisherExpected) and message.move == name:
                self._enter(move, Phase.ORDERING)
                self._order(move)
            else:
                self._finish(move, False, f"{move.target}: {text}")
        elif isinstance(message, PublisherMoveReport) and message.move == name:
            self._progress(move, message)
        elif move.phase is Phase.ORDERING:
            self._resume(move, False, f"{move.publisher}: {text}")

    def undeliverable(self, name: str) -> None:
        """Whoever was asked is not there."""
        move = self._find(name)
        if move is None:
            return
        if move.phase is Phase.EXPECTING:
            self._finish(move, False, f"the process of {move.target} is not there")
        elif move.phase is Phase.ORDERING:
            # An order sent before may have reached it, so it is told to go on as well.
            self._resume(move, False, f"{move.publisher} is not there")
        # One that is not there while it is to go on may be about to reconnect: it is told again by the timer.

    def timed_out(self, name: str) -> None:
        move = self._find(name)
        if move is None:
            return
        limit = RESUME_ATTEMPTS_MAX if move.phase is Phase.RESUMING else ATTEMPTS_MAX
        again = move.attempts < limit
        match move.phase:
            case Phase.EXPECTING if again:
                self._context.drop_request(move.request_id)
                self._expect(move)
            case Phase.EXPECTING:
                self._finish(move, False, f"{move.target} does not answer")
            case Phase.ORDERING if again:
                self._context.drop_request(move.request_id)
                self._order(move)
            case Phase.ORDERING:
                self._resume(move, False, f"{move.publisher} does not answer")
            case Phase.PAUSING:
                self._resume(move, False, f"{move.publisher} did not pause in time")
            case Phase.FENCING:
                missing = "the routes were not there" if move.fenced else f"the fence was not seen at {move.target}"
                self._resume(move, False, f"{missing} in time")
            case Phase.RESUMING if again:
                self._send_resume(move)
            case Phase.RESUMING:
                self._finish(move, False, f"{move.reason}; {move.publisher} did not say how it went on")

    def reported(self, message: PublisherMoveReport, reply_to: ReplyAddress | None) -> None:
        """A publisher says where it is, unasked."""
        context = self._context
        context.reply(reply_to, PublisherMoveAck(move=message.move))
        move = self._find(message.move)
        if move is not None and move.publisher == message.publisher:
            self._progress(move, message)
        elif message.stage in {PublisherStage.ORDERED, PublisherStage.PAUSED}:
            resume = PublisherResume(move=message.move, publisher=message.publisher, moved=False)
            context.do(SendClient(message.publisher, resume))

    def _progress(self, move: _Move, message: PublisherMoveReport) -> None:
        match message.stage:
            case PublisherStage.MOVED:
                self._finish(move, True, "it publishes at the new head")
            case PublisherStage.STAYED:
                self._finish(move, False, move.reason or message.reason or "it stayed")
            case PublisherStage.ORDERED if move.phase is Phase.ORDERING:
                self._wait_for_pause(move)
            case PublisherStage.PAUSED if move.phase in {Phase.ORDERING, Phase.PAUSING}:
                self._publish_fence(move)
            case PublisherStage.PAUSED if move.phase is Phase.RESUMING and move.attempts < RESUME_ATTEMPTS_MAX:
                # It repeats itself, so what it was told has not arrived.
                self._send_resume(move)

    def fence_seen(self, message: FenceSeen, reply_to: ReplyAddress | None) -> None:
        """The new head says that everything before the fence has passed there."""
        self._context.reply(reply_to, PublisherMoveAck(move=message.move))
        move = self._find(message.move)
        if move is not None and move.phase is Phase.FENCING and move.target == message.head:
            move.fenced = True
            self._resume_if_safe(move)

    def fence_failed(self, key: str, problem: str) -> None:
        """RabbitMQ did not take the fence."""
        for move in list(self._session.moves.values()) if self._session else ():
            if move.fence == key and move.phase is Phase.FENCING:
                self._resume(move, False, f"the fence could not be published: {problem}")

    def _find(self, name: str) -> _Move | None:
        return self._session.moves.get(name) if self._session is not None else None

    # The end

    def _finish(self, move: _Move, moved: bool, reason: str) -> None:
        session, context = self._session, self._context
        assert session is not None
        context.drop_request(move.request_id)
        context.cancel_timer(f"publisher-move {move.id}")
        self._stop_waiting(move)
        del session.moves[move.id]
        session.moved += moved
        session.failed += not moved
        self.rest(move.publisher)
        if moved:
            self._publishers.gone(move.publisher)
            context.registry.publisher_gone(move.publisher)
        kind = "publisher-moved" if moved else "publisher-stayed"
        context.decide(Decision(kind, f"{move.publisher}>{move.target}", reason, session=session.id))
        if not session.moves:
            self._end(session, f"{session.moved} moved, {session.failed} stayed")

    def _end(self, session: _Session, reason: str) -> None:
        context, config = self._context, self._context.config.balancing
        self._session = None
        numbers = {
            "moved": float(session.moved),
            "failed": float(session.failed),
            "duration_s": context.now - session.started_s,
        }
        if session.moved and session.predicted is not None:
            self._failures, self._settling = 0, (context.now, session.predicted)
        else:
            wait_s = min(config.retry_s * 2.0 ** min(self._failures, 30), config.retry_max_s)
            self._failures += 1
            self._not_before_s = context.now + wait_s
            numbers["retry_s"] = wait_s
        context.decide(Decision("publisher-session-ended", context.config.head, reason, numbers, session=session.id))

    def stop(self) -> None:
        """The process ends: whoever waits for us goes on here. Those told to go on elsewhere do that."""
        session = self._session
        if session is None:
            return
        for request_id in session.waiting.values():
            self._context.drop_request(request_id)
        session.waiting = {}
        for move in [session.moves[name] for name in sorted(session.moves)]:
            if move.phase in {Phase.ORDERING, Phase.PAUSING, Phase.FENCING}:
                resume = PublisherResume(move=move.id, publisher=move.publisher, moved=False)
                self._context.do(SendClient(move.publisher, resume))
            self._finish(move, False, "this head is being stopped")
        if self._session is session:
            self._end(session, "this head is being stopped")

    def validate(self) -> None:
        """Raise AssertionError if a session has nothing left to wait for, or waits without end."""
        self._cooldowns.validate()
        session = self._session
        if session is None:
            return
        assert session.waiting or session.moves, f"{session.id} waits for nothing"
        assert not (session.waiting and session.moves), f"{session.id} moves publishers before all have answered"
        assert self._settling is None, f"{session.id} began before the last one had shown"
        for move in session.moves.values():
            asks = move.phase in {Phase.EXPECTING, Phase.ORDERING, Phase.RESUMING}
            assert asks == (move.request_id is not None), f"{move.id} in {move.phase}"
            assert move.phase is Phase.RESUMING or not move.moved, f"{move.id} is let go before the fence was seen"
            assert not move.moved or (move.fenced and move.routed), f"{move.id} is let go without routes"
