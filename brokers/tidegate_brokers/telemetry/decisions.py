"""From an agent's decisions to records: each as it is, and states, sessions, predictions, outcomes, moves besides.

The agents tell everything in their decisions and know nothing of telemetry; here their words are read. What always
holds: a decision this file has no special rule for is written as a `decision` all the same; what is remembered in
between (when a session began, which order a migration belongs to) is bounded, and where it is lost a field is left out,
never a record. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final, Generic, TypeVar

from tidegate_agents.machine import Decision
from tidegate_agents.operations_parts import DRAIN_PREFIX
from tidegate_protocol.balancing import MigrateOrder, PublisherMoveOrder
from tidegate_protocol.messages import ControlMessage
from tidegate_protocol.parts import LoadState
from tidegate_protocol.telemetry import (
    EFFECTS_MAX,
    NUMBERS_MAX,
    REJECTED_MAX,
    SHORT_LENGTH_MAX,
    DecisionMade,
    Effect,
    Measured,
    Migration,
    Moved,
    Outcome,
    Prediction,
    SessionBegan,
    SessionEnded,
    StateChange,
    TelemetryRecord,
)

from .origin import Origin

SESSIONS_MAX: Final = 1_000
ORDERS_MAX: Final = 10_000
"""Sessions and orders under way that are remembered; the oldest are forgotten first."""
REASON_LENGTH_MAX: Final = 1_000
SUBSCRIBERS, PUBLISHERS = Moved.SUBSCRIBERS, Moved.PUBLISHERS
MICROSECONDS: Final = 1_000_000

Value = TypeVar("Value")


class _Remembered(Generic[Value]):
    """The latest few, by name."""

    def __init__(self, count_max: int) -> None:
        self._values: dict[str, Value] = {}
        self._count_max = count_max

    def put(self, name: str, value: Value) -> None:
        self._values.pop(name, None)
        self._values[name] = value
        if len(self._values) > self._count_max:
            del self._values[next(iter(self._values))]

    def pop(self, name: str) -> Value | None:
        return self._values.pop(name, None)


@dataclass(frozen=True, slots=True)
class _Order:
    migration: str
    source: str
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
        self._began: _Remembered[float] = _Remembered(SESSIONS_MAX)
        self._orders: _Remembered[_Order] = _Remembered(ORDERS_MAX)

    def ordered(self, message: ControlMessage, now: float) -> None:
        """A client is told to move: what is decided about it later on belongs to this order."""
        if isinstance(message, MigrateOrder):
            order = _Order(message.migration, message.edge_from, now)
            self._orders.put(f"{message.subscriber} {message.pattern}", order)
        elif isinstance(message, PublisherMoveOrder):
            self._orders.put(message.publisher, _Order(message.move, self._origin.broker, now))

    def decided(self, decision: Decision, time_us: int, now: float) -> list[TelemetryRecord]:
        """The records of one decision."""
        self.followed(decision, now)
        records: list[TelemetryRecord] = [self._decision(decision, time_us)]
        special = self._special(decision, time_us, now)
        if special is not None:
            records.append(special)
        return records

    def _decision(self, decision: Decision, time_us: int) -> DecisionMade:
        numbers = [(name, value) for name, value in decision.numbers.items() if isfinite(value)]
        rejected = list(decision.rejected.items())[:REJECTED_MAX]
        return DecisionMade(
            **self._origin.header(time_us),
            decision=decision.kind,
            subject=decision.subject[:SHORT_LENGTH_MAX],
            reason=decision.reason[:REASON_LENGTH_MAX],
            numbers=dict(numbers[:NUMBERS_MAX]),
            rejected={name[:SHORT_LENGTH_MAX]: why[:SHORT_LENGTH_MAX] for name, why in rejected},
            session=decision.session,
        )

    def _special(self, decision: Decision, time_us: int, now: float) -> TelemetryRecord | None:
        match decision.kind:
            case "load-state":
                return self._state(decision, time_us)
            case "session-requested" | "publisher-session" | "drain":
                return self._session_began(decision, time_us, now)
            case "session-ended" | "session-failed" | "publisher-session-ended" | "drained":
                return self._session_ended(decision, time_us, now)
            case "session-planned" | "publisher-plan":
                return self._prediction(decision, time_us)
            case "stabilized":
                return self._outcome(decision, time_us)
            case "migration-ended" | "migration-failed":
                return self._migration(decision, time_us, now)
            case "publisher-moved" | "publisher-stayed":
                return self._publisher_move(decision, time_us, now)
        return None

    # States

    def _state(self, decision: Decision, time_us: int) -> StateChange:
        before, self._stated = (self.state if self._stated else None), True
        self.state = LoadState(decision.reason.partition(":")[0])
        return StateChange(
            **self._origin.header(time_us),
            role=self._origin.role,
            state=self.state,
            before=before,
            reason=decision.reason[:REASON_LENGTH_MAX],
        )

    # Sessions

    def _session_began(self, decision: Decision, time_us: int, now: float) -> SessionBegan:
        session = decision.session or DRAIN_PREFIX + decision.subject
        self._began.put(session, now)
        numbers = decision.numbers
        return SessionBegan(
            **self._origin.header(time_us),
            session=session,
            source=decision.subject,
            clients=PUBLISHERS if decision.kind == "publisher-session" else SUBSCRIBERS,
            policy=self._origin.policy,
            reason=decision.reason[:REASON_LENGTH_MAX],
            necessary=bool(numbers["necessary"]) if "necessary" in numbers else None,
            remote=bool(numbers["remote"]) if "remote" in numbers else None,
        )

    def _session_ended(self, decision: Decision, time_us: int, now: float) -> SessionEnded | None:
        """The end is told by whoever told the beginning; a head that leads an edge's session has its say as a decision
        only.
        """
        session = decision.session or DRAIN_PREFIX + decision.subject
        if decision.subject != self._origin.broker and decision.kind != "drained":
            return None
        began_s = self._began.pop(session)
        return SessionEnded(
            **self._origin.header(time_us),
            session=session,
            source=decision.subject,
            clients=PUBLISHERS if decision.kind == "publisher-session-ended" else SUBSCRIBERS,
            reason=decision.reason[:REASON_LENGTH_MAX],
            moved=round(decision.numbers.get("moved", 0.0)),
            failed=round(decision.numbers.get("failed", 0.0)),
            duration_us=None if began_s is None else round(max(now - began_s, 0.0) * MICROSECONDS),
        )

    def _prediction(self, decision: Decision, time_us: int) -> Prediction | None:
        numbers, of_publishers = decision.numbers, decision.kind == "publisher-plan"
        # A head names whom it moves where, an edge counts its moves.
        moves = decision.reason.count(">") if of_publishers else round(numbers.get("moves", 0.0))
        if not moves:
            return None
        return Prediction(
            **self._origin.header(time_us),
            session=decision.session,
            source=decision.subject,
            clients=PUBLISHERS if of_publishers else SUBSCRIBERS,
            moves=moves,
            drain_factor=numbers.get("source.drain_factor"),
            effects=effects(numbers, decision.subject, of_publishers=of_publishers),
        )

    def _outcome(self, decision: Decision, time_us: int) -> Outcome:
        numbers = decision.numbers
        measured = {name.rpartition(".")[0]: value for name, value in numbers.items() if name.endswith(".measured")}
        past = numbers.get("queues_past")
        return Outcome(
            **self._origin.header(time_us),
            session=decision.session,
            reason=decision.reason[:REASON_LENGTH_MAX],
            after_us=round(max(numbers.get("after_s", 0.0), 0.0) * MICROSECONDS),
            metrics=tuple(
                Measured(metric=metric, measured=value, predicted=numbers.get(f"{metric}.predicted"))
                for metric, value in measured.items()
            ),
            bytes_offered_per_s=numbers.get("offered_bytes_per_s", 0.0),
            bytes_offered_predicted_per_s=numbers.get("predicted_bytes_per_s"),
            queues_past=None if past is None else round(past),
        )

    # Moves

    def _migration(self, decision: Decision, time_us: int, now: float) -> Migration:
        """The subject reads: subscriber, pattern, `from`, source, `to`, target."""
        client, _, source, _, target = decision.subject.rsplit(" ", 4)
        subscriber, _, pattern = client.partition(" ")
        order = self._orders.pop(client)
        return Migration(
            **self._origin.header(time_us),
            session=decision.session,
            migration=order.migration if order is not None else "",
            clients=SUBSCRIBERS,
            client=subscriber,
            pattern=pattern,
            source=source,
            target=target,
            moved=decision.kind == "migration-ended",
            reason=decision.reason[:REASON_LENGTH_MAX],
            duration_us=_since_us(order, now),
        )

    def _publisher_move(self, decision: Decision, time_us: int, now: float) -> Migration:
        """The subject reads: publisher, `>`, target."""
        publisher, _, target = decision.subject.partition(">")
        order = self._orders.pop(publisher)
        return Migration(
            **self._origin.header(time_us),
            session=decision.session,
            migration=order.migration if order is not None else "",
            clients=PUBLISHERS,
            client=publisher,
            source=self._origin.broker,
            target=target,
            moved=decision.kind == "publisher-moved",
            reason=decision.reason[:REASON_LENGTH_MAX],
            duration_us=_since_us(order, now),
        )


def effects(numbers: Mapping[str, float], source: str, *, of_publishers: bool) -> tuple[Effect, ...]:
    """The metrics of all brokers before and after, from the numbers of a plan.

    An edge writes `source.uplink.before` and `target.edge-2.uplink.after`, a head `uplink.before` and, of a target,
    `uplink.head-2.after`.
    """
    found: dict[tuple[str, str], dict[str, float]] = {}
    for name, value in numbers.items():
        *path, when = name.split(".")
        if when not in ("before", "after"):
            continue
        if of_publishers:
            key = (source, path[0]) if len(path) == 1 else (path[1], path[0])
        else:
            key = (source, path[1]) if len(path) == 2 else (path[1], path[2])
        found.setdefault(key, {})[when] = max(value, 0.0)
    return tuple(
        Effect(broker=broker, metric=metric, before=values.get("before"), after=values["after"])
        for (broker, metric), values in sorted(found.items())
        if "after" in values
    )[:EFFECTS_MAX]


def _nobody(decision: Decision, now: float) -> None:
    """Until somebody follows."""


def _since_us(order: _Order | None, now: float) -> int | None:
    return None if order is None else round(max(now - order.at_s, 0.0) * MICROSECONDS)
