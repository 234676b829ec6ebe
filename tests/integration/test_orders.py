"""Orders of a head to a running subscriber, on a real RabbitMQ: heard after a lost connection, obeyed across heads.

Two virtual hosts of one node stand for two clusters, and `Head` says and hears what the head of each would. How whole
clusters move their subscribers is tested in `test_migration.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

import aio_pika
import httpx
import pytest
import pytest_asyncio
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage

from tests.support.waiting import eventually
from tidegate import AsyncSubscriber, Message
from tidegate_embedded.nodes import RabbitNode, create_vhost, management_url
from tidegate_protocol.balancing.migrations import (
    MigrateCancel,
    MigrateOrder,
    MigrationAck,
    MigrationReport,
    MigrationStage,
)
from tidegate_protocol.balancing.places import PlaceReply, PlaceRequest
from tidegate_protocol.messages import (
    ControlMessage,
    Refusal,
    SubscribeReply,
    SubscribeRequest,
    Subscription,
    UnsubscribeReply,
    UnsubscribeRequest,
    decode,
    encode,
)
from tidegate_protocol.names import (
    ANSWER_KEY,
    CONTROL_EXCHANGE,
    DELIVER_EXCHANGE,
    HOM_KEY,
    client_key,
    marker_key,
    output_queue,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATTERN = "quake.#"


class Head:
    """A head and its only edge, on one virtual host."""

    def __init__(self, node: RabbitNode, name: str) -> None:
        self.name = name
        self.url = f"amqp://{node.host}:{node.amqp_port}/{name}"
        self.address = f"amqp://{node.user}:{node.password}@{node.host}:{node.amqp_port}/{name}"
        self.heard: list[ControlMessage] = []
        self._answers: dict[str, asyncio.Future[ControlMessage]] = {}

    async def __aenter__(self) -> Self:
        self.connection = await aio_pika.connect(self.address)
        self.channel: AbstractChannel = await self.connection.channel(on_return_raises=True)
        self.deliver: AbstractExchange = await self.channel.declare_exchange(DELIVER_EXCHANGE, "topic")
        self.control: AbstractExchange = await self.channel.declare_exchange(CONTROL_EXCHANGE, "topic", durable=True)
        inbox = await self.channel.declare_queue(exclusive=True)
        await inbox.bind(self.control, HOM_KEY)
        await inbox.consume(self._on_message, no_ack=True)
        answers = await self.channel.declare_queue(exclusive=True)
        await answers.bind(self.control, ANSWER_KEY)
        await answers.consume(self._on_answer, no_ack=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    async def make_queue(self, subscriber: str, number: int, pattern: str) -> str:
        queue = await self.channel.declare_queue(output_queue(subscriber, number), durable=True)
        await queue.bind(self.deliver, pattern)
        await queue.bind(self.deliver, "tidegate.marker.#")
        return queue.name

    async def order(self, client: str, order: ControlMessage) -> ControlMessage | None:
        """The client's answer; None if nobody listens."""
        number = str(len(self._answers))
        self._answers[number] = asyncio.get_running_loop().create_future()
        message = aio_pika.Message(encode(order), correlation_id=number, reply_to=ANSWER_KEY)
        try:
            await self.control.publish(message, client_key(client), mandatory=True)
        except aio_pika.exceptions.PublishError:
            return None
        return await asyncio.wait_for(self._answers[number], 30)

    async def publish(self, *numbers: int) -> None:
        for number in numbers:
            message = aio_pika.Message(str(number).encode(), message_id=f"p~1:quake.izu:{number}")
            await self.deliver.publish(message, "quake.izu")

    def reports(self, stage: MigrationStage) -> list[MigrationReport]:
        return [each for each in self.heard if isinstance(each, MigrationReport) and each.stage is stage]

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        request = decode(message.body)
        self.heard.append(request)
        answer: ControlMessage | None = None
        if isinstance(request, SubscribeRequest):
            queue = await self.make_queue(request.subscriber, 0, request.pattern)
            subscription = Subscription(number=0, **request.model_dump(exclude={"kind", "v", "unreachable"}))
            answer = SubscribeReply(subscription=subscription, edge=f"{self.name}-edge", url=self.url, queue=queue)
        elif isinstance(request, MigrationReport):
            answer = MigrationAck(migration=request.migration)
        elif isinstance(request, UnsubscribeRequest):
            await self.channel.queue_delete(output_queue(request.subscriber, request.number))
            answer = UnsubscribeReply(subscriber=request.subscriber, number=request.number)
        if answer is not None and message.reply_to:
            reply = aio_pika.Message(encode(answer), correlation_id=message.correlation_id)
            await self.channel.default_exchange.publish(reply, message.reply_to)

    async def _on_answer(self, message: AbstractIncomingMessage) -> None:
        assert message.correlation_id is not None
        self._answers[message.correlation_id].set_result(decode(message.body))


@pytest_asyncio.fixture(loop_scope="module")
async def heads(node: RabbitNode) -> AsyncIterator[tuple[Head, Head]]:
    for name in ("home", "abroad"):
        await create_vhost(node, name)
    async with Head(node, "home") as home, Head(node, "abroad") as abroad:
        yield home, abroad


async def order_abroad(home: Head, abroad: Head, client: str, migration: str) -> MigrateOrder:
    return MigrateOrder(
        migration=migration,
        subscriber=client,
        pattern=PATTERN,
        edge_from="home-edge",
        number_from=0,
        edge="abroad-edge",
        number=7,
        url=abroad.url,
        queue=await abroad.make_queue(client, 7, PATTERN),
        head="abroad",
        head_url=abroad.url,
        heads=("home",),
        timeout_us=30_000_000,
    )


async def test_a_subscription_moves_to_another_head_and_belongs_there(heads: tuple[Head, Head]) -> None:
    home, abroad = heads
    got: list[Message] = []
    async with AsyncSubscriber(home.address, name="mover") as subscriber:
        subscription = await subscriber.subscribe(PATTERN, deadline=60, callback=got.append)
        await home.publish(0, 1, 2)
        order = await order_abroad(home, abroad, "mover", "m1")
        answer = await home.order("mover", order)
        assert isinstance(answer, MigrationReport)
        assert answer.stage is MigrationStage.ORDERED
        await eventually(lambda: home.reports(MigrationStage.ATTACHED), "it is attached to both")

        # The old queue goes on; what the new one brings waits.
        await home.publish(3, 4)
        await abroad.publish(2, 3, 4, 5)
        await eventually(lambda: len(got) == 5, "what the old queue brought is delivered")
        await eventually(lambda: subscription.statistics().held == 4, "the rest waits")
        for head in heads:
            await head.deliver.publish(aio_pika.Message(b""), marker_key("m1", "home"))
        await eventually(lambda: home.reports(MigrationStage.MOVED), "it has moved")
        await abroad.publish(6)
        await eventually(lambda: len(got) == 7, "it is served from the new queue")
        assert [int(message.body) for message in got] == list(range(7))
        assert (subscription.edge, subscription.statistics().migrations) == ("abroad-edge", 1)

        # It belongs to the other head now, and the one before finds nobody.
        question = PlaceRequest(subscriber="mover", pattern=PATTERN)

        async def answers_abroad() -> bool:
            return isinstance(await abroad.order("mover", question), PlaceReply)

        async def answers_nobody() -> bool:
            return await home.order("mover", question) is None

        await eventually(answers_abroad, "it listens to the new head")
        await eventually(answers_nobody, "it listens to the old one no more")
        await subscription.unsubscribe()
        await eventually(
            lambda: any(isinstance(each, UnsubscribeRequest) for each in abroad.heard), "the new head hears it"
        )
        assert not any(isinstance(each, UnsubscribeRequest) for each in home.heard)


async def test_orders_are_heard_again_after_the_connection_was_cut(node: RabbitNode, heads: tuple[Head, Head]) -> None:
    home, abroad = heads
    async with AsyncSubscriber(home.address, name="listener") as subscriber:
        subscription = await subscriber.subscribe(PATTERN, deadline=60)
        await eventually(lambda: cut(node, "subscriber listener control"), "the control connection is listed")
        order = await order_abroad(home, abroad, "listener", "m2")

        async def obeys() -> bool:
            return isinstance(await home.order("listener", order), MigrationReport)

        await eventually(obeys, "it listens again")
        # What can't be read harms nobody, and what is meant for nobody is answered.
        await home.control.publish(aio_pika.Message(b"{"), client_key("listener"))
        other = await home.order("listener", PlaceRequest(subscriber="listener", pattern="other"))
        assert isinstance(other, Refusal)
        cancelled = await home.order("listener", MigrateCancel(migration="m2", subscriber="listener", pattern=PATTERN))
        assert isinstance(cancelled, MigrationReport)
        assert cancelled.stage is MigrationStage.STAYED
        assert subscription.edge == "home-edge"
        await home.publish(10)
        assert (await anext(subscription)).body == b"10"


async def cut(node: RabbitNode, part: str) -> int:
    async with httpx.AsyncClient(base_url=management_url(node), timeout=30) as client:
        connections = (await client.get("/api/connections")).json()
        names = [
            each["name"] for each in connections if part in each.get("client_properties", {}).get("connection_name", "")
        ]
        for name in names:
            await client.delete(f"/api/connections/{name}")
    return len(names)
