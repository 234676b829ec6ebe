"""The publisher's engine: keeps a data connection to the head and drives the publishing machine over it.

One coroutine owns the channel: it connects, writes what the machine hands out, and starts over when the
channel is lost. Another one tells the head again and again that this publisher is there; that it fails
changes nothing, because publishing goes on while the head's process is down. It runs on any runtime;
`AsyncPublisher` and `Publisher` are thin layers over it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from tidegate_protocol.messages import (
    TOPICS_PER_PUBLISHER_MAX,
    PublisherGoodbye,
    PublisherHello,
    PublisherWelcome,
)

from ._config import Address, Backoff, Limits, Timeouts
from ._control import Control
from ._errors import ConnectionFailed, TidegateError
from ._publishing import PublishingMachine
from ._runtime import Channel, Connection, Runtime

logger = logging.getLogger(__name__)

SETTLED_S: Final = 5.0
"""A channel that lived this long was a success: the next failure starts again with the shortest delay."""


class PublisherEngine:
    """Runs one publisher. `lock` guards the machine where other threads use it too."""

    def __init__(
        self,
        runtime: Runtime,
        address: Address,
        publisher: str,
        limits: Limits,
        timeouts: Timeouts,
        backoff: Backoff,
        lock: AbstractContextManager[object],
        on_settled: Callable[[], None],
    ) -> None:
        self.machine = PublishingMachine(publisher, limits)
        self.wake = runtime.signal()
        self.reconnects = 0
        self._runtime = runtime
        self._address = address
        self._timeouts = timeouts
        self._backoff = backoff
        self._lock = lock
        self._on_settled = on_settled
        """Called after confirmations, without the lock; the client wakes those who wait for a place."""
        self._name = f"tidegate publisher {publisher}"
        self._control = Control(runtime, address, self._name, timeouts, backoff)
        self._stop_hello = runtime.signal()
        self._finished = runtime.signal()
        self._hello_finished = runtime.signal()
        self._closing = False
        self._started = False

    async def start(self) -> None:
        """Connect for the first time; raise what went wrong. From then on the engine reconnects by itself."""
        connection, channel = await self._connect()
        self._started = True
        self._runtime.spawn(self._run(connection, channel), f"{self._name} data")
        self._runtime.spawn(self._greet(), f"{self._name} hello")

    async def close(self) -> None:
        """Stop and close both connections. What is unsettled is abandoned: flush first."""
        self._closing = True
        if self._started:
            self.wake.set()
            self._stop_hello.set()
            await self._finished.wait(self._timeouts.close_s)
            await self._hello_finished.wait(self._timeouts.close_s)
        await self._control.close()
        with self._lock:
            left = self.machine.abandon("the publisher was closed")
        if left:
            logger.warning("%s closed with %d publications unconfirmed", self._name, left)

    async def _connect(self) -> tuple[Connection, Channel]:
        connection = await self._runtime.connect(self._address, f"{self._name} data", self._timeouts)
        try:
            return connection, await connection.open_channel(self.wake.set, confirm=self._confirm)
        except TidegateError:
            await connection.close()
            raise

    async def _run(self, connection: Connection | None, channel: Channel | None) -> None:
        attempt = 0
        while not self._closing:
            if connection is None or channel is None:
                try:
                    connection, channel = await self._connect()
                    self.reconnects += 1
                except ConnectionFailed as error:
                    attempt = await self._pause(attempt, error)
                    continue
            since = self._runtime.now()
            await self._drive(channel)
            await connection.close()
            if channel.lost is not None and not self._closing:
                if self._runtime.now() - since > SETTLED_S:
                    attempt = 0
                attempt = await self._pause(attempt, channel.lost)
            connection = channel = None
        self._finished.set()

    async def _drive(self, channel: Channel) -> None:
        """Write what there is to write until the channel is lost or the publisher is closed."""
        with self._lock:
            self.machine.opened()
        while channel.lost is None and not self._closing:
            now = self._runtime.now()
            with self._lock:
                batch = self.machine.take(now)
                due_in_s = self.machine.due_in_s(now)
            if batch:
                await channel.publish(batch, self.machine.topics)
            else:
                await self.wake.wait(due_in_s)
        with self._lock:
            self.machine.lost()

    async def _pause(self, attempt: int, error: TidegateError) -> int:
        delay_s = self._backoff.delay_s(attempt, self._runtime.chance())
        level = logging.WARNING if attempt == 0 else logging.DEBUG
        logger.log(level, "%s: %s (next attempt in %.1f s)", self._name, error, delay_s)
        # Publications wake the engine too; they must not shorten the pause.
        until = self._runtime.now() + delay_s
        while not self._closing and (left_s := until - self._runtime.now()) > 0:
            await self.wake.wait(left_s)
        return attempt + 1

    def _confirm(self, tag: int, multiple: bool, accepted: bool) -> None:
        with self._lock:
            if accepted:
                self.machine.acked(tag, multiple)
            else:
                self.machine.nacked(tag, multiple, self._runtime.now(), self._runtime.chance())
            rejected = self.machine.has_rejected
        if rejected:
            self.wake.set()
        self._on_settled()

    async def _greet(self) -> None:
        publisher = self.machine.publisher
        period_s = self._timeouts.hello_s
        while not self._closing:
            topics = tuple(list(self.machine.topics)[-TOPICS_PER_PUBLISHER_MAX:])
            try:
                welcome = await self._control.request(
                    PublisherHello(publisher=publisher, topics=topics),
                    PublisherWelcome,
                    self._timeouts.attempt_s,
                )
                period_s = min(welcome.period_s, self._timeouts.hello_s)
            except TidegateError as error:
                logger.debug("%s: the head does not know of us yet: %s", self._name, error)
            await self._stop_hello.wait(period_s)
        try:
            # The head would forget us by itself three periods from now; this is only politer.
            await self._control.tell(PublisherGoodbye(publisher=publisher))
        except TidegateError as error:
            logger.debug("%s: goodbye was not heard: %s", self._name, error)
        self._hello_finished.set()
