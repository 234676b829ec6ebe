"""Where a head keeps the messages that its links could not carry: one durable queue of its RabbitMQ, bounded.

The policy `tidegate-quarantine` bounds the queue in messages, bytes and age; of more, the oldest go. An entry is the
body of the message as it was; the record of why it is here, its routing key and its properties travel in one header of
ours, because RabbitMQ would check properties that stood in their own places (`user_id`), and act on some of them.

Invariants:

- `put` returns after RabbitMQ has confirmed the entry; whoever took the message acknowledges it only then;
- looking changes nothing: entries that are looked at go back where they were;
- an entry leaves only by purging, by replaying that the far end has confirmed, or by the bounds.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import AMQPError

from tidegate_protocol.amqp.content import DELIVERY_MODE, HEADERS
from tidegate_protocol.names import QUARANTINE_QUEUE
from tidegate_protocol.quarantine import SetAside, decode_entry, encode_entry

from ..rabbit.connection import close_quietly, lost_by_connection
from ..rabbit.management import Json
from ..rabbit.raw import RawChannel, RawMessage, closed_by, open_raw, unseal
from ..settings.urls import ServerUrl

POLICY: Final = "tidegate-quarantine"
QUEUE_ARGUMENTS: Final = {"x-queue-type": "classic"}
CONFIRM_TIMEOUT_S: Final = 10.0
ENVELOPE_BYTES_MAX: Final = 100 << 10
"""Of the header that holds record, key and properties: a frame has 128 KiB unless configured otherwise. Of a message
with longer properties only record and body are kept."""
_FLAGS: Final = (HEADERS | DELIVERY_MODE).to_bytes(2, "big")
_start = struct.Struct(">IBccI")
"""Length of the table, of the name, the name, the type of a byte array, its length."""
_lengths = struct.Struct(">IHI")
"""Of record, key and properties."""
_NAME, _BYTES = b"e", b"x"


class NotKept(Exception):
    """The head's own RabbitMQ did not take an entry."""


def policy(messages_max: int, bytes_max: int, age_s: int) -> Json:
    """The policy that bounds the quarantine."""
    return {
        "pattern": "^" + QUARANTINE_QUEUE.replace(".", "\\.") + "$",
        "apply-to": "queues",
        "priority": 1,
        "definition": {
            "max-length": messages_max,
            "max-length-bytes": bytes_max,
            "message-ttl": age_s * 1000,
            "overflow": "drop-head",
        },
    }


async def declare(channel: AbstractChannel) -> None:
    """Have the queue; one that is there is left alone."""
    await channel.queue_declare(QUARANTINE_QUEUE, durable=True, arguments=dict(QUEUE_ARGUMENTS))


# Entries as messages


def encode(entry: SetAside, message: RawMessage) -> RawMessage:
    """A message that holds another one, and why."""
    key, properties = message.key, message.properties
    record = encode_entry(entry)
    if _lengths.size + len(record) + len(key) + len(properties) > ENVELOPE_BYTES_MAX:
        properties = b""
        record = encode_entry(entry.model_copy(update={"whole": False}))
    envelope = _lengths.pack(len(record), len(key), len(properties)) + record + key + properties
    table = _start.pack(len(envelope) + _start.size - 4, len(_NAME), _NAME, _BYTES, len(envelope)) + envelope
    return RawMessage(QUARANTINE_QUEUE.encode(), _FLAGS + table + b"\x02", message.body)


def decode(stored: RawMessage) -> tuple[SetAside, RawMessage] | None:
    """What `encode` was given; None for anything else."""
    data = stored.properties
    start = len(_FLAGS) + _start.size
    lengths_end = start + _lengths.size
    if not data.startswith(_FLAGS) or len(data) < lengths_end:
        return None
    of_record, of_key, of_properties = _lengths.unpack_from(data, start)
    key_at = lengths_end + of_record
    properties_at = key_at + of_key
    entry = decode_entry(data[lengths_end:key_at])
    if entry is None or properties_at + of_properties > len(data):
        return None
    properties = data[properties_at : properties_at + of_properties]
    return entry, RawMessage(data[key_at:properties_at], properties, stored.body)


# The queue


class Keeper:
    """Puts entries into the quarantine, over a connection of its own."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._channel: RawChannel | None = None
        self._outcome: asyncio.Future[bool] | None = None

    async def put(self, entry: SetAside, message: RawMessage) -> None:
        """Keep a message; raise `NotKept` unless it is safe."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                channel = await self._open()
                outcome = self._outcome = loop.create_future()
                await channel.publish("", encode(entry, message))
                await asyncio.wait({outcome, channel.closing}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException as error:
            if not lost_by_connection(error) and not isinstance(error, AMQPError):
                raise
            raise NotKept(repr(error)) from error
        if not outcome.done():
            raise NotKept(closed_by(channel).text)
        if not outcome.result():
            raise NotKept("the head's RabbitMQ refused it")

    async def _open(self) -> RawChannel:
        if self._channel is None or self._channel.is_closed:
            self._channel = RawChannel(self._connection, self._confirmed)
            await self._channel.open()
            await declare(self._channel)
        return self._channel

    def _confirmed(self, number: int, multiple: bool, taken: bool) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(taken)


@dataclass(frozen=True, slots=True)
class Held:
    """An entry that is being looked at."""

    entry: SetAside
    message: RawMessage
    remove: Callable[[], Awaitable[None]]
    """Take it out for good."""


@asynccontextmanager
async def looking(url: ServerUrl, entries_max: int) -> AsyncIterator[AsyncIterator[Held]]:
    """Look at the oldest entries, at most `entries_max`. What is not removed goes back where it was."""
    connection = await open_raw(url, "quarantine")
    try:
        channel = await connection.channel(publisher_confirms=False)
        await declare(channel)
        yield _held(channel, entries_max)
    finally:
        await close_quietly(connection)


async def _held(channel: AbstractChannel, entries_max: int) -> AsyncIterator[Held]:
    for _ in range(entries_max):
        delivered = await channel.basic_get(QUARANTINE_QUEUE)
        tag = delivered.delivery_tag
        if tag is None:
            return
        found = decode(unseal(delivered))

        async def remove(tag: int = tag) -> None:
            await channel.basic_ack(tag)

        if found is not None:  # else: of a version we don't know, and left alone
            yield Held(*found, remove)
