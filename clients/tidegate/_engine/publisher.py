"""The publisher's engine: keeps a data connection to a head, drives the publishing machine over it, and moves it.

One coroutine owns the channel: it connects, writes what the machine hands out, and starts over when the channel is
lost. Orders of the head go to a `PublisherMoveMachine`; after a move the coroutine goes on with the channel to the new
head, which was opened meanwhile. The engine runs on any runtime; `AsyncPublisher` and `Publisher` are thin layers over
it.

Whether it names its account in what it publishes it asks RabbitMQ when it connects (`ACCOUNTS_EXCHANGE`): no process of
ours has to be there for that. Once it does, it goes on doing so, at every head.

Invariant: a confirmation counts only if it comes by the channel that is written to, and that channel changes only while
nothing is in flight.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidegate_protocol.balancing.publishers import ThrottleOrder
from tidegate_protocol.errors import InvalidValue
from tidegate_protocol.messages import ControlMessage
from tidegate_protocol.names import ACCOUNTS_EXCHANGE
from tidegate_protocol.rendering import why

from .._core.config import Address, Backoff, Limits, Timeouts
from .._core.errors import ConnectionFailed, TidegateError, UnexpectedReply
from .._core.moves import (
    Answer,
    Answered,
    CancelTimer,
    ChangeHead,
    ClosedByApplication,
    ConnectNewHead,
    DropNewHead,
    HeadLost,
    LeaveHead,
    NewHeadConnected,
    NewHeadLost,
    Ordered,
    PausePublishing,
    PublisherAction,
    PublisherEvent,
    Request,
    ResumePublishing,
    SetTimer,
    TimerFired,
    WindowEmptied,
)
from .._core.publisher_move import PublisherMoveMachine
from .._core.publishing import PublishingMachine
from .control import Control, ReplyTo
from .heads import Heads
from .publisher_news import PublisherNews
from .requests import Requests
from .runtime import Channel, ChannelLost, Connection, Runtime
from .timers import Timers

logger = logging.getLogger(__name__)

ACCESS_REFUSED: Final = 403
"""RabbitMQ's answer to a publication that the account has no right to; it closes the channel."""
SETTLED_S: Final = 5.0
"""A channel that lived this long was a success: the next failure starts again with the shortest delay."""


@dataclass(frozen=True, slots=True)
class PublisherStatistics:
    """What one publisher has done so far."""

    published: int
    """Publications taken from the application."""
    unconfirmed: int
    retries: int
    """Publications sent again, because RabbitMQ rejected them or the connection was lost."""
    reconnects: int
    moves: int
    """How often it was moved to another head."""
    head: str | None
    """The head it publishes at, by name; None before that has answered."""
    throttled: bool
    """Whether the head has asked it to slow down at present."""
    delayed: int
    """Publications that had to wait for that reason."""


class _Line:
    """A connection to a head with its channel."""

    def __init__(self, address: Address, connection: Connection) -> None:
        self.address = address
        self.connection = connection
        self.channel: Channel | None = None

    @property
    def lost(self) -> ChannelLost | None:
        return self.channel.lost if self.channel is not None else None


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
        self.moves = 0
        self.delayed = 0
        self.slowed = False
        """Whether `throttle_s` has to be asked before each publication."""
        self._runtime = runtime
        self._home = address
        self._address = address
        self._timeouts = timeouts
        self._backoff = backoff
        self._lock = lock
        self._on_settled = on_settled
        """Called after confirmations, without the lock; the client wakes the callers that wait for a place."""
        self._name = f"tidegate publisher {publisher}"
        self._mover = PublisherMoveMachine(publisher)
        self._heads = Heads(runtime, address, publisher, self._name, timeouts, backoff, self._ordered)
        self._news = PublisherNews(
            runtime, self.machine, lock, timeouts, self._control, self._name, address.user, on_settled
        )
        self._timers: Timers | None = None
        self._events: deque[PublisherEvent] = deque()
        self._handling = False
        self._requests = Requests(runtime, self._heads, self._name, self._answered, self._not_sent)
        self._line: _Line | None = None
        """The one that is written to."""
        self._second: tuple[str, _Line] | None = None
        """The move it is for, and the line to the new head."""
        self._arrived: _Line | None = None
        """What was the second line, once it is to take the place of the first."""
        self._finished = runtime.signal()
        self._closing = False
        self._started = False

    async def start(self) -> None:
        """Connect for the first time; raise what went wrong. From then on the engine reconnects by itself."""
        line = await self._connect(self._home, self.wake.set)
        self._started = True
        self._timers = Timers(self._runtime, lambda name: self._handle(TimerFired(name)), self._name)
        self._heads.join("", self)
        self._runtime.spawn(self._run(line), f"{self._name} data")
        self._news.start()

    async def close(self) -> None:
        """Stop and close all connections. What is unsettled is abandoned: flush first."""
        self._closing = True
        if self._started:
            self._handle(ClosedByApplication())
            assert self._timers is not None
            self._timers.stop()
            self.wake.set()
            await self._finished.wait(self._timeouts.close_s)
            await self._news.close()
        await self._heads.close()
        with self._lock:
            left = self.machine.abandon("the publisher was closed")
        if left:
            logger.warning(
                "%s: closed with %d publications unconfirmed; they may not have been published", self._name, left
            )

    def statistics(self) -> PublisherStatistics:
        """What it has done so far; from any thread."""
        machine = self.machine
        return PublisherStatistics(
            published=machine.last_order,
            unconfirmed=machine.unsettled,
            retries=machine.retries,
            reconnects=self.reconnects,
            moves=self.moves,
            head=self._news.head,
            throttled=self.slowed and self._mover.throttle.active(self._runtime.now()),
            delayed=self.delayed,
        )

    def throttle_s(self) -> float:
        """How long the next publication has to wait before this is asked again; 0 if it may go, and counts as gone.

        To be called with the lock.
        """
        now = self._runtime.now()
        self.slowed = self._mover.throttle.active(now)
        return self._mover.throttle.take(now)

    # The channel

    async def _connect(self, address: Address, on_lost: Callable[[], None]) -> _Line:
        line = _Line(address, await self._runtime.connect(address, f"{self._name} data", self._timeouts))
        try:
            if not self.machine.signs and await line.connection.has_exchange(ACCOUNTS_EXCHANGE):
                with self._lock:
                    self.machine.sign(address.user)
            line.channel = await line.connection.open_channel(on_lost, confirm=partial(self._confirm, line))
        except TidegateError:
            await line.connection.close()
            raise
        return line

    async def _run(self, line: _Line | None) -> None:
        attempt = 0
        while not self._closing:
            if line is None:
                try:
                    line = await self._connect(self._address, self.wake.set)
                    self.reconnects += 1
                except ConnectionFailed as error:
                    attempt = await self._pause(attempt, error)
            # It may have been moved while it had no connection.
            line = self._switched(line)
            if line is None:
                continue
            since = self._runtime.now()
            await self._drive(line)
            self._runtime.spawn(line.connection.close(), f"{self._name} disconnects")
            if self._arrived is not None:
                attempt = 0
            elif line.lost is not None and not self._closing:
                if line.lost.code == ACCESS_REFUSED:
                    self._news.greet()
                if self._runtime.now() - since > SETTLED_S:
                    attempt = 0
                attempt = await self._pause(attempt, line.lost)
            line = self._switched(None)
        if line is not None:
            await line.connection.close()
        self._finished.set()

    def _switched(self, line: _Line | None) -> _Line | None:
        """`line`, or the one to the new head if the publisher was moved."""
        if self._arrived is None:
            return line
        if line is not None:
            self._runtime.spawn(line.connection.close(), f"{self._name} disconnects")
        arrived, self._arrived = self._arrived, None
        return arrived

    async def _drive(self, line: _Line) -> None:
        """Write what there is to write until the channel is lost or the publisher is moved or closed."""
        channel = line.channel
        assert channel is not None
        with self._lock:
            self._line = line
            self.machine.opened()
        while channel.lost is None and not self._closing and self._arrived is None:
            now = self._runtime.now()
            with self._lock:
                batch = self.machine.take(now)
                due_in_s = self.machine.due_in_s(now)
                emptied = self.machine.paused and not self.machine.in_flight
            if batch:
                await channel.publish(batch, self.machine.topics)
                continue
            if emptied:
                self._handle(WindowEmptied())
            await self.wake.wait(due_in_s)
        with self._lock:
            self._line = None
            self.machine.lost()
        if self._arrived is None and not self._closing:
            self._handle(HeadLost())

    async def _pause(self, attempt: int, error: TidegateError) -> int:
        delay_s = self._backoff.delay_s(attempt, self._runtime.chance())
        level = logging.WARNING if attempt == 0 else logging.DEBUG
        logger.log(level, "%s: %s; publications wait, next attempt in %.1f s", self._name, error, delay_s)
        # Publications wake the engine too; they must not shorten the pause.
        until = self._runtime.now() + delay_s
        while not self._closing and self._arrived is None and (left_s := until - self._runtime.now()) > 0:
            await self.wake.wait(left_s)
        return attempt + 1

    def _confirm(self, line: _Line, tag: int, multiple: bool, accepted: bool) -> None:
        with self._lock:
            machine = self.machine
            if line is not self._line:
                return
            if machine.probe_tag and tag >= machine.probe_tag:
                machine.probed(self._runtime.now())
            if accepted:
                machine.acked(tag, multiple)
            else:
                machine.nacked(tag, multiple, self._runtime.now(), self._runtime.chance())
            due = machine.has_rejected or (machine.paused and not machine.in_flight)
        if due:
            self.wake.set()
        self._on_settled()

    # Moving to another head

    def _control(self) -> Control:
        return self._heads.control(self._mover.head_url)

    def _ordered(self, _: str, message: ControlMessage, reply_to: ReplyTo | None) -> None:
        self._handle(Ordered(message, reply_to))

    def _handle(self, event: PublisherEvent) -> None:
        """Have the machine take an event, now or after the one being handled, and do what it orders."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._step(self._events.popleft())
        finally:
            self._handling = False

    def _step(self, event: PublisherEvent) -> None:
        # With the lock, because the application's threads ask the throttle.
        with self._lock:
            actions = self._mover.handle(event, self._runtime.now())
            if isinstance(event, Ordered) and isinstance(event.message, ThrottleOrder):
                self.slowed = True
                reason = why(event.message.found)
                logger.warning("%s: the head limits its rate; publish() waits longer: %s", self._name, reason)
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: PublisherAction) -> None:
        match action:
            case ConnectNewHead(move, _, url):
                self._runtime.spawn(self._connect_second(move, url), f"{self._name} {move}")
            case DropNewHead(move):
                self._drop_second(move)
            case PausePublishing():
                self._set_paused(True)
            case ResumePublishing(moved):
                self._resume(moved)
            case Answer(to, message):
                assert isinstance(to, ReplyTo)
                to.control.answer(to, message)
            case Request(key, message, head_url):
                self._requests.send(key, message, head_url)
            case SetTimer(name, after_s):
                assert self._timers is not None
                self._timers.set(name, after_s)
            case CancelTimer(name):
                assert self._timers is not None
                self._timers.cancel(name)
            case ChangeHead(head, url):
                logger.info("%s: moved; publishes at %s from now on", self._name, head)
                self._heads.join(url, self)
                self._news.greet()
            case LeaveHead(url):
                self._heads.leave(url, self)

    async def _connect_second(self, move: str, url: str) -> None:
        try:
            line = await self._connect(self._home.at(url), partial(self._second_lost, move))
        except (InvalidValue, TidegateError) as error:
            self._handle(NewHeadLost(move, str(error)))
            return
        if not self._mover.moving or self._mover.closed:
            await line.connection.close()
            return
        self._drop_second("")
        self._second = (move, line)
        self._handle(NewHeadConnected(move))

    def _second_lost(self, move: str) -> None:
        # Later on it is the one that is written to, or none of ours any more.
        self.wake.set()
        if self._second is not None and self._second[0] == move:
            self._second = None
            self._handle(NewHeadLost(move, "its connection was lost"))

    def _drop_second(self, move: str) -> None:
        if self._second is not None and (not move or self._second[0] == move):
            line, self._second = self._second[1], None
            self._runtime.spawn(line.connection.close(), f"{self._name} drops {line.address}")

    def _set_paused(self, paused: bool) -> None:
        with self._lock:
            self.machine.paused = paused
        self.wake.set()

    def _resume(self, moved: bool) -> None:
        if moved and self._second is not None:
            self._arrived, self._second = self._second[1], None
            self._address = self._arrived.address
            self.moves += 1
        self._set_paused(False)

    def _not_sent(self, message: ControlMessage, error: InvalidValue | TidegateError) -> None:
        logger.debug("%s: cannot send %s; it is repeated: %s", self._name, message.kind, error)

    def _answered(self, key: str, message: ControlMessage | UnexpectedReply) -> None:
        if isinstance(message, UnexpectedReply):
            logger.warning("%s: unexpected answer from the head, ignored: %s", self._name, message)
        else:
            self._handle(Answered(key, message))
