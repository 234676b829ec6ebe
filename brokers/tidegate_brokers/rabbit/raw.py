"""Messages passed on as they are: a connection that gives and takes content properties and routing keys as bytes.

AMQP libraries decode properties and encode them again. That would change a message, or fail on one that a client has
made to fail (`tidegate_protocol.amqp.rewriting`). Whoever passes messages on for others (`links.relay`, `links.
quarantine`) must do neither, so the properties pass aiormq sealed in one byte array, together with the routing key, and
publications are written as ready-made frames.

Invariant: what is published is byte for byte what was taken, but for the cut of the body into frames.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import aiormq
import aiormq.exceptions
from aiormq.abc import AbstractConnection, ChannelFrame, ConfirmationFrameType, DeliveredMessage
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp import commands as spec

from tidegate_protocol.amqp.content import CONTENT_START_BYTES, HEADERS
from tidegate_protocol.amqp.frames import FRAME_OVERHEAD
from tidegate_protocol.amqp.methods import BASIC_DELIVER, encode_publish_key, read_deliver_key
from tidegate_protocol.amqp.publications import encode_publication
from tidegate_protocol.amqp.rewriting import RewritingReader

from ..settings.urls import ServerUrl
from .connection import open_connection

if TYPE_CHECKING:
    from yarl import URL

_ONLY_HEADERS: Final = HEADERS.to_bytes(2, "big")
_PROPERTIES, _KEY = "p", "k"
_entry = struct.Struct(">BccI")
"""Length of a name of one letter, the name, the type of a byte array, its length."""
WRITE_PAUSE_S: Final = 0.002
LOST: Final = 0
"""In place of a code: the connection went without a word from RabbitMQ."""


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A message with its routing key and its content properties as they are on the wire."""

    key: bytes
    properties: bytes
    body: bytes


class RawTransport(TransportFactory):
    """Opens what aiormq would open, with a `RawReader` in front."""

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        factory = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await factory.create(url, **options)
        return cast(asyncio.StreamReader, RawReader(reader)), writer


class RawReader(RewritingReader):
    """Seals the content properties of a delivery with its routing key. One consumer per connection."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader, self._seal)
        self._key = b""
        self._read_rest = self._note_key

    async def _note_key(self, size: int) -> bytes:
        rest = await self._reader.readexactly(size)
        if rest.startswith(BASIC_DELIVER):
            self._key = read_deliver_key(rest)
        return rest

    def _seal(self, properties: bytes) -> bytes:
        table = b"".join(
            _entry.pack(1, name.encode(), b"x", len(value)) + value
            for name, value in ((_PROPERTIES, properties), (_KEY, self._key))
        )
        return _ONLY_HEADERS + len(table).to_bytes(4, "big") + table


def unseal(delivered: DeliveredMessage) -> RawMessage:
    """The message of a delivery that came through a `RawReader`."""
    sealed = cast(dict[str, bytes], delivered.header.properties.headers)
    return RawMessage(bytes(sealed[_KEY]), bytes(sealed[_PROPERTIES]), delivered.body)


async def open_raw(url: ServerUrl, label: str) -> AbstractConnection:
    """Open a connection whose deliveries are to be unsealed, or raise an error of `errors.py`."""
    return await open_connection(url, label, transport=RawTransport())


Confirmed = Callable[[int, bool, bool], None]
"""Number of a publication, whether all before it are meant too, whether RabbitMQ took it."""


class RawChannel(aiormq.Channel):
    """A channel on which publications are written as frames and confirmed to a callback."""

    def __init__(self, connection: AbstractConnection, confirmed: Confirmed) -> None:
        number = next(number for number in range(1, 65_536) if number not in connection.channels)
        super().__init__(connection, number, publisher_confirms=True)
        connection.channels[number] = self
        self._confirmed = confirmed
        self.published = 0
        """How many publications were written: the number of the last one."""
        self._refused = False
        """Whether RabbitMQ has closed it. What is written behind the answer to that would end the whole connection."""

    def fits(self, message: RawMessage) -> bool:
        """Whether the content header fits a frame of this connection: AMQP can't split one."""
        frame_max = self.connection.connection_tune.frame_max
        return not frame_max or CONTENT_START_BYTES + len(message.properties) + FRAME_OVERHEAD <= frame_max

    async def publish(self, exchange: str, message: RawMessage) -> int:
        """Write a publication; returns its number. On a channel that RabbitMQ has closed it is not written."""
        frame_max = self.connection.connection_tune.frame_max or len(message.body) + FRAME_OVERHEAD
        publish = encode_publish_key(exchange, message.key)
        payload = encode_publication(self.number, publish, message.properties, message.body, frame_max)
        self.published += 1
        number = self.published
        while self.write_queue.full() and not self.is_closed:
            await asyncio.sleep(WRITE_PAUSE_S)
        if not self._refused and not self.is_closed:
            self.write_queue.put_nowait(ChannelFrame(payload=payload, should_close=False))
        return number

    async def _on_close_frame(self, frame: spec.Channel.Close) -> None:
        self._refused = True
        await super()._on_close_frame(frame)

    async def _on_confirm_frame(self, frame: ConfirmationFrameType) -> None:
        assert frame.delivery_tag is not None
        multiple = bool(getattr(frame, "multiple", False))
        self._confirmed(frame.delivery_tag, multiple, isinstance(frame, spec.Basic.Ack))


@dataclass(frozen=True, slots=True)
class Closed:
    """Why a channel was closed: RabbitMQ's code (`LOST` if there is none) and its text."""

    code: int
    text: str


def closed_by(channel: RawChannel) -> Closed:
    """Why a channel that is closed is closed: an error of its own, or of its connection."""
    for closing in (channel.closing, channel.connection.closing):
        error = closing.exception() if closing.done() and not closing.cancelled() else None
        for kind, code in _CODES.items():
            if isinstance(error, kind):
                return Closed(code, str(error))
    return Closed(LOST, "the connection was lost")


_CODES: Final[dict[type[BaseException], int]] = {
    aiormq.exceptions.ChannelAccessRefused: 403,
    aiormq.exceptions.ChannelNotFoundEntity: 404,
    aiormq.exceptions.ChannelLockedResource: 405,
    aiormq.exceptions.ChannelPreconditionFailed: 406,
    aiormq.exceptions.ConnectionFrameError: 501,
    aiormq.exceptions.ConnectionSyntaxError: 502,
    aiormq.exceptions.ConnectionUnexpectedFrame: 505,
    aiormq.exceptions.ConnectionInternalError: 541,
}
