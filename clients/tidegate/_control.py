"""Requests to the head over the client's control connection.

Requests go to `tidegate.control` with the key `hom`, answers come by direct reply-to. A request is repeated
until it is answered or its time is over: all requests of a client are idempotent. The connection is opened
when it is first needed and again after it was lost. "Nobody is there" (the request is returned) is known at
once and retried like silence."""

from __future__ import annotations

import logging
from itertools import count
from typing import Final, TypeVar

from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.messages import ControlMessage, Refusal, decode, encode
from tidegate_protocol.names import CONTROL_EXCHANGE, HOM_KEY

from ._config import Address, Backoff, Timeouts
from ._errors import (
    AccessRefused,
    Closed,
    ConnectionFailed,
    HeadSilent,
    Refused,
    TidegateError,
    UnexpectedReply,
)
from ._runtime import Channel, Connection, Gate, Runtime, Signal

logger = logging.getLogger(__name__)

REQUEST_EXPIRES_MS: Final = 10_000
"""A request that waited longer in the head's queue has been repeated already."""

ReplyType = TypeVar("ReplyType", bound=ControlMessage)


class _Pending:
    """One request on its way."""

    __slots__ = ("body", "returned", "signal")

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.body: bytes | None = None
        self.returned = False


class Control:
    """The control connection of one client."""

    def __init__(self, runtime: Runtime, address: Address, name: str, timeouts: Timeouts, backoff: Backoff) -> None:
        self._runtime = runtime
        self._address = address
        self._name = name
        self._timeouts = timeouts
        self._backoff = backoff
        self._gate = Gate(runtime)
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._pending: dict[str, _Pending] = {}
        self._numbers = count(1)
        self._closing = False

    async def open(self) -> None:
        """Connect now; raise what went wrong."""
        async with self._gate:
            await self._open()

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
            except AccessRefused:
                raise
            except (ConnectionFailed, HeadSilent) as error:
                failure = error
            if self._closing:
                raise Closed("the connection to the head")
            if self._runtime.now() + pause_s >= deadline:
                raise failure
            attempt += 1
            logger.debug("%s: %s; attempt %d in %.2f s", message.kind, failure, attempt + 1, pause_s)
            await self._runtime.signal().wait(pause_s)

    async def tell(self, message: ControlMessage) -> None:
        """Send without asking for an answer, if there is a channel: for news that nobody has to hear."""
        if self._channel is not None and self._channel.lost is None:
            await self._channel.request(CONTROL_EXCHANGE, HOM_KEY, encode(message), "", REQUEST_EXPIRES_MS)

    async def close(self) -> None:
        """Close the connection; whoever waits for an answer gets `Closed`."""
        self._closing = True
        for pending in self._pending.values():
            pending.signal.set()
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            await connection.close()

    async def _attempt(self, message: ControlMessage, timeout_s: float, total_s: float) -> ControlMessage:
        """Send once and wait; raise `HeadSilent` if nobody answered."""
        async with self._gate:
            channel = await self._open()
        pending = _Pending(self._runtime.signal())
        correlation = str(next(self._numbers))
        self._pending[correlation] = pending
        try:
            await channel.request(CONTROL_EXCHANGE, HOM_KEY, encode(message), correlation, REQUEST_EXPIRES_MS)
            await pending.signal.wait(timeout_s)
        finally:
            del self._pending[correlation]
        if pending.body is not None:
            try:
                return decode(pending.body)
            except MalformedMessage as error:
                raise UnexpectedReply(f"the answer to {message.kind} can't be read: {error}") from error
        if channel.lost is not None:
            if channel.lost.code == 404:
                # No head has ever run here, or it is just about to declare its exchange.
                raise HeadSilent(str(self._address), total_s, "it has not set up its exchanges")
            raise channel.lost
        problem = "no process listens" if pending.returned else "it does not answer"
        raise HeadSilent(str(self._address), total_s, problem)

    async def _open(self) -> Channel:
        if self._closing:
            raise Closed("the connection to the head")
        if self._channel is not None and self._channel.lost is None:
            return self._channel
        if self._connection is None or not self._connection.usable:
            self._connection = await self._runtime.connect(self._address, f"{self._name} control", self._timeouts)
        self._channel = await self._connection.open_channel(self._on_lost, returned=self._on_returned)
        await self._channel.listen(self._on_reply)
        return self._channel

    def _on_reply(self, correlation: str | None, body: bytes) -> None:
        pending = self._pending.get(correlation or "")
        if pending is None:
            # The answer to an attempt that was given up and repeated.
            logger.debug("answer %s came too late", correlation)
            return
        pending.body = body
        pending.signal.set()

    def _on_returned(self, correlation: str | None) -> None:
        pending = self._pending.get(correlation or "")
        if pending is not None:
            pending.returned = True
            pending.signal.set()

    def _on_lost(self) -> None:
        for pending in self._pending.values():
            pending.signal.set()
