"""One AMQP connection that is kept open: opened, watched, and opened again with a growing, bounded delay.

A `ConnectionKeeper` hands every fresh connection to its `setup` and tells `on_lost` when it is gone. Keepers are
independent of one another, so a dead neighbour delays no other connection. A keeper knows nothing of what runs over its
connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import aiormq
from aiormq.abc import AbstractConnection
from aiormq.connection import TransportFactory
from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelInvalidStateError,
    ConnectionNotAllowed,
    ProbableAuthenticationError,
)

from tidegate_protocol.amqp.rewriting import Rewrite

from ..errors import AlreadyRunning, BrokerError, RabbitDenied, RabbitForbidden, RabbitUnreachable, RabbitUntrusted
from ..settings.tls import refusal
from ..settings.urls import ServerUrl
from .frames import PlainTransport

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 5
CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 2.0
BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MAX_S: Final = 3.0
QUIET_FAILURES: Final = 20
"""After the first, only every so many failures in a row is logged as a warning."""

LOST: Final = (ConnectionError, TimeoutError, OSError, asyncio.CancelledError, ChannelInvalidStateError)
"""What aiormq raises from an operation whose connection or channel has gone; it cancels futures, too."""


async def open_connection(
    url: ServerUrl, label: str, rewrite: Rewrite | None = None, transport: TransportFactory | None = None
) -> AbstractConnection:
    """Open a connection, or raise an error of `errors.py`. What comes in is cut down as `frames.py` says, or as
    `rewrite` does, unless there is another `transport`.
    """
    where = str(url)
    address = f"{url.reveal()}?heartbeat={HEARTBEAT_S}" + ("&auth=external" if url.by_certificate else "")
    factory = transport or PlainTransport(rewrite)
    connection = aiormq.Connection(address, context=url.tls_context(), transport_factory=factory)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await connection.connect(client_properties={"connection_name": label})
    except (AuthenticationError, ProbableAuthenticationError):
        raise RabbitDenied(where) from None
    except ConnectionNotAllowed:
        vhost = url.vhost
        raise RabbitForbidden(
            where,
            f"the virtual host {vhost} does not exist or the user has no right to it",
            f"run: rabbitmqctl add_vhost {vhost}, rabbitmqctl set_permissions -p {vhost} USER '.*' '.*' '.*'",
        ) from None
    except TimeoutError:
        raise RabbitUnreachable(where, f"no answer within {CONNECT_TIMEOUT_S:g} s", "check host and port") from None
    except (OSError, AMQPError) as error:
        untrusted = refusal(error)
        if untrusted is not None:
            raise RabbitUntrusted(where, untrusted) from None
        problem = f"can't be reached ({_reason(error)})"
        raise RabbitUnreachable(where, problem, "check host and port, and that RabbitMQ runs") from None
    return connection


def _reason(error: Exception) -> str:
    return error.strerror or "refused" if isinstance(error, OSError) and error.strerror else type(error).__name__


def lost_by_connection(error: BaseException) -> bool:
    """Whether an operation failed because its connection went, and not because this task was cancelled."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError):
        return task is not None and not task.cancelling()
    return isinstance(error, LOST)


class ConnectionKeeper:
    """Keeps one connection open for as long as `run` runs."""

    def __init__(
        self,
        label: str,
        url: ServerUrl,
        setup: Callable[[AbstractConnection], Awaitable[None]],
        on_lost: Callable[[], None],
        on_reconnect: Callable[[], None] = lambda: None,
        rewrite: Rewrite | None = None,
    ) -> None:
        self._rewrite = rewrite
        self.label = label
        self.url = url
        self.up = asyncio.Event()
        self.problem: BrokerError | None = None
        self._setup = setup
        self._on_lost = on_lost
        self._on_reconnect = on_reconnect
        self._connection: AbstractConnection | None = None
        self._failures = 0

    async def run(self) -> None:
        """Open, watch, open again; ends only by cancellation."""
        opened_before = False
        while True:
            try:
                connection = await open_connection(self.url, self.label, self._rewrite)
                self._connection = connection
                try:
                    await self._setup(connection)
                    if opened_before:
                        self._on_reconnect()
                    opened_before = True
                    self._mark_up()
                    await _closed(connection)
                finally:
                    await self._drop(connection)
                self.problem = RabbitUnreachable(str(self.url), "the connection was lost", "it is opened again")
            except BrokerError as error:
                self.problem = error
            except BaseException as error:
                if not lost_by_connection(error) and not isinstance(error, AMQPError):
                    raise
                problem = f"the connection was lost while it was set up ({type(error).__name__}: {error})"
                self.problem = RabbitUnreachable(str(self.url), problem, "it is opened again")
            self._log_failure()
            await asyncio.sleep(min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(self._failures - 1, 10)))

    async def wait_up(self, timeout_s: float) -> None:
        """Return once set up; raise what is in the way if it can't pass by itself or when time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self.up.is_set():
            if isinstance(self.problem, RabbitDenied | RabbitForbidden | RabbitUntrusted):
                raise self.problem
            left = deadline - loop.time()
            if left <= 0:
                raise self.problem or RabbitUnreachable(str(self.url), "no connection in time", "check host and port")
            try:
                async with asyncio.timeout(min(0.1, left)):
                    await self.up.wait()
            except TimeoutError:
                continue

    def _mark_up(self) -> None:
        self.problem = None
        self._failures = 0
        self.up.set()
        log.info("connected", extra={"connection": self.label, "url": str(self.url)})

    async def _drop(self, connection: AbstractConnection) -> None:
        was_up = self.up.is_set()
        self.up.clear()
        self._connection = None
        if was_up:
            self._on_lost()
        await close_quietly(connection)

    def _log_failure(self) -> None:
        self._failures += 1
        loud = self._failures % QUIET_FAILURES == 1 or isinstance(self.problem, AlreadyRunning)
        level = logging.WARNING if loud else logging.DEBUG
        log.log(level, "%s", self.problem, extra={"connection": self.label, "failures": self._failures})


async def _closed(connection: AbstractConnection) -> None:
    """Wait until a connection has gone, whatever the reason."""
    closing: asyncio.Future[object] = connection.closing
    await asyncio.wait([closing])
    if not closing.cancelled():
        closing.exception()


async def close_quietly(connection: AbstractConnection) -> None:
    """Close a connection that may be gone already, within bounded time."""
    if connection.is_closed:
        return
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await connection.close()
    except BaseException as error:
        if not lost_by_connection(error) and not isinstance(error, AMQPError):
            raise
        log.debug("closing %s: %r", connection, error)
