"""`AsyncPublisher`: publishing from asyncio.

A thin layer over `PublisherEngine`: it waits for places in the window and for confirmations. The rules of publishing
are in `_core.publishing` and `_core.window`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any, Self

from tidegate_protocol.form import AttributeValue

from ._core.config import Address, Backoff, Limits, Timeouts
from ._core.errors import Closed, TidegateError, TimedOut
from ._core.options import make_limits, make_publisher_id
from ._core.window import Publication
from ._engine.publisher import PublisherEngine, PublisherStatistics
from ._io.aio import AioRuntime
from ._io.tokens import authenticated


class AsyncReceipt:
    """What `publish` returns.

    Await it for RabbitMQ's confirmation; it raises `NotConfirmed` if that fails.
    """

    __slots__ = ("_future", "_publication")

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self._future: asyncio.Future[None] | None = None

    @property
    def id(self) -> str:
        """The id of the message."""
        return self._publication.id

    @property
    def confirmed(self) -> bool:
        return self._publication.settled and self._publication.error is None

    def __await__(self) -> Generator[Any, None, None]:
        publication = self._publication
        if not publication.settled:
            if self._future is None:
                self._future = asyncio.get_running_loop().create_future()
                publication.listener = self._settled
            # Shielded, because a second one may wait for the same receipt when the first is cancelled.
            yield from asyncio.shield(self._future).__await__()
        if publication.error is not None:
            raise publication.error

    def _settled(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class AsyncPublisher:
    """Publishes to a head.

    ```python
    async with AsyncPublisher("amqp://guest:guest@localhost") as publisher:
        receipt = await publisher.publish("quake.izu", b"...", attributes={"magnitude": 4.1})
        await receipt
    ```
    """

    def __init__(
        self,
        url: str,
        name: str | None = None,
        *,
        window: int | None = None,
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        backoff: Backoff | None = None,
        token: Callable[[], str] | None = None,
    ) -> None:
        """`token`: gives a token in place of a password (OAuth 2); called in a thread, and again before it expires."""
        self._address = authenticated(Address.parse(url), token)
        self._limits = make_limits(limits, window)
        self._timeouts = timeouts or Timeouts()
        self._backoff = backoff or Backoff()
        self.id = make_publisher_id(name, self._address.user)
        """Name and incarnation, as subscribers see it."""
        self._runtime: AioRuntime | None = None
        self._engine: PublisherEngine | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def open(self) -> None:
        """Connect; raise `ConnectionFailed` if that fails. Afterwards the publisher reconnects by itself."""
        if self._engine is not None:
            return
        runtime = AioRuntime()
        engine = PublisherEngine(
            runtime,
            self._address,
            self.id,
            self._limits,
            self._timeouts,
            self._backoff,
            nullcontext(),
            self._settled,
        )
        try:
            await engine.start()
        except BaseException:
            await engine.close()
            await runtime.close()
            raise
        self._runtime, self._engine = runtime, engine

    async def publish(
        self,
        topic: str,
        body: bytes,
        attributes: Mapping[str, AttributeValue] | None = None,
        persistent: bool = True,
    ) -> AsyncReceipt:
        """Publish; waits for a place in the window, and longer if the head has asked this publisher to slow down.

        Await the receipt for the confirmation.
        """
        engine = self._running()
        machine = engine.machine
        draft = machine.draft(topic, body, attributes, persistent)
        while machine.full:
            await self._change()
            engine = self._running()
        if engine.slowed:
            await self._wait_for_turn(engine)
        publication = machine.admit(draft, time.time_ns() // 1000)
        engine.wake.set()
        return AsyncReceipt(publication)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all publications so far are settled; raise the first `NotConfirmed` since the last
        flush.
        """
        machine = self._running().machine
        limit_s = self._timeouts.flush_s if timeout_s is None else timeout_s
        last = machine.last_order
        try:
            async with asyncio.timeout(limit_s):
                while not machine.settled_up_to(last):
                    await self._change()
        except TimeoutError:
            raise TimedOut(f"confirming {machine.unsettled} publications", limit_s) from None
        failure = machine.take_failure()
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Flush, for at most `timeouts.close_s`, and disconnect.

        Receipts still open fail with `NotConfirmed`.
        """
        engine, runtime = self._engine, self._runtime
        if engine is None or runtime is None:
            return
        problem: TidegateError | None = None
        try:
            await self.flush(self._timeouts.close_s)
        except TidegateError as error:
            problem = error
        finally:
            self._engine = self._runtime = None
            await engine.close()
            await runtime.close()
            self._settled()
        if problem is not None:
            raise problem

    @property
    def unconfirmed(self) -> int:
        """Publications without confirmation."""
        return self._engine.machine.unsettled if self._engine else 0

    def statistics(self) -> PublisherStatistics:
        """What this publisher has done so far, and whether it is asked to slow down."""
        return self._running().statistics()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _running(self) -> PublisherEngine:
        if self._engine is None:
            raise Closed("the publisher")
        return self._engine

    async def _wait_for_turn(self, engine: PublisherEngine) -> None:
        """Wait until a throttle lets one more publication go and there is a place for it."""
        waited = False
        while True:
            if engine.machine.full:
                await self._change()
            elif (wait_s := engine.throttle_s()) > 0.0:
                waited = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._change()
            else:
                break
            if self._engine is not engine:
                raise Closed("the publisher")
        engine.delayed += waited

    async def _change(self) -> None:
        """Wait until something was settled."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _settled(self) -> None:
        waiters = self._waiters
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
