"""Reads a telemetry stream over AMQP, for people and for tests, from an offset on, until the caller stops.

Reading takes nothing out of a stream.

Invariants: records come in the order of their offsets. At most `PREFETCH` are under way. Offsets below the one asked
for are never shown, although RabbitMQ sends whole chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import AMQPError, ChannelNotFoundEntity

from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.names import TELEMETRY_STREAM
from tidegate_protocol.telemetry import TelemetryRecord, decode

from ...errors import RabbitUnreachable, TelemetryUnavailable
from ...rabbit.connection import close_quietly, open_connection
from ...rabbit.frames import OFFSET_HEADER
from ...settings.urls import ServerUrl

PREFETCH: Final = 500
ACKNOWLEDGED_AT: Final = 100
EARLIEST: Final = "first"
LATEST: Final = "next"
"""What RabbitMQ calls the oldest record there is, and the next one to come."""


@dataclass(frozen=True, slots=True)
class Read:
    """One message of the stream: a record, or why it can't be read."""

    offset: int
    kind: str
    body: bytes

    @property
    def record(self) -> TelemetryRecord:
        """Raises `MalformedMessage` if it is none that this version knows."""
        return decode(self.body)

    @property
    def problem(self) -> str | None:
        """Why it can't be read, if so."""
        try:
            decode(self.body)
        except MalformedMessage as error:
            return str(error)
        return None


class TelemetryReader:
    """Records from one stream; iterate."""

    def __init__(self, where: str, first: int) -> None:
        self._where = where
        self._first = first
        self._came: asyncio.Queue[DeliveredMessage | None] = asyncio.Queue()
        self._unacknowledged = 0

    async def start(self, channel: AbstractChannel, since: str | int) -> None:
        """Begin to read at `since`: an offset, `EARLIEST` or `LATEST`."""
        channel.closing.add_done_callback(lambda _: self._came.put_nowait(None))
        try:
            await channel.basic_qos(prefetch_count=PREFETCH)
            await channel.basic_consume(TELEMETRY_STREAM, self._came.put, arguments={OFFSET_HEADER: since})
        except ChannelNotFoundEntity:
            problem = f"there is no stream {TELEMETRY_STREAM} here"
            remedy = "name a head, and start it with telemetry = true"
            raise TelemetryUnavailable(self._where, problem, remedy) from None
        except AMQPError as error:
            problem = f"the stream {TELEMETRY_STREAM} can't be read ({error})"
            raise TelemetryUnavailable(self._where, problem, "use a user with the right to read it") from None

    def __aiter__(self) -> AsyncIterator[Read]:
        return self

    async def __anext__(self) -> Read:
        """The next record; raises `RabbitUnreachable` when the connection is lost."""
        while True:
            delivered = await self._came.get()
            if delivered is None:
                remedy = "start again, with --from the last offset"
                raise RabbitUnreachable(self._where, "the connection was lost", remedy)
            await self._acknowledge(delivered)
            properties = delivered.header.properties
            offset = (properties.headers or {}).get(OFFSET_HEADER)
            if isinstance(offset, int) and offset >= self._first:
                return Read(offset, properties.message_type or "", delivered.body)

    async def _acknowledge(self, delivered: DeliveredMessage) -> None:
        """In bulk, and only what was asked for: RabbitMQ sends more for each, and no more."""
        self._unacknowledged += 1
        tag = delivered.delivery_tag
        if self._unacknowledged >= ACKNOWLEDGED_AT and tag is not None and not delivered.channel.is_closed:
            self._unacknowledged = 0
            await delivered.channel.basic_ack(tag, multiple=True, wait=False)


@asynccontextmanager
async def reading(url: ServerUrl, since: str | int) -> AsyncIterator[TelemetryReader]:
    """Read the telemetry of the head at `url`."""
    connection = await open_connection(url, "tidegate telemetry reader")
    try:
        reader = TelemetryReader(str(url), since if isinstance(since, int) else 0)
        await reader.start(await connection.channel(), since)
        yield reader
    finally:
        # Without cancelling the consumer: streams refuse what a client sends back then.
        await close_quietly(connection)
