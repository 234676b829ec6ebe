"""Methods of AMQP 0-9-1 that are read or written without a library: payloads of method frames.

A payload begins with the numbers of the class and the method, which is how a method is told from others.
"""

from __future__ import annotations

import struct
from typing import Final

from .frames import FRAME_END, FRAME_METHOD, FRAME_OVERHEAD, FRAME_START_BYTES

BASIC_CLASS: Final = 60
BASIC_PUBLISH: Final = b"\x00\x3c\x00\x28"
BASIC_DELIVER: Final = b"\x00\x3c\x00\x3c"
BASIC_ACK: Final = b"\x00\x3c\x00\x50"
CONNECTION_TUNE_OK: Final = b"\x00\x0a\x00\x1f"
CONNECTION_OPEN_OK: Final = b"\x00\x0a\x00\x29"
METHOD_BYTES: Final = 4
"""The numbers of the class and the method."""
DELIVER_BYTES: Final = METHOD_BYTES + 1 + 8 + 1 + 1 + 1
"""A Basic.Deliver but for its three texts: consumer tag, exchange and routing key."""

_tune = struct.Struct(">HI")
_ack = struct.Struct(">BHI4sQBc")
_tag_and_redelivered = struct.Struct(">QB")
_REPLACEMENT: Final = ord("?")


def encode_publish(exchange: str, topic: str) -> bytes:
    """The payload of a Basic.Publish, neither mandatory nor immediate."""
    return encode_publish_key(exchange, topic.encode())


def encode_publish_key(exchange: str, key: bytes) -> bytes:
    """The same with the bytes of a routing key, which need not be text."""
    where = exchange.encode()
    return BASIC_PUBLISH + b"\x00\x00" + bytes([len(where)]) + where + bytes([len(key)]) + key + b"\x00"


def encode_ack_frame(channel: int, tag: int) -> bytes:
    """The frame of a Basic.Ack for every delivery up to `tag`."""
    return _ack.pack(FRAME_METHOD, channel, _ack.size - FRAME_OVERHEAD, BASIC_ACK, tag, 1, FRAME_END)


def read_deliver(data: bytes, offset: int = 0) -> tuple[int, bool, str]:
    """Delivery tag, redelivered and routing key of the Basic.Deliver whose payload begins at `offset`."""
    offset += METHOD_BYTES
    offset += 1 + data[offset]  # the consumer tag
    tag, redelivered = _tag_and_redelivered.unpack_from(data, offset)
    offset += 9
    offset += 1 + data[offset]  # the exchange
    return tag, (redelivered & 1) == 1, data[offset + 1 : offset + 1 + data[offset]].decode("utf-8", "replace")


def read_deliver_key(deliver: bytes) -> bytes:
    """The bytes of the routing key of a Basic.Deliver; `deliver` is the payload of the frame, or begins with it."""
    offset = _key_at(deliver)
    return deliver[offset + 1 : offset + 1 + deliver[offset]]


def readable_deliver(deliver: bytes) -> bytes:
    """The same Basic.Deliver with the bytes beyond ASCII of its routing key replaced if they are not UTF-8.

    `deliver` is the payload of the frame and its end mark. AMQP libraries refuse such a key and give up the connection.
    """
    offset = _key_at(deliver)
    key = deliver[offset + 1 : -1]
    try:
        key.decode()
    except UnicodeDecodeError:
        key = bytes(byte if byte < 0x80 else _REPLACEMENT for byte in key)
        return deliver[: offset + 1] + key + deliver[-1:]
    return deliver


def _key_at(deliver: bytes) -> int:
    """Where the length of the routing key of a Basic.Deliver is."""
    offset = METHOD_BYTES
    offset += 1 + deliver[offset]  # the consumer tag
    offset += 9  # delivery tag and redelivered
    return offset + 1 + deliver[offset]  # the exchange


def read_tune_ok(frame: bytes) -> tuple[int, int] | None:
    """The most channels and the most bytes of a frame in a frame that is a Connection.TuneOk; None for any other."""
    start = FRAME_START_BYTES + METHOD_BYTES
    if len(frame) < start + _tune.size or frame[0] != FRAME_METHOD:
        return None
    if frame[FRAME_START_BYTES:start] != CONNECTION_TUNE_OK:
        return None
    channels_max, frame_bytes_max = _tune.unpack_from(frame, start)
    return channels_max, frame_bytes_max
