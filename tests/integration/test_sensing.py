"""What a broker senses, against what is known to happen: rates, depths, sizes, round trips, what an uplink carries.

One cluster with a far edge: known loads first, among them a subscriber that is slow and one that is away; then an
uplink that is too narrow. The machine may be busy, so that everything is compared with what really was published
and delivered, over as many readings as it takes.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aio_pika
import httpx
from aio_pika.abc import AbstractIncomingMessage

from tests.support.backends import Launch
from tests.support.brokers import RawClient
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber
from tidegate_brokers.sensing.wire import wire_overhead_bytes
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import Topology
from tidegate_protocol.messages import SubscribeReply, SubscribeRequest

EDGE = "alpha-edge-0"
CLIENT_DELAY_S = 0.1
LINK_DELAY_S = 0.05
BODY_BYTES = 400
RATE_PER_S = 40.0
SLOW_PER_S = 5.0
NARROW_BYTES_PER_S = 30_000.0
CAPACITY = "tidegate_broker_uplink_capacity_bytes_per_second"
READINGS = 6
"""How many successive readings a mean is taken over."""
TOPOLOGY = Topology.parse(
    f"""
    [[cluster]]
    name = "alpha"
    [[cluster.edge]]
    link_delay_s = {LINK_DELAY_S}
    client_delay_s = {CLIENT_DELAY_S}
    """
)
TWO_EDGES = Topology.parse(
    f"""
    [[cluster]]
    name = "alpha"
    [[cluster.edge]]
    client_delay_s = {CLIENT_DELAY_S}
    [[cluster.edge]]
    """
)
FAST = ("fast-1", "fast-2")
QUEUES = tuple(f"out.{name}.0" for name in FAST)


@dataclass
class Readings:
    """The metrics of an edge, read once per sample, and their means over the last few."""

    http: httpx.AsyncClient
    url: str
    last: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=READINGS))
    samples: float = 0.0

    async def read(self) -> dict[str, float]:
        text = (await self.http.get(self.url + "/metrics")).text
        found = re.findall(r"^(tidegate_[^ ]+) (\S+)$", text, re.MULTILINE)
        values = {name: float(value) for name, value in found}
        if values.get("tidegate_sensing_seconds_count", 0.0) > self.samples:
            self.samples = values["tidegate_sensing_seconds_count"]
            self.last.append(values)
        return values

    def mean(self, metric: str, queue: str | None = None) -> float:
        name = metric if queue is None else f'{metric}{{queue="{queue}"}}'
        found = [values[name] for values in self.last if name in values]
        return sum(found) / len(found) if len(found) == READINGS else float("nan")


@dataclass
class Feed:
    """Publishes on two topics and knows what it really published lately."""

    publisher: AsyncPublisher
    sent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=10_000))
    count: int = 0

    async def run(self) -> None:
        due_s = time.monotonic()
        while True:
            for topic in ("wave.height", "wind.speed"):
                await self.publisher.publish(topic, b"x" * BODY_BYTES)
            self.count += 1
            self.sent.append((time.monotonic(), self.count))
            due_s += 1.0 / RATE_PER_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    def per_s(self, seconds: float = READINGS) -> float:
        """Of each topic, over the last seconds."""
        now_s = time.monotonic()
        return sum(1 for moment_s, _ in self.sent if moment_s > now_s - seconds) / seconds


@asynccontextmanager
async def feeding(cluster: EmbeddedCluster) -> AsyncIterator[Feed]:
    async with AsyncPublisher(cluster.url("alpha"), name="buoy") as publisher:
        feed = Feed(publisher)
        task = asyncio.create_task(feed.run())
        try:
            yield feed
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def fast_subscribers(cluster: EmbeddedCluster, deadline_s: float) -> AsyncIterator[None]:
    """Two that take everything at once; of one pattern, so that they are on one edge."""
    url = cluster.url("alpha")
    async with AsyncSubscriber(url, name=FAST[0]) as one, AsyncSubscriber(url, name=FAST[1]) as other:
        for subscriber in (one, other):
            await subscriber.subscribe("#", deadline=deadline_s, callback=lambda message: None)
        yield


async def subscribe(client: RawClient, name: str) -> str:
    """Have a queue for this subscriber; a cluster on a busy machine may want to be asked again."""
    request = SubscribeRequest(subscriber=name, pattern="wave.#", deadline_us=3_600_000_000, expires_s=600)
    queue = ""

    async def granted() -> bool:
        nonlocal queue
        answer = await client.ask(request)
        queue = answer.queue if isinstance(answer, SubscribeReply) else ""
        return bool(queue)

    await eventually(granted, f"{name} is given a queue")
    return queue


@asynccontextmanager
async def raw_subscriptions(cluster: EmbeddedCluster) -> AsyncIterator[tuple[str, str]]:
    """The queues of a subscriber that takes `SLOW_PER_S` and of one that never comes."""
    head = cluster.brokers["alpha-head"]
    connection = await aio_pika.connect(head.url)
    edge = await aio_pika.connect(cluster.brokers[EDGE].url)
    try:
        client = RawClient(await connection.channel())
        await client.open()
        queues = [await subscribe(client, name) for name in ("slow", "away")]
        channel = await edge.channel()
        await channel.set_qos(prefetch_count=1)

        async def take(message: AbstractIncomingMessage) -> None:
            await asyncio.sleep(1.0 / SLOW_PER_S)
            await message.ack()

        await (await channel.get_queue(queues[0])).consume(take)
        yield queues[0], queues[1]
    finally:
        await edge.close()
        await connection.close()


async def until(condition: Callable[[], Awaitable[bool]], what: str, readings: Readings) -> None:
    """Wait for a condition on what is sensed; a failure says what was sensed last."""
    try:
        await eventually(condition, what, 120)
    except AssertionError as error:
        error.add_note("\n".join(f"{name} {value}" for name, value in sorted(readings.last[-1].items())))
        raise


def near(value: float, wanted: float, share: float, more: float = 0.0) -> bool:
    return abs(value - wanted) <= share * wanted + more


async def test_what_is_sensed_is_what_happens(launch: Launch) -> None:
    async with (
        launch(TOPOLOGY, compact=True) as cluster,
        httpx.AsyncClient(trust_env=False) as http,
        fast_subscribers(cluster, 60),
    ):
        readings = Readings(http, cluster.brokers[EDGE].http_url)
        async with feeding(cluster) as feed:
            await check_the_way_there(readings)
            await check_fast(readings, feed)
            await check_bytes_on_the_wire(cluster, readings)
            async with raw_subscriptions(cluster) as (slow, away):
                await check_backlogs(cluster, readings, feed, slow, away)
        assert "session-requested" not in (cluster.logs / f"{EDGE}.log").read_text(), "nobody was going to be late"


async def check_the_way_there(readings: Readings) -> None:
    async def known() -> bool:
        values = await readings.read()
        trip_s = values.get('tidegate_link_round_trip_seconds{target="head"}', 0.0)
        offset_s = values.get('tidegate_link_clock_offset_seconds{target="head"}', 1.0)
        return 2 * LINK_DELAY_S <= trip_s <= 2 * LINK_DELAY_S + 0.15 and abs(offset_s) < 0.1

    await until(known, "the round trip to the head, and that both clocks are the same", readings)


async def check_fast(readings: Readings, feed: Feed) -> None:
    """Rates are those published, hardly anything waits, the round trip is the client's, sizes are on the wire."""

    async def right() -> bool:
        await readings.read()
        rate = 2 * feed.per_s()
        return all(
            near(readings.mean("tidegate_output_enqueued_messages_per_second", queue), rate, 0.1)
            and near(readings.mean("tidegate_output_drained_messages_per_second", queue), rate, 0.1)
            and near(readings.mean("tidegate_output_message_bytes", queue), BODY_BYTES + wire_overhead_bytes("#"), 0.02)
            and 2 * CLIENT_DELAY_S * 0.9 <= readings.mean("tidegate_output_round_trip_seconds", queue) < 0.6
            and readings.mean("tidegate_output_depth_messages", queue) < 0.25 * rate
            for queue in QUEUES
        ) and near(readings.mean("tidegate_broker_in_messages_per_second"), rate, 0.1)

    await until(right, "two healthy subscriptions", readings)


async def check_bytes_on_the_wire(cluster: EmbeddedCluster, readings: Readings) -> None:
    """What is offered to the uplink is what passes it: the overhead of a delivery is as assumed."""
    loop = asyncio.get_running_loop()
    conditioner = cluster.conditioner(EDGE)
    before, began_s, seen = (await conditioner.stats()).uplink.bytes_total, loop.time(), readings.samples

    async def enough() -> bool:
        await readings.read()
        return readings.samples >= seen + READINGS

    await eventually(enough, "some samples")
    passed_per_s = ((await conditioner.stats()).uplink.bytes_total - before) / (loop.time() - began_s)
    assert near(readings.mean("tidegate_broker_offered_bytes_per_second"), passed_per_s, 0.1, 500.0)


async def check_backlogs(cluster: EmbeddedCluster, readings: Readings, feed: Feed, slow: str, away: str) -> None:
    """What waits is what RabbitMQ holds, for a slow subscriber and for one that is not there."""
    connection = await aio_pika.connect(cluster.brokers[EDGE].url)
    channel = await connection.channel()

    async def right() -> bool:
        values = await readings.read()
        depths = []
        for queue in (slow, away):
            held = (await channel.declare_queue(queue, passive=True)).declaration_result.message_count
            sensed = values.get(f'tidegate_output_depth_messages{{queue="{queue}"}}', 0.0)
            depths.append(held is not None and held > RATE_PER_S and near(sensed, held, 0.1, 2 * RATE_PER_S))
        drained = readings.mean("tidegate_output_drained_messages_per_second", slow)
        return all(depths) and near(drained, SLOW_PER_S, 0.2) and feed.per_s() > 0

    try:
        await until(right, "two backlogs", readings)
    finally:
        await connection.close()


async def test_an_uplink_that_is_overrun_is_measured_and_makes_its_edge_ask_for_help(launch: Launch) -> None:
    async with (
        launch(TWO_EDGES, compact=True) as cluster,
        fast_subscribers(cluster, 4),
        httpx.AsyncClient(trust_env=False) as http,
    ):
        # Nobody is told: what it carries is learned from the backlog it makes.
        await cluster.conditioner(EDGE).set_uplink(NARROW_BYTES_PER_S)
        log = cluster.logs / f"{EDGE}.log"
        readings = Readings(http, cluster.brokers[EDGE].http_url)

        async def learned() -> bool:
            values = await readings.read()
            return near(values.get(CAPACITY, 0.0), NARROW_BYTES_PER_S, 0.1)

        async with feeding(cluster):
            await until(learned, "the capacity of the uplink is learned", readings)
            await eventually(lambda: "session-requested" in log.read_text(), f"{EDGE} asks for a session", 90)
