"""What a lean client reads and writes besides publications and deliveries: its opening, control messages, acks.

What comes by the thousand is encoded and decoded by `tidegate_protocol.amqp`; every other method goes through pamqp.
Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from pamqp import base, body as pamqp_body, commands, frame, header
from pamqp.common import FieldTable

from tidegate_protocol.amqp.content import CONTENT_START_BYTES, decode_properties
from tidegate_protocol.amqp.frames import FRAME_BYTES_MAX, FRAME_METHOD, PROTOCOL_HEADER, encode_frame
from tidegate_protocol.amqp.methods import encode_ack_frame
from tidegate_protocol.amqp.publications import delivery_overhead_bytes

CHANNEL: Final = 1
"""Lean connections have one channel."""
CONSUMER_TAG: Final = "c"
"""Short: it travels with every delivery."""


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
    tune = commands.Connection.TuneOk(channel_max=1, frame_max=FRAME_BYTES_MAX, heartbeat=0)
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
    return encode_ack_frame(CHANNEL, tag)


def read_method(payload: bytes) -> base.Frame:
    """Any method that is no delivery."""
    _, _, found = frame.unmarshal(encode_frame(FRAME_METHOD, CHANNEL, payload))
    assert isinstance(found, base.Frame)
    return found


def read_properties(content: bytes) -> tuple[str, str]:
    """`reply_to` and `correlation_id` of a control message, empty where there is none."""
    properties = decode_properties(content, CONTENT_START_BYTES, len(content))
    return properties.get("reply_to", ""), properties.get("correlation_id", "")


def delivery_overhead(exchange: str, topic: str, message_id: str) -> int:
    """The bytes on the wire of a delivery of ours to a lean client, besides its body."""
    return delivery_overhead_bytes(len(exchange), len(topic), len(message_id), len(CONSUMER_TAG))
