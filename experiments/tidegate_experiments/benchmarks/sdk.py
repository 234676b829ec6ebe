"""The SDK's publish and consume rates, one round each, for comparison with the bare clients of `bare.py`."""

from __future__ import annotations

import time

from tidegate import AsyncPublisher, AsyncSubscriber, Limits, Publisher, Subscriber


async def async_publish(url: str, topic: str, body: bytes, count: int, window: int) -> float:
    """Messages per second of `AsyncPublisher`, confirmed."""
    async with AsyncPublisher(url, limits=Limits(window=window)) as publisher:
        began = time.perf_counter()
        for _ in range(count):
            await publisher.publish(topic, body)
        await publisher.flush()
        return count / (time.perf_counter() - began)


def sync_publish(url: str, topic: str, body: bytes, count: int, window: int) -> float:
    """Messages per second of `Publisher`, confirmed."""
    with Publisher(url, limits=Limits(window=window)) as publisher:
        began = time.perf_counter()
        for _ in range(count):
            publisher.publish(topic, body)
        publisher.flush()
        return count / (time.perf_counter() - began)


async def async_consume(url: str, name: str, pattern: str, count: int, prefetch: int) -> float:
    """Messages per second of `AsyncSubscriber`, from the first to the last of a queue that is full already."""
    async with AsyncSubscriber(url, name=name) as subscriber:
        subscription = await subscriber.subscribe(pattern, deadline=3600, prefetch=prefetch)
        await anext(subscription)
        began = time.perf_counter()
        for _ in range(count - 1):
            await anext(subscription)
        return count / (time.perf_counter() - began)


def sync_consume(url: str, name: str, pattern: str, count: int, prefetch: int) -> float:
    """The same for `Subscriber`."""
    with Subscriber(url, name=name) as subscriber:
        subscription = subscriber.subscribe(pattern, deadline=3600, prefetch=prefetch)
        next(subscription)
        began = time.perf_counter()
        for _ in range(count - 1):
            next(subscription)
        return count / (time.perf_counter() - began)


async def make_queue(url: str, name: str, pattern: str) -> str:
    """Have an output queue for a named subscriber and leave it waiting. Returns its name."""
    async with AsyncSubscriber(url, name=name) as subscriber:
        subscription = await subscriber.subscribe(pattern, deadline=3600)
        assert subscription.queue is not None
        return subscription.queue
