"""What brokers do on a real RabbitMQ beyond routes and queues: limits for slow subscribers, closed connections, what a
predecessor left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import aiormq
import httpx
import pytest
from aiormq.abc import AbstractChannel

from tests.support.turns import turns_proxy
from tests.support.waiting import eventually
from tidegate_agents.machine import (
    ActionFailed,
    ChangeRoutes,
    DeclareOutput,
    DeleteOutput,
    DisconnectPublisher,
    EnsureLink,
    LimitOutput,
    LinkKind,
    MarkerPublished,
    PublishMarker,
    UnwatchFence,
    WatchFence,
)
from tidegate_brokers.plane.edge import LIMIT_PREFIX, EdgePlane
from tidegate_brokers.plane.fences import FenceWatch
from tidegate_brokers.plane.head import HeadPlane
from tidegate_brokers.rabbit.management import Management, management
from tidegate_brokers.settings.urls import ServerUrl
from tidegate_embedded.nodes import RabbitNode, amqp_url, create_vhost, management_url
from tidegate_protocol.decisions import Flood, FloodingPublisher
from tidegate_protocol.messages import Subscription
from tidegate_protocol.names import (
    DELIVER_EXCHANGE,
    OUTPUT_PREFIX,
    ingress_exchange,
    link_queue,
    marker_key,
    output_queue,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
LINK_PREFETCH = 100
SLOW = Subscription(subscriber="slow-one", number=3, pattern="alert.#", deadline_us=1_000_000, expires_s=600)
QUEUE = "out.slow-one.3"


@asynccontextmanager
async def connected(node: RabbitNode, vhost: str) -> AsyncIterator[tuple[AbstractChannel, Management]]:
    await create_vhost(node, vhost)
    connection = await aiormq.connect(amqp_url(node, vhost))
    try:
        async with management(ServerUrl.parse(management_url(node)), vhost) as api:
            yield await connection.channel(), api
    finally:
        await connection.close()


def head_plane(node: RabbitNode, vhost: str, came: list[str]) -> HeadPlane:
    return HeadPlane(
        "head",
        ServerUrl.parse(amqp_url(node, vhost)),
        frozenset({"other"}),
        MIB,
        LINK_PREFETCH,
        FenceWatch(came.append),
    )


async def test_what_waits_for_a_slow_subscriber_is_bounded_and_the_bound_lifted(node: RabbitNode) -> None:
    async with connected(node, "limits") as (channel, api):
        plane = EdgePlane(64 * MIB)
        await plane.assert_all(channel, api)
        await plane.perform(channel, api, DeclareOutput(SLOW))
        await plane.perform(channel, api, LimitOutput(SLOW.subscriber, SLOW.number, 5))

        async def waiting() -> int | None:
            return (await channel.queue_declare(QUEUE, passive=True)).message_count

        async def publish(count: int) -> None:
            for number in range(count):
                await channel.basic_publish(str(number).encode(), exchange=DELIVER_EXCHANGE, routing_key="alert.x")

        async def bounded() -> bool:
            await publish(10)
            return await waiting() == 5

        await eventually(bounded, "the oldest beyond five are dropped")
        # A process that starts anew knows of no limit: what its predecessor left is taken away.
        successor = EdgePlane(64 * MIB)
        await successor.adopt(channel, api)
        await successor.assert_all(channel, api)
        assert await api.policies(LIMIT_PREFIX) == []
        await plane.assert_all(channel, api)
        assert await api.policies(LIMIT_PREFIX) == [LIMIT_PREFIX + QUEUE]
        await plane.perform(channel, api, LimitOutput(SLOW.subscriber, SLOW.number, None))

        async def unbounded() -> bool:
            await publish(10)
            return (await waiting() or 0) > 5

        await eventually(unbounded, "the bound is lifted")
        await plane.perform(channel, api, LimitOutput(SLOW.subscriber, SLOW.number, 5))
        await plane.perform(channel, api, DeleteOutput(SLOW))
        assert await api.policies(LIMIT_PREFIX) == [], "a queue's limit goes with it"
        await plane.perform(channel, api, DeclareOutput(SLOW))
        await plane.perform(channel, api, LimitOutput(SLOW.subscriber, SLOW.number, 5))
        await channel.queue_delete(QUEUE)
        await plane.list_outputs(channel, api)
        assert await api.policies(LIMIT_PREFIX) == [], "also if it has expired"


async def test_a_queue_that_a_predecessor_declared_and_did_not_bind_is_deleted(node: RabbitNode) -> None:
    async with connected(node, "unbound") as (channel, api):
        predecessor = EdgePlane(MIB)
        await predecessor.assert_all(channel, api)
        await predecessor.perform(channel, api, DeclareOutput(SLOW))
        empty, full, consumed = (output_queue("siren", number) for number in range(3))
        for name in (empty, full, consumed):
            await channel.queue_declare(name, durable=True)
        await channel.basic_publish(b"waits", routing_key=full)
        await channel.basic_consume(consumed, lambda _: asyncio.sleep(0))
        await eventually(lambda: holds(channel, full), "the message has come")
        successor = EdgePlane(MIB)
        started = await successor.adopt(channel, api)
        assert started.outputs == (SLOW,)
        assert not channel.is_closed
        assert await api.queue_names(OUTPUT_PREFIX) == {QUEUE, full, consumed}, "what may be of use stays"


async def holds(channel: AbstractChannel, queue: str) -> bool:
    return bool((await channel.queue_declare(queue, passive=True)).message_count)


async def test_a_link_keeps_what_its_target_has_not_confirmed_and_sends_as_much_ahead_as_configured(
    node: RabbitNode,
) -> None:
    count = LINK_PREFETCH + 50
    async with (
        connected(node, "near") as (channel, api),
        connected(node, "far") as (far, _),
        turns_proxy(node.host, node.amqp_port) as proxy,
    ):
        plane = head_plane(node, "near", [])
        await plane.assert_all(channel, api)
        await far.exchange_declare(DELIVER_EXCHANGE, exchange_type="topic", durable=True)
        arrived = await far.queue_declare(durable=True)
        await far.queue_bind(arrived.queue or "", DELIVER_EXCHANGE, "#")
        url = amqp_url(node, "far").replace(f":{node.amqp_port}/", f":{proxy.port}/")
        await plane.perform(channel, api, EnsureLink("edge", LinkKind.EDGE, url))

        async def runs() -> bool:
            return (await api.shovel_states()).get(link_queue("edge")) == "running"

        await eventually(runs, "the link is there")
        # From now on the target hears the link, and the link does not hear the target.
        proxy.alter = lambda data: b""
        for number in range(count):
            await channel.basic_publish(str(number).encode(), routing_key=link_queue("edge"))

        async def all_kept() -> bool:
            sent = (await far.queue_declare(arrived.queue or "", passive=True)).message_count
            kept = (await channel.queue_declare(link_queue("edge"), passive=True)).message_count
            return (sent, kept) == (LINK_PREFETCH, count - LINK_PREFETCH)

        await eventually(all_kept, "as much is sent ahead as configured, and the rest waits", 60)
        # What was sent and not confirmed is there again when the link is gone.
        await api.delete_shovel(link_queue("edge"))

        async def all_back() -> bool:
            return (await channel.queue_declare(link_queue("edge"), passive=True)).message_count == count

        await eventually(all_back, "what was not confirmed is in the link's queue", 60)


FLOOD = FloodingPublisher("buoy~1", Flood.MESSAGES, True, 4000.0, 200.0, 200.0, 30.0, 3)


async def test_a_publisher_is_disconnected_and_nobody_else(node: RabbitNode) -> None:
    async with connected(node, "flood") as (channel, api):
        plane = head_plane(node, "flood", [])
        names = ("tidegate publisher buoy~1 data", "tidegate publisher buoy~12 data", "tidegate subscriber buoy~1")
        url = amqp_url(node, "flood")
        clients = [await aio_pika.connect(url, client_properties={"connection_name": name}) for name in names]
        order = DisconnectPublisher("buoy~1", FLOOD)

        async def listed() -> set[str]:
            async with httpx.AsyncClient(base_url=management_url(node), trust_env=False) as http:
                found = (await http.get("/api/vhosts/flood/connections")).json()
            return {str(one.get("client_properties", {}).get("connection_name")) for one in found} & set(names)

        async def all_listed() -> bool:
            return await listed() == set(names)

        async def others_left() -> bool:
            return await listed() == set(names[1:])

        await eventually(all_listed, "RabbitMQ lists the connections")
        assert await plane.perform(channel, api, order) is None
        await eventually(others_left, "its connection is closed, the others are there")
        unknown = DisconnectPublisher("ghost~1", FLOOD)
        assert isinstance(await plane.perform(channel, api, unknown), ActionFailed)
        await asyncio.gather(*(client.close() for client in clients))


async def test_a_fence_is_told_once_even_if_it_came_while_nobody_was_connected(node: RabbitNode) -> None:
    key = "tidegate.marker.other~1~p1.other"
    came: list[str] = []
    plane = head_plane(node, "fences", came)
    async with connected(node, "fences") as (channel, api):
        await plane.assert_all(channel, api)
        await plane.perform(channel, api, WatchFence("other", key))
        await plane.perform(channel, api, WatchFence("other", key + "2"))
        await plane.perform(channel, api, WatchFence("other", key + "3"))
        await plane.perform(channel, api, UnwatchFence("other", key + "3"))
        await channel.basic_publish(b"", exchange=ingress_exchange("other"), routing_key=key + "2")
        await eventually(lambda: came == [key + "2"], "the fence is told")
    async with connected(node, "fences") as (channel, api):
        for _ in range(2):
            await channel.basic_publish(b"", exchange=ingress_exchange("other"), routing_key=key)
            await channel.basic_publish(b"", exchange=ingress_exchange("other"), routing_key=key + "3")
        await plane.assert_all(channel, api)
        await eventually(lambda: came == [key + "2", key], "the fence that came meanwhile is told")
        await plane.assert_all(channel, api)
        assert plane.fences.watched == {}
        assert await api.alarms() == frozenset()


async def test_a_marker_goes_into_the_links_it_is_for_and_into_no_other(node: RabbitNode) -> None:
    plane = head_plane(node, "markers", [])
    links = ("one", "two", "three")
    m1, m2, m3, m4 = (marker_key(f"m{number}", "head") for number in range(1, 5))

    async def waiting(channel: AbstractChannel) -> list[list[str]]:
        found: list[list[str]] = []
        for link in links:
            keys: list[str] = []
            while (got := await channel.basic_get(link_queue(link), no_ack=True)).delivery_tag is not None:
                keys.append(str(got.routing_key))
            found.append(keys)
        return found

    async with connected(node, "markers") as (channel, api):
        await plane.assert_all(channel, api)
        for link in links:
            # Nobody listens there: what is sent stays in the queues.
            await plane.perform(channel, api, EnsureLink(link, LinkKind.EDGE, "amqp://127.0.0.1:1"))
            await api.delete_shovel(link_queue(link))
        await plane.perform(channel, api, ChangeRoutes(1, "three", add=("#",)))
        markers = [PublishMarker(m1, ("one", "two")), PublishMarker(m2, ("two",))]
        done = await asyncio.gather(*(plane.perform(channel, api, marker) for marker in markers))
        assert done == [MarkerPublished(m1), MarkerPublished(m2)]
        first, second, third = await waiting(channel)
        assert (first, sorted(second), third) == ([m1], [m1, m2], [])
        # Without a target it goes where the routes lead.
        await plane.perform(channel, api, PublishMarker(m3))
        assert await waiting(channel) == [[], [], [m3]]
    async with connected(node, "markers") as (channel, api):
        await plane.assert_all(channel, api)
        await plane.perform(channel, api, PublishMarker(m4, ("one",)))
        assert await waiting(channel) == [[m4], [], []]
