"""Runs `ews-burst` on a real cluster: starts it, has the clients publish and subscribe, and sums up what they got.

The order of things: the cluster; the workers, which connect; a moment in the near future as time zero; publishing until
the duration is over; what still waits; then everything is ended, and only then looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tidegate._engine.asking import Asking
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.nodes import ChildNode
from tidegate_experiments.burst.result import sum_up
from tidegate_experiments.burst.run import EwsRun
from tidegate_experiments.burst.scenario import HEAD, EwsOptions, scenario
from tidegate_protocol.insight import InsightReply
from tidegate_protocol.telemetry import TelemetryRecord
from tidegate_simulator.insights import insight_message
from tidegate_simulator.scenario import Scenario

from ..lean.subscriber import MoveSeen, PlaceSeen
from ..progress import Report, unseen
from ..telemetry import read_stream
from .brokers_said import Listener, decisions
from .course import Course, recorded
from .journal import read_deliveries, read_publications
from .machine import MachineUse, look, use
from .topology import CLUSTER, topology_of
from .verdict import Lags, lags, not_there_yet, problems
from .worker import LiveAssignment, plain_options
from .workers import WorkerProcess

BACKEND: Final = "rabbitmq"
LEAD_S: Final = 2.0
"""From the command to start until time zero."""
SLACK_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run on a real cluster: what any run has, and everything that was written down."""

    run: EwsRun
    course: Course
    telemetry: tuple[TelemetryRecord, ...] = ()
    """What its brokers wrote to their stream, where that was asked for."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What the workers say at the end, all together."""

    moves: list[MoveSeen]
    places: list[PlaceSeen]
    losses: list[str]
    behind: list[str]
    refused: int
    control_sent: int
    lag_s_max: float


async def run_live(
    options: EwsOptions,
    *,
    progress: Report = unseen,
    persistent: bool = False,
    sdk: int = 0,
    telemetry: bool = False,
) -> LiveRun:
    """Run the experiment once; of publishers and of subscribers, `sdk` each are those of the SDK. The stream of the
    head is read when all is over, if `telemetry` is wanted.
    """
    began = time.perf_counter()
    wanted = scenario(options)
    async with AsyncExitStack() as stack:
        cluster = EmbeddedCluster(topology_of(wanted), compact=True, progress=progress)
        await stack.enter_async_context(cluster)
        # In the directory of the launch, which goes with it whatever becomes of us.
        folder = cluster.directory / "journal"
        folder.mkdir()
        workers = [
            await stack.enter_async_context(WorkerProcess(task))
            for task in _tasks(options, wanted, cluster, folder, persistent, sdk)
        ]
        pids = _pids(cluster, workers)
        await _publish_insights(wanted, cluster.url(CLUSTER))
        listener = Listener({name: info.http_url for name, info in cluster.brokers.items()})
        await listener.look()
        began_us = time.time_ns() // 1000 + round(LEAD_S * 1e6)
        before, sent_before = look(pids), await _uplink_bytes(cluster)
        for worker in workers:
            await worker.ask("start", began_us=began_us)
        listening = asyncio.create_task(listener.run(began_us, options.duration_s))
        stack.callback(listening.cancel)
        await _pass_time(began_us, options.duration_s, progress)
        after = look(pids)
        told = await _end(workers, wanted)
        sent = await _uplink_bytes(cluster) - sent_before
        await listening
        told_by_brokers = tuple(await read_stream(cluster.url(CLUSTER))) if telemetry else ()
        course = Course(
            wanted,
            began_us,
            read_publications(folder),
            read_deliveries(folder),
            told.places,
            told.moves,
            decisions(cluster.logs, list(cluster.brokers), began_us),
            listener.readings,
            told.control_sent + listener.control_sent(began_us + round(options.duration_s * 1e6)),
        )
    machine = use(before, after, options.duration_s + LEAD_S)
    expected = sum(wanted.publishers[row.publisher].message_bytes for row in course.deliveries)
    wire_share = sent / expected if expected else 0.0
    run = _summed_up(options, course, told, machine, wire_share, time.perf_counter() - began)
    return LiveRun(run, course, told_by_brokers)


async def _publish_insights(wanted: Scenario, url: str) -> None:
    """What the head is to know before anybody registers."""
    if wanted.insights:
        async with Asking(url) as head:
            for spec in wanted.insights:
                await head.ask(insight_message(spec, CLUSTER), InsightReply)


def _tasks(
    options: EwsOptions, wanted: Scenario, cluster: EmbeddedCluster, folder: Path, persistent: bool, sdk: int
) -> list[LiveAssignment]:
    """One process publishes and one subscribes, so that neither keeps the other from the processor."""
    common: dict[str, Any] = {
        "options": plain_options(options),
        "publish_url": cluster.brokers[HEAD].url,
        "head_url": cluster.url(CLUSTER),
        "folder": str(folder),
        "persistent": persistent,
    }
    publishers = _in_turn([(spec.topic, spec.name) for spec in wanted.publishers])
    subscribers = _in_turn([(spec.pattern, spec.name) for spec in wanted.subscribers])
    tasks = [
        LiveAssignment(name="publishers", publishers=publishers[sdk:], subscribers=(), **common),
        LiveAssignment(name="subscribers", publishers=(), subscribers=subscribers[sdk:], **common),
        LiveAssignment(name="sdk_publishers", publishers=publishers[:sdk], subscribers=(), sdk=True, **common),
        LiveAssignment(name="sdk_subscribers", publishers=(), subscribers=subscribers[:sdk], sdk=True, **common),
    ]
    return [task for task in tasks if task.publishers or task.subscribers]


def _in_turn(clients: list[tuple[str, str]]) -> tuple[str, ...]:
    """The first client of each topic, then the second of each, and so on."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, str]] = []
    for topic, name in clients:
        turns.append((seen[topic], name))
        seen[topic] += 1
    return tuple(name for _, name in sorted(turns, key=lambda turn: turn[0]))


def _pids(cluster: EmbeddedCluster, workers: list[WorkerProcess]) -> dict[str, list[int]]:
    nodes = {id(cluster.node(name)): cluster.node(name) for name in cluster.brokers}.values()
    processes = [cluster.process(name).pid for name in cluster.brokers]
    return {
        "rabbitmq": [node.pid for node in nodes if isinstance(node, ChildNode) and node.pid is not None],
        "conditioners": list(cluster.conditioner_pids),
        "brokers": [pid for pid in processes if pid is not None],
    } | {worker.name: [worker.pid] for worker in workers}


async def _uplink_bytes(cluster: EmbeddedCluster) -> int:
    """What all edges have sent so far."""
    edges = [name for name, info in cluster.brokers.items() if info.kind == "edge"]
    return sum([(await cluster.conditioner(name).stats()).uplink.bytes_total for name in edges])


async def _pass_time(began_us: int, duration_s: float, report: Report) -> None:
    total = round(duration_s)
    for second in range(total + 1):
        await asyncio.sleep(max(began_us / 1e6 + min(float(second), duration_s) - time.time(), 0.0))
        report("seconds of load", second, total)
    await asyncio.sleep(max(began_us / 1e6 + duration_s - time.time(), 0.0))


async def _end(workers: list[WorkerProcess], wanted: Scenario) -> _Told:
    """Wait for what still waits, and have everybody write down what there was."""
    published: dict[str, int] = {}
    refused = 0
    for worker in workers:
        answer = await worker.ask("published", timeout_s=SLACK_S)
        published |= answer["published"]
        refused += answer["refused"]
    behind: list[str] = []
    for worker in workers:
        patience_s = wanted.settle_s
        answer = await worker.ask(
            "complete", published=published, patience_s=patience_s, timeout_s=patience_s + SLACK_S
        )
        behind += answer["behind"]
    ends: list[dict[str, Any]] = [await worker.ask("finish", timeout_s=SLACK_S) for worker in workers]
    return _Told(
        moves=[MoveSeen(*row) for end in ends for row in end["moves"]],
        places=[PlaceSeen(*row) for end in ends for row in end["places"]],
        losses=[loss for end in ends for loss in end["losses"]],
        behind=behind,
        refused=refused,
        control_sent=sum(end["control_sent"] for end in ends),
        lag_s_max=max(end["lag_s_max"] for end in ends),
    )


def _summed_up(
    options: EwsOptions, course: Course, told: _Told, machine: MachineUse, wire_share: float, wall_s: float
) -> EwsRun:
    recorder = recorded(course)
    utilizations = {(row.edge, int(row.at_s)): row.utilization for row in recorder.samples}
    found = lags(course, utilizations)
    missing = not_there_yet(course, options.burst_at_s)
    reasons = problems(found, machine, told.refused, told.behind, told.losses, missing)
    result = sum_up(options, recorder, trace_hash="", wall_s=wall_s)
    placed = {place.subscriber for place in course.places}
    never = sum(count for subscriber, count in recorder.lost_by.items() if subscriber not in placed)
    result = replace(
        result,
        backend=BACKEND,
        valid=not reasons,
        invalid_because=reasons,
        harness=_harness(found, machine, told)
        | {"wire_bytes_share": round(wire_share, 4), "lost_by_unplaced_subscribers": float(never)},
    )
    return EwsRun(options, result, recorder)


def _harness(found: Lags, machine: MachineUse, told: _Told) -> dict[str, float]:
    numbers = {
        "publish_lag_p50_s": found.publish_p50_s,
        "publish_lag_p999_s": found.publish_p999_s,
        "publish_lag_max_s": found.publish_max_s,
        "worker_lag_max_s": told.lag_s_max,
        "added_latency_p50_s": found.added_p50_s,
        "added_latency_p99_s": found.added_p99_s,
        "cpu_busy_share": machine.busy_share,
        "cpu_steal_share": machine.steal_share,
    }
    numbers |= {f"cpu_{name}_cores": share for name, share in machine.cpu_shares.items()}
    return {name: round(value, 4) for name, value in numbers.items()}
