"""A client's conversation with one head, over a control connection of its own.

Requests go to `tidegate.control` with the key `hom`; answers come by direct reply-to. Orders, which the head sends by
itself, come to a key that the client listens on.

Invariants:

- `request` is repeated until it is answered or its time is over, because all requests of a client are idempotent. `ask`
  sends once; its caller repeats. A request that reaches no process is returned by RabbitMQ, so that the client knows at
  once;
- the connection is opened when it is first needed. From the moment the client listens for orders, a lost connection is
  opened again at once: a head does not repeat an order soon that reached no client;
- an order that can't be read is counted and dropped. Answers go to a key of the control exchange, so that a client
  needs no right to write elsewhere, and no sender can make it write into a queue of the data plane.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeVar

from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.messages import ControlMessage, Refusal, decode, encode, request_key
from tidegate_protocol.names import ANSWER_KEY, CONTROL_EXCHANGE, HOM_KEY

from .._core.config import Address, Backoff, Timeouts
from .._core.errors import (
    AccessRefused,
    CertificateRefused,
    Closed,
    ConnectionFailed,
    HeadSilent,
    Refused,
    TidegateError,
    UnexpectedReply,
)
from .runtime import Channel, ChannelLost, Connection, Gate, Runtime, Signal

logger = logging.getLogger(__name__)

REQUEST_EXPIRES_MS: Final = 10_000
"""A request that waited longer in the head's queue has been repeated already."""
ASKED_MAX: Final = 1_000
"""Questions whose answer may still come; of more, the oldest are forgotten."""
SETTLED_S: Final = 5.0
"""A connection that lived this long was a success: the next failure starts again with the shortest delay."""
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
NOBODY_LISTENS: Final = "no process listens"
NO_ANSWER: Final = "it does not answer"
NO_EXCHANGES: Final = "it has not set up its exchanges"

ReplyType = TypeVar("ReplyType", bound=ControlMessage)


@dataclass(frozen=True, slots=True)
class ReplyTo:
    """Where the answer to an order goes."""

    control: Control
    correlation: str


OnOrder = Callable[[ControlMessage, ReplyTo | None], None]
"""Gets an order of the head, and where to answer; None where no answer is wanted."""
OnAnswer = Callable[[ControlMessage | UnexpectedReply], None]


class _PendingRequest:
    """One request on its way."""

    __slots__ = ("body", "returned", "signal")

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.body: bytes | None = None
        self.returned = False


class Control:
    """The control connection of one client to one head."""

    def __init__(self, runtime: Runtime, address: Address, name: str, timeouts: Timeouts, backoff: Backoff) -> None:
        self.address = address
        self.silence = NO_ANSWER
        """Why the last question has found no answer, should it be without one."""
        self.malformed_orders = 0
        self._runtime = runtime
        self._name = name
        self._timeouts = timeouts
        self._backoff = backoff
        self._gate = Gate(runtime)
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._ordered: Channel | None = None
        """The channel that orders come by."""
        self._pending: dict[str, _PendingRequest] = {}
        self._asked: dict[str, OnAnswer] = {}
        self._numbers = count(1)
        self._closing = False
        self._orders: tuple[str, OnOrder] | None = None
        self._kept = False
        """Whether a coroutine keeps the connection."""
        self._changed = runtime.signal()

    def __str__(self) -> str:
        return f"{self._name} control"

    async def open(self) -> None:
        """Connect now; raise what went wrong."""
        async with self._gate:
            await self._connect()

    # Orders

    def listen(self, key: str, on_order: OnOrder) -> None:
        """Take the orders sent to `key` from now on, across lost connections, until `stop_listening` or `close`."""
        self._orders = (key, on_order)
        if not self._kept and not self._closing:
            self._kept = True
            self._runtime.spawn(self._keep(), str(self))

    async def stop_listening(self) -> None:
        """Take no more orders: from now on their sender learns that this client does not listen."""
        self._orders = None
        self._changed.set()
        # The consumer goes with its connection; the next request opens another one.
        await self._disconnect()

    def answer(self, to: ReplyTo, message: ControlMessage) -> None:
        """Answer an order; if that fails, the head asks again."""
        self._runtime.spawn(self._answer(to, message), f"{self} answer")

    # Requests

    async def ask(self, message: ControlMessage, on_answer: OnAnswer) -> None:
        """Send a request once; its answer is handed over whenever it comes. Raise what keeps it from being sent."""
        self.silence = NO_ANSWER
        channel = await self._ready()
        correlation = str(next(self._numbers))
        if len(self._asked) >= ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        self._asked[correlation] = on_answer
        await channel.request(CONTROL_EXCHANGE, request_key(message), encode(message), correlation, REQUEST_EXPIRES_MS)

    async def request(self, message: ControlMessage, expect: type[ReplyType], timeout_s: float) -> ReplyType:
        """Ask the head; raise `Refused`, `HeadSilent`, `ConnectionFailed` or `UnexpectedReply`."""
        deadline = self._runtime.now() + timeout_s
        attempt = 0
        while True:
            left_s = deadline - self._runtime.now()
            pause_s = self._backoff.delay_s(attempt, self._runtime.chance())
            failure: TidegateError
            try:
                reply = await self._attempt(message, min(left_s, self._timeouts.attempt_s), timeout_s)
                if isinstance(reply, expect):
                    return reply
                if not isinstance(reply, Refusal):
                    raise UnexpectedReply(f"{message.kind} was answered with {reply.kind}")
                failure = Refused(reply.reason, reply.message, reply.field, reply.retry_after_s)
                if reply.retry_after_s is None:
                    raise failure
                pause_s = max(pause_s, reply.retry_after_s)
            except (AccessRefused, CertificateRefused):
                raise
            except (ConnectionFailed, HeadSilent) as error:
                failure = error
            if self._closing:
                raise Closed("the connection to the head")
            if self._runtime.now() + pause_s >= deadline:
                raise failure
            attempt += 1
            logger.debug("%s unanswered: %s; attempt %d in %.2f s", message.kind, failure, attempt + 1, pause_s)
            await self._runtime.signal().wait(pause_s)

    async def tell(self, message: ControlMessage) -> None:
        """Send without asking for an answer, if there is a channel: for news that may be lost."""
        if self._channel is not None and self._channel.lost is None:
            await self._channel.request(CONTROL_EXCHANGE, HOM_KEY, encode(message), "", REQUEST_EXPIRES_MS)

    async def close(self) -> None:
        """Close the connection; callers that wait for an answer get `Closed`."""
        self._closing = True
        self._changed.set()
        for pending in self._pending.values():
            pending.signal.set()
        await self._disconnect()

    async def _attempt(self, message: ControlMessage, timeout_s: float, total_s: float) -> ControlMessage:
        """Send once and wait; raise `HeadSilent` if the head did not answer."""
        channel = await self._ready()
        pending = _PendingRequest(self._runtime.signal())
        correlation = str(next(self._numbers))
        self._pending[correlation] = pending
        try:
            key = request_key(message)
            await channel.request(CONTROL_EXCHANGE, key, encode(message), correlation, REQUEST_EXPIRES_MS)
            await pending.signal.wait(timeout_s)
        finally:
            del self._pending[correlation]
        if pending.body is not None:
            reply = _read(pending.body)
            if isinstance(reply, UnexpectedReply):
                raise reply
            return reply
        if channel.lost is not None:
            if channel.lost.code == ACCESS_REFUSED:
                raise AccessRefused(str(self.address), channel.lost.problem)
            raise self._silent(total_s, NO_EXCHANGES) if channel.lost.code == NOT_FOUND else channel.lost
        raise self._silent(total_s, NOBODY_LISTENS if pending.returned else NO_ANSWER)

    def _silent(self, total_s: float, problem: str) -> HeadSilent:
        return HeadSilent(str(self.address), total_s, problem)

    # The connection

    async def _keep(self) -> None:
        """Have a connection for as long as orders are wanted."""
        attempt = 0
        while self._listening():
            lived_s = 0.0
            try:
                channel = await self._ready()
                since = self._runtime.now()
                while channel.lost is None and self._listening():
                    await self._changed.wait()
                lived_s = self._runtime.now() - since
                problem: TidegateError = channel.lost or Closed(str(self))
            except TidegateError as error:
                problem = error
            if not self._listening():
                break
            attempt = 0 if lived_s > SETTLED_S else attempt + 1
            await self._pause(attempt, problem)
        self._kept = False

    async def _pause(self, attempt: int, problem: TidegateError) -> None:
        delay_s = self._backoff.delay_s(attempt - 1, self._runtime.chance()) if attempt else 0.0
        logger.log(
            logging.INFO if attempt <= 1 else logging.DEBUG,
            "%s: cannot hear the head's orders: %s; next attempt in %.1f s",
            self,
            problem,
            delay_s,
        )
        until = self._runtime.now() + delay_s
        while self._listening() and (left_s := until - self._runtime.now()) > 0:
            await self._changed.wait(left_s)

    def _listening(self) -> bool:
        return self._orders is not None and not self._closing

    async def _ready(self) -> Channel:
        """A channel on which answers come, and orders if they are wanted."""
        async with self._gate:
            channel = await self._connect()
            if self._orders is not None and channel is not self._ordered:
                key, _ = self._orders
                try:
                    await channel.take_orders(CONTROL_EXCHANGE, key, self._on_order)
                except ChannelLost as error:
                    if error.code == ACCESS_REFUSED:
                        raise AccessRefused(str(self.address), error.problem) from error
                    if error.code != NOT_FOUND:
                        raise
                    # No head has ever run here, or it is just about to declare its exchange.
                    self.silence = NO_EXCHANGES
                    raise self._silent(self._timeouts.attempt_s, NO_EXCHANGES) from error
                self._ordered = channel
            return channel

    async def _connect(self) -> Channel:
        self._check_open()
        if self._channel is not None and self._channel.lost is None:
            return self._channel
        connection = self._connection
        if connection is None or not connection.usable:
            if connection is not None:
                await connection.close(hurry=True)
            connection = await self._runtime.connect(self.address, f"{self._name} control", self._timeouts)
            self._connection = connection
            if self._closing:
                await self._disconnect()
            self._check_open()
        channel = await connection.open_channel(self._on_lost, returned=self._on_returned)
        await channel.listen(self._on_reply)
        self._channel = channel
        return channel

    def _check_open(self) -> None:
        if self._closing:
            raise Closed("the connection to the head")

    async def _disconnect(self) -> None:
        connection, self._connection, self._channel, self._ordered = self._connection, None, None, None
        if connection is not None:
            await connection.close()

    async def _answer(self, to: ReplyTo, message: ControlMessage) -> None:
        channel = self._channel
        if channel is not None and channel.lost is None:
            await channel.answer(CONTROL_EXCHANGE, ANSWER_KEY, to.correlation, encode(message))

    def _on_order(self, body: bytes, reply_to: str | None, correlation: str | None) -> None:
        try:
            message = decode(body)
        except MalformedMessage as error:
            self.malformed_orders += 1
            logger.warning("%s: cannot read an order of the head; dropped: %s", self, error)
            return
        if self._orders is None:
            return
        wanted = bool(reply_to and correlation)
        self._orders[1](message, ReplyTo(self, correlation or "") if wanted else None)

    def _on_reply(self, correlation: str | None, body: bytes) -> None:
        pending = self._pending.get(correlation or "")
        asked = self._asked.pop(correlation or "", None)
        if asked is not None:
            asked(_read(body))
        elif pending is not None:
            pending.body = body
            pending.signal.set()
        else:
            # The answer to an attempt that was given up and repeated.
            logger.debug("answer %s came after its request was given up; ignored", correlation)

    def _on_returned(self, correlation: str | None) -> None:
        pending = self._pending.get(correlation or "")
        if self._asked.pop(correlation or "", None) is not None:
            self.silence = NOBODY_LISTENS
        if pending is not None:
            pending.returned = True
            pending.signal.set()

    def _on_lost(self) -> None:
        channel = self._channel
        if channel is not None and channel.lost is not None and channel.lost.code == NOT_FOUND:
            self.silence = NO_EXCHANGES
        # Answers come by the channel that asked.
        self._asked.clear()
        for pending in self._pending.values():
            pending.signal.set()
        self._changed.set()


def _read(body: bytes) -> ControlMessage | UnexpectedReply:
    try:
        return decode(body)
    except MalformedMessage as error:
        return UnexpectedReply(f"the answer of the head can't be read: {error}")
