"""`Publisher`: publishing from threads.

A thin layer over `PublisherEngine`, which runs in an I/O thread of its own. The rules of publishing are in
`_core.publishing` and `_core.window`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from tidegate_protocol.form import AttributeValue

from ._core.config import Address, Backoff, Limits, Timeouts
from ._core.errors import Closed, TidegateError, TimedOut
from ._core.options import make_limits, make_publisher_id
from ._core.window import Publication
from ._engine.publisher import PublisherEngine, PublisherStatistics
from ._io.threaded import ThreadRuntime
from ._io.tokens import authenticated


class Receipt:
    """What `publish` returns. `wait` for RabbitMQ's confirmation."""

    __slots__ = ("_changed", "_publication")

    def __init__(self, publication: Publication, changed: threading.Condition) -> None:
        self._publication = publication
        self._changed = changed

    @property
    def id(self) -> str:
        """The id of the message."""
        return self._publication.id

    @property
    def confirmed(self) -> bool:
        return self._publication.settled and self._publication.error is None

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the confirmation; raise `NotConfirmed` if it fails, `TimedOut` if it does not come in
        time.
        """
        publication = self._publication
        if not publication.settled:
            event = threading.Event()
            with self._changed:
                if not publication.settled:
                    previous = publication.listener

                    def settled() -> None:
                        event.set()
                        if previous is not None:
                            previous()

                    publication.listener = settled
            if not publication.settled and not event.wait(timeout_s):
                raise TimedOut(f"confirming {publication.id}", timeout_s or 0.0)
        if publication.error is not None:
            raise publication.error


class Publisher:
    """Publishes to a head, from any thread.

    ```python
    with Publisher("amqp://guest:guest@localhost") as publisher:
        receipt = publisher.publish("quake.izu", b"...", attributes={"magnitude": 4.1})
        receipt.wait(5)
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
        self._runtime: ThreadRuntime | None = None
        self._engine: PublisherEngine | None = None
        # One lock for the machine and for the threads that wait for it to change.
        self._changed = threading.Condition()
        self._waiting_for_room = 0
        self._waiting_for_all = 0

    def open(self) -> None:
        """Connect; raise `ConnectionFailed` if that fails. Afterwards the publisher reconnects by itself."""
        if self._engine is not None:
            return
        runtime = ThreadRuntime(f"tidegate-{self.id}")
        engine = PublisherEngine(
            runtime,
            self._address,
            self.id,
            self._limits,
            self._timeouts,
            self._backoff,
            self._changed,
            self._settled,
        )
        try:
            runtime.call(engine.start())
        except BaseException:
            runtime.call(engine.close())
            runtime.close()
            raise
        self._runtime, self._engine = runtime, engine

    def publish(
        self,
        topic: str,
        body: bytes,
        attributes: Mapping[str, AttributeValue] | None = None,
        persistent: bool = True,
    ) -> Receipt:
        """Publish; waits for a place in the window, and longer if the head has asked this publisher to slow down.

        Wait for the receipt for the confirmation.
        """
        engine = self._running()
        machine = engine.machine
        draft = machine.draft(topic, body, attributes, persistent)
        with self._changed:
            if machine.full:
                self._wait_for_room(engine)
            if engine.slowed:
                self._wait_for_turn(engine)
            if self._engine is not engine:
                raise Closed("the publisher")  # by another thread: the engine would not send it any more
            publication = machine.admit(draft, time.time_ns() // 1000)
        engine.wake.set()
        return Receipt(publication, self._changed)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all publications so far are settled; raise the first `NotConfirmed` since the last
        flush.
        """
        machine = self._running().machine
        limit_s = self._timeouts.flush_s if timeout_s is None else timeout_s
        with self._changed:
            last = machine.last_order
            self._waiting_for_all += 1
            try:
                done = self._changed.wait_for(lambda: machine.settled_up_to(last), limit_s)
            finally:
                self._waiting_for_all -= 1
            left = machine.unsettled
            failure = machine.take_failure() if done else None
        if not done:
            raise TimedOut(f"confirming {left} publications", limit_s)
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush, for at most `timeouts.close_s`, and disconnect.

        Receipts still open fail with `NotConfirmed`.
        """
        engine, runtime = self._engine, self._runtime
        if engine is None or runtime is None:
            return
        problem: TidegateError | None = None
        try:
            self.flush(self._timeouts.close_s)
        except TidegateError as error:
            problem = error
        finally:
            self._engine = self._runtime = None
            runtime.call(engine.close())
            runtime.close()
            with self._changed:
                self._changed.notify_all()
        if problem is not None:
            raise problem

    @property
    def unconfirmed(self) -> int:
        """Publications without confirmation."""
        return self._engine.machine.unsettled if self._engine else 0

    def statistics(self) -> PublisherStatistics:
        """What this publisher has done so far, and whether it is asked to slow down."""
        return self._running().statistics()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> PublisherEngine:
        if self._engine is None:
            raise Closed("the publisher")
        return self._engine

    def _wait_for_room(self, engine: PublisherEngine) -> None:
        self._waiting_for_room += 1
        try:
            while engine.machine.full:
                self._changed.wait()
                if self._engine is not engine:
                    return
        finally:
            self._waiting_for_room -= 1

    def _wait_for_turn(self, engine: PublisherEngine) -> None:
        """Wait until a throttle lets one more publication go and there is a place for it."""
        waited = False
        while self._engine is engine:
            if engine.machine.full:
                self._wait_for_room(engine)
            elif (wait_s := engine.throttle_s()) > 0.0:
                waited = True
                self._changed.wait(wait_s)
            else:
                break
        engine.delayed += waited

    def _settled(self) -> None:
        """In the I/O thread, after confirmations.

        Waking a thread for every single place would cost more than it brings: threads that wait for room are
        woken when a quarter of the window is free.
        """
        with self._changed:
            engine = self._engine
            roomy = engine is None or engine.machine.roomy
            if self._waiting_for_all or (self._waiting_for_room and roomy):
                self._changed.notify_all()
