"""The runtime on asyncio: connections by aio-pika, channels of its underlying aiormq.

aio-pika opens and watches the connection, without its robust mode: the engines supervise for themselves. A
channel is aiormq's with four frame handlers replaced. Left as they are, they would start a task per delivery,
keep a future per publication and take one turn of the event loop per frame, which is most of what those
libraries cost. Publications are written as ready-made frames (`_wire.py`), many at a time."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import aio_pika
import aiormq
import aiormq.exceptions
from aiormq.abc import ChannelFrame, ConfirmationFrameType
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from ._aio_transport import SealingTransport, unseal
from ._config import Address, Timeouts
from ._errors import AccessRefused, ConnectionFailed, TidegateError
from ._publishing import Publication, Topic
from ._runtime import ChannelLost, Confirm, Consumer, Deliver, Order, Reply, Returned, Signal, Task
from ._wire import frames

logger = logging.getLogger(__name__)

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
FRAME_BUFFER: Final = 1_000
"""Frames between the reader of a connection and that of a channel: enough for a socket buffer of small
messages.
"""
PUBLICATIONS_PER_WRITE: Final = 100
ORDERS_MAX: Final = 1_000
"""Orders that wait for a client; the oldest go first, and whoever gave them repeats what is not answered."""
RPC_S: Final = 10.0
CLOSE_S: Final = 3.0
ACCESS_CODES: Final = frozenset({403, 530})
"""AMQP's access-refused, and not-allowed, which is RabbitMQ's answer to an unknown virtual host."""


class AioSignal:
    """A signal on the running event loop."""

    def __init__(self) -> None:
        self._set = False
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        if not self._set:
            self._set = True
            self._wake()

    async def wait(self, timeout_s: float | None = None) -> bool:
        if not self._set:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(timeout_s, self._wake) if timeout_s is not None else None
            try:
                await self._future
            finally:
                self._future = None
                if timer is not None:
                    timer.cancel()
        fired, self._set = self._set, False
        return fired

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class _LeanChannel(aiormq.Channel):
    """aiormq's channel, with deliveries, confirmations and returns handed straight to callbacks."""

    deliver: Callable[[spec.Basic.Deliver, dict[str, Any], bytes], None] | None = None
    confirm: Confirm | None = None
    returned: Returned | None = None

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
    """See `_runtime.Channel`."""

    def __init__(self, address: Address, channel: _LeanChannel, on_lost: Callable[[], None]) -> None:
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
                    frames(number, topics[each.topic].publish, each.properties, each.body, frame_max)
                    for each in publications[start : start + PUBLICATIONS_PER_WRITE]
                ]
            )
            await self._write(payload)
            if self.lost is not None:
                return

    async def consume(self, queue: str, prefetch: int, deliver: Deliver) -> None:
        def delivered(frame: spec.Basic.Deliver, properties: dict[str, Any], body: bytes) -> None:
            assert frame.delivery_tag is not None
            deliver(
                frame.delivery_tag,
                frame.routing_key or "",
                body,
                properties.get("message_id"),
                properties.get("headers"),
                bool(frame.redelivered),
            )

        self._channel.deliver = delivered
        await self._rpc(self._channel.basic_qos(prefetch_count=prefetch))
        await self._rpc(self._channel.basic_consume(queue, _unused, exclusive=True))

    async def listen(self, reply: Reply) -> None:
        self._reply = reply
        self._channel.deliver = self._control_delivered
        await self._rpc(self._channel.basic_consume(DIRECT_REPLY_TO, _unused, no_ack=True))

    async def take_orders(self, exchange: str, key: str, order: Order) -> None:
        self._orders[key] = order
        self._channel.deliver = self._control_delivered
        declared = await self._rpc(
            self._channel.queue_declare("", exclusive=True, auto_delete=True, arguments={"x-max-length": ORDERS_MAX})
        )
        queue = declared.queue
        await self._rpc(self._channel.queue_bind(queue, exchange, key))
        await self._rpc(self._channel.basic_consume(queue, _unused, no_ack=True))

    async def answer(self, reply_to: str, correlation: str, body: bytes) -> None:
        properties = spec.Basic.Properties(
            content_type="application/json", correlation_id=correlation or None, delivery_mode=1
        )
        await self._write_message(spec.Basic.Publish(exchange="", routing_key=reply_to), properties, body)

    async def request(self, exchange: str, key: str, body: bytes, correlation: str, expires_ms: int) -> None:
        properties = spec.Basic.Properties(
            content_type="application/json",
            reply_to=DIRECT_REPLY_TO if correlation else None,
            correlation_id=correlation or None,
            expiration=str(expires_ms),
            delivery_mode=1,
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
        try:
            await self._channel.close(None, timeout=CLOSE_S)
        except (aiormq.exceptions.AMQPError, OSError, TimeoutError) as error:
            logger.debug("closing a channel to %s: %r", self._address, error)

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

    async def _rpc(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await asyncio.wait_for(call, RPC_S)
        except (aiormq.exceptions.AMQPError, OSError, TimeoutError, RuntimeError) as error:
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


class AioConnection:
    """See `_runtime.Connection`."""

    def __init__(self, address: Address, connection: aio_pika.Connection) -> None:
        self._address = address
        self._connection = connection
        assert connection.transport is not None
        self._transport = connection.transport.connection

    @property
    def usable(self) -> bool:
        return not self._connection.is_closed and not self._transport.is_closed

    async def open_channel(
        self, on_lost: Callable[[], None], confirm: Confirm | None = None, returned: Returned | None = None
    ) -> AioChannel:
        taken = self._transport.channels
        number = next(number for number in range(1, 65_536) if number not in taken)
        try:
            channel = _LeanChannel(
                self._transport, number, publisher_confirms=confirm is not None, frame_buffer=FRAME_BUFFER
            )
            channel.confirm, channel.returned = confirm, returned
            taken[number] = channel
            await channel.open(timeout=RPC_S)
        except (aiormq.exceptions.AMQPError, OSError, TimeoutError, RuntimeError) as error:
            raise _channel_lost(self._address, error) from error
        return AioChannel(self._address, channel, on_lost)

    async def attach(self, consumer: Consumer, on_lost: Callable[[], None]) -> AioChannel:
        channel = await self.open_channel(on_lost)
        await channel.consume(consumer.queue, consumer.prefetch, consumer.deliver)
        return channel

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._connection.close(), CLOSE_S)
        except (aiormq.exceptions.AMQPError, OSError, TimeoutError, RuntimeError) as error:
            logger.debug("closing the connection to %s: %r", self._address, error)


class AioRuntime:
    """See `_runtime.Runtime`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def chance(self) -> float:
        return random.random()

    def signal(self) -> Signal:
        return AioSignal()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> Task:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def connect(self, address: Address, name: str, timeouts: Timeouts) -> AioConnection:
        url = aio_pika.connection.make_url(
            host=address.host,
            port=address.port,
            login=address.user,
            password=address.password,
            virtualhost=address.vhost,
            ssl=address.scheme == "amqps",
            heartbeat=max(1, round(timeouts.heartbeat_s)),
        )
        connection = aio_pika.Connection(
            url, ssl_context=address.tls_context(), client_properties={"connection_name": name}
        )
        connection.kwargs["transport_factory"] = SealingTransport()
        try:
            await connection.connect(timeout=timeouts.connect_s)
        except (OSError, ssl.SSLError, TimeoutError, aiormq.exceptions.AMQPError) as error:
            # Otherwise it would try to close itself when it is collected, perhaps in a thread without a loop.
            await connection.close()
            raise _connect_error(address, error) from error
        return AioConnection(address, connection)

    async def attach(
        self, address: Address, name: str, timeouts: Timeouts, consumer: Consumer, on_lost: Callable[[], None]
    ) -> tuple[AioConnection, AioChannel]:
        connection = await self.connect(address, name, timeouts)
        try:
            return connection, await connection.attach(consumer, on_lost)
        except TidegateError:
            await connection.close()
            raise

    async def close(self) -> None:
        """Wait for the engines' tasks, which have been told to end; cancel what does not."""
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=CLOSE_S)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s failed; this is a bug", task.get_name(), exc_info=task.exception())


async def _unused(_: object) -> None:
    """Deliveries bypass aiormq's callback; it wants one all the same."""


def _connect_error(address: Address, error: BaseException) -> ConnectionFailed:
    refused = (aiormq.exceptions.AuthenticationError, aiormq.exceptions.ProbableAuthenticationError)
    code = error.args[0] if error.args else None
    if isinstance(error, refused) or code in ACCESS_CODES:
        return AccessRefused(str(address), f"access refused: {_text(error)}")
    if isinstance(error, aiormq.exceptions.InvalidFrameError) and "Connection.Close" in str(error):
        # aiormq does not look at what RabbitMQ says when it closes instead of opening the virtual host.
        return AccessRefused(str(address), f"access refused to the virtual host {address.vhost!r}")
    return ConnectionFailed(str(address), f"can't connect: {_text(error)}")


def _channel_lost(address: Address, error: BaseException | None) -> ChannelLost:
    for kind, code in _CHANNEL_CODES.items():
        if isinstance(error, kind):
            return ChannelLost(str(address), f"channel closed: {_text(error)}", code)
    return ChannelLost(str(address), "closed" if error is None else f"connection lost: {_text(error)}")


_CHANNEL_CODES: Final[dict[type[BaseException], int]] = {
    aiormq.exceptions.ChannelAccessRefused: 403,
    aiormq.exceptions.ChannelNotFoundEntity: 404,
    aiormq.exceptions.ChannelLockedResource: 405,
    aiormq.exceptions.ChannelPreconditionFailed: 406,
}


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
