"""A replay: what the stream holds of one subscription is published again, to its output queue and to no other.

Invariants:

- a replay never pushes anything out: it goes on only while nothing waits in the queue, in batches far below the limit
  of the queue, and ends when the subscriber stops reading;
- each message is marked (`names.REPLAY_EXCHANGE`) and has the id and account that it had: the SDK hands it to its
  application once, however often it is replayed;
- what was replayed is noted when it is in the queue: a replay that is interrupted repeats a part, and loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import ChannelNotFoundEntity, PublishError
from pamqp.common import FieldValue

from tidegate_protocol.decisions import ReplayOutcome
from tidegate_protocol.names import REPLAY_EXCHANGE, REPLAYED_HEADER

from .form import Dropped, RawProperties
from .ledger import Kept, Ledger
from .stream import FIRST, publish_fence, read_until, waiting

BATCH_MAX: Final = 100
"""Messages that are published at once."""
SHARE: Final = 4
"""A batch is at most this part of what may wait in the queue."""
LOOK_S: Final = 0.05
STUCK_S: Final = 5.0
"""A subscriber that takes nothing for so long is not reading."""


@dataclass(slots=True)
class Room:
    """How much an output queue may hold."""

    bytes_max: int
    messages_max: int | None = None

    @property
    def batch_messages(self) -> int:
        return BATCH_MAX if self.messages_max is None else max(1, min(BATCH_MAX, self.messages_max // SHARE))

    @property
    def batch_bytes(self) -> int:
        return self.bytes_max // SHARE


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay ended."""

    outcome: ReplayOutcome
    offset: int
    """Everything up to here is done with; -1 if nothing is."""
    done: int = 0
    """Messages that are done with: those that were replayed, and of a whole replay all that had been thought there."""
    left: int = 0
    """Messages that are not; what was dropped meanwhile is not among them."""


class Stopped(Exception):
    """The replay can't go on."""

    def __init__(self, outcome: ReplayOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Replay:
    """One subscription's."""

    def __init__(self, connection: AbstractConnection, ledger: Ledger, queue: str, room: Room, account: str) -> None:
        """`account`: the edge's, in whose name messages are published again."""
        self._connection = connection
        self._ledger = ledger
        self._queue = queue
        self._room = room
        self._account = account
        self._offset = -1
        self._held = 0
        """How many messages there were to be replayed when it began."""

    async def run(self, kept: Kept) -> Replayed:
        """Replay all there is, and count it in `kept`."""
        channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        try:
            async with self._bound(channel):
                return await self._run(channel, kept)
        except Stopped as stopped:
            return self._ended(stopped.outcome, kept)
        except ChannelNotFoundEntity:
            return self._ended(ReplayOutcome.ELSEWHERE, kept)
        finally:
            if not channel.is_closed:
                await channel.close()

    def _ended(self, outcome: ReplayOutcome, kept: Kept) -> Replayed:
        """Before everything was replayed."""
        return Replayed(outcome, self._offset, kept.replayed, max(self._held - kept.replayed, 0))

    @asynccontextmanager
    async def _bound(self, channel: AbstractChannel) -> AsyncIterator[None]:
        arguments: dict[str, FieldValue] = {"x-match": "all", REPLAYED_HEADER: self._queue}
        await channel.queue_bind(self._queue, REPLAY_EXCHANGE, arguments=arguments)
        try:
            yield
        finally:
            if not channel.is_closed:
                await channel.queue_unbind(self._queue, REPLAY_EXCHANGE, arguments=arguments)

    async def _run(self, channel: AbstractChannel, kept: Kept) -> Replayed:
        token, self._held = await publish_fence(channel), kept.held
        start: str | int = self._ledger.done.get(self._queue, -1) + 1 or FIRST
        async with aclosing(read_until(self._connection, start, token)) as batches:
            async for found, fence in batches:
                mine = [one for one in found if one.queue == self._queue and not self._ledger.is_done(one)]
                for part in _parts(mine, self._room):
                    await self._has_room()
                    await self._publish(channel, part)
                    kept.replayed += len(part)
                    self._offset = part[-1].offset
                if fence is not None:
                    return Replayed(ReplayOutcome.DONE, fence, self._held)
        raise Stopped(ReplayOutcome.FAILED)

    async def _publish(self, channel: AbstractChannel, part: list[Dropped]) -> None:
        """Have these confirmed, in their order."""
        publishing = [
            channel.basic_publish(
                one.body,
                exchange=REPLAY_EXCHANGE,
                routing_key=one.topic,
                properties=RawProperties(one.replayed(self._account), f"{one.offset}"),
                mandatory=True,
            )
            for one in part
        ]
        try:
            await asyncio.gather(*publishing)
        except PublishError:
            raise Stopped(ReplayOutcome.ELSEWHERE) from None

    async def _has_room(self) -> None:
        """Wait until the subscriber has taken what waits: how large that is RabbitMQ does not say at once."""
        loop = asyncio.get_running_loop()
        least, until_s = None, loop.time() + STUCK_S
        while True:
            ready = await waiting(self._connection, self._queue)
            if ready is None:
                raise Stopped(ReplayOutcome.ELSEWHERE)
            if not ready:
                return
            if least is None or ready < least:
                least, until_s = ready, loop.time() + STUCK_S
            if loop.time() >= until_s:
                raise Stopped(ReplayOutcome.NOT_READING)
            await asyncio.sleep(LOOK_S)


def _parts(messages: list[Dropped], room: Room) -> list[list[Dropped]]:
    """Batches, in order, each small enough for the queue; a large message is one by itself."""
    parts: list[list[Dropped]] = []
    size = 0
    for one in messages:
        full = parts and (len(parts[-1]) >= room.batch_messages or size + len(one.body) > room.batch_bytes)
        if not parts or full:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += len(one.body)
    return parts
