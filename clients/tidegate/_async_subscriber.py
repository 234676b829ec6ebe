"""`AsyncSubscriber`: subscribing from asyncio.

A thin layer over `SubscriberEngine`: it hands messages to iterators and callbacks. The rules of delivering and moving
are in `_core`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from ._core.config import Address, Backoff, Limits, Timeouts
from ._core.errors import Closed, Refused
from ._core.inbox import Inbox
from ._core.message import Message
from ._core.options import Acknowledge, make_inbox, make_limits, make_request, make_subscriber_name
from ._core.statistics import Statistics
from ._engine.subscriber import SubscriberEngine, SubscriptionEngine
from ._io.aio import AioRuntime
from ._io.tokens import authenticated

logger = logging.getLogger(__name__)

AsyncCallback = Callable[[Message], Awaitable[None] | None]


class AsyncSubscription:
    """One subscription: iterate over it, unless it was given a callback.

    Iterating raises `Refused`, once, when the account has lost the right to it.
    """

    def __init__(self, subscriber: AsyncSubscriber, inbox: Inbox, on_late: AsyncCallback | None) -> None:
        self._subscriber = subscriber
        self._inbox = inbox
        self._on_late = on_late
        self._engine: SubscriptionEngine | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.callback_errors = 0
        """Callbacks that raised. The exception is logged and the subscription goes on."""

    @property
    def edge(self) -> str | None:
        """The edge that serves this subscription."""
        return self._engine.place.edge if self._engine and self._engine.place else None

    @property
    def queue(self) -> str | None:
        """The output queue of this subscription on its edge."""
        return self._engine.place.queue if self._engine and self._engine.place else None

    @property
    def attached(self) -> bool:
        """Whether a consumer is attached at this moment; False while reconnecting."""
        return self._engine is not None and self._engine.attached

    @property
    def problem(self) -> Refused | None:
        """Why the head does not serve it any more, though it did: its account lost the right. The client asks on, ever
        more seldom, and goes on by itself if the right comes back. None otherwise.
        """
        return self._engine.problem if self._engine else None

    @property
    def reconnects(self) -> int:
        return self._engine.reconnects if self._engine else 0

    def statistics(self) -> Statistics:
        """What this subscription has seen so far."""
        now = asyncio.get_running_loop().time()
        return self._engine.statistics(now) if self._engine is not None else self._inbox.statistics(now)

    async def unsubscribe(self) -> None:
        """End the subscription and have its queue removed."""
        assert self._engine is not None
        await self._subscriber._unsubscribe(self)
        await self._ended()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._task is not None and asyncio.current_task() is not self._task:
            raise TypeError("this subscription has a callback; iterate over one that has none")
        inbox, engine = self._inbox, self._engine
        assert engine is not None
        while not inbox.buffer or engine.ended:
            if engine.ended:
                raise StopAsyncIteration
            news = engine.take_news()
            if news is not None and self._task is None:
                raise news
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = inbox.hand_over(inbox.buffer.popleft(), time.time())
        if message.late and self._on_late is not None:
            await self._call(self._on_late, message)
        # With a callback, hand-over ends when the callback does.
        if not inbox.manual and self._task is None:
            inbox.settle(message)
            engine.settled()
        return message

    def _start(self, engine: SubscriptionEngine, callback: AsyncCallback | None) -> None:
        self._engine = engine
        if self._inbox.manual:
            self._inbox.on_settled = engine.settled
        if callback is not None:
            self._task = asyncio.get_running_loop().create_task(self._dispatch(callback), name=f"{engine} callback")

    async def _dispatch(self, callback: AsyncCallback) -> None:
        async for message in self:
            await self._call(callback, message)
            if not self._inbox.manual and self._engine is not None:
                self._inbox.settle(message)
                self._engine.settled()

    async def _call(self, callback: AsyncCallback, message: Message) -> None:
        try:
            result = callback(message)
            if inspect.isawaitable(result):
                await result
        except Exception:
            self.callback_errors += 1
            logger.exception("a callback failed on %r; the subscription goes on", message)

    def _changed(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _ended(self) -> None:
        """Wait for a callback that is running, unless it is the one that closes us."""
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait({self._task}, timeout=self._subscriber._timeouts.close_s)
            self._task.cancel()


class AsyncSubscriber:
    """Subscribes through a head.

    ```python
    async with AsyncSubscriber("amqp://guest:guest@localhost") as subscriber:
        async for message in await subscriber.subscribe("quake.#", deadline=1.5):
            print(message.topic, message.age_s, message.late)
    ```

    A subscriber with a name leaves its subscriptions in place when it closes: what arrives within `expires_s`
    waits for it. One without a name ends them."""

    def __init__(
        self,
        url: str,
        name: str | None = None,
        *,
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        backoff: Backoff | None = None,
        telemetry: bool = True,
        token: Callable[[], str] | None = None,
    ) -> None:
        """`telemetry`: whether to report latencies to the head about every ten seconds, if the head wants them.
        `token`: gives a token in place of a password (OAuth 2); called in a thread, again before each one expires.
        """
        self._address = authenticated(Address.parse(url), token)
        self._limits = make_limits(limits)
        self._timeouts = timeouts or Timeouts()
        self._backoff = backoff or Backoff()
        self._telemetry = telemetry
        self._anonymous = name is None
        self.name = make_subscriber_name(name, self._address.user)
        self._runtime: AioRuntime | None = None
        self._engine: SubscriberEngine | None = None
        self._subscriptions: list[AsyncSubscription] = []

    async def open(self) -> None:
        """Connect to the head; raise `ConnectionFailed` if that fails."""
        if self._engine is not None:
            return
        runtime = AioRuntime()
        engine = SubscriberEngine(
            runtime, self._address, self.name, self._limits, self._timeouts, self._backoff, self._telemetry
        )
        try:
            await engine.start()
        except BaseException:
            await engine.close(unsubscribe=False)
            await runtime.close()
            raise
        self._runtime, self._engine = runtime, engine

    async def subscribe(
        self,
        pattern: str,
        deadline: float,
        *,
        callback: AsyncCallback | None = None,
        on_late: AsyncCallback | None = None,
        acknowledge: Acknowledge = "auto",
        prefetch: int | None = None,
        expires_s: int = 600,
    ) -> AsyncSubscription:
        """Subscribe and attach; messages older than `deadline` seconds at hand-over are marked as late.

        With `callback`, a function or coroutine function, messages go there one after another; otherwise
        iterate."""
        engine = self._running()
        request = make_request(self.name, pattern, deadline, expires_s)
        inbox = make_inbox(request.pattern, deadline, acknowledge, prefetch, self._limits)
        subscription = AsyncSubscription(self, inbox, on_late)
        subscription._start(await engine.subscribe(request, inbox, subscription._changed), callback)
        self._subscriptions.append(subscription)
        return subscription

    async def close(self) -> None:
        """Stop consuming, acknowledge what is settled, disconnect. RabbitMQ keeps what is not settled."""
        engine, runtime = self._engine, self._runtime
        if engine is None or runtime is None:
            return
        self._engine = self._runtime = None
        await engine.close(unsubscribe=self._anonymous)
        for subscription in self._subscriptions:
            await subscription._ended()
        self._subscriptions.clear()
        await runtime.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _running(self) -> SubscriberEngine:
        if self._engine is None:
            raise Closed("the subscriber")
        return self._engine

    async def _unsubscribe(self, subscription: AsyncSubscription) -> None:
        assert subscription._engine is not None
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        await self._running().unsubscribe(subscription._engine)
