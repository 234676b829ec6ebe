"""A link conditioner process before an echo server: what connections see of bandwidth, delay, stall, cut and reset.

Times are only ever bounded from below: a conditioner may not be faster than the link it stands for.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from tests.support.connections import Connections, Streams, echo_server, port_of
from tests.support.waiting import eventually
from tidegate_brokers.errors import ConditionerRefused, EmbeddedError
from tidegate_embedded.conditioner import ConditionerConfig
from tidegate_embedded.conditioner_client import ConditionerClient
from tidegate_embedded.guard import Guard
from tidegate_embedded.ports import LOOPBACK, Ports
from tidegate_embedded.proxy import ListenerConfig

ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Bench:
    """The conditioner, its doors, and the connections through them."""

    client: ConditionerClient
    doors: dict[str, int]
    connections: Connections

    async def connect(self, door: str = "client") -> Streams:
        return await self.connections.open(LOOPBACK, self.doors[door])

    async def raw(self, line: bytes) -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(self.client.control)
        with closing(writer):
            writer.write(line + b"\n")
            answer: dict[str, Any] = json.loads(await reader.readline())
        return answer


@asynccontextmanager
async def conditioned(
    uplink: float | None = None, downlink: float | None = None, delay_s: float = 0.0
) -> AsyncIterator[Bench]:
    """A conditioner with the doors `client` and `to:other`, both before one echo server."""
    with closing(Ports()) as ports:
        async with echo_server(LOOPBACK) as server, Guard() as guard, Connections() as connections:
            doors = {"client": ports.free(), "to:other": ports.free()}
            listeners = tuple(
                ListenerConfig(name, port, LOOPBACK, port_of(server), delay_s, outgoing=name != "client")
                for name, port in doors.items()
            )
            control, file = guard.directory / "control.sock", guard.directory / "conditioner.json"
            file.write_text(ConditionerConfig("edge", LOOPBACK, str(control), uplink, downlink, listeners).to_json())
            argv = [sys.executable, "-m", "tidegate_embedded.conditioner", str(file)]
            process = await guard.spawn("conditioner", argv, log=guard.directory / "log")
            client = ConditionerClient("edge", control)

            async def answers() -> bool:
                assert process.is_running, process.tail()
                try:
                    await client.stats()
                except EmbeddedError:
                    return False
                return True

            await eventually(answers, "the conditioner answers")
            yield Bench(client, doors, connections)


async def read(streams: Streams, count: int) -> bytes:
    return await asyncio.wait_for(streams[0].readexactly(count), ANSWER_TIMEOUT_S)


async def ask(streams: Streams, data: bytes) -> bytes:
    """Send and get the echo."""
    streams[1].write(data)
    return await read(streams, len(data))


async def test_a_delay_holds_every_byte_and_keeps_the_order() -> None:
    async with conditioned(delay_s=0.3) as bench:
        streams = await bench.connect()
        data = Random(1).randbytes(300_000)
        began_s = time.monotonic()
        writing = asyncio.create_task(dribble(streams[1], data))
        first = await read(streams, 1)
        assert time.monotonic() - began_s >= 0.6, "the delay holds for both ways"
        await bench.client.set_delay(0.0)
        assert first + await read(streams, len(data) - 1) == data, "a shorter delay lets nothing overtake"
        await writing


async def dribble(writer: asyncio.StreamWriter, data: bytes) -> None:
    for start in range(0, len(data), 10_000):
        writer.write(data[start : start + 10_000])
        await writer.drain()
        await asyncio.sleep(0)


async def test_a_bandwidth_is_shared_by_all_connections_and_doors() -> None:
    async with conditioned(downlink=200_000) as bench:
        began_s = time.monotonic()
        everyone = [await bench.connect() for _ in range(4)]
        assert [len(answer) for answer in await asyncio.gather(*(ask(one, bytes(250_000)) for one in everyone))] == (
            [250_000] * 4
        )
        assert time.monotonic() - began_s >= 4.5, "1 MB at 200 kB/s"
        # At the outgoing door the broker is on the other side: what comes back is what arrives at it.
        before = await bench.client.stats()
        await ask(await bench.connect("to:other"), bytes(1000))
        after = await bench.client.stats()
        assert after.downlink.bytes_total - before.downlink.bytes_total == 1000
        assert after.uplink.bytes_total - before.uplink.bytes_total == 1000


async def test_a_quiet_connection_waits_behind_a_busy_one() -> None:
    """One queue for all: a message sent after a burst of another connection arrives after that burst."""
    async with conditioned(downlink=100_000) as bench:
        busy, quiet = await bench.connect(), await bench.connect()
        await ask(quiet, b"hello")
        busy[1].write(bytes(200_000))

        async def queued() -> bool:
            return (await bench.client.stats()).downlink.queued_bytes >= 150_000

        await eventually(queued, "the burst is in the queue")
        passed = (await bench.client.stats()).downlink.bytes_total
        await ask(quiet, b"me too")
        assert (await bench.client.stats()).downlink.bytes_total - passed >= 140_000
        await read(busy, 200_000)


@pytest.mark.parametrize("bytes_per_s", [1_000.0, 20_000.0])
async def test_a_slow_lane_moves(bytes_per_s: float) -> None:
    async with conditioned(downlink=bytes_per_s) as bench:
        assert await ask(await bench.connect(), bytes(3000)) == bytes(3000)


async def test_a_bandwidth_can_be_lifted() -> None:
    async with conditioned(uplink=1.0) as bench:
        streams = await bench.connect()
        streams[1].write(bytes(100_000))
        await bench.client.set_uplink(None)
        assert await read(streams, 100_000) == bytes(100_000)
        assert (await bench.client.stats()).uplink.bytes_per_s is None


async def test_a_stall_moves_nothing_and_loses_nothing() -> None:
    async with conditioned() as bench:
        streams = await bench.connect()
        await ask(streams, b"before")
        await bench.client.stall("client")
        data = Random(2).randbytes(5_000_000)
        writing = asyncio.create_task(dribble(streams[1], data))
        during = await bench.connect()
        during[1].write(b"accepted all the same")
        assert await ask(await bench.connect("to:other"), b"not stalled") == b"not stalled"
        waiting = asyncio.ensure_future(streams[0].read(1))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        assert not writing.done(), "the sender feels it"
        await bench.client.resume("client")
        assert await waiting + await read(streams, len(data) - 1) == data
        assert await read(during, 21) == b"accepted all the same"
        await writing


async def test_a_cut_closes_and_refuses_until_it_is_restored() -> None:
    async with conditioned() as bench:
        streams = await bench.connect()
        await ask(streams, b"before")
        await bench.client.cut("client")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await read(streams, 1)
        with pytest.raises(ConnectionRefusedError):
            await bench.connect()
        assert not (await bench.client.stats()).listeners["client"].is_open
        assert await ask(await bench.connect("to:other"), b"open") == b"open"
        await bench.client.restore()
        assert await ask(await bench.connect(), b"again") == b"again"
        await bench.client.restore()  # restoring what is open changes nothing
        assert await ask(await bench.connect(), b"again") == b"again"


async def test_a_reset_is_an_rst_and_new_connections_are_served() -> None:
    async with conditioned() as bench:
        everyone = [await bench.connect() for _ in range(3)]
        for streams in everyone:
            await ask(streams, b"before")
        await bench.client.reset()
        for streams in everyone:
            with pytest.raises(ConnectionResetError):
                await read(streams, 1)
        assert await ask(await bench.connect(), b"again") == b"again"


async def test_an_end_arrives_behind_the_last_byte() -> None:
    async with conditioned(downlink=100_000, delay_s=0.1) as bench:
        reader, writer = await bench.connect()
        writer.write(bytes(50_000))
        writer.write_eof()
        assert len(await asyncio.wait_for(reader.read(), ANSWER_TIMEOUT_S)) == 50_000

        async def forgotten() -> bool:
            return (await bench.client.stats()).connections == 0

        await eventually(forgotten, "a connection that ended is not counted any more")


async def test_cuts_under_way_leave_no_connection_behind() -> None:
    async with conditioned(delay_s=0.05) as bench:
        for _ in range(20):
            opening = [asyncio.create_task(bench.connect()) for _ in range(5)]
            await asyncio.sleep(0)
            await bench.client.cut()
            await asyncio.gather(*opening, return_exceptions=True)
            await bench.client.restore()

        async def forgotten() -> bool:
            return (await bench.client.stats()).connections == 0

        await eventually(forgotten, "nothing is left of connections that were cut")
        assert await ask(await bench.connect(), b"again") == b"again"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"do": "dance"}, ["'dance'", "set_bandwidth", "reset"]),
        ({"do": "dance", "listener": "client"}, ["'dance'"]),
        ({"do": ["cut"]}, ["['cut']"]),
        ({}, ["'do'"]),
        ([], ["'do'"]),
        ({"do": "cut", "listener": "clients"}, ["no listener 'clients'", "client, to:other"]),
        ({"do": "cut", "listener": ["client"]}, ["listener"]),
        ({"do": "set_bandwidth", "lane": "sideways", "bytes_per_s": 1}, ["no lane 'sideways'", "uplink, downlink"]),
        ({"do": "set_bandwidth", "lane": "uplink"}, ["'bytes_per_s'"]),
        ({"do": "set_bandwidth", "lane": "uplink", "bytes_per_s": 0}, ["bytes_per_s must be above 0", "not 0"]),
        ({"do": "set_bandwidth", "lane": "uplink", "bytes_per_s": "much"}, ["bytes_per_s", "'much'"]),
        ({"do": "set_delay"}, ["'delay_s'"]),
        ({"do": "set_delay", "delay_s": -1}, ["delay_s must be 0 or more", "not -1"]),
        ({"do": "set_delay", "delay_s": None}, ["delay_s", "None"]),
        ({"do": "set_delay", "delay_s": 1, "listener": "x"}, ["no listener 'x'"]),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
async def test_a_command_that_makes_no_sense_is_refused_by_name(bench: Bench, command: Any, words: list[str]) -> None:
    problem = (await bench.raw(json.dumps(command).encode()))["error"]["problem"]
    for word in words:
        assert word in problem
    assert await ask(await bench.connect(), b"unharmed") == b"unharmed"


async def test_what_is_no_command_at_all_is_refused(bench: Bench) -> None:
    assert "error" in await bench.raw(b"not json")
    with pytest.raises(ConditionerRefused, match="link conditioner of edge refused: there is no listener 'nowhere'"):
        await bench.client.stall("nowhere")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with conditioned() as made:
        yield made
