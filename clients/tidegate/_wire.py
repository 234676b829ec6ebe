"""The public message form as bytes: content properties with their header table, and the frames of a
publication.

Both AMQP libraries would lose a floating-point attribute: pamqp sends it with 32 bits, pika can't send it and
cuts a received one down to a whole number. So attributes are encoded here, once for both, a float always as
an AMQP double and a whole number always with 64 bits; and pika's connection decodes headers with
`decode_properties`. Everything here is a pure function of its arguments."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from tidegate_protocol.form import PUBLISHED_HEADER, RESERVED_HEADERS, RESERVED_PREFIXES, AttributeValue

BASIC_CLASS: Final = 60
FRAME_METHOD, FRAME_HEADER, FRAME_BODY = 1, 2, 3
FRAME_END: Final = b"\xce"
BASIC_DELIVER: Final = b"\x00\x3c\x00\x3c"
"""What the payload of a Basic.Deliver method starts with."""
FRAME_OVERHEAD: Final = 8
"""Seven bytes before a frame's payload and one after it."""

# Flags of the content properties, in the order in which the properties follow them.
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE = 0x8000, 0x4000, 0x2000, 0x1000
_PRIORITY, _CORRELATION_ID, _REPLY_TO, _EXPIRATION = 0x0800, 0x0400, 0x0200, 0x0100
_MESSAGE_ID, _TIMESTAMP = 0x0080, 0x0040
_OURS: Final = struct.pack(">H", _HEADERS | _DELIVERY_MODE | _MESSAGE_ID | _TIMESTAMP)

_uint32 = struct.Struct(">I")
_tagged_int64 = struct.Struct(">cq")
_tagged_double = struct.Struct(">cd")
_frame_start = struct.Struct(">BHI")
_header_start = struct.Struct(">HxxQ")
_PUBLISHED_NAME: Final = bytes([len(PUBLISHED_HEADER)]) + PUBLISHED_HEADER.encode()


def encode_attributes(attributes: Mapping[str, AttributeValue]) -> bytes:
    """The entries of a header table, without its length. Expects what `check_attributes` accepted."""
    pieces: list[bytes] = []
    for name, value in attributes.items():
        encoded_name = name.encode()
        pieces.append(bytes([len(encoded_name)]) + encoded_name)
        if isinstance(value, str):
            text = value.encode()
            pieces.append(b"S" + _uint32.pack(len(text)) + text)
        elif isinstance(value, bool):
            pieces.append(b"t\x01" if value else b"t\x00")
        elif isinstance(value, int):
            pieces.append(_tagged_int64.pack(b"l", value))
        else:
            pieces.append(_tagged_double.pack(b"d", value))
    return b"".join(pieces)


def encode_properties(message_id: str, published_us: int, attributes: bytes, persistent: bool) -> bytes:
    """Content properties of a publication: flags, header table, delivery mode, id, and the time in whole
    seconds.
    """
    table = _PUBLISHED_NAME + _tagged_int64.pack(b"l", published_us) + attributes
    encoded_id = message_id.encode()
    return b"".join(
        (
            _OURS,
            _uint32.pack(len(table)),
            table,
            b"\x02" if persistent else b"\x01",
            bytes([len(encoded_id)]),
            encoded_id,
            (published_us // 1_000_000).to_bytes(8, "big"),
        )
    )


def encode_publish(exchange: str, topic: str) -> bytes:
    """The payload of a Basic.Publish method, neither mandatory nor immediate."""
    where, key = exchange.encode(), topic.encode()
    return b"\x00\x3c\x00\x28\x00\x00" + bytes([len(where)]) + where + bytes([len(key)]) + key + b"\x00"


def frames(channel: int, publish: bytes, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """All frames of one publication, ready to be written."""
    header = _header_start.pack(BASIC_CLASS, len(body)) + properties
    pieces = [
        _frame_start.pack(FRAME_METHOD, channel, len(publish)),
        publish,
        FRAME_END,
        _frame_start.pack(FRAME_HEADER, channel, len(header)),
        header,
        FRAME_END,
    ]
    step = frame_max - FRAME_OVERHEAD
    for start in range(0, len(body), step):
        part = body[start : start + step] if len(body) > step else body
        pieces += (_frame_start.pack(FRAME_BODY, channel, len(part)), part, FRAME_END)
    return b"".join(pieces)


def published_us(headers: Mapping[str, Any] | None) -> int | None:
    """When a message was published, in microseconds; None if its headers don't say."""
    value = headers.get(PUBLISHED_HEADER) if headers else None
    return value if type(value) is int and value > 0 else None  # True is an int, too, but no time


def attributes_of(headers: Mapping[str, Any] | None) -> dict[str, AttributeValue]:
    """The attributes among the headers: what a foreign client put there beside them is left out."""
    return {
        name: value
        for name, value in (headers or {}).items()
        if isinstance(value, str | int | float)
        and not name.startswith(RESERVED_PREFIXES)
        and name not in RESERVED_HEADERS
    }


def decode_properties(data: bytes, offset: int) -> dict[str, Any]:
    """Content properties at `offset`, those that mean something to us; raise ValueError for what is none."""
    try:
        return _decode_properties(data, offset)
    except (struct.error, IndexError, KeyError) as error:
        raise ValueError(f"content properties can't be read: {error}") from error


def _decode_properties(data: bytes, offset: int) -> dict[str, Any]:
    flags = int.from_bytes(data[offset : offset + 2], "big")
    offset += 2
    found: dict[str, Any] = {}
    for flag, name in (_CONTENT_TYPE, "content_type"), (_CONTENT_ENCODING, "content_encoding"):
        if flags & flag:
            found[name], offset = _short_text(data, offset)
    if flags & _HEADERS:
        found["headers"], offset = _decode_table(data, offset)
    for flag, name in (_DELIVERY_MODE, "delivery_mode"), (_PRIORITY, "priority"):
        if flags & flag:
            found[name] = data[offset]
            offset += 1
    for flag, name in (
        (_CORRELATION_ID, "correlation_id"),
        (_REPLY_TO, "reply_to"),
        (_EXPIRATION, "expiration"),
        (_MESSAGE_ID, "message_id"),
    ):
        if flags & flag:
            found[name], offset = _short_text(data, offset)
    return found


def _short_text(data: bytes, offset: int) -> tuple[str, int]:
    end = offset + 1 + data[offset]
    return data[offset + 1 : end].decode("utf-8", "replace"), end


def _decode_table(data: bytes, offset: int) -> tuple[dict[str, Any], int]:
    end = offset + 4 + _uint32.unpack_from(data, offset)[0]
    offset += 4
    table: dict[str, Any] = {}
    while offset < end:
        name, offset = _short_text(data, offset)
        table[name], offset = _decode_value(data, offset)
    return table, offset


_FIXED: Final = {
    kind: struct.Struct(form)
    for kind, form in {
        "t": ">?", "b": ">b", "B": ">B", "U": ">h", "s": ">h", "u": ">H", "I": ">i", "i": ">I",
        "l": ">q", "L": ">q", "f": ">f", "d": ">d", "D": ">Bi",
    }.items()
}  # fmt: skip
"""Types of a fixed length, as RabbitMQ reads the letters."""


def _decode_value(data: bytes, offset: int) -> tuple[Any, int]:
    kind = chr(data[offset])
    offset += 1
    form = _FIXED.get(kind)
    if form is not None:
        values = form.unpack_from(data, offset)
        # A decimal is scale and digits. Nobody may have it as an attribute, so the pair is as good as the
        # number.
        return (values[0] if len(values) == 1 else values), offset + form.size
    if kind == "V":
        return None, offset
    if kind == "T":
        # Not one of our types either, and beyond what a datetime can hold: left as it came.
        return data[offset : offset + 8], offset + 8
    if kind == "F":
        return _decode_table(data, offset)
    end = offset + 4 + _uint32.unpack_from(data, offset)[0]
    content = data[offset + 4 : end]
    if kind == "S":
        return content.decode("utf-8", "replace"), end
    if kind in "xA":
        return content, end
    raise KeyError(f"type {kind!r} of a header is unknown")
