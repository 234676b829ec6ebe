"""What the engines need from the world: connections, channels, signals, time and tasks.

There are two implementations: `_io.aio` on asyncio and aio-pika, `_io.threaded` on a thread with pika's own loop. The
engines are coroutines that await only what is listed here, so that they run on both.

Invariants of a runtime: everything of one client happens in one thread (or one event loop); a callback never waits
inside the runtime; every error that a runtime raises is a `TidegateError`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol

from .._core.config import Address, Timeouts
from .._core.errors import ConnectionLost
from .._core.publishing import Topic
from .._core.window import Publication

Deliver = Callable[[int, str, bytes, str | None, Mapping[str, Any] | None, bool, str | None], None]
"""Delivery tag, topic, body, message id, headers, redelivered, account."""
Confirm = Callable[[int, bool, bool], None]
"""Delivery tag, all up to it, accepted."""
Reply = Callable[[str | None, bytes], None]
"""Correlation id, body."""
Returned = Callable[[str | None], None]
"""Correlation id of a request that reached no process."""
Order = Callable[[bytes, str | None, str | None], None]
"""Body, reply-to, correlation id of what the head sent by itself."""

ABSENT_CODES: Final = frozenset({403, 404})
"""AMQP's codes for what is not there, or not for this account to know."""

_tags = count(1)


@dataclass(frozen=True, slots=True)
class Consumer:
    """An exclusive consumer that is wanted on a queue."""

    queue: str
    prefetch: int
    deliver: Deliver


class ChannelLost(ConnectionLost):
    """RabbitMQ closed one channel, or the connection below it; `code` is AMQP's, 0 where there is none."""

    def __init__(self, address: str, problem: str, code: int = 0) -> None:
        super().__init__(address, problem)
        self.code = code


class Signal(Protocol):
    """Wakes one coroutine.

    Setting it before anybody waits is not lost; setting it twice is the same as once.
    """

    def set(self) -> None: ...

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until set, and clear it. False if the time passed first."""
        ...


class Channel(Protocol):
    """One AMQP channel. `lost` says why it is of no use any more."""

    lost: ChannelLost | None

    async def publish(self, publications: Sequence[Publication], topics: Mapping[str, Topic]) -> None: ...

    async def consume(self, queue: str, prefetch: int, deliver: Deliver) -> None:
        """Start an exclusive consumer."""
        ...

    async def listen(self, reply: Reply) -> None:
        """Take the answers to requests sent on this channel."""
        ...

    async def take_orders(self, exchange: str, key: str, order: Order) -> None:
        """Take what is sent to `key` of `exchange`, through a queue that goes with this channel's connection."""
        ...

    async def answer(self, exchange: str, key: str, correlation: str, body: bytes) -> None:
        """Answer an order that asked for it."""
        ...

    async def request(self, exchange: str, key: str, body: bytes, correlation: str, expires_ms: int) -> None: ...

    async def acknowledge(self, acks: Sequence[tuple[int, bool]]) -> None: ...

    async def close(self) -> None: ...


class Connection(Protocol):
    """One AMQP connection. Closing it, or losing it, loses its channels."""

    @property
    def usable(self) -> bool: ...

    async def open_channel(
        self, on_lost: Callable[[], None], confirm: Confirm | None = None, returned: Returned | None = None
    ) -> Channel: ...

    async def attach(self, consumer: Consumer, on_lost: Callable[[], None]) -> Channel:
        """Open a channel with this consumer, in one round trip. Deliveries may come before it returns."""
        ...

    async def has_exchange(self, name: str) -> bool:
        """Whether there is an exchange of this name, as far as this account may know. In one round trip."""
        ...

    async def close(self, *, hurry: bool = False) -> None:
        """With `hurry`, what is under way to us is not waited for. What was written is sent all the same."""
        ...


class Task(Protocol):
    def cancel(self) -> Any: ...


class Runtime(Protocol):
    def now(self) -> float:
        """Seconds, monotonic."""
        ...

    def chance(self) -> float:
        """A random number in [0, 1)."""
        ...

    def signal(self) -> Signal: ...

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> Task: ...

    async def connect(self, address: Address, name: str, timeouts: Timeouts) -> Connection:
        """Open a connection within `timeouts.connect_s`; raise `ConnectionFailed`."""
        ...

    async def attach(
        self, address: Address, name: str, timeouts: Timeouts, consumer: Consumer, on_lost: Callable[[], None]
    ) -> tuple[Connection, Channel]:
        """Open a connection and a channel with this consumer, in as few round trips as the server takes."""
        ...


class Gate:
    """Lets one coroutine pass at a time, in order of arrival."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._busy = False
        self._queue: deque[Signal] = deque()

    async def __aenter__(self) -> None:
        if not self._busy:
            self._busy = True
            return
        turn = self._runtime.signal()
        self._queue.append(turn)
        await turn.wait()

    async def __aexit__(self, *_: object) -> None:
        if self._queue:
            self._queue.popleft().set()
        else:
            self._busy = False


def new_tag() -> str:
    """A consumer's tag, unique in this process. Short, because RabbitMQ repeats it with every delivery."""
    return f"t{next(_tags)}"
