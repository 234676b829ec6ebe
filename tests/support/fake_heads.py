"""Heads that do as a test tells them, on virtual hosts of a real RabbitMQ: the other side of a publisher's contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage

from tidegate_embedded.nodes import RabbitNode, amqp_url, create_vhost
from tidegate_protocol.balancing.publishers import PublisherMoveAck, PublisherMoveReport, PublisherStage
from tidegate_protocol.messages import (
    ControlMessage,
    PublisherHello,
    PublisherReport,
    PublisherWelcome,
    decode,
    encode,
)
from tidegate_protocol.names import ANSWER_KEY, CONTROL_EXCHANGE, HOM_KEY, PUBLISH_EXCHANGE, client_key

HELLO_S = 0.2
ANSWER_S = 30.0


class FakeHead:
    """One head. It acknowledges every report, and keeps what it is told and what is published at it."""

    def __init__(self, node: RabbitNode, name: str) -> None:
        self.name = name
        self.url = amqp_url(node, name)
        self.place = f"amqp://{node.host}:{node.amqp_port}/{name}"
        """Its address as an order names it: without credentials."""
        self.bodies: list[bytes] = []
        self.hellos: list[PublisherHello] = []
        self.reports: list[PublisherReport] = []
        self.moves: list[PublisherMoveReport] = []
        self._answers: dict[str, asyncio.Future[ControlMessage]] = {}
        self._numbers = count(1)
        self._channel: AbstractChannel
        self._control: AbstractExchange

    async def open(self, channel: AbstractChannel) -> None:
        self._channel = channel
        publish = await channel.declare_exchange(PUBLISH_EXCHANGE, "topic", durable=True)
        self._control = await channel.declare_exchange(CONTROL_EXCHANGE, "topic", durable=True)
        requests = await channel.declare_queue(exclusive=True)
        await requests.bind(self._control, HOM_KEY)
        await requests.consume(self._on_request, no_ack=True)
        answers = await channel.declare_queue(exclusive=True)
        await answers.bind(self._control, ANSWER_KEY)
        await answers.consume(self._on_answer, no_ack=True)
        everything = await channel.declare_queue(exclusive=True)
        await everything.bind(publish, "#")
        await everything.consume(self._on_publication, no_ack=True)

    def stages(self, move: str) -> list[PublisherStage]:
        """What a publisher has reported of a move, repetitions left out."""
        return list(dict.fromkeys(report.stage for report in self.moves if report.move == move))

    async def order(self, publisher: str, message: ControlMessage) -> ControlMessage:
        """Send an order, again until it is answered: the publisher may not be listening yet."""
        async with asyncio.timeout(ANSWER_S):
            while True:
                correlation = str(next(self._numbers))
                answer = self._answers[correlation] = asyncio.get_running_loop().create_future()
                await self.tell(publisher, message, correlation)
                done, _ = await asyncio.wait({answer}, timeout=1.0)
                if done:
                    return answer.result()

    async def tell(self, publisher: str, message: ControlMessage, correlation: str | None = None) -> None:
        """Send an order; without a correlation nobody waits for an answer."""
        reply_to = ANSWER_KEY if correlation is not None else None
        content = aio_pika.Message(encode(message), reply_to=reply_to, correlation_id=correlation)
        await self._control.publish(content, client_key(publisher), mandatory=False)

    async def _on_publication(self, message: AbstractIncomingMessage) -> None:
        self.bodies.append(message.body)

    async def _on_answer(self, message: AbstractIncomingMessage) -> None:
        answer = self._answers.pop(message.correlation_id or "", None)
        if answer is not None and not answer.done():
            answer.set_result(decode(message.body))

    async def _on_request(self, message: AbstractIncomingMessage) -> None:
        reply: ControlMessage | None = None
        match decode(message.body):
            case PublisherHello() as hello:
                self.hellos.append(hello)
                reply = PublisherWelcome(publisher=hello.publisher, head=self.name, period_s=HELLO_S)
            case PublisherReport() as report:
                self.reports.append(report)
            case PublisherMoveReport() as report:
                self.moves.append(report)
                reply = PublisherMoveAck(move=report.move)
        if reply is not None and message.reply_to:
            answer = aio_pika.Message(encode(reply), correlation_id=message.correlation_id)
            await self._channel.default_exchange.publish(answer, message.reply_to, mandatory=False)


@asynccontextmanager
async def fake_heads(node: RabbitNode, *names: str) -> AsyncIterator[list[FakeHead]]:
    """Heads on virtual hosts of their own."""
    heads: list[FakeHead] = []
    connections = []
    try:
        for name in names:
            await create_vhost(node, name)
            head = FakeHead(node, name)
            connections.append(await aio_pika.connect(head.url))
            await head.open(await connections[-1].channel(publisher_confirms=False))
            heads.append(head)
        yield heads
    finally:
        for connection in connections:
            await connection.close()
