"""Frames on their way to aiormq, changed so that pamqp can read every one of them.

Content properties pass pamqp sealed, as one byte array, and are decoded by `tidegate_protocol.amqp.content`, as in the
synchronous client. `tidegate_protocol.amqp.rewriting` says what pamqp refuses.

An `EagerTransport` also writes the whole opening of a connection at once (`_core.opening`) and drops aiormq's own
writes of it. It holds back what the server answers beyond the opening of the connection until `release`, because
aiormq throws away frames for a channel that it does not know yet.
"""

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

from tidegate_protocol.amqp.content import HEADERS, decode_properties
from tidegate_protocol.amqp.methods import CONNECTION_OPEN_OK
from tidegate_protocol.amqp.rewriting import RewritingReader

from .._core.opening import OpeningDiffers, Tune

if TYPE_CHECKING:
    from yarl import URL

_ONLY_HEADERS: Final = HEADERS.to_bytes(2, "big")
_seal = struct.Struct(">IBcI")
"""Length of a table, an empty name, the type of a byte array, its length."""
_SEAL_EXTRA: Final = _seal.size - 4


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
        """Close the socket, in whatever state the connection is: as long as the socket is open, RabbitMQ keeps its
        consumers, and no other consumer gets their queues.
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
        """Whether a server answered at all."""

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
        mechanism = AuthMechanism[url.query.get("auth", AuthMechanism.PLAIN.name).upper()]
        start_ok = spec.Connection.StartOk(
            client_properties=aiormq.Connection._client_properties(connection, **self._properties),
            mechanism=mechanism.name,
            response=mechanism.value(connection).marshal(),
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


class SealingReader(RewritingReader):
    """Seals content properties; holds back what follows the opening of the connection, if there is a `released`."""

    def __init__(self, reader: asyncio.StreamReader, released: asyncio.Event | None = None) -> None:
        super().__init__(reader, seal)
        if released is not None:
            self._released = released
            self._read_rest = self._watch_for_opened

    async def _watch_for_opened(self, size: int) -> bytes:
        rest = await self._reader.readexactly(size)
        if rest.startswith(CONNECTION_OPEN_OK):
            self._read_start, self._read_rest = self._start_when_released, self._reader.readexactly
        return rest

    async def _start_when_released(self, size: int) -> bytes:
        await self._released.wait()
        self._read_start = self._reader.readexactly
        return await self._read_start(size)


def seal(properties: bytes) -> bytes:
    """Content properties as one byte array, which holds the given properties."""
    return _ONLY_HEADERS + _seal.pack(len(properties) + _SEAL_EXTRA, 0, b"x", len(properties)) + properties


def unseal(header: ContentHeader) -> dict[str, Any]:
    """The content properties of a header that came through a `SealingReader`."""
    sealed = cast(dict[str, bytes], header.properties.headers)
    properties = bytes(sealed[""])
    return decode_properties(properties, 0, len(properties))
