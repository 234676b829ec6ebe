"""Content headers of AMQP 0-9-1, read from bytes that any client may have chosen.

Invariants:

- nothing here raises and nothing recurses, whatever the bytes are: a value that holds other values (a table, an array)
  is passed over by its length, because no attribute may be one;
- nothing is read beyond the given end, and at most `HEADERS_MAX` headers are read;
- headers that can't be read never hide the properties behind them: those are found by the table's length.

Headers that can't be read come as `UnreadableHeaders`: no header at all, and the reason."""

from __future__ import annotations

import struct
from typing import Any, Final

HEADERS_MAX: Final = 1_000
"""Headers of one message. Publications have at most `ATTRIBUTES_MAX` of them; a frame has room for 65,000."""
CONTENT_START_BYTES: Final = 12
"""Class, weight and body size, before the content properties."""

pack_content_start = struct.Struct(">HxxQ").pack
"""The bytes of class, weight (always 0) and body size."""

# Flags of the content properties, in the order in which the properties follow them.
CONTENT_TYPE, CONTENT_ENCODING, HEADERS, DELIVERY_MODE = 0x8000, 0x4000, 0x2000, 0x1000
PRIORITY, CORRELATION_ID, REPLY_TO, EXPIRATION = 0x0800, 0x0400, 0x0200, 0x0100
MESSAGE_ID, TIMESTAMP, TYPE, USER_ID = 0x0080, 0x0040, 0x0020, 0x0010

_uint32 = struct.Struct(">I")
_FIXED: Final = {
    ord(kind): struct.Struct(form)
    for kind, form in {
        "t": ">?", "b": ">b", "B": ">B", "U": ">h", "s": ">h", "u": ">H", "I": ">i", "i": ">I",
        "l": ">q", "L": ">q", "f": ">f", "d": ">d",
    }.items()
}  # fmt: skip
"""Numbers and truth values by their letter, as RabbitMQ reads the letters."""
_PASSED_OVER: Final = {ord("V"): 0, ord("D"): 5, ord("T"): 8}
"""Values that are no attributes, with their sizes: nothing, a decimal, a time."""
_TEXT: Final = ord("S")
_SIZED: Final = frozenset(b"SxAF")
"""Text, bytes, arrays and tables: their length precedes them."""


class UnreadableHeaders(dict[str, Any]):
    """The headers of a message that has some, none of which is known; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class _Malformed(Exception):
    """The bytes are no header table."""


def read_body_size(content: bytes, offset: int = 0) -> int:
    """How many bytes of body follow the content header whose payload begins at `offset`."""
    return int.from_bytes(content[offset + 4 : offset + CONTENT_START_BYTES], "big")


def decode_properties(data: bytes, offset: int, end: int) -> dict[str, Any]:
    """The content properties in `data[offset:end]` that mean something to us, as far as they can be read."""
    found: dict[str, Any] = {}
    try:
        _decode_properties(data, offset, end, found)
    except (_Malformed, IndexError, struct.error) as error:
        found["headers"] = UnreadableHeaders(f"content properties: {error}")
    return found


def _decode_properties(data: bytes, offset: int, end: int, found: dict[str, Any]) -> None:
    flags = int.from_bytes(data[offset : offset + 2], "big")
    offset += 2
    for flag, name in (CONTENT_TYPE, "content_type"), (CONTENT_ENCODING, "content_encoding"):
        if flags & flag:
            found[name], offset = _short_text(data, offset, end)
    if flags & HEADERS:
        start = offset + 4
        offset = start + _uint32.unpack_from(data, offset)[0]
        if offset > end:
            raise _Malformed(f"a header table of {offset - start} bytes in {end - start}")
        found["headers"] = decode_headers(data, start, offset)
    for flag, name in (DELIVERY_MODE, "delivery_mode"), (PRIORITY, "priority"):
        if flags & flag:
            found[name] = data[offset]
            offset += 1
    for flag, name in (
        (CORRELATION_ID, "correlation_id"),
        (REPLY_TO, "reply_to"),
        (EXPIRATION, "expiration"),
        (MESSAGE_ID, "message_id"),
    ):
        if flags & flag:
            found[name], offset = _short_text(data, offset, end)
    if flags & TIMESTAMP:
        offset += 8  # nobody needs the time in whole seconds
    for flag, name in (TYPE, "type"), (USER_ID, "user_id"):
        if flags & flag:
            found[name], offset = _short_text(data, offset, end)
    if offset > end:
        raise _Malformed(f"{offset - end} bytes are missing")


def decode_headers(data: bytes, offset: int, end: int) -> dict[str, Any]:
    """The headers in `data[offset:end]`, each a text, a number, a truth value, or None for anything else."""
    headers: dict[str, Any] = {}
    try:
        for _ in range(HEADERS_MAX):
            if offset >= end:
                break
            name, offset = _short_text(data, offset, end)
            headers[name], offset = _decode_value(data, offset, end)
    except (_Malformed, IndexError, struct.error) as error:
        return UnreadableHeaders(str(error))
    return headers if offset == end else UnreadableHeaders(f"more than {HEADERS_MAX} headers")


def find_header(data: bytes, offset: int, end: int, wanted: str) -> tuple[int, int] | None:
    """Where the first header of this name has its value, from its type on; None if there is none that can be found."""
    try:
        for _ in range(HEADERS_MAX):
            if offset >= end:
                break
            name, start = _short_text(data, offset, end)
            _, offset = _decode_value(data, start, end)
            if name == wanted:
                return start, offset
    except (_Malformed, IndexError, struct.error):
        return None
    return None


def _decode_value(data: bytes, offset: int, end: int) -> tuple[Any, int]:
    kind = data[offset]
    offset += 1
    form = _FIXED.get(kind)
    value: Any = None
    if form is not None:
        value = form.unpack_from(data, offset)[0]
        offset += form.size
    elif kind in _SIZED:
        start = offset + 4
        offset = start + _uint32.unpack_from(data, offset)[0]
        if kind == _TEXT and offset <= end:
            value = data[start:offset].decode("utf-8", "replace")
    elif kind in _PASSED_OVER:
        offset += _PASSED_OVER[kind]
    else:
        raise _Malformed(f"a header of the unknown type {bytes([kind])!r}")
    if offset > end:
        raise _Malformed("a header is longer than its table")
    return value, offset


def _short_text(data: bytes, offset: int, end: int) -> tuple[str, int]:
    start = offset + 1
    offset = start + data[offset]
    if offset > end:
        raise _Malformed("a text is longer than what it is in")
    return data[start:offset].decode("utf-8", "replace"), offset
