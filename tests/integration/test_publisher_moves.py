"""Publishers on orders of a head: moved to another one under load with their order kept, or slowed down.

Most tests have heads that do as they are told, on a real RabbitMQ, so that each step can go wrong on purpose. The last
one has two clusters of which one is overloaded, and nobody who tells them what to do.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.backends import Launch
from tests.support.fake_heads import FakeHead, fake_heads
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, Backoff, Message, Publisher, PublisherStatistics
from tidegate_embedded.nodes import RabbitNode
from tidegate_embedded.topology import Topology
from tidegate_protocol.balancing.publishers import (
    PublisherMoveOrder,
    PublisherMoveReport,
    PublisherResume,
    PublisherStage,
    ThrottleOrder,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOPICS = 3
PAUSE_S = 0.005
LONG_US = 60_000_000
QUICK = Backoff(first_s=0.05, limit_s=0.2)


class Load:
    """A publisher that publishes numbers until it is stopped; `async` or `sync`."""

    def __init__(
        self, kind: str, url: str, padding: bytes = b"", pause_s: float = PAUSE_S, window: int | None = None
    ) -> None:
        self._pause_s = pause_s
        self._tail = b" " + padding if padding else b""
        self.count = 0
        self._stop = threading.Event()
        self._async = (
            AsyncPublisher(url, name=f"mover-{kind}", window=window, backoff=QUICK) if kind == "async" else None
        )
        self._sync = Publisher(url, name=f"mover-{kind}", window=window, backoff=QUICK) if kind == "sync" else None

    @property
    def id(self) -> str:
        publisher = self._async or self._sync
        assert publisher is not None
        return publisher.id

    def statistics(self) -> PublisherStatistics:
        publisher = self._async or self._sync
        assert publisher is not None
        return publisher.statistics()

    @property
    def confirmed(self) -> int:
        statistics = self.statistics()
        return statistics.published - statistics.unconfirmed

    async def open(self) -> None:
        if self._async is not None:
            await self._async.open()
            self._task = asyncio.create_task(self._publish_async(self._async))
        elif self._sync is not None:
            await asyncio.to_thread(self._sync.open)
            self._task = asyncio.create_task(asyncio.to_thread(self._publish_sync, self._sync))

    async def stop(self) -> None:
        """Publish no more; returns when everything is confirmed."""
        self._stop.set()
        await self._task
        if self._async is not None:
            await self._async.flush()
        elif self._sync is not None:
            await asyncio.to_thread(self._sync.flush)

    async def close(self) -> None:
        self._stop.set()
        if self._async is not None:
            await self._async.close()
        elif self._sync is not None:
            await asyncio.to_thread(self._sync.close)

    async def more(self, count: int = 50) -> None:
        """Return when that many more have been handed over."""
        wanted = self.count + count
        await eventually(lambda: self.count >= wanted, f"{count} more publications")

    async def _publish_async(self, publisher: AsyncPublisher) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            await publisher.publish(f"load.{self.count % TOPICS}", str(self.count).encode() + self._tail)
            self.count += 1
            due = max(due + self._pause_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    def _publish_sync(self, publisher: Publisher) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            publisher.publish(f"load.{self.count % TOPICS}", str(self.count).encode() + self._tail)
            self.count += 1
            due = max(due + self._pause_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


@pytest_asyncio.fixture(loop_scope="module")
async def heads(node: RabbitNode, request: pytest.FixtureRequest) -> AsyncIterator[list[FakeHead]]:
    name = str(abs(hash(request.node.name)))
    async with fake_heads(node, f"a{name}", f"b{name}") as heads:
        yield heads


@pytest_asyncio.fixture(loop_scope="module", params=["async", "sync"])
async def load(request: pytest.FixtureRequest, heads: list[FakeHead]) -> AsyncIterator[Load]:
    load = Load(str(request.param), heads[0].url)
    await load.open()
    try:
        yield load
    finally:
        await load.close()


def order(load: Load, move: str, target: FakeHead, timeout_us: int = LONG_US) -> PublisherMoveOrder:
    return PublisherMoveOrder(move=move, publisher=load.id, head=target.name, url=target.place, timeout_us=timeout_us)


def arrived(heads: list[FakeHead]) -> int:
    return sum(len(head.bodies) for head in heads)


async def reported(head: FakeHead, move: str, stage: PublisherStage) -> None:
    await eventually(lambda: stage in head.stages(move), f"{move} is {stage}")


async def all_arrive(load: Load, heads: list[FakeHead], changes: int) -> None:
    """Everything is at exactly one head, in order, and `changes` times the next one is at the other head."""
    await eventually(lambda: arrived(heads) >= load.count, "all publications arrive")
    numbers = [[int(body) for body in head.bodies] for head in heads]
    assert all(one == sorted(one) for one in numbers)
    where = {number: index for index, one in enumerate(numbers) for number in one}
    assert sorted(number for one in numbers for number in one) == list(range(load.count))
    assert sum(where[number] != where[number - 1] for number in range(1, load.count)) == changes


async def test_moved_back_and_forth_under_load(load: Load, heads: list[FakeHead]) -> None:
    old, new = heads
    for turn in range(4):
        move = f"m{turn}"
        await load.more()
        answer = await old.order(load.id, order(load, move, new))
        assert isinstance(answer, PublisherMoveReport)
        assert answer.stage is PublisherStage.ORDERED
        await reported(old, move, PublisherStage.PAUSED)
        # It goes on taking publications, but writes none of them anywhere.
        confirmed = load.confirmed
        await eventually(lambda wanted=confirmed: arrived(heads) == wanted, "what was confirmed")
        await load.more()
        assert arrived(heads) == load.confirmed == confirmed
        answer = await old.order(load.id, PublisherResume(move=move, publisher=load.id, moved=True))
        assert isinstance(answer, PublisherMoveReport)
        assert answer.stage is PublisherStage.MOVED
        await reported(old, move, PublisherStage.MOVED)
        # Asked again, it says the same.
        assert await new.order(load.id, PublisherResume(move=move, publisher=load.id, moved=False)) == answer
        old, new = new, old
    await load.more()
    await load.stop()
    await all_arrive(load, heads, changes=4)
    statistics = load.statistics()
    assert (statistics.moves, statistics.reconnects, statistics.retries) == (4, 0, 0)
    await eventually(lambda: load.statistics().head == heads[0].name, "the head greets it")


async def test_it_stays_if_told_so_or_nobody_tells(load: Load, heads: list[FakeHead]) -> None:
    old, new = heads
    await old.order(load.id, order(load, "told", new))
    await reported(old, "told", PublisherStage.PAUSED)
    await old.order(load.id, PublisherResume(move="told", publisher=load.id, moved=False))
    await reported(old, "told", PublisherStage.STAYED)
    await load.more()
    await old.order(load.id, order(load, "silence", new, timeout_us=300_000))
    await reported(old, "silence", PublisherStage.STAYED)
    await load.more()
    await old.order(load.id, order(load, "nowhere", new).model_copy(update={"url": f"{new.place}-there-is-none"}))
    await reported(old, "nowhere", PublisherStage.STAYED)
    await load.more()
    await load.stop()
    await all_arrive(load, heads, changes=0)
    assert load.statistics().moves == 0


async def test_throttled_it_waits_and_drops_nothing(load: Load, heads: list[FakeHead]) -> None:
    head = heads[0]
    await eventually(lambda: head.hellos, "it says hello")
    await load.more()
    rate = 40.0
    throttle = ThrottleOrder(publisher=load.id, messages_per_s=rate, for_us=LONG_US)
    while not load.statistics().throttled:
        await head.tell(load.id, throttle)
        await asyncio.sleep(0.1)
    before, since = load.count, time.monotonic()
    await load.more(60)
    # One may be on its way when the order comes, and a tenth of a second may be made up for.
    assert load.count - before <= rate * (time.monotonic() - since) + rate * 0.1 + 2
    assert load.statistics().delayed > 0
    throttle = ThrottleOrder(publisher=load.id, messages_per_s=rate, for_us=1)
    await head.tell(load.id, throttle)
    await eventually(lambda: not load.statistics().throttled, "it is let go")
    await load.more()
    await load.stop()
    await all_arrive(load, heads, changes=0)


async def test_the_head_learns_what_is_published_and_how_far_it_is(load: Load, heads: list[FakeHead]) -> None:
    head = heads[0]
    await load.more(100)
    await load.stop()

    def counted() -> int:
        return sum(topic.messages for report in head.reports for topic in report.topics)

    await eventually(lambda: counted() >= load.count, "all is reported")
    assert counted() == load.count
    size = sum(topic.bytes for report in head.reports for topic in report.topics)
    assert size == sum(len(str(number)) for number in range(load.count))
    assert {topic.topic for report in head.reports for topic in report.topics} == {f"load.{n}" for n in range(TOPICS)}
    await eventually(lambda: head.hellos[-1].round_trip_us > 0, "the round trip is known")
    reports = len(head.reports)
    hellos = len(head.hellos)
    # Who publishes nothing has nothing to report.
    await eventually(lambda: len(head.hellos) > hellos + 8, "time passes")
    assert len(head.reports) == reports


@pytest.mark.timeout(600)
async def test_an_overloaded_head_sends_publishers_to_its_neighbour(launch: Launch) -> None:
    topology = Topology.parse(
        """
        [[cluster]]
        name = "busy"
        head = { uplink_bytes_per_s = 36_000 }
        edge = [{}]
        [[cluster]]
        name = "idle"
        edge = [{}]
        [[link]]
        between = ["busy", "idle"]
        [balancing]
        sample_period_s = 0.5
        """,
        "test",
    )
    async with launch(topology, compact=True) as cluster:
        loads = [Load(kind, cluster.url("busy"), b"x" * 400, pause_s=0.05, window=50) for kind in ("async", "sync")]
        async with AsyncSubscriber(cluster.url("busy")) as near, AsyncSubscriber(cluster.url("idle")) as far:
            seen: list[list[tuple[str | None, str]]] = []
            for subscriber in (near, far):
                got: list[tuple[str | None, str]] = []
                seen.append(got)

                def take(message: Message, got: list[tuple[str | None, str]] = got) -> None:
                    got.append((message.publisher, message.body.split()[0].decode()))

                await subscriber.subscribe("load.#", deadline=600, callback=take)
            for load in loads:
                await load.open()
            try:
                await eventually(lambda: any(load.statistics().moves for load in loads), "one moves", timeout_s=300)
                for load in loads:
                    await load.more(100)
                    await load.stop()
                total = sum(load.count for load in loads)
                await eventually(lambda: all(len(got) >= total for got in seen), "all arrive", timeout_s=120)
            finally:
                for load in loads:
                    await load.close()
        for got in seen:
            for load in loads:
                assert [number for publisher, number in got if publisher == load.id] == [
                    str(number) for number in range(load.count)
                ]
