"""Throughput of a path from a head to an edge: Tidegate's, a bare shovel's, exchange federation's.

All three run between the same two RabbitMQ nodes, fed by the same publisher, round after round in turn. A path's rate
is the number of messages over the time from the first write until the last message is ready in the queue at the far
end; nobody consumes there, so that no client takes part.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import httpx

from tidegate_embedded.cluster import BrokerInfo
from tidegate_protocol.names import PUBLISH_EXCHANGE

from .flood import Flood, channel_to, wait_for_depth

BODY_BYTES: Final = 400
TOPIC: Final = "bench.path"
_TIMEOUT_S: Final = 120.0
_NAME: Final = "bench"


@dataclass(frozen=True, slots=True)
class Path:
    """A way from the head's RabbitMQ to `queue` on the edge's."""

    name: str
    exchange: str
    routing_key: str
    queue: str
    head_url: str
    edge_url: str


async def measure(path: Path, count: int) -> float:
    """Messages per second of one round; the queue at the end is empty before and after."""
    async with Flood.to(path.head_url) as flood, channel_to(path.edge_url) as channel:
        await channel.queue_purge(path.queue)
        began = time.perf_counter()
        await flood.publish(path.exchange, path.routing_key, count, BODY_BYTES)
        await wait_for_depth(channel, path.queue, count, _TIMEOUT_S)
        seconds = time.perf_counter() - began
        await channel.queue_purge(path.queue)
        return count / seconds


def tidegate_path(head: BrokerInfo, edge: BrokerInfo, queue: str) -> Path:
    """Through the cluster, to the output queue of a subscription to `TOPIC`."""
    return Path("tidegate", PUBLISH_EXCHANGE, TOPIC, queue, head.url, edge.url)


async def shovel_path(head: BrokerInfo, edge: BrokerInfo) -> Path:
    """A bare shovel from one queue to another, with the settings that Tidegate's links use."""
    source, target = "bench.shovel.source", "bench.shovel.target"
    for url, queue in ((head.url, source), (edge.url, target)):
        async with channel_to(url) as channel:
            await channel.queue_declare(queue, durable=True)
    parameter = {
        "src-protocol": "amqp091",
        "src-uri": head.url,
        "src-queue": source,
        "dest-protocol": "amqp091",
        "dest-uri": edge.url,
        "dest-queue": target,
        "ack-mode": "on-confirm",
    }
    await _put(head, "parameters/shovel", {"value": parameter})
    path = Path("shovel", "", source, target, head.url, edge.url)
    await _until_it_flows(path)
    return path


async def federation_path(head: BrokerInfo, edge: BrokerInfo) -> Path:
    """Exchange federation: the edge's exchange draws from the head's."""
    exchange, target = "bench.federated", "bench.federated.target"
    async with channel_to(head.url) as upstream_end, channel_to(edge.url) as channel:
        for end in (upstream_end, channel):
            await end.exchange_declare(exchange, exchange_type="topic", durable=True)
        await channel.queue_declare(target, durable=True)
        await channel.queue_bind(target, exchange, routing_key=TOPIC)
    upstream = {"uri": head.url, "ack-mode": "on-confirm"}
    await _put(edge, "parameters/federation-upstream", {"value": upstream})
    definition = {"federation-upstream": _NAME}
    await _put(edge, "policies", {"pattern": f"^{exchange}$", "definition": definition, "apply-to": "exchanges"})
    path = Path("federation", exchange, TOPIC, target, head.url, edge.url)
    await _until_it_flows(path)
    return path


async def _put(broker: BrokerInfo, kind: str, value: dict[str, object]) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.put(
            f"{broker.management_url}/api/{kind}/{quote(broker.vhost, safe='')}/{_NAME}", json=value
        )
        answer.raise_for_status()


async def _until_it_flows(path: Path) -> None:
    """A shovel or a federation link takes a moment to connect: send single messages until one arrives."""
    async with (
        asyncio.timeout(_TIMEOUT_S),
        Flood.to(path.head_url) as flood,
        channel_to(path.edge_url) as channel,
    ):
        while True:
            await flood.publish(path.exchange, path.routing_key, 1, BODY_BYTES)
            try:
                await wait_for_depth(channel, path.queue, 1, timeout_s=1.0)
                return
            except TimeoutError:
                continue
