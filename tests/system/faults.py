"""The steps of a session and of a migration, and the faults that can hit each of them.

A step is known by the control message that begins it; the fault comes the moment the message is seen, so that whoever
it was sent to is hit while dealing with it. Every fault is healed after a short outage.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.support.control_spy import Seen
from tidegate_protocol.balancing.markers import MarkerBind
from tidegate_protocol.balancing.migrations import MigrateOrder, MigrationReport, MigrationStage
from tidegate_protocol.balancing.sessions import (
    BalanceCandidates,
    BalancePlan,
    BalanceRequest,
    LoadRequest,
    SessionNotice,
    SessionPhase,
)
from tidegate_protocol.messages import OutputPrepare, OutputRemove

from .arena import HEAD, MOVER, Arena

OUTAGE_S: Final = 2.0
"""How long a process is dead, or a link cut."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Who is who, as far as the messages up to the step tell."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Step:
    """`begins`: whether this message begins the step, for what moves away from `source`."""

    name: str
    in_session: bool
    begins: Callable[[Arena, Seen, str], bool]

    def __str__(self) -> str:
        return self.name


def _session(name: str, begins: Callable[[Seen, str], bool]) -> Step:
    return Step(name, True, lambda arena, seen, source: begins(seen, source))


def _session_seen(arena: Arena, session: str, source: str) -> bool:
    asked = [seen.message for seen in arena.spy.seen if seen.kind == "balance-request"]
    return any(isinstance(one, BalanceRequest) and one.session == session and one.edge == source for one in asked)


def _move(name: str, begins: Callable[[Seen, str], bool]) -> Step:
    return Step(name, False, lambda arena, seen, source: begins(seen, source))


def _reported(stage: MigrationStage) -> Callable[[Seen, str], bool]:
    def matches(seen: Seen, source: str) -> bool:
        message = seen.message
        return isinstance(message, MigrationReport) and message.subscriber == MOVER and message.stage is stage

    return matches


def _noticed(phase: SessionPhase) -> Callable[[Seen, str], bool]:
    def matches(seen: Seen, source: str) -> bool:
        message = seen.message
        return isinstance(message, SessionNotice) and message.source == source and message.phase is phase

    return matches


def _marker_published(arena: Arena, seen: Seen, source: str) -> bool:
    # It goes out together with the order, and may be seen before it; but not before its key was bound to the old queue.
    bound = [one.message for one in arena.spy.seen if isinstance(one.message, MarkerBind) and one.broker == source]
    ours = [one.key.removesuffix("*") for one in bound if one.subscriber == MOVER]
    return seen.kind == "marker" and bool(ours) and seen.key.startswith(ours[-1])


STEPS: Final = (
    _session("balance-request", lambda seen, source: _is(seen, BalanceRequest, edge=source)),
    Step(
        "load-request",
        True,
        lambda arena, seen, source: (
            isinstance(seen.message, LoadRequest) and _session_seen(arena, seen.message.session, source)
        ),
    ),
    Step(
        "balance-candidates",
        True,
        lambda arena, seen, source: (
            isinstance(seen.message, BalanceCandidates) and _session_seen(arena, seen.message.session, source)
        ),
    ),
    _session("balance-plan", lambda seen, source: _is(seen, BalancePlan, edge=source)),
    _session("session-started", _noticed(SessionPhase.STARTED)),
    _session("session-ended", _noticed(SessionPhase.ENDED)),
    _move(
        "output-prepare",
        lambda seen, source: isinstance(seen.message, OutputPrepare) and seen.message.subscription.subscriber == MOVER,
    ),
    _move("marker-bind", lambda seen, source: _is(seen, MarkerBind, subscriber=MOVER)),
    _move("migrate-order", lambda seen, source: _is(seen, MigrateOrder, subscriber=MOVER, edge_from=source)),
    _move("attached", _reported(MigrationStage.ATTACHED)),
    Step("marker", False, _marker_published),
    _move("moved", _reported(MigrationStage.MOVED)),
    _move("output-remove", lambda seen, source: _is(seen, OutputRemove, subscriber=MOVER)),
)


def _is(seen: Seen, kind: type[object], **fields: str) -> bool:
    return isinstance(seen.message, kind) and all(getattr(seen.message, key) == value for key, value in fields.items())


def roles(arena: Arena, step: Step, seen: Seen, source: str, since_s: float) -> Roles:
    """Who is the target, by what has been said so far; before anything was, the first other edge."""
    message = seen.message
    others = [edge for edge in arena.edges if edge != source]
    if isinstance(message, LoadRequest | OutputPrepare):
        return Roles(source, seen.broker)
    if isinstance(message, BalanceCandidates) and message.candidates:
        return Roles(source, message.candidates[0].load.broker)
    if isinstance(message, BalancePlan) and message.moves:
        return Roles(source, message.moves[0].target)
    for said in reversed(arena.spy.since(since_s, "output-prepare")):
        if isinstance(said.message, OutputPrepare) and said.message.subscription.subscriber == MOVER:
            return Roles(source, said.broker)
    return Roles(source, others[0])


@dataclass(frozen=True, slots=True)
class Fault:
    """`whom` picks what is hit, by its role."""

    name: str
    whom: Callable[[Roles], str]

    def __str__(self) -> str:
        return self.name

    @property
    def keeps_order(self) -> bool:
        """A new process of a killed client may get again, from the new queue, what the old process was handed."""
        return self.name != "kill-client"

    @property
    def needs_nodes(self) -> bool:
        """Whether every broker needs a RabbitMQ of its own."""
        return self.name.startswith("node")

    async def strike(self, arena: Arena, roles: Roles) -> None:
        """The fault itself."""
        whom, cluster = self.whom(roles), arena.cluster
        match self.name.partition("-")[0]:
            case "kill" if whom == MOVER:
                arena.load.kill(MOVER)
            case "kill":
                await cluster.process(whom).kill()
            case "cut":
                for door in self._doors(whom):
                    await cluster.conditioner(whom).cut(door)
            case "node":
                await cluster.node(whom).kill()

    async def heal(self, arena: Arena, roles: Roles) -> None:
        """Everything back again."""
        whom, cluster = self.whom(roles), arena.cluster
        match self.name.partition("-")[0]:
            case "kill" if whom == MOVER:
                arena.load.start_audience(MOVER)
            case "kill":
                await cluster.process(whom).start()
            case "cut":
                for door in self._doors(whom):
                    await cluster.conditioner(whom).restore(door)
            case "node":
                await cluster.node(whom).start()
                await arena.spy.listening()

    def _doors(self, whom: str) -> tuple[str, ...]:
        return ("client",) if self.name.startswith("cut-client") else ("link", f"to:{HEAD}")


FAULTS: Final = (
    Fault("kill-source", lambda roles: roles.source),
    Fault("kill-target", lambda roles: roles.target),
    Fault("kill-head", lambda roles: HEAD),
    Fault("kill-client", lambda roles: MOVER),
    Fault("cut-link-to-source", lambda roles: roles.source),
    Fault("cut-link-to-target", lambda roles: roles.target),
    Fault("cut-client-from-source", lambda roles: roles.source),
    Fault("cut-client-from-target", lambda roles: roles.target),
    Fault("cut-client-from-head", lambda roles: HEAD),
    Fault("node-of-source", lambda roles: roles.source),
    Fault("node-of-target", lambda roles: roles.target),
    Fault("node-of-head", lambda roles: HEAD),
)


async def break_and_heal(arena: Arena, fault: Fault, roles: Roles) -> float:
    """Strike now, heal after the outage; how long it was away."""
    started_s = time.monotonic()
    await fault.strike(arena, roles)
    await asyncio.sleep(OUTAGE_S)
    await fault.heal(arena, roles)
    return time.monotonic() - started_s
