"""Frames on their way to aiormq, made so that pamqp can read every one of them.

pamqp refuses a time beyond the year 9999 and text that is not UTF-8, and aiormq then gives up the connection. Anybody
may publish such a message (a timestamp in microseconds is enough), and RabbitMQ would deliver it again after each
reconnection. So content properties pass pamqp sealed, as one byte array, and are decoded by `_wire.decode_properties`,
as for the other client; a topic that is not UTF-8 has its bytes beyond ASCII replaced.

Nothing else is touched, and a reader has no more than one frame in hand.

An `EagerTransport` besides writes the whole opening of a connection at once (see `_opening.py`) and drops aiormq's own
writes of it. What the server answers beyond the opening of the connection is held back until `release`, because aiormq
throws away what comes for a channel that it does not know yet."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import aiormq
import pamqp.frame
from aiormq.auth import AuthMechanism
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp import commands as spec
from pamqp.header import ContentHeader, ProtocolHeader

from ._opening import OpeningDiffers, Tune
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
_CONNECTION_OPEN_OK: Final = b"\x00\x0a\x00\x29"


class SealingTransport(TransportFactory):
    """Opens what aiormq would open, with a `SealingReader` in front."""

    def __init__(self) -> None:
        self._stream: asyncio.StreamWriter | None = None

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._connect(url, **options)
        return cast(asyncio.StreamReader, SealingReader(reader)), writer

    async def _connect(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        plain = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, self._stream = await plain.create(url, **options)
        return reader, self._stream

    def close(self) -> None:
        """Close the socket, whatever has become of the connection: as long as it is open, RabbitMQ keeps its
        consumers, and nobody else gets their queues.
        """
        if self._stream is not None:
            self._stream.transport.close()


class EagerTransport(SealingTransport):
    """Opens a connection and writes its whole opening, then `first`: what is to be said on the first channel."""

    def __init__(self, properties: Mapping[str, Any], tune: Tune, heartbeat_s: int, vhost: str, first: bytes) -> None:
        super().__init__()
        self._properties = properties
        self._tune = tune
        self._heartbeat_s = heartbeat_s
        self._vhost = vhost
        self._first = first
        self._released = asyncio.Event()
        self.connected = False
        """Whether somebody was there at all."""

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._connect(url, **options)
        self.connected = True
        opening = self._opening(url)
        writer.write(b"".join(opening) + self._first)
        held = cast(asyncio.StreamReader, SealingReader(reader, self._released))
        return held, cast(asyncio.StreamWriter, EagerWriter(writer, opening))

    def release(self) -> None:
        """There is a channel that takes what comes next."""
        self._released.set()

    def _opening(self, url: URL) -> list[bytes]:
        # The two parts of a connection that its own methods look at; the connection itself is not at hand here.
        connection = cast(aiormq.Connection, SimpleNamespace(url=url, connection_name=None))
        start_ok = spec.Connection.StartOk(
            client_properties=aiormq.Connection._client_properties(connection, **self._properties),
            mechanism=AuthMechanism.PLAIN.name,
            response=AuthMechanism.PLAIN.value(connection).marshal(),
        )
        tune_ok = spec.Connection.TuneOk(
            channel_max=self._tune.channel_max, frame_max=self._tune.frame_max, heartbeat=self._heartbeat_s
        )
        opening = (start_ok, tune_ok, spec.Connection.Open(virtual_host=self._vhost))
        return [ProtocolHeader().marshal(), *(pamqp.frame.marshal(frame, 0) for frame in opening)]


class EagerWriter:
    """A stream writer that drops what has been written already; everything else is the stream's own."""

    def __init__(self, writer: asyncio.StreamWriter, written: list[bytes]) -> None:
        self._writer = writer
        self._written = written

    def write(self, data: bytes) -> None:
        """Drop the next part of the opening; raise `OpeningDiffers` if it is not the one expected."""
        if data != self._written[0]:
            raise OpeningDiffers(data)
        del self._written[0]
        if not self._written:
            self.write = self._writer.write  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class SealingReader:
    """The part of a stream reader that aiormq uses: it reads a frame in pieces of 1, 6, and the rest."""

    def __init__(self, reader: asyncio.StreamReader, released: asyncio.Event | None = None) -> None:
        self._reader = reader
        self._frame = b""
        self._released = released
        self._holding = False

    def at_eof(self) -> bool:
        return not self._frame and self._reader.at_eof()

    async def read(self, size: int = -1) -> bytes:
        return await self._reader.read(size)

    async def readexactly(self, size: int) -> bytes:
        if not self._frame:
            if self._holding:
                await self._wait_for_channel()
            start = await self._reader.readexactly(_frame_start.size)
            if start.startswith(b"AMQP"):
                # No frame, but RabbitMQ's way to say that it speaks another version.
                self._frame = start
            else:
                length = _frame_start.unpack(start)[2]
                rest = await self._reader.readexactly(length + 1)
                self._frame = readable(start, rest)
                if self._released is not None:
                    self._holding = rest.startswith(_CONNECTION_OPEN_OK)
        piece, self._frame = self._frame[:size], self._frame[size:]
        return piece

    async def _wait_for_channel(self) -> None:
        assert self._released is not None
        await self._released.wait()
        self._released, self._holding = None, False


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
