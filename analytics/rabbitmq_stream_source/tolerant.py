"""pika's connection, for messages whose properties pika can't decode: they come without their headers.

Any publisher can write a message that pika's decoder gives up on (a table nested deep, a time beyond the year 9999),
and a query would stop at its offset for good. Invariant: a message of a stream keeps its offset and its body; of the
properties that can't be decoded, the offset alone is left. A message in which not even that is found is told as before,
by the decoder's error."""

from __future__ import annotations

import logging
import struct
from typing import Any, Final

from pika import frame, spec
from pika.adapters.select_connection import SelectConnection

OFFSET_HEADER: Final = "x-stream-offset"
_HEADER_START: Final = 7
"""Type, channel and size of a frame, before its payload."""
_FLAGS_START: Final = _HEADER_START + 12
"""Class, weight and body size come before the properties."""
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS = 0x8000, 0x4000, 0x2000
_SIZES: Final = dict(zip(b"tbBUsuIilLfdDTV", (1, 1, 1, 2, 2, 2, 4, 4, 8, 8, 4, 8, 5, 8, 0), strict=True))
"""Of values of a fixed size, by their type; the others say how long they are."""
_uint32 = struct.Struct(">I")
_int64 = struct.Struct(">q")

logger = logging.getLogger(__name__)


class TolerantConnection(SelectConnection):  # type: ignore[misc]
    """pika's connection; see the module."""

    _frame_buffer: bytes

    def _read_frame(self) -> tuple[int, Any]:
        try:
            return super()._read_frame()  # type: ignore[no-any-return]
        except Exception as error:
            kept = offset_alone(self._frame_buffer)
            if kept is None:
                raise
            logger.warning("cannot decode the properties of a message (%r); it is passed on without headers", error)
            return kept


def offset_alone(data: bytes) -> tuple[int, Any] | None:
    """The content header that `data` begins with, with no more than the offset, and its size; None if there is none."""
    if data[:1] != bytes([spec.FRAME_HEADER]):
        return None
    try:
        channel, size = struct.unpack_from(">HI", data, 1)
        (body_size,) = struct.unpack_from(">Q", data, _HEADER_START + 4)
        end = _HEADER_START + size
        offset = _find_offset(data[_FLAGS_START:end])
    except (IndexError, struct.error):
        return None
    if offset is None:
        return None
    return end + 1, frame.Header(channel, body_size, spec.BasicProperties(headers={OFFSET_HEADER: offset}))


def _find_offset(properties: bytes) -> int | None:
    """The offset among the headers; what is nested in them is passed over by its length."""
    flags = int.from_bytes(properties[:2], "big")
    at = 2
    for flag in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & flag:
            at += 1 + properties[at]
    if not flags & _HEADERS:
        return None
    end = at + 4 + _uint32.unpack_from(properties, at)[0]
    at += 4
    while at < end:
        name = properties[at + 1 : at + 1 + properties[at]]
        at += 1 + len(name)
        kind = properties[at]
        at += 1
        if name == OFFSET_HEADER.encode() and kind == ord("l"):
            return int(_int64.unpack_from(properties, at)[0])
        at += _SIZES[kind] if kind in _SIZES else 4 + _uint32.unpack_from(properties, at)[0]
    return None
