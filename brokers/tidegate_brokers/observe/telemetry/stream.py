"""The exchange and the stream that records are written to: the head declares them, its edges find them.

A writer publishes to a topic exchange, with the kind of the record as key. It knows no stream: an operator may bind
further queues.

Invariants:

- a stream that exists is used, whatever its limits; if they differ from the configured ones, that is logged once;
- whatever is missing (a RabbitMQ without streams, a head without telemetry) is a `TelemetryUnavailable` and nothing
  worse: the broker works without telemetry.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import AMQPError, ChannelClosed, ChannelNotFoundEntity, ChannelPreconditionFailed

from tidegate_protocol.names import TELEMETRY_EXCHANGE, TELEMETRY_STREAM

from ...errors import TelemetryUnavailable
from ...rabbit.management import Management

log = logging.getLogger(__name__)

Prepare = Callable[[AbstractConnection], Awaitable[AbstractChannel]]
"""Makes a channel to write to, with confirmations, on a fresh connection."""

EVERYTHING: Final = "#"
DELETE: Final = f"delete the queue {TELEMETRY_STREAM}, and the head declares it anew"


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What a stream keeps. RabbitMQ drops whole segments, so that up to one more may be there."""

    age_s: int
    size_bytes: int
    segment_bytes: int

    @property
    def arguments(self) -> dict[str, str | int]:
        """As RabbitMQ wants them."""
        return {
            "x-queue-type": "stream",
            "x-max-age": f"{self.age_s}s",
            "x-max-length-bytes": self.size_bytes,
            "x-stream-max-segment-size-bytes": self.segment_bytes,
        }


class HeadStream:
    """The head's side: has the exchange and the stream be there."""

    def __init__(self, where: str, management: Management, limits: StreamLimits) -> None:
        self._where = where
        self._management = management
        self._limits = limits
        self._warned = False

    async def prepare(self, connection: AbstractConnection) -> AbstractChannel:
        """Declare what is missing."""
        try:
            await self._declare(connection)
            channel = await _writing(connection)
            await channel.exchange_declare(TELEMETRY_EXCHANGE, exchange_type="topic", durable=True)
            await channel.queue_bind(TELEMETRY_STREAM, TELEMETRY_EXCHANGE, EVERYTHING)
        except AMQPError as error:
            problem, remedy = f"the telemetry stream can't be declared ({error})", "use a RabbitMQ with streams"
            raise TelemetryUnavailable(self._where, problem, f"{remedy}, or telemetry = false") from None
        return channel

    async def _declare(self, connection: AbstractConnection) -> None:
        """On a channel of its own: RabbitMQ closes it where the stream is there with other arguments."""
        channel = await connection.channel(publisher_confirms=False)
        try:
            await channel.queue_declare(TELEMETRY_STREAM, durable=True, arguments=dict(self._limits.arguments))
            await channel.close()
        except ChannelPreconditionFailed:
            await self._look()

    async def _look(self) -> None:
        """What is there instead of what was to be declared?"""
        # RabbitMQ's own words name one difference, and not that it is no stream if there is another.
        found = await self._management.queue(TELEMETRY_STREAM) or {}
        if found.get("type") != "stream":
            problem = f"the queue {TELEMETRY_STREAM} is there, and is no stream"
            raise TelemetryUnavailable(self._where, problem, DELETE)
        if not self._warned:
            self._warned = True
            there, wanted = dict(found.get("arguments") or {}), self._limits.arguments
            differences = ", ".join(
                f"{name} is {there.get(name, 'not set')} instead of {value}"
                for name, value in wanted.items()
                if there.get(name) != value
            )
            log.warning(
                "the telemetry stream has other limits than configured and is used as it is: %s. "
                "To change them, %s; the records in it are lost then",
                differences,
                DELETE,
            )


class EdgeStream:
    """An edge's side: the head's exchange, if there is one."""

    def __init__(self, where: str) -> None:
        self._where = where

    async def prepare(self, connection: AbstractConnection) -> AbstractChannel:
        """Look whether the exchange is there."""
        channel = await _writing(connection)
        try:
            await channel.exchange_declare(TELEMETRY_EXCHANGE, passive=True)
        except ChannelNotFoundEntity:
            problem = f"there is no exchange {TELEMETRY_EXCHANGE}: its head writes no telemetry, or is not up yet"
            raise TelemetryUnavailable(self._where, problem, "set telemetry = true for the head too") from None
        except ChannelClosed as error:
            problem = f"the exchange {TELEMETRY_EXCHANGE} can't be used ({error})"
            raise TelemetryUnavailable(self._where, problem, "give the user the right to write to it") from None
        return channel


async def _writing(connection: AbstractConnection) -> AbstractChannel:
    return await connection.channel(publisher_confirms=True, on_return_raises=False)
