"""Carries the messages of one link by hand, carefully: what the far end refuses goes to the quarantine.

    link queue → (known to be refused? quarantine) → published with confirms → acknowledged

RabbitMQ does not say which publication it closes a channel for. So a relay goes on with a window of publications until
the channel is closed, and then sends those that were not confirmed once more, one at a time: the one after which the
channel is closed again is at fault, provided that the far end takes an empty message that nobody can object to. If it
does not, it is the link that is at fault, and no message is set aside.

Invariants:

- messages are published in the order of the link queue, and one that was not confirmed before anything behind it is
  published again: order per publisher holds, and what comes twice has its id;
- a message is acknowledged only when the far end has confirmed it, or the quarantine has;
- one relay ends within `RELAY_S_MAX`, sets aside at most `SET_ASIDE_MAX` messages and has at most twice `WINDOW` in
  hand, which the limit of a link queue bounds in bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from aiormq.exceptions import AMQPError, ChannelAccessRefused, ChannelClosed

from tidegate_protocol.decisions import RelayOutcome, SetAsideReason
from tidegate_protocol.names import link_probe_key, link_queue
from tidegate_protocol.quarantine import SetAside

from ..errors import BrokerError
from ..rabbit.connection import close_quietly, lost_by_connection
from ..rabbit.raw import LOST, Closed, RawChannel, RawMessage, closed_by, open_raw, unseal
from ..settings.urls import ServerUrl
from .quarantine import Keeper, NotKept
from .refusals import Known, Refused, entry_of, refusal

WINDOW: Final = 64
"""Publications under way at once, while nothing is refused."""
CALM_S: Final = 10.0
"""A relay goes on for so long after the last message that was refused, or after it began: more of them may come."""
RELAY_S_MAX: Final = 300.0
SET_ASIDE_MAX: Final = 10_000
PATIENCE_S: Final = 20.0
"""How long the far end may neither confirm nor refuse anything."""
REOPENED_MAX: Final = 5
"""Connections to the far end that may be lost in a row without a word."""
CONSUME_ATTEMPTS: Final = 50
CONSUME_DELAY_S: Final = 0.1
FULL_PAUSE_S: Final = 0.5
"""Before a message is tried again that the far end had no room for."""
_EMPTY: Final = RawMessage(b"", b"\x00\x00", b"")


@dataclass(frozen=True, slots=True)
class Taken:
    """A message of the link queue, and what it is acknowledged by."""

    tag: int
    message: RawMessage


@dataclass(frozen=True, slots=True)
class Way:
    """From which queue to where."""

    head: str
    target: str
    near: ServerUrl
    far: ServerUrl
    exchange: str


@dataclass(slots=True)
class Carried:
    """How far a relay is, or how it ended."""

    outcome: RelayOutcome = RelayOutcome.LOST
    carried: int = 0
    set_aside: int = 0
    text: str = ""


class Ended(Exception):
    """A relay can't go on."""

    def __init__(self, outcome: RelayOutcome, text: str = "") -> None:
        super().__init__(text)
        self.outcome = outcome
        self.text = text


class Far:
    """The far end of a link: a connection that is opened again when RabbitMQ closes it."""

    def __init__(self, url: ServerUrl, exchange: str, head: str) -> None:
        self._url = url
        self._exchange = exchange
        self._innocent = RawMessage(link_probe_key(head).encode(), _EMPTY.properties, b"")
        self._connection: AbstractConnection | None = None
        self._channel: RawChannel | None = None
        self.flying: OrderedDict[int, Taken] = OrderedDict()
        """Published and not confirmed, in order, by the number of the publication."""
        self.confirmed: deque[tuple[Taken, bool]] = deque()
        """What the far end has answered, and whether it took it."""
        self.changed = asyncio.Event()

    @property
    def closed(self) -> Closed | None:
        """Why there is no channel any more; None while there is one."""
        return None if self._channel is None or not self._channel.is_closed else closed_by(self._channel)

    async def open(self) -> None:
        """Have a channel; raises an error of `errors.py`, `Ended`, or what aiormq raises."""
        if self._connection is None or self._connection.is_closed:
            self._connection = await open_raw(self._url, "careful link")
        self._channel = RawChannel(self._connection, self._confirm)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._channel.open()
        except TimeoutError:
            raise Ended(RelayOutcome.STANDS_STILL) from None
        self._channel.closing.add_done_callback(lambda _: self.changed.set())

    async def close(self) -> None:
        """Leave the far end."""
        if self._connection is not None:
            await close_quietly(self._connection)

    def fits(self, message: RawMessage) -> bool:
        """Whether the headers fit a frame."""
        return self._channel is None or self._channel.fits(message)

    async def publish(self, taken: Taken) -> None:
        """Send one message; what comes of it is seen in `confirmed`, or the channel is closed."""
        assert self._channel is not None
        number = self._channel.published + 1
        self.flying[number] = taken
        await self._channel.publish(self._exchange, taken.message)

    def take_back(self) -> list[Taken]:
        """What was not confirmed before the channel was closed, in order."""
        left = list(self.flying.values())
        self.flying.clear()
        return left

    async def takes_anything(self) -> bool:
        """Whether an empty message is taken on a new channel."""
        await self.open()
        await self.publish(Taken(0, self._innocent))
        took = await self.answered(PATIENCE_S) and bool(self.confirmed) and self.confirmed.pop()[1]
        self.flying.clear()
        return took and self.closed is None

    async def answered(self, timeout_s: float) -> bool:
        """Until the one publication under way was confirmed or refused; False if neither happened in time."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while not self.confirmed and self.closed is None:
            if not await self.wait(until_s - loop.time()):
                return False
        return True

    async def wait(self, timeout_s: float) -> bool:
        """Until something was confirmed or the channel closed; False if neither happened in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        except TimeoutError:
            return False
        self.changed.clear()
        return True

    def _confirm(self, number: int, multiple: bool, took: bool) -> None:
        numbers = [each for each in self.flying if each <= number] if multiple else [number]
        for each in numbers:
            taken = self.flying.pop(each, None)
            if taken is not None:
                self.confirmed.append((taken, took))
        self.changed.set()


@dataclass(slots=True)
class Relay:
    """One time of carrying by hand. `run` once."""

    way: Way
    begin: Callable[[], Awaitable[None]]
    """Has the link queue to itself, once the far end is known to be there."""
    new_id: Callable[[], str]
    on_set_aside: Callable[[SetAside], None]
    result: Carried = field(default_factory=Carried)
    _pending: deque[Taken] = field(default_factory=deque)
    _careful: int = 0
    """So many messages are sent one at a time."""
    _quiet_since_s: float = 0.0
    _reopened: int = 0

    async def run(self) -> Carried:
        """Carry until what stopped the link is past; says how it went."""
        near: AbstractConnection | None = None
        far = Far(self.way.far, self.way.exchange, self.way.head)
        try:
            await far.open()
            await self.begin()
            near = await open_raw(self.way.near, f"careful link to {self.way.target}")
            source = await self._consume(near, far)
            async with asyncio.timeout(RELAY_S_MAX):
                await self._carry(source, far, Keeper(near), Known(self.way.far.credentials[0]))
            self.result.outcome = RelayOutcome.PASSED
        except TimeoutError:
            self.result.outcome = RelayOutcome.PASSED
        except Ended as end:
            self.result.outcome, self.result.text = end.outcome, end.text
        except BrokerError as error:
            self.result.outcome, self.result.text = RelayOutcome.UNREACHABLE, str(error)
        except BaseException as error:
            if not lost_by_connection(error) and not isinstance(error, AMQPError | NotKept):
                raise
            self.result.outcome, self.result.text = RelayOutcome.LOST, repr(error)
        finally:
            # Closing the consumer's connection puts back what is in hand, where it was.
            if near is not None:
                await close_quietly(near)
            await far.close()
        return self.result

    async def _consume(self, near: AbstractConnection, far: Far) -> AbstractChannel:
        async def came(delivered: DeliveredMessage) -> None:
            assert delivered.delivery_tag is not None
            self._pending.append(Taken(delivered.delivery_tag, unseal(delivered)))
            far.changed.set()

        # Alone, so that no shovel takes what is behind a message in hand. One that was deleted takes a moment to go.
        for attempt in range(1, CONSUME_ATTEMPTS + 1):
            channel = await near.channel(publisher_confirms=False)
            await channel.basic_qos(prefetch_count=2 * WINDOW)
            try:
                await channel.basic_consume(link_queue(self.way.target), came, exclusive=True)
            except ChannelAccessRefused:
                if attempt == CONSUME_ATTEMPTS:
                    raise
                await asyncio.sleep(CONSUME_DELAY_S)
            else:
                break
        channel.closing.add_done_callback(lambda _: far.changed.set())
        return channel

    async def _carry(self, source: AbstractChannel, far: Far, keeper: Keeper, known: Known) -> None:
        loop = asyncio.get_running_loop()
        self._quiet_since_s = answered_s = loop.time()
        while self.result.set_aside < SET_ASIDE_MAX:
            now = loop.time()
            if source.is_closed:
                raise Ended(RelayOutcome.LOST, "the link queue")
            over = now - self._quiet_since_s > CALM_S and not self._careful
            if over and not far.flying:
                return
            if not over:  # else what is under way is waited for, so that the shovel does not send it again
                await self._send(source, far, keeper, known)
            if not await far.wait(1.0) and far.flying and loop.time() - answered_s > PATIENCE_S:
                raise Ended(RelayOutcome.STANDS_STILL)
            if not far.flying or far.confirmed:
                answered_s = loop.time()
            await self._settle(source, far)
            if not self._pending and not far.flying:
                self._careful = 0
            if far.closed is not None:
                await self._refused(source, far, keeper, known)

    async def _send(self, source: AbstractChannel, far: Far, keeper: Keeper, known: Known) -> None:
        """Publish what the window has room for."""
        window = 1 if self._careful else WINDOW
        while self._pending and len(far.flying) < window and far.closed is None:
            taken = self._pending[0]
            objection = known.objection(taken.message)
            if objection is None and not far.fits(taken.message):
                objection = Refused(SetAsideReason.HEADERS_TOO_LARGE, "")
            self._pending.popleft()
            if objection is None:
                await far.publish(taken)
            else:
                await self._set_aside(source, keeper, taken, objection)

    async def _settle(self, source: AbstractChannel, far: Far) -> None:
        """Acknowledge what the far end has taken; what it had no room for is sent again, with all behind it."""
        full: list[Taken] = []
        while far.confirmed:
            taken, took = far.confirmed.popleft()
            if not took:
                full.append(taken)
                continue
            await source.basic_ack(taken.tag, wait=False)
            self.result.carried += 1
            self._careful = max(0, self._careful - 1)
            self._reopened = 0
        if full:
            self._pending.extendleft(sorted([*full, *far.take_back()], key=lambda one: one.tag, reverse=True))
            await asyncio.sleep(FULL_PAUSE_S)

    async def _refused(self, source: AbstractChannel, far: Far, keeper: Keeper, known: Known) -> None:
        """The far end has closed the channel: find out for which message, and set that one aside."""
        closed = far.closed
        assert closed is not None
        left = far.take_back()
        if closed.code == LOST:
            self._reopened += 1
            if self._reopened > REOPENED_MAX:
                raise Ended(RelayOutcome.LOST, closed.text)
        if len(left) == 1:
            refused = refusal(closed)
            if refused is None and closed.code != LOST:
                raise Ended(RelayOutcome.LINK_REFUSED, closed.text)
            if refused is not None:
                if not await far.takes_anything():
                    raise Ended(RelayOutcome.LINK_REFUSED, closed.text)
                known.learn(refused)
                await self._set_aside(source, keeper, left[0], refused)
                return
        self._pending.extendleft(reversed(left))
        self._careful = max(self._careful, len(left), 1)
        await far.open()

    async def _set_aside(self, source: AbstractChannel, keeper: Keeper, taken: Taken, refused: Refused) -> None:
        at_us = time.time_ns() // 1000
        entry = entry_of(self.new_id(), self.way.target, refused, taken.message, at_us)
        await keeper.put(entry, taken.message)
        await source.basic_ack(taken.tag, wait=False)
        self.result.set_aside += 1
        self._careful = max(0, self._careful - 1)
        self._quiet_since_s = asyncio.get_running_loop().time()
        self.on_set_aside(entry)


async def deliver_one(way: Way, message: RawMessage) -> Refused | None:
    """Publish one message to the far end of a link and return once it is confirmed; else why it is refused.

    Raises an error of `errors.py` where the far end can't be reached, and `TimeoutError` if it does not answer.
    """
    far = Far(way.far, way.exchange, way.head)
    try:
        await far.open()
        if not far.fits(message):
            return Refused(SetAsideReason.HEADERS_TOO_LARGE, "")
        await far.publish(Taken(0, message))
        if not await far.answered(PATIENCE_S):
            raise TimeoutError
        if far.confirmed and far.confirmed[0][1]:
            return None
        closed = far.closed or Closed(LOST, "it has no room")
        return refusal(closed) or Refused(SetAsideReason.CONTENT, closed.text)
    except Ended as end:
        raise TimeoutError(end.text) from None
    except ChannelClosed as error:
        return Refused(SetAsideReason.CONTENT, str(error))
    finally:
        await far.close()
