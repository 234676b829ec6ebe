"""Content headers, cut down to what control messages need before aiormq reads them.

Anybody who may write to the control exchange can send properties that pamqp refuses to decode (a timestamp in
microseconds, text that is not UTF-8, an odd header table), and aiormq then gives up the connection. Control messages
use three properties, `correlation_id`, `reply_to` and `user_id` (which RabbitMQ has compared with the sender's
account); the rest is dropped here, unread, so that a bad message is judged by its body, counted and dropped like any
other. Everything but content headers passes as it is.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any, Final, cast

from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory

if TYPE_CHECKING:
    from yarl import URL

FRAME_HEADER: Final = 2
_frame_start = struct.Struct(">BHI")
_HEADER_START: Final = 12
"""Class, weight and body size, before the properties."""
_CORRELATION_ID: Final = 1 << 10
_REPLY_TO: Final = 1 << 9
_USER_ID: Final = 1 << 4
_KEPT: Final = _CORRELATION_ID | _REPLY_TO | _USER_ID
_PROPERTIES: Final = (
    (15, "text"), (14, "text"), (13, "table"), (12, "octet"), (11, "octet"), (10, "text"), (9, "text"), (8, "text"),
    (7, "text"), (6, "time"), (5, "text"), (4, "text"),
)  # fmt: skip
"""All properties up to the last one that is kept, by flag: their sizes have to be known to be skipped."""
_SIZES: Final = {"octet": 1, "time": 8}


class PlainTransport(TransportFactory):
    """Opens what aiormq would open, with a `PlainReader` in front."""

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        factory = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await factory.create(url, **options)
        return cast(asyncio.StreamReader, PlainReader(reader)), writer


class PlainReader:
    """The part of a stream reader that aiormq uses; holds at most one frame."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._frame = b""

    def at_eof(self) -> bool:
        return not self._frame and self._reader.at_eof()

    async def read(self, size: int = -1) -> bytes:
        return await self._reader.read(size)

    async def readexactly(self, size: int) -> bytes:
        if not self._frame:
            start = await self._reader.readexactly(_frame_start.size)
            if start.startswith(b"AMQP"):
                self._frame = start  # RabbitMQ's way to say that it speaks another version
            else:
                kind, channel, length = _frame_start.unpack(start)
                payload = await self._reader.readexactly(length + 1)
                self._frame = start + payload if kind != FRAME_HEADER else plain_header(channel, payload)
        piece, self._frame = self._frame[:size], self._frame[size:]
        return piece


def plain_header(channel: int, rest: bytes) -> bytes:
    """The same content header with no more than the three properties; `rest` is its payload and end mark."""
    properties = plain_properties(rest[_HEADER_START:-1])
    start = _frame_start.pack(FRAME_HEADER, channel, _HEADER_START + len(properties))
    return start + rest[:_HEADER_START] + properties + rest[-1:]


def plain_properties(properties: bytes) -> bytes:
    """Keep `correlation_id`, `reply_to` and `user_id` where they are ASCII, as ours always are."""
    flags = int.from_bytes(properties[:2], "big")
    offset, kept, texts = 2, 0, b""
    for bit, kind in _PROPERTIES:
        flag = 1 << bit
        if not flags & flag:
            continue
        if kind == "text":
            size = 1 + properties[offset]
        elif kind == "table":
            size = 4 + int.from_bytes(properties[offset : offset + 4], "big")
        else:
            size = _SIZES[kind]
        value = properties[offset : offset + size]
        offset += size
        if flag & _KEPT and value[1:].isascii():
            kept |= flag
            texts += value
    return kept.to_bytes(2, "big") + texts
