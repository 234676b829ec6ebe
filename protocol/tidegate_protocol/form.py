"""The public message form: how a publication looks to any AMQP 0-9-1 client.

| what | where |
| --- | --- |
| topic | routing key, on the exchange `tidegate.publish` |
| id | `message_id`: `<publisher>:<topic>:<sequence>` |
| account | `user_id`: that of the publisher's connection, where the cluster checks accounts |
| publish time | header `tidegate-published-us`: whole microseconds since 1970, by the publisher's clock |
| time at the head | header `timestamp_in_ms`: whole milliseconds, by the head's RabbitMQ where it is told to stamp |
| attributes | all other headers: text, whole numbers, booleans, floating-point numbers |
| body | opaque bytes |
| persistence | `delivery_mode` 2 (the default) or 1 |

The time is a whole number because AMQP libraries send floating-point headers with 32 bits, which leaves a resolution
of two minutes. A message from a client that knows nothing of this has no id and no time: it is delivered all the same,
and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .errors import InvalidMessage

PUBLISHED_HEADER: Final = "tidegate-published-us"
RESERVED_PREFIXES: Final = ("tidegate-", "x-")
STAMPED_HEADER: Final = "timestamp_in_ms"
"""What RabbitMQ (from 3.12 on) puts there when a publication comes in, over whatever its publisher had put there."""
RESERVED_HEADERS: Final = frozenset({"CC", "BCC", STAMPED_HEADER})
BODY_BYTES_MAX: Final = 16 << 20
BODY_BYTES_DEFAULT: Final = 1 << 20
ATTRIBUTES_MAX: Final = 64
ATTRIBUTE_NAME_BYTES_MAX: Final = 128
ATTRIBUTE_TEXT_BYTES_MAX: Final = 8 << 10
ATTRIBUTES_BYTES_MAX: Final = 64 << 10
"""All names and values together: AMQP can't split headers, and a frame holds 128 KiB unless configured otherwise."""

AttributeValue = str | int | float | bool
Attributes = Mapping[str, AttributeValue]

_INT64: Final = 1 << 63
STAMP_MS_MAX: Final = _INT64 // 1_000


def check_body(body: bytes, limit_bytes: int = BODY_BYTES_DEFAULT) -> bytes:
    """Return `body` if it is bytes of at most `limit_bytes`; raise `InvalidMessage` otherwise."""
    if not isinstance(body, bytes):
        raise InvalidMessage("body", type(body).__name__, "is not bytes", "encode it first, e.g. text.encode()")
    if len(body) > limit_bytes:
        raise InvalidMessage(
            "body",
            f"{len(body)} bytes",
            f"is over the limit of {limit_bytes} bytes",
            "send less, or raise limits.body_bytes",
        )
    return body


def check_attributes(attributes: Attributes) -> Attributes:
    """Return `attributes` if every one of them can travel as an AMQP header; raise `InvalidMessage` otherwise."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise InvalidMessage("attributes", len(attributes), "are too many", f"use at most {ATTRIBUTES_MAX}")
    size = sum(_check_attribute(name, value) for name, value in attributes.items())
    if size > ATTRIBUTES_BYTES_MAX:
        remedy = f"use at most {ATTRIBUTES_BYTES_MAX} in all, or the body"
        raise InvalidMessage("attributes", f"{size} bytes", "are too large", remedy)
    return attributes


def _check_attribute(name: str, value: AttributeValue) -> int:
    field = f"attributes[{name!r}]"
    if not isinstance(name, str) or not name or _utf8_length(field, name) > ATTRIBUTE_NAME_BYTES_MAX:
        raise InvalidMessage(field, name, "is no usable name", f"use text of 1 to {ATTRIBUTE_NAME_BYTES_MAX} bytes")
    if name.startswith(RESERVED_PREFIXES) or name in RESERVED_HEADERS:
        raise InvalidMessage(
            field, name, "is a reserved name", "choose one that does not start with 'tidegate-' or 'x-'"
        )
    if not isinstance(value, str | int | float):
        raise InvalidMessage(field, value, f"is of type {type(value).__name__}", "use str, int, float or bool")
    if isinstance(value, str) and _utf8_length(field, value) > ATTRIBUTE_TEXT_BYTES_MAX:
        raise InvalidMessage(field, value, "is too long", f"use at most {ATTRIBUTE_TEXT_BYTES_MAX} bytes, or the body")
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise InvalidMessage(field, value, "does not fit 64 bits", "send it as text")
    return _utf8_length(field, name) + (_utf8_length(field, value) if isinstance(value, str) else 8)


def _utf8_length(field: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidMessage(field, text, "is not valid Unicode", "leave out lone surrogates") from error


def published_us(headers: Mapping[str, Any] | None) -> int | None:
    """When a message was published, in microseconds; None if its headers don't say."""
    value = headers.get(PUBLISHED_HEADER) if headers else None
    return value if type(value) is int and value > 0 else None  # True is an int, too, but no time


def stamped_us(headers: Mapping[str, Any] | None) -> int | None:
    """When a message came to its head, in microseconds, to a millisecond; None if no RabbitMQ has stamped it."""
    value = headers.get(STAMPED_HEADER) if headers else None
    return value * 1_000 if type(value) is int and 0 < value < STAMP_MS_MAX else None


def attributes_of(headers: Mapping[str, Any] | None) -> dict[str, AttributeValue]:
    """The attributes among the headers: what a foreign client put there beside them is left out."""
    return {
        name: value
        for name, value in (headers or {}).items()
        if isinstance(value, str | int | float)
        and not name.startswith(RESERVED_PREFIXES)
        and name not in RESERVED_HEADERS
    }
