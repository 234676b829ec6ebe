"""Subscribers are moved between edges under load: nothing is lost, doubled or out of order, and nothing is left behind.

The moves come from draining an edge, which uses the same migrations as load balancing; and from the death of one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote

import httpx
import pytest

from tests.support.backends import Launch
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, AsyncSubscription, Message, Subscriber, Subscription
from tidegate._core.attachment import SubscriptionTimes
from tidegate._core.config import Address, Backoff, Timeouts
from tidegate._engine.control import Control
from tidegate._io.aio import AioRuntime
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import Topology
from tidegate_protocol.balancing.drains import DrainReply, DrainRequest
from tidegate_protocol.names import OUTPUT_PREFIX

ROUNDS = 2
PUBLISHERS = ("north", "south")
TOPICS = ("quake.alert", "tide.gauge")
PAUSE_S = 0.02
"""Between two publications of a publisher."""
FLOW = 50
DRAIN_S = 90.0

Numbers = dict[tuple[str, str], list[int]]
"""By publisher and topic, the numbers of its messages in order."""


@dataclass
class Reader:
    """One subscription and what its application got."""

    name: str
    pattern: str
    subscription: AsyncSubscription | Subscription
    numbers: Numbers = field(default_factory=lambda: defaultdict(list))
    in_turn: Numbers = field(default_factory=lambda: defaultdict(list))
    """Without what was collected."""
    count: int = 0

    def take(self, message: Message) -> None:
        publisher, number = message.body.decode().split()
        self.numbers[publisher, message.topic].append(int(number))
        if not message.collected:
            self.in_turn[publisher, message.topic].append(int(number))
        self.count += 1
        message.ack()


class Load:
    """Publishers at a steady rate until they are stopped."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = asyncio.Event()
        self.published: Numbers = defaultdict(list)

    async def publish(self, name: str) -> None:
        async with AsyncPublisher(self._url, name=name) as publisher:
            number = 0
            while not self._stop.is_set():
                for topic in TOPICS:
                    await publisher.publish(topic, f"{name} {number}".encode())
                    self.published[name, topic].append(number)
                number += 1
                await asyncio.sleep(PAUSE_S)
            await publisher.flush()

    def stop(self) -> None:
        self._stop.set()

    def expected(self, pattern: str) -> Numbers:
        return {key: numbers for key, numbers in self.published.items() if pattern in ("#", key[1])}


@asynccontextmanager
async def readers(url: str) -> AsyncIterator[list[Reader]]:
    """Both clients, automatic and manual acknowledgement, callbacks and iteration; one subscriber has two patterns."""
    found: list[Reader] = []

    async def open_async(name: str, *patterns: str, manual: bool) -> None:
        client = AsyncSubscriber(url, name=name)
        closers.append(client.close)
        await client.open()
        for pattern in patterns:
            reader = Reader(name, pattern, None)  # type: ignore[arg-type]
            if manual:
                subscription = await client.subscribe(pattern, deadline=60, acknowledge="manual")
                tasks.append(asyncio.create_task(iterate(subscription, reader)))
            else:
                subscription = await client.subscribe(pattern, deadline=60, callback=reader.take)
            reader.subscription = subscription
            found.append(reader)

    def open_sync(name: str, pattern: str, manual: bool) -> None:
        client = Subscriber(url, name=name)
        closers.append(partial(asyncio.to_thread, client.close))
        client.open()
        reader = Reader(name, pattern, None)  # type: ignore[arg-type]
        if manual:
            subscription = client.subscribe(pattern, deadline=60, acknowledge="manual")
            threading.Thread(target=lambda: [reader.take(message) for message in subscription], daemon=True).start()
        else:
            subscription = client.subscribe(pattern, deadline=60, callback=reader.take)
        reader.subscription = subscription
        found.append(reader)

    closers: list[Callable[[], object]] = []
    tasks: list[asyncio.Task[None]] = []
    try:
        await open_async("auto", "#", manual=False)
        await open_async("manual", *TOPICS, manual=True)
        await asyncio.to_thread(open_sync, "sync-auto", TOPICS[0], False)
        await asyncio.to_thread(open_sync, "sync-manual", "#", True)
        yield found
    finally:
        for close in closers:
            await close()  # type: ignore[misc]
        await asyncio.gather(*tasks)


async def iterate(subscription: AsyncSubscription, reader: Reader) -> None:
    async for message in subscription:
        reader.take(message)


@dataclass
class Operator:
    """Drains edges, and looks at what is on them."""

    cluster: EmbeddedCluster
    control: Control

    @property
    def edges(self) -> list[str]:
        return [broker.name for broker in self.cluster.brokers.values() if broker.kind == "edge"]

    async def drain(self, edge: str, draining: bool = True) -> int:
        request = DrainRequest(edge=edge, draining=draining)
        return (await self.control.request(request, DrainReply, 20)).left

    async def move_all(self, source: str, target: str) -> None:
        """Have everybody go from one edge to the other."""
        await self.drain(target, False)
        await self.drain(source)

    async def is_empty(self, edge: str) -> bool:
        return await self.drain(edge) == 0

    async def consumers(self) -> dict[tuple[str, str], int]:
        """Of all output queues, by edge and queue, how many consumers they have."""
        found: dict[tuple[str, str], int] = {}
        async with httpx.AsyncClient() as http:
            for name in self.edges:
                broker = self.cluster.brokers[name]
                answer = await http.get(f"{broker.management_url}/api/queues/{quote(broker.vhost, safe='')}")
                answer.raise_for_status()
                for queue in answer.json():
                    if queue["name"].startswith(OUTPUT_PREFIX):
                        found[name, queue["name"]] = queue.get("consumers", -1)
        return found


@asynccontextmanager
async def operator(cluster: EmbeddedCluster) -> AsyncIterator[Operator]:
    runtime = AioRuntime()
    url = cluster.url(cluster.clusters[0])
    control = Control(runtime, Address.parse(url), "operator", Timeouts(), Backoff())
    try:
        yield Operator(cluster, control)
    finally:
        await control.close()
        await runtime.close()


@pytest.fixture
async def pair(launch: Launch) -> AsyncIterator[EmbeddedCluster]:
    """One head and two edges, on one RabbitMQ."""
    async with launch(Topology.simple(clusters=1, edges=2), compact=True) as cluster:
        yield cluster


async def flowing(everyone: list[Reader], what: str) -> None:
    before = [reader.count for reader in everyone]
    await eventually(
        lambda: all(reader.count >= count + FLOW for reader, count in zip(everyone, before, strict=True)),
        f"everybody receives {what}",
    )


async def check(load: Load, everyone: list[Reader], manager: Operator, edge: str | None = None) -> None:
    """Everybody got everything once and in order, and is attached once; nothing else is left."""

    try:
        await eventually(lambda: all(got_all(reader, load) for reader in everyone), "everything arrives")
    finally:
        for reader in everyone:
            assert dict(reader.numbers) == load.expected(reader.pattern), f"{reader.name} {reader.pattern}"
    places = {(str(reader.subscription.edge), str(reader.subscription.queue)) for reader in everyone}
    assert len(places) == len(everyone)
    assert edge is None or {name for name, _ in places} == {edge}

    async def settled() -> bool:
        return await manager.consumers() == dict.fromkeys(places, 1)

    try:
        await eventually(settled, "everybody is attached once, and other queues are gone", timeout_s=30)
    except AssertionError as error:
        raise AssertionError(f"{error}: {await manager.consumers()} instead of {places}") from None


@pytest.mark.timeout(600)
async def test_everybody_moves_back_and_forth_under_load(pair: EmbeddedCluster) -> None:
    url = pair.url(pair.clusters[0])
    load = Load(url)
    async with operator(pair) as manager, readers(url) as everyone, asyncio.TaskGroup() as group:
        for name in PUBLISHERS:
            group.create_task(load.publish(name))
        await flowing(everyone, "before anything moves")
        first, second = manager.edges
        for source, target in [(first, second), (second, first)] * ROUNDS:
            await manager.move_all(source, target)
            await eventually(partial(manager.is_empty, source), f"{source} is empty", DRAIN_S)
            assert {reader.subscription.edge for reader in everyone} == {target}
            await flowing(everyone, f"on {target}")
        load.stop()
        await check(load, everyone, manager, first)
        for reader in everyone:
            statistics = reader.subscription.statistics()
            assert statistics.migrations >= 2 * ROUNDS - 1
            assert statistics.edge == first
            assert statistics.missing == statistics.reordered == 0


@pytest.mark.timeout(300)
async def test_what_a_slow_application_has_not_settled_outlives_its_move_and_its_end(
    pair: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The old queue was removed although the client had what it brought in its memory alone."""
    monkeypatch.setattr("tidegate._engine.subscription.SubscriptionTimes", partial(SubscriptionTimes, detach_s=1.0))
    caplog.set_level(logging.INFO, "tidegate")
    url, sent = pair.url(pair.clusters[0]), [f"slow {number}".encode() for number in range(30)]
    async with operator(pair) as manager:
        async with AsyncSubscriber(url, name="slow") as client, AsyncPublisher(url) as publisher:
            subscription = await client.subscribe(TOPICS[0], deadline=60, acknowledge="manual")
            for body in sent:
                await publisher.publish(TOPICS[0], body)
            taken = [await anext(subscription) for _ in sent]
            assert [message.body for message in taken] == sent
            source = str(subscription.edge)
            (target,) = [name for name in manager.edges if name != source]
            await manager.move_all(source, target)
            await eventually(lambda: subscription.edge == target, "it has moved", DRAIN_S)
            # Its head has heard of the move, and wants the rest to be collected instead of removing it.
            await eventually(lambda: "collection " in caplog.text, f"it is ordered to collect from {source}", 30)
        async with AsyncSubscriber(url, name="slow") as client:
            subscription = await client.subscribe(TOPICS[0], deadline=60, acknowledge="manual")
            again = [await asyncio.wait_for(anext(subscription), 60) for _ in sent]
            assert [message.body for message in again] == sent
            for message in again:
                message.ack()
            await eventually(partial(manager.is_empty, source), f"{source} is empty", DRAIN_S)

            async def settled() -> bool:
                return await manager.consumers() == {(target, str(subscription.queue)): 1}

            await eventually(settled, "nothing else is left")


@pytest.mark.timeout(600)
async def test_the_process_of_the_target_may_die_in_the_middle_of_a_move(pair: EmbeddedCluster) -> None:
    url = pair.url(pair.clusters[0])
    load = Load(url)
    async with operator(pair) as manager, readers(url) as everyone, asyncio.TaskGroup() as group:
        for name in PUBLISHERS:
            group.create_task(load.publish(name))
        await flowing(everyone, "before anything moves")
        source, target = manager.edges
        # Everybody to one edge first, so that there is something to move.
        await manager.move_all(target, source)
        await eventually(partial(manager.is_empty, target), f"{target} is empty", DRAIN_S)

        # Once before it has made the queues, once when clients are attached to them.
        for moment in (lambda before: True, lambda before: held(everyone) > before):
            before = held(everyone)
            await manager.move_all(source, target)
            await eventually(partial(moment, before), "it is time")
            await pair.process(target).kill()
            await flowing(everyone, f"while the process of {target} is dead")
            await pair.process(target).start()
            await eventually(partial(manager.is_empty, source), f"{source} is empty", DRAIN_S)
            await flowing(everyone, f"after {target} is back")
            source, target = target, source
        load.stop()
        await check(load, everyone, manager, source)


def held(everyone: list[Reader]) -> int:
    return sum(reader.subscription.statistics().held for reader in everyone)


@pytest.mark.timeout(600)
async def test_an_edge_dies_with_its_rabbitmq_and_comes_back(nodes_cluster: EmbeddedCluster) -> None:
    """Its subscribers are placed elsewhere; what waited on it is fetched when it is back."""
    url = nodes_cluster.url(nodes_cluster.clusters[0])
    load = Load(url)
    async with operator(nodes_cluster) as manager, readers(url) as everyone, asyncio.TaskGroup() as group:
        for name in PUBLISHERS:
            group.create_task(load.publish(name))
        await flowing(everyone, "before anything dies")
        dead, other = manager.edges
        hit = [reader for reader in everyone if reader.subscription.edge == dead]
        await nodes_cluster.process(dead).kill()
        await nodes_cluster.node(dead).kill()
        await eventually(lambda: all(reader.subscription.edge == other for reader in hit), "they are elsewhere")
        await flowing(everyone, f"from {other}")
        load.stop()
        await nodes_cluster.node(dead).start()
        await nodes_cluster.process(dead).start()
        await eventually(lambda: all(got_all(reader, load) for reader in everyone), "everything arrives")
        for reader in everyone:
            # What was fetched is marked, and may come after newer ones; the rest is in order.
            expected = load.expected(reader.pattern)
            assert {key: sorted(numbers) for key, numbers in reader.numbers.items()} == expected
            assert {key: sorted(numbers) for key, numbers in reader.in_turn.items()} == dict(reader.in_turn)
            assert reader.in_turn == reader.numbers or reader in hit
        assert sum(reader.subscription.statistics().collected for reader in hit) > 0


def got_all(reader: Reader, load: Load) -> bool:
    return reader.count >= sum(len(numbers) for numbers in load.expected(reader.pattern).values())
