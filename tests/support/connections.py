"""Both ends of plain TCP connections that a test plays with: whatever it does to them, none is left open after it.

They are aborted, not closed: a test may end with bytes that nobody will ever read, and a connection that still has to
send some outlives its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

READ_BYTES = 1 << 16
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Connections:
    """Opens connections, and ends all of them when it is left."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *_: object) -> None:
        await _abort(self._writers)

    async def open(self, host: str, port: int) -> Streams:
        reader, writer = await asyncio.open_connection(host, port)
        self._writers.append(writer)
        return reader, writer


@asynccontextmanager
async def echo_server(host: str) -> AsyncIterator[asyncio.Server]:
    """Says everything again, on a free port, and the end of what was said, too."""
    writers: list[asyncio.StreamWriter] = []
    echoes: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        echoes.append(asyncio.get_running_loop().create_task(_echo(reader, writer)))

    server = await asyncio.start_server(accept, host, 0)
    try:
        yield server
    finally:
        server.close()
        await _abort(writers)
        await asyncio.gather(*echoes)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # A test may end the connection in the middle of anything, which is what it is about.
    with closing(writer), suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


def port_of(server: asyncio.Server) -> int:
    port = server.sockets[0].getsockname()[1]
    assert isinstance(port, int)
    return port


async def _abort(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()
    for writer in writers:
        with suppress(OSError):  # what it was lost by; the test has seen it
            await writer.wait_closed()
