"""`Subscriber`: subscribing from threads.

A thin layer over `SubscriberEngine`, which runs in an I/O thread of its own. The application iterates in its own
threads; a callback gets one thread per subscription.

Invariant: the I/O thread never waits for the application, so that heartbeats are served however long a callback takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ._core.config import Address, Backoff, Limits, Timeouts
from ._core.errors import Closed, Refused
from ._core.inbox import Inbox
from ._core.message import Message
from ._core.options import Acknowledge, make_inbox, make_limits, make_request, make_subscriber_name
from ._core.statistics import Statistics
from ._engine.subscriber import SubscriberEngine, SubscriptionEngine
from ._io.threaded import ThreadRuntime
from ._io.tokens import authenticated

logger = logging.getLogger(__name__)

Callback = Callable[[Message], object]


class Subscription:
    """One subscription: iterate over it, or `get` one message, unless it was given a callback.

    Both raise `Refused`, once, when the account has lost the right to it.
    """

    def __init__(self, subscriber: Subscriber, runtime: ThreadRuntime, inbox: Inbox, on_late: Callback | None) -> None:
        self._subscriber = subscriber
        self._runtime = runtime
        self._inbox = inbox
        self._on_late = on_late
        self._engine: SubscriptionEngine | None = None
        self._changed = threading.Condition()
        self._waiting = 0
        self._thread: threading.Thread | None = None
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
        now = time.monotonic()
        return self._engine.statistics(now) if self._engine is not None else self._inbox.statistics(now)

    def unsubscribe(self) -> None:
        """End the subscription and have its queue removed."""
        self._subscriber._unsubscribe(self)
        self._ended()

    def get(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None if none comes in time, or if the subscription has ended."""
        if self._thread is not None and threading.current_thread() is not self._thread:
            raise TypeError("this subscription has a callback; take messages from one that has none")
        inbox, engine = self._inbox, self._engine
        assert engine is not None
        message = self._take(engine, timeout_s)
        if message is None:
            return None
        inbox.hand_over(message, time.time())
        if message.late and self._on_late is not None:
            self._call(self._on_late, message)
        # With a callback, hand-over ends when the callback does.
        if not inbox.manual and self._thread is None:
            inbox.settle(message)
            engine.settled()
        return message

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        message = self.get()
        if message is None:
            raise StopIteration
        return message

    def _take(self, engine: SubscriptionEngine, timeout_s: float | None) -> Message | None:
        """Wait for a message. Several threads may: who is woken may find that another one was faster."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not engine.ended:
            try:
                return self._inbox.buffer.popleft()
            except IndexError:
                news = engine.take_news()
                if news is not None and self._thread is None:
                    raise news from None
                left_s = None if until is None else until - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                self._wait(engine, left_s)
        return None

    def _wait(self, engine: SubscriptionEngine, timeout_s: float | None) -> None:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._inbox.buffer or engine.ended or engine.has_news, timeout_s)
            finally:
                self._waiting -= 1

    def _start(self, engine: SubscriptionEngine, callback: Callback | None) -> None:
        self._engine = engine
        if self._inbox.manual:
            self._inbox.on_settled = engine.settled
        if callback is not None:
            self._thread = threading.Thread(
                target=self._dispatch,
                args=(callback,),
                name=f"tidegate-{engine.request.pattern}",
                daemon=True,
            )
            self._thread.start()

    def _dispatch(self, callback: Callback) -> None:
        for message in self:
            self._call(callback, message)
            if not self._inbox.manual and self._engine is not None:
                self._inbox.settle(message)
                self._engine.settled()

    def _call(self, callback: Callback, message: Message) -> None:
        try:
            callback(message)
        except Exception:
            self.callback_errors += 1
            logger.exception("a callback failed on %r; the subscription goes on", message)

    def _on_change(self) -> None:
        """In the I/O thread, for each message and at the end.

        A look without the lock is enough: who begins to wait looks into the buffer first. Waking a thread
        costs more than a message, so it is done once for all messages that came together."""
        if not self._waiting:
            return
        if self._engine is None or self._engine.ended or self._engine.has_news:
            self._notify()
        else:
            self._runtime.after_chunk(self._notify)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _ended(self) -> None:
        """Wait for a callback that is running, unless it is the one that closes us."""
        self._notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._subscriber._timeouts.close_s)


class Subscriber:
    """Subscribes through a head.

    ```python
    with Subscriber("amqp://guest:guest@localhost") as subscriber:
        for message in subscriber.subscribe("quake.#", deadline=1.5):
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
        self._runtime: ThreadRuntime | None = None
        self._engine: SubscriberEngine | None = None
        self._subscriptions: list[Subscription] = []

    def open(self) -> None:
        """Connect to the head; raise `ConnectionFailed` if that fails."""
        if self._engine is not None:
            return
        runtime = ThreadRuntime(f"tidegate-{self.name}")
        engine = SubscriberEngine(
            runtime, self._address, self.name, self._limits, self._timeouts, self._backoff, self._telemetry
        )
        try:
            runtime.call(engine.start())
        except BaseException:
            runtime.call(engine.close(unsubscribe=False))
            runtime.close()
            raise
        self._runtime, self._engine = runtime, engine

    def subscribe(
        self,
        pattern: str,
        deadline: float,
        *,
        callback: Callback | None = None,
        on_late: Callback | None = None,
        acknowledge: Acknowledge = "auto",
        prefetch: int | None = None,
        expires_s: int = 600,
    ) -> Subscription:
        """Subscribe and attach; messages older than `deadline` seconds at hand-over are marked as late.

        With `callback`, messages go there one after another, in a thread of their own; otherwise iterate.
        """
        runtime, engine = self._running()
        request = make_request(self.name, pattern, deadline, expires_s)
        inbox = make_inbox(request.pattern, deadline, acknowledge, prefetch, self._limits)
        subscription = Subscription(self, runtime, inbox, on_late)
        # Waking is put off until what was read is worked through; a release comes at another time, and wakes at once.
        subscribing = engine.subscribe(request, inbox, subscription._on_change, subscription._notify)
        subscription._start(runtime.call(subscribing), callback)
        self._subscriptions.append(subscription)
        return subscription

    def close(self) -> None:
        """Stop consuming, acknowledge what is settled, disconnect. RabbitMQ keeps what is not settled."""
        engine, runtime = self._engine, self._runtime
        if engine is None or runtime is None:
            return
        self._engine = self._runtime = None
        runtime.call(engine.close(unsubscribe=self._anonymous))
        for subscription in self._subscriptions:
            subscription._ended()
        self._subscriptions.clear()
        runtime.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> tuple[ThreadRuntime, SubscriberEngine]:
        if self._runtime is None or self._engine is None:
            raise Closed("the subscriber")
        return self._runtime, self._engine

    def _unsubscribe(self, subscription: Subscription) -> None:
        runtime, engine = self._running()
        assert subscription._engine is not None
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        runtime.call(engine.unsubscribe(subscription._engine))
