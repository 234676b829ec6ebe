"""The runtime on one thread with pika's own I/O loop; no asyncio.

The thread serves heartbeats, confirmations and deliveries while the application's threads work. Engines are
coroutines, and a coroutine needs no event loop but somebody who resumes it: here `_Task` does, whenever the
signal it waits for is set or its time is over. Signals may be set from any thread; everything else happens in
the loop's thread.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import pika
from pika import exceptions
from pika.adapters.select_connection import IOLoop

from ._config import Address, Timeouts
from ._errors import AccessRefused, Closed, ConnectionFailed, TidegateError
from ._pika_codec import CodecConnection, Properties
from ._publishing import Publication, Topic
from ._runtime import ChannelLost, Confirm, Consumer, Deliver, Order, Reply, Returned, Signal
from ._wire import frames

logger = logging.getLogger(__name__)

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
PUBLICATIONS_PER_WRITE: Final = 100
ORDERS_MAX: Final = 1_000
"""Orders that wait for a client; the oldest go first, and whoever gave them repeats what is not answered."""
RPC_S: Final = 10.0
CLOSE_S: Final = 3.0
ALIVE_CHECK_S: Final = 1.0
"""How often somebody who waits for the loop's thread looks whether it still runs."""

Result = TypeVar("Result")


class _Pause:
    """What a coroutine hands to its task when it waits for a signal."""

    __slots__ = ("_signal", "_timeout_s")

    def __init__(self, signal: LoopSignal, timeout_s: float | None) -> None:
        self._signal = signal
        self._timeout_s = timeout_s

    def __await__(self) -> Any:
        yield self

    def arm(self, resume: Callable[[], None]) -> None:
        self._signal.arm(resume, self._timeout_s)


class LoopSignal:
    """A signal that may be set from any thread."""

    def __init__(self, loop: IOLoop) -> None:
        self._loop = loop
        self._set = False
        self._resume: Callable[[], None] | None = None
        self._timer: Any = None

    def set(self) -> None:
        if not self._set:
            self._set = True
            if self._resume is not None:
                self._loop.add_callback_threadsafe(self._fire)

    async def wait(self, timeout_s: float | None = None) -> bool:
        if not self._set:
            await _Pause(self, timeout_s)
        fired, self._set = self._set, False
        return fired

    def arm(self, resume: Callable[[], None], timeout_s: float | None) -> None:
        self._resume = resume
        if timeout_s is not None:
            self._timer = self._loop.call_later(max(0.0, timeout_s), self._fire)
        if self._set:
            # It was set by another thread between the look at it and now.
            self._loop.add_callback_threadsafe(self._fire)

    def _fire(self) -> None:
        resume, self._resume = self._resume, None
        if resume is None:
            return
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        resume()


class _Task:
    """Drives one coroutine from signal to signal."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._coroutine = coroutine
        self._done = done

    def step(self) -> None:
        try:
            pause = self._coroutine.send(None)
        except StopIteration as stop:
            self._done(stop.value, None)
        except BaseException as error:
            self._done(None, error)
        else:
            pause.arm(self.step)

    def cancel(self) -> None:
        self._coroutine.close()


class PikaChannel:
    """See `_runtime.Channel`."""

    def __init__(self, connection: PikaConnection, on_lost: Callable[[], None]) -> None:
        self.lost: ChannelLost | None = None
        self._connection = connection
        self._address = str(connection.address)
        self._on_lost = on_lost
        self._rpc_signal: Signal | None = None
        self._reply: Reply | None = None
        self._orders: dict[str, Order] = {}
        self._channel: Any = None

    async def open(self, confirm: Confirm | None, returned: Returned | None) -> None:
        def start(done: Callable[..., None]) -> None:
            self._channel = self._connection.pika.channel(on_open_callback=done)
            self._channel.add_on_close_callback(self._closed)
            self._channel.add_on_cancel_callback(self._cancelled)

        await self._rpc(start)
        if returned is not None:

            def came_back(_: Any, __: Any, properties: Properties, ___: bytes) -> None:
                returned(properties.correlation_id)

            self._channel.add_on_return_callback(came_back)
        if confirm is not None:

            def confirmed(method_frame: Any) -> None:
                method = method_frame.method
                confirm(method.delivery_tag, method.multiple, isinstance(method, pika.spec.Basic.Ack))

            await self._rpc(lambda done: self._channel.confirm_delivery(confirmed, callback=done))

    async def publish(self, publications: Sequence[Publication], topics: Mapping[str, Topic]) -> None:
        connection = self._connection.pika
        number, frame_max = self._channel.channel_number, connection.params.frame_max
        for start in range(0, len(publications), PUBLICATIONS_PER_WRITE):
            if self.lost is not None:
                return
            connection.emit(
                b"".join(
                    [
                        frames(number, topics[each.topic].publish, each.properties, each.body, frame_max)
                        for each in publications[start : start + PUBLICATIONS_PER_WRITE]
                    ]
                )
            )

    async def consume(self, queue: str, prefetch: int, deliver: Deliver) -> None:
        def received(tag: int, key: str, body: bytes, properties: dict[str, Any], redelivered: bool) -> None:
            deliver(tag, key, body, properties.get("message_id"), properties.get("headers"), redelivered)

        self._connection.pika.take_deliveries(self._channel.channel_number, received)
        await self._rpc(lambda done: self._channel.basic_qos(prefetch_count=prefetch, callback=done))
        await self._rpc(lambda done: self._channel.basic_consume(queue, _unused, exclusive=True, callback=done))

    async def listen(self, reply: Reply) -> None:
        self._reply = reply
        self._connection.pika.take_deliveries(self._channel.channel_number, self._control_received)
        await self._rpc(
            lambda done: self._channel.basic_consume(DIRECT_REPLY_TO, _unused, auto_ack=True, callback=done)
        )

    async def take_orders(self, exchange: str, key: str, order: Order) -> None:
        declared: list[str] = []

        def declare(done: Callable[..., None]) -> None:
            def named(frame: Any) -> None:
                declared.append(frame.method.queue)
                done()

            limit = {"x-max-length": ORDERS_MAX}
            self._channel.queue_declare("", exclusive=True, auto_delete=True, arguments=limit, callback=named)

        self._orders[key] = order
        self._connection.pika.take_deliveries(self._channel.channel_number, self._control_received)
        await self._rpc(declare)
        queue = declared[0]
        await self._rpc(lambda done: self._channel.queue_bind(queue, exchange, key, callback=done))
        await self._rpc(lambda done: self._channel.basic_consume(queue, _unused, auto_ack=True, callback=done))

    async def answer(self, reply_to: str, correlation: str, body: bytes) -> None:
        if self.lost is None:
            properties = pika.BasicProperties(
                content_type="application/json", correlation_id=correlation or None, delivery_mode=1
            )
            self._channel.basic_publish("", reply_to, body, properties)

    async def request(self, exchange: str, key: str, body: bytes, correlation: str, expires_ms: int) -> None:
        if self.lost is not None:
            return
        properties = pika.BasicProperties(
            content_type="application/json",
            reply_to=DIRECT_REPLY_TO if correlation else None,
            correlation_id=correlation or None,
            expiration=str(expires_ms),
            delivery_mode=1,
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
                raise ChannelLost(self._address, f"connection lost: {_text(error)}") from error
        answered = await signal.wait(RPC_S)
        self._rpc_signal = None
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
            self._lose(ChannelLost(self._address, f"connection lost: {_text(reason)}"))

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
    """See `_runtime.Connection`."""

    def __init__(self, runtime: ThreadRuntime, address: Address, name: str, timeouts: Timeouts) -> None:
        self.runtime = runtime
        self.address = address
        self._opened = runtime.signal()
        self._ended = runtime.signal()
        self._error: BaseException | None = None
        context = address.tls_context()
        parameters = pika.ConnectionParameters(
            host=address.host,
            port=address.port,
            virtual_host=address.vhost,
            credentials=pika.PlainCredentials(address.user, address.password),
            heartbeat=max(1, round(timeouts.heartbeat_s)),
            ssl_options=pika.SSLOptions(context, address.host) if context else None,
            connection_attempts=1,
            socket_timeout=timeouts.connect_s,
            stack_timeout=timeouts.connect_s,
            client_properties={"connection_name": name},
        )
        self.pika = CodecConnection(
            parameters,
            on_open_callback=lambda _: self._opened.set(),
            on_open_error_callback=self._failed,
            on_close_callback=self._closed,
            custom_ioloop=runtime.loop,
            after_chunk=runtime.run_after_chunk,
        )

    async def open(self, timeout_s: float) -> None:
        # The stack's own time-out comes first; this is the second line.
        answered = await self._opened.wait(timeout_s + 1)
        if self._error is not None:
            raise _connect_error(self.address, self._error) from self._error
        if not answered:
            self._error = TimeoutError()
            raise ConnectionFailed(str(self.address), f"can't connect within {timeout_s:g} s")

    @property
    def usable(self) -> bool:
        return bool(self.pika.is_open)

    async def open_channel(
        self, on_lost: Callable[[], None], confirm: Confirm | None = None, returned: Returned | None = None
    ) -> PikaChannel:
        if not self.usable:
            raise ChannelLost(str(self.address), f"connection lost: {_text(self._error)}")
        channel = PikaChannel(self, on_lost)
        await channel.open(confirm, returned)
        return channel

    async def attach(self, consumer: Consumer, on_lost: Callable[[], None]) -> PikaChannel:
        channel = await self.open_channel(on_lost)
        await channel.consume(consumer.queue, consumer.prefetch, consumer.deliver)
        return channel

    async def close(self) -> None:
        if self.pika.is_open:
            self.pika.close()
            await self._ended.wait(CLOSE_S)

    def _failed(self, _: Any, error: BaseException) -> None:
        self._error = error
        self._opened.set()

    def _closed(self, _: Any, error: BaseException) -> None:
        self._error = error
        self._ended.set()


class ThreadRuntime:
    """See `_runtime.Runtime`."""

    def __init__(self, name: str) -> None:
        self.loop = IOLoop()
        self._tasks: set[_Task] = set()
        self._after_chunk: dict[Callable[[], None], None] = {}
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.monotonic()

    def chance(self) -> float:
        return random.random()

    def signal(self) -> Signal:
        return LoopSignal(self.loop)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> _Task:
        def done(_: None, error: BaseException | None) -> None:
            self._tasks.discard(task)
            if error is not None:
                logger.error("%s failed; this is a bug", name, exc_info=error)

        task = _Task(coroutine, done)
        self._tasks.add(task)
        self.loop.add_callback_threadsafe(task.step)
        return task

    def after_chunk(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the data that is just being read has been worked through."""
        self._after_chunk[callback] = None

    def run_after_chunk(self) -> None:
        while self._after_chunk:
            self._after_chunk.popitem()[0]()

    async def connect(self, address: Address, name: str, timeouts: Timeouts) -> PikaConnection:
        connection = PikaConnection(self, address, name, timeouts)
        await connection.open(timeouts.connect_s)
        return connection

    async def attach(
        self, address: Address, name: str, timeouts: Timeouts, consumer: Consumer, on_lost: Callable[[], None]
    ) -> tuple[PikaConnection, PikaChannel]:
        connection = await self.connect(address, name, timeouts)
        try:
            return connection, await connection.attach(consumer, on_lost)
        except TidegateError:
            await connection.close()
            raise

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the loop's thread and wait for its result; not for that thread itself."""
        assert threading.current_thread() is not self._thread
        future: Future[Result] = Future()

        def done(result: Result, error: BaseException | None) -> None:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.loop.add_callback_threadsafe(_Task(coroutine, done).step)
        while True:
            try:
                return future.result(ALIVE_CHECK_S)
            except TimeoutError:
                if future.done():
                    raise
                if not self._thread.is_alive():
                    raise Closed("the client") from None

    def close(self) -> None:
        """End the thread. The engines have been closed before."""
        if self._thread.is_alive():
            self.loop.add_callback_threadsafe(self.loop.stop)
            self._thread.join(CLOSE_S)
        for task in list(self._tasks):
            task.cancel()
        self._tasks.clear()

    def _main(self) -> None:
        try:
            self.loop.start()
        except Exception:
            logger.exception("the I/O thread failed; this is a bug")
        finally:
            self.loop.close()


def _unused(*_: Any) -> None:
    """Deliveries bypass pika's callback; it wants one all the same."""


def _connect_error(address: Address, error: BaseException) -> ConnectionFailed:
    refused = (
        exceptions.ProbableAuthenticationError,
        exceptions.ProbableAccessDeniedError,
        exceptions.AuthenticationError,
    )
    if isinstance(error, refused):
        return AccessRefused(str(address), f"access refused: {_text(error)}")
    return ConnectionFailed(str(address), f"can't connect: {_text(error)}")


def _text(error: BaseException | None) -> str:
    return "closed" if error is None else str(error) or type(error).__name__
