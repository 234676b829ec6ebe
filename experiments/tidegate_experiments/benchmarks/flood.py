"""A publisher that is never the bottleneck: frames are encoded once and written in blocks.

Encoding a publication in Python costs more than RabbitMQ needs to take it in, so a benchmark of paths with an ordinary
client would measure that client. Used for benchmarks only: no confirms, no reconnecting. Back-pressure is TCP's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiormq
from aiormq.abc import ChannelFrame

from tidegate_protocol.amqp.frames import FRAME_BYTES_MAX
from tidegate_protocol.amqp.methods import encode_publish
from tidegate_protocol.amqp.publications import encode_properties, encode_publication
from tidegate_protocol.ids import MessageId

_BLOCK: Final = 100
_POLL_S: Final = 0.02


class Flood:
    """One connection that publishes numbered 400-byte messages as fast as RabbitMQ takes them."""

    def __init__(self, channel: aiormq.abc.AbstractChannel) -> None:
        self._channel = channel

    @classmethod
    @asynccontextmanager
    async def to(cls, url: str) -> AsyncIterator[Flood]:
        """A flood on a connection of its own, closed afterwards."""
        async with channel_to(url, publisher_confirms=False) as channel:
            yield cls(channel)

    async def publish(
        self, exchange: str, topic: str, count: int, body_bytes: int, publisher: str | None = None
    ) -> None:
        """Write `count` persistent messages; returns when the last is handed to the socket.

        With a `publisher` they are numbered as the SDK does it, which costs encoding each; otherwise all are alike.
        """
        body = b"." * body_bytes
        block: bytes | None = None
        for first in range(0, count, _BLOCK):
            size = min(_BLOCK, count - first)
            if publisher is not None or block is None or size < _BLOCK:
                block = self._encode(exchange, topic, body, publisher, range(first, first + size))
            drained = asyncio.get_running_loop().create_future()
            await self._channel.write_queue.put(ChannelFrame(block, False, drained))  # type: ignore[attr-defined]
            await drained

    def _encode(self, exchange: str, topic: str, body: bytes, publisher: str | None, sequences: range) -> bytes:
        publish, pieces = encode_publish(exchange, topic), []
        for sequence in sequences:
            identity = "" if publisher is None else str(MessageId(publisher, topic, sequence))
            properties = encode_properties(identity, time.time_ns() // 1000, b"", persistent=True)
            pieces.append(encode_publication(self._channel.number, publish, properties, body, FRAME_BYTES_MAX))
        return b"".join(pieces)


@asynccontextmanager
async def channel_to(url: str, *, publisher_confirms: bool = True) -> AsyncIterator[aiormq.abc.AbstractChannel]:
    """A channel on a connection of its own, closed afterwards."""
    connection = await aiormq.connect(url)
    try:
        yield await connection.channel(publisher_confirms=publisher_confirms)
    finally:
        await connection.close()


async def wait_for_depth(channel: aiormq.abc.AbstractChannel, queue: str, depth: int, timeout_s: float) -> None:
    """Wait until `queue` holds `depth` messages that are ready; passive declarations answer from the queue itself."""
    async with asyncio.timeout(timeout_s):
        while True:
            declared = await channel.queue_declare(queue, passive=True)
            if (declared.message_count or 0) >= depth:
                return
            await asyncio.sleep(_POLL_S)
