"""`tidegate bench sensing`: what watching costs: CPU of a head, an edge and their RabbitMQ, at rest, with many queues.

One cluster of one edge, first with no subscription, then with a thousand. Nobody publishes, so whatever is used goes
into sampling, judging and signs of life. Shares are of one core, over the same number of seconds each.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

from tidegate._engine.asking import Asking
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.guardian import descendants
from tidegate_embedded.nodes import ChildNode
from tidegate_embedded.topology import Topology
from tidegate_protocol.messages import SubscribeReply, SubscribeRequest

from ..live.machine import process_s
from ..progress import Report

PER_SUBSCRIBER: Final = 500
DEADLINE_US: Final = 1_000_000
AT_ONCE: Final = 20
REQUEST_S: Final = 30.0
SETTLE_S: Final = 5.0
"""After the last subscription, until what it set off has ended."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many queues, and for how long they are watched."""

    queues: int = 1_000
    seconds: float = 20.0


async def run_sensing(size: Size, report: Report) -> dict[str, Any]:
    """Boot, watch without and with queues, and return the shares."""
    async with EmbeddedCluster(Topology.simple(clusters=1, edges=1), compact=True, progress=report) as cluster:
        kinds = {broker.kind: broker.name for broker in cluster.brokers.values()}
        pids: dict[str, int | None] = {kind: cluster.process(name).pid for kind, name in kinds.items()}
        node = cluster.node(kinds["edge"])
        pids["rabbitmq"] = node.pid if isinstance(node, ChildNode) else None
        watched = {name: pid for name, pid in pids.items() if pid is not None}
        await asyncio.sleep(SETTLE_S)
        before = await _shares(watched, size.seconds)
        await _subscribe(cluster.url(next(iter(cluster.clusters))), size.queues, report)
        await asyncio.sleep(SETTLE_S)
        after = await _shares(watched, size.seconds)
    return {
        "queues": size.queues,
        "seconds": size.seconds,
        **{f"{name}_share": round(after[name], 4) for name in sorted(watched)},
        **{f"{name}_share_without_queues": round(before[name], 4) for name in sorted(watched)},
    }


async def _subscribe(url: str, count: int, report: Report) -> None:
    """Have so many output queues made; nobody attaches to them."""
    gate = asyncio.Semaphore(AT_ONCE)
    done = 0

    async def one(head: Asking, index: int) -> None:
        nonlocal done
        async with gate:
            await head.ask(
                SubscribeRequest(
                    subscriber=f"bench-{index // PER_SUBSCRIBER}",
                    pattern=f"bench.sensing.{index}",
                    deadline_us=DEADLINE_US,
                ),
                SubscribeReply,
                REQUEST_S,
            )
        done += 1
        report("subscriptions", done, count)

    async with Asking(url) as head, asyncio.TaskGroup() as group:
        for index in range(count):
            group.create_task(one(head, index))


async def _shares(pids: dict[str, int], seconds: float) -> dict[str, float]:
    """The share of one core that each process, with its children, used over the next seconds."""
    began, used = time.monotonic(), {name: _cpu_s(pid) for name, pid in pids.items()}
    await asyncio.sleep(seconds)
    elapsed_s = time.monotonic() - began
    return {name: (_cpu_s(pid) - used[name]) / elapsed_s for name, pid in pids.items()}


def _cpu_s(pid: int) -> float:
    """CPU time of a process and of all below it, in seconds."""
    return sum(map(process_s, (pid, *descendants(pid))))
