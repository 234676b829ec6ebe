"""Keeps what an edge's RabbitMQ has dropped: reads dead letters, counts them, puts them into the stream, and does with
them what operators want.

Invariants:

- a dead letter is acknowledged when the stream has confirmed it: a crash may count it twice and lose none;
- reading is bounded (`READ_PER_S_MAX`), so that a subscriber that loses thousands a second costs its edge little; what
  is not read yet waits in its bounded queue;
- nothing here keeps the edge from anything: whatever fails is tried again, and operators are told;
- at most `REPLAYS_MAX` replays run, and one of each queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import AMQPError

from tidegate_agents.machine import DropCount, DropsCounted, DropsTended, DropsTold, Event, TendDrops
from tidegate_protocol.amqp.copies import envelope
from tidegate_protocol.decisions import DropsPurged, DropsReplayed, ReplayOutcome
from tidegate_protocol.drops import DropsOrder, DropsReply, DropsRequest
from tidegate_protocol.names import DROPS_STREAM

from ..errors import RabbitError
from ..plane.drops import DROPPED_QUEUE, DropPlane, declare_stream
from ..plane.edge import EdgePlane
from ..rabbit.connection import ConnectionKeeper, lost_by_connection
from ..rabbit.management import Management
from ..settings.urls import ServerUrl
from .form import Dropped, RawProperties, read_dead_letter
from .ledger import Kept, Ledger
from .replay import Replay, Replayed, Room
from .stream import FIRST, deliveries, offset_of, publish_fence, read_notes, read_until, write_note

log = logging.getLogger(__name__)

CONNECTION: Final = "drops"
READ_PER_S_MAX: Final = 1_000
REPLAYS_MAX: Final = 4
RETRY_S: Final = 2.0


class DropKeeper:
    """The drops of one edge."""

    def __init__(
        self, edge: str, url: ServerUrl, plane: EdgePlane, management: Management, post: Callable[[Event], None]
    ) -> None:
        self.ledger = Ledger(edge)
        self.keeper = ConnectionKeeper(CONNECTION, url, self._up, self._lost, rewrite=envelope)
        self._edge = edge
        self._account = url.credentials[0]
        self._plane = plane
        self._management = management
        self._post = post
        self._connection: AbstractConnection | None = None
        self._replays: dict[str, asyncio.Task[None]] = {}
        self._tending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Work until cancelled. Nothing is opened before the plane has declared what is read here."""
        connecting: asyncio.Task[None] | None = None
        try:
            while True:
                if self._drops.kept and connecting is None:
                    connecting = asyncio.create_task(self.keeper.run())
                if connecting is not None and connecting.done():
                    connecting.result()
                connection = self._connection
                if self._drops.kept and connection is not None:
                    await self._work(connection)
                await asyncio.sleep(RETRY_S)
        finally:
            tasks = [*self._replays.values(), *self._tending, *([connecting] if connecting else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _drops(self) -> DropPlane:
        return self._plane.drops

    async def _up(self, connection: AbstractConnection) -> None:
        self._connection = connection

    def _lost(self) -> None:
        self._connection = None

    # Reading

    async def _work(self, connection: AbstractConnection) -> None:
        """Learn what the stream holds, then read dead letters for as long as the connection holds."""
        try:
            channel = await connection.channel(publisher_confirms=True)
            try:
                await self._learn(connection, channel)
                await self._read(connection, channel)
            finally:
                if not channel.is_closed:
                    await channel.close()
        except BaseException as error:
            if not lost_by_connection(error) and not isinstance(error, AMQPError | RabbitError):
                raise
            log.warning("cannot read what RabbitMQ drops; it waits there, and this is tried again: %r", error)

    async def _read(self, connection: AbstractConnection, channel: AbstractChannel) -> None:
        loop = asyncio.get_running_loop()
        async with aclosing(deliveries(connection, DROPPED_QUEUE)) as batches:
            async for batch in batches:
                began_s, now_us = loop.time(), time.time_ns() // 1_000
                await self._take(channel, [read_dead_letter(one, now_us) for one in batch])
                await asyncio.sleep(max(len(batch) / READ_PER_S_MAX - (loop.time() - began_s), 0.0))

    async def _learn(self, connection: AbstractConnection, channel: AbstractChannel) -> None:
        """What a predecessor left in the stream."""
        fresh = Ledger(self._edge)
        fresh.done = await read_notes(self._management)
        token = await publish_fence(channel)
        async with aclosing(read_until(connection, FIRST, token)) as batches:
            async for found, _ in batches:
                for record in found:
                    if not fresh.is_done(record):
                        fresh.kept(record)
        for queue, kept in self.ledger.queues.items():
            # What was counted and replayed by this process is not in the stream.
            known = fresh.queues.get(queue) or Kept()
            known.reasons, known.replayed, known.outcome = kept.reasons, kept.replayed, kept.outcome
            fresh.queues[queue] = known
        self.ledger = fresh

    async def _take(self, channel: AbstractChannel, batch: list[Dropped]) -> None:
        publishing = [
            channel.basic_publish(
                one.body,
                exchange=DROPS_STREAM,
                routing_key=one.topic,
                properties=RawProperties(one.kept(), str(number)),
            )
            for number, one in enumerate(batch)
        ]
        await asyncio.gather(*publishing)
        counts = Counter((one.queue, one.reason) for one in batch)
        for one in batch:
            self.ledger.counted(one)
        self._post(DropsCounted(tuple(DropCount(*key, number) for key, number in sorted(counts.items()))))

    # What operators want

    def tend(self, action: TendDrops) -> None:
        """Do it, and post the answer."""
        task = asyncio.create_task(self._tend(action))
        self._tending.add(task)
        task.add_done_callback(self._tending.discard)

    async def _tend(self, action: TendDrops) -> None:
        try:
            reply = await self._done(action.request)
        except BaseException as error:
            if not lost_by_connection(error) and not isinstance(error, AMQPError | RabbitError):
                raise
            log.warning("cannot do what an operator wants with dropped messages: %r", error)
            return  # the head says that there was no answer
        self._post(DropsTended(action.reply_to, reply))

    async def _done(self, request: DropsRequest) -> DropsReply:
        queues = self.ledger.wanted(request)
        begun = purged = 0
        connection = self._connection
        if request.order is DropsOrder.REPLAY and connection is not None:
            begun = sum(self._begin(connection, queue) for queue in queues)
        elif request.order is DropsOrder.PURGE and connection is not None:
            purged = await self._purge(connection, request, queues)
        messages = self.ledger.messages(queues) if request.order is DropsOrder.SHOW else ()
        return DropsReply(
            outputs=self.ledger.outputs(queues, time.time_ns() // 1_000),
            messages=messages,
            begun=begun,
            purged=purged,
            without=() if self._drops.kept else (self._edge,),
        )

    def _begin(self, connection: AbstractConnection, queue: str) -> bool:
        kept = self.ledger.queues[queue]
        if not kept.held or queue in self._replays or len(self._replays) >= REPLAYS_MAX:
            return False
        kept.replaying, kept.replayed, kept.outcome = True, 0, None
        task = asyncio.create_task(self._replay(connection, queue, kept))
        self._replays[queue] = task
        task.add_done_callback(lambda _: self._replays.pop(queue, None))
        return True

    async def _replay(self, connection: AbstractConnection, queue: str, kept: Kept) -> None:
        room = Room(self._plane.output_limit_bytes, self._plane.limits.get(queue))
        ended, detail = Replayed(ReplayOutcome.FAILED, -1, left=kept.held), ""
        try:
            if queue in self._plane.outputs:
                ended = await Replay(connection, self.ledger, queue, room, self._account).run(kept)
                await self._note(connection, queue, ended)
            else:
                ended = Replayed(ReplayOutcome.ELSEWHERE, -1, left=kept.held)
        except BaseException as error:
            if not lost_by_connection(error) and not isinstance(error, AMQPError | RabbitError):
                raise
            detail = str(error) or type(error).__name__
        finally:
            kept.replaying, kept.outcome = False, ended.outcome
        self._post(DropsTold(DropsReplayed(queue, ended.outcome, kept.replayed, ended.left, detail)))

    async def _note(self, connection: AbstractConnection, queue: str, ended: Replayed) -> None:
        if ended.offset < 0:
            return
        channel = await connection.channel(publisher_confirms=False)
        await write_note(channel, queue, self.ledger.done.get(queue), ended.offset)
        await channel.close()
        self.ledger.forget(queue, ended.offset, ended.done)

    async def _purge(self, connection: AbstractConnection, request: DropsRequest, queues: list[str]) -> int:
        channel = await connection.channel(publisher_confirms=True)
        if not request.subscriber:
            for replay in self._replays.values():
                replay.cancel()
            await channel.queue_delete(DROPS_STREAM)
            await declare_stream(channel, self._drops.limits)
            await channel.queue_bind(DROPS_STREAM, DROPS_STREAM)
            count = self.ledger.forget_all()
            self._post(DropsTold(DropsPurged("", count)))
        else:
            token, count = await publish_fence(channel), 0
            offset = await offset_of(connection, token)
            for queue in queues:
                await write_note(channel, queue, self.ledger.done.get(queue), offset)
                given_up = self.ledger.forget(queue, offset)
                self._post(DropsTold(DropsPurged(queue, given_up)))
                count += given_up
        await channel.close()
        return count
