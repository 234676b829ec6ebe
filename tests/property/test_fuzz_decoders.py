"""Hostile messages against every decoder that reads what a client chose, without a RabbitMQ in between.

What must hold for each: no exception but the one it promises, no recursion, bounded time and memory. 15,000 messages in
the suite; `TIDEGATE_FUZZ=1000000` takes as many, `TIDEGATE_FUZZ_SEED` others. A failure prints the seed and the number
of the message. Hypothesis looks for what mutation does not find.
"""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from rabbitmq_stream_source.tolerant import offset_alone
from tests.support.fuzzing import Fuzzer, Hostile, content
from tidegate._core.inbox import Inbox
from tidegate._io.aio_transport import seal
from tidegate._io.pika_codec import _Assembly
from tidegate_analytics.judging import judge
from tidegate_brokers.links import quarantine
from tidegate_brokers.links.desk import show
from tidegate_brokers.links.refusals import Refused, entry_of
from tidegate_brokers.rabbit.frames import plain_properties
from tidegate_brokers.rabbit.raw import RawMessage
from tidegate_protocol.amqp.content import decode_properties, read_body_size
from tidegate_protocol.amqp.frames import FRAME_END, FRAME_HEADER, FRAME_METHOD, BadFrame, FrameReader, pack_frame_start
from tidegate_protocol.amqp.methods import BASIC_DELIVER, read_deliver, readable_deliver
from tidegate_protocol.amqp.publications import read_publication
from tidegate_protocol.amqp.rewriting import rewrite_frame
from tidegate_protocol.decisions import SetAsideReason, from_plain
from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.form import attributes_of, published_us
from tidegate_protocol.messages import decode
from tidegate_protocol.telemetry import decode as decode_record

GOLDEN = Path(__file__).parents[1] / "golden"
MESSAGES = int(os.environ.get("TIDEGATE_FUZZ", "15000"))
SEED = int(os.environ.get("TIDEGATE_FUZZ_SEED", "1"))
GOOD_EVERY = 1_000
"""After so many hostile messages a good one must be delivered, in time."""
GOOD_S = 1.0
MEMORY_KIB_MAX = 300_000
"""How much the process may grow."""
NOW_US = 1_700_000_000_000_000


def samples(folder: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((GOLDEN / folder).glob("*.json"))]


def deliver(key: bytes) -> bytes:
    """The payload of a Basic.Deliver with this key, and the end of its frame."""
    return (
        BASIC_DELIVER + b"\x03tag" + (7).to_bytes(8, "big") + b"\x00" + b"\x01e" + bytes([len(key)]) + key + FRAME_END
    )


class Subscriber:
    """What a subscriber does with a delivery between its socket and the application."""

    def __init__(self) -> None:
        self.inbox = Inbox(1.0, False, 100, 10_000, pattern="t.#")
        self.ledger = self.inbox.open_ledger()
        self.assembly = _Assembly(self.received)
        self.tag = 0
        self.handed: list[bytes] = []

    def take(self, message: Hostile) -> None:
        """All frames of one delivery, as the synchronous client reads them."""
        self.assembly.method(deliver(message.key), 0)
        header = content(message.properties, message.body)
        self.assembly.header(header, 0, len(header))
        if message.body:
            self.assembly.body(message.body)
        for one in list(self.inbox.buffer):
            self.inbox.hand_over(one, NOW_US / 1e6)
            _ = one.attributes, one.publisher, one.published_us, one.id
            self.handed.append(one.body)
            self.inbox.settle(one)
        self.inbox.buffer.clear()
        self.inbox.acknowledgements(self.ledger)

    def received(self, tag: int, key: str, body: bytes, properties: dict[str, object], redelivered: bool) -> None:
        self.tag += 1
        if self.inbox.topics.is_stray(key):
            return
        headers, identity, account = (properties.get(name) for name in ("headers", "message_id", "user_id"))
        self.inbox.receive(
            self.ledger,
            self.tag,
            key,
            body,
            identity,
            headers,
            redelivered,
            self.tag / 1e3,
            False,
            account,  # type: ignore[arg-type]
        )


def decode_everywhere(message: Hostile) -> None:
    """Every other process that reads the properties of a message."""
    properties, body = message.properties, message.body
    found = decode_properties(properties, 0, len(properties))
    attributes_of(found.get("headers"))
    published_us(found.get("headers"))
    read_publication(content(properties, body))
    read_body_size(content(properties, body))
    plain = plain_properties(properties)
    assert decode_properties(plain, 0, len(plain)).get("user_id") in (None, found.get("user_id"))
    raw = RawMessage(message.key, properties, body)
    entry = entry_of("q-1-1", "edge", Refused(SetAsideReason.CONTENT, ""), raw, NOW_US)
    assert quarantine.decode(quarantine.encode(entry, raw)) == (entry, raw)
    quarantine.decode(raw)
    show(raw)
    payload = content(properties, body) + FRAME_END
    start = pack_frame_start(FRAME_HEADER, 1, len(payload) - 1)
    for rewrite in (plain_properties, seal):
        rewrite_frame(start, payload, rewrite)
    offset_alone(start + payload)
    method = deliver(message.key)
    rewrite_frame(pack_frame_start(FRAME_METHOD, 1, len(method) - 1), method, seal)
    readable_deliver(method)
    read_deliver(method)


def test_no_message_of_a_client_makes_a_decoder_raise() -> None:
    fuzzer, subscriber = Fuzzer(SEED, samples("control")), Subscriber()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for message in fuzzer.messages(0, MESSAGES):
        try:
            subscriber.take(message)
            decode_everywhere(message)
        except Exception as error:
            raise AssertionError(f"seed {SEED}, message {message.number}: {error!r}") from error
        if message.number % GOOD_EVERY == GOOD_EVERY - 1:
            began = time.perf_counter()
            good = b"good %d" % message.number
            subscriber.take(Hostile(message.number, b"t.good", b"\x00\x00", good))
            assert subscriber.handed[-1] == good
            assert time.perf_counter() - began < GOOD_S
            subscriber.handed.clear()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MEMORY_KIB_MAX, f"{grown} KiB more than before"


@pytest.mark.parametrize("folder", ["control", "telemetry", "decisions"])
def test_no_json_makes_a_reader_raise_what_it_does_not_promise(folder: str) -> None:
    fuzzer = Fuzzer(SEED, samples(folder))
    for number, text in enumerate(fuzzer.texts(0, MESSAGES // 5)):
        try:
            for read in (decode, decode_record):
                with suppress(MalformedMessage):
                    read(text)
            from_plain(text.decode("utf-8", "replace"))
            verdict = judge(text, NOW_US)
            assert (verdict.reason is None) == (verdict.record is not None)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"seed {SEED}, {folder} {number}: {error!r}") from error


def test_no_bytes_make_a_reader_of_frames_raise_what_it_does_not_promise() -> None:
    for number, piece in enumerate(Fuzzer(SEED).frames(0, MESSAGES // 5)):
        reader = FrameReader()
        try:
            for start in range(0, len(piece), 100):
                for _, payload in reader.feed(piece[start : start + 100]):
                    decode_properties(payload, 12, len(payload))
        except BadFrame:
            continue
        except Exception as error:
            raise AssertionError(f"seed {SEED}, frames {number}: {error!r}") from error


@given(st.binary(max_size=400), st.binary(max_size=255), st.binary(max_size=50))
def test_arbitrary_properties(properties: bytes, key: bytes, body: bytes) -> None:
    message = Hostile(0, key, properties, body)
    Subscriber().take(message)
    decode_everywhere(message)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=30,
)


@given(json_values)
def test_arbitrary_decisions(value: object) -> None:
    from_plain(value)
