"""The runtime on asyncio: connections by aio-pika, channels of its underlying aiormq.

aio-pika opens and watches the connection, without its robust mode: the engines supervise for themselves. A
channel is aiormq's with four frame handlers replaced. Left as they are, they would start a task per delivery,
keep a future per publication and take one turn of the event loop per frame, which is most of what those
libraries cost. Publications are written as ready-made frames (`_wire.py`), many at a time.

Where several requests follow each other they are written at once, and then their answers are waited for: opening a
connection (`_opening.py`), a channel with its consumer, a queue for orders."""

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
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from ._aio_transport import EagerTransport, SealingTransport, unseal
from ._config import Address, Timeouts
from ._errors import AccessRefused, CertificateRefused, ConnectionFailed, TidegateError
from ._opening import FAST_SHARE, OpeningDiffers, Openings
from ._publishing import Publication, Topic
from ._runtime import ChannelLost, Confirm, Consumer, Deliver, Order, Reply, Returned, Signal, Task, new_tag
from ._tls import certificate_refusal
from ._wire import frames

logger = logging.getLogger(__name__)

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
FIRST_CHANNEL: Final = 1
FRAME_BUFFER: Final = 1_000
"""Frames between the reader of a connection and that of a channel: enough for a socket buffer of small
messages.
"""
PUBLICATIONS_PER_WRITE: Final = 100
ORDERS_MAX: Final = 1_000
"""Orders that wait for a client; the oldest go first, and whoever gave them repeats what is not answered."""
RPC_S: Final = 10.0
LAST_CHANCE_S: Final = 0.1
"""What the usual way gets at least, if the fast one has used up all the time."""
CLOSE_S: Final = 3.0
HURRY_S: Final = 0.05
"""Enough to write that it is being closed; the answer may be seconds behind on a full uplink."""
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

    async def open(self, confirm: bool) -> None:
        """Open a channel that was only made."""
        requests: list[Frame] = [spec.Channel.Open()]
        await self._ask([*requests, spec.Confirm.Select()] if confirm else requests)

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
            logger.debug("closing a channel to %s: %r", self._address, closing.exception())

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
            # aiormq gives a bare Exception to whoever waits while the connection is closed.
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


class AioConnection:
    """See `_runtime.Connection`."""

    def __init__(self, address: Address, connection: aio_pika.Connection, socket: SealingTransport) -> None:
        self._address = address
        self._connection = connection
        self._socket = socket
        assert connection.transport is not None
        self._transport = connection.transport.connection

    @property
    def usable(self) -> bool:
        return not self._connection.is_closed and not self._transport.is_closed

    async def open_channel(
        self, on_lost: Callable[[], None], confirm: Confirm | None = None, returned: Returned | None = None
    ) -> AioChannel:
        channel = self._make_channel(on_lost, confirm, returned)
        await channel.open(confirm is not None)
        return channel

    async def attach(self, consumer: Consumer, on_lost: Callable[[], None]) -> AioChannel:
        channel = self._make_channel(on_lost)
        await channel.attach(consumer, new_tag(), written=False)
        return channel

    async def attach_first(
        self, consumer: Consumer, tag: str, on_lost: Callable[[], None], eager: EagerTransport
    ) -> AioChannel:
        """Attach with what `eager` has written when the connection was opened."""
        channel = self._make_channel(on_lost)
        eager.release()
        await channel.attach(consumer, tag, written=True)
        return channel

    def _make_channel(
        self, on_lost: Callable[[], None], confirm: Confirm | None = None, returned: Returned | None = None
    ) -> AioChannel:
        if not self.usable:
            raise ChannelLost(str(self._address), "connection lost")
        taken = self._transport.channels
        number = next(number for number in range(FIRST_CHANNEL, 65_536) if number not in taken)
        channel = _LeanChannel(
            self._transport, number, publisher_confirms=confirm is not None, frame_buffer=FRAME_BUFFER
        )
        channel.confirm, channel.returned = confirm, returned
        taken[number] = channel
        return AioChannel(self._address, channel, on_lost)

    async def close(self, *, hurry: bool = False) -> None:
        try:
            await asyncio.wait_for(self._connection.close(), HURRY_S if hurry else CLOSE_S)
        except (aiormq.exceptions.AMQPError, OSError, TimeoutError, RuntimeError) as error:
            logger.debug("closing the connection to %s: %r", self._address, error)
        finally:
            self._socket.close()


class AioRuntime:
    """See `_runtime.Runtime`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.openings = Openings()

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
        connection, eager = await self._open(address, name, timeouts, b"")
        if eager is not None:
            eager.release()
        return connection

    async def attach(
        self, address: Address, name: str, timeouts: Timeouts, consumer: Consumer, on_lost: Callable[[], None]
    ) -> tuple[AioConnection, AioChannel]:
        tag = new_tag()
        first = ChannelFrame.marshall(FIRST_CHANNEL, attaching(consumer, tag)).payload
        connection, eager = await self._open(address, name, timeouts, first)
        try:
            if eager is None:
                return connection, await connection.attach(consumer, on_lost)
            return connection, await connection.attach_first(consumer, tag, on_lost, eager)
        except (TidegateError, asyncio.CancelledError):
            await connection.close()
            raise

    async def _open(
        self, address: Address, name: str, timeouts: Timeouts, first: bytes
    ) -> tuple[AioConnection, EagerTransport | None]:
        """A connection, and the transport that has written `first` already, if the server takes that."""
        heartbeat_s = max(1, round(timeouts.heartbeat_s))
        properties = {"connection_name": name}
        ends_at = self.now() + timeouts.connect_s
        tune = self.openings.anticipate(address, self.now())
        wrong: Exception | None = None
        if tune is not None:
            eager = EagerTransport(properties, tune, heartbeat_s, address.vhost, first)
            try:
                opened = await _connect(address, properties, heartbeat_s, timeouts.connect_s * FAST_SHARE, eager)
            except _CONNECT_ERRORS as error:
                if not eager.connected and not isinstance(error, TimeoutError):
                    raise _connect_error(address, error) from error
                wrong = error
            else:
                self.openings.succeeded()
                return opened, eager
        try:
            opened = await _connect(
                address, properties, heartbeat_s, max(ends_at - self.now(), LAST_CHANCE_S), SealingTransport()
            )
        except _CONNECT_ERRORS as error:
            raise _connect_error(address, error) from error
        if wrong is not None:
            logger.info("%s is opened the usual way from now on: %s", address, _text(wrong))
            self.openings.fell_back(address, wrong.tune if isinstance(wrong, OpeningDiffers) else None, self.now())
        return opened, None

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


_CONNECT_ERRORS: Final = (OSError, ssl.SSLError, TimeoutError, aiormq.exceptions.AMQPError, OpeningDiffers)


async def _connect(
    address: Address,
    properties: dict[str, Any],
    heartbeat_s: int,
    timeout_s: float,
    transport: SealingTransport,
) -> AioConnection:
    """Connect through `transport`; raise what aio-pika raises."""
    url = aio_pika.connection.make_url(
        host=address.host,
        port=address.port,
        login=address.user,
        password=address.password,
        virtualhost=address.vhost,
        ssl=address.scheme == "amqps",
        heartbeat=heartbeat_s,
    )
    connection = aio_pika.Connection(url, ssl_context=address.tls_context(), client_properties=properties)
    connection.kwargs["transport_factory"] = transport
    try:
        await connection.connect(timeout=timeout_s)
    except _CONNECT_ERRORS:
        # Otherwise it would try to close itself when it is collected, perhaps in a thread without a loop.
        await connection.close()
        raise
    return AioConnection(address, connection, transport)


def attaching(consumer: Consumer, tag: str) -> list[Frame]:
    """What is to be said on a new channel to consume on it."""
    return [
        spec.Channel.Open(),
        spec.Basic.Qos(prefetch_count=consumer.prefetch),
        spec.Basic.Consume(queue=consumer.queue, exclusive=True, consumer_tag=tag),
    ]


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
    untrusted = certificate_refusal(error)
    if untrusted is not None:
        return CertificateRefused(str(address), f"the certificate was refused: {untrusted}")
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
