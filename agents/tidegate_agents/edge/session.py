"""An edge's side of load-balancing sessions: as the source that asks for help, and as a target that gives it.

    watching ─ trigger → REQUESTED ─ candidates → PLANNED ─ accepted → MOVING ─ ended → stabilizing → watching
                             └──────── refused, timed out, nothing to move ─────────→ back-off → watching

Invariants:

- one session at a time, as source or as target; during one, and until its load shows afterwards, the edge reports
  itself busy and starts nothing;
- every step has a time-out: a request is repeated a bounded number of times and then given up, a session that nobody
  ends is left by itself;
- after a session that came to nothing the next attempt waits, each time twice as long; a success, or an overload that
  went away, starts over;
- what is moved is chosen on the figures of the moment at which the candidates' loads came in, not on older ones;
- if the cluster has no room, the same session asks for candidates of other clusters, once; then, as a last resort, for
  edges of the cluster that are HIGH but not overloaded (at once with the first question, if it is urgent and there are
  no other clusters). Where these don't suffice and it is urgent, the session also asks for edges that take part in
  another session just now, or did a moment ago.

Which load is too much, and who goes where, is the policy's decision; who is moved when, the head's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from tidegate_protocol.balancing.sessions import (
    BalanceAccepted,
    BalanceCandidates,
    BalancePlan,
    BalanceRequest,
    LoadReply,
    LoadRequest,
    PlannedMove,
    SessionNotice,
    SessionPhase,
)
from tidegate_protocol.decisions import (
    ENDS,
    Reach,
    SessionEnded,
    SessionFailed,
    SessionLeft,
    SessionNotStarted,
    SessionOutcome,
    SessionPlanned,
    SessionRequested,
    SessionWidened,
)
from tidegate_protocol.messages import LoadState, Refusal
from tidegate_protocol.operations import Activity, Doing, SourcePhase

from ..kit.backoff import Backoff
from ..kit.calls import Answer, Calls, Silence
from ..kit.dispatch import Dispatch
from ..kit.memory import Recent
from ..load.detector import Detector
from ..load.metrics import Metric, utilizations
from ..load.overview import danger
from ..load.pie import PieTable
from ..machine import ReplyAddress
from ..policy.interface import LoadView, Policy, Selection, Trigger
from .context import EdgeContext
from .markers import EdgeMarkers
from .stabilizing import Stabilizing

PART: Final = "session"
SESSIONS_REMEMBERED_MAX: Final = 64
"""Ended sessions of which a late notice is recognised, and sessions of others taken part in at once."""
REPLY_WAITS: Final = 2.0
"""How many times `load_reply_timeout_s` a request may take: the candidates are asked in between."""
REMOTE_REPLY_WAITS: Final = 4.0
"""The same where other heads ask theirs."""
FIRST_TRIGGERING_SAMPLE: Final = 2


@dataclass(slots=True)
class _OwnSession:
    """A session in which this edge is the source."""

    id: str
    trigger: Trigger
    started_s: float
    phase: SourcePhase = SourcePhase.REQUESTED
    selection: Selection | None = None


class EdgeBalancing:
    """Sessions as one edge sees them."""

    def __init__(
        self,
        context: EdgeContext,
        detector: Detector,
        policy: Policy,
        peers: PieTable,
        markers: EdgeMarkers,
    ) -> None:
        self._context = context
        self._config = config = context.config.balancing
        self._calls = Calls(context, PART, config.load_reply_timeout_s, self._heard)
        self._detector = detector
        self._policy = policy
        self._peers = peers
        self._markers = markers
        self._session: _OwnSession | None = None
        self._hosted: Recent[str, float] = Recent(SESSIONS_REMEMBERED_MAX)
        """Sessions of other edges in which we are a target, with the moment at which we leave them ourselves."""
        self._over: deque[str] = deque(maxlen=SESSIONS_REMEMBERED_MAX)
        self._stabilizing = Stabilizing(context, detector)
        self._head_incarnation: int | None = None
        self._backoff = Backoff(config.retry_s, config.retry_max_s)
        self._not_before_s = float("-inf")
        self._state = LoadState.LOW
        self._explained_s = float("-inf")

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(LoadRequest, self.on_load_request)
        dispatch.on_message(SessionNotice, self.on_notice)
        self._calls.register(dispatch)
        dispatch.checks.append(self.validate)

    # What others see

    @property
    def busy(self) -> bool:
        """In a session, or waiting for one to show."""
        return self._session is not None or bool(self._hosted) or bool(self._stabilizing)

    @property
    def phase(self) -> SourcePhase | None:
        return None if self._session is None else self._session.phase

    @property
    def stabilizing(self) -> bool:
        return bool(self._stabilizing)

    @property
    def reported_state(self) -> LoadState:
        """N/A while nothing is known about the load, or no load is taken."""
        context = self._context
        if context.stopping or context.draining or context.alarms or self._detector.samples == 0:
            return LoadState.NOT_AVAILABLE
        assessment = self._detector.assessment
        if assessment.overloaded_metrics == (Metric.QUEUE_DEPTH,) and not self._detector.uplink_limits:
            # The uplink has room: what waits there waits for something else, and would not wait longer for more.
            return LoadState.HIGH
        return assessment.state

    @property
    def doing(self) -> Doing | None:
        """What an operator should know of it now; None if it only watches."""
        session, wait_s = self._session, self._not_before_s - self._context.now
        if session is not None:
            return Doing(activity=Activity.SOURCE, sessions=(session.id,), phase=session.phase)
        if self._hosted:
            return Doing(activity=Activity.TARGET, sessions=(min(self._hosted),))
        if self._stabilizing.session is not None:
            return Doing(activity=Activity.STABILIZING, sessions=(self._stabilizing.session,))
        return Doing(activity=Activity.WAITING, left_s=wait_s) if wait_s > 0.0 else None

    def on_load_request(self, message: LoadRequest, reply_to: ReplyAddress | None) -> None:
        """The head asks on behalf of a session how loaded we are."""
        self.leave_overdue()
        load = self._detector.load(self.reported_state, busy=self.busy)
        self._context.reply(reply_to, LoadReply(session=message.session, load=load))

    # A sample was judged

    def judged(self) -> None:
        """Start a session if the policy asks for one and nothing stands against it."""
        self.leave_overdue()
        self._follow_state()
        self._stabilizing.judged()
        now, context = self._context.now, self._context
        if self.busy or context.stopping or context.draining or context.paused or now < self._not_before_s:
            return
        if self._detector.samples < FIRST_TRIGGERING_SAMPLE:
            return
        view = self.view()
        trigger = self._policy.detect(view)
        if trigger is not None:
            # The first sample of a change has seen a part of it only, here and on the edges that would help.
            if self._detector.steps != 1:
                self._start(trigger)
            return
        if view.assessment.state is LoadState.OVERLOAD and now - self._explained_s >= self._config.retry_max_s:
            self._explained_s = now
            worst = view.assessment.overloads[0]
            context.decide(SessionNotStarted(context.config.edge, self._policy.name, worst, view.uplink_limits))

    def _follow_state(self) -> None:
        state = self._detector.assessment.state
        if self._state is LoadState.OVERLOAD and state is not LoadState.OVERLOAD:
            # The overload went away: the next one is a new one. What remains of a long wait is cut to a short one.
            self._backoff.reset()
            self._not_before_s = min(self._not_before_s, self._context.now + self._backoff.next_s)
        self._state = state

    def view(self) -> LoadView:
        """What the policy sees of this edge and of the others in its cluster now."""
        peers = self._peers.fresh(self._context.now)
        peers.pop(self._context.config.head, None)
        return self._detector.view(peers)

    # As source

    def _start(self, trigger: Trigger) -> None:
        config, asked = self._context.config, len(trigger.candidates)
        session = self._session = _OwnSession(
            self._context.new_name(),
            trigger if asked else replace(trigger, reach=Reach.ABROAD),
            self._context.now,
        )
        rule, cause = self._detector.rule, trigger.cause
        self._context.decide(
            SessionRequested(
                config.edge,
                cause,
                trigger.necessary,
                not asked,
                asked,
                rule.session_s,
                rule.margin,
                rule.period_s,
                len(self._detector.assessment.overloaded_queues),
                danger(self._detector, trigger),
                utilizations(self._detector.broker)[Metric.UPLINK],
                self._detector.hints([cause.queue]),
                trigger.rejected,
                session=session.id,
            )
        )
        self._send_request(session)

    def _send_request(self, session: _OwnSession) -> None:
        trigger = session.trigger
        abroad = trigger.reach is Reach.ABROAD
        request = BalanceRequest(
            session=session.id,
            edge=self._context.config.edge,
            metric=trigger.metric,
            cause=trigger.cause,
            patterns=trigger.patterns,
            candidates=trigger.asked,
            fallbacks=trigger.fallbacks if trigger.urgent and not trigger.last_resort else (),
            reach=trigger.reach,
        )
        within_s = (REMOTE_REPLY_WAITS if abroad else REPLY_WAITS) * self._config.load_reply_timeout_s
        self._calls.ask(session.id, self._context.config.head, request, within_s=within_s)

    def _heard(self, name: str, answer: Answer) -> None:
        """The head answered, or did not, or nobody ended the session. Any other answer is of no interest."""
        session = self._session
        assert session is not None
        assert session.id == name
        if session.phase is SourcePhase.MOVING:
            self._finish(SessionOutcome.END_UNHEARD)
        elif answer is Silence.ABSENT:
            self._fail(SessionOutcome.HEAD_ABSENT)
        elif answer is Silence.LATE:
            self._fail(SessionOutcome.NO_ANSWER)
        elif isinstance(answer, Refusal):
            self._fail(SessionOutcome.REFUSED, answer.retry_after_s, refusal=answer)
        elif isinstance(answer, BalanceCandidates) and session.phase is SourcePhase.REQUESTED:
            if answer.session == name:
                self._plan(session, answer)
        elif isinstance(answer, BalanceAccepted) and session.phase is SourcePhase.PLANNED and answer.session == name:
            self._accepted(session, answer)

    def _plan(self, session: _OwnSession, message: BalanceCandidates) -> None:
        selection = self._select(session, message)
        if session.trigger.lacks(selection) and message.fallbacks_asked and not session.trigger.last_resort:
            self._widen(session, message, selection, Reach.LAST_RESORT)
            selection = self._select(session, message)
        wider = self._wider(session.trigger, message, selection)
        if wider is not None:
            self._widen(session, message, selection, wider)
            self._send_request(session)
            return
        session.selection, session.phase = selection, SourcePhase.PLANNED
        edge = self._context.config.edge
        plan = BalancePlan(
            session=session.id,
            edge=edge,
            moves=planned_moves(selection, self._detector),
            outcome=selection.outcome,
            reach=session.trigger.reach,
        )
        self._context.decide(
            SessionPlanned(
                edge,
                selection.outcome,
                selection.bundles,
                len(message.candidates),
                len(message.resting),
                selection.subscribers,
                selection.drain_factor,
                selection.effects,
                selection.rejected,
                session=session.id,
            )
        )
        self._calls.ask(session.id, self._context.config.head, plan)

    def _widen(self, session: _OwnSession, message: BalanceCandidates, found: Selection, reach: Reach) -> None:
        """Look farther for help than the candidates that were found."""
        session.trigger = replace(session.trigger, reach=reach)
        edge, resting, occupied = self._context.config.edge, len(message.resting), len(message.occupied)
        asked = len(message.candidates)
        self._context.decide(
            SessionWidened(edge, reach, found.outcome, asked, resting, occupied, found.rejected, session=session.id)
        )

    def _select(self, session: _OwnSession, message: BalanceCandidates) -> Selection:
        ranked = self._policy.rank(session.trigger, message.candidates, session=session.id)
        resting = frozenset(message.resting)
        return self._policy.select(self.view(), session.trigger, ranked, resting=resting, session=session.id)

    @staticmethod
    def _wider(trigger: Trigger, message: BalanceCandidates, selection: Selection) -> Reach | None:
        """How far to look now; None if what was found has to do, or there is nobody else to ask.

        Brokers that are in another session, or stabilize, are asked only if it is urgent: what does not suffice is
        followed by the time in which both sides stabilize, and a deadline would be missed in it. Otherwise it is better
        to wait until everything shows: estimates made in the middle of a change err.
        """
        if trigger.lacks(selection):
            if trigger.reach is Reach.HERE:
                return Reach.ABROAD
            if trigger.reach is Reach.ABROAD and trigger.fallbacks:
                return Reach.LAST_RESORT
        urgent = trigger.urgent and trigger.reach is Reach.LAST_RESORT
        return Reach.OCCUPIED if urgent and not selection.relieved and message.occupied else None

    def _accepted(self, session: _OwnSession, message: BalanceAccepted) -> None:
        selection = session.selection
        assert selection is not None, "only a plan is accepted"
        if selection.moves and message.moves > 0:
            session.phase = SourcePhase.MOVING
            self._calls.wait(session.id, self._config.session_timeout_s + self._config.load_reply_timeout_s)
        elif selection.moves:
            self._fail(SessionOutcome.NO_MOVE_BEGUN)
        else:
            # Out of OVERLOAD by itself: when it is in it again that is a new reason, and no time to wait.
            soon_s = self._config.period_s if selection.relieved else None
            self._fail(ENDS[selection.outcome], soon_s)

    def _fail(
        self,
        outcome: SessionOutcome,
        retry_after_s: float | None = None,
        *,
        refusal: Refusal | None = None,
        failed: int = 0,
    ) -> None:
        session = self._session
        assert session is not None
        wait_s = self._backoff.take() if retry_after_s is None else retry_after_s
        self._not_before_s = self._context.now + wait_s
        reason, detail = (None, "") if refusal is None else (refusal.reason, refusal.message)
        edge, attempts = self._context.config.edge, self._calls.attempts(session.id)
        self._context.decide(SessionFailed(edge, outcome, wait_s, attempts, failed, reason, detail, session=session.id))
        self._end(session)

    def _finish(self, outcome: SessionOutcome, notice: SessionNotice | None = None) -> None:
        """Our session is over, and some load has moved, or may have."""
        session = self._session
        assert session is not None
        moved, failed = (0, 0) if notice is None else (notice.moved, notice.failed)
        moved_after_s = None if notice is None else notice.duration_us / 1e6
        if moved_after_s is not None:
            self._detector.learn_session(moved_after_s)
        after = session.selection.source_after if session.selection is not None else None
        self._backoff.reset()
        self._not_before_s = float("-inf")
        edge, duration_s = self._context.config.edge, self._context.now - session.started_s
        session_s = self._detector.session_time.average_s
        self._context.decide(
            SessionEnded(edge, outcome, moved, failed, duration_s, moved_after_s, session_s, session=session.id)
        )
        self._end(session)
        self._stabilizing.begin(session.id, after)

    def _end(self, session: _OwnSession) -> None:
        self._over.append(session.id)
        self._session = None
        self._calls.close(session.id)

    # Notices

    def on_notice(self, notice: SessionNotice, _: ReplyAddress | None) -> None:
        """The head tells that a session with us in it began or ended."""
        ours = self._session is not None and self._session.id == notice.session
        if notice.phase is SessionPhase.STARTED:
            if not ours and notice.session not in self._over:
                self._hosted[notice.session] = self._context.now + self._config.session_timeout_s
            return
        if notice.session in self._hosted or ours:
            self._markers.settle()
        took_part = self._hosted.pop(notice.session, None) is not None
        if ours:
            self._ended(notice)
        elif took_part:
            self._over.append(notice.session)
            if notice.moved > 0:
                self._stabilizing.begin(notice.session)

    def _ended(self, notice: SessionNotice) -> None:
        if notice.moved > 0:
            self._finish(SessionOutcome.MOVES_ENDED, notice)
        else:
            self._fail(SessionOutcome.NOTHING_MOVED, failed=notice.failed)

    def welcomed(self, incarnation: int) -> None:
        """The head answers. One that has begun anew knows nothing of the sessions it led: they are over."""
        before = self._head_incarnation
        self._head_incarnation = incarnation if before is None else max(before, incarnation)
        if before is None or incarnation <= before:
            return
        self._leave(self._hosted, SessionOutcome.HEAD_RESTARTED)
        if self.phase is SourcePhase.MOVING:
            self._finish(SessionOutcome.HEAD_RESTARTED)

    def leave_overdue(self) -> None:
        """Leave sessions of others that nobody ended."""
        overdue = [name for name, until_s in self._hosted.items() if until_s <= self._context.now]
        self._leave(overdue, SessionOutcome.END_UNHEARD)
        self._stabilizing.expire()

    def _leave(self, hosted: Collection[str], why: SessionOutcome) -> None:
        for name in sorted(hosted):
            del self._hosted[name]
            self._over.append(name)
            self._context.decide(SessionLeft(self._context.config.edge, why, session=name))
            self._markers.settle()

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        session = self._session
        if session is not None:
            assert session.id not in self._over, "a session that is over goes on"
            assert session.id not in self._hosted, "source and target of one session"
            assert session.id in self._calls, "a session that nothing ends"
            assert self._stabilizing.session != session.id


def planned_moves(selection: Selection, detector: Detector) -> tuple[PlannedMove, ...]:
    """Every subscription with its part of the load; what comes in once for all of them is divided among them."""
    moves: list[PlannedMove] = []
    for move in selection.moves:
        together = len(move.bundle.clients)
        entering = 0.0 if move.target_has_topic else 1.0 / together
        for name in move.bundle.clients:
            queue = detector.queue(name)
            assert queue is not None, f"{name} was selected and is not here"
            moves.append(
                PlannedMove(
                    subscriber=queue.subscriber,
                    number=queue.number,
                    target=move.target,
                    bytes_in_per_s=move.bundle.bytes_in_per_s * entering,
                    bytes_out_per_s=queue.bytes_per_s,
                    messages_in_per_s=move.bundle.messages_in_per_s * entering,
                )
            )
    return tuple(moves)
