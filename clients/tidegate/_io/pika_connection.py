"""Connections and channels of the runtime on one thread (`threaded`), by pika.

Everything here happens in the loop's thread. Frames of requests that follow each other are written at once
(`pika_codec`). pika takes each further step in its callback for the previous answer, and finds the next answer there
already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pika
from pika import exceptions, spec

from tidegate_protocol.amqp.publications import encode_publication

from .._core.config import Address, Timeouts
from .._core.opening import Tune
from .._core.publishing import Topic
from .._core.window import Publication
from .._engine.runtime import (
    ABSENT_CODES,
    ChannelLost,
    Confirm,
    Consumer,
    Deliver,
    Order,
    Reply,
    Returned,
    Signal,
    new_tag,
)
from .pika_codec import CodecConnection, Properties, marshal
from .tokens import REASON, secret_of

if TYPE_CHECKING:
    from .threaded import ThreadRuntime

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
PUBLICATIONS_PER_WRITE: Final = 100
FIRST_CHANNEL: Final = 1
ORDERS_MAX: Final = 1_000
"""Orders that wait for a client. Beyond that RabbitMQ drops the oldest; the head repeats what is not answered."""
RPC_S: Final = 10.0
CLOSE_S: Final = 3.0
HURRY_S: Final = 0.05
"""Enough to write that it is being closed; the answer may be seconds behind on a full uplink."""


class PikaChannel:
    """See `runtime.Channel`."""

    def __init__(self, connection: PikaConnection, on_lost: Callable[[], None]) -> None:
        self.lost: ChannelLost | None = None
        self._connection = connection
        self._address = str(connection.address)
        self._on_lost = on_lost
        self._rpc_signal: Signal | None = None
        self._ahead: list[bytes] = []
        self._reply: Reply | None = None
        self._orders: dict[str, Order] = {}
        self._channel: Any = None

    async def open(self, confirm: Confirm | None, returned: Returned | None) -> None:
        """Open; with `confirm`, in confirm mode."""

        def opened(channel: Any) -> None:
            if returned is not None:
                channel.add_on_return_callback(_returner(returned))
            if confirm is None:
                signal.set()
            else:
                channel.confirm_delivery(_confirmer(confirm), callback=lambda _: signal.set())

        number = self._connection.pika._next_channel_number()
        methods = [spec.Channel.Open(), *([spec.Confirm.Select(False)] if confirm is not None else [])]
        signal = self._begin(number, opened, marshal(number, *methods), written=False)
        await self._answered(signal)

    async def attach(self, consumer: Consumer) -> None:
        """Open, and consume."""
        number = self._connection.pika._next_channel_number()
        tag = new_tag()
        await self.attached(self.begin_attach(number, consumer, tag, attaching(number, consumer, tag), written=False))

    def begin_attach(self, number: int, consumer: Consumer, tag: str, frames: list[bytes], written: bool) -> Signal:
        """Start to open and consume by `frames`, which are written now unless that has been done; returns at once.

        Everything after the first answer happens in pika's callbacks, because the other answers are right behind it.
        """

        def opened(channel: Any) -> None:
            channel.basic_qos(prefetch_count=consumer.prefetch, callback=_unused)
            channel.basic_consume(
                consumer.queue, _unused, exclusive=True, consumer_tag=tag, callback=lambda _: signal.set()
            )

        self._connection.pika.take_deliveries(number, _receiver(consumer.deliver))
        signal = self._begin(number, opened, frames, written)
        return signal

    async def attached(self, signal: Signal) -> None:
        """Wait for what `begin_attach` began."""
        await self._answered(signal)

    def _begin(self, number: int, opened: Callable[[Any], None], frames: list[bytes], written: bool) -> Signal:
        pika_connection = self._connection.pika
        signal = self._rpc_signal = self._connection.runtime.signal()
        self._ahead = frames
        if not written:
            pika_connection.write_ahead(frames)
        self._channel = pika_connection.channel(number, on_open_callback=opened)
        self._channel.add_on_close_callback(self._closed)
        self._channel.add_on_cancel_callback(self._cancelled)
        return signal

    async def publish(self, publications: Sequence[Publication], topics: Mapping[str, Topic]) -> None:
        connection = self._connection.pika
        number, frame_max = self._channel.channel_number, connection.params.frame_max
        for start in range(0, len(publications), PUBLICATIONS_PER_WRITE):
            if self.lost is not None:
                return
            connection.emit(
                b"".join(
                    [
                        encode_publication(number, topics[each.topic].publish, each.properties, each.body, frame_max)
                        for each in publications[start : start + PUBLICATIONS_PER_WRITE]
                    ]
                )
            )

    async def consume(self, queue: str, prefetch: int, deliver: Deliver) -> None:
        self._connection.pika.take_deliveries(self._channel.channel_number, _receiver(deliver))
        await self._rpc(lambda done: self._channel.basic_qos(prefetch_count=prefetch, callback=done))
        await self._rpc(lambda done: self._channel.basic_consume(queue, _unused, exclusive=True, callback=done))

    async def look_for(self, exchange: str) -> None:
        """Ask for an exchange; RabbitMQ closes the channel if there is none."""
        await self._rpc(lambda done: self._channel.exchange_declare(exchange, passive=True, callback=done))

    async def listen(self, reply: Reply) -> None:
        self._reply = reply
        self._connection.pika.take_deliveries(self._channel.channel_number, self._control_received)
        await self._rpc(
            lambda done: self._channel.basic_consume(DIRECT_REPLY_TO, _unused, auto_ack=True, callback=done)
        )

    async def take_orders(self, exchange: str, key: str, order: Order) -> None:
        number, tag = self._channel.channel_number, new_tag()
        limit = {"x-max-length": ORDERS_MAX}
        # A queue without a name is the one declared last on the channel.
        frames = marshal(
            number,
            spec.Queue.Declare(0, "", False, False, True, True, False, limit),
            spec.Queue.Bind(0, "", exchange, key, False, {}),
            spec.Basic.Consume(queue="", consumer_tag=tag, no_ack=True, arguments={}),
        )

        def start(done: Callable[..., None]) -> None:
            self._ahead = frames
            self._connection.pika.write_ahead(frames)
            self._channel.queue_declare("", exclusive=True, auto_delete=True, arguments=limit, callback=_unused)
            self._channel.queue_bind("", exchange, key, callback=_unused)
            self._channel.basic_consume("", _unused, auto_ack=True, consumer_tag=tag, callback=done)

        self._orders[key] = order
        self._connection.pika.take_deliveries(number, self._control_received)
        await self._rpc(start)

    async def answer(self, exchange: str, key: str, correlation: str, body: bytes) -> None:
        if self.lost is None:
            properties = pika.BasicProperties(
                content_type="application/json",
                correlation_id=correlation,
                delivery_mode=1,
                user_id=self._connection.address.user,
            )
            self._channel.basic_publish(exchange, key, body, properties)

    async def request(self, exchange: str, key: str, body: bytes, correlation: str, expires_ms: int) -> None:
        if self.lost is not None:
            return
        properties = pika.BasicProperties(
            content_type="application/json",
            reply_to=DIRECT_REPLY_TO if correlation else None,
            correlation_id=correlation or None,
            expiration=str(expires_ms),
            delivery_mode=1,
            user_id=self._connection.address.user,
        )
        self._channel.basic_publish(exchange, key, body, properties, mandatory=True)

    async def acknowledge(self, acks: Sequence[tuple[int, bool]]) -> None:
        for tag, multiple in acks:
            if self.lost is None:
                self._channel.basic_ack(tag, multiple)

    async def close(self) -> None:
        if self.lost is None:
            self._connection.pika.leave_deliveries(self._channel.channel_number)
            await self._rpc(lambda _: self._channel.close(), closing=True)

    def _control_received(self, _: int, key: str, body: bytes, properties: dict[str, Any], __: bool) -> None:
        order, correlation = self._orders.get(key), properties.get("correlation_id")
        if order is not None:
            order(body, properties.get("reply_to"), correlation)
        elif self._reply is not None:
            self._reply(correlation, body)

    async def _rpc(self, start: Callable[[Callable[..., None]], Any], closing: bool = False) -> None:
        signal = self._rpc_signal = self._connection.runtime.signal()
        if self.lost is None:
            try:
                start(lambda *_: signal.set())
            except exceptions.AMQPError as error:
                raise ChannelLost(self._address, f"connection lost: {text_of(error)}") from error
        await self._answered(signal, closing)

    async def _answered(self, signal: Signal, closing: bool = False) -> None:
        answered = self.lost is not None or await signal.wait(RPC_S)
        self._rpc_signal = None
        if self._ahead:
            self._connection.pika.forget_ahead(self._ahead)
            self._ahead = []
        if closing:
            return
        if self.lost is not None:
            raise self.lost
        if not answered:
            raise ChannelLost(self._address, f"no answer within {RPC_S:g} s")

    def _closed(self, _: Any, reason: BaseException) -> None:
        if isinstance(reason, exceptions.ChannelClosedByBroker):
            self._lose(ChannelLost(self._address, f"channel closed: {reason.reply_text}", reason.reply_code))
        else:
            self._lose(ChannelLost(self._address, f"connection lost: {text_of(reason)}"))

    def _cancelled(self, _: Any) -> None:
        self._lose(ChannelLost(self._address, "the queue was deleted", code=404))

    def _lose(self, reason: ChannelLost) -> None:
        if self.lost is None:
            self.lost = reason
            self._connection.pika.leave_deliveries(self._channel.channel_number)
            if self._rpc_signal is not None:
                self._rpc_signal.set()
            self._on_lost()


class PikaConnection:
    """See `runtime.Connection`."""

    def __init__(self, runtime: ThreadRuntime, address: Address, name: str, timeouts: Timeouts) -> None:
        self.runtime = runtime
        self.address = address
        self.pika: Any = None
        self.first: PikaChannel | None = None
        self._first_attached: Signal | None = None
        self._name = name
        self._heartbeat_s = max(1, round(timeouts.heartbeat_s))
        self._opened = runtime.signal()
        self._ended = runtime.signal()
        self._error: BaseException | None = None

    async def open(
        self, timeout_s: float, tune: Tune | None, consumer: Consumer | None, on_lost: Callable[[], None]
    ) -> None:
        """Connect, at once if `tune` says what the server will agree to, and then with `consumer` if there is one.

        Raises what pika has to say.
        """
        tag = new_tag()
        frames = attaching(FIRST_CHANNEL, consumer, tag) if consumer is not None and tune is not None else []

        def opened(_: Any) -> None:
            if consumer is not None and frames:
                self.first = PikaChannel(self, on_lost)
                self._first_attached = self.first.begin_attach(FIRST_CHANNEL, consumer, tag, frames, written=True)
            self._opened.set()

        context = self.address.tls_context()
        parameters = pika.ConnectionParameters(
            host=self.address.host,
            port=self.address.port,
            virtual_host=self.address.vhost,
            credentials=_credentials(self.address),
            heartbeat=self._heartbeat_s,
            ssl_options=pika.SSLOptions(context, self.address.host) if context else None,
            connection_attempts=1,
            socket_timeout=timeout_s,
            stack_timeout=timeout_s,
            client_properties={"connection_name": self._name},
        )
        self.pika = CodecConnection(
            parameters,
            on_open_callback=opened,
            on_open_error_callback=self._failed,
            on_close_callback=self._closed,
            custom_ioloop=self.runtime.loop,
            after_chunk=self.runtime.run_after_chunk,
            tune=tune,
            first=frames,
        )
        # The stack's own time-out comes first; this is the second line.
        answered = await self._opened.wait(timeout_s + 1)
        if self._error is not None and self.first is None:
            raise self._error
        if not answered:
            self._error = TimeoutError()
            raise TimeoutError(f"can't connect within {timeout_s:g} s")
        if self.address.tokens is not None:
            self.address.tokens.hold(self)

    def renew(self, token: str) -> None:
        """See `tokens.Holder`."""
        self.runtime.loop.add_callback_threadsafe(lambda: self._renew(token))

    def _renew(self, token: str) -> None:
        if self.usable:
            self.pika.update_secret(token, REASON)

    async def attach_first(self) -> PikaChannel | None:
        """Wait for the consumer that was written with the opening; None if there was none."""
        if self.first is not None and self._first_attached is not None:
            await self.first.attached(self._first_attached)
        return self.first

    @property
    def usable(self) -> bool:
        return bool(self.pika.is_open)

    async def open_channel(
        self, on_lost: Callable[[], None], confirm: Confirm | None = None, returned: Returned | None = None
    ) -> PikaChannel:
        if not self.usable:
            raise ChannelLost(str(self.address), f"connection lost: {text_of(self._error)}")
        channel = PikaChannel(self, on_lost)
        await channel.open(confirm, returned)
        return channel

    async def has_exchange(self, name: str) -> bool:
        channel = await self.open_channel(_unused)
        try:
            await channel.look_for(name)
        except ChannelLost as lost:
            if lost.code in ABSENT_CODES:
                return False
            raise
        await channel.close()
        return True

    async def attach(self, consumer: Consumer, on_lost: Callable[[], None]) -> PikaChannel:
        if not self.usable:
            raise ChannelLost(str(self.address), f"connection lost: {text_of(self._error)}")
        channel = PikaChannel(self, on_lost)
        await channel.attach(consumer)
        return channel

    async def close(self, *, hurry: bool = False) -> None:
        if self.pika.is_open:
            self.pika.close()
            if not await self._ended.wait(HURRY_S if hurry else CLOSE_S) and hurry:
                self.pika.abandon()

    def _failed(self, _: Any, error: BaseException) -> None:
        self._error = error
        self._opened.set()

    def _closed(self, _: Any, error: BaseException) -> None:
        self._error = error
        self._ended.set()


def _credentials(address: Address) -> pika.PlainCredentials | pika.credentials.ExternalCredentials:
    if address.by_certificate:
        return pika.credentials.ExternalCredentials()
    return pika.PlainCredentials(address.user, secret_of(address))


def attaching(number: int, consumer: Consumer, tag: str) -> list[bytes]:
    """The frames by which a channel is opened and consumed on, as pika writes them."""
    return marshal(
        number,
        spec.Channel.Open(),
        spec.Basic.Qos(0, consumer.prefetch, False),
        spec.Basic.Consume(queue=consumer.queue, consumer_tag=tag, no_ack=False, exclusive=True, arguments={}),
    )


def _receiver(deliver: Deliver) -> Callable[[int, str, bytes, dict[str, Any], bool], None]:
    def received(tag: int, key: str, body: bytes, properties: dict[str, Any], redelivered: bool) -> None:
        get = properties.get
        deliver(tag, key, body, get("message_id"), get("headers"), redelivered, get("user_id"))

    return received


def _returner(returned: Returned) -> Callable[..., None]:
    def came_back(_: Any, __: Any, properties: Properties, ___: bytes) -> None:
        returned(properties.correlation_id)

    return came_back


def _confirmer(confirm: Confirm) -> Callable[[Any], None]:
    def confirmed(method_frame: Any) -> None:
        method = method_frame.method
        confirm(method.delivery_tag, method.multiple, isinstance(method, spec.Basic.Ack))

    return confirmed


def _unused(*_: Any) -> None:
    """Deliveries bypass pika's callback; it wants one all the same."""


def text_of(error: BaseException | None) -> str:
    """What an error says."""
    return "closed" if error is None else str(error) or type(error).__name__
