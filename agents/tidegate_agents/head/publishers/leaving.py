"""Moving publishers away from an overloaded head, with the order of their messages kept: the old head's side.

    old head → neighbours  head-load-request     who has room? Answered with head-load
    old head → new head    publisher-expect      watch for the fence; answered with publisher-expected
    old head → publisher   publisher-move-order  connect there, pause, wait for all confirms
    publisher → old head   paused                now the fence is published, behind everything the publisher sent
    new head → old head    fence-seen            all of it has passed through the new head, which has our routes by now
    old head → publisher   publisher-resume      go on at the new head
    publisher → old head   moved

Invariants:

- one publisher session at a time, never while this head awaits publishers itself;
- no publisher is told to go on at the new head before that head has seen the fence and has confirmed all that was
  subscribed behind us when the fence was sent; and once a publisher has been told how to go on, it is never told
  otherwise in the same move;
- whatever fails or takes too long ends with the publisher going on here: told so, or by its own time-out;
- a report is always acknowledged, also a report about a move that we know nothing of (any more): a publisher that is
  paused then is told to go on here;
- a publisher that was moved, or could not be, rests for the cool-down; after a session nothing is started before
  what has moved shows in the load, or `stabilizing_max_s` is over; a session that came to nothing is not repeated
  before a time that doubles up to `retry_max_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from tidegate_protocol.balancing.publishers import (
    FenceSeen,
    HeadLoad,
    HeadLoadRequest,
    PublisherExpect,
    PublisherExpectReply,
    PublisherMoveAck,
    PublisherMoveOrder,
    PublisherMoveReport,
    PublisherResume,
    PublisherStage,
)
from tidegate_protocol.decisions import (
    ENDS,
    Cause,
    PlanOutcome,
    PublisherMove,
    PublisherMoveEnded,
    PublisherOutcome,
    PublisherPlan,
    PublisherSession,
    PublisherSessionEnded,
    Rejected,
    Rejection,
    SessionOutcome,
)
from tidegate_protocol.messages import LoadState
from tidegate_protocol.names import marker_key

from ...kit.answers import detail_of, rejected_for
from ...kit.backoff import Backoff
from ...kit.calls import Answer, Calls, Silence
from ...kit.dispatch import Dispatch
from ...kit.gather import Gatherings
from ...load.metrics import BrokerSample, Metric
from ...load.states import Assessment
from ...machine import PublishMarker, ReplyAddress, SendClient
from ..context import HeadContext
from ..moving.cooldowns import Cooldowns
from ..neighbours import Neighbours
from .choice import ChosenPublisher, choose_publishers
from .defence import Defence
from .streams import Publishers

LOADS_PART: Final = "publisher-session"
MOVE_PART: Final = "publisher-move"
ROUTES_PART: Final = "publisher-routes"
RESUME_ATTEMPTS_MAX: Final = 5
"""How often a publisher is told to go on before we leave it to its own time-out."""

SETTLED_SHARE: Final = 0.1
"""The load has come out as predicted when it differs by at most this share."""


class PublisherPhase(StrEnum):
    """Where one publisher's move is, in this order."""

    EXPECTING = "expecting"
    ORDERING = "ordering"
    PAUSING = "pausing"
    FENCING = "fencing"
    RESUMING = "resuming"


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a move ends."""

    outcome: PublisherOutcome
    who: str = ""
    detail: str = ""
    unheard: bool = False


def _unanswered(who: str, answer: Answer) -> _Ended:
    """`who` was asked and gave this answer, or none."""
    if isinstance(answer, Silence):
        absent = answer is Silence.ABSENT
        return _Ended(PublisherOutcome.PROCESS_ABSENT if absent else PublisherOutcome.NO_ANSWER, who)
    return _Ended(PublisherOutcome.REFUSED, who, detail_of(answer))


@dataclass(slots=True)
class _Move:
    id: str
    publisher: str
    target: str
    url: str
    fence: str
    phase: PublisherPhase = PublisherPhase.EXPECTING
    fenced: bool = False
    """Whether the fence was seen at the target."""
    routed: bool = False
    """Whether the target has confirmed our routes."""
    how: _Ended | None = None
    """With what the publisher was told to go on."""

    @property
    def moved(self) -> bool:
        """Whether it was told to go on at the new head."""
        return self.how is not None and self.how.outcome is PublisherOutcome.MOVED


@dataclass(slots=True)
class _PublisherSession:
    id: str
    metrics: tuple[Metric, ...]
    started_s: float
    loads: dict[str, HeadLoad] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    moves: dict[str, _Move] = field(default_factory=dict)
    predicted: BrokerSample | None = None
    moved: int = 0
    failed: int = 0


class PublisherMoves:
    """The publisher session of a head, if one is under way, and when the next may be."""

    def __init__(self, context: HeadContext, neighbours: Neighbours, publishers: Publishers, defence: Defence) -> None:
        self._context = context
        self._neighbours = neighbours
        self._publishers = publishers
        self._defence = defence
        self._session: _PublisherSession | None = None
        self._loads = Gatherings(context, LOADS_PART, self._load_heard, self._choose)
        self._calls = Calls(context, MOVE_PART, context.config.reply_timeout_s, self._heard)
        self._cooldowns = Cooldowns()
        self._backoff = Backoff(context.config.balancing.retry_s, context.config.balancing.retry_max_s)
        self._not_before_s = 0.0
        self._settling: tuple[float, BrokerSample] | None = None
        self._assessment: Assessment | None = None
        self._sample: BrokerSample | None = None

    def register(self, dispatch: Dispatch) -> None:
        self._loads.register(dispatch)
        self._calls.register(dispatch)
        dispatch.on_message(PublisherMoveReport, self.on_report)
        dispatch.on_message(FenceSeen, self.on_fence_seen)
        dispatch.on_wait(ROUTES_PART, self._routes_live)
        dispatch.on_failure(PublishMarker, self._fence_failed)
        dispatch.stops.append(self._stop)
        dispatch.checks.append(self.validate)

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
            self._backoff.reset()
            self._not_before_s = 0.0
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
        name = context.new_name("p")
        self._session = _PublisherSession(name, assessment.overloaded_metrics, context.now)
        causes = tuple(Cause(one.metric, one.value, one.threshold) for one in assessment.overloads)
        context.decide(PublisherSession(config.head, causes, session=name))
        request = HeadLoadRequest(session=name, head=config.head)
        within_s = config.balancing.load_reply_timeout_s
        self._loads.ask(name, dict.fromkeys(context.routes.offers, request), within_s=within_s)

    # Which publishers the neighbours can take

    def _load_heard(self, name: str, neighbour: str, answer: Answer) -> None:
        session = self._session
        assert session is not None
        assert session.id == name
        if not isinstance(answer, HeadLoad) or answer.load.broker != neighbour:
            session.rejected.append(rejected_for(neighbour, answer))
        elif answer.load.busy:
            session.rejected.append(Rejected(neighbour, Rejection.BUSY))
        elif answer.load.state is not LoadState.LOW:
            session.rejected.append(Rejected(neighbour, Rejection.STATE, state=answer.load.state))
        else:
            session.loads[neighbour] = answer

    def _choose(self, name: str) -> None:
        context, session = self._context, self._session
        assert session is not None
        assert self._sample is not None
        assert self._assessment is not None
        overloaded = self._assessment.overloaded_metrics
        if not overloaded:
            self._end(session, SessionOutcome.OVERLOAD_PASSED)
            return
        loads = self._publishers.loads() if session.loads else ()
        choice = choose_publishers(
            self._sample,
            overloaded,
            loads,
            [session.loads[name] for name in sorted(session.loads)],
            excluded=self._excluded({load.name for load in loads}),
        )
        outcome = PlanOutcome.NOBODY_MOVABLE if session.loads else PlanOutcome.NO_ROOM
        if choice.chosen:
            outcome = PlanOutcome.RELIEVED if choice.relieved else PlanOutcome.PARTLY_RELIEVED
        moves = tuple(PublisherMove(one.publisher, one.target) for one in choice.chosen)
        rejected = (*session.rejected, *choice.rejected)
        head = context.config.head
        context.decide(PublisherPlan(head, outcome, moves, choice.effects, rejected, session=session.id))
        if not choice.chosen:
            self._end(session, ENDS[outcome])
            return
        session.predicted = choice.source_after
        for number, one in enumerate(choice.chosen):
            self._expect_first(session, number, one)

    def _excluded(self, names: set[str]) -> Mapping[str, Rejected]:
        """Who is not to be moved, and why."""
        excluded: dict[str, Rejected] = {}
        for name in sorted(names):
            if not self._publishers.is_client(name):
                excluded[name] = Rejected(name, Rejection.FOREIGN_CLIENT)
            elif name in self._defence:
                excluded[name] = Rejected(name, Rejection.FLOODS)
            elif self._cooldowns.rests((name, ""), self._context.now):
                excluded[name] = Rejected(name, Rejection.MOVED_RECENTLY)
        return excluded

    # One publisher

    def _expect_first(self, session: _PublisherSession, number: int, one: ChosenPublisher) -> None:
        name = f"{session.id}-{number}"
        fence = marker_key(name, self._context.config.head)
        session.moves[name] = _Move(name, one.publisher, one.target, one.url, fence)
        message = PublisherExpect(move=name, head=self._context.config.head, publisher=one.publisher, fence=fence)
        self._calls.ask(name, one.target, message)

    def _send_order(self, move: _Move) -> None:
        move.phase = PublisherPhase.ORDERING
        message = PublisherMoveOrder(
            move=move.id,
            publisher=move.publisher,
            head=move.target,
            url=move.url,
            timeout_us=round(self._context.config.balancing.migration_timeout_s * 1_000_000),
        )
        self._calls.ask_client(move.id, move.publisher, message)

    def _wait_for_pause(self, move: _Move) -> None:
        move.phase = PublisherPhase.PAUSING
        # From the order on, as the publisher counts; what sending it took is little against it.
        self._calls.wait(move.id, self._context.config.balancing.migration_timeout_s)

    def _publish_fence(self, move: _Move) -> None:
        move.phase = PublisherPhase.FENCING
        self._calls.wait(move.id, self._context.config.balancing.migration_timeout_s)
        self._context.do(PublishMarker(move.fence, targets=(move.target,)))
        routes_wait_s = self._context.config.routes_wait_s
        self._neighbours.open_wait(f"{ROUTES_PART} {move.id}", move.target, routes_wait_s)

    def _routes_live(self, name: str, awaiting: set[str]) -> None:
        """The neighbours have what is subscribed behind us, but for those in `awaiting`."""
        move = self._find(name)
        if move is None or move.phase is not PublisherPhase.FENCING:
            return
        if move.target in awaiting:
            self._resume(move, _Ended(PublisherOutcome.NO_ROUTE, move.target))
        else:
            move.routed = True
            self._resume_if_safe(move)

    def _resume_if_safe(self, move: _Move) -> None:
        if move.fenced and move.routed:
            self._resume(move, _Ended(PublisherOutcome.MOVED))

    def _resume(self, move: _Move, how: _Ended) -> None:
        self._stop_waiting(move)
        move.phase, move.how = PublisherPhase.RESUMING, how
        message = PublisherResume(move=move.id, publisher=move.publisher, moved=move.moved)
        self._calls.ask_client(move.id, move.publisher, message, attempts_max=RESUME_ATTEMPTS_MAX)

    def _stop_waiting(self, move: _Move) -> None:
        self._context.close_wait(f"{ROUTES_PART} {move.id}")

    def _heard(self, name: str, answer: Answer) -> None:
        """The answer to what was last asked in this move, or the end of the time for its present step."""
        move = self._find(name)
        assert move is not None
        if (
            isinstance(answer, PublisherMoveReport)
            and answer.move == name
            and move.phase is not PublisherPhase.EXPECTING
        ):
            self._progress(move, answer)
            return
        match move.phase:
            case PublisherPhase.EXPECTING if isinstance(answer, PublisherExpectReply) and answer.move == name:
                self._send_order(move)
            case PublisherPhase.EXPECTING:
                self._finish(move, _unanswered(move.target, answer))
            case PublisherPhase.ORDERING:
                # Also if it is not there: an order sent before may have reached it, so it is told to go on as well.
                absent = answer is Silence.ABSENT
                self._resume(move, _Ended(PublisherOutcome.ABSENT) if absent else _unanswered(move.publisher, answer))
            case PublisherPhase.PAUSING:
                self._resume(move, _Ended(PublisherOutcome.NOT_PAUSED))
            case PublisherPhase.FENCING:
                missing = PublisherOutcome.NO_ROUTE if move.fenced else PublisherOutcome.NO_FENCE
                self._resume(move, _Ended(missing, move.target))
            case PublisherPhase.RESUMING if answer is Silence.LATE:
                # A publisher that was let go and is not heard is not known to have moved.
                how = _Ended(PublisherOutcome.STAYED) if move.moved or move.how is None else move.how
                self._finish(move, replace(how, unheard=True))
            # One that is not there while it is to go on may be about to reconnect: it is told again by the timer.

    def on_report(self, message: PublisherMoveReport, reply_to: ReplyAddress | None) -> None:
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
                self._finish(move, _Ended(PublisherOutcome.MOVED))
            case PublisherStage.STAYED:
                stayed = _Ended(PublisherOutcome.STAYED, detail=message.reason)
                self._finish(move, stayed if move.how is None or move.moved else move.how)
            case PublisherStage.ORDERED if move.phase is PublisherPhase.ORDERING:
                self._wait_for_pause(move)
            case PublisherStage.PAUSED if move.phase in {PublisherPhase.ORDERING, PublisherPhase.PAUSING}:
                self._publish_fence(move)
            case PublisherStage.PAUSED if move.phase is PublisherPhase.RESUMING:
                # It repeats itself, so what it was told has not arrived.
                self._calls.again(move.id)

    def on_fence_seen(self, message: FenceSeen, reply_to: ReplyAddress | None) -> None:
        """The new head says that everything before the fence has passed there."""
        self._context.reply(reply_to, PublisherMoveAck(move=message.move))
        move = self._find(message.move)
        if move is not None and move.phase is PublisherPhase.FENCING and move.target == message.head:
            move.fenced = True
            self._resume_if_safe(move)

    def _fence_failed(self, action: PublishMarker, problem: str) -> None:
        for move in list(self._session.moves.values()) if self._session else ():
            if move.fence == action.key and move.phase is PublisherPhase.FENCING:
                self._resume(move, _Ended(PublisherOutcome.RABBITMQ_REFUSED, detail=problem))

    def _find(self, name: str) -> _Move | None:
        return self._session.moves.get(name) if self._session is not None else None

    # The end

    def _finish(self, move: _Move, how: _Ended) -> None:
        session, context = self._session, self._context
        assert session is not None
        moved = how.outcome is PublisherOutcome.MOVED
        self._calls.close(move.id)
        self._stop_waiting(move)
        del session.moves[move.id]
        session.moved += moved
        session.failed += not moved
        self.rest(move.publisher)
        if moved:
            self._publishers.gone(move.publisher)
        way = move.publisher, context.config.head, move.target
        context.decide(PublisherMoveEnded(*way, how.outcome, how.who, how.detail, how.unheard, session=session.id))
        if not session.moves:
            self._end(session, SessionOutcome.MOVES_ENDED if session.moved else SessionOutcome.NOTHING_MOVED)

    def _end(self, session: _PublisherSession, outcome: SessionOutcome) -> None:
        context = self._context
        self._session = None
        retry_after_s = None
        if session.moved and session.predicted is not None:
            self._backoff.reset()
            self._settling = (context.now, session.predicted)
        else:
            retry_after_s = self._backoff.take()
            self._not_before_s = context.now + retry_after_s
        counts, duration_s = (session.moved, session.failed), context.now - session.started_s
        head = context.config.head
        context.decide(PublisherSessionEnded(head, outcome, *counts, duration_s, retry_after_s, session=session.id))

    def _stop(self) -> None:
        """The process ends: publishers that wait for us go on here. Those told to go on elsewhere do that."""
        session = self._session
        if session is None:
            return
        self._loads.stop(session.id)
        for move in [session.moves[name] for name in sorted(session.moves)]:
            if move.phase in {PublisherPhase.ORDERING, PublisherPhase.PAUSING, PublisherPhase.FENCING}:
                resume = PublisherResume(move=move.id, publisher=move.publisher, moved=False)
                self._context.do(SendClient(move.publisher, resume))
            self._finish(move, _Ended(PublisherOutcome.STOPPING))
        if self._session is session:
            self._end(session, SessionOutcome.STOPPING)

    def validate(self) -> None:
        """Raise AssertionError if a session has nothing left to wait for, or waits without end."""
        self._cooldowns.validate()
        session = self._session
        if session is None:
            return
        assert (session.id in self._loads) != bool(session.moves), f"{session.id} waits for nothing, or for both"
        assert self._settling is None, f"{session.id} began before the last one had shown"
        for move in session.moves.values():
            assert move.id in self._calls, f"{move.id} waits without end"
            assert move.phase is PublisherPhase.RESUMING or not move.moved, (
                f"{move.id} is let go before the fence was seen"
            )
            assert not move.moved or (move.fenced and move.routed), f"{move.id} is let go without routes"
