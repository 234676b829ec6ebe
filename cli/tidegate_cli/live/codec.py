"""AMQP 0-9-1 frames with as little work per message as possible: what a lean client reads and writes.

Deliveries and acknowledgements are packed and unpacked by hand, because they come by the thousand; every other method
goes through pamqp. Pure functions and one reader that cuts a stream into frames. What always holds: a reader hands out
whole frames in the order of the stream, and raises `BadFrame` for what is none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from pamqp import base, commands, frame, header
from pamqp import body as pamqp_body
from pamqp.common import FieldTable

from tidegate._wire import FRAME_END, FRAME_HEADER, FRAME_METHOD, decode_properties, published_us
from tidegate_protocol.form import PUBLISHED_HEADER

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
FRAME_MAX: Final = 131_072
CHANNEL: Final = 1
"""Lean connections have one channel."""
DELIVER: Final = b"\x00\x3c\x00\x3c"
ACK: Final = b"\x00\x3c\x00\x50"
FRAME_OVERHEAD: Final = 8
CONSUMER_TAG: Final = "c"
"""Short: it travels with every delivery."""

_start = struct.Struct(">BHI")
_uint64 = struct.Struct(">Q")
_ack = struct.Struct(">BHI4sQBc")
_header_start = struct.Struct(">HHQ")
_END: Final = FRAME_END[0]
_OURS_FLAGS: Final = b"\x30\xc0"
"""Headers, delivery mode, id and timestamp: what a publication of ours has."""
_TABLE_START: Final = (
    (1 + len(PUBLISHED_HEADER) + 9).to_bytes(4, "big")
    + bytes([len(PUBLISHED_HEADER)])
    + PUBLISHED_HEADER.encode()
    + b"l"
)
_TIME_AT: Final = 12 + 2 + len(_TABLE_START)
"""Where, in the content header of a publication of ours, the publish time is."""
_ID_AT: Final = _TIME_AT + 8 + 1


class BadFrame(Exception):
    """What came over a connection is not AMQP."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a RabbitMQ is, and who we are there."""

    host: str
    port: int
    user: str
    password: str
    vhost: str

    @classmethod
    def parse(cls, url: str, credentials: Address | None = None) -> Address:
        """Read an `amqp://` address; an edge's comes without credentials, and takes those of `credentials`."""
        parts = urlsplit(url)
        user = unquote(parts.username or "") or (credentials.user if credentials else "guest")
        password = unquote(parts.password or "") or (credentials.password if credentials else "guest")
        vhost = unquote(parts.path[1:]) or "/"
        return cls(parts.hostname or "127.0.0.1", parts.port or 5672, user, password, vhost)


def opening(address: Address, name: str, *methods: base.Frame) -> bytes:
    """Everything from the protocol header to `methods` on an open channel, to be written at once.

    RabbitMQ reads the answers to questions that it has not asked yet: one round trip instead of seven.
    """
    properties: FieldTable = {"product": "tidegate experiment", "connection_name": name}
    properties["capabilities"] = _CAPABILITIES
    start = commands.Connection.StartOk(
        client_properties=properties,
        mechanism="PLAIN",
        response=f"\0{address.user}\0{address.password}",
        locale="en_US",
    )
    tune = commands.Connection.TuneOk(channel_max=1, frame_max=FRAME_MAX, heartbeat=0)
    on_connection = (start, tune, commands.Connection.Open(virtual_host=address.vhost))
    on_channel = (commands.Channel.Open(), *methods)
    pieces = [PROTOCOL_HEADER, *(frame.marshal(one, 0) for one in on_connection)]
    return b"".join([*pieces, *(frame.marshal(one, CHANNEL) for one in on_channel)])


_CAPABILITIES: Final[FieldTable] = {
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
    "basic.nack": True,
    "authentication_failure_close": True,
}


def method(one: base.Frame, channel: int = CHANNEL) -> bytes:
    """A method on the channel, or on that of the connection itself (0), as a frame."""
    return frame.marshal(one, channel)


def publication(exchange: str, key: str, properties: commands.Basic.Properties, body: bytes) -> bytes:
    """A publication that fits one body frame, as control messages do."""
    pieces = [
        frame.marshal(commands.Basic.Publish(exchange=exchange, routing_key=key), CHANNEL),
        frame.marshal(header.ContentHeader(body_size=len(body), properties=properties), CHANNEL),
    ]
    if body:
        pieces.append(frame.marshal(pamqp_body.ContentBody(body), CHANNEL))
    return b"".join(pieces)


def acknowledge(tag: int) -> bytes:
    """Acknowledge everything up to `tag`."""
    return _ack.pack(FRAME_METHOD, CHANNEL, 13, ACK, tag, 1, FRAME_END)


class FrameReader:
    """Cuts a stream into frames; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The type and payload of every frame that is complete now."""
        if self._rest:
            data = self._rest + data
        offset, length = 0, len(data)
        while length - offset >= 7:
            kind, _, size = _start.unpack_from(data, offset)
            end = offset + 7 + size
            if kind not in (1, 2, 3, 8) or size > FRAME_MAX:
                self._rest = b""
                raise BadFrame(f"a frame of type {kind} and {size} bytes")
            if end >= length:
                break
            if data[end] != _END:
                self._rest = b""
                raise BadFrame("a frame without its end")
            yield kind, data[offset + 7 : end]
            offset = end + 1
        self._rest = data[offset:]


def read_method(payload: bytes) -> base.Frame:
    """Any method that is no delivery."""
    whole = _start.pack(FRAME_METHOD, CHANNEL, len(payload)) + payload + FRAME_END
    _, _, found = frame.unmarshal(whole)
    assert isinstance(found, base.Frame)
    return found


def read_deliver(payload: bytes) -> tuple[int, str]:
    """The delivery tag and the routing key of a Basic.Deliver."""
    at = 5 + payload[4]
    tag: int = _uint64.unpack_from(payload, at)[0]
    at += 9
    at += 1 + payload[at]
    return tag, payload[at + 1 : at + 1 + payload[at]].decode()


def read_body_size(content: bytes) -> int:
    """How many bytes of body follow a content header."""
    size: int = _header_start.unpack_from(content)[2]
    return size


def read_publication(content: bytes) -> tuple[str | None, int | None]:
    """The id and the publish time in a content header; None where a message has none."""
    if content[12:14] == _OURS_FLAGS and content.startswith(_TABLE_START, 14):
        at = _ID_AT
        return content[at + 1 : at + 1 + content[at]].decode(), _uint64.unpack_from(content, _TIME_AT)[0]
    properties = decode_properties(content, 12)
    return properties.get("message_id"), published_us(properties.get("headers"))


def read_properties(content: bytes) -> tuple[str, str]:
    """`reply_to` and `correlation_id` of a control message, empty where there is none."""
    properties = decode_properties(content, 12)
    return properties.get("reply_to", ""), properties.get("correlation_id", "")


def delivery_overhead(exchange: str, topic: str, message_id: str) -> int:
    """The bytes on the wire of a delivery of ours to a lean client, besides its body."""
    deliver = FRAME_OVERHEAD + 4 + 1 + len(CONSUMER_TAG) + 8 + 1 + 1 + len(exchange) + 1 + len(topic)
    properties = FRAME_OVERHEAD + _ID_AT + 1 + len(message_id) + 8
    return deliver + properties + FRAME_OVERHEAD


__all__ = [
    "CHANNEL",
    "CONSUMER_TAG",
    "DELIVER",
    "FRAME_HEADER",
    "FRAME_MAX",
    "FRAME_METHOD",
    "Address",
    "BadFrame",
    "FrameReader",
    "acknowledge",
    "delivery_overhead",
    "method",
    "opening",
    "publication",
    "read_body_size",
    "read_deliver",
    "read_method",
    "read_properties",
    "read_publication",
]
