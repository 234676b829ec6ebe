"""Patterns that would keep RabbitMQ's topic exchange busy, on a real RabbitMQ: refused, and removed where they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aio_pika import Message

from tests.support.brokers import Brokers, RawClient, bodies, start_all
from tests.support.waiting import eventually
from tidegate_brokers.plane.edge import DEADLINE_ARGUMENT, EXPIRES_ARGUMENT
from tidegate_embedded.nodes import RabbitNode
from tidegate_protocol.messages import Refusal, RefusalReason, SubscribeReply, SubscribeRequest, encode
from tidegate_protocol.names import DELIVER_EXCHANGE, PUBLISH_EXCHANGE, link_queue, output_queue
from tidegate_protocol.topics import ANY_WORDS_MAX, WORDS_MAX

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = "#.a.#.a.#.a.#.a.#.a.#.a.#.a"
LONG_TOPIC = ".".join(["a"] * 45 + ["b"])
BYSTANDER_MESSAGES = 60
BYSTANDER_S = 25.0
UNSERVABLE = ".".join(["#", *["a"] * WORDS_MAX])
"""Refused today, and one that every RabbitMQ binds."""


@pytest_asyncio.fixture(loop_scope="module")
async def brokers(node: RabbitNode, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Brokers]:
    found = Brokers(node, tmp_path, request.node.originalname.removeprefix("test_")[:40])
    try:
        await start_all((await found.head("head"), await found.edge("one", "head")))
        yield found
    finally:
        await found.close()


async def subscribe(client: RawClient, subscriber: str, pattern: str) -> SubscribeReply:
    request = SubscribeRequest(subscriber=subscriber, pattern=pattern, deadline_us=500_000)
    replies: list[object] = []

    async def granted() -> bool:
        replies.append(await client.ask(request))
        return isinstance(replies[-1], SubscribeReply)

    await eventually(granted, f"{subscriber} is granted {pattern}; so far {replies}")
    assert isinstance(replies[-1], SubscribeReply)
    return replies[-1]


async def test_a_hostile_pattern_is_refused_and_a_bystander_gets_its_messages(brokers: Brokers) -> None:
    async with brokers.client("head") as client, brokers.client("one") as edge:
        reply = await subscribe(client, "bystander", "quake.*")
        hostile = encode(SubscribeRequest(subscriber="hostile", pattern="a.b", deadline_us=500_000))
        answer = await client.ask_raw(hostile.replace(b"a.b", HOSTILE.encode()))
        queue = await edge.channel.get_queue(reply.queue)
        expected = [str(number) for number in range(BYSTANDER_MESSAGES)]
        async with asyncio.timeout(BYSTANDER_S):
            for body in expected:
                await client.publish(LONG_TOPIC, "long")
                await client.publish("quake.alert", body)
            assert await bodies(queue, expected[-1]) == expected
        assert isinstance(answer, Refusal)
        assert answer.reason is RefusalReason.INVALID
        assert "pattern" in answer.message
        assert f"at most {ANY_WORDS_MAX} times" in answer.message


async def test_unservable_patterns_of_a_predecessor_are_removed_and_the_rest_adopted(brokers: Brokers) -> None:
    async with brokers.client("head") as client, brokers.client("one") as edge:
        reply = await subscribe(client, "bystander", "quake.*")
        for process in brokers.processes.values():
            await process.kill()
        empty, full = output_queue("hostile", 0), output_queue("hostile", 1)
        for name in (empty, full):
            left = await edge.channel.declare_queue(name, durable=True)
            arguments = {DEADLINE_ARGUMENT: 500_000, EXPIRES_ARGUMENT: 600}
            await left.bind(DELIVER_EXCHANGE, UNSERVABLE, arguments=arguments)
        await edge.channel.default_exchange.publish(Message(b"waits"), full)
        link = await client.channel.get_queue(link_queue("one"))
        await link.bind(PUBLISH_EXCHANGE, UNSERVABLE)
        await start_all(brokers.processes.values())
        assert await subscribe(client, "bystander", "quake.*") == reply

        async def routes_are_right() -> bool:
            return await brokers.routes("head", "one") == {(PUBLISH_EXCHANGE, "quake.*")}

        await eventually(routes_are_right, "the head keeps the good route and unbinds the other")
        queues = {queue["name"] for queue in await brokers.api(f"queues/{brokers.vhost('one')}")}
        assert reply.queue in queues
        assert empty not in queues
        assert await bodies(await edge.channel.get_queue(full), "waits") == ["waits"]
        bound = {(b["source"], b["destination"]) for b in await brokers.api(f"bindings/{brokers.vhost('one')}")}
        assert (DELIVER_EXCHANGE, full) not in bound
        await client.publish("quake.alert", "still here")
        queue = await edge.channel.get_queue(reply.queue)
        assert await bodies(queue, "still here") == ["still here"]
