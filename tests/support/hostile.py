"""A client that sends the worst content properties it can think of, by frames written by hand."""

from __future__ import annotations

import pika
from pika import exceptions

from tidegate_protocol.amqp.frames import FRAME_BYTES_MAX
from tidegate_protocol.amqp.methods import encode_publish
from tidegate_protocol.amqp.publications import encode_publication

LEVELS = 600
HEADERS_FLAG = b"\x20\x00"
TIME_FLAG = b"\x00\x40"


def sized(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def header(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


def nested(levels: int, kinds: bytes = b"F") -> bytes:
    """A header's value with so many levels of tables (F) and arrays (A), in turn."""
    value = b"V"
    for level in range(levels):
        kind = kinds[level % len(kinds) :][:1]
        value = kind + sized(header(b"a", value) if kind == b"F" else value)
    return value


def with_headers(*headers: bytes) -> bytes:
    """Content properties that are these headers alone."""
    return HEADERS_FLAG + sized(b"".join(headers))


def copied_to(key: bytes) -> bytes:
    """A header by which RabbitMQ routes the message by another key as well."""
    return header(b"CC", b"A" + sized(b"S" + sized(key)))


NESTED = with_headers(header(b"a", nested(LEVELS)))
CROWDED = with_headers(*(header(b"%d" % number, b"V") for number in range(5_000)))
ACCEPTED: dict[str, bytes] = {
    "tables in tables": NESTED,
    "arrays in arrays": with_headers(header(b"a", nested(LEVELS, b"A"))),
    "tables in arrays in tables": with_headers(header(b"a", nested(LEVELS, b"FA"))),
    "crowded": CROWDED,
    "names and texts that are not UTF-8": with_headers(header(b"\xff\xfe", b"S" + sized(b"\xc3\x28"))),
    "absurd times": with_headers(
        header(b"t", b"T" + b"\xff" * 8), header(b"tidegate-published-us", b"l" + b"\xff" * 8)
    ),
    "published at the beginning of time": with_headers(header(b"tidegate-published-us", b"l" + bytes(7) + b"\x01")),
    "an absurd decimal": with_headers(header(b"d", b"D\xff\x80\x00\x00\x00")),
    "a long text": with_headers(header(b"s", b"S" + sized(b"\x00" * 100_000))),
    "a timestamp beyond all years": TIME_FLAG + b"\xff" * 8,
    "an id that is not UTF-8": b"\x00\x80" + header(b"\xff" * 255, b""),
    "an id with a sequence beyond all numbers": b"\x00\x80" + header(b"x~1:t:99999999999999999999", b""),
}
"""Content properties that RabbitMQ passes on."""
MALFORMED: dict[str, bytes] = {
    "a header of an unknown type": with_headers(header(b"a", b"?")),
    "a table that is longer than its frame": HEADERS_FLAG + b"\x00\xff\xff\xff",
    "a text that is longer than its table": with_headers(header(b"a", b"S\x7f\xff\xff\xff")),
    "properties that are announced and not there": b"\xff\xf0",
}
"""Content properties that are none. RabbitMQ refuses them, or passes them on."""


def send(url: str, exchange: str, key: bytes, properties: bytes, body: bytes) -> bool:
    """Publish; returns whether RabbitMQ took it."""
    publish = encode_publish(exchange, "?" * len(key)).replace(b"?" * len(key), key)
    try:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            connection._impl._output_marshaled_frames(
                [encode_publication(channel.channel_number, publish, properties, body, FRAME_BYTES_MAX)]
            )
            channel.basic_qos(prefetch_count=1)  # answered once RabbitMQ has read the publication
    except exceptions.AMQPError:
        return False
    return True
