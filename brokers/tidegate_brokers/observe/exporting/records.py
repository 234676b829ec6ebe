"""What is counted of decisions, sessions, moves and predictions: from the same records that telemetry writes.

The records are made whether or not they are written to a stream, so these counters do not depend on telemetry.
Invariant: every label is a kind of decision, a member of one of their enums, from a fixed set below, or the name of a
broker of this cluster; what is remembered in between is bounded.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tidegate_agents.kit.memory import Recent
from tidegate_protocol.decisions import (
    Decision,
    EdgeForgotten,
    EdgePresence,
    NeighbourPresence,
    NotStarted,
    PublisherSessionEnded,
    SessionFailed,
    SessionNotStarted,
    SessionOutcome,
)
from tidegate_protocol.telemetry import (
    DecisionMade,
    Migration,
    MigrationGapTold,
    Moved,
    Outcome,
    SessionBegan,
    SessionEnded,
    TelemetryRecord,
)

DURATION_EDGES_S: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0)
GAP_EDGES_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
ERROR_EDGES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""In shares of a capacity: 0.05 is five points of utilization off."""
RETURN_S: Final = 600.0
"""A client that is back within this time where it came from has moved for nothing."""
MOVES_MAX: Final = 10_000
"""Clients whose last move is remembered; the oldest are forgotten first."""

HELPLESS: Final = (
    SessionOutcome.NO_ROOM,
    SessionOutcome.NO_CANDIDATE,
    SessionOutcome.NO_IMPROVEMENT,
    SessionOutcome.NOBODY_MOVABLE,
)
"""Outcomes of sessions that say: overloaded, and nowhere to go. Counted from 0, or the first would not show as an
increase, and nobody would be called.
"""
PREDICTED: Final = ("uplink", "downlink", "matching")
"""Metrics of which a plan says what they will become."""


class RecordMetrics:
    """What heads and edges count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decisions = Counter(
            "tidegate_decisions", "Decisions of this broker's agent", ["decision", "reason"], registry=registry
        )
        self.errors = Counter(
            "tidegate_record_errors", "What could not be made into a record, counted or written: bugs",
            registry=registry,
        )  # fmt: skip
        self.began = Counter(
            "tidegate_sessions_started", "Sessions in which this broker gives load away, and drains that a head leads; "
            "not necessary: no deadline was in danger and no static threshold passed",
            ["clients", "necessary"], registry=registry,
        )  # fmt: skip
        self.ended = Counter(
            "tidegate_sessions_ended", "The same, when they are over; partly: somebody stayed",
            ["clients", "outcome", "reason"], registry=registry,
        )  # fmt: skip
        self.duration = Histogram(
            "tidegate_session_duration_seconds", "From the request until the end, of sessions that moved somebody",
            registry=registry, buckets=DURATION_EDGES_S,
        )  # fmt: skip
        self.error = Histogram(
            "tidegate_prediction_error_ratio", "How far a utilization of the source was from what its plan predicted, "
            "once the moved load showed; without sign",
            ["resource"], registry=registry, buckets=ERROR_EDGES,
        )  # fmt: skip
        self.last_error = Gauge(
            "tidegate_prediction_last_error_ratio", "Measured minus predicted, of the last session",
            ["resource"], registry=registry,
        )  # fmt: skip
        self.decisions.labels(SessionNotStarted.kind, NotStarted.NO_MOVE_HELPS.value)
        for helpless in HELPLESS:
            for each in (SessionFailed, PublisherSessionEnded):
                self.decisions.labels(each.kind, helpless.value)
            self.ended.labels(Moved.SUBSCRIBERS.value, "nothing", helpless.value)
        for clients in Moved:
            self.began.labels(clients.value, "yes")
            self.ended.labels(clients.value, "moved", SessionOutcome.MOVES_ENDED.value)
            self.ended.labels(clients.value, "partly", SessionOutcome.MOVES_ENDED.value)
        for resource in PREDICTED:
            self.error.labels(resource)

    def taken(self, record: TelemetryRecord) -> None:
        """Count one record. Kinds that are only for the stream count for nothing here."""
        match record:
            case DecisionMade():
                self.decisions.labels(record.decision, record.reason).inc()
            case SessionBegan():
                necessary = {True: "yes", False: "no", None: "unknown"}[record.necessary]
                self.began.labels(record.clients.value, necessary).inc()
            case SessionEnded():
                self._session_ended(record)
            case Outcome():
                self._outcome(record)

    def _session_ended(self, record: SessionEnded) -> None:
        outcome = "nothing" if not record.moved else "partly" if record.failed else "moved"
        self.ended.labels(record.clients.value, outcome, record.reason).inc()
        if record.moved and record.duration_us is not None:
            self.duration.observe(record.duration_us / 1e6)

    def _outcome(self, record: Outcome) -> None:
        for one in record.metrics:
            if one.predicted is not None and one.metric in PREDICTED:
                self.error.labels(one.metric).observe(abs(one.measured - one.predicted))
                self.last_error.labels(one.metric).set(one.measured - one.predicted)


class HeadRecordMetrics(RecordMetrics):
    """What only heads know: moves, the pauses that subscribers noticed, who is there."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.moves = Counter(
            "tidegate_migrations_ended", "Clients that were moved, or stayed", ["clients", "outcome", "reason"],
            registry=registry,
        )  # fmt: skip
        self.returned = Counter(
            "tidegate_migrations_returned", f"Clients that were back within {RETURN_S:g} s where they came from",
            ["clients"], registry=registry,
        )  # fmt: skip
        self.move_duration = Histogram(
            "tidegate_migration_duration_seconds", "From the order to a client until its end",
            ["clients"], registry=registry, buckets=DURATION_EDGES_S,
        )  # fmt: skip
        self.gap = Histogram(
            "tidegate_migration_gap_seconds", "The longest pause in delivery around a move, as its subscriber saw it",
            registry=registry, buckets=GAP_EDGES_S,
        )  # fmt: skip
        self.held = Counter(
            "tidegate_migration_held_messages", "Messages that came by the new edge too early and were kept back",
            registry=registry,
        )  # fmt: skip
        self.edge_up = Gauge(
            "tidegate_edge_up", "Whether this head hears of an edge (1) or not (0)", ["edge"], registry=registry
        )
        self.neighbour_up = Gauge(
            "tidegate_neighbour_up", "The same of a neighbouring head", ["neighbour"], registry=registry
        )
        for clients in Moved:
            self.returned.labels(clients.value)
            self.move_duration.labels(clients.value)
            self.moves.labels(clients.value, "moved", "moved")
        self._last: Recent[tuple[str, str], tuple[str, int]] = Recent(MOVES_MAX)
        """Per client: the broker it left last, and when (microseconds)."""

    def taken(self, record: TelemetryRecord) -> None:
        """Count one record."""
        super().taken(record)
        match record:
            case DecisionMade():
                self._heard(record.record)
            case Migration():
                self._moved(record)
            case MigrationGapTold():
                self.gap.observe(record.gap_us / 1e6)
                self.held.inc(record.held)

    def _heard(self, decision: Decision) -> None:
        match decision:
            case EdgePresence(edge=edge):
                self.edge_up.labels(edge).set(decision.alive)
            case EdgeForgotten(edge=edge):
                self.edge_up.remove(edge)
            case NeighbourPresence(head=head):
                self.neighbour_up.labels(head).set(decision.alive)

    def _moved(self, record: Migration) -> None:
        clients, outcome = record.clients.value, "moved" if record.moved else "stayed"
        self.moves.labels(clients, outcome, record.reason).inc()
        if not record.moved:
            return
        if record.duration_us is not None:
            self.move_duration.labels(clients).observe(record.duration_us / 1e6)
        client = (record.client, record.pattern or "")
        left, at_us = self._last.get(client, ("", 0))
        if left == record.target and record.time_us - at_us <= RETURN_S * 1e6:
            self.returned.labels(clients).inc()
        self._last[client] = (record.source, record.time_us)
