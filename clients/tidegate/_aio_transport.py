"""Frames on their way to aiormq, made so that pamqp can read every one of them.

pamqp refuses a time beyond the year 9999 and text that is not UTF-8, and aiormq then gives up the connection. Anybody
may publish such a message (a timestamp in microseconds is enough), and RabbitMQ would deliver it again after each
reconnection. So content properties pass pamqp sealed, as one byte array, and are decoded by `_wire.decode_properties`,
as for the other client; a topic that is not UTF-8 has its bytes beyond ASCII replaced.

Nothing else is touched, and a reader has no more than one frame in hand."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any, Final, cast

from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp.header import ContentHeader

from ._wire import BASIC_DELIVER, FRAME_HEADER, FRAME_METHOD, decode_properties

if TYPE_CHECKING:
    from yarl import URL

_frame_start = struct.Struct(">BHI")
_HEADER_START: Final = 12
"""Class, weight and body size, before the content properties."""
_ONLY_HEADERS: Final = b"\x20\x00"
_seal = struct.Struct(">IBcI")
"""Length of a table, an empty name, the type of a byte array, its length."""
_SEAL_EXTRA: Final = _seal.size - 4
_REPLACEMENT: Final = ord("?")


class SealingTransport(TransportFactory):
    """Opens what aiormq would open, with a `SealingReader` in front."""

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        plain = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await plain.create(url, **options)
        return cast(asyncio.StreamReader, SealingReader(reader)), writer


class SealingReader:
    """The part of a stream reader that aiormq uses: it reads a frame in pieces of 1, 6, and the rest."""

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
                # No frame, but RabbitMQ's way to say that it speaks another version.
                self._frame = start
            else:
                length = _frame_start.unpack(start)[2]
                self._frame = readable(start, await self._reader.readexactly(length + 1))
        piece, self._frame = self._frame[:size], self._frame[size:]
        return piece


def readable(start: bytes, rest: bytes) -> bytes:
    """A frame that says the same in a form that pamqp can read; `rest` is its payload and end mark."""
    kind, channel, _ = _frame_start.unpack(start)
    if kind == FRAME_HEADER:
        properties = rest[_HEADER_START:-1]
        sealed = _ONLY_HEADERS + _seal.pack(len(properties) + _SEAL_EXTRA, 0, b"x", len(properties)) + properties
        start = _frame_start.pack(kind, channel, _HEADER_START + len(sealed))
        return start + rest[:_HEADER_START] + sealed + rest[-1:]
    if kind == FRAME_METHOD and rest.startswith(BASIC_DELIVER):
        return start + _with_readable_topic(rest)
    return start + rest


def _with_readable_topic(deliver: bytes) -> bytes:
    offset = len(BASIC_DELIVER)
    offset += 1 + deliver[offset]  # the consumer tag
    offset += 9  # delivery tag and redelivered
    offset += 1 + deliver[offset]  # the exchange
    topic = deliver[offset + 1 : -1]
    try:
        topic.decode()
    except UnicodeDecodeError:
        topic = bytes(byte if byte < 0x80 else _REPLACEMENT for byte in topic)
        return deliver[: offset + 1] + topic + deliver[-1:]
    return deliver


def unseal(header: ContentHeader) -> dict[str, Any]:
    """The content properties of a header that came through a `SealingReader`."""
    sealed = cast(dict[str, bytes], header.properties.headers)
    return decode_properties(bytes(sealed[""]), 0)
