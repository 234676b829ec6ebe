"""A lean AMQP connection: one socket, one channel, opened in one round trip.

It tells its owner, by callbacks, of deliveries, of every other method, and once of its end. Invariants: after
the end nothing more is told; nothing is told before the callbacks are set; a connection that its owner closes ends
without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from pamqp import base, commands

from tidegate_protocol.amqp.content import read_body_size
from tidegate_protocol.amqp.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, BadFrame, FrameReader
from tidegate_protocol.amqp.methods import BASIC_DELIVER, read_deliver

from .codec import Address, opening, read_method

CONNECT_TIMEOUT_S: Final = 10.0
NOT_FOUND: Final = 404

Delivered = Callable[[int, str, bytes, bytes], None]
"""Delivery tag, routing key, content header, body."""
Told = Callable[[base.Frame], None]
Lost = Callable[[bool, str], None]
"""Whether the queue is gone, and what happened."""


class LeanConnection(asyncio.Protocol):
    """One connection with one channel."""

    def __init__(self, delivered: Delivered, told: Told, lost: Lost) -> None:
        self._delivered = delivered
        self._told = told
        self._lost = lost
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._ended = False
        self._tag = 0
        self._key = ""
        self._header = b""
        self._returned: commands.Basic.Return | None = None
        self._body: list[bytes] = []
        self._left = 0
        self.opened = b""

    async def connect(self, address: Address, name: str, *methods: base.Frame) -> None:
        """Connect and write the whole opening; what becomes of it is told by callbacks."""
        loop = asyncio.get_running_loop()
        self.opened = opening(address, name, *methods)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: self, address.host, address.port)
        except (OSError, TimeoutError) as error:
            self._end(False, f"can't be reached: {error}")

    def write(self, data: bytes) -> None:
        """Send, unless the connection has ended."""
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    def close(self) -> None:
        """End it without a word to the owner; what was written is sent."""
        self._ended = True
        if self._transport is not None:
            self._transport.close()

    @property
    def is_up(self) -> bool:
        return self._transport is not None and not self._ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._ended:
            self._transport.abort()
            return
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.write(self.opened)

    def data_received(self, data: bytes) -> None:
        try:
            for kind, payload in self._reader.feed(data):
                if self._ended:
                    return
                self._frame(kind, payload)
        except BadFrame as error:
            self._end(False, str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(False, str(exc) if exc else "closed by the other side")

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == FRAME_METHOD:
            if payload.startswith(BASIC_DELIVER):
                self._tag, _, self._key = read_deliver(payload)
                self._returned = None
            else:
                self._method(read_method(payload))
        elif kind == FRAME_HEADER:
            self._header, self._left = payload, read_body_size(payload)
            self._body = []
            if not self._left:
                self._complete(b"")
        elif kind == FRAME_BODY:
            self._left -= len(payload)
            if self._left <= 0 and not self._body:
                self._complete(payload)
                return
            self._body.append(payload)
            if self._left <= 0:
                self._complete(b"".join(self._body))

    def _complete(self, body: bytes) -> None:
        if self._returned is None:
            self._delivered(self._tag, self._key, self._header, body)

    def _method(self, one: base.Frame) -> None:
        match one:
            case commands.Channel.Close() | commands.Connection.Close():
                self._end(one.reply_code == NOT_FOUND, f"{one.reply_code} {one.reply_text}")
            case commands.Basic.Cancel():
                self._end(True, "the queue was deleted")
            case commands.Basic.Return():
                self._returned = one
            case commands.Connection.Start() | commands.Connection.Tune() | commands.Connection.OpenOk():
                pass  # answered before they came
            case _:
                self._told(one)

    def _end(self, gone: bool, problem: str) -> None:
        if self._ended:
            return
        self._ended = True
        if self._transport is not None:
            self._transport.close()
        self._lost(gone, problem)


def nothing(*_: Any) -> None:
    """A callback that is not interested."""
