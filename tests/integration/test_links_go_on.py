"""Whatever a publisher sends, links go on: no single message stops a link, and everything behind it arrives.

Two heads and an edge of the first with the accounts that `tidegate access prepare` makes. A plain AMQP client publishes
at either head; a subscriber is at the edge.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aio_pika
import pytest
import pytest_asyncio
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, HeadersType

from tests.support.guarded import Guarded, guarded_cluster
from tests.support.waiting import eventually
from tidegate import AsyncSubscriber, Message
from tidegate_brokers.plane.fences import FenceWatch
from tidegate_embedded.nodes import RabbitNode, amqp_url, create_vhost
from tidegate_protocol.form import BODY_BYTES_MAX
from tidegate_protocol.names import (
    CONTROL_EXCHANGE,
    DELIVER_EXCHANGE,
    PUBLISH_EXCHANGE,
    broker_key,
    ingress_exchange,
    marker_key,
    output_queue,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEAD, NEIGHBOUR, EDGE = "head", "north", "edge-1"
PUBLISHER = "buoy"
LAYOUT = """
[[head]]
name = "head"
cluster = "main"
host = "{host}"
port = {port}
vhost = "head"

[[head]]
name = "north"
cluster = "north"
host = "{host}"
port = {port}
vhost = "north"

[[link]]
between = ["head", "north"]

[[edge]]
name = "edge-1"
head = "head"
host = "{host}"
port = {port}
vhost = "edge-1"

[[client]]
name = "siren"
subscribe = true

[[client]]
name = "buoy"
publish = true
"""
BOTH_WAYS = pytest.mark.parametrize("head", [HEAD, NEIGHBOUR], ids=["to an edge", "to a head and its edge"])


@dataclass
class Listening:
    """A cluster with a subscriber at its edge."""

    cluster: Guarded
    node: RabbitNode
    got: list[bytes] = field(default_factory=list)
    """What the subscriber's application has been given."""
    crossed: list[AbstractIncomingMessage] = field(default_factory=list)
    """What has come over the link to the edge, with its properties."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def heard(self, message: Message) -> None:
        self.got.append(message.body)

    async def publish(
        self, head: str, message: aio_pika.Message, key: str = "t.a", exchange: str = PUBLISH_EXCHANGE
    ) -> None:
        """As a client that knows nothing of us; raises what RabbitMQ refuses."""
        async with self.cluster.channel(PUBLISHER, head) as channel:
            await (await channel.get_exchange(exchange, ensure=False)).publish(message, key, mandatory=False)

    async def goes_on(self, head: str) -> None:
        """What is published now arrives."""
        body = b"after %d" % next(self.numbers)
        await self.publish(head, aio_pika.Message(body))
        await eventually(lambda: body in self.got, f"{body!r}, from {head}, arrives")

    async def is_routed(self, head: str) -> bool:
        body = b"before %d" % next(self.numbers)
        await self.publish(head, aio_pika.Message(body))
        try:
            await eventually(lambda: body in self.got, "it arrives", timeout_s=1)
        except AssertionError:
            return False
        return True


@asynccontextmanager
async def tapped(node: RabbitNode, crossed: list[AbstractIncomingMessage]) -> AsyncIterator[None]:
    """See all that reaches the edge, as the owner of its RabbitMQ."""
    await create_vhost(node, EDGE)
    async with await aio_pika.connect(amqp_url(node, EDGE)) as connection:
        queue = await (await connection.channel()).declare_queue(exclusive=True)
        await queue.bind(DELIVER_EXCHANGE, "#")

        async def came(message: AbstractIncomingMessage) -> None:
            crossed.append(message)

        await queue.consume(came, no_ack=True)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def listening(node: RabbitNode, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listening]:
    async with guarded_cluster(node, tmp_path_factory.mktemp("access"), LAYOUT) as cluster:
        found = Listening(cluster, node)
        async with tapped(node, found.crossed), AsyncSubscriber(cluster.url("siren"), name="siren") as subscriber:
            await subscriber.subscribe("t.#", deadline=5, callback=found.heard)
            for head in (HEAD, NEIGHBOUR):
                await eventually(lambda head=head: found.is_routed(head), f"there is a route from {head}")
            yield found
            for name, process in cluster.processes.items():
                refused = await process.metric('tidegate_control_malformed_messages_total{reason="not-yours"}')
                assert not refused, f"{name} takes what its neighbours and edges say"


@BOTH_WAYS
async def test_a_publication_that_names_its_account_arrives_and_so_does_everything_behind_it(
    listening: Listening, head: str
) -> None:
    bodies = [b"%s %d" % (head.encode(), number) for number in range(6)]
    for number, body in enumerate(bodies):
        user = PUBLISHER if number % 2 else None
        await listening.publish(head, aio_pika.Message(body, user_id=user))
    await eventually(lambda: bodies[-1] in listening.got, "the last one arrives")
    assert [body for body in listening.got if body in bodies] == bodies
    users = {message.body: message.user_id for message in listening.crossed}
    assert [users[body] for body in bodies] == [None, PUBLISHER] * 3, "the publisher's account is passed on"


@BOTH_WAYS
async def test_nobody_publishes_in_the_name_of_another_account(listening: Listening, head: str) -> None:
    """Links pass on what a head has checked; so the head must check."""
    for pretended in ("siren", "link.head", "broker.head"):
        with pytest.raises(aio_pika.exceptions.ChannelClosed, match="user_id property"):
            await listening.publish(head, aio_pika.Message(b"forged", user_id=pretended))
    await listening.goes_on(head)
    assert b"forged" not in listening.got


@BOTH_WAYS
async def test_the_largest_body_arrives_and_a_larger_one_is_refused_at_the_head(
    listening: Listening, head: str
) -> None:
    largest = bytes(BODY_BYTES_MAX)
    await listening.publish(head, aio_pika.Message(largest, user_id=PUBLISHER, headers={"h": "x" * 1000}))
    await eventually(lambda: largest in listening.got, "the largest body arrives")
    listening.got.remove(largest)
    with pytest.raises(aio_pika.exceptions.ChannelClosed, match="larger than configured max size"):
        await listening.publish(head, aio_pika.Message(bytes(BODY_BYTES_MAX + 1)))
    await listening.goes_on(head)


ODD: dict[str, aio_pika.Message] = {
    "expires at once": aio_pika.Message(b"odd", expiration=0),
    "priority": aio_pika.Message(b"odd", priority=255),
    "headers that fill a frame": aio_pika.Message(b"odd", headers={"h": "x" * (131_072 - 100)}, user_id=PUBLISHER),
    "headers of RabbitMQ's own": aio_pika.Message(
        b"odd", headers={"x-death": [{"queue": 1, "count": "no"}], "x-shovelled": 1, "x-received-from": {"a": None}}
    ),
    "more keys": aio_pika.Message(b"odd", headers={"CC": [f"t.{number}" for number in range(500)]}),
    "more keys, unseen": aio_pika.Message(b"odd", headers={"BCC": ["t.b"]}),
    "a reply address": aio_pika.Message(b"odd", reply_to="amq.rabbitmq.reply-to.g1h2AA.xyz=="),
}


@BOTH_WAYS
@pytest.mark.parametrize("what", ODD)
async def test_odd_properties_stop_nothing(listening: Listening, head: str, what: str) -> None:
    await listening.publish(head, ODD[what])
    await listening.goes_on(head)


@BOTH_WAYS
async def test_a_reserved_key_beside_the_own_one_stops_nothing(listening: Listening, head: str) -> None:
    """RabbitMQ 4 refuses it to the publisher; 3.10 takes it, and what comes of it must not be refused to the link."""
    headers: HeadersType = {"CC": [marker_key("m~1", head), "t.b"]}
    with suppress(aio_pika.exceptions.ChannelClosed):
        await listening.publish(head, aio_pika.Message(b"odd", headers=headers))
    await listening.goes_on(head)


DEEDS: dict[str, tuple[str, str, str, str]] = {
    "a link to an edge, straight into a queue": ("link.head", EDGE, "", output_queue("siren", 0)),
    "a link to a head, control": ("link.north", HEAD, CONTROL_EXCHANGE, broker_key(HEAD)),
    "a link to a head, as a publisher": ("link.north", HEAD, PUBLISH_EXCHANGE, "t.a"),
    "a link to a head, straight into a queue": ("link.north", HEAD, "", "link.edge-1"),
    "a neighbour's process, as its link": ("broker.north", HEAD, ingress_exchange(NEIGHBOUR), "t.a"),
}


@pytest.mark.parametrize("what", DEEDS)
async def test_the_account_of_a_link_delivers_and_does_nothing_else(listening: Listening, what: str) -> None:
    user, vhost, exchange, key = DEEDS[what]
    async with listening.cluster.channel(user, vhost) as channel:
        with pytest.raises(aio_pika.exceptions.ChannelClosed, match="ACCESS_REFUSED"):
            await (await channel.get_exchange(exchange, ensure=False)).publish(
                aio_pika.Message(b"x"), key, mandatory=False
            )


async def test_a_fence_is_not_taken_for_come_by_a_message_that_carries_its_key_beside_its_own(node: RabbitNode) -> None:
    """RabbitMQ 3.10 lets a publisher name reserved keys in the header CC."""
    await create_vhost(node, "fences")
    fence, came = "tidegate.fence.m:1", asyncio.Queue[str]()
    watch = FenceWatch(came.put_nowait)
    async with await aio_pika.connect(amqp_url(node, "fences")) as connection:
        channel: AbstractChannel = await connection.channel()
        exchange = await channel.declare_exchange(ingress_exchange(NEIGHBOUR), "topic", durable=True)
        await watch.watch(await channel.get_underlay_channel(), NEIGHBOUR, fence)
        await exchange.publish(aio_pika.Message(b"", headers={"CC": [fence]}), "t.a", mandatory=False)

        async def taken() -> bool:
            queue = await channel.get_queue(f"fence.{fence}")
            return queue.declaration_result.message_count == 0

        await eventually(taken, "the pretended fence has been looked at")
        assert (NEIGHBOUR, fence) in watch.watched
        await exchange.publish(aio_pika.Message(b""), fence, mandatory=False)
        assert await asyncio.wait_for(came.get(), 20) == fence
        assert came.empty()
