"""`tidegate bench migration`: a hundred subscribers moved under load, and how long each went without a message.

All of them sit on one edge. In each round that edge is drained, as for maintenance, while publishers go on at a steady
rate; the other edge takes everybody, and is drained in the next round. The gap of one move is what its own subscriber's
application noticed, from the order until a second after the old queue was left: how much longer than usual a message
took, or the pause between two of them lasted beyond the publishing interval, whichever is more. Link delays are in the
usual latency, so they don't count. The same is measured, over as long a time, of subscribers that don't move while
others do, and while nobody moves: what is seen then is the machine's. Besides, over the whole drain, so that nothing
falls between.

The subscribers are spread over a few processes (`migration_worker` says why); publishers and operator are here.
Needs nothing but the address of a head with two edges, so it runs on any cluster.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate import AsyncPublisher
from tidegate._engine.asking import Asking
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import Topology
from tidegate_protocol.balancing.drains import DrainReply, DrainRequest
from tidegate_protocol.messages import StatusReply, StatusRequest

from ..errors import MeasurementFailed
from ..live.machine import MachineUse, look, use
from ..live.verdict import BUSY_SHARE_MAX, STEAL_SHARE_MAX
from ..live.workers import ANSWER_TIMEOUT_S, WorkerProcess
from ..pacing import Pacer
from ..progress import Report
from .migration_worker import MigrationAssignment
from .watches import Window

WORKER: Final = "tidegate_experiments.benchmarks.migration_worker"
PROCESSES: Final = 4
"""Over which the subscribers are spread: few, because each is one more to share two cores with."""
TOPICS: Final = 10
RATE_PER_S: Final = 20.0
"""Messages per second and topic: enough that a pause shows, little enough that two cores carry it beside RabbitMQ."""
BODY: Final = b"." * 300
DEADLINE_S: Final = 5.0
CALM_S: Final = 5.0
"""How long it is watched before anything moves, to know what is usual."""
AFTER_S: Final = 1.0
"""What counts as part of a move after its end."""
CALM_MS_MAX: Final = 100.0
"""What 99 in 100 may notice while nobody moves: where it is more, the machine can't show what moves add."""
LOOK_EVERY_S: Final = 0.05
SUBSCRIBE_S_MAX: Final = 120.0
ROUND_S_MAX: Final = 120.0
SETTLE_S: Final = 15.0
COUNTS: Final = ("deliveries", "lost", "duplicates", "duplicates_removed", "out_of_order")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is moved, and how often."""

    subscribers: int = 100
    rounds: int = 3
    persistent: bool = False
    """Whether messages are. RabbitMQ then has them written to its disk a thousand times per second, and the waiting for
    that shows more than the moves do."""


@dataclass(slots=True)
class _Measured:
    """What all rounds have shown, in milliseconds but for the durations."""

    gaps: list[float] = field(default_factory=list)
    """Of each move, from the order until `AFTER_S` after its end."""
    bystanders: list[float] = field(default_factory=list)
    """The same measure, over as long as a move's, of those who were not moving while others did."""
    calm: list[float] = field(default_factory=list)
    """The same measure, over as long as a move's, while nobody moved."""
    drain: list[float] = field(default_factory=list)
    """The same measure over a whole drain: each subscriber's own move and everybody else's."""
    moves_s: list[float] = field(default_factory=list)
    resting: list[MachineUse] = field(default_factory=list)
    moving: list[MachineUse] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    """How long the event loop of a process with subscribers stood still, at most in each round."""
    durations_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Load:
    """Publishers that go on until told to stop."""

    url: str
    persistent: bool
    published: dict[str, int] = field(default_factory=dict)
    stopping: bool = False

    async def publish(self, topic: str) -> None:
        pacer = Pacer(RATE_PER_S)
        async with AsyncPublisher(self.url, name=f"bench-{topic.rpartition('.')[2]}") as publisher:
            while not self.stopping:
                await pacer.wait()
                await publisher.publish(topic, BODY, persistent=self.persistent)
                self.published[topic] = self.published.get(topic, 0) + 1


class Bench:
    """The subscribers' processes, the load, and the operator who drains."""

    def __init__(self, url: str, size: Size, report: Report) -> None:
        self._url = url
        self._size = size
        self._report = report
        self._workers: list[WorkerProcess] = []
        self._load = _Load(url, size.persistent)

    async def run(self) -> dict[str, Any]:
        """All rounds; returns the figures."""
        async with AsyncExitStack() as stack:
            head = await stack.enter_async_context(Asking(self._url))
            home, away = await self._edges(head)
            # Everybody starts on one edge: the other takes nobody for now.
            await _drain(head, away, True)
            await self._subscribe(stack)
            await _drain(head, away, False)
            gc.collect()
            gc.freeze()
            publishing = [asyncio.create_task(self._load.publish(_topic(index))) for index in range(TOPICS)]
            try:
                measured = await self._rounds(head, home, away)
            finally:
                self._load.stopping = True
                await asyncio.gather(*publishing)
                gc.unfreeze()
            patience_s = SETTLE_S + ANSWER_TIMEOUT_S
            counts = await self._ask("settle", patience_s, published=self._load.published, patience_s=SETTLE_S)
            await self._ask("finish", ROUND_S_MAX)
            return self._figures(measured, counts)

    async def _edges(self, head: Asking) -> tuple[str, str]:
        status = await head.ask(StatusRequest(), StatusReply)
        alive = sorted(edge.edge for edge in status.edges if edge.alive)
        if len(alive) != 2:
            found = ", ".join(alive) or "none"
            raise MeasurementFailed(
                f"the cluster of {status.head} has {len(alive)} edges alive ({found}); this takes two"
            )
        return alive[0], alive[1]

    async def _subscribe(self, stack: AsyncExitStack) -> None:
        everybody = [(f"bench-subscriber-{index}", _topic(index % TOPICS)) for index in range(self._size.subscribers)]
        processes = min(PROCESSES, self._size.subscribers)
        for number in range(processes):
            share = tuple(everybody[number::processes])
            task = MigrationAssignment(f"process {number}", self._url, share, DEADLINE_S, 1.0 / RATE_PER_S)
            worker = await stack.enter_async_context(WorkerProcess(task, WORKER, own_session=True))
            await worker.ask("subscribe", timeout_s=SUBSCRIBE_S_MAX)
            self._workers.append(worker)
            self._report(
                "subscribers", sum(len(everybody[one::processes]) for one in range(number + 1)), len(everybody)
            )

    async def _ask(self, do: str, timeout_s: float = ANSWER_TIMEOUT_S, **fields: Any) -> list[dict[str, Any]]:
        return await asyncio.gather(*(worker.ask(do, timeout_s=timeout_s, **fields) for worker in self._workers))

    async def _rounds(self, head: Asking, home: str, away: str) -> _Measured:
        measured = _Measured()
        for number in range(self._size.rounds):
            calm, usual_s = await self._calm(measured)
            machine, began = look({}), time.monotonic()
            await _drain(head, home, True)
            await self._all_on(away)
            ended = time.monotonic()
            measured.moving.append(use(machine, look({}), ended - began))
            await _emptied(head, home)
            await asyncio.sleep(max(0.0, ended + AFTER_S - time.monotonic()))
            measured.durations_s.append(ended - began)
            await self._look_back(measured, calm, Window(began, ended + AFTER_S), usual_s)
            await _drain(head, home, False)
            home, away = away, home
            self._report("rounds", number + 1, self._size.rounds)
        return measured

    async def _look_back(self, measured: _Measured, calm: Window, drain: Window, usual_s: float) -> None:
        """What a round has shown; what was noticed by those who did not move, over as long as moves took."""
        about: dict[str, float] = {"usual_s": usual_s}
        moves_s: list[float] = []
        for told in await self._ask("gaps", **_between(drain), **about, after_s=AFTER_S):
            measured.gaps += told["gaps"]
            measured.drain += told["drain"]
            measured.stalls.append(told["stall_ms"])
            moves_s += told["moves_s"]
        measured.moves_s += moves_s
        about["length_s"] = statistics.median(moves_s) + AFTER_S
        for told in await self._ask("unmoved", **_between(drain), **about):
            measured.bystanders += told["gaps"]
        for told in await self._ask("unmoved", **_between(calm), **about):
            measured.calm += told["gaps"]

    async def _calm(self, measured: _Measured) -> tuple[Window, float]:
        """A time in which nothing moves, and the median latency in it."""
        # What came at once after a start or a move is none of it.
        await asyncio.sleep(AFTER_S)
        machine, began = look({}), time.monotonic()
        await asyncio.sleep(CALM_S)
        calm = Window(began, time.monotonic())
        measured.resting.append(use(machine, look({}), calm.length_s))
        ages: list[float] = [age for told in await self._ask("ages", **_between(calm)) for age in told["ages"]]
        if not ages:
            raise MeasurementFailed("nothing was delivered before the first move: look at the logs of the brokers")
        return calm, statistics.median(ages)

    async def _all_on(self, edge: str) -> None:
        """Wait until every subscriber is served from `edge` and nothing of its move is left."""
        told = await self._ask("moved", ROUND_S_MAX + ANSWER_TIMEOUT_S, edge=edge, patience_s=ROUND_S_MAX)
        stuck = [name for one in told for name in one["stuck"]]
        if stuck:
            shown = ", ".join(stuck[:5])
            raise MeasurementFailed(f"{len(stuck)} subscribers have not moved to {edge} in {ROUND_S_MAX:g} s: {shown}")

    def _figures(self, measured: _Measured, counts: list[dict[str, Any]]) -> dict[str, Any]:
        calm = _percentiles("calm", measured.calm)
        reasons = bottlenecks(calm["calm_p99_ms"], [*measured.resting, *measured.moving])
        return {
            "subscribers": self._size.subscribers,
            "rounds": self._size.rounds,
            "moves": len(measured.gaps),
            "persistent": self._size.persistent,
            "messages_per_s": TOPICS * RATE_PER_S * self._size.subscribers / TOPICS,
            **_percentiles("gap", measured.gaps),
            **_percentiles("bystanders", measured.bystanders),
            **calm,
            **_percentiles("drain", measured.drain),
            "stall_max_ms": round(max(measured.stalls), 1),
            "busy_share_calm": round(statistics.mean(one.busy_share for one in measured.resting), 3),
            "busy_share_moving": round(statistics.mean(one.busy_share for one in measured.moving), 3),
            "steal_share": round(max(one.steal_share for one in [*measured.resting, *measured.moving]), 3),
            "valid": not reasons,
            "invalid_because": reasons,
            "move_p50_s": round(_percentile(measured.moves_s, 50), 3),
            "move_max_s": round(max(measured.moves_s), 3),
            "duration_s": round(statistics.median(measured.durations_s), 2),
            **{name: sum(one[name] for one in counts) for name in COUNTS},
        }


async def run_migration(url: str | None, size: Size, report: Report) -> dict[str, Any]:
    """Measure on the cluster at `url`, or on one started for this."""
    if url is not None:
        return await Bench(url, size, report).run()
    async with EmbeddedCluster(Topology.simple(clusters=1, edges=2), compact=True, progress=report) as cluster:
        return await Bench(cluster.url(next(iter(cluster.clusters))), size, report).run()


def bottlenecks(calm_p99_ms: float, uses: list[MachineUse]) -> list[str]:
    """Why a run says more about the machine than about moves; empty if it does not."""
    reasons: list[str] = []
    if calm_p99_ms > CALM_MS_MAX:
        reasons.append(
            f"while nobody moved, one in a hundred noticed {calm_p99_ms:.0f} ms or more (at most {CALM_MS_MAX:g} ms)"
        )
    if (busy := max(one.busy_share for one in uses)) > BUSY_SHARE_MAX:
        reasons.append(f"the processors were busy for {busy:.1%} of a round (at most {BUSY_SHARE_MAX:.0%})")
    if (steal := max(one.steal_share for one in uses)) > STEAL_SHARE_MAX:
        reasons.append(f"the host took away {steal:.1%} of the processors (at most {STEAL_SHARE_MAX:.0%})")
    return reasons


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    # A drain may be over before a subscriber that is not moving was seen for long enough.
    return {
        f"{name}_p50_ms": round(_percentile(values, 50), 1) if values else 0.0,
        f"{name}_p99_ms": round(_percentile(values, 99), 1) if values else 0.0,
        f"{name}_max_ms": round(max(values, default=0.0), 1),
    }


def _between(window: Window) -> dict[str, float]:
    return {"began": window.began_s, "ended": window.ended_s}


def _percentile(values: list[float], percent: int) -> float:
    # Of a single value there are no quantiles.
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _topic(index: int) -> str:
    return f"bench.move.{index}"


async def _drain(head: Asking, edge: str, draining: bool) -> DrainReply:
    return await head.ask(DrainRequest(edge=edge, draining=draining), DrainReply)


async def _emptied(head: Asking, edge: str) -> None:
    """Wait until the head counts nobody there any more."""
    until = time.monotonic() + ROUND_S_MAX
    while (await _drain(head, edge, True)).left:
        if time.monotonic() > until:
            raise MeasurementFailed(f"{edge} is not empty after {ROUND_S_MAX:g} s")
        await asyncio.sleep(LOOK_EVERY_S)
