"""Accepts HTTP connections and hands each to uvicorn, within bounds on their number and their time.

uvicorn speaks HTTP and calls the application (ASGI). What it lacks is a bound on connections that do nothing:
one that never sends a byte, sends one a second, or never reads stays for ever, and its limit on concurrency
refuses everybody once such connections have filled it. So the sockets are accepted here. A connection is a
task with a time limit, from its first moment, TLS handshake included; where there are too many the oldest is
closed, so that the newest is always answered.

Invariant: at most `connections_max` connections, none older than `connection_timeout_s`, none that has sent more
than `request_bytes_max`.

Must not know: paths, answers, metrics.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

log = logging.getLogger(__name__)

Application = Callable[[dict[str, Any], Callable[..., Awaitable[Any]], Callable[..., Awaitable[Any]]], Awaitable[None]]
"""An ASGI application: scope, receive, send."""

BACKLOG: Final = 128
SEND_BUFFER_BYTES: Final = 128 << 10
"""What the kernel keeps for a reader that does not read; left to itself it would keep megabytes."""
ACCEPTED_PER_TURN: Final = 16
"""Connections accepted in one turn of the event loop; far fewer than any `connections_max`."""
ACCEPT_RETRY_S: Final = 0.1
"""How long to wait when a connection can't be accepted, because the process has no file descriptor left."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a door lets in."""

    connections_max: int
    connection_timeout_s: float
    request_bytes_max: int
    """All that a connection may send."""


class Door:
    """Listens until closed."""

    def __init__(self, application: Application, bounds: Bounds) -> None:
        self._bounds = bounds
        self._config = uvicorn.Config(
            application,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            h11_max_incomplete_event_size=bounds.request_bytes_max,
            proxy_headers=False,
            # Handlers are for the command line to set. What a stranger sends is no reason for a line in the log.
            log_config=None,
            log_level=logging.ERROR,
            access_log=False,
        )
        self._config.load()
        self._state = ServerState()
        self._tls: ssl.SSLContext | None = None
        self._listeners: list[socket.socket] = []
        # A dict for its order: the oldest comes first.
        self._connections: dict[asyncio.Task[None], None] = {}

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen on every address of `host`; give the port, or raise OSError."""
        self._tls = tls
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            try:
                listener = socket.create_server(address, family=family, backlog=BACKLOG)
            except OSError:
                await self.close()
                raise
            listener.setblocking(False)
            # Those that are accepted inherit it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            self._listeners.append(listener)
            self._listen(listener)
        return int(self._listeners[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and end every connection."""
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners.clear()
        # A turn of the loop before and after: one that has not begun would not close its socket, and sockets are
        # closed a turn after they have been let go.
        await asyncio.sleep(0)
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)

    def _listen(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        # A few: a crowd that is let in all at once would be pushed out again before any of it could be read.
        for _ in range(ACCEPTED_PER_TURN):
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("cannot accept an HTTP connection: %s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(ACCEPT_RETRY_S, self._listen, listener)
                return
            self._admit(accepted)

    def _admit(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if len(self._connections) >= self._bounds.connections_max:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        connection = asyncio.create_task(self._serve(accepted), name="http connection")
        self._connections[connection] = None
        connection.add_done_callback(self._forget)

    async def _serve(self, accepted: socket.socket) -> None:
        transport: asyncio.Transport | None = None
        protocol = _Connection(self._config, self._state, self._bounds.request_bytes_max)
        try:
            async with asyncio.timeout(self._bounds.connection_timeout_s):
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: protocol, accepted, ssl=self._tls
                )
                await protocol.lost
        except (OSError, TimeoutError) as error:
            log.debug("an HTTP connection ended early: %r", error)
        finally:
            if transport is None:
                accepted.close()
            else:
                # Not closed: that would wait until the other side has read everything.
                transport.abort()

    def _forget(self, connection: asyncio.Task[None]) -> None:
        self._connections.pop(connection, None)
        if not connection.cancelled() and (error := connection.exception()) is not None:
            log.error("an HTTP connection failed; this is a bug", exc_info=error)


class _Connection(H11Protocol):
    """uvicorn's connection, with something to wait for until it is gone, and a bound on what it may send."""

    def __init__(self, config: uvicorn.Config, state: ServerState, request_bytes_max: int) -> None:
        super().__init__(config, state, {})
        self._bytes_left = request_bytes_max
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        # h11 bounds only what is incomplete: headers that came in one piece may have any length.
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self.transport.abort()
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.lost.done():
            self.lost.set_result(None)
