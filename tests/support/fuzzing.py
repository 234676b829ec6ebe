"""Hostile messages by the thousand: made of good ones by mutation, each from its own number.

A message is a function of a seed and a number, so that one that does harm is named by two numbers. Mutations are the
ones that break decoders: bits flipped, lengths that lie, pieces cut out, doubled, swapped between messages, numbers at
their limits, deep nesting, texts that are none.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pamqp.commands
import pika
import pika.exceptions

from tests.support.hostile import ACCEPTED, MALFORMED, header, nested, sized, with_headers
from tidegate_protocol.amqp.content import (
    CONTENT_START_BYTES,
    UnreadableHeaders,
    decode_properties,
    pack_content_start,
)
from tidegate_protocol.amqp.frames import FRAME_BODY, FRAME_BYTES_MAX, FRAME_HEADER, FRAME_METHOD, encode_frame
from tidegate_protocol.amqp.methods import BASIC_CLASS, encode_publish, encode_publish_key
from tidegate_protocol.amqp.publications import (
    encode_account,
    encode_attributes,
    encode_properties,
    encode_publication,
)

HEADERS_BYTES_MAX: Final = 8_192
"""Of one hostile message: thousands of them are in memory at once."""
LIMITS: Final = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00")
NUMBERS: Final = (0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30, 1e308, -1e308, 0.1)
TEXTS: Final = ("", "\x00", "é", "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"), "a" * 3000, "#")


@dataclass(frozen=True, slots=True)
class Hostile:
    """One message as a client could send it."""

    number: int
    key: bytes
    properties: bytes
    body: bytes


def good_properties() -> list[bytes]:
    """Content properties that are as they should be, of all kinds that our processes read."""
    attributes = encode_attributes({"height": 2.5, "count": 3, "name": "north", "dry": True})
    plain = encode_properties("buoy~1:t.a:7", 1_700_000_000_000_000, b"", True)
    return [
        plain,
        encode_properties("buoy~1:t.a:8", 1_700_000_000_000_000, attributes, False, encode_account("buoy")),
        encode_properties("", 1_700_000_000_000_000, attributes, True),
        with_headers(header(b"CC", b"A" + sized(b"S" + sized(b"t.b"))), header(b"x-death", nested(3, b"AF"))),
        with_headers(header(b"x-stream-offset", b"l" + bytes(8))),
        b"\xff\xf0" + b"\x01a" * 2 + sized(b"") + b"\x02\x00" + b"\x01a" * 4 + bytes(8) + b"\x01a" * 2,
        *ACCEPTED.values(),
        *MALFORMED.values(),
    ]


def mutated(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The same bytes with one to four things wrong with them."""
    for _ in range(chance.randint(1, 4)):
        data = chance.choice(_MUTATIONS)(chance, data, others)[:HEADERS_BYTES_MAX]
    return data


def _flip(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    if not data:
        return b"\x00"
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _limit(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at, piece = chance.randrange(len(data) + 1), chance.choice(LIMITS)
    return data[:at] + piece + data[at + len(piece) :]


def _cut(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start, end = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    return data[:start] + data[end:]


def _double(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start, end = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    return data[:end] + data[start:end] * chance.randint(1, 8) + data[end:]


def _splice(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = chance.choice(others)
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _noise(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.randint(1, 32)) + data[at:]


def _truncate(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


_MUTATIONS: Final[tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...]] = (
    _flip, _limit, _cut, _double, _splice, _noise, _truncate,
)  # fmt: skip


class Fuzzer:
    """Hostile messages, JSON and frames from one seed."""

    def __init__(self, seed: int, texts: Sequence[bytes] = ()) -> None:
        """`texts`: JSON of good messages, to be mutated."""
        self.seed = seed
        self._properties = good_properties()
        self._texts = list(texts) or [b"{}"]
        self._plain = [json.loads(text) for text in self._texts]

    def _chance(self, kind: str, number: int) -> random.Random:
        return random.Random(f"{self.seed} {kind} {number}")

    def messages(self, start: int, count: int) -> Iterator[Hostile]:
        """Hostile publications."""
        for number in range(start, start + count):
            chance = self._chance("message", number)
            properties = chance.choice(self._properties)
            if chance.random() < 0.8:
                properties = mutated(chance, properties, self._properties)
            key = b"t." + (chance.randbytes(chance.randint(0, 20)) if chance.random() < 0.3 else b"a")
            body = chance.choice(self._texts) if chance.random() < 0.3 else chance.randbytes(chance.randint(0, 64))
            yield Hostile(number, key[:255], properties[:HEADERS_BYTES_MAX], body)

    def texts(self, start: int, count: int) -> Iterator[bytes]:
        """Hostile JSON: half of it broken bytes, half of it well-formed with fields that are wrong."""
        for number in range(start, start + count):
            chance = self._chance("text", number)
            if chance.random() < 0.5:
                yield mutated(chance, chance.choice(self._texts), self._texts)
            else:
                yield json.dumps(_wrong(chance, chance.choice(self._plain))).encode()

    def frames(self, start: int, count: int) -> Iterator[bytes]:
        """Hostile pieces of a stream of frames."""
        for number in range(start, start + count):
            chance = self._chance("frame", number)
            properties = chance.choice(self._properties)
            whole = b"".join((
                encode_frame(FRAME_METHOD, 1, encode_publish("tidegate.publish", "t.a")),
                encode_frame(FRAME_HEADER, 1, pack_content_start(BASIC_CLASS, 4) + properties[:HEADERS_BYTES_MAX]),
                encode_frame(FRAME_BODY, 1, b"body"),
            ))  # fmt: skip
            yield mutated(chance, whole, [whole])


def _wrong(chance: random.Random, value: object, depth: int = 0) -> object:
    """The same JSON with some values replaced, left out or nested."""
    if chance.random() < 0.15 and depth:
        return _value(chance)
    if isinstance(value, dict):
        kept = {k: _wrong(chance, v, depth + 1) for k, v in value.items() if chance.random() > 0.03}
        return kept | ({chance.choice(TEXTS): _value(chance)} if chance.random() < 0.2 else {})
    if isinstance(value, list):
        return [_wrong(chance, one, depth + 1) for one in value] * (1 if chance.random() < 0.9 else 50)
    return value


def _value(chance: random.Random) -> object:
    found: object = chance.choice((None, True, *NUMBERS, *TEXTS, [], {}))
    for _ in range(chance.choice((0, 0, 0, 1, 200))):
        found = [found] if chance.random() < 0.5 else {"a": found}
    return found


def content(properties: bytes, body: bytes) -> bytes:
    """The payload of a content header with these properties."""
    return pack_content_start(BASIC_CLASS, len(body)) + properties


assert len(content(b"", b"")) == CONTENT_START_BYTES


# Over a real RabbitMQ


def probably_taken(message: Hostile) -> bool:
    """Whether RabbitMQ is likely to take a message: it closes the connection of whoever sends properties that are none,
    and one connection carries hundreds of messages here.
    """
    found = decode_properties(message.properties, 0, len(message.properties))
    if type(found.get("headers")) is UnreadableHeaders or "user_id" in found or "expiration" in found:
        return False
    if message.properties in ACCEPTED.values():
        return True
    try:
        flags = int.from_bytes(message.properties[:2], "big")
        pamqp.commands.Basic.Properties().unmarshal(flags, message.properties[2:])
    except Exception:
        return False
    return True


def send_all(url: str, exchange: str, key: bytes | None, messages: Sequence[Hostile]) -> int:
    """Publish many; returns how many RabbitMQ took. Those around one that it refuses are sent again without it."""
    if not messages or _send(url, exchange, key, messages):
        return len(messages)
    if len(messages) == 1:
        return 0
    half = len(messages) // 2
    return send_all(url, exchange, key, messages[:half]) + send_all(url, exchange, key, messages[half:])


def _send(url: str, exchange: str, key: bytes | None, messages: Sequence[Hostile]) -> bool:
    try:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            publications = [
                encode_publication(
                    channel.channel_number,
                    encode_publish_key(exchange, one.key if key is None else key),
                    one.properties,
                    one.body,
                    FRAME_BYTES_MAX,
                )
                for one in messages
            ]
            connection._impl._output_marshaled_frames(publications)
            channel.basic_qos(prefetch_count=1)  # answered once RabbitMQ has read them all
    except pika.exceptions.AMQPError:
        return False
    return True
