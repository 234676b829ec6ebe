"""Sessions end, and clients are not moved to and fro.

Everything is seen from outside, in the messages that brokers send and get: a machine that forgot something is not
asked whether it forgot it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate_agents.machine import (
    Action,
    Announce,
    Event,
    MessageReceived,
    Reply,
    Send,
    SendClient,
)
from tidegate_protocol.balancing.migrations import MigrateOrder, MigrationReport, MigrationStage
from tidegate_protocol.balancing.sessions import BalanceRequest, SessionNotice, SessionPhase
from tidegate_protocol.decisions import Decision, DrainOrder, DrainOrdered
from tidegate_protocol.messages import Refusal
from tidegate_simulator.observer import HEARD
from tidegate_simulator.scenario import FaultKind, Scenario

from .base import Checker

if TYPE_CHECKING:
    from tidegate_simulator.world import World

SLACK_S: Final = 3.0
"""For messages on their way, and for timers that fire at the next tick."""
DRIFT_MAX: Final = 0.1
"""Clocks that drift make time-outs longer or shorter by at most so much of themselves."""


class Absences:
    """When the processes of brokers were not running: nobody can be blamed for what it did not do then."""

    def __init__(self, scenario: Scenario) -> None:
        kinds = (FaultKind.CRASH, FaultKind.FREEZE, FaultKind.EDGE_DOWN)
        self._spans = [
            (fault.target, fault.kind, fault.at_s, fault.until_s if fault.until_s is not None else scenario.duration_s)
            for fault in scenario.faults
            if fault.kind in kinds
        ]

    def away_s(self, broker: str, since_s: float, now: float) -> float:
        """For how long it was away between the two."""
        spans = [span for span in self._spans if span[0] == broker]
        return sum(max(0.0, min(end, now) - max(begin, since_s)) for _, _, begin, end in spans)

    def crashed(self, broker: str, since_s: float, now: float) -> bool:
        """Whether it lost its memory between the two, or came back without it."""
        return any(
            target == broker and kind is FaultKind.CRASH and begin <= now and since_s <= end
            for target, kind, begin, end in self._spans
        )


class SessionsEnd(Checker):
    """Whatever begins, ends: sessions at the head, and the part of every broker in them."""

    name = "session-without-end"

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[tuple[str, str], float] = {}
        self._busy: dict[str, float] = {}

    def started(self, world: World) -> None:
        super().started(world)
        self._absences = Absences(world.scenario)
        config = world.scenario.balancing
        self._session_s = config.session_timeout_s * (1.0 + DRIFT_MAX) + SLACK_S
        self._busy_s = self._session_s + config.stabilizing_max_s * (1.0 + DRIFT_MAX) + 2.0 * config.period_s

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        if isinstance(event, MessageReceived):
            match event.message:
                case SessionNotice():
                    self._busy.pop(broker, None)
                case BalanceRequest(session=session) if not any(_refuses(action) for action in actions):
                    self._open.setdefault((broker, session), now)
        for action in actions:
            match action:
                case Send(message=SessionNotice(session=session, phase=SessionPhase.ENDED)):
                    self._close(broker, session, now)
                case Announce(message=report):
                    self._announced(broker, report.busy, now)
                case Send(message=BalanceRequest()):
                    # One session directly after another: the time counts anew.
                    self._busy.pop(broker, None)

    def _announced(self, broker: str, busy: bool, now: float) -> None:
        if not busy:
            self._busy.pop(broker, None)
            return
        since_s = self._busy.setdefault(broker, now)
        if now - since_s - self._absences.away_s(broker, since_s, now) > self._busy_s:
            self.report(now, f"{broker} has been busy since {since_s:.1f} s")
            del self._busy[broker]

    def _close(self, head: str, session: str, now: float) -> None:
        since_s = self._open.pop((head, session), None)
        if since_s is not None and self._overdue(head, since_s, now):
            self.report(now, f"session {session} was under way at {head} from {since_s:.1f} s on")

    def _overdue(self, head: str, since_s: float, now: float) -> bool:
        # A head that crashed has forgotten the session; its brokers leave it by a time-out of their own.
        if self._absences.crashed(head, since_s, now):
            return False
        return now - since_s - self._absences.away_s(head, since_s, now) > self._session_s

    def ended(self, world: World, now: float) -> None:
        for (head, session), since_s in sorted(self._open.items()):
            # One that began a moment before the end of the run has had no time to end.
            if self._overdue(head, since_s, now):
                self.report(now, f"session {session} of {since_s:.1f} s was never ended at {head}")
        for broker, since_s in sorted(self._busy.items()):
            self.report(now, f"{broker} is still busy at rest, since {since_s:.1f} s")


def _refuses(action: Action) -> bool:
    return isinstance(action, Reply) and isinstance(action.message, Refusal)


@dataclass(slots=True)
class _Moved:
    """The last move of one client."""

    migration: str
    edge_from: str
    edge: str
    head: str
    moved_s: float


class NoOscillation(Checker):
    """No client is moved twice within the cool-down, and so none back to where it came from."""

    name = "oscillation"

    def __init__(self) -> None:
        super().__init__()
        self._orders: dict[str, tuple[str, float, MigrateOrder]] = {}
        self._last: dict[tuple[str, str], _Moved] = {}
        self._draining: set[str] = set()
        """Edges that their heads take for being drained: an operator's word to the contrary may have got lost."""

    def started(self, world: World) -> None:
        super().started(world)
        self._absences = Absences(world.scenario)
        self._cooldown_s = world.scenario.balancing.cooldown_s
        self._clocks = [f for f in world.scenario.faults if f.kind is FaultKind.CLOCK]

    def decided(self, broker: str, decision: Decision, now: float) -> None:
        if isinstance(decision, DrainOrdered):
            change = self._draining.add if decision.reason is DrainOrder.DRAIN else self._draining.discard
            change(decision.edge)

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        if isinstance(event, HEARD):
            message = event.message
            if isinstance(message, MigrationReport) and message.stage is MigrationStage.MOVED:
                self._moved(broker, message, now)
        for action in actions:
            if isinstance(action, SendClient) and isinstance(action.message, MigrateOrder):
                self._ordered(broker, action.message, now)

    def _ordered(self, head: str, order: MigrateOrder, now: float) -> None:
        if order.migration in self._orders:
            return  # repeated
        self._orders[order.migration] = (head, now, order)
        last = self._last.get((order.subscriber, order.pattern))
        if last is None or self._exempt(last, head, order, now):
            return
        passed_s = now - last.moved_s
        if passed_s < self._cooldown_of(head) - SLACK_S:
            back = ", back to where it came from" if order.edge == last.edge_from else ""
            text = f"{order.subscriber} is moved from {order.edge_from} to {order.edge} {passed_s:.1f} s after the move"
            self.report(now, f"{text} from {last.edge_from} to {last.edge}{back} ({order.migration})")

    def _cooldown_of(self, head: str) -> float:
        """A head counts the cool-down by its own clock. One that is put forward in the middle of it ends it early."""
        jumps_s = sum(max(fault.amount, 0.0) for fault in self._clocks if fault.target == head)
        drift = max((abs(fault.drift) for fault in self._clocks if fault.target == head), default=0.0)
        return self._cooldown_s / (1.0 + drift) - jumps_s

    def _exempt(self, last: _Moved, head: str, order: MigrateOrder, now: float) -> bool:
        """State is soft: a head that crashed since has forgotten who rests. And an operator who drains an edge wants
        it empty now, whoever was moved there a moment ago.
        """
        return order.edge_from in self._draining or self._absences.crashed(head, last.moved_s - SLACK_S, now)

    def _moved(self, head: str, report: MigrationReport, now: float) -> None:
        client = (report.subscriber, report.pattern)
        last = self._last.get(client)
        if last is not None and last.migration == report.migration:
            return  # reported again
        edge_from = report.other_edge or ""
        self._last[client] = _Moved(report.migration, edge_from, report.edge, head, now)
