"""A stream reader in front of aiormq that hands out frames which pamqp can read.

pamqp refuses a time beyond the year 9999, text that is not UTF-8 and tables that are nested deep, and aiormq then gives
up the connection. Anybody who may publish can send such a message (a timestamp in microseconds is enough), and RabbitMQ
would deliver it again after each reconnection. So content properties are rewritten by a function of the reader's owner,
and a routing key that is not UTF-8 has its bytes beyond ASCII replaced. All other frames pass as they are.

Invariant: a reader has no more than one frame in hand.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from .content import CONTENT_START_BYTES
from .frames import FRAME_HEADER, FRAME_METHOD, FRAME_START_BYTES, PROTOCOL_NAME, pack_frame_start, unpack_frame_start
from .methods import BASIC_DELIVER, readable_deliver

Rewrite = Callable[[bytes], bytes]
"""From content properties to those that the library reads."""


class Reader(Protocol):
    """The part of a stream reader that is used."""

    def at_eof(self) -> bool: ...

    async def read(self, n: int = -1) -> bytes: ...

    async def readexactly(self, n: int) -> bytes: ...


class RewritingReader:
    """The part of a stream reader that aiormq uses: it reads a frame in pieces of 1, 6, and the rest."""

    def __init__(self, reader: Reader, rewrite: Rewrite) -> None:
        self._reader = reader
        self._rewrite = rewrite
        self._frame = b""
        # A subclass may read one of the two parts of a frame in another way.
        self._read_start: Callable[[int], Awaitable[bytes]] = reader.readexactly
        self._read_rest: Callable[[int], Awaitable[bytes]] = reader.readexactly

    def at_eof(self) -> bool:
        return not self._frame and self._reader.at_eof()

    async def read(self, size: int = -1) -> bytes:
        return await self._reader.read(size)

    async def readexactly(self, size: int) -> bytes:
        if not self._frame:
            start = await self._read_start(FRAME_START_BYTES)
            if start.startswith(PROTOCOL_NAME):
                self._frame = start
            else:
                rest = await self._read_rest(unpack_frame_start(start)[2] + 1)
                self._frame = rewrite_frame(start, rest, self._rewrite)
        piece, self._frame = self._frame[:size], self._frame[size:]
        return piece


def rewrite_frame(start: bytes, rest: bytes, rewrite: Rewrite) -> bytes:
    """A frame that says the same in a form that pamqp can read; `rest` is its payload and end mark."""
    kind, channel, _ = unpack_frame_start(start)
    if kind == FRAME_HEADER:
        properties = rewrite(rest[CONTENT_START_BYTES:-1])
        start = pack_frame_start(kind, channel, CONTENT_START_BYTES + len(properties))
        return start + rest[:CONTENT_START_BYTES] + properties + rest[-1:]
    if kind == FRAME_METHOD and rest.startswith(BASIC_DELIVER):
        return start + readable_deliver(rest)
    return start + rest
