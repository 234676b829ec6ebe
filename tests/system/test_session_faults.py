"""Faults at every step of a session and of a migration, on real RabbitMQ.

Whatever is hit, and whenever: the session ends, every subscriber ends up attached exactly once, and nothing that was
confirmed to its publisher is lost or handed over twice.

The whole matrix takes long and is run by hand, on one cluster after another:

    TIDEGATE_FAULTS=all pytest tests/system/test_session_faults.py
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.backends import launcher
from tests.support.containers import IMAGE, docker_problem
from tests.support.node_pool import NodePool
from tests.support.waiting import eventually
from tidegate_protocol.balancing.sessions import BalanceRequest, SessionNotice, SessionPhase

from .arena import MOVER, Arena, arena
from .faults import FAULTS, STEPS, Fault, Roles, Step, break_and_heal, roles

EDGES = ("north", "south", "cape")
STEP_TIMEOUT_S = 60.0
SESSION_TIMEOUT_S = 90.0
"""Longer than any session may take."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


def selection(backend: str) -> list[tuple[str, str]]:
    """Every step and every fault at least once; on the newer RabbitMQ two that touch RabbitMQ itself."""
    if os.environ.get("TIDEGATE_FAULTS") == "all":
        return [(step.name, fault.name) for step in STEPS for fault in FAULTS]
    if backend == "container":
        return [("marker", "node-of-target"), ("balance-plan", "kill-head")]
    return [
        ("balance-request", "kill-source"),
        ("load-request", "kill-target"),
        ("balance-candidates", "cut-link-to-source"),
        ("balance-plan", "kill-head"),
        ("session-started", "kill-client"),
        ("session-ended", "cut-client-from-head"),
        ("output-prepare", "cut-link-to-target"),
        ("marker-bind", "node-of-source"),
        ("migrate-order", "cut-client-from-target"),
        ("attached", "kill-client"),
        ("marker", "node-of-target"),
        ("moved", "node-of-head"),
        ("output-remove", "cut-client-from-source"),
    ]


@dataclass
class Stage:
    """Keeps one arena for all cases of a kind, and makes a new one after a case that failed.

    Where no RabbitMQ is restarted, all brokers share one: that is quicker, and asks less of the machine. The two cases
    on the newer RabbitMQ share an arena instead.
    """

    pool: NodePool
    directory: Path
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    arena: Arena | None = None
    kind: tuple[str, bool] = ("", False)
    boots: int = 0

    async def ready(self, backend: str, compact: bool) -> Arena:
        if self.arena is not None and self.kind != (backend, compact):
            self.arena = None
            await self.stack.aclose()
        if self.arena is None:
            self.boots += 1
            launch = launcher(backend, self.pool)
            made = arena(launch, self.directory / f"load-{self.boots}", EDGES, compact=compact)
            self.arena, self.kind = await self.stack.enter_async_context(made), (backend, compact)
        self.arena.load.forget_mishaps()
        return self.arena

    async def failed(self, case: str) -> str:
        """Keep the logs, end the cluster; what to look at."""
        if self.arena is None:
            return "no cluster"
        kept = self.arena.keep_logs(self.directory / f"failed-{case}")
        tails = [f"--- {name}\n{self.arena.load.log(name)}" for name in self.arena.load.processes]
        self.arena = None
        await self.stack.aclose()
        return "\n".join([f"logs, books and control messages: {kept}", *tails])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(pool: NodePool, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    made = Stage(pool, tmp_path_factory.mktemp("faults"))
    try:
        yield made
    finally:
        await made.stack.aclose()


def turn(case: tuple[str, str]) -> tuple[bool, bool, tuple[str, str]]:
    """Those that need the same cluster together, sessions after moves."""
    step = next(one for one in STEPS if one.name == case[0])
    fault = next(one for one in FAULTS if one.name == case[1])
    return fault.needs_nodes, step.in_session, case


CASES = [
    pytest.param(rabbit, *case, marks=marks, id=f"{rabbit}-{'-'.join(case)}")
    for rabbit, marks in (("native", ()), ("container", pytest.mark.docker))
    for case in sorted(selection(rabbit), key=turn)
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("rabbit", "step", "fault"), CASES)
async def test_a_fault_at_a_step(stage: Stage, rabbit: str, step: str, fault: str) -> None:
    if rabbit == "container" and (problem := docker_problem()) is not None:
        pytest.skip(f"RabbitMQ in a container ({IMAGE}) is not tested: {problem}")
    which = next(one for one in STEPS if one.name == step)
    what = next(one for one in FAULTS if one.name == fault)
    here = await stage.ready(rabbit, compact=rabbit == "native" and not what.needs_nodes)
    started_s = time.monotonic()
    try:
        if which.in_session:
            story = await in_a_session(here, which, what)
        else:
            story = await in_a_migration(here, which, what)
        healed_s = time.monotonic()
        await here.settled(in_order=what.keeps_order)
    except Exception as error:
        where = await stage.failed(f"{step}-{fault}")
        print(f"\n{step} / {fault}: FAILED after {time.monotonic() - started_s:.1f} s: {error}")
        raise AssertionError(f"{fault} at {step}: {error}\n{where}") from error
    print(f"\n{step} / {fault}: {story}, settled {time.monotonic() - healed_s:.1f} s later, ", end="")
    print(f"{time.monotonic() - started_s:.1f} s in all")


async def in_a_migration(here: Arena, step: Step, fault: Fault) -> str:
    """Drain the edge of the mover, and break something on the way."""
    await here.pause(True)
    source, since_s = await here.place_of(MOVER), time.monotonic()
    begins = here.spy.first(lambda seen: step.begins(here, seen, source))
    draining = asyncio.create_task(here.drain(source))
    seen = await asyncio.wait_for(begins, STEP_TIMEOUT_S)
    who = roles(here, step, seen, source, since_s)
    away_s = await break_and_heal(here, fault, who)
    await draining
    drained_s = time.monotonic()
    await here.drained(source)
    took_s = time.monotonic() - drained_s
    await here.drain(source, False)
    return f"{who.source} to {who.target}, away {away_s:.1f} s, {source} empty {took_s:.1f} s later"


async def in_a_session(here: Arena, step: Step, fault: Fault) -> str:
    """Overload the edge of the mover, and break something in the session that follows."""
    await here.pause(True)
    source = await here.place_of(MOVER)
    await here.gather(source)
    await here.pause(False)
    await here.restart_processes()
    since_s = time.monotonic()
    begins = here.spy.first(lambda seen: step.begins(here, seen, source))
    here.load.burst(True)
    try:
        seen = await asyncio.wait_for(begins, STEP_TIMEOUT_S)
        who: Roles = roles(here, step, seen, source, since_s)
        hit_s = time.monotonic()
        away_s = await break_and_heal(here, fault, who)
        healed_s = time.monotonic()
        await ended(here, source, since_s, hit_s)
        took_s = time.monotonic() - healed_s
    finally:
        here.load.burst(False)
    moved = [seen.message.moved for seen in here.spy.since(since_s, "session-notice") if _is_end(seen.message)]
    return f"{who.source} to {who.target}, away {away_s:.1f} s, sessions over {took_s:.1f} s later, moved {moved}"


async def ended(here: Arena, source: str, since_s: float, hit_s: float) -> None:
    """Wait until every session that was asked for up to the fault is over: the head, or the source itself, says so."""
    asked = {
        seen.message.session
        for seen in here.spy.since(since_s, "balance-request")
        if isinstance(seen.message, BalanceRequest) and seen.at_s <= hit_s
    }

    def open_sessions() -> set[str]:
        notices = [seen.message for seen in here.spy.since(since_s, "session-notice")]
        over = {notice.session for notice in notices if isinstance(notice, SessionNotice) and _is_end(notice)}
        # A head that was killed tells nobody; then the source ends it by itself.
        return asked - over - here.left_sessions(source)

    await eventually(lambda: not open_sessions(), f"all of {asked} have ended", SESSION_TIMEOUT_S)


def _is_end(message: object) -> bool:
    return isinstance(message, SessionNotice) and message.phase is SessionPhase.ENDED
