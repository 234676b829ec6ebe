"""A TCP proxy that counts turns: how often a client had to speak again after the server had spoken.

Turns are round trips without a clock: what is written at once is one turn however many packets it takes, since the
server's words in between are what separates two. The proxy may also change what a server says, or be one that does not
like what the client does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress

READ_BYTES = 65_536


class TurnsProxy:
    """Passes bytes on. `alter` is given each piece of the server's, `tolerates` each piece of the client's."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self.turns: list[int] = []
        """Per connection, in order of arrival."""
        self.alter: Callable[[bytes], bytes] = bytes
        self.tolerates: Callable[[bytes], bool] = bool
        self.port = 0

    async def _serve(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        with closing(near_out):
            far, far_out = await asyncio.open_connection(*self._target)
            with closing(far_out):
                await self._pass_on(near, near_out, far, far_out)

    async def _pass_on(
        self,
        near: asyncio.StreamReader,
        near_out: asyncio.StreamWriter,
        far: asyncio.StreamReader,
        far_out: asyncio.StreamWriter,
    ) -> None:
        number = len(self.turns)
        self.turns.append(0)
        client_spoke = False

        async def forward() -> None:
            nonlocal client_spoke
            while data := await near.read(READ_BYTES):
                if not client_spoke:
                    self.turns[number] += 1
                client_spoke = True
                if not self.tolerates(data):
                    near_out.transport.abort()
                    break
                far_out.write(data)
            far_out.close()

        async def backward() -> None:
            nonlocal client_spoke
            while data := await far.read(READ_BYTES):
                client_spoke = False
                near_out.write(self.alter(data))
            near_out.close()

        await asyncio.gather(forward(), backward(), return_exceptions=True)

    def accept(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        """Serve one connection, in a task of its own."""
        task = asyncio.get_running_loop().create_task(self._serve(near, near_out))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def turns_proxy(host: str, port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[TurnsProxy]:
    """A proxy to `host`:`port` on a port of its own; with `tls` it speaks TLS to its clients."""
    proxy = TurnsProxy(host, port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0, ssl=tls)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
