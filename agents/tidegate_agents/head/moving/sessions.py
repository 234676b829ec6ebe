"""Load-balancing sessions, as the head leads them: from an edge's request until the last migration has ended.

    ASKING     the candidates are asked for their load
    PLANNING   the source has the candidates, promises included, and makes its plan
    MOVING     the migrations of the plan are under way

Invariants:

- a broker is in one session at a time, as source or as target; candidates count as long as they may become targets;
- what a candidate was promised by other migrations is part of the load that the source sees;
- a client that rests is not moved, whatever a plan says; nor is a client with which anything else is under way;
- every request may be repeated and gets the same answer, also after the end;
- every phase has a time-out, so that every session ends; then all its brokers are told, and rest for a while.

Who is to go where is the source's decision; whether that may be done now is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tidegate_protocol.balancing.sessions import (
    CANDIDATES_MAX,
    BalanceAccepted,
    BalanceCandidates,
    BalancePlan,
    BalanceRequest,
    Candidate,
    LoadReply,
    LoadRequest,
    PlannedMove,
    SessionNotice,
    SessionPhase,
)
from tidegate_protocol.decisions import (
    ENDS,
    MoveOutcome,
    Reach,
    Rejected,
    Rejection,
    SessionCandidates,
    SessionEnded,
    SessionOutcome,
    SessionPlan,
    SessionRefusal,
    SessionRefused,
    WhyNot,
)
from tidegate_protocol.messages import LoadState
from tidegate_protocol.names import output_queue
from tidegate_protocol.rendering import refusals

from ...kit.answers import rejected_for
from ...kit.calls import Answer, Silence
from ...kit.dispatch import Dispatch
from ...kit.gather import Gatherings
from ...kit.memory import Recent
from ...kit.outbox import joined
from ...machine import ReplyAddress, Send
from ..abroad.candidates import RemoteCandidates
from ..context import HeadContext
from ..edges import Edges
from .led_session import LedPhase, LedSession
from .migrations import Migrations
from .offers import RESTING_BYTES_MAX, candidate, fitting, fitting_candidates
from .steps import Move

LOAD_PART: Final = "load"
PART: Final = "session"
ENDED_MAX: Final = 1_000
"""How many ended sessions are remembered, to answer repeated plans."""
REMOTE_REPLY_PERIODS: Final = 2
"""How many times as long as an edge another cluster may take to tell what its edges could carry."""


class Sessions:
    """The sessions under way in this cluster, by id."""

    def __init__(self, context: HeadContext, edges: Edges, migrations: Migrations, remote: RemoteCandidates) -> None:
        self._context = context
        self._edges = edges
        self._migrations = migrations
        self._remote = remote
        self._loads = Gatherings(context, LOAD_PART, self._load_heard, self._loads_complete)
        self._sessions: dict[str, LedSession] = {}
        self._by_broker: dict[str, str] = {}
        self._resting_until_s: dict[str, float] = {}
        self._ended: Recent[str, int] = Recent(ENDED_MAX)
        """How many moves were accepted, of those that ended lately."""

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(BalanceRequest, self.on_request)
        dispatch.on_message(BalancePlan, self.on_plan)
        self._loads.register(dispatch)
        dispatch.on_timer(PART, self._timed_out)
        dispatch.ticks.append(self._tick)
        dispatch.checks.append(self.validate)

    def busy(self, edge: str, *, urgent: bool = False) -> Rejected | None:
        """Why this edge can't be part of a session now; None if it can.

        If it is urgent an edge that stabilizes can: what it was given counts by the promises, and waiting until it
        shows would cost a deadline.
        """
        if edge in self._by_broker:
            return Rejected(edge, Rejection.IN_SESSION, other=self._by_broker[edge])
        if urgent:
            return None
        if self._resting_until_s.get(edge, 0.0) > self._context.now:
            return Rejected(edge, Rejection.STABILIZING)
        return None

    def reserve(self, edge: str, session: str) -> None:
        """`edge` is a target of a session that another head leads."""
        self._by_broker.setdefault(edge, session)

    def release(self, edge: str, session: str) -> None:
        """That session has ended for `edge`."""
        if self._by_broker.get(edge) == session:
            del self._by_broker[edge]
            self._rest(edge)
            self._serve_patient()

    def _rest(self, edge: str) -> None:
        self._resting_until_s[edge] = self._context.now + self._context.config.balancing.stabilizing_min_s

    def _tick(self) -> None:
        now = self._context.now
        self._context.promises.expire(now)
        self._context.cooldowns.expire(now)
        self._resting_until_s = {edge: until for edge, until in self._resting_until_s.items() if until > now}

    # The request

    def on_request(self, message: BalanceRequest, reply_to: ReplyAddress | None) -> None:
        """An edge is overloaded and asks for help."""
        session = self._sessions.get(message.session)
        if session is not None:
            self._requested_again(session, message, reply_to)
            return
        if self._refused(message, reply_to):
            return
        earlier = self._sessions.get(self._by_broker.get(message.edge, ""))
        if earlier is not None:
            self._end(earlier, SessionOutcome.ASKED_ANEW)
        session = LedSession(message, self._context.now)
        self._sessions[message.session] = session
        self._ask(session, reply_to)

    def _requested_again(self, session: LedSession, message: BalanceRequest, reply_to: ReplyAddress | None) -> None:
        if session.phase is LedPhase.PLANNING and message.reach.is_beyond(session.request.reach):
            self._release_candidates(session, keep=set())
            session.request, session.phase, session.offered = message, LedPhase.ASKING, None
            self._ask(session, reply_to)
        elif session.offered is not None:
            if session.phase is LedPhase.PLANNING:
                # The first answer was lost, and a drain may have promised something to a candidate meanwhile.
                session.offered = self._offer_of(session)
            self._context.reply(reply_to, session.offered)
        else:
            session.replies = joined(session.replies, reply_to)

    def _refused(self, message: BalanceRequest, reply_to: ReplyAddress | None) -> bool:
        context = self._context
        record = context.registry.edges.get(message.edge)
        busy = self.busy(message.edge)
        mine = self._sessions.get(self._by_broker.get(message.edge, ""))
        if mine is not None and mine.source == message.edge and mine.phase is not LedPhase.MOVING:
            busy = None  # it has given up, or forgotten, the session that it asked for before
        if message.session in self._ended:
            why, other = SessionRefusal.SESSION_OVER, ""
        elif context.stopping:
            why, other = SessionRefusal.STOPPING, ""
        elif context.paused:
            why, other = SessionRefusal.PAUSED, ""
        elif record is None or not record.ready:
            why, other = SessionRefusal.NOT_KNOWN_YET, ""
        elif record.draining:
            why, other = SessionRefusal.DRAINING, ""
        elif busy is not None:
            in_session = busy.reason is Rejection.IN_SESSION
            why, other = SessionRefusal.IN_SESSION if in_session else SessionRefusal.STABILIZING, busy.other
        else:
            return False
        refused = SessionRefused(message.edge, why, other, session=message.session)
        context.decide(refused)
        balancing = context.config.balancing
        # One that was merely asked whether it could help is free again in an instant, and may need help itself.
        helper = message.edge in self._by_broker and mine is not None and mine.source != message.edge
        retry_s = balancing.period_s if helper else balancing.retry_s
        context.refuse(reply_to, refusals.session(refused), retry_s)
        return True

    # The candidates

    def _ask(self, session: LedSession, reply_to: ReplyAddress | None) -> None:
        context, request, balancing = self._context, session.request, self._context.config.balancing
        session.replies = joined(session.replies, reply_to)
        self._join(session, session.source)
        session.loads, session.rejected, session.remote, session.occupied = {}, {}, (), set()
        asked = []
        for name in sorted({*request.candidates, *self._fallbacks(request)} - {session.source}):
            unfit, busy = self._edges.unfit(name, ""), self.busy(name, urgent=session.patient)
            why_not = unfit or busy
            if why_not is None:
                asked.append(name)
                continue
            session.rejected[name] = why_not
            if unfit is None and self._is_last_resort(request, name):
                session.occupied.add(name)
        session.remote_due = abroad = request.reach is Reach.ABROAD
        wait_s = balancing.load_reply_timeout_s * (REMOTE_REPLY_PERIODS if abroad else 1)
        context.set_timer(f"{PART} {session.id}", wait_s)
        self._ask_loads(session, asked)
        if abroad:
            self._remote.ask(session.id, request, self._remote_found)

    def _fallbacks(self, request: BalanceRequest) -> tuple[str, ...]:
        """The edges to ask along, because there is no other cluster to be asked before."""
        return () if self._context.routes.offers else request.fallbacks

    def _is_last_resort(self, request: BalanceRequest, edge: str) -> bool:
        """Whether this edge will do although it is HIGH."""
        return request.reach.fills_up or edge in self._fallbacks(request)

    def _ask_loads(self, session: LedSession, edges: Iterable[str]) -> None:
        for edge in edges:
            self._join(session, edge)
        self._loads.ask(session.id, dict.fromkeys(edges, LoadRequest(session=session.id)))

    def _serve_patient(self) -> None:
        """Brokers have left a session: a session that waits for one of them may have it now, the oldest first."""
        for session in list(self._sessions.values()):
            if session.phase is not LedPhase.ASKING or not session.patient:
                continue
            freed = sorted(session.occupied - self._by_broker.keys())
            session.occupied -= set(freed)
            fit = [edge for edge in freed if self._edges.unfit(edge, "") is None]
            for edge in fit:
                del session.rejected[edge]
            self._ask_loads(session, fit)

    def _join(self, session: LedSession, edge: str) -> None:
        session.brokers.add(edge)
        self._by_broker[edge] = session.id

    def _release_candidates(self, session: LedSession, keep: set[str]) -> None:
        for edge in sorted(session.brokers - keep - {session.source}):
            session.brokers.discard(edge)
            if self._by_broker.get(edge) == session.id:
                del self._by_broker[edge]

    def _load_heard(self, name: str, edge: str, answer: Answer) -> None:
        session = self._sessions[name]
        last_resort = self._is_last_resort(session.request, edge)
        if answer is Silence.ABSENT:
            self._edges.lost(edge)
        if isinstance(answer, Silence):
            session.rejected[edge] = rejected_for(edge, answer)
        elif not isinstance(answer, LoadReply) or answer.load.broker != edge:
            session.rejected[edge] = Rejected(edge, Rejection.WRONG_ANSWER, other=answer.kind)
        elif answer.load.busy and not session.patient:
            session.rejected[edge] = Rejected(edge, Rejection.BUSY)
            if last_resort:
                session.occupied.add(edge)
        elif answer.load.state is LoadState.LOW or (last_resort and answer.load.state is LoadState.HIGH):
            # We lead the sessions here and know that it is in none: at most it stabilizes.
            session.loads[edge] = answer.load.model_copy(update={"busy": False})
        else:
            session.rejected[edge] = Rejected(edge, Rejection.STATE, state=answer.load.state)

    def _loads_complete(self, name: str) -> None:
        self._offer_if_complete(self._sessions[name])

    def _remote_found(self, name: str, candidates: tuple[Candidate, ...]) -> None:
        """What other clusters could take."""
        found = self._sessions.get(name)
        if found is not None and found.phase is LedPhase.ASKING and found.remote_due:
            found.remote_due, found.remote = False, candidates
            self._offer_if_complete(found)

    def _offer_if_complete(self, session: LedSession) -> None:
        waits = session.id in self._loads or session.remote_due or (session.patient and session.occupied)
        if session.phase is LedPhase.ASKING and not waits:
            self._offer(session)

    def _offer(self, session: LedSession) -> None:
        context = self._context
        for edge in self._loads.stop(session.id):
            session.rejected[edge] = Rejected(edge, Rejection.NO_ANSWER)
        session.remote_due = False
        self._release_candidates(session, keep=set(session.loads))
        offered = session.offered = self._offer_of(session)
        session.phase = LedPhase.PLANNING
        context.reply(session.replies, offered)
        session.replies = []
        context.set_timer(f"{PART} {session.id}", context.config.balancing.plan_timeout_s)
        metric, cause, rejected = session.request.metric, session.request.cause, tuple(session.rejected.values())
        counts = len(offered.candidates), len(session.remote)
        context.decide(SessionCandidates(session.source, metric, *counts, cause, rejected, session=session.id))

    def _offer_of(self, session: LedSession) -> BalanceCandidates:
        """The candidates with the load that they told, and what they were promised up to now."""
        context, loads = self._context, [session.loads[edge] for edge in sorted(session.loads)]
        candidates = [candidate(context, load, session.request.patterns) for load in loads]
        for remote in session.remote:
            load = context.promises.added_to(remote.load, context.now)
            candidates.append(remote.model_copy(update={"load": load}))
        return BalanceCandidates(
            session=session.id,
            candidates=fitting_candidates(candidates[:CANDIDATES_MAX]),
            resting=self.resting(session.source),
            occupied=tuple(sorted(session.occupied)[:CANDIDATES_MAX]),
            fallbacks_asked=bool(self._fallbacks(session.request)),
        )

    def resting(self, source: str) -> tuple[str, ...]:
        """The queues on `source` whose clients are to be left alone; if there are more than fit, some of them."""
        context = self._context
        resting = {
            output_queue(subscriber, subscription.number)
            for subscriber, pattern in context.cooldowns.resting(context.now)
            for edge, subscription in context.registry.find(subscriber, pattern)
            if edge == source
        }
        resting |= {output_queue(*key) for key in context.ledger.busy_on(source)}
        return fitting(sorted(resting), RESTING_BYTES_MAX)

    # The plan

    def on_plan(self, message: BalancePlan, reply_to: ReplyAddress | None) -> None:
        """The source has decided who is to go where."""
        session = self._sessions.get(message.session)
        if session is not None and session.phase is LedPhase.PLANNING:
            self._accept(session, message, reply_to)
        elif session is not None and session.phase is LedPhase.MOVING:
            self._context.reply(reply_to, BalanceAccepted(session=session.id, moves=session.accepted))
        elif message.session in self._ended:
            moves = self._ended[message.session]
            self._context.reply(reply_to, BalanceAccepted(session=message.session, moves=moves))
        else:
            self._context.refuse(reply_to, refusals.no_session(message.session))

    def _accept(self, session: LedSession, message: BalancePlan, reply_to: ReplyAddress | None) -> None:
        context = self._context
        offered = session.offered.candidates if session.offered is not None else ()
        heads = {candidate.load.broker: candidate.head for candidate in offered}
        session.phase = LedPhase.MOVING
        refused: list[Rejected] = []
        targets: set[str] = set()
        unpromised = [edge for edge in sorted(session.loads) if not context.promises.promised(edge)]
        for move in message.moves:
            why_not = self._begin(session, move, heads)
            if why_not is None:
                targets.add(move.target)
            else:
                refused.append(why_not)
        session.accepted = len(session.left)
        for edge in unpromised:
            context.promises.stood(session.loads[edge])
        self._release_candidates(session, keep=targets)
        outcome = message.outcome
        taken = SessionPlan(session.source, outcome, session.accepted, len(refused), tuple(refused), session=session.id)
        context.decide(taken)
        context.reply(reply_to, BalanceAccepted(session=session.id, moves=session.accepted))
        if not session.left:
            # A plan without moves that says it helps comes from nobody of ours, and ends the session all the same.
            nothing = ENDS.get(outcome, SessionOutcome.NO_IMPROVEMENT)
            self._end(session, SessionOutcome.NO_MOVE_BEGUN if message.moves else nothing)
            return
        self._notify(session, SessionPhase.STARTED)
        left_s = session.started_s + context.config.balancing.session_timeout_s - context.now
        context.set_timer(f"{PART} {session.id}", left_s)

    def _begin(self, session: LedSession, move: PlannedMove, heads: dict[str, str]) -> Rejected | None:
        """Start one migration; or say why not."""
        context, key = self._context, (move.subscriber, move.number)
        queue, target = output_queue(*key), move.target
        subscription = context.registry.get(session.source, key)
        if subscription is None:
            return Rejected(queue, Rejection.GONE, target)
        if target not in heads:
            return Rejected(queue, Rejection.NOT_CANDIDATE, target)
        if context.cooldowns.rests((subscription.subscriber, subscription.pattern), context.now):
            return Rejected(queue, Rejection.MOVED_RECENTLY, target)
        if context.ledger.is_busy((session.source, key)):
            return Rejected(queue, Rejection.MIGRATING, target)
        head = heads[target]
        unfit = self._edges.unfit(target, subscription.pattern) if head == context.config.head else None
        if unfit is not None:
            return replace(unfit, name=queue, target=target)
        migration = self._migrations.start(session.id, session.source, subscription, target, head, move, self._migrated)
        if isinstance(migration, Rejected):
            return migration
        session.left.add(migration)
        return None

    # The end

    def _migrated(self, move: Move, moved: bool) -> None:
        session = self._sessions.get(move.session)
        if session is None or move.id not in session.left:
            return
        session.left.discard(move.id)
        session.moved += moved
        session.failed += not moved
        if moved:
            session.moved_s = self._context.now
        if not session.left:
            self._end(session, SessionOutcome.MOVES_ENDED if session.moved else SessionOutcome.NOTHING_MOVED)

    def _timed_out(self, name: str) -> None:
        session = self._sessions.get(name)
        if session is None:
            return
        match session.phase:
            case LedPhase.ASKING:
                self._offer(session)
            case LedPhase.PLANNING:
                self._end(session, SessionOutcome.NO_PLAN)
            case LedPhase.MOVING:
                self._end(session, SessionOutcome.TIME_OUT)

    def _end(self, session: LedSession, outcome: SessionOutcome) -> None:
        """Over. Migrations that still run find their own end; those that wait are not begun."""
        context = self._context
        del self._sessions[session.id]
        context.cancel_timer(f"{PART} {session.id}")
        self._loads.stop(session.id)
        self._remote.stop(session.id)
        left, session.left = sorted(session.left), set()
        session.failed += len(left)
        for migration in left:
            self._migrations.failed(migration, WhyNot(MoveOutcome.SESSION_OVER))
        for edge in sorted(session.brokers):
            del self._by_broker[edge]
            if session.moved:
                self._rest(edge)
        context.refuse(session.replies, refusals.session_over(outcome))
        self._ended[session.id] = session.accepted
        self._notify(session, SessionPhase.ENDED)
        counts, duration_s = (session.moved, session.failed), context.now - session.started_s
        context.decide(SessionEnded(session.source, outcome, *counts, duration_s, session=session.id))
        self._serve_patient()

    def _notify(self, session: LedSession, phase: SessionPhase) -> None:
        # Clients that did not move were waited for in vain, which says nothing of how soon a session helps.
        until_s = self._context.now if session.moved_s is None else session.moved_s
        notice = SessionNotice(
            session=session.id,
            phase=phase,
            source=session.source,
            moved=session.moved,
            failed=session.failed,
            duration_us=round((until_s - session.started_s) * 1e6),
        )
        for edge in sorted(session.brokers):
            self._context.do(Send(edge, notice))

    def validate(self) -> None:
        """Raise AssertionError if a broker is in two sessions, or one can't end."""
        for name, session in self._sessions.items():
            assert name == session.id
            assert session.source in session.brokers, name
            for edge in session.brokers:
                assert self._by_broker.get(edge) == name, f"{edge} is in {name} and in {self._by_broker.get(edge)}"
            assert session.brokers.issuperset(self._loads.missing(name)), name
            if session.phase is LedPhase.MOVING:
                assert session.left, f"{name} has nothing left to wait for"
                assert all(migration in self._migrations for migration in session.left), name
            else:
                assert not session.left, name
        self._ended.validate()
