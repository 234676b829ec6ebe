"""Channels on asyncio: aiormq's, with four frame handlers replaced.

aiormq's own handlers start a task per delivery, keep a future per publication and take one turn of the event loop per
frame; that is most of what the library costs. Here publications are written as ready-made frames
(`tidegate_protocol.amqp`), many at a time. Requests that follow each other (open a channel and consume on it, declare a
queue for orders) are written at once, and then their answers are waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import aiormq
import aiormq.exceptions
from aiormq.abc import ChannelFrame, ConfirmationFrameType
from pamqp import commands as spec
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from tidegate_protocol.amqp.publications import encode_publication

from .._core.config import Address
from .._core.publishing import Topic
from .._core.window import Publication
from .._engine.runtime import ChannelLost, Confirm, Consumer, Deliver, Order, Reply, Returned, new_tag
from .aio_transport import unseal

logger = logging.getLogger(__name__)

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
PUBLICATIONS_PER_WRITE: Final = 100
ORDERS_MAX: Final = 1_000
"""Orders that wait for a client. Beyond that RabbitMQ drops the oldest; the head repeats what is not answered."""
RPC_S: Final = 10.0
CLOSE_S: Final = 3.0


class LeanChannel(aiormq.Channel):
    """aiormq's channel, with deliveries, confirmations and returns handed straight to callbacks."""

    deliver: Callable[[spec.Basic.Deliver, dict[str, Any], bytes], None] | None = None
    confirm: Confirm | None = None
    returned: Returned | None = None

    async def ask(self, requests: Sequence[Frame], written: bool = False) -> None:
        """Write all requests at once, unless that has been done, and wait for their answers."""
        await self.create_task(self._ask(requests, written))

    async def _ask(self, requests: Sequence[Frame], written: bool) -> None:
        async with self.lock:
            if not written:
                await self.write_queue.put(ChannelFrame.marshall(self.number, requests))
            # aiormq's own note that RabbitMQ knows this channel, so that it is closed there when a request fails.
            self._Channel__open_sent = True
            for request in requests:
                answer = await self.rpc_frames.get()
                self.rpc_frames.task_done()
                if answer.name not in request.valid_responses:
                    raise aiormq.exceptions.InvalidFrameError(f"{request.name} was answered with {answer.name}")

    async def _on_deliver_frame(self, frame: spec.Basic.Deliver) -> None:
        properties, body = await self._content()
        if self.deliver is not None:
            self.deliver(frame, properties, body)

    async def _on_return_frame(self, frame: spec.Basic.Return) -> None:
        properties, _ = await self._content()
        if self.returned is not None:
            self.returned(properties.get("correlation_id"))

    async def _on_confirm_frame(self, frame: ConfirmationFrameType) -> None:
        if self.confirm is not None:
            assert frame.delivery_tag is not None
            self.confirm(frame.delivery_tag, bool(getattr(frame, "multiple", False)), isinstance(frame, spec.Basic.Ack))

    async def _content(self) -> tuple[dict[str, Any], bytes]:
        header = await self._get_frame()
        assert isinstance(header, ContentHeader)
        parts: list[bytes] = []
        left = header.body_size
        while left > 0:
            part = await self._get_frame()
            assert isinstance(part, ContentBody)
            left -= len(part.value)
            parts.append(part.value)
        return unseal(header), parts[0] if len(parts) == 1 else b"".join(parts)


class AioChannel:
    """See `runtime.Channel`."""

    def __init__(self, address: Address, channel: LeanChannel, on_lost: Callable[[], None]) -> None:
        self.lost: ChannelLost | None = None
        self._address = address
        self._channel = channel
        self._on_lost = on_lost
        self._reply: Reply | None = None
        self._orders: dict[str, Order] = {}
        channel.closing.add_done_callback(self._closed)
        channel.on_consumer_cancel_callbacks.add(self._cancelled)

    async def publish(self, publications: Sequence[Publication], topics: Mapping[str, Topic]) -> None:
        number = self._channel.number
        frame_max = self._channel.connection.connection_tune.frame_max
        for start in range(0, len(publications), PUBLICATIONS_PER_WRITE):
            payload = b"".join(
                [
                    encode_publication(number, topics[each.topic].publish, each.properties, each.body, frame_max)
                    for each in publications[start : start + PUBLICATIONS_PER_WRITE]
                ]
            )
            await self._write(payload)
            if self.lost is not None:
                return

    async def open(self, confirm: bool) -> None:
        """Open a channel that was only made."""
        requests: list[Frame] = [spec.Channel.Open()]
        await self._ask([*requests, spec.Confirm.Select()] if confirm else requests)

    async def look_for(self, exchange: str) -> None:
        """Open a channel that was only made, and ask for an exchange; RabbitMQ closes the channel if there is none."""
        await self._ask([spec.Channel.Open(), spec.Exchange.Declare(exchange=exchange, passive=True)])

    async def attach(self, consumer: Consumer, tag: str, written: bool) -> None:
        """Open a channel that was only made, and consume on it."""
        self._deliver_to(consumer.deliver)
        self._channel.consumers[tag] = _unused
        await self._ask(attaching(consumer, tag), written)

    async def consume(self, queue: str, prefetch: int, deliver: Deliver) -> None:
        self._deliver_to(deliver)
        tag = new_tag()
        self._channel.consumers[tag] = _unused
        await self._ask(attaching(Consumer(queue, prefetch, deliver), tag)[1:])

    async def listen(self, reply: Reply) -> None:
        self._reply = reply
        self._channel.deliver = self._control_delivered
        tag = new_tag()
        self._channel.consumers[tag] = _unused
        await self._ask([spec.Basic.Consume(queue=DIRECT_REPLY_TO, no_ack=True, consumer_tag=tag)])

    async def take_orders(self, exchange: str, key: str, order: Order) -> None:
        self._orders[key] = order
        self._channel.deliver = self._control_delivered
        tag = new_tag()
        self._channel.consumers[tag] = _unused
        # A queue without a name is the one declared last on the channel.
        declare = spec.Queue.Declare(exclusive=True, auto_delete=True, arguments={"x-max-length": ORDERS_MAX})
        bind = spec.Queue.Bind(exchange=exchange, routing_key=key)
        await self._ask([declare, bind, spec.Basic.Consume(no_ack=True, consumer_tag=tag)])

    async def answer(self, exchange: str, key: str, correlation: str, body: bytes) -> None:
        properties = spec.Basic.Properties(
            content_type="application/json", correlation_id=correlation, delivery_mode=1, user_id=self._address.user
        )
        await self._write_message(spec.Basic.Publish(exchange=exchange, routing_key=key), properties, body)

    async def request(self, exchange: str, key: str, body: bytes, correlation: str, expires_ms: int) -> None:
        properties = spec.Basic.Properties(
            content_type="application/json",
            reply_to=DIRECT_REPLY_TO if correlation else None,
            correlation_id=correlation or None,
            expiration=str(expires_ms),
            delivery_mode=1,
            user_id=self._address.user,
        )
        await self._write_message(
            spec.Basic.Publish(exchange=exchange, routing_key=key, mandatory=True), properties, body
        )

    async def acknowledge(self, acks: Sequence[tuple[int, bool]]) -> None:
        for tag, multiple in acks:
            if self.lost is not None:
                return
            frame = spec.Basic.Ack(delivery_tag=tag, multiple=multiple)
            await self._write(ChannelFrame.marshall(self._channel.number, [frame]).payload)

    async def close(self) -> None:
        # Not cancelled when it takes long: aiormq would close a second time, and RabbitMQ answers that by closing the
        # connection, with all its other channels.
        closing = asyncio.ensure_future(self._channel.close(None))
        closing.add_done_callback(self._note_close)
        await asyncio.wait({closing}, timeout=CLOSE_S)

    def _note_close(self, closing: asyncio.Future[None]) -> None:
        if not closing.cancelled() and closing.exception() is not None:
            logger.debug("cannot close a channel to %s in order: %r", self._address, closing.exception())

    def _deliver_to(self, deliver: Deliver) -> None:
        def delivered(frame: spec.Basic.Deliver, properties: dict[str, Any], body: bytes) -> None:
            assert frame.delivery_tag is not None
            deliver(
                frame.delivery_tag,
                frame.routing_key or "",
                body,
                properties.get("message_id"),
                properties.get("headers"),
                bool(frame.redelivered),
                properties.get("user_id"),
            )

        self._channel.deliver = delivered

    def _control_delivered(self, frame: spec.Basic.Deliver, properties: dict[str, Any], body: bytes) -> None:
        order, correlation = self._orders.get(frame.routing_key or ""), properties.get("correlation_id")
        if order is not None:
            order(body, properties.get("reply_to"), correlation)
        elif self._reply is not None:
            self._reply(correlation, body)

    async def _write_message(self, publish: spec.Basic.Publish, properties: spec.Basic.Properties, body: bytes) -> None:
        header = ContentHeader(properties=properties, body_size=len(body))
        parts = self._channel._split_body(body)
        await self._write(ChannelFrame.marshall(self._channel.number, [publish, header, *parts]).payload)

    async def _write(self, payload: bytes) -> None:
        queue, frame = self._channel.write_queue, ChannelFrame(payload=payload, should_close=False)
        if self.lost is not None:
            return
        try:
            queue.put_nowait(frame)
        except asyncio.QueueFull:
            # The writer stops taking when the connection goes, so waiting for it alone could last for ever.
            put = asyncio.ensure_future(queue.put(frame))
            await asyncio.wait({put, self._channel.closing}, return_when=asyncio.FIRST_COMPLETED)
            put.cancel()

    async def _ask(self, requests: Sequence[Frame], written: bool = False) -> None:
        try:
            await asyncio.wait_for(self._channel.ask(requests, written), RPC_S)
        except Exception as error:
            # aiormq raises a bare Exception in coroutines that wait while the connection is closed.
            known = (aiormq.exceptions.AMQPError, OSError, TimeoutError, RuntimeError)
            if not isinstance(error, known) and type(error) is not Exception:
                raise
            if isinstance(error, TimeoutError):
                await self.close()
            # The closing future knows more than the call, but only one turn of the loop later.
            raise self.lost or _channel_lost(self._address, error) from error

    def _closed(self, closing: asyncio.Future[Any]) -> None:
        error = None if closing.cancelled() else closing.exception()
        self._lose(_channel_lost(self._address, error))

    def _cancelled(self, frame: object) -> None:
        # A queue that was deleted: the same as one that can't be found.
        self._lose(ChannelLost(str(self._address), "the queue was deleted", code=404))

    def _lose(self, reason: ChannelLost) -> None:
        if self.lost is None:
            self.lost = reason
            self._on_lost()


def attaching(consumer: Consumer, tag: str) -> list[Frame]:
    """What is to be said on a new channel to consume on it."""
    return [
        spec.Channel.Open(),
        spec.Basic.Qos(prefetch_count=consumer.prefetch),
        spec.Basic.Consume(queue=consumer.queue, exclusive=True, consumer_tag=tag),
    ]


async def _unused(_: object) -> None:
    """Deliveries bypass aiormq's callback; it wants one all the same."""


def _channel_lost(address: Address, error: BaseException | None) -> ChannelLost:
    for kind, code in _CHANNEL_CODES.items():
        if isinstance(error, kind):
            return ChannelLost(str(address), f"channel closed: {text_of(error)}", code)
    return ChannelLost(str(address), "closed" if error is None else f"connection lost: {text_of(error)}")


_CHANNEL_CODES: Final[dict[type[BaseException], int]] = {
    aiormq.exceptions.ChannelAccessRefused: 403,
    aiormq.exceptions.ChannelNotFoundEntity: 404,
    aiormq.exceptions.ChannelLockedResource: 405,
    aiormq.exceptions.ChannelPreconditionFailed: 406,
}


def text_of(error: BaseException) -> str:
    return str(error) or type(error).__name__
