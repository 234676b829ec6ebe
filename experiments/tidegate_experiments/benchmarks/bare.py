"""Bare clients: what a careful user of pika or aio-pika writes, to compare the SDK with.

Same exchange, same message size and persistence, same window of unconfirmed publications, same prefetch, and
acknowledgements in bulk. No ids, no deduplication, no statistics, no reconnecting.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aio_pika
import pika


async def aio_pika_publish(url: str, exchange: str, topic: str, body: bytes, count: int, window: int) -> float:
    """Messages per second, confirmed, with at most `window` unconfirmed."""
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        target = await channel.get_exchange(exchange)
        places = asyncio.Semaphore(window)

        async def one() -> None:
            try:
                message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await target.publish(message, topic, mandatory=False)
            finally:
                places.release()

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                await places.acquire()
                group.create_task(one())
        return count / (time.perf_counter() - began)


async def aio_pika_consume(url: str, queue: str, count: int, prefetch: int) -> float:
    """Messages per second from the first to the last, acknowledged in bulk."""
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=prefetch)
        source = await channel.get_queue(queue)
        done = asyncio.get_running_loop().create_future()
        received = 0
        began = 0.0
        batch = max(1, prefetch // 8)

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            nonlocal received, began
            received += 1
            if received == 1:
                began = time.perf_counter()
            if received % batch == 0 or received == count:
                await message.ack(multiple=True)
            if received == count:
                done.set_result(time.perf_counter() - began)

        await source.consume(take)
        return count / float(await done)


def pika_publish(url: str, exchange: str, topic: str, body: bytes, count: int, window: int) -> float:
    """The same with pika's callback connection, the only one of pika's that can have several unconfirmed at once."""
    properties = pika.BasicProperties(delivery_mode=2)
    state = {"sent": 0, "lowest": 1, "began": 0.0, "seconds": 0.0}
    unconfirmed: set[int] = set()
    connection: Any

    def send(channel: Any) -> None:
        while state["sent"] < count and len(unconfirmed) < window:
            channel.basic_publish(exchange, topic, body, properties)
            state["sent"] += 1
            unconfirmed.add(int(state["sent"]))

    def confirmed(channel: Any, method: Any) -> None:
        assert isinstance(method.method, pika.spec.Basic.Ack)
        tag = method.method.delivery_tag
        if method.method.multiple:
            unconfirmed.difference_update(range(int(state["lowest"]), tag + 1))
            state["lowest"] = tag + 1
        else:
            unconfirmed.discard(tag)
        if state["sent"] == count and not unconfirmed:
            state["seconds"] = time.perf_counter() - state["began"]
            connection.close()
        else:
            send(channel)

    def opened(channel: Any) -> None:
        def selected(_: Any) -> None:
            state["began"] = time.perf_counter()
            send(channel)

        channel.confirm_delivery(lambda method: confirmed(channel, method), selected)

    connection = pika.SelectConnection(
        pika.URLParameters(url), on_open_callback=lambda c: c.channel(on_open_callback=opened)
    )
    connection.add_on_close_callback(lambda *_: connection.ioloop.stop())
    connection.ioloop.start()
    return count / state["seconds"]


def pika_consume(url: str, queue: str, count: int, prefetch: int) -> float:
    """The same with pika's blocking connection, as most of its users do."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    batch = max(1, prefetch // 8)
    received = 0
    began = seconds = 0.0

    def take(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        nonlocal received, began, seconds
        received += 1
        if received == 1:
            began = time.perf_counter()
        if received % batch == 0 or received == count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if received == count:
            seconds = time.perf_counter() - began
            channel.stop_consuming()

    channel.basic_consume(queue, take)
    channel.start_consuming()
    connection.close()
    return count / seconds


def pika_stream(url: str, stream: str, count: int, prefetch: int) -> float:
    """Messages per second of a stream's offsets up to `count`, from connecting to the last, counted and no more.

    With pika's callback connection, which is faster than its blocking one.
    """
    every = max(1, prefetch // 4)
    unacknowledged = 0
    reached = False
    connection: Any

    def take(channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        nonlocal unacknowledged, reached
        unacknowledged += 1
        if properties.headers["x-stream-offset"] >= count - 1:
            reached = True
            connection.ioloop.stop()
        elif unacknowledged >= every:
            unacknowledged = 0
            channel.basic_ack(method.delivery_tag, multiple=True)

    def opened(channel: Any) -> None:
        channel.basic_qos(prefetch_count=prefetch)
        channel.basic_consume(stream, take, arguments={"x-stream-offset": 0})

    began = time.perf_counter()
    connection = pika.SelectConnection(
        pika.URLParameters(url), on_open_callback=lambda c: c.channel(on_open_callback=opened)
    )
    connection.add_on_close_callback(lambda *_: connection.ioloop.stop())
    connection.ioloop.start()
    seconds = time.perf_counter() - began
    assert reached, "the connection was lost"
    connection.close()
    connection.ioloop.start()
    return count / seconds
