"""Connections that do nothing, by the hundred, do not keep /healthz from answering."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from prometheus_client import CollectorRegistry, Gauge

from tests.support.waiting import eventually
from tidegate_brokers.observe import http
from tidegate_brokers.observe.http import HttpServer
from tidegate_brokers.settings.tls import Tls

ROOT = Path(__file__).parents[3]
PROMPT_CPU_S = 3.0
"""Of this process, for an answer that takes milliseconds: its own time, because the machine may be busy with others."""
PATIENCE_S = 60.0
SERIES = 5_000

Loop = Callable[[], asyncio.AbstractEventLoop]
Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def trickling(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in b"GET /healthz HTTP/1.1\r\nHost: tidegate\r\n" + b"x" * 1000:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(1)


async def unread(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    transport = writer.transport
    assert isinstance(transport, asyncio.ReadTransport)
    transport.pause_reading()
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: tidegate\r\n\r\n" * 50)
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection times out meanwhile: who is answered had to wait for none of the others."""
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 10 * PATIENCE_S)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(["sh", str(ROOT / "deploy/make-test-authority.sh"), str(folder), "head=127.0.0.1"], check=True)
    return Tls(None, str(folder / "head/cert.pem"), str(folder / "head/key.pem")).server_context()


@contextlib.asynccontextmanager
async def crowded(
    act: Act, number: int, *, returning: bool = False, tls: ssl.SSLContext | None = None, greets: bool = False
) -> AsyncIterator[HttpServer]:
    """A server with `number` connections that `act`; with `greets` they finish the handshake of TLS first."""
    registry = CollectorRegistry()
    gauge = Gauge(
        "tidegate_test", "Many, so that the text does not fit into the buffers of a socket.", ["n"], registry=registry
    )
    for n in range(SERIES):
        gauge.labels(f"{n:0100}").set(n)
    server = HttpServer(registry, list)
    await server.start("127.0.0.1", 0, tls)
    connected = 0

    async def visit() -> None:
        nonlocal connected
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await connection(server, tls=tls is not None and greets)
                connected += 1
                try:
                    await act(reader, writer)
                finally:
                    writer.transport.abort()
            if not returning:
                return

    visitors = [asyncio.create_task(visit()) for _ in range(number)]
    try:
        await eventually(lambda: connected >= number, "everybody is there", timeout_s=PATIENCE_S)
        yield server
    finally:
        for visitor in visitors:
            visitor.cancel()
        await asyncio.gather(*visitors, return_exceptions=True)
        await server.close()


@functools.cache
def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def connection(server: HttpServer, tls: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One that takes little before it is read from."""
    own = socket.socket()
    own.setblocking(False)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    try:
        await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", server.port))
        return await asyncio.open_connection(
            sock=own, ssl=trusting() if tls else None, server_hostname="127.0.0.1" if tls else None
        )
    except BaseException:
        own.close()
        raise


async def healthy(server: HttpServer, tls: bool = False) -> None:
    """/healthz answers, on a connection of its own, and soon."""
    began_s = time.process_time()
    reader, writer = await connection(server, tls)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: tidegate\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    finally:
        writer.transport.abort()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"status": "alive"}\n')
    assert time.process_time() - began_s < PROMPT_CPU_S


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("number", [64, 500])
@pytest.mark.parametrize("act", [silent, trickling, unread])
def test_connections_that_do_nothing_keep_nobody_out(act: Act, number: int, loop: Loop) -> None:
    async def scenario() -> None:
        async with crowded(act, number) as server:
            for _ in range(5):
                await healthy(server)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(("act", "greets"), [(silent, False), (silent, True), (unread, True)])
def test_nor_with_tls_before_and_after_the_handshake(act: Act, greets: bool, loop: Loop, tls: ssl.SSLContext) -> None:
    async def scenario() -> None:
        async with crowded(act, 300, tls=tls, greets=greets) as server:
            for _ in range(5):
                await healthy(server, tls=True)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


async def test_nor_when_they_come_back_as_soon_as_they_are_closed() -> None:
    async with crowded(silent, 500, returning=True) as server:
        for _ in range(5):
            await healthy(server)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("secure", [False, True])
def test_none_of_them_stays(loop: Loop, secure: bool, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.5)

    async def scenario() -> None:
        before = descriptors()
        async with crowded(unread, 20, tls=tls if secure else None, greets=secure):
            # What is left are their own ends: they do not read, so they do not see that it is over.
            await eventually(
                lambda: descriptors() <= before + 20 + 4, "the server closes its ends", timeout_s=PATIENCE_S
            )

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())
