"""Publications in the public message form (`tidegate_protocol.form`) as bytes: properties, frames, and their sizes.

Both AMQP libraries would lose a floating-point attribute: pamqp sends it with 32 bits, pika can't send it and cuts a
received one down to a whole number. So attributes are encoded here, a float always as an AMQP double and a whole number
always with 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from ..form import PUBLISHED_HEADER, AttributeValue, published_us
from .content import (
    CONTENT_START_BYTES,
    DELIVERY_MODE,
    HEADERS,
    MESSAGE_ID,
    TIMESTAMP,
    USER_ID,
    decode_properties,
    pack_content_start,
)
from .frames import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_METHOD, FRAME_OVERHEAD, pack_frame_start
from .methods import BASIC_CLASS, DELIVER_BYTES

_FLAGS: Final = struct.pack(">H", HEADERS | DELIVERY_MODE | MESSAGE_ID | TIMESTAMP)
_FLAGS_WITH_ACCOUNT: Final = struct.pack(">H", HEADERS | DELIVERY_MODE | MESSAGE_ID | TIMESTAMP | USER_ID)
_FLAGS_UNNUMBERED: Final = struct.pack(">H", HEADERS | DELIVERY_MODE | TIMESTAMP)

SHORT_TEXT_BYTES_MAX: Final = 255

_uint32 = struct.Struct(">I")
_uint64 = struct.Struct(">Q")
_tagged_int64 = struct.Struct(">cq")
_tagged_double = struct.Struct(">cd")

_PUBLISHED_NAME: Final = bytes([len(PUBLISHED_HEADER)]) + PUBLISHED_HEADER.encode()
_PLAIN_TABLE: Final = _uint32.pack(len(_PUBLISHED_NAME) + _tagged_int64.size) + _PUBLISHED_NAME + b"l"
_PLAIN: Final = _FLAGS + _PLAIN_TABLE
"""How the properties of a publication without attributes begin; the publish time follows."""
_PLAIN_WITH_ACCOUNT: Final = _FLAGS_WITH_ACCOUNT + _PLAIN_TABLE
_TIME_AT: Final = CONTENT_START_BYTES + len(_PLAIN)
"""Where, in the content header of a publication without attributes, the publish time is."""
_ID_AT: Final = _TIME_AT + 8 + 1
"""And its id: behind the time and the delivery mode."""


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


def encode_account(account: str) -> bytes:
    """The property `user_id`, which ends the properties of a publication; empty if there is no account, or none that
    AMQP could carry.
    """
    encoded = account.encode()
    return bytes([len(encoded)]) + encoded if 0 < len(encoded) <= SHORT_TEXT_BYTES_MAX else b""


def encode_properties(
    message_id: str, published_us: int, attributes: bytes, persistent: bool, account: bytes = b""
) -> bytes:
    """Content properties of a publication: flags, header table, delivery mode, id, the time in whole seconds, account.

    An empty `message_id` is left out: the publication has none. `account` is what `encode_account` made; only a
    publication with an id says it.
    """
    table = _PUBLISHED_NAME + _tagged_int64.pack(b"l", published_us) + attributes
    encoded_id = message_id.encode()
    return b"".join(
        (
            (_FLAGS_WITH_ACCOUNT if account else _FLAGS) if encoded_id else _FLAGS_UNNUMBERED,
            _uint32.pack(len(table)),
            table,
            b"\x02" if persistent else b"\x01",
            bytes([len(encoded_id)]) if encoded_id else b"",
            encoded_id,
            (published_us // 1_000_000).to_bytes(8, "big"),
            account if encoded_id else b"",
        )
    )


def encode_publication(channel: int, publish: bytes, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """All frames of one publication, ready to be written. `publish` is the payload of its Basic.Publish."""
    header = pack_content_start(BASIC_CLASS, len(body)) + properties
    pieces = [
        pack_frame_start(FRAME_METHOD, channel, len(publish)),
        publish,
        FRAME_END,
        pack_frame_start(FRAME_HEADER, channel, len(header)),
        header,
        FRAME_END,
    ]
    step = frame_max - FRAME_OVERHEAD
    for start in range(0, len(body), step):
        part = body[start : start + step] if len(body) > step else body
        pieces += (pack_frame_start(FRAME_BODY, channel, len(part)), part, FRAME_END)
    return b"".join(pieces)


def read_publication(content: bytes) -> tuple[str | None, int | None, str | None]:
    """The id, the publish time and the account in a content header; None where a message has none.

    Publications without attributes, which look all alike, are read without decoding their properties.
    """
    at = _ID_AT
    if content.startswith(_PLAIN, CONTENT_START_BYTES) and len(content) > at:
        identity = content[at + 1 : at + 1 + content[at]].decode("utf-8", "replace")
        return identity, _uint64.unpack_from(content, _TIME_AT)[0], None
    if content.startswith(_PLAIN_WITH_ACCOUNT, CONTENT_START_BYTES) and len(content) > at:
        behind = at + 1 + content[at]
        identity = content[at + 1 : behind].decode("utf-8", "replace")
        account = content[behind + _uint64.size + 1 :].decode("utf-8", "replace")
        return identity, _uint64.unpack_from(content, _TIME_AT)[0], account or None
    properties = decode_properties(content, CONTENT_START_BYTES, len(content))
    return properties.get("message_id"), published_us(properties.get("headers")), properties.get("user_id")


def delivery_overhead_bytes(exchange: int, topic: int, message_id: int, consumer_tag: int) -> int:
    """The bytes on the wire of a delivered publication without attributes, besides its body in one frame.

    The arguments are the lengths of the texts that travel with it.
    """
    deliver = DELIVER_BYTES + consumer_tag + exchange + topic
    header = _ID_AT + 1 + message_id + 8
    return 3 * FRAME_OVERHEAD + deliver + header
