"""An edge's side of load-balancing sessions: as the source that asks for help, and as a target that gives it.

    watching ─ trigger → REQUESTED ─ candidates → PLANNED ─ accepted → MOVING ─ ended → stabilizing → watching
                             └──────── refused, timed out, nothing to move ─────────→ back-off → watching

What always holds:

- one session at a time, as source or as target; during one, and until its load shows afterwards, the edge reports
  itself busy and starts nothing;
- every step has a time-out: a request is repeated a bounded number of times and then given up, a session that nobody
  ends is left by itself;
- after a session that came to nothing the next attempt waits, each time twice as long; a success, or an overload that
  went away, starts over;
- what is moved is chosen on the figures of the moment at which the candidates' loads came in, not on older ones;
- if the cluster has no room, the same session asks for candidates of other clusters, once; then, as a last resort,
  for those of the cluster that are busy but not overloaded, who are asked along if it is urgent and there are no other
  clusters; where these don't suffice and it is urgent, also for those that take part in another session just now, or
  did a moment ago.

Which load is too much, and who goes where, is the policy's decision; who is moved when, the head's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from tidegate_protocol.balancing import (
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
from tidegate_protocol.messages import ControlMessage, LoadState, Refusal

from .config import ATTEMPTS_MAX
from .detector import Detector
from .edge_context import EdgeContext
from .machine import CancelTimer, Decision, ReplyAddress, SetTimer
from .metrics import Metric
from .operations_parts import outcome_numbers, predicted_numbers, trigger_numbers
from .pie import PieTable
from .policy import LoadView, Policy, Selection, Trigger

SESSION_TIMER: Final = "session"
SESSIONS_REMEMBERED_MAX: Final = 64
"""Ended sessions of which a late notice is recognised, and sessions of others taken part in at once."""
NEAR_SHARE: Final = 0.05
"""The load has moved as predicted if what is offered is off by no more than this share of the uplink."""
STEADY_SAMPLES: Final = 2
"""After so many samples without a change nothing more is going to move, whatever was predicted."""
REPLY_WAITS: Final = 2.0
"""How many times `load_reply_timeout_s` a request may take: the candidates are asked in between."""
REMOTE_REPLY_WAITS: Final = 4.0
"""The same where other heads ask theirs."""
FIRST_TRIGGERING_SAMPLE: Final = 2
NOTHING_REJECTED: Final[Mapping[str, str]] = MappingProxyType({})


class Phase(StrEnum):
    """How far a session of our own is."""

    REQUESTED = "requested"
    PLANNED = "planned"
    MOVING = "moving"


@dataclass(slots=True)
class _Session:
    """A session in which this edge is the source."""

    id: str
    trigger: Trigger
    remote: bool
    """Whether other clusters are asked for candidates."""
    started_s: float
    phase: Phase = Phase.REQUESTED
    message: BalanceRequest | BalancePlan | None = None
    """What waits for an answer, to be sent again if none comes."""
    request_id: str | None = None
    attempts: int = 0
    patient: bool = False
    """Whether candidates in other sessions are waited for, and those that stabilize taken."""
    selection: Selection | None = None


@dataclass(frozen=True, slots=True)
class _Stabilizing:
    session: str
    since_s: float
    predicted_offered: float | None
    """As source: what is expected to be offered once the moved load is gone. None as a target."""
    predicted: Mapping[str, float] = field(default_factory=dict)
    """The same for every metric, to be told with what came of it."""


class EdgeBalancing:
    """Sessions as one edge sees them."""

    def __init__(
        self,
        context: EdgeContext,
        detector: Detector,
        policy: Policy,
        peers: PieTable,
        session_over: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._config = context.config.balancing
        self._detector = detector
        self._policy = policy
        self._peers = peers
        self._session_over = session_over
        self._session: _Session | None = None
        self._hosted: dict[str, float] = {}
        """Sessions of other edges in which we are a target, with the moment at which we leave them ourselves."""
        self._over: deque[str] = deque(maxlen=SESSIONS_REMEMBERED_MAX)
        self._stabilizing: _Stabilizing | None = None
        self._last_session = 0
        self._head_incarnation: int | None = None
        self._retry_s = self._config.retry_s
        self._not_before_s = float("-inf")
        self._state = LoadState.LOW
        self._explained_s = float("-inf")

    # What others see

    @property
    def busy(self) -> bool:
        """In a session, or waiting for one to show."""
        return self._session is not None or bool(self._hosted) or self._stabilizing is not None

    @property
    def phase(self) -> Phase | None:
        return None if self._session is None else self._session.phase

    @property
    def stabilizing(self) -> bool:
        return self._stabilizing is not None

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
    def doing(self) -> str:
        """What an operator should know of it now; empty if it only watches."""
        session, wait_s = self._session, self._not_before_s - self._context.now
        if session is not None:
            return f"in session {session.id} as its source: {session.phase}"
        if self._hosted:
            return f"takes load in session {min(self._hosted)}"
        if self._stabilizing is not None:
            return f"stabilizing after session {self._stabilizing.session}"
        return f"waits {wait_s:.0f} s after a session that came to nothing" if wait_s > 0.0 else ""

    def load_requested(self, message: LoadRequest, reply_to: ReplyAddress | None) -> None:
        """The head asks on behalf of a session how loaded we are."""
        self.leave_overdue()
        load = self._detector.load(self.reported_state, busy=self.busy)
        self._context.reply([reply_to], LoadReply(session=message.session, load=load))

    # A sample was judged

    def judged(self) -> None:
        """Start a session if the policy asks for one and nothing stands against it."""
        self.leave_overdue()
        self._follow_state()
        self._stabilize()
        now, context = self._context.now, self._context
        if self.busy or context.stopping or context.draining or context.paused or now < self._not_before_s:
            return
        if self._detector.samples < FIRST_TRIGGERING_SAMPLE:
            return
        view = self._view()
        trigger = self._policy.detect(view)
        if trigger is not None:
            # The first sample of a change has seen a part of it only, here and on those who would help.
            if self._detector.steps != 1:
                self._start(trigger, remote=not trigger.candidates)
            return
        if view.assessment.state is LoadState.OVERLOAD and now - self._explained_s >= self._config.retry_max_s:
            self._explained_s = now
            reason = f"{self._policy.name} sees nothing that a move would help: {view.assessment.overloads[0].text}"
            numbers = {"uplink_limits": float(view.uplink_limits)}
            self._context.decide(Decision("session-not-started", context.config.edge, reason, numbers))

    def _follow_state(self) -> None:
        state = self._detector.assessment.state
        if self._state is LoadState.OVERLOAD and state is not LoadState.OVERLOAD:
            # The overload went away: the next one is a new one. What remains of a long wait is cut to a short one.
            self._retry_s = self._config.retry_s
            self._not_before_s = min(self._not_before_s, self._context.now + self._retry_s)
        self._state = state

    def _view(self) -> LoadView:
        peers = self._peers.fresh(self._context.now)
        peers.pop(self._context.config.head, None)
        return self._detector.view(peers)

    # As source

    def _start(self, trigger: Trigger, *, remote: bool) -> None:
        config = self._context.config
        self._last_session += 1
        session_id = f"{config.edge}~{config.incarnation}~{self._last_session}"
        session = self._session = _Session(session_id, trigger, remote, self._context.now)
        session.message = self._request(session)
        asked = len(trigger.candidates)
        numbers = {
            "necessary": float(trigger.necessary),
            "remote": float(remote),
            "candidates": float(asked),
            **trigger.numbers,
            **trigger_numbers(self._detector, trigger),
        }
        where = "other clusters are asked" if remote else f"{asked} candidates are LOW"
        self._decide("session-requested", f"{trigger.reason}; {where}", numbers, trigger.rejected)
        self._send()

    def _request(self, session: _Session) -> BalanceRequest:
        trigger = session.trigger
        return BalanceRequest(
            session=session.id,
            edge=self._context.config.edge,
            metric=trigger.metric,
            reason=trigger.reason[:1_000],
            patterns=trigger.patterns,
            candidates=trigger.fallbacks if trigger.last_resort else () if session.remote else trigger.candidates,
            fallbacks=trigger.fallbacks if trigger.urgent and not trigger.last_resort else (),
            remote=session.remote and not trigger.last_resort,
            last_resort=trigger.last_resort,
            patient=session.patient,
        )

    def _send(self) -> None:
        session = self._session
        assert session is not None
        assert session.message is not None
        session.attempts += 1
        session.request_id = self._context.request(session.message)
        waits = 1.0
        if session.phase is Phase.REQUESTED:
            waits = REMOTE_REPLY_WAITS if session.remote and not session.trigger.last_resort else REPLY_WAITS
        self._context.do(SetTimer(SESSION_TIMER, waits * self._config.load_reply_timeout_s))

    def answered(self, request_id: str, message: ControlMessage) -> None:
        """The head answered a request. What does not belong to the present step is of no interest."""
        session = self._session
        if session is None or request_id != session.request_id:
            return
        if isinstance(message, Refusal):
            self._fail(f"refused: {message.reason}: {message.message}", message.retry_after_s)
        elif isinstance(message, BalanceCandidates) and session.phase is Phase.REQUESTED:
            if message.session == session.id:
                self._plan(session, message)
        elif isinstance(message, BalanceAccepted) and session.phase is Phase.PLANNED and message.session == session.id:
            self._accepted(session, message)

    def undeliverable(self, request_id: str) -> None:
        if self._session is not None and request_id == self._session.request_id:
            self._fail("the head is not there")

    def timed_out(self) -> None:
        """The present step has taken too long."""
        session = self._session
        if session is None:
            return
        if session.phase is Phase.MOVING:
            self._finish("nobody said that it ended", moved=True)
        elif session.attempts < ATTEMPTS_MAX:
            self._send()
        else:
            self._fail(f"no answer to {session.attempts} requests while {session.phase}")

    def _plan(self, session: _Session, message: BalanceCandidates) -> None:
        selection = self._select(session, message)
        if session.trigger.lacks(selection) and message.fallbacks_asked and not session.trigger.last_resort:
            self._decide("session-last-resort", selection.reason, selection.numbers, selection.rejected)
            session.remote, session.trigger = True, replace(session.trigger, last_resort=True)
            selection = self._select(session, message)
        numbers = {
            "candidates": float(len(message.candidates)),
            "resting": float(len(message.resting)),
            **selection.numbers,
        }
        wider = session.trigger.lacks(selection) and self._widen(session)
        if wider or self._waits_for_others(session, message, selection):
            kind = "session-last-resort" if session.trigger.last_resort else "session-remote"
            if session.patient:
                kind = "session-waits"
                numbers["occupied"] = float(len(message.occupied))
            self._decide(kind, selection.reason, numbers, selection.rejected)
            session.attempts = 0
            session.message = self._request(session)
            self._send()
            return
        session.selection = selection
        session.phase, session.attempts = Phase.PLANNED, 0
        session.message = BalancePlan(
            session=session.id,
            edge=self._context.config.edge,
            moves=planned_moves(selection, self._detector),
            reason=selection.reason[:1_000],
            last_resort=session.trigger.last_resort,
        )
        kind = "session-planned" if selection.moves else "session-empty"
        self._decide(kind, selection.reason, numbers, selection.rejected)
        self._send()

    def _select(self, session: _Session, message: BalanceCandidates) -> Selection:
        ranked = self._policy.rank(session.trigger, message.candidates, session=session.id)
        resting = frozenset(message.resting)
        return self._policy.select(self._view(), session.trigger, ranked, resting=resting, session=session.id)

    def _widen(self, session: _Session) -> bool:
        """Nobody could take anything: ask others. False if there are no others to ask."""
        trigger = session.trigger
        if not session.remote:
            session.remote = True
        elif trigger.fallbacks and not trigger.last_resort:
            session.trigger = replace(trigger, last_resort=True)
        else:
            return False
        return True

    def _waits_for_others(self, session: _Session, message: BalanceCandidates, selection: Selection) -> bool:
        """Whether brokers that are in another session, or stabilize, are to be asked all the same.

        What does not suffice is followed by the time in which both sides stabilize, and a deadline would be missed in
        it. Otherwise it is better to wait until everything shows: estimates made in the middle of a change err.
        """
        urgent = session.trigger.urgent and session.trigger.last_resort
        if session.patient or not urgent or selection.relieved or not message.occupied:
            return False
        session.patient = True
        return True

    def _accepted(self, session: _Session, message: BalanceAccepted) -> None:
        selection = session.selection
        assert selection is not None, "only a plan is accepted"
        if selection.moves and message.moves > 0:
            session.phase, session.request_id = Phase.MOVING, None
            left_s = self._config.session_timeout_s + self._config.load_reply_timeout_s
            self._context.do(SetTimer(SESSION_TIMER, left_s))
        elif selection.moves:
            self._fail("the head took none of the moves")
        else:
            # Out of OVERLOAD by itself: when it is in it again that is a new reason, and no time to wait.
            soon_s = self._config.period_s if selection.relieved else None
            self._fail(f"nothing was moved: {selection.reason}", soon_s)

    def _fail(self, why: str, retry_after_s: float | None = None) -> None:
        session = self._session
        assert session is not None
        wait_s = self._retry_s if retry_after_s is None else retry_after_s
        self._not_before_s = self._context.now + wait_s
        if retry_after_s is None:
            self._retry_s = min(2.0 * self._retry_s, self._config.retry_max_s)
        self._decide("session-failed", why, {"phase_attempts": float(session.attempts), "retry_after_s": wait_s})
        self._over.append(session.id)
        self._session = None
        self._context.do(CancelTimer(SESSION_TIMER))

    def _finish(self, why: str, *, moved: bool, numbers: dict[str, float] | None = None) -> None:
        """Our session is over, and some load has moved, or may have."""
        session = self._session
        assert session is not None
        if not moved:
            self._fail(why)
            return
        after = session.selection.source_after if session.selection is not None else None
        self._retry_s = self._config.retry_s
        self._not_before_s = float("-inf")
        self._decide("session-ended", why, numbers or {})
        self._over.append(session.id)
        self._session = None
        self._context.do(CancelTimer(SESSION_TIMER))
        predicted = None if after is None else after.bytes_offered_per_s
        self._stabilizing = _Stabilizing(session.id, self._context.now, predicted, predicted_numbers(after))

    # Notices

    def noticed(self, notice: SessionNotice) -> None:
        """The head tells that a session with us in it began or ended."""
        ours = self._session is not None and self._session.id == notice.session
        if notice.phase is SessionPhase.STARTED:
            if not ours and notice.session not in self._over:
                if len(self._hosted) >= SESSIONS_REMEMBERED_MAX:
                    del self._hosted[min(self._hosted, key=lambda name: (self._hosted[name], name))]
                self._hosted[notice.session] = self._context.now + self._config.session_timeout_s
            return
        if notice.session in self._hosted or ours:
            self._session_over()
        took_part = self._hosted.pop(notice.session, None) is not None
        if ours:
            self._ended(notice)
        elif took_part:
            self._over.append(notice.session)
            if notice.moved > 0:
                self._stabilizing = _Stabilizing(notice.session, self._context.now, None)

    def _ended(self, notice: SessionNotice) -> None:
        assert self._session is not None
        numbers = {
            "moved": float(notice.moved),
            "failed": float(notice.failed),
            "duration_s": self._context.now - self._session.started_s,
        }
        if notice.moved > 0:
            numbers["moved_after_s"] = notice.duration_us / 1e6
            self._detector.learn_session(numbers["moved_after_s"])
            numbers["session_s"] = self._detector.session_time.average_s
        self._finish(f"{notice.moved} moved, {notice.failed} failed", moved=notice.moved > 0, numbers=numbers)

    def welcomed(self, incarnation: int) -> None:
        """The head answers. One that has begun anew knows nothing of the sessions it led: they are over."""
        before = self._head_incarnation
        self._head_incarnation = incarnation if before is None else max(before, incarnation)
        if before is None or incarnation <= before:
            return
        self._leave(self._hosted, "the head has begun anew")
        if self.phase is Phase.MOVING:
            self._finish("the head has begun anew; what it began may have moved", moved=True)

    def leave_overdue(self) -> None:
        """Leave sessions of others that nobody ended."""
        overdue = [name for name, until_s in self._hosted.items() if until_s <= self._context.now]
        self._leave(overdue, "nobody ended it")
        stabilizing = self._stabilizing
        if stabilizing is not None and self._context.now - stabilizing.since_s >= self._config.stabilizing_max_s:
            self._stabilized(stabilizing, "as long as it may take")

    def _leave(self, hosted: Collection[str], why: str) -> None:
        for name in sorted(hosted):
            del self._hosted[name]
            self._over.append(name)
            self._context.decide(Decision("session-left", self._context.config.edge, why, session=name))
            self._session_over()

    def _stabilize(self) -> None:
        stabilizing = self._stabilizing
        if stabilizing is None or self._context.now - stabilizing.since_s < self._config.stabilizing_min_s:
            return
        broker, steady = self._detector.broker, self._detector.steady_samples
        predicted, offered = stabilizing.predicted_offered, broker.bytes_offered_per_s
        if predicted is None:
            if steady:
                self._stabilized(stabilizing, "the load has moved")
        elif abs(offered - predicted) <= NEAR_SHARE * (broker.capacity.uplink_bytes_per_s or offered):
            self._stabilized(stabilizing, "the load has moved")
        elif steady >= STEADY_SAMPLES:
            self._stabilized(stabilizing, "the load is steady, but not as predicted")

    def _stabilized(self, stabilizing: _Stabilizing, why: str) -> None:
        self._stabilizing = None
        numbers = {
            "after_s": self._context.now - stabilizing.since_s,
            "offered_bytes_per_s": self._detector.broker.bytes_offered_per_s,
        }
        if stabilizing.predicted_offered is not None:
            numbers["predicted_bytes_per_s"] = stabilizing.predicted_offered
        numbers |= stabilizing.predicted
        numbers |= outcome_numbers(self._detector)
        edge = self._context.config.edge
        self._context.decide(Decision("stabilized", edge, why, numbers, session=stabilizing.session))

    # Helpers

    def _decide(
        self, kind: str, reason: str, numbers: Mapping[str, float], rejected: Mapping[str, str] = NOTHING_REJECTED
    ) -> None:
        assert self._session is not None
        edge = self._context.config.edge
        self._context.decide(Decision(kind, edge, reason, numbers, rejected, self._session.id))

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        session = self._session
        if session is not None:
            assert session.id not in self._over, "a session that is over goes on"
            assert session.id not in self._hosted, "source and target of one session"
            assert session.attempts <= ATTEMPTS_MAX
            assert (session.phase is Phase.MOVING) == (session.request_id is None)
            assert self._stabilizing is None or self._stabilizing.session != session.id
        assert len(self._hosted) <= SESSIONS_REMEMBERED_MAX
        assert self._config.retry_s <= self._retry_s <= max(self._config.retry_max_s, self._config.retry_s)


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
