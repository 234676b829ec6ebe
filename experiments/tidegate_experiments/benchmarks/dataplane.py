"""`tidegate bench dataplane`: what Tidegate costs over what it is made of, and gains over what RabbitMQ offers.

One run, two RabbitMQ nodes, rounds interleaved: in each round every contender has its turn, so that a slow moment of
the machine hits all of them. Ratios are medians over the rounds.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate_embedded.cluster import BrokerInfo, EmbeddedCluster
from tidegate_embedded.topology import Topology
from tidegate_protocol.names import DELIVER_EXCHANGE, PUBLISH_EXCHANGE

from ..progress import Report
from . import bare, paths, sdk
from .flood import Flood, channel_to, wait_for_depth
from .latency import Added, Route, measure_added

WINDOW: Final = 200
PREFETCH: Final = 1000
_PUBLISH_TOPIC: Final = "bench.publish"
_CONSUME_TOPIC: Final = "bench.consume"
_CONSUMER: Final = "bench-consumer"
_SINK: Final = "bench.sink"
_DIRECT: Final = "bench.direct"
_BODY: Final = b"." * paths.BODY_BYTES

Round = Callable[[], Awaitable[float]]
"""One round of one contender: messages per second."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is sent per round. Federation is given less, because it is slow and a rate is a rate."""

    rounds: int = 7
    path_messages: int = 20_000
    federation_messages: int = 5_000
    client_messages: int = 8_000
    latency_messages: int = 500


@dataclass
class Rates:
    """Messages per second, one entry per round, by contender."""

    of: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, rate: float) -> None:
        self.of.setdefault(name, []).append(rate)

    def ratio(self, ours: str, theirs: str) -> float:
        """The median over the rounds of the ratio within a round."""
        pairs = zip(self.of[ours], self.of[theirs], strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    def median(self, name: str) -> float:
        return statistics.median(self.of[name])


async def run_dataplane(size: Size, report: Report) -> dict[str, Any]:
    """Boot two nodes, run all rounds, and return the figures."""
    topology = Topology.simple(clusters=1, edges=1)
    async with EmbeddedCluster(topology, compact=False, progress=report) as cluster:
        brokers = cluster.brokers.values()
        head = next(broker for broker in brokers if broker.kind == "head")
        edge = next(broker for broker in brokers if broker.kind == "edge")
        url = cluster.url(head.cluster)
        queue = await sdk.make_queue(url, "bench-path", paths.TOPIC)
        contenders = [
            (paths.tidegate_path(head, edge, queue), size.path_messages),
            (await paths.shovel_path(head, edge), size.path_messages),
            (await paths.federation_path(head, edge), size.federation_messages),
        ]
        rates = Rates()
        for round_number in range(size.rounds):
            # Forwards and backwards in turn, so that a machine that slows down or recovers favours nobody.
            for path, count in contenders if round_number % 2 == 0 else reversed(contenders):
                rates.add(path.name, await paths.measure(path, count))
            report("paths: Tidegate, shovel, federation", round_number + 1, size.rounds)
        added = await _latency(head, edge, queue, size.latency_messages)
        await _clients(url, head, edge, size, rates, report)
        return _figures(size, rates, added)


async def _latency(head: BrokerInfo, edge: BrokerInfo, queue: str, count: int) -> Added:
    async with channel_to(head.url) as channel:
        await channel.queue_declare(_DIRECT, durable=True)
    direct = Route(head.url, "", _DIRECT, head.url, _DIRECT)
    through = Route(head.url, PUBLISH_EXCHANGE, paths.TOPIC, edge.url, queue)
    return await measure_added(direct, through, count)


async def _clients(url: str, head: BrokerInfo, edge: BrokerInfo, size: Size, rates: Rates, report: Report) -> None:
    """Publish and consume rounds of the SDK and of the bare clients, in turn."""
    count = size.client_messages
    queue = await sdk.make_queue(url, _CONSUMER, _CONSUME_TOPIC)
    to_head = (head.url, PUBLISH_EXCHANGE, _PUBLISH_TOPIC, _BODY, count, WINDOW)
    to_cluster = (url, _PUBLISH_TOPIC, _BODY, count, WINDOW)
    from_edge = (edge.url, queue, count, PREFETCH)
    from_cluster = (url, _CONSUMER, _CONSUME_TOPIC, count, PREFETCH)
    publishing: list[tuple[str, Round]] = [
        ("aio_pika_publish", lambda: bare.aio_pika_publish(*to_head)),
        ("async_publish", lambda: sdk.async_publish(*to_cluster)),
        ("pika_publish", lambda: asyncio.to_thread(bare.pika_publish, *to_head)),
        ("sync_publish", lambda: asyncio.to_thread(sdk.sync_publish, *to_cluster)),
    ]
    consuming: list[tuple[str, Round]] = [
        ("aio_pika_consume", lambda: bare.aio_pika_consume(*from_edge)),
        ("async_consume", lambda: sdk.async_consume(*from_cluster)),
        ("pika_consume", lambda: asyncio.to_thread(bare.pika_consume, *from_edge)),
        ("sync_consume", lambda: asyncio.to_thread(sdk.sync_consume, *from_cluster)),
    ]
    async with channel_to(head.url) as channel:
        await channel.queue_declare(_SINK, durable=True)
        await channel.queue_bind(_SINK, PUBLISH_EXCHANGE, routing_key=_PUBLISH_TOPIC)
        for turn in range(size.rounds):
            for name, publish in publishing:
                await channel.queue_purge(_SINK)
                rates.add(name, await publish())
            for place, (name, consume) in enumerate(consuming):
                # A publisher of its own for each, because what it has seen before the SDK takes for a repetition.
                await _fill(edge, queue, count, publisher=f"bench~{turn * len(consuming) + place}")
                rates.add(name, await consume())
            report("clients: SDK and bare pika and aio-pika", turn + 1, size.rounds)


async def _fill(edge: BrokerInfo, queue: str, count: int, publisher: str) -> None:
    async with Flood.to(edge.url) as flood, channel_to(edge.url) as channel:
        await channel.queue_purge(queue)
        await flood.publish(DELIVER_EXCHANGE, _CONSUME_TOPIC, count, paths.BODY_BYTES, publisher)
        await wait_for_depth(channel, queue, count, timeout_s=60)


def _figures(size: Size, rates: Rates, added: Added) -> dict[str, Any]:
    ratios = {
        "async_publish": rates.ratio("async_publish", "aio_pika_publish"),
        "sync_publish": rates.ratio("sync_publish", "pika_publish"),
        "async_consume": rates.ratio("async_consume", "aio_pika_consume"),
        "sync_consume": rates.ratio("sync_consume", "pika_consume"),
    }
    return {
        "rounds": size.rounds,
        "ratio_to_shovel": round(rates.ratio("tidegate", "shovel"), 3),
        "ratio_to_federation": round(rates.ratio("tidegate", "federation"), 3),
        "sdk_publish_ratio": round(min(ratios["async_publish"], ratios["sync_publish"]), 3),
        "sdk_consume_ratio": round(min(ratios["async_consume"], ratios["sync_consume"]), 3),
        "sdk_ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "added_latency_p50_ms": round(added.p50_ms, 3),
        "added_latency_p99_ms": round(added.p99_ms, 3),
        "direct_latency_p50_ms": round(added.direct_p50_ms, 3),
        "direct_latency_p99_ms": round(added.direct_p99_ms, 3),
        "messages_per_s": {name: round(rates.median(name)) for name in sorted(rates.of)},
    }
