"""A head as clients see it: answers in place of a head's process, with all queues on one node."""

from __future__ import annotations

from typing import Self

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage
from pamqp.common import FieldValue

from tidegate_embedded.nodes import RabbitNode, amqp_url
from tidegate_protocol.messages import (
    ControlMessage,
    PublisherGoodbye,
    PublisherHello,
    PublisherWelcome,
    Refusal,
    RefusalReason,
    SubscribeReply,
    SubscribeRequest,
    Subscription,
    UnsubscribeReply,
    UnsubscribeRequest,
    decode,
    encode,
)
from tidegate_protocol.names import CONTROL_EXCHANGE, HOM_KEY, PUBLISH_EXCHANGE, output_queue


class Hom:
    """Answers clients as a head does; the queues are on the same node."""

    def __init__(self, node: RabbitNode) -> None:
        self._node = node
        self.numbers: dict[tuple[str, str], int] = {}
        self.kinds: list[str] = []
        self.queue_arguments: dict[str, FieldValue] = {}

    async def __aenter__(self) -> Self:
        self.connection = await aio_pika.connect(amqp_url(self._node))
        self.channel: AbstractChannel = await self.connection.channel()
        self.publish: AbstractExchange = await self.channel.declare_exchange(PUBLISH_EXCHANGE, "topic", durable=True)
        control = await self.channel.declare_exchange(CONTROL_EXCHANGE, "topic", durable=True)
        queue = await self.channel.declare_queue(exclusive=True)
        await queue.bind(control, HOM_KEY)
        await queue.consume(self._on_message, no_ack=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        request = decode(message.body)
        self.kinds.append(request.kind)
        reply = await self._answer(request)
        if reply is not None and message.reply_to:
            answer = aio_pika.Message(encode(reply), correlation_id=message.correlation_id)
            await self.channel.default_exchange.publish(answer, message.reply_to)

    async def _answer(self, request: ControlMessage) -> ControlMessage | None:
        if isinstance(request, SubscribeRequest):
            return await self._subscribe(request)
        if isinstance(request, UnsubscribeRequest):
            await self.channel.queue_delete(output_queue(request.subscriber, request.number))
            return UnsubscribeReply(subscriber=request.subscriber, number=request.number)
        if isinstance(request, PublisherHello):
            return PublisherWelcome(publisher=request.publisher, head="head", period_s=0.2)
        assert isinstance(request, PublisherGoodbye)
        return None

    async def _subscribe(self, request: SubscribeRequest) -> SubscribeReply | Refusal:
        if request.pattern == "refused":
            return Refusal(reason=RefusalReason.NO_EDGE, message="no edge is alive")
        key = (request.subscriber, request.pattern)
        number = self.numbers.setdefault(key, len([name for name, _ in self.numbers if name == key[0]]))
        queue = await self.channel.declare_queue(
            output_queue(request.subscriber, number), durable=True, arguments=self.queue_arguments
        )
        await queue.bind(self.publish, request.pattern)
        return SubscribeReply(
            subscription=Subscription(number=number, **request.model_dump(exclude={"kind", "v"})),
            edge="edge",
            url=f"amqp://{self._node.host}:{self._node.amqp_port}/%2F",
            queue=queue.name,
        )
