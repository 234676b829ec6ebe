"""One AMQP connection, driven step by step.

Nothing happens on a link unless `run` is on the stack: it turns pika's event loop until a condition holds or time is
up, so every wait has a limit, also those for RabbitMQ's answers. While nobody runs it, nothing is read from the socket,
and what RabbitMQ has to say waits there: that is the back-pressure.

A failed channel tells why in its `error`; a failed connection makes `run` raise. Streams refuse nack and reject, so
consumers are never cancelled: their channel is closed.
"""

from __future__ import annotations

import builtins
import logging
import re
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any, Final

import pika
from pika import exceptions

from .errors import AccessRefused, ConnectionFailed, NotAStream, SourceError, StreamMissing, Unavailable, Unreadable
from .options import Broker, Endpoint, Tls
from .tolerant import TolerantConnection

CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 2.0
HEARTBEAT_S: Final = 60

# When the client can't decode what came, it ends the connection like any other, and the cause is in the text alone.
_LOST_BY: Final = re.compile(r"Stream connection lost: ((\w+).*)", re.DOTALL)

logger = logging.getLogger(__name__)

OnMessage = Callable[[Any, Any, Any, bytes], None]


def quiet_client() -> None:
    """For Spark's own processes: pika reports every failed try with a traceback, our errors say it once."""
    client = logging.getLogger("pika")
    if client.level == logging.NOTSET:
        client.setLevel(logging.CRITICAL)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Verify the other side, by the system's authorities or by `caFile`."""
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    return context


class Consumer:
    """A channel with one consumer on one stream."""

    def __init__(self, link: Link, stream: str, offset: object, prefetch: int, on_message: OnMessage) -> None:
        self.stream = stream
        self.error: SourceError | None = None
        self._link = link
        self._offset = offset
        self._prefetch = prefetch
        self._on_message = on_message
        self._channel: Any = link.open_channel(self._opened)

    def _opened(self, channel: Any) -> None:
        channel.add_on_close_callback(self._closed)
        channel.add_on_cancel_callback(self._cancelled)
        # The client sends these one after the other, each when the one before is answered.
        channel.basic_qos(prefetch_count=self._prefetch)
        channel.basic_consume(self.stream, self._on_message, arguments={"x-stream-offset": self._offset})

    def ack_all(self) -> None:
        """Acknowledge everything delivered so far, which lets RabbitMQ send as much again."""
        if self._channel.is_open:
            self._channel.basic_ack(0, multiple=True)

    def fence(self, on_passed: Callable[[], None]) -> None:
        """Ask for an answer that comes after all that RabbitMQ has to deliver at that moment."""

        def passed(_frame: object) -> None:
            on_passed()
            self._link.wake()

        if self._channel.is_open:
            self._channel.basic_qos(prefetch_count=self._prefetch, callback=passed)

    def count(self, on_counted: Callable[[int], None]) -> None:
        """Ask how many messages there are. The answer may be some seconds old, and 0 for a stream that is not empty."""

        def counted(frame: Any) -> None:
            on_counted(int(frame.method.message_count))
            self._link.wake()

        if self._channel.is_open:
            self._channel.queue_declare(self.stream, passive=True, callback=counted)

    def close(self) -> None:
        """Stop delivery; the link has to run for it to take effect."""
        if self._channel.is_open:
            self._channel.close()

    def _closed(self, _channel: object, reason: Exception) -> None:
        if isinstance(reason, exceptions.ChannelClosedByBroker):
            self.error = self._link.why_closed(self.stream, reason.reply_code, reason.reply_text)
        self._link.wake()

    def _cancelled(self, _frame: object) -> None:
        self.error = Unavailable(self._link.address, self.stream, "RabbitMQ ended the consumer")
        self._link.wake()


class Link:
    """A connection. Use it in a `with` statement, or close it."""

    def __init__(self, broker: Broker, tls: Tls) -> None:
        self.address = broker.address
        self._failure: SourceError | None = None
        self._open = False
        self._ended = False
        self._connection: Any = TolerantConnection(
            _parameters(broker, tls),
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_failed,
            on_close_callback=self._on_failed,
        )
        self._loop = self._connection.ioloop
        try:
            if not self.run(lambda: self._open, CONNECT_TIMEOUT_S):
                raise ConnectionFailed(self.address, f"no answer within {CONNECT_TIMEOUT_S:g} s")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Let things happen until `until()`, which is looked at after each `wake`; False when time is up first."""

        def done() -> bool:
            return until() or self._failure is not None

        in_time = self._turn(done, timeout_s)
        if self._failure is not None:
            raise self._failure
        return in_time

    def _turn(self, until: Callable[[], bool], timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not until():
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            timer = self._loop.call_later(left_s, self._loop.stop)
            self._loop.start()
            self._loop.remove_timeout(timer)
        return True

    def wake(self) -> None:
        """Make `run` look at its condition."""
        self._loop.stop()

    def open_channel(self, on_open: Callable[[Any], None]) -> Any:
        try:
            return self._connection.channel(on_open_callback=on_open)
        except exceptions.ConnectionWrongStateError:
            raise self._failure or ConnectionFailed(self.address, "the connection is closed") from None

    def consume(self, stream: str, offset: object, prefetch: int, on_message: OnMessage) -> Consumer:
        """Begin to read a stream. Messages come while the link runs, and `Consumer.error` may."""
        return Consumer(self, stream, offset, prefetch, on_message)

    def close(self) -> None:
        """Say goodbye if there is somebody to say it to, and free everything."""
        if self._ended:
            return
        self._ended = True
        connection = self._connection
        try:
            if not connection.is_closed and not connection.is_closing:
                connection.close()
            if not self._turn(lambda: connection.is_closed, CLOSE_TIMEOUT_S) and connection._transport is not None:
                connection._transport.abort()  # nobody answers: let go of the socket all the same
                self._turn(lambda: connection.is_closed, CLOSE_TIMEOUT_S)
        except Exception as error:
            # Whatever came over the wire last, the caller has its result or its error already.
            logger.debug("%s: closing: %r", self.address, error)
        finally:
            self._loop.close()

    def why_closed(self, stream: str, code: int, text: str) -> SourceError:
        """What RabbitMQ means by closing a channel."""
        if code == 404 and "no queue" in text:
            return StreamMissing(self.address, stream)
        if code == 403:
            return AccessRefused(self.address, text)
        if code == 406 and "x-stream-offset" in text:
            return NotAStream(self.address, stream, text.rsplit("of queue type ", 1)[-1])
        return Unavailable(self.address, stream, f"{code} {text}")

    def _on_open(self, _connection: object) -> None:
        self._open = True
        self.wake()

    def _on_failed(self, _connection: object, reason: Exception) -> None:
        self._failure = self._failure or _why_failed(self.address, reason)
        self.wake()


def _parameters(broker: Broker, tls: Tls) -> pika.ConnectionParameters:
    amqp: Endpoint = broker.amqp
    return pika.ConnectionParameters(
        host=amqp.host,
        port=amqp.port,
        virtual_host=broker.virtual_host,
        credentials=pika.PlainCredentials(amqp.user, amqp.password),
        ssl_options=pika.SSLOptions(tls_context(tls), amqp.host) if amqp.secure else None,
        heartbeat=HEARTBEAT_S,
        connection_attempts=1,
        socket_timeout=CONNECT_TIMEOUT_S,
        stack_timeout=CONNECT_TIMEOUT_S,
        client_properties={"connection_name": "rabbitmq_stream_source"},
    )


def _is_decoding_error(name: str) -> bool:
    """Whether an exception of that name means that the client could not make sense of what came."""
    kind = getattr(exceptions, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type):
        return issubclass(kind, exceptions.ProtocolSyntaxError | ValueError | LookupError | TypeError | ArithmeticError)
    return name == struct.error.__name__


def _why_failed(address: str, reason: Exception) -> SourceError:
    """Whether it is worth another try. RabbitMQ refuses a virtual host that is only starting up with the same code."""
    refused = exceptions.AuthenticationError | exceptions.ProbableAuthenticationError
    if isinstance(reason, refused):
        return AccessRefused(address, "login refused")
    text = str(reason) or repr(reason)
    cause = _LOST_BY.search(text)
    if cause and _is_decoding_error(cause[2]):
        return Unreadable(address, "a message", cause[1])
    code = getattr(reason, "reply_code", None)
    denied = isinstance(reason, exceptions.ProbableAccessDeniedError) or code in (403, 530)
    if denied and "is down" not in text:
        return AccessRefused(address, text)
    return ConnectionFailed(address, text)
