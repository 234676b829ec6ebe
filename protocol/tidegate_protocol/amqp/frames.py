"""Frames of AMQP 0-9-1: type, channel, length, payload, end mark.

Invariant: a `FrameReader` hands out whole frames in the order of the stream, and raises `BadFrame` for bytes that are
no frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
PROTOCOL_NAME: Final = b"AMQP"
"""With this, in the place of a frame, a server says that it speaks another version."""
FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8
FRAME_END: Final = b"\xce"
FRAME_OVERHEAD: Final = 8
"""Seven bytes before a frame's payload and one after it."""
FRAME_BYTES_MAX: Final = 131_072
"""The largest frame that RabbitMQ agrees to, unless configured otherwise."""

_frame_start = struct.Struct(">BHI")
FRAME_START_BYTES: Final = _frame_start.size
# Functions and not the structure: CPython looks up the method of an imported object anew at every call.
pack_frame_start = _frame_start.pack
"""The bytes of type, channel and the length of the payload."""
unpack_frame_start = _frame_start.unpack_from
"""Type, channel and the length of the payload, from bytes and an offset."""
_KINDS: Final = (FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT)
_END: Final = FRAME_END[0]


class BadFrame(Exception):
    """The bytes that came over a connection are not AMQP."""


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame, ready to be written."""
    return pack_frame_start(kind, channel, len(payload)) + payload + FRAME_END


class FrameReader:
    """Cuts a stream into frames; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The type and payload of every frame that is complete now."""
        if self._rest:
            data = self._rest + data
        offset, length = 0, len(data)
        while length - offset >= FRAME_START_BYTES:
            kind, _, size = unpack_frame_start(data, offset)
            end = offset + FRAME_START_BYTES + size
            if kind not in _KINDS or size > FRAME_BYTES_MAX:
                self._rest = b""
                raise BadFrame(f"a frame of type {kind} and {size} bytes")
            if end >= length:
                break
            if data[end] != _END:
                self._rest = b""
                raise BadFrame("a frame without its end")
            yield kind, data[offset + FRAME_START_BYTES : end]
            offset = end + 1
        self._rest = data[offset:]
