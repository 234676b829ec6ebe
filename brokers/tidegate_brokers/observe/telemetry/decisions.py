"""From an agent's decisions to records: each as it is, and states, sessions, predictions, outcomes, moves besides.

The agents tell everything in their decisions and know nothing of telemetry; here fields are copied. Invariant: a
decision this file has no special rule for is written as a `decision` all the same; what is remembered in between (when
a session began, which order a migration belongs to) is bounded, and where it is lost a field is left out, never a
record. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate_agents.kit.memory import Recent
from tidegate_protocol import decisions, telemetry
from tidegate_protocol.balancing.migrations import MigrateOrder
from tidegate_protocol.balancing.publishers import PublisherMoveOrder
from tidegate_protocol.decisions import (
    Decision,
    Drained,
    DrainOrder,
    DrainOrdered,
    LoadStateChanged,
    MigrationEnded,
    PublisherMoveEnded,
    PublisherPlan,
    PublisherSession,
    PublisherSessionEnded,
    SessionEnded,
    SessionFailed,
    SessionPlanned,
    SessionRequested,
    Stabilized,
)
from tidegate_protocol.messages import ControlMessage
from tidegate_protocol.names import DRAIN_PREFIX
from tidegate_protocol.parts import LoadState
from tidegate_protocol.telemetry import (
    EFFECTS_MAX,
    DecisionMade,
    Effect,
    Measured,
    Migration,
    Moved,
    Outcome,
    Prediction,
    SessionBegan,
    StateChange,
    TelemetryRecord,
)

from .origin import Header, Origin

SESSIONS_MAX: Final = 1_000
ORDERS_MAX: Final = 10_000
"""Sessions and orders under way that are remembered; the oldest are forgotten first."""
SUBSCRIBERS, PUBLISHERS = Moved.SUBSCRIBERS, Moved.PUBLISHERS
MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Order:
    migration: str
    at_s: float


class DecisionRecords:
    """Turns the decisions of one agent into records."""

    def __init__(self, origin: Origin) -> None:
        self.state: LoadState = LoadState.NOT_AVAILABLE
        """As the agent judged it last."""
        self.followed: Callable[[Decision, float], None] = _nobody
        """Told of every decision besides."""
        self._origin = origin
        self._stated = False
        self._began: Recent[str, float] = Recent(SESSIONS_MAX)
        self._orders: Recent[str, _Order] = Recent(ORDERS_MAX)

    def ordered(self, message: ControlMessage, now: float) -> None:
        """A client is told to move: what is decided about it later on belongs to this order."""
        if isinstance(message, MigrateOrder):
            self._orders[_subscription(message)] = _Order(message.migration, now)
        elif isinstance(message, PublisherMoveOrder):
            self._orders[message.publisher] = _Order(message.move, now)

    def decided(self, decision: Decision, time_us: int, now: float) -> list[TelemetryRecord]:
        """The records of one decision."""
        self.followed(decision, now)
        header = self._origin.header(time_us)
        made = DecisionMade(
            **header, decision=decision.kind, reason=decision.label, session=decision.session, record=decision
        )
        special = self._special(decision, header, now)
        return [made] if special is None else [made, special]

    def _special(self, decision: Decision, header: Header, now: float) -> TelemetryRecord | None:
        match decision:
            case LoadStateChanged():
                return self._state(decision, header)
            case SessionRequested():
                return self._session_began(
                    decision, decision.source, header, now, necessary=decision.necessary, remote=decision.remote
                )
            case PublisherSession():
                return self._session_began(decision, decision.head, header, now)
            case DrainOrdered(reason=DrainOrder.DRAIN):
                return self._session_began(decision, decision.edge, header, now)
            case SessionEnded(source=source) | SessionFailed(source=source) if source == self._origin.broker:
                # The end is told by the broker that told the beginning, not by the head that leads an edge's session.
                moved = decision.moved if isinstance(decision, SessionEnded) else 0
                return self._session_ended(decision, source, header, now, moved, decision.failed)
            case PublisherSessionEnded():
                return self._session_ended(decision, decision.head, header, now, decision.moved, decision.failed)
            case Drained():
                return self._session_ended(decision, decision.edge, header, now, 0, 0)
            case SessionPlanned(moves=moves) | PublisherPlan(moves=moves) if moves:
                return self._prediction(decision, header)
            case Stabilized():
                return _outcome(decision, header)
            case MigrationEnded() | PublisherMoveEnded():
                return self._move(decision, header, now)
        return None

    def _state(self, decision: LoadStateChanged, header: Header) -> StateChange:
        before, self._stated = (self.state if self._stated else None), True
        self.state = decision.state
        return StateChange(**header, role=self._origin.role, state=self.state, before=before, reason=decision.label)

    # Sessions

    def _session_began(
        self,
        decision: Decision,
        source: str,
        header: Header,
        now: float,
        *,
        necessary: bool | None = None,
        remote: bool | None = None,
    ) -> SessionBegan:
        session = decision.session or DRAIN_PREFIX + source
        self._began[session] = now
        return SessionBegan(
            **header,
            session=session,
            source=source,
            clients=_clients(decision),
            policy=self._origin.policy,
            reason=decision.label,
            necessary=necessary,
            remote=remote,
        )

    def _session_ended(
        self, decision: Decision, source: str, header: Header, now: float, moved: int, failed: int
    ) -> telemetry.SessionEnded:
        session = decision.session or DRAIN_PREFIX + source
        return telemetry.SessionEnded(
            **header,
            session=session,
            source=source,
            clients=_clients(decision),
            reason=decision.label,
            moved=moved,
            failed=failed,
            duration_us=_since_us(self._began.pop(session, None), now),
        )

    def _prediction(self, decision: SessionPlanned | PublisherPlan, header: Header) -> Prediction:
        moves, drain_factor = len(decision.moves), None
        if isinstance(decision, SessionPlanned):
            moves, drain_factor = decision.subscribers, decision.drain_factor
        return Prediction(
            **header,
            session=decision.session,
            source=self._origin.broker,
            clients=_clients(decision),
            moves=moves,
            drain_factor=drain_factor,
            effects=effects(decision.effects),
        )

    # Moves

    def _move(self, decision: MigrationEnded | PublisherMoveEnded, header: Header, now: float) -> Migration:
        if isinstance(decision, MigrationEnded):
            client, pattern, ordered = decision.subscriber, decision.pattern, _subscription(decision)
        else:
            client, pattern, ordered = decision.publisher, None, decision.publisher
        order = self._orders.pop(ordered, None)
        return Migration(
            **header,
            session=decision.session,
            migration=order.migration if order is not None else "",
            clients=_clients(decision),
            client=client,
            pattern=pattern,
            source=decision.source,
            target=decision.target,
            moved=decision.moved,
            reason=decision.label,
            duration_us=_since_us(None if order is None else order.at_s, now),
        )


def _subscription(of: MigrateOrder | MigrationEnded) -> str:
    return f"{of.subscriber} {of.pattern}"


def _clients(decision: Decision) -> Moved:
    of_publishers = PublisherSession | PublisherPlan | PublisherMoveEnded | PublisherSessionEnded
    return PUBLISHERS if isinstance(decision, of_publishers) else SUBSCRIBERS


def _outcome(decision: Stabilized, header: Header) -> Outcome:
    return Outcome(
        **header,
        session=decision.session,
        reason=decision.label,
        after_us=round(max(decision.after_s, 0.0) * MICROSECONDS),
        metrics=tuple(
            Measured(metric=one.metric, measured=one.measured, predicted=one.predicted) for one in decision.metrics
        ),
        bytes_offered_per_s=decision.offered_bytes_per_s,
        bytes_offered_predicted_per_s=decision.predicted_bytes_per_s,
        queues_past=decision.queues_past,
    )


def effects(predicted: tuple[decisions.Effect, ...]) -> tuple[Effect, ...]:
    """The metrics of all brokers before and after, as a record has them."""
    return tuple(
        Effect(broker=one.broker, metric=one.metric, before=one.before, after=max(one.after, 0.0))
        for one in predicted[:EFFECTS_MAX]
    )


def _nobody(decision: Decision, now: float) -> None:
    """Stands until a receiver is set."""


def _since_us(began_s: float | None, now: float) -> int | None:
    return None if began_s is None else round(max(now - began_s, 0.0) * MICROSECONDS)
