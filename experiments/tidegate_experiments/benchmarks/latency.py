"""What the way through head and edge adds to the latency of a message, over a direct publish on one RabbitMQ.

Both ways carry single messages, in turn, from the same process and with the same client, so that only the path differs.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiormq

from .flood import channel_to

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

    def __init__(self, route: Route, channel: aiormq.abc.AbstractChannel) -> None:
        self._route = route
        self._channel = channel
        self._arrived: asyncio.Queue[float] = asyncio.Queue(maxsize=1)

    @classmethod
    @asynccontextmanager
    async def on(cls, route: Route) -> AsyncIterator[_Probe]:
        """A probe on two connections of its own, closed afterwards."""
        async with (
            channel_to(route.publish_url, publisher_confirms=False) as publishing,
            channel_to(route.consume_url) as consuming,
        ):
            probe = cls(route, publishing)
            await consuming.queue_purge(route.queue)
            await consuming.basic_consume(route.queue, probe._take, no_ack=True)
            yield probe

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
    samples: list[list[float]] = [[], []]
    async with _Probe.on(direct) as straight, _Probe.on(path) as through:
        for _ in range(count):
            for probe, seen in zip((straight, through), samples, strict=True):
                seen.append(await probe.once() * 1000)
                await asyncio.sleep(_PAUSE_S)
    quantiles = [statistics.quantiles(seen, n=100) for seen in samples]
    return Added(quantiles[0][49], quantiles[0][98], quantiles[1][49], quantiles[1][98])
