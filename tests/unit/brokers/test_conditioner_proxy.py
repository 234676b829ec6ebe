"""The link conditioner between a client and an echo server: what a connection sees of each command."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.connections import Connections, Streams, echo_server, port_of
from tests.support.waiting import eventually
from tidegate_brokers.errors import ConditionerRefused, EmbeddedError
from tidegate_embedded.conditioner import Conditioner, ConditionerConfig
from tidegate_embedded.conditioner_client import ConditionerClient
from tidegate_embedded.guard import Guard
from tidegate_embedded.ports import Ports
from tidegate_embedded.proxy import ListenerConfig

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Bench:
    client: ConditionerClient
    port: int
    outgoing_port: int
    server: asyncio.Server
    connections: Connections

    async def connect(self, port: int | None = None) -> Streams:
        return await self.connections.open(LOOPBACK, port or self.port)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A conditioner process as the cluster starts it, before an echo server."""
    with contextlib.closing(Ports()) as ports:
        port, outgoing = ports.free(), ports.free()
        async with echo_server(LOOPBACK) as server, Guard() as guard, Connections() as connections:
            target = port_of(server)
            control, file = guard.directory / "c.sock", guard.directory / "c.json"
            listeners = (
                ListenerConfig("client", port, LOOPBACK, target),
                ListenerConfig("to:x", outgoing, LOOPBACK, target, outgoing=True),
            )
            file.write_text(ConditionerConfig("edge", LOOPBACK, str(control), None, None, listeners).to_json())
            argv = [sys.executable, "-m", "tidegate_embedded.conditioner", str(file)]
            await guard.spawn("conditioner", argv, log=guard.directory / "log")
            client = ConditionerClient("edge", control)

            async def is_up() -> bool:
                try:
                    await client.stats()
                except EmbeddedError:
                    return False
                return True

            await eventually(is_up, "the conditioner answers")
            yield Bench(client, port, outgoing, server, connections)


async def ask(streams: Streams, text: bytes) -> bytes:
    streams[1].write(text)
    return await asyncio.wait_for(streams[0].readexactly(len(text)), 20)


async def test_bytes_arrive_unchanged_and_are_counted_by_direction(bench: Bench) -> None:
    data = random.Random(3).randbytes(3_000_000)
    reader, writer = await bench.connect()
    writer.write(data)
    assert hashlib.sha256(await reader.readexactly(len(data))).digest() == hashlib.sha256(data).digest()
    outgoing = await bench.connect(bench.outgoing_port)
    writer.close()
    await ask(outgoing, b"12345")
    stats = await bench.client.stats()
    assert (stats.downlink.bytes_total, stats.uplink.bytes_total) == (len(data) + 5, len(data) + 5)
    assert stats.listeners["to:x"].connections == 1
    outgoing[1].close()

    async def all_closed() -> bool:
        return (await bench.client.stats()).connections == 0

    await eventually(all_closed, "closed connections are forgotten")


async def test_an_end_of_stream_passes_behind_the_data(bench: Bench) -> None:
    await bench.client.set_uplink(200_000)
    reader, writer = await bench.connect()
    writer.write(bytes(50_000))
    writer.write_eof()
    assert len(await asyncio.wait_for(reader.read(-1), 20)) == 50_000


async def test_one_bandwidth_holds_for_all_connections_and_slows_the_sender(bench: Bench) -> None:
    await bench.client.set_downlink(50_000)
    writers = [(await bench.connect())[1] for _ in range(3)]
    for writer in writers:
        writer.write(bytes(8_000_000))  # more than the kernel keeps for a sender

    async def is_full() -> bool:
        return (await bench.client.stats()).downlink.queued_bytes >= 200_000

    await eventually(is_full, "the queue of the lane fills")
    stats = await bench.client.stats()
    # 4 s of bandwidth, and what three sockets had under way when it was full; the rest stays with the sender.
    assert stats.downlink.queued_bytes < 200_000 + 3 * 16 * 1024
    assert all(writer.transport.get_write_buffer_size() > 0 for writer in writers)
    for writer in writers:
        writer.transport.abort()

    async def is_empty() -> bool:
        return (await bench.client.stats()).connections == 0

    await bench.client.set_downlink(None)
    await eventually(is_empty, "what the gone connections left is dropped or delivered")


async def test_a_delay_is_at_least_what_was_asked_for(bench: Bench) -> None:
    await bench.client.set_delay(0.05, "client")
    loop = asyncio.get_running_loop()
    streams = await bench.connect()
    for _ in range(3):
        began = loop.time()
        await ask(streams, b"ping")
        # Less would be wrong on any machine; how much more is for the benchmarks.
        assert loop.time() - began >= 0.1 - 0.002
    assert (await bench.client.stats()).listeners["to:x"].delay_s == 0


async def test_a_stall_holds_everything_and_loses_nothing(bench: Bench) -> None:
    old = await bench.connect()
    await ask(old, b"before")
    await bench.client.stall("client")
    new = await bench.connect()
    old[1].write(b"held")
    new[1].write(b"too")
    other = await bench.connect(bench.outgoing_port)
    assert await ask(other, b"this listener goes on") == b"this listener goes on"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(old[0].readexactly(1), 0.2)
    await bench.client.resume()
    assert await asyncio.wait_for(old[0].readexactly(4), 20) == b"held"
    assert await asyncio.wait_for(new[0].readexactly(3), 20) == b"too"


async def test_a_cut_closes_and_refuses_until_restored(bench: Bench) -> None:
    streams = await bench.connect()
    await ask(streams, b"before")
    await bench.client.cut("client")
    with contextlib.suppress(ConnectionResetError):  # just as good
        assert await asyncio.wait_for(streams[0].read(1), 20) == b""
    with pytest.raises(ConnectionRefusedError):
        await bench.connect()
    await ask(await bench.connect(bench.outgoing_port), b"other listeners stay")
    await bench.client.restore()
    assert await ask(await bench.connect(), b"again") == b"again"


async def test_a_reset_is_one(bench: Bench) -> None:
    streams = await bench.connect()
    await ask(streams, b"before")
    await bench.client.reset()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(streams[0].readexactly(1), 20)
    assert await ask(await bench.connect(), b"again") == b"again"


async def test_a_target_that_is_gone_resets_the_caller(bench: Bench) -> None:
    bench.server.close()
    with pytest.raises(ConnectionResetError):
        await _connect_and_read(bench)


async def _connect_and_read(bench: Bench) -> bytes:
    """On a busy machine a reset may be there before the caller has looked whether it is connected."""
    reader, _ = await bench.connect()
    return await asyncio.wait_for(reader.readexactly(1), 20)


@pytest.mark.parametrize(
    "command",
    [
        {"do": "dance"},
        {"do": "cut", "listener": "nowhere"},
        {"do": "set_bandwidth", "lane": "uplink", "bytes_per_s": 0},
        {"do": "set_bandwidth", "lane": "sideways", "bytes_per_s": 1},
        {"do": "set_delay", "delay_s": -1},
        {"do": "set_delay", "delay_s": "long"},
        {},
        [],
    ],
    ids=json.dumps,
)
async def test_a_command_that_makes_no_sense_is_refused(command: object) -> None:
    config = ConditionerConfig("e", LOOPBACK, "", None, None, (ListenerConfig("client", 0, LOOPBACK, 1),))
    with pytest.raises((ValueError, KeyError, TypeError)):
        await Conditioner(config).command(command)  # type: ignore[arg-type]


async def test_a_door_that_something_else_listens_on_is_opened_when_it_is_free() -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        door = ListenerConfig("client", taken.getsockname()[1], LOOPBACK, 1)
        conditioner = Conditioner(ConditionerConfig("e", LOOPBACK, "", None, None, (door,)))
        with pytest.raises(OSError, match="in use"):
            await conditioner.open()
    with contextlib.closing(conditioner):
        assert await conditioner.command({"do": "restore"}) == {}


async def test_a_refused_command_harms_nobody(bench: Bench) -> None:
    with pytest.raises(ConditionerRefused, match="delay_s must be 0 or more"):
        await bench.client.set_delay(-1)
    assert await ask(await bench.connect(), b"alive") == b"alive"


async def test_a_conditioner_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="does not answer"):
        await ConditionerClient("edge", tmp_path / "none.sock").stats()


def test_a_reserved_port_is_given_to_nobody_else_but_its_server() -> None:
    with contextlib.closing(Ports()) as ports:
        port = ports.free()
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind((LOOPBACK, port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((LOOPBACK, port))
            server.listen()
