"""The runtime on asyncio: connections by aio-pika, channels of its underlying aiormq (`aio_channel`).

aio-pika opens and watches a connection, without its robust mode, because the engines reconnect by themselves. The
opening of a connection is written at once, and then its answers are waited for (`_core.opening`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

import aio_pika
import aiormq
import aiormq.exceptions
from aiormq.abc import ChannelFrame

from .._core.config import Address, Timeouts
from .._core.errors import AccessRefused, CertificateRefused, ConnectionFailed, TidegateError
from .._core.opening import FAST_SHARE, OpeningDiffers, Openings
from .._engine.runtime import ABSENT_CODES, ChannelLost, Confirm, Consumer, Returned, Signal, Task, new_tag
from .aio_channel import CLOSE_S, AioChannel, LeanChannel, attaching, text_of
from .aio_transport import EagerTransport, SealingTransport
from .tls import certificate_refusal
from .tokens import REASON, secret_of

logger = logging.getLogger(__name__)

FIRST_CHANNEL: Final = 1
PLAIN: Final = "plain"
EXTERNAL: Final = "external"
"""How an account is known, as aiormq calls it in an address."""
FRAME_BUFFER: Final = 1_000
"""Frames between the reader of a connection and that of a channel: enough for a socket buffer of small
messages.
"""
LAST_CHANCE_S: Final = 0.1
"""What the usual way gets at least, if the fast one has used up all the time."""
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


class AioConnection:
    """See `runtime.Connection`."""

    def __init__(self, address: Address, connection: aio_pika.Connection, socket: SealingTransport) -> None:
        self._address = address
        self._connection = connection
        self._socket = socket
        assert connection.transport is not None
        self._transport = connection.transport.connection
        self._loop = asyncio.get_running_loop()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def usable(self) -> bool:
        return not self._connection.is_closed and not self._transport.is_closed

    def renew(self, token: str) -> None:
        """See `tokens.Holder`."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._renew, token)

    def _renew(self, token: str) -> None:
        self._renewing = self._loop.create_task(self._update_secret(token))

    async def _update_secret(self, token: str) -> None:
        try:
            await self._transport.update_secret(token, reason=REASON, timeout=CLOSE_S)
        except (aiormq.exceptions.AMQPError, OSError, TimeoutError, RuntimeError, asyncio.CancelledError) as error:
            logger.warning(
                "%s does not take a newer token; the connection ends with the last: %r", self._address, error
            )

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

    async def has_exchange(self, name: str) -> bool:
        channel = self._make_channel(_nothing)
        try:
            await channel.look_for(name)
        except ChannelLost as lost:
            if lost.code in ABSENT_CODES:
                return False
            raise
        await channel.close()
        return True

    def _make_channel(
        self, on_lost: Callable[[], None], confirm: Confirm | None = None, returned: Returned | None = None
    ) -> AioChannel:
        if not self.usable:
            raise ChannelLost(str(self._address), "connection lost")
        taken = self._transport.channels
        number = next(number for number in range(FIRST_CHANNEL, 65_536) if number not in taken)
        channel = LeanChannel(
            self._transport, number, publisher_confirms=confirm is not None, frame_buffer=FRAME_BUFFER
        )
        channel.confirm, channel.returned = confirm, returned
        taken[number] = channel
        return AioChannel(self._address, channel, on_lost)

    async def close(self, *, hurry: bool = False) -> None:
        try:
            await asyncio.wait_for(self._connection.close(), HURRY_S if hurry else CLOSE_S)
        except (aiormq.exceptions.AMQPError, OSError, TimeoutError, RuntimeError) as error:
            logger.debug("cannot close the connection to %s in order; its socket is closed: %r", self._address, error)
        finally:
            self._socket.close()
            # aio-pika calls itself closed only when a close has ended by itself. Otherwise it tries to close again when
            # it is collected, perhaps without a loop. The transport is gone from it, so this does not wait.
            await self._connection.close()


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
            logger.info(
                "%s: cannot open connections in one round trip; opened the usual way from now on: %s",
                address,
                text_of(wrong),
            )
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
    password = await asyncio.to_thread(secret_of, address) if address.tokens is not None else address.password
    url = aio_pika.connection.make_url(
        host=address.host,
        port=address.port,
        login=address.user,
        password=password,
        virtualhost=address.vhost,
        ssl=address.scheme == "amqps",
        heartbeat=heartbeat_s,
        auth=EXTERNAL if address.by_certificate else PLAIN,
    )
    connection = aio_pika.Connection(url, ssl_context=address.tls_context(), client_properties=properties)
    connection.kwargs["transport_factory"] = transport
    try:
        await connection.connect(timeout=timeout_s)
    except BaseException:
        # Otherwise it would try to close itself when it is collected, perhaps in a thread without a loop.
        await connection.close()
        raise
    opened = AioConnection(address, connection, transport)
    if address.tokens is not None:
        address.tokens.hold(opened)
    return opened


def _connect_error(address: Address, error: BaseException) -> ConnectionFailed:
    refused = (aiormq.exceptions.AuthenticationError, aiormq.exceptions.ProbableAuthenticationError)
    code = error.args[0] if error.args else None
    if isinstance(error, refused) or code in ACCESS_CODES:
        return AccessRefused(str(address), f"access refused: {text_of(error)}")
    if isinstance(error, aiormq.exceptions.InvalidFrameError) and "Connection.Close" in str(error):
        # aiormq does not look at what RabbitMQ says when it closes instead of opening the virtual host.
        return AccessRefused(str(address), f"access refused to the virtual host {address.vhost!r}")
    untrusted = certificate_refusal(error)
    if untrusted is not None:
        return CertificateRefused(str(address), f"the certificate was refused: {untrusted}")
    return ConnectionFailed(str(address), f"can't connect: {text_of(error)}")


def _nothing() -> None:
    """Nobody waits for this channel."""
