"""One dropped message: as RabbitMQ dead-letters it, as the stream keeps it, and as it is replayed.

In the stream it has its own properties (as far as they can be read), and headers that say from which queue it was
dropped, why, when, and which account RabbitMQ had checked for it. A `fence` is a record of ours in between: a reader
that has come to it has read everything before it.

Pure. Nothing raises: a message of which nothing can be read is of no queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiormq.abc import DeliveredMessage
from pamqp import commands

from tidegate_protocol.amqp.content import decode_properties
from tidegate_protocol.amqp.copies import RAW_HEADER, encode_copy, last_death
from tidegate_protocol.decisions import DropReason
from tidegate_protocol.drops import PREVIEW_LENGTH_MAX, DroppedMessage
from tidegate_protocol.form import AttributeValue
from tidegate_protocol.names import ACCOUNT_HEADER, OUTPUT_PREFIX, REPLAY_EXCHANGE, REPLAYED_HEADER

from ..rabbit.frames import OFFSET_HEADER

QUEUE_HEADER: Final = "tidegate-dropped-queue"
REASON_HEADER: Final = "tidegate-dropped-reason"
TIME_HEADER: Final = "tidegate-dropped-us"
FENCE_HEADER: Final = "tidegate-fence"
NOTE: Final = "tidegate-note"
NOTE_OFFSET: Final = "tidegate-note-offset"
"""Arguments of the bindings that are notes (`stream`)."""
OURS: Final = frozenset(
    (QUEUE_HEADER, REASON_HEADER, TIME_HEADER, FENCE_HEADER, NOTE, NOTE_OFFSET, REPLAYED_HEADER, ACCOUNT_HEADER)
)
"""Headers that nobody else may set: a publisher's are left out."""
REASONS: Final[Mapping[str, DropReason]] = {
    "maxlen": DropReason.LIMIT,
    "expired": DropReason.MESSAGE_EXPIRED,
    "rejected": DropReason.REJECTED,
    "delivery_limit": DropReason.REJECTED,
}
"""From RabbitMQ's words."""
PERSISTENT: Final = 2
TEXT_MAX: Final = 255


class RawProperties(commands.Basic.Properties):
    """Properties that are bytes already. aiormq needs an id for each publication; it is not sent."""

    def __init__(self, raw: bytes, token: str) -> None:
        super().__init__(message_id=token)
        self._raw = raw

    def marshal(self) -> bytes:
        return self._raw


@dataclass(frozen=True, slots=True)
class Dropped:
    """A message that a subscription did not get."""

    queue: str
    """Empty where it can't be told."""
    reason: DropReason
    topic: str
    body: bytes
    account: str
    time_us: int
    """When it was read from the dead letters; 0 where that is not known."""
    properties: Mapping[str, Any]
    offset: int = -1
    """Its place in the stream; -1 before it has one."""
    fence: str = ""

    def kept(self) -> bytes:
        """Properties for the stream."""
        headers: dict[str, AttributeValue] = {
            QUEUE_HEADER: self.queue,
            REASON_HEADER: str(self.reason),
            TIME_HEADER: self.time_us,
            ACCOUNT_HEADER: self.account,
        }
        return encode_copy({**self._foreign(), "delivery_mode": PERSISTENT}, headers)

    def replayed(self, sender: str) -> bytes:
        """Properties for its output queue; `sender` is the edge's account, which RabbitMQ checks."""
        return encode_copy(self._foreign(), {REPLAYED_HEADER: self.queue, ACCOUNT_HEADER: self.account}, sender)

    def _foreign(self) -> dict[str, Any]:
        given = self.properties.get("headers") or {}
        return {**self.properties, "headers": {name: value for name, value in given.items() if name not in OURS}}

    def shown(self, edge: str) -> DroppedMessage:
        """For an operator."""
        return DroppedMessage(
            edge=edge,
            queue=self.queue,
            topic=self.topic,
            reason=self.reason,
            message_id=str(self.properties.get("message_id") or "")[:TEXT_MAX],
            account=self.account,
            size_bytes=len(self.body),
            preview=self.body[:PREVIEW_LENGTH_MAX].decode("utf-8", "replace")[:PREVIEW_LENGTH_MAX],
        )


def fence(token: str) -> bytes:
    """Properties of a fence."""
    return encode_copy({"delivery_mode": PERSISTENT}, {FENCE_HEADER: token})


def read_dead_letter(delivered: DeliveredMessage, time_us: int) -> Dropped:
    """A message as RabbitMQ has dead-lettered it."""
    raw = _raw(delivered)
    death = last_death(raw)
    properties = decode_properties(raw, 0, len(raw))
    queue = death.queue if death.queue.startswith(OUTPUT_PREFIX) and len(death.queue) <= TEXT_MAX else ""
    account = str(properties.get("user_id") or "")
    if death.exchange == REPLAY_EXCHANGE:
        # It was replayed and dropped once more. Only an edge writes to that exchange, so that the header is its word.
        account = _text(properties, ACCOUNT_HEADER)
    return Dropped(
        queue=queue,
        reason=REASONS.get(death.reason, DropReason.LIMIT),
        topic=_topic(delivered),
        body=bytes(delivered.body),
        account=account,
        time_us=time_us,
        properties=properties,
    )


def read_kept(delivered: DeliveredMessage) -> Dropped:
    """A record of the stream."""
    raw = _raw(delivered)
    properties = decode_properties(raw, 0, len(raw))
    headers = properties.get("headers") or {}
    offset, time_us = headers.get(OFFSET_HEADER), headers.get(TIME_HEADER)
    return Dropped(
        queue=_text(properties, QUEUE_HEADER),
        reason=_reason(_text(properties, REASON_HEADER)),
        topic=_topic(delivered),
        body=bytes(delivered.body),
        account=_text(properties, ACCOUNT_HEADER),
        time_us=time_us if type(time_us) is int and time_us > 0 else 0,
        properties=properties,
        offset=offset if type(offset) is int else -1,
        fence=_text(properties, FENCE_HEADER),
    )


def _topic(delivered: DeliveredMessage) -> str:
    return delivered.routing_key or ""


def _reason(text: str) -> DropReason:
    return DropReason(text) if text in {str(one) for one in DropReason} else DropReason.LIMIT


def _text(properties: Mapping[str, Any], name: str) -> str:
    value = (properties.get("headers") or {}).get(name)
    return value[:TEXT_MAX] if isinstance(value, str) else ""


def _raw(delivered: DeliveredMessage) -> bytes:
    headers = delivered.header.properties.headers or {}
    raw = headers.get(RAW_HEADER)
    return bytes(raw) if isinstance(raw, bytes | bytearray) else b"\0\0"
