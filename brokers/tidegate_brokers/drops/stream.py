"""The stream of drops: reading it in order, fences in it, and notes about it.

A note says up to which offset the drops of one queue have been replayed or given up. Notes are kept as bindings of the
stream to the exchange for replays, in their arguments, so that RabbitMQ is the only memory an edge needs; they go with
the stream. No message has the headers that such a binding asks for.

Invariants: a reader is never more than `PREFETCH` messages ahead of its owner; it ends with its channel.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from aiormq.channel import Channel
from aiormq.exceptions import ChannelNotFoundEntity
from pamqp.commands import Basic
from pamqp.common import FieldValue

from tidegate_protocol.names import DROPS_STREAM, REPLAY_EXCHANGE

from ..rabbit.management import Management
from .form import NOTE, NOTE_OFFSET, Dropped, RawProperties, fence, read_kept

PREFETCH: Final = 200
POLL_S: Final = 0.5
"""How often a reader that gets nothing looks whether its channel is still there."""
TOKEN_BYTES: Final = 8
FIRST: Final = "first"
LAST: Final = "last"


async def deliveries(
    connection: AbstractConnection, queue: str, arguments: dict[str, FieldValue] | None = None
) -> AsyncGenerator[list[DeliveredMessage], None]:
    """What a queue holds, as it comes, in batches; each batch is acknowledged when the next one is asked for."""
    channel = await connection.channel(publisher_confirms=False)
    came: deque[DeliveredMessage] = deque()
    arrived = asyncio.Event()

    async def take(message: DeliveredMessage) -> None:
        came.append(message)
        arrived.set()

    try:
        await channel.basic_qos(prefetch_count=PREFETCH)
        await channel.basic_consume(queue, take, arguments=arguments)
        while True:
            batch = await _batch(channel, came, arrived)
            yield batch
            last = batch[-1].delivery
            assert isinstance(last, Basic.Deliver)
            assert last.delivery_tag is not None
            await channel.basic_ack(last.delivery_tag, multiple=True)
    finally:
        if not channel.is_closed:
            await channel.close()


async def _batch(
    channel: AbstractChannel, came: deque[DeliveredMessage], arrived: asyncio.Event
) -> list[DeliveredMessage]:
    while not came:
        arrived.clear()
        try:
            async with asyncio.timeout(POLL_S):
                await arrived.wait()
        except TimeoutError:
            if channel.is_closed or not _consumes(channel):
                raise ConnectionError("its channel was closed, or what it reads was deleted") from None
    batch = list(came)
    came.clear()
    return batch


def _consumes(channel: AbstractChannel) -> bool:
    """RabbitMQ cancels the consumers of a queue that is deleted, and aiormq forgets them without a word."""
    assert isinstance(channel, Channel)
    return bool(channel.consumers)


async def publish_fence(channel: AbstractChannel) -> str:
    """Put a fence behind everything that the stream holds; `channel` has confirmations."""
    token = secrets.token_hex(TOKEN_BYTES)
    await channel.basic_publish(b"", exchange=DROPS_STREAM, properties=RawProperties(fence(token), token))
    return token


async def read_until(
    connection: AbstractConnection, start: str | int, token: str
) -> AsyncGenerator[tuple[list[Dropped], int | None], None]:
    """What the stream holds from `start` to a fence, in batches; with the last one comes the offset of the fence."""
    arguments: dict[str, FieldValue] = {"x-stream-offset": start}
    async with aclosing(deliveries(connection, DROPS_STREAM, arguments)) as batches:
        async for batch in batches:
            found: list[Dropped] = []
            for record in map(read_kept, batch):
                if record.fence == token:
                    yield found, record.offset
                    return
                if not record.fence:
                    found.append(record)
            yield found, None


async def offset_of(connection: AbstractConnection, token: str) -> int:
    """The offset of a fence that was published just now."""
    async with aclosing(read_until(connection, LAST, token)) as found:
        async for _, offset in found:
            if offset is not None:
                return offset
    raise ConnectionError("the stream ended before its fence")


# Notes


async def read_notes(management: Management) -> dict[str, int]:
    """By queue: up to which offset its drops are done with."""
    notes: dict[str, int] = {}
    for binding in await management.bindings_from(REPLAY_EXCHANGE):
        arguments = binding.get("arguments") or {}
        queue, offset = arguments.get(NOTE), arguments.get(NOTE_OFFSET)
        if isinstance(queue, str) and type(offset) is int:
            notes[queue] = max(offset, notes.get(queue, -1))
    return notes


async def write_note(channel: AbstractChannel, queue: str, before: int | None, offset: int) -> None:
    """Note that the drops of a queue are done with up to this offset, instead of an earlier one."""
    await channel.queue_bind(DROPS_STREAM, REPLAY_EXCHANGE, arguments=_note(queue, offset))
    if before is not None and before != offset:
        await channel.queue_unbind(DROPS_STREAM, REPLAY_EXCHANGE, arguments=_note(queue, before))


def _note(queue: str, offset: int) -> dict[str, FieldValue]:
    return {"x-match": "all", NOTE: queue, NOTE_OFFSET: offset}


async def waiting(connection: AbstractConnection, queue: str) -> int | None:
    """How many messages wait in a queue, not counting those under way to a consumer; None if there is no such queue."""
    channel = await connection.channel(publisher_confirms=False)
    try:
        found = await channel.queue_declare(queue, passive=True)
    except ChannelNotFoundEntity:
        return None
    await channel.close()
    return found.message_count or 0
