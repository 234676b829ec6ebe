"""The runtime on one thread with pika's own I/O loop; no asyncio.

The thread serves heartbeats, confirmations and deliveries while the application's threads work. Engines are coroutines;
a coroutine needs no event loop, only a caller that resumes it. Here `_Task` resumes it when the signal it waits for is
set, or when its time is over.

Invariant: signals may be set from any thread; everything else happens in the loop's thread.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from pika import exceptions
from pika.adapters.select_connection import IOLoop

from .._core.config import Address, Timeouts
from .._core.errors import AccessRefused, CertificateRefused, Closed, ConnectionFailed, TidegateError
from .._core.opening import FAST_SHARE, OpeningDiffers, Openings
from .._engine.runtime import Consumer, Signal
from .pika_connection import PikaChannel, PikaConnection, text_of
from .tls import certificate_refusal

logger = logging.getLogger(__name__)

LAST_CHANCE_S: Final = 0.1
"""What the usual way gets at least, if the fast one has used up all the time."""
CLOSE_S: Final = 3.0
ALIVE_CHECK_S: Final = 1.0
"""How often a caller that waits for the loop's thread looks whether it still runs."""

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


class ThreadRuntime:
    """See `runtime.Runtime`."""

    def __init__(self, name: str) -> None:
        self.loop = IOLoop()
        self.openings = Openings()
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
        return await self._open(address, name, timeouts, None, _nothing)

    async def attach(
        self, address: Address, name: str, timeouts: Timeouts, consumer: Consumer, on_lost: Callable[[], None]
    ) -> tuple[PikaConnection, PikaChannel]:
        connection = await self._open(address, name, timeouts, consumer, on_lost)
        try:
            return connection, await connection.attach_first() or await connection.attach(consumer, on_lost)
        except TidegateError:
            await connection.close()
            raise

    async def _open(
        self, address: Address, name: str, timeouts: Timeouts, consumer: Consumer | None, on_lost: Callable[[], None]
    ) -> PikaConnection:
        """A connection that was opened at once, and has its consumer, or one opened the usual way, which has not."""
        began_at = self.now()
        fast_s = timeouts.connect_s * FAST_SHARE
        tune = self.openings.anticipate(address, began_at)
        wrong: BaseException | None = None
        if tune is not None:
            connection = PikaConnection(self, address, name, timeouts)
            try:
                await connection.open(fast_s, tune, consumer, on_lost)
            except Exception as error:
                if not connection.pika.connected and self.now() < began_at + fast_s:
                    raise _connect_error(address, error) from error
                wrong = error
            else:
                self.openings.succeeded()
                return connection
        connection = PikaConnection(self, address, name, timeouts)
        try:
            await connection.open(max(began_at + timeouts.connect_s - self.now(), LAST_CHANCE_S), None, None, on_lost)
        except Exception as error:
            raise _connect_error(address, error) from error
        if wrong is not None:
            logger.info(
                "%s: cannot open connections in one round trip; opened the usual way from now on: %s",
                address,
                text_of(wrong),
            )
            self.openings.fell_back(address, wrong.tune if isinstance(wrong, OpeningDiffers) else None, self.now())
        return connection

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


def _nothing() -> None:
    """There is no channel yet that could be lost."""


def _connect_error(address: Address, error: BaseException) -> ConnectionFailed:
    refused = (
        exceptions.ProbableAuthenticationError,
        exceptions.ProbableAccessDeniedError,
        exceptions.AuthenticationError,
    )
    if isinstance(error, refused):
        return AccessRefused(str(address), f"access refused: {text_of(error)}")
    untrusted = certificate_refusal(error)
    if untrusted is not None:
        return CertificateRefused(str(address), f"the certificate was refused: {untrusted}")
    return ConnectionFailed(str(address), f"can't connect: {text_of(error)}")
