"""Content properties of messages that a broker takes out of one queue and publishes again, as bytes.

A library that reads such a message may refuse its properties, and loses what it can't send again (`publications`). So a
broker has its reader put the properties as they came into one header (`envelope`), takes them apart with `content`, and
writes what can be read of them (`encode_copy`).

Invariants: nothing here raises, whatever the bytes are. A copy has no `user_id` of its publisher, because RabbitMQ
refuses another account's; no time to live, because a copy is made to be kept; and no header that tells of a detour or
holds a table.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..form import AttributeValue
from .content import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    DELIVERY_MODE,
    HEADERS,
    MESSAGE_ID,
    PRIORITY,
    REPLY_TO,
    TYPE,
    USER_ID,
    decode_headers,
    find_header,
)
from .publications import SHORT_TEXT_BYTES_MAX, encode_account, encode_attributes

RAW_HEADER: Final = "tidegate-raw"
DEATHS_HEADER: Final = "x-death"
DETOUR_HEADERS: Final = frozenset({"CC", "BCC"})
DETOUR_PREFIX: Final = "x-"
HEADERS_BYTES_MAX: Final = 96 << 10
"""Of a copy: AMQP can't split headers, and a frame holds 128 KiB."""
_FIRST_TEXTS: Final = ((CONTENT_TYPE, "content_type"), (CONTENT_ENCODING, "content_encoding"))
_LAST_TEXTS: Final = (
    (CORRELATION_ID, "correlation_id"),
    (REPLY_TO, "reply_to"),
    (MESSAGE_ID, "message_id"),
    (TYPE, "type"),
)
_uint32 = struct.Struct(">I")
_ARRAY, _TABLE = ord("A"), ord("F")


def envelope(properties: bytes) -> bytes:
    """Properties that any library can read: one header, whose value is the properties as they came."""
    name = RAW_HEADER.encode()
    table = bytes([len(name)]) + name + b"x" + _uint32.pack(len(properties)) + properties
    return HEADERS.to_bytes(2, "big") + _uint32.pack(len(table)) + table


def encode_copy(properties: Mapping[str, Any], headers: Mapping[str, AttributeValue], account: str = "") -> bytes:
    """The properties of a copy: what `decode_properties` found, with `headers` besides and above those it has.
    `account`: that of the connection which publishes it.
    """
    table = _table(properties.get("headers") or {}, headers)
    flags, pieces = HEADERS, []
    for flag, name in _FIRST_TEXTS:
        text = _short(properties.get(name))
        if text:
            flags |= flag
            pieces.append(text)
    pieces.append(_uint32.pack(len(table)) + table)
    for flag, name in (DELIVERY_MODE, "delivery_mode"), (PRIORITY, "priority"):
        if name in properties:
            flags |= flag
            pieces.append(bytes([properties[name]]))
    for flag, name in _LAST_TEXTS:
        text = _short(properties.get(name))
        if text:
            flags |= flag
            pieces.append(text)
    user = encode_account(account)
    if user:
        flags |= USER_ID
        pieces.append(user)
    return flags.to_bytes(2, "big") + b"".join(pieces)


def _table(found: Mapping[str, Any], added: Mapping[str, AttributeValue]) -> bytes:
    kept: dict[str, AttributeValue] = {
        name: value
        for name, value in found.items()
        if value is not None
        and name not in added
        and name not in DETOUR_HEADERS
        and not name.startswith(DETOUR_PREFIX)
        and len(name.encode()) <= SHORT_TEXT_BYTES_MAX
    }
    table = encode_attributes({**kept, **added})
    return table if len(table) <= HEADERS_BYTES_MAX else encode_attributes(added)


def _short(text: str | None) -> bytes:
    encoded = (text or "").encode()
    return bytes([len(encoded)]) + encoded if 0 < len(encoded) <= SHORT_TEXT_BYTES_MAX else b""


@dataclass(frozen=True, slots=True)
class Death:
    """How a message came to be dead-lettered last; all empty where that can't be told."""

    queue: str = ""
    reason: str = ""
    """In RabbitMQ's words."""
    exchange: str = ""
    """By which exchange it had come into the queue."""


def last_death(properties: bytes) -> Death:
    """The first entry of `x-death`, which is RabbitMQ's own, whatever a publisher had put there; the headers
    `x-first-death-…` of an older RabbitMQ are the publisher's, if it sent some.
    """
    try:
        found = _last_death(properties)
    except (IndexError, struct.error):
        return Death()
    texts = [found.get(name) for name in ("queue", "reason", "exchange")]
    return Death(*(text if isinstance(text, str) else "" for text in texts))


def _last_death(data: bytes) -> dict[str, Any]:
    flags, offset = int.from_bytes(data[:2], "big"), 2
    for flag, _ in _FIRST_TEXTS:
        if flags & flag:
            offset += 1 + data[offset]
    if not flags & HEADERS:
        return {}
    end = offset + 4 + _uint32.unpack_from(data, offset)[0]
    found = find_header(data, offset + 4, end, DEATHS_HEADER)
    if found is None or data[found[0]] != _ARRAY:
        return {}
    first = found[0] + 5
    if first >= found[1] or data[first] != _TABLE:
        return {}
    table = first + 5
    return decode_headers(data, table, min(table + _uint32.unpack_from(data, first + 1)[0], found[1]))
