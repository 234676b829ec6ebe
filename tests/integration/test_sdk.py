"""The SDK on a real RabbitMQ: both clients, both ways, through lost connections, deleted queues, full links.

One node stands for head and edge, and `Hom` answers in place of the head's process: what is tested here is
the client's side of the contract. The whole path is tested in `test_chain.py` and `test_faults.py`.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import warnings
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import aio_pika
import httpx
import pika
import pytest
import pytest_asyncio

from tests.support.blocking import in_thread
from tests.support.hom import Hom
from tests.support.turns import turns_proxy
from tests.support.waiting import eventually
from tidegate import (
    AccessRefused,
    AsyncPublisher,
    AsyncSubscriber,
    AsyncSubscription,
    Backoff,
    ConnectionFailed,
    HeadSilent,
    InvalidValue,
    Limits,
    Message,
    Publisher,
    Refused,
    Subscriber,
    Timeouts,
)
from tidegate._core.config import Address
from tidegate._io.aio import AioConnection, AioRuntime
from tidegate_embedded.nodes import RabbitNode, amqp_url, management_url
from tidegate_protocol.form import AttributeValue
from tidegate_protocol.names import PUBLISH_EXCHANGE, output_queue

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = Timeouts(attempt_s=0.5, request_s=1.5, close_s=3.0)
BACKOFF = Backoff(first_s=0.05, limit_s=0.5)
ATTRIBUTES: dict[str, AttributeValue] = {
    "magnitude": 0.1 + 0.2,
    "depth": -7,
    "big": 2**62,
    "text": "Erdbeben é",
    "felt": True,
}


@pytest_asyncio.fixture(loop_scope="module")
async def hom(node: RabbitNode) -> AsyncIterator[Hom]:
    async with Hom(node) as hom:
        yield hom


@pytest.fixture
def url(node: RabbitNode) -> str:
    return amqp_url(node)


async def take(subscription: AsyncSubscription, count: int) -> list[Message]:
    messages: list[Message] = []
    async with asyncio.timeout(60):
        async for message in subscription:
            messages.append(message)
            if len(messages) == count:
                break
    return messages


async def cut(node: RabbitNode, part: str) -> int:
    """Close every connection whose name holds `part`, as an operator would. Returns how many those were."""
    async with httpx.AsyncClient(base_url=management_url(node), timeout=30) as client:
        connections = (await client.get("/api/connections")).json()
        names = [
            each["name"] for each in connections if part in each.get("client_properties", {}).get("connection_name", "")
        ]
        for name in names:
            await client.delete(f"/api/connections/{name}")
    return len(names)


async def depth(hom: Hom, queue: str) -> int:
    """Messages ready in a queue."""
    count = (await hom.channel.declare_queue(queue, passive=True)).declaration_result.message_count
    assert count is not None
    return count


async def test_attributes_and_order_from_async_to_both(hom: Hom, url: str) -> None:
    async with AsyncPublisher(url) as publisher, AsyncSubscriber(url) as subscriber:
        subscription = await subscriber.subscribe("a2.#", deadline=60)
        async with in_thread(Subscriber(url)) as blocking:
            other = await asyncio.to_thread(blocking.subscribe, "a2.#", 60)
            for number in range(300):
                await publisher.publish("a2.x", str(number).encode(), ATTRIBUTES)
            await publisher.flush()
            messages = await take(subscription, 300)
            others = [await asyncio.to_thread(other.get, 30) for _ in range(300)]
    for found in (messages, others):
        assert [message.body for message in found if message] == [str(number).encode() for number in range(300)]
        assert all(message and message.attributes == ATTRIBUTES for message in found)
    assert messages[7].sequence == 7
    assert messages[7].publisher == publisher.id
    assert messages[7].published_at is not None
    assert subscription.statistics().received == 300


async def test_attributes_and_order_from_sync_to_async(hom: Hom, url: str) -> None:
    def publish() -> None:
        with Publisher(url) as publisher:
            receipts = [publisher.publish("s2.x", str(n).encode(), ATTRIBUTES) for n in range(300)]
            receipts[-1].wait(30)
            publisher.flush()
            assert all(receipt.confirmed for receipt in receipts)

    async with AsyncSubscriber(url) as subscriber:
        subscription = await subscriber.subscribe("s2.#", deadline=60)
        await asyncio.to_thread(publish)
        messages = await take(subscription, 300)
    assert [message.body for message in messages] == [str(number).encode() for number in range(300)]
    assert all(message.attributes == ATTRIBUTES for message in messages)


async def test_a_body_of_many_frames_and_an_empty_one(hom: Hom, url: str) -> None:
    bodies = [b"", bytes(range(256)) * 3000, b"x"]

    def collect() -> list[bytes]:
        with Subscriber(url) as subscriber:
            subscription = subscriber.subscribe("big", deadline=60)
            with Publisher(url) as publisher:
                for body in bodies:
                    publisher.publish("big", body)
            return [message.body for _ in bodies if (message := subscription.get(30))]

    assert await asyncio.to_thread(collect) == bodies
    async with AsyncSubscriber(url) as subscriber, AsyncPublisher(url) as publisher:
        subscription = await subscriber.subscribe("big", deadline=60)
        for body in bodies:
            await publisher.publish("big", body)
        assert [message.body for message in await take(subscription, 3)] == bodies


async def cut_three_times(node: RabbitNode, name: str, seen: list[Message]) -> None:
    """Cut both clients' connections, three times, each time after messages have flowed again."""
    for _ in range(3):
        await eventually(partial(longer_than, seen, len(seen) + 300), "300 more messages")
        for client in ("publisher", "subscriber"):
            await eventually(partial(cut, node, f"{client} {name}"), f"the {client} is listed")


def longer_than(seen: list[Message], count: int) -> bool:
    return len(seen) > count


def check_everything_came(seen: list[Message], published: int) -> None:
    """Each message once, and in the order of publishing within its topic."""
    assert len(seen) == published
    for topic in range(3):
        bodies = [int(message.body) for message in seen if message.topic.endswith(f".{topic}")]
        assert bodies == list(range(topic, published, 3))


async def test_lost_connections_lose_and_double_nothing(hom: Hom, node: RabbitNode, url: str) -> None:
    stop = asyncio.Event()
    seen: list[Message] = []
    async with (
        AsyncPublisher(url, name="cut", window=100, backoff=BACKOFF) as publisher,
        AsyncSubscriber(url, name="cut", backoff=BACKOFF) as subscriber,
    ):
        subscription = await subscriber.subscribe("cut.#", deadline=60, acknowledge="manual")

        async def publish() -> int:
            number = 0
            while not stop.is_set():
                await publisher.publish(f"cut.{number % 3}", str(number).encode())
                number += 1
                if number % 10 == 0:
                    await asyncio.sleep(0.01)
            await publisher.flush()
            return number

        async def collect() -> None:
            async for message in subscription:
                seen.append(message)
                message.ack()

        publishing, collecting = asyncio.create_task(publish()), asyncio.create_task(collect())
        await cut_three_times(node, "cut", seen)
        stop.set()
        published = await publishing
        await eventually(lambda: len(seen) >= published, f"all {published} messages")
        assert subscription.reconnects >= 1
        await subscription.unsubscribe()
        await asyncio.wait_for(collecting, 10)
    check_everything_came(seen, published)


async def test_the_blocking_client_survives_lost_connections_too(hom: Hom, node: RabbitNode, url: str) -> None:
    stop = threading.Event()
    seen: list[Message] = []

    def run() -> int:
        with (
            Publisher(url, name="bcut", window=100, backoff=BACKOFF) as publisher,
            Subscriber(url, name="bcut", backoff=BACKOFF) as subscriber,
        ):
            subscription = subscriber.subscribe("bcut.#", deadline=60, callback=seen.append)
            number = 0
            while not stop.is_set():
                publisher.publish(f"bcut.{number % 3}", str(number).encode())
                number += 1
                if number % 10 == 0:
                    stop.wait(0.01)
            publisher.flush()
            end = time.monotonic() + 60
            while len(seen) < number and time.monotonic() < end:
                threading.Event().wait(0.05)
            assert subscription.reconnects >= 1
            subscription.unsubscribe()
            return number

    running = asyncio.create_task(asyncio.to_thread(run))
    try:
        await cut_three_times(node, "bcut", seen)
    finally:
        stop.set()
        published = await running
    check_everything_came(seen, published)


async def test_a_deleted_queue_is_asked_for_again(hom: Hom, url: str) -> None:
    async with AsyncPublisher(url) as publisher, AsyncSubscriber(url, backoff=BACKOFF) as subscriber:
        subscription = await subscriber.subscribe("gone", deadline=60)
        assert subscription.queue is not None
        await hom.channel.queue_delete(subscription.queue)
        await eventually(lambda: subscription.reconnects == 1 and subscription.attached, "it is back")
        await publisher.publish("gone", b"after")
        assert [message.body for message in await take(subscription, 1)] == [b"after"]


async def test_without_a_head_process_the_known_queue_is_used_again(node: RabbitNode, url: str) -> None:
    async with Hom(node):
        subscriber = AsyncSubscriber(url, name="orphan", timeouts=QUICK, backoff=BACKOFF)
        await subscriber.open()
        subscription = await subscriber.subscribe("orphan", deadline=60)
    await eventually(lambda: cut(node, "subscriber orphan data"), "the data connection is listed")
    await eventually(lambda: subscription.reconnects == 1 and subscription.attached, "it is back")
    async with AsyncPublisher(url, timeouts=QUICK) as publisher:
        await (await publisher.publish("orphan", b"x"))
    assert len(await take(subscription, 1)) == 1
    await subscriber.close()


async def test_a_named_subscription_outlives_its_client_and_keeps_what_was_not_settled(hom: Hom, url: str) -> None:
    async with AsyncPublisher(url) as publisher:
        async with AsyncSubscriber(url, name="keeper") as subscriber:
            subscription = await subscriber.subscribe("keep", deadline=60, acknowledge="manual")
            queue = subscription.queue
            for number in range(6):
                await publisher.publish("keep", str(number).encode())
            messages = await take(subscription, 4)
            messages[0].ack()
            await messages[1].ack()
            messages[3].ack()
        assert queue is not None
        await eventually(lambda: depth(hom, queue), "what was not settled is back")
        async with AsyncSubscriber(url, name="keeper") as subscriber:
            subscription = await subscriber.subscribe("keep", deadline=60)
            rest = await take(subscription, 3)
            await subscription.unsubscribe()
    assert [message.body for message in rest] == [b"2", b"4", b"5"]
    assert rest[0].redelivered


async def test_an_anonymous_subscriber_leaves_nothing_behind(hom: Hom, url: str) -> None:
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    async with AsyncSubscriber(url) as subscriber:
        queue = (await subscriber.subscribe("nothing", deadline=1)).queue
    assert queue is not None

    def blocking() -> None:
        with Subscriber(url) as subscriber, Publisher(url) as publisher:
            subscriber.subscribe("nothing", deadline=1, callback=lambda _: None)
            publisher.publish("nothing", b"").wait(30)

    await asyncio.to_thread(blocking)
    async with await aio_pika.connect(url) as probe:
        channel = await probe.channel()
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await channel.declare_queue(queue, passive=True)
    await eventually(lambda: asyncio.all_tasks() <= tasks | {asyncio.current_task()}, "no task is left", 10)
    left = [thread.name for thread in set(threading.enumerate()) - threads if "tidegate" in thread.name]
    assert left == []


async def test_a_queue_still_held_by_a_predecessor_is_waited_for(hom: Hom, url: str) -> None:
    async with AsyncSubscriber(url, name="twin") as first:
        await first.subscribe("twin", deadline=1)
        second = AsyncSubscriber(url, name="twin", backoff=BACKOFF)
        await second.open()
        waiting = asyncio.create_task(second.subscribe("twin", deadline=1))
        await eventually(lambda: hom.kinds.count("subscribe-request") >= 3, "the second one tries again")
        assert not waiting.done()
    subscription = await asyncio.wait_for(waiting, 30)
    await subscription.unsubscribe()
    await second.close()


async def test_a_name_that_is_in_use_is_refused_in_the_end(hom: Hom, url: str) -> None:
    async with AsyncSubscriber(url, name="double") as first:
        subscription = await first.subscribe("double", deadline=1)
        with pytest.raises(InvalidValue, match="already"):
            await first.subscribe("double", deadline=1)
        async with AsyncSubscriber(url, name="double", backoff=BACKOFF, timeouts=QUICK) as second:
            with pytest.raises(Refused, match="named 'double'"):
                await second.subscribe("double", deadline=1)
        assert subscription.attached
        await subscription.unsubscribe()
        await (await first.subscribe("double", deadline=1)).unsubscribe()


async def test_a_subscribe_that_nobody_waits_for_leaves_nothing_behind(hom: Hom, url: str) -> None:
    async with AsyncSubscriber(url) as subscriber:
        asked = hom.kinds.count("subscribe-request")
        subscribing = asyncio.create_task(subscriber.subscribe("given.up", deadline=1))
        await eventually(lambda: hom.kinds.count("subscribe-request") > asked, "the head was asked")
        subscribing.cancel()
        await asyncio.wait([subscribing])
    async with await aio_pika.connect(url) as probe:
        channel = await probe.channel()
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await channel.declare_queue(output_queue(subscriber.name, 0), passive=True)


async def test_several_threads_may_take_from_one_subscription(hom: Hom, url: str) -> None:
    def blocking() -> list[bytes]:
        taken: list[bytes] = []
        with Subscriber(url) as subscriber, Publisher(url) as publisher:
            subscription = subscriber.subscribe("shared", deadline=1)
            threads = [
                threading.Thread(target=lambda: taken.extend(message.body for message in subscription))
                for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            for number in range(1_000):
                publisher.publish("shared", str(number).encode())
            publisher.flush()
            end = time.monotonic() + 30
            while subscription.statistics().received < 1_000 and time.monotonic() < end:
                assert all(thread.is_alive() for thread in threads), "one was told the end while others go on"
                time.sleep(0.01)
        for thread in threads:
            thread.join(10)
        return taken

    assert sorted(int(body) for body in await asyncio.to_thread(blocking)) == list(range(1_000))


async def test_a_full_link_slows_the_publisher_and_loses_nothing(hom: Hom, url: str) -> None:
    hom.queue_arguments = {"x-max-length": 20, "x-overflow": "reject-publish"}
    async with AsyncSubscriber(url) as subscriber:
        subscription = await subscriber.subscribe("full", deadline=60, prefetch=10)
        async with AsyncPublisher(url, window=50, limits=Limits(publish_attempts=100)) as publisher:
            for number in range(200):
                await publisher.publish("full", str(number).encode())
                if number == 60:
                    collecting = asyncio.create_task(take(subscription, 200))
            messages = await collecting
            await publisher.flush()
    assert sorted(int(message.body) for message in messages) == list(range(200))


async def test_foreign_messages_are_delivered_and_counted(hom: Hom, url: str) -> None:
    late: list[Message] = []
    async with AsyncSubscriber(url) as subscriber, AsyncPublisher(url) as publisher:
        subscription = await subscriber.subscribe("foreign", deadline=0.000_001, on_late=late.append)
        await hom.publish.publish(aio_pika.Message(b"plain", headers={"x": 1, "list": [1]}), "foreign")
        await publisher.publish("foreign", b"ours")
        messages = await take(subscription, 2)
    statistics = subscription.statistics()
    assert {message.body for message in messages} == {b"plain", b"ours"}
    assert (statistics.foreign, statistics.late, statistics.received) == (1, 1, 2)
    assert [message.body for message in late] == [b"ours"]


async def test_no_foreign_message_stops_a_subscription(hom: Hom, url: str) -> None:
    """A time in microseconds is beyond what pamqp can read, and RabbitMQ would deliver the message for ever."""

    def foreign() -> None:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for properties in (
                pika.BasicProperties(timestamp=time.time_ns() // 1000),
                pika.BasicProperties(timestamp=2**63, headers={"tidegate-published-us": True, "n": 1}),
                pika.BasicProperties(
                    headers={"none": None, "list": [{}], "table": {"a": {}}, "bytes": b"\xff", "n": 1}
                ),
                pika.BasicProperties(message_id="last"),
            ):
                channel.basic_publish(PUBLISH_EXCHANGE, "odd", b"", properties)

    async with AsyncSubscriber(url) as subscriber:
        subscription = await subscriber.subscribe("odd", deadline=1)
        await asyncio.to_thread(foreign)
        messages = await take(subscription, 4)
        assert subscription.reconnects == 0
    assert [dict(message.attributes) for message in messages] == [{}, {"n": 1}, {"n": 1}, {}]
    assert all(message.age_s is None for message in messages)


async def test_the_head_hears_of_a_publisher_and_of_its_end(hom: Hom, url: str) -> None:
    async with AsyncPublisher(url):
        await eventually(lambda: hom.kinds.count("publisher-hello") >= 2, "it says hello again and again")
    await eventually(lambda: "publisher-goodbye" in hom.kinds, "it says goodbye")


async def test_failures_to_connect_say_what_is_wrong(node: RabbitNode, hom: Hom, url: str) -> None:
    wrong_password = f"amqp://{node.user}:wrong@{node.host}:{node.amqp_port}"
    wrong_vhost = f"{url.rpartition('/')[0]}/nowhere"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"amqp://u:p@127.0.0.1:{free.getsockname()[1]}"
        for address, expected in (
            (wrong_password, AccessRefused),
            (wrong_vhost, AccessRefused),
            (nobody, ConnectionFailed),
        ):
            for asynchronous in (AsyncPublisher(address), AsyncSubscriber(address)):
                with pytest.raises(expected) as error:
                    await asynchronous.open()
                assert "wrong" not in str(error.value)
            for blocking in (Publisher(address), Subscriber(address)):
                with pytest.raises(expected):
                    await asyncio.to_thread(blocking.open)


async def test_a_refusal_and_an_absent_head_process_are_told_apart(node: RabbitNode, url: str) -> None:
    async with Hom(node):
        async with AsyncSubscriber(url) as subscriber:
            with pytest.raises(Refused) as refused:
                await subscriber.subscribe("refused", deadline=1)
        assert refused.value.reason == "no-edge"
    async with AsyncSubscriber(url, timeouts=QUICK) as subscriber:
        with pytest.raises(HeadSilent):
            await subscriber.subscribe("silent", deadline=1)

    def blocking() -> None:
        with Subscriber(url, timeouts=QUICK) as subscriber, pytest.raises(HeadSilent):
            subscriber.subscribe("silent", deadline=1)

    await asyncio.to_thread(blocking)


async def test_a_hurried_close_leaves_no_connection_that_closes_itself_later(node: RabbitNode, url: str) -> None:
    """aio-pika's connection closes itself when it is collected, unless it was closed; in another thread it can't."""

    async def leave() -> AioConnection:
        async with turns_proxy(node.host, node.amqp_port) as proxy:
            address = replace(Address.parse(url), port=proxy.port)
            connection = await AioRuntime().connect(address, "hurried", QUICK)
            proxy.alter = lambda _: b""  # the answer to the close never comes
            await connection.close(hurry=True)
            return connection

    def collect() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            left.clear()
            gc.collect()
        return [str(warning.message) for warning in caught if "Connection.close" in str(warning.message)]

    left = [await leave()]
    assert await asyncio.to_thread(collect) == []
