"""Both runtimes of the SDK on a real RabbitMQ: attaching in one round trip, its fallback, and orders of a head.

Round trips are counted, not timed: a proxy counts how often the client speaks after the server has spoken. Whatever a
server refuses must look the same to the engines, whichever way it was opened.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import aio_pika
import pytest
import pytest_asyncio
from aio_pika.abc import AbstractIncomingMessage

from tests.support.turns import turns_proxy
from tests.support.waiting import eventually
from tidegate._core.config import Address, Timeouts
from tidegate._core.errors import ConnectionFailed, TidegateError
from tidegate._core.opening import USUAL_FOR_S
from tidegate._engine.runtime import Channel, Connection, Consumer
from tidegate._io.aio import AioRuntime
from tidegate._io.threaded import ThreadRuntime
from tidegate_embedded.nodes import RabbitNode, amqp_url

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUEUE = "attach"
TUNE = b"\x00\x0a\x00\x1e"
"""What the payload of a Connection.Tune starts with; the limit of channels follows."""
PROTOCOL_HEADER_BYTES = 8
Result = TypeVar("Result")


class Client:
    """A runtime, driven from the event loop of the test."""

    def __init__(self, runtime: AioRuntime | ThreadRuntime) -> None:
        self.runtime = runtime
        self.bodies: list[bytes] = []
        self.lost = 0

    async def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine where the runtime wants it."""
        if isinstance(self.runtime, ThreadRuntime):
            return await asyncio.to_thread(self.runtime.call, coroutine)
        return await coroutine

    async def attach(self, address: Address, queue: str = QUEUE) -> tuple[Connection, Channel]:
        return await self.run(
            self.runtime.attach(address, "attach", Timeouts(), self.consumer(queue), self.count_as_lost)
        )

    def consumer(self, queue: str) -> Consumer:
        return Consumer(queue, 10, lambda _, __, body, *___: self.bodies.append(body))

    def count_as_lost(self) -> None:
        self.lost += 1

    async def usual(self) -> None:
        """From now on open connections the usual way."""
        self.runtime.openings.anticipate = lambda *_: None  # type: ignore[method-assign]


@pytest_asyncio.fixture(loop_scope="module", params=["async", "sync"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    if request.param == "async":
        runtime = AioRuntime()
        yield Client(runtime)
        await runtime.close()
    else:
        threaded = ThreadRuntime("attach")
        yield Client(threaded)
        threaded.close()


@pytest_asyncio.fixture(loop_scope="module")
async def address(node: RabbitNode) -> AsyncIterator[Address]:
    """A RabbitMQ with three messages in `QUEUE`."""
    async with await aio_pika.connect(amqp_url(node)) as connection, connection.channel() as channel:
        await channel.declare_queue(QUEUE, durable=True)
        for number in range(3):
            await channel.default_exchange.publish(aio_pika.Message(str(number).encode()), QUEUE)
        yield Address.parse(amqp_url(node))
        await channel.queue_delete(QUEUE)


async def three(client: Client) -> None:
    await eventually(lambda: len(client.bodies) >= 3, "three deliveries")
    assert client.bodies == [b"0", b"1", b"2"]


async def test_a_new_connection_delivers_after_one_round_trip(client: Client, address: Address) -> None:
    async with turns_proxy(address.host, address.port) as proxy:
        connection, channel = await client.attach(replace(address, port=proxy.port))
        await three(client)
        assert proxy.turns == [1]
        await client.run(channel.acknowledge([(3, True)]))
        await client.run(channel.close())
        await client.run(connection.close())
    assert (client.runtime.openings.fast, client.runtime.openings.fallbacks) == (1, 0)


async def test_the_usual_way_takes_four(client: Client, address: Address) -> None:
    await client.usual()
    async with turns_proxy(address.host, address.port) as proxy:
        connection, _ = await client.attach(replace(address, port=proxy.port))
        await three(client)
        assert proxy.turns == [4]
        await client.run(connection.close())


async def test_a_new_channel_delivers_after_one_round_trip(client: Client, address: Address) -> None:
    async with turns_proxy(address.host, address.port) as proxy:
        connection = await client.run(client.runtime.connect(replace(address, port=proxy.port), "attach", Timeouts()))
        assert proxy.turns == [1]
        await client.run(connection.attach(client.consumer(QUEUE), client.count_as_lost))
        await three(client)
        assert proxy.turns == [2]
        # A channel that fails takes nothing else with it, and its number can be used again.
        for _ in range(2):
            with pytest.raises(TidegateError):
                await client.run(connection.attach(client.consumer("nowhere"), client.count_as_lost))
        assert connection.usable
        await client.run(connection.close())


async def test_a_channel_for_publishing_takes_one_more(client: Client, address: Address) -> None:
    async with turns_proxy(address.host, address.port) as proxy:
        connection = await client.run(client.runtime.connect(replace(address, port=proxy.port), "attach", Timeouts()))
        await client.run(connection.open_channel(client.count_as_lost, confirm=lambda *_: None))
        assert proxy.turns == [2]
        await client.run(connection.close())


@pytest.mark.parametrize(
    ("change", "queue"),
    [
        pytest.param(lambda address: replace(address, password="wrong"), QUEUE, id="password"),
        pytest.param(lambda address: replace(address, vhost="nowhere"), QUEUE, id="vhost"),
        pytest.param(lambda address: address, "nowhere", id="missing queue"),
        pytest.param(lambda address: address, "taken", id="queue in use"),
    ],
)
async def test_refusals_are_the_same_both_ways(
    client: Client, address: Address, change: Callable[[Address], Address], queue: str
) -> None:
    async with await aio_pika.connect(_url(address)) as other, other.channel() as channel:
        taken = await channel.declare_queue("taken", durable=True)
        await taken.consume(_ignore, exclusive=True)
        found = []
        for fast in (True, False):
            if not fast:
                await client.usual()
            with pytest.raises(ConnectionFailed) as failure:
                await client.attach(change(address), queue)
            found.append((type(failure.value), str(failure.value), getattr(failure.value, "code", None)))
        await channel.queue_delete("taken")
    assert found[0] == found[1]
    assert client.bodies == []


async def test_another_limit_of_channels_is_learned(client: Client, address: Address) -> None:
    def lower(data: bytes) -> bytes:
        at = data.find(TUNE)
        return data if at < 0 else data[: at + 4] + struct.pack(">H", 99) + data[at + 6 :]

    async with turns_proxy(address.host, address.port) as proxy:
        proxy.alter = lower
        turns: list[int] = []
        for attempt in (1, 2):
            connection, _ = await client.attach(replace(address, port=proxy.port))
            await eventually(lambda wanted=3 * attempt: len(client.bodies) >= wanted, "three deliveries")
            turns.append(proxy.turns[-1])
            await client.run(connection.close())
        # At first it was written at once in vain, then the usual way; the second time right at once.
        assert len(proxy.turns) == 3
        assert turns == [4, 1]
    assert (client.runtime.openings.fast, client.runtime.openings.fallbacks) == (1, 1)


async def test_a_server_that_dislikes_haste_is_left_in_peace(client: Client, address: Address) -> None:
    first: set[int] = set()

    async with turns_proxy(address.host, address.port) as proxy:

        def patient(data: bytes) -> bool:
            number = len(proxy.turns)
            fine = number in first or len(data) <= PROTOCOL_HEADER_BYTES
            first.add(number)
            return fine

        proxy.tolerates = patient
        impatient = replace(address, port=proxy.port)
        for attempt in (1, 2):
            connection, _ = await client.attach(impatient)
            await eventually(lambda wanted=3 * attempt: len(client.bodies) >= wanted, "three deliveries")
            await client.run(connection.close())
        assert len(proxy.turns) == 3
    openings = client.runtime.openings
    assert (openings.fast, openings.fallbacks) == (0, 1)
    assert openings.anticipate(address, client.runtime.now()) is not None
    assert openings.anticipate(impatient, client.runtime.now() + USUAL_FOR_S) is not None


async def test_over_tls_too(client: Client, address: Address, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command to make a certificate with")
    context = _certificate(tmp_path)
    async with turns_proxy(address.host, address.port, context) as proxy:
        connection, _ = await client.attach(
            replace(address, scheme="amqps", port=proxy.port, tls={"no_verify_ssl": "1"})
        )
        await three(client)
        assert proxy.turns == [1]
        await client.run(connection.close())


async def test_orders_reach_a_client_and_are_answered(client: Client, address: Address) -> None:
    replies: list[tuple[str | None, bytes]] = []
    orders: list[tuple[bytes, str | None, str | None]] = []
    async with turns_proxy(address.host, address.port) as proxy:
        connection = await client.run(client.runtime.connect(replace(address, port=proxy.port), "orders", Timeouts()))
        channel = await client.run(connection.open_channel(client.count_as_lost, returned=lambda _: None))
        await client.run(channel.listen(lambda *reply: replies.append(reply)))
        before = proxy.turns[0]
        await client.run(channel.take_orders("amq.topic", "client.me", lambda *order: orders.append(order)))
        assert proxy.turns[0] == before + 1
        # Ask oneself, and answer oneself.
        await client.run(channel.request("amq.topic", "client.me", b"move", "7", 10_000))
        await eventually(lambda: orders, "an order")
        body, reply_to, correlation = orders[0]
        assert (body, correlation) == (b"move", "7")
        assert reply_to is not None
        await client.run(channel.answer("amq.topic", "client.me", "7", b"moved"))
        await eventually(lambda: len(orders) == 2, "its answer")
        assert orders[1] == (b"moved", None, "7")
        assert not replies
        await client.run(connection.close())


async def _ignore(_: AbstractIncomingMessage) -> None:
    """There is none."""


def _url(address: Address) -> str:
    return f"amqp://{address.user}:{address.password}@{address.host}:{address.port}/%2F"


def _certificate(directory: Path) -> ssl.SSLContext:
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
