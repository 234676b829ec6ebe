"""What the way through head and edge adds to the latency of a message, over a direct publish on one RabbitMQ.

Both ways carry single messages, in turn, from the same process and with the same client, so that only the path differs.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from typing import Final

import aiormq

_BODY: Final = b"." * 400
_PAUSE_S: Final = 0.002
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Route:
    """Where to publish, and where what was published comes out."""

    publish_url: str
    exchange: str
    routing_key: str
    consume_url: str
    queue: str


class _Probe:
    """One route with both ends open."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._arrived: asyncio.Queue[float] = asyncio.Queue(maxsize=1)
        self._connections: list[aiormq.abc.AbstractConnection] = []

    async def open(self) -> None:
        consuming = await aiormq.connect(self._route.consume_url)
        self._connections.append(consuming)
        channel = await consuming.channel()
        await channel.queue_purge(self._route.queue)
        await channel.basic_consume(self._route.queue, self._take, no_ack=True)
        publishing = await aiormq.connect(self._route.publish_url)
        self._connections.append(publishing)
        self._channel = await publishing.channel(publisher_confirms=False)

    async def once(self) -> float:
        """Seconds from publishing one persistent message until it is delivered."""
        began = time.perf_counter()
        await self._channel.basic_publish(
            _BODY,
            exchange=self._route.exchange,
            routing_key=self._route.routing_key,
            properties=aiormq.spec.Basic.Properties(delivery_mode=2),
        )
        async with asyncio.timeout(_TIMEOUT_S):
            return await self._arrived.get() - began

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def _take(self, _message: aiormq.abc.DeliveredMessage) -> None:
        await self._arrived.put(time.perf_counter())


@dataclass(frozen=True, slots=True)
class Added:
    """Milliseconds of both ways, and the difference of their quantiles."""

    direct_p50_ms: float
    direct_p99_ms: float
    path_p50_ms: float
    path_p99_ms: float

    @property
    def p50_ms(self) -> float:
        return self.path_p50_ms - self.direct_p50_ms

    @property
    def p99_ms(self) -> float:
        return self.path_p99_ms - self.direct_p99_ms


async def measure_added(direct: Route, path: Route, count: int) -> Added:
    """Send `count` messages each way, in turn."""
    probes = [_Probe(direct), _Probe(path)]
    samples: list[list[float]] = [[], []]
    try:
        for probe in probes:
            await probe.open()
        for _ in range(count):
            for probe, seen in zip(probes, samples, strict=True):
                seen.append(await probe.once() * 1000)
                await asyncio.sleep(_PAUSE_S)
    finally:
        for probe in probes:
            await probe.close()
    quantiles = [statistics.quantiles(seen, n=100) for seen in samples]
    return Added(quantiles[0][49], quantiles[0][98], quantiles[1][49], quantiles[1][98])
