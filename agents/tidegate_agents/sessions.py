"""Load-balancing sessions, as the head leads them: from an edge's request until the last migration has ended.

    ASKING     the candidates are asked for their load
    PLANNING   the source has the candidates, promises included, and makes its plan
    MOVING     the migrations of the plan are under way

What always holds:

- a broker is in one session at a time, as source or as target; candidates count as long as they may become targets;
- what a candidate was promised by other migrations is part of the load that the source sees;
- a client that rests is not moved, whatever a plan says; nor is one about which anything else is under way;
- every request may be repeated and gets the same answer, also after the end;
- every phase has a time-out, so that every session ends; then all its brokers are told, and rest for a while.

Who is to go where is the source's decision; whether that may be done now is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from tidegate_protocol.balancing import (
    CANDIDATES_MAX,
    BalanceAccepted,
    BalanceCandidates,
    BalancePlan,
    BalanceRequest,
    BrokerLoad,
    Candidate,
    LoadReply,
    LoadRequest,
    PlannedMove,
    SessionNotice,
    SessionPhase,
)
from tidegate_protocol.messages import ControlMessage, LoadState, RefusalReason
from tidegate_protocol.names import output_queue

from .config import REPLIES_JOINED_MAX
from .context import HeadContext
from .dispatch import Dispatch
from .edges import Edges
from .fitting import RESTING_BYTES_MAX, fitting, fitting_candidates
from .machine import Decision, ReplyAddress, Send
from .migration_steps import Move
from .migrations import Migrations

LOAD_PART: Final = "load"
PART: Final = "session"
ENDED_MAX: Final = 1_000
"""How many ended sessions are remembered, to answer repeated plans."""
REMOTE_REPLY_PERIODS: Final = 2
"""How many times as long as an edge another cluster may take to tell what its edges could carry."""


class RemoteCandidates(Protocol):
    """Asks other clusters; answers later with `Sessions.remote_answered`, once, possibly with nobody."""

    def ask(self, session: str, request: BalanceRequest) -> None: ...


class Phase(StrEnum):
    """Where a session is."""

    ASKING = "asking"
    PLANNING = "planning"
    MOVING = "moving"


@dataclass(slots=True)
class _Session:
    request: BalanceRequest
    started_s: float
    phase: Phase = Phase.ASKING
    replies: list[ReplyAddress] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)
    """The candidates that have not answered yet, with the ids of the requests."""
    remote_due: bool = False
    loads: dict[str, BrokerLoad] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    occupied: set[str] = field(default_factory=set)
    """Whom the source asked for as a last resort, and who is busy; if it is patient, whom it waits for."""
    remote: tuple[Candidate, ...] = ()
    offered: BalanceCandidates | None = None
    brokers: set[str] = field(default_factory=set)
    """Our own edges that are part of it: the source, and whoever may become or is a target."""
    accepted: int = 0
    left: set[str] = field(default_factory=set)
    """Migrations that have not ended."""
    moved: int = 0
    failed: int = 0
    moved_s: float | None = None
    """When the last client that moved had moved."""

    @property
    def id(self) -> str:
        return self.request.session

    @property
    def source(self) -> str:
        return self.request.edge


class Sessions:
    """The sessions under way in this cluster, by id."""

    def __init__(self, context: HeadContext, edges: Edges, migrations: Migrations) -> None:
        self._context = context
        self._edges = edges
        self._migrations = migrations
        self._remote: RemoteCandidates | None = None
        self._sessions: dict[str, _Session] = {}
        self._by_broker: dict[str, str] = {}
        self._resting_until_s: dict[str, float] = {}
        self._ended: dict[str, int] = {}
        """How many moves were accepted, of those that ended lately."""

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(BalanceRequest, self.requested)
        dispatch.on_message(BalancePlan, self.planned)
        dispatch.on_request(LOAD_PART, self._load_answered, self._load_undeliverable)
        dispatch.on_timer(PART, self._timed_out)
        dispatch.ticks.append(self._tick)
        dispatch.checks.append(self.validate)

    def use_remote(self, remote: RemoteCandidates) -> None:
        """From now on other clusters can be asked for help."""
        self._remote = remote

    def busy(self, edge: str, *, urgent: bool = False) -> str | None:
        """Why this edge can't be part of a session now; None if it can.

        If it is urgent an edge that stabilizes can: what it was given counts by the promises, and waiting until it
        shows would cost a deadline.
        """
        if edge in self._by_broker:
            return f"in session {self._by_broker[edge]}"
        if urgent:
            return None
        if self._resting_until_s.get(edge, 0.0) > self._context.now:
            return "stabilizing after a session"
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

    def requested(self, message: BalanceRequest, reply_to: ReplyAddress | None) -> None:
        """An edge is overloaded and asks for help."""
        session = self._sessions.get(message.session)
        if session is not None:
            self._requested_again(session, message, reply_to)
            return
        if self._refused(message, reply_to):
            return
        earlier = self._sessions.get(self._by_broker.get(message.edge, ""))
        if earlier is not None:
            self._end(earlier, "its source asked anew")
        session = _Session(message, self._context.now)
        self._sessions[message.session] = session
        self._ask(session, reply_to)

    def _requested_again(self, session: _Session, message: BalanceRequest, reply_to: ReplyAddress | None) -> None:
        before = session.request
        wider = message.last_resort > before.last_resort or (message.remote > before.remote and not before.last_resort)
        wider |= message.patient > before.patient
        if session.phase is Phase.PLANNING and wider:
            self._release_candidates(session, keep=set())
            session.request, session.phase, session.offered = message, Phase.ASKING, None
            self._ask(session, reply_to)
        elif session.offered is not None:
            if session.phase is Phase.PLANNING:
                # The first answer was lost, and a drain may have promised something to a candidate meanwhile.
                session.offered = self._offer_of(session)
            self._context.reply(reply_to, session.offered)
        elif reply_to is not None:
            session.replies = [*session.replies, reply_to][-REPLIES_JOINED_MAX:]

    def _refused(self, message: BalanceRequest, reply_to: ReplyAddress | None) -> bool:
        context = self._context
        record = context.registry.edges.get(message.edge)
        busy = self.busy(message.edge)
        mine = self._sessions.get(self._by_broker.get(message.edge, ""))
        if mine is not None and mine.source == message.edge and mine.phase is not Phase.MOVING:
            busy = None  # it has given up, or forgotten, the session that it asked for before
        if message.session in self._ended:
            why, reason = "this session has ended", RefusalReason.UNKNOWN
        elif context.stopping:
            why, reason = "this head is being stopped", RefusalReason.NOT_READY
        elif context.paused:
            why, reason = "an operator has paused balancing", RefusalReason.NOT_READY
        elif record is None or not record.alive or not record.settled:
            why, reason = f"{message.edge} is not known well enough yet", RefusalReason.NOT_READY
        elif record.draining:
            why, reason = f"{message.edge} is being drained", RefusalReason.CONFLICT
        elif busy is not None:
            why, reason = busy, RefusalReason.CONFLICT
        else:
            return False
        context.decide(Decision("session-refused", message.edge, why, session=message.session))
        balancing = context.config.balancing
        # One that was merely asked whether it could help is free again in an instant, and may need help itself.
        helper = message.edge in self._by_broker and mine is not None and mine.source != message.edge
        retry_s = balancing.period_s if helper else balancing.retry_s
        context.refuse(reply_to, reason, why, retry_after_s=retry_s)
        return True

    # The candidates

    def _ask(self, session: _Session, reply_to: ReplyAddress | None) -> None:
        context, request, balancing = self._context, session.request, self._context.config.balancing
        if reply_to is not None:
            session.replies.append(reply_to)
        self._join(session, session.source)
        session.loads, session.rejected, session.remote, session.occupied = {}, {}, (), set()
        for name in sorted({*request.candidates, *self._fallbacks(request)} - {session.source}):
            unfit, busy = self._edges.unfit(name, ""), self.busy(name, urgent=request.patient)
            if unfit is not None or busy is not None:
                session.rejected[name] = unfit or busy or ""
                if unfit is None and self._is_last_resort(request, name):
                    session.occupied.add(name)
                continue
            self._ask_load(session, name)
        wait_s = balancing.load_reply_timeout_s
        if request.remote and self._remote is not None:
            session.remote_due = True
            wait_s *= REMOTE_REPLY_PERIODS
        context.set_timer(f"{PART} {session.id}", wait_s)
        if session.remote_due and self._remote is not None:
            self._remote.ask(session.id, request)
        self._offer_if_complete(session)

    def _fallbacks(self, request: BalanceRequest) -> tuple[str, ...]:
        """Whom to ask along, because there is no other cluster to be asked before."""
        return () if self._context.routes.offers else request.fallbacks

    def _is_last_resort(self, request: BalanceRequest, edge: str) -> bool:
        """Whether this edge will do although it is HIGH."""
        return request.last_resort or edge in self._fallbacks(request)

    def _ask_load(self, session: _Session, edge: str) -> None:
        self._join(session, edge)
        message = LoadRequest(session=session.id)
        session.asked[edge] = self._context.request(edge, message, LOAD_PART, f"{session.id} {edge}")

    def _serve_patient(self) -> None:
        """Brokers have left a session: whoever waits for one of them may have it now, the oldest first."""
        for session in list(self._sessions.values()):
            if session.phase is not Phase.ASKING or not session.request.patient:
                continue
            for edge in sorted(session.occupied - self._by_broker.keys()):
                session.occupied.discard(edge)
                if self._edges.unfit(edge, "") is None:
                    del session.rejected[edge]
                    self._ask_load(session, edge)
            self._offer_if_complete(session)

    def _join(self, session: _Session, edge: str) -> None:
        session.brokers.add(edge)
        self._by_broker[edge] = session.id

    def _release_candidates(self, session: _Session, keep: set[str]) -> None:
        for edge in sorted(session.brokers - keep - {session.source}):
            session.brokers.discard(edge)
            if self._by_broker.get(edge) == session.id:
                del self._by_broker[edge]

    def _load_answered(self, subject: str, message: ControlMessage) -> None:
        name, _, edge = subject.partition(" ")
        session = self._sessions.get(name)
        if session is None or session.asked.pop(edge, None) is None:
            return
        if not isinstance(message, LoadReply) or message.load.broker != edge:
            session.rejected[edge] = f"answered with {message.kind}"
        elif message.load.busy and not session.request.patient:
            session.rejected[edge] = "busy with a session"
            if self._is_last_resort(session.request, edge):
                session.occupied.add(edge)
        elif message.load.state is not LoadState.LOW and not (
            self._is_last_resort(session.request, edge) and message.load.state is LoadState.HIGH
        ):
            session.rejected[edge] = f"its load is {message.load.state}"
        else:
            # We lead the sessions here and know that it is in none: at most it stabilizes.
            session.loads[edge] = message.load.model_copy(update={"busy": False})
        self._offer_if_complete(session)

    def _load_undeliverable(self, subject: str) -> None:
        name, _, edge = subject.partition(" ")
        self._edges.lost(edge)
        session = self._sessions.get(name)
        if session is not None and session.asked.pop(edge, None) is not None:
            session.rejected[edge] = "its process is not there"
            self._offer_if_complete(session)

    def remote_answered(self, session: str, candidates: tuple[Candidate, ...]) -> None:
        """What other clusters could take."""
        found = self._sessions.get(session)
        if found is not None and found.phase is Phase.ASKING and found.remote_due:
            found.remote_due, found.remote = False, candidates
            self._offer_if_complete(found)

    def _offer_if_complete(self, session: _Session) -> None:
        waits = session.remote_due or (session.request.patient and session.occupied)
        if session.phase is Phase.ASKING and not session.asked and not waits:
            self._offer(session)

    def _offer(self, session: _Session) -> None:
        context = self._context
        for edge, request_id in sorted(session.asked.items()):
            context.drop_request(request_id)
            session.rejected[edge] = "did not tell its load in time"
        session.asked, session.remote_due = {}, False
        self._release_candidates(session, keep=set(session.loads))
        offered = session.offered = self._offer_of(session)
        session.phase = Phase.PLANNING
        for reply_to in session.replies:
            context.reply(reply_to, offered)
        session.replies = []
        context.set_timer(f"{PART} {session.id}", context.config.balancing.plan_timeout_s)
        numbers = {"candidates": float(len(offered.candidates)), "remote": float(len(session.remote))}
        reason = f"{session.request.metric}: {session.request.reason}"[:1_000]
        context.decide(
            Decision("session-candidates", session.source, reason, numbers, dict(session.rejected), session.id)
        )

    def _offer_of(self, session: _Session) -> BalanceCandidates:
        """The candidates with the load that they told, and what they were promised up to now."""
        context, config = self._context, self._context.config
        wanted = session.request.patterns
        candidates = [
            Candidate(
                cluster=config.cluster,
                head=config.head,
                load=context.promises.added_to(session.loads[edge], context.now),
                patterns=tuple(p for p in wanted if p in context.registry.edges[edge].patterns),
            )
            for edge in sorted(session.loads)
        ]
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
        resting |= {output_queue(*key) for key in context.busy.get(source, ())}
        return fitting(sorted(resting), RESTING_BYTES_MAX)

    # The plan

    def planned(self, message: BalancePlan, reply_to: ReplyAddress | None) -> None:
        """The source has decided who is to go where."""
        session = self._sessions.get(message.session)
        if session is not None and session.phase is Phase.PLANNING:
            self._accept(session, message, reply_to)
        elif session is not None and session.phase is Phase.MOVING:
            self._context.reply(reply_to, BalanceAccepted(session=session.id, moves=session.accepted))
        elif message.session in self._ended:
            moves = self._ended[message.session]
            self._context.reply(reply_to, BalanceAccepted(session=message.session, moves=moves))
        else:
            text = "no such session, or it has no candidates yet"
            self._context.refuse(reply_to, RefusalReason.UNKNOWN, text, "session")

    def _accept(self, session: _Session, message: BalancePlan, reply_to: ReplyAddress | None) -> None:
        context = self._context
        offered = session.offered.candidates if session.offered is not None else ()
        heads = {candidate.load.broker: candidate.head for candidate in offered}
        session.phase = Phase.MOVING
        refused: dict[str, str] = {}
        targets: set[str] = set()
        unpromised = [edge for edge in sorted(session.loads) if not context.promises.promised(edge)]
        for move in message.moves:
            why_not = self._begin(session, move, heads)
            if why_not is None:
                targets.add(move.target)
            else:
                refused[f"{move.subscriber}.{move.number} to {move.target}"] = why_not
        session.accepted = len(session.left)
        for edge in unpromised:
            context.promises.stood(session.loads[edge])
        self._release_candidates(session, keep=targets)
        numbers = {"moves": float(session.accepted), "refused": float(len(refused))}
        reason = message.reason or "the source has a plan"
        context.decide(Decision("session-plan", session.source, reason, numbers, refused, session.id))
        context.reply(reply_to, BalanceAccepted(session=session.id, moves=session.accepted))
        if not session.left:
            self._end(session, message.reason or "no move could begin")
            return
        self._notify(session, SessionPhase.STARTED)
        left_s = session.started_s + context.config.balancing.session_timeout_s - context.now
        context.set_timer(f"{PART} {session.id}", left_s)

    def _begin(self, session: _Session, move: PlannedMove, heads: dict[str, str]) -> str | None:
        """Start one migration; or say why not."""
        context, key = self._context, (move.subscriber, move.number)
        subscription = context.registry.get(session.source, key)
        if subscription is None:
            return "not on the source"
        if move.target not in heads:
            return "not a candidate"
        if context.cooldowns.rests((subscription.subscriber, subscription.pattern), context.now):
            return "moved too recently"
        if key in context.busy.get(session.source, ()):
            return "something else is under way with it"
        head = heads[move.target]
        unfit = self._edges.unfit(move.target, subscription.pattern) if head == context.config.head else None
        if unfit is not None:
            return unfit
        migration = self._migrations.start(
            session.id, session.source, subscription, move.target, head, move, self._migrated
        )
        if migration is None:
            return "its client is not there any more, or too many migrations are waiting"
        session.left.add(migration)
        return None

    # The end

    def _migrated(self, move: Move, moved: bool, why: str) -> None:
        session = self._sessions.get(move.session)
        if session is None or move.id not in session.left:
            return
        session.left.discard(move.id)
        session.moved += moved
        session.failed += not moved
        if moved:
            session.moved_s = self._context.now
        if not session.left:
            self._end(session, "all migrations have ended")

    def _timed_out(self, name: str) -> None:
        session = self._sessions.get(name)
        if session is None:
            return
        match session.phase:
            case Phase.ASKING:
                self._offer(session)
            case Phase.PLANNING:
                self._end(session, "no plan came in time")
            case Phase.MOVING:
                self._end(session, "not all migrations ended in time")

    def _end(self, session: _Session, why: str) -> None:
        """Over. Migrations that still run find their own end; those that wait are not begun."""
        context = self._context
        del self._sessions[session.id]
        context.cancel_timer(f"{PART} {session.id}")
        for request_id in session.asked.values():
            context.drop_request(request_id)
        left, session.left = sorted(session.left), set()
        session.failed += len(left)
        for migration in left:
            self._migrations.failed(migration, "its session has ended")
        for edge in sorted(session.brokers):
            del self._by_broker[edge]
            if session.moved:
                self._rest(edge)
        for reply_to in session.replies:
            context.refuse(reply_to, RefusalReason.CONFLICT, why)
        self._ended[session.id] = session.accepted
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        self._notify(session, SessionPhase.ENDED)
        numbers = {"moved": float(session.moved), "failed": float(session.failed)}
        numbers["seconds"] = context.now - session.started_s
        context.decide(Decision("session-ended", session.source, why, numbers, session=session.id))
        self._serve_patient()

    def _notify(self, session: _Session, phase: SessionPhase) -> None:
        # Those who did not move were waited for in vain, which says nothing of how soon a session helps.
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
            assert set(session.asked) <= session.brokers, name
            if session.phase is Phase.MOVING:
                assert session.left, f"{name} has nothing left to wait for"
                assert all(migration in self._migrations for migration in session.left), name
            else:
                assert not session.left, name
        assert len(self._ended) <= ENDED_MAX
