"""The lean client's frames: what it reads is what RabbitMQ wrote, what it writes is what pamqp would have written."""

from __future__ import annotations

import random

import pytest
from pamqp import body, commands, frame, header

from tidegate_experiments.lean.codec import (
    CHANNEL,
    CONSUMER_TAG,
    Address,
    acknowledge,
    delivery_overhead,
    opening,
    publication,
    read_method,
    read_properties,
)
from tidegate_protocol.amqp.content import pack_content_start, read_body_size
from tidegate_protocol.amqp.frames import FRAME_BYTES_MAX, PROTOCOL_HEADER, BadFrame, FrameReader
from tidegate_protocol.amqp.methods import BASIC_CLASS, encode_publish, read_deliver
from tidegate_protocol.amqp.publications import (
    encode_account,
    encode_properties,
    encode_publication,
    read_publication,
)
from tidegate_protocol.names import DELIVER_EXCHANGE

NOW_US = 1_753_000_000_123_456


def delivery(tag: int, topic: str, message_id: str, text: bytes) -> bytes:
    """As RabbitMQ sends it: the properties pass through it untouched."""
    deliver = commands.Basic.Deliver(
        consumer_tag=CONSUMER_TAG, delivery_tag=tag, redelivered=False, exchange=DELIVER_EXCHANGE, routing_key=topic
    )
    published = encode_publication(
        CHANNEL, encode_publish("", topic), encode_properties(message_id, NOW_US, b"", False), text, 4096
    )
    # Everything behind the Basic.Publish.
    return frame.marshal(deliver, CHANNEL) + published[8 + len(encode_publish("", topic)) :]


def test_a_stream_is_cut_into_the_same_frames_however_it_comes() -> None:
    stream = b"".join(delivery(tag, "t8", f"t8-p1~1:t8:{tag}", b"x" * tag) for tag in range(1, 40))
    whole = list(FrameReader().feed(stream))
    generator = random.Random(5)
    for _ in range(20):
        reader, found, at = FrameReader(), [], 0
        while at < len(stream):
            size = generator.randint(1, 200)
            found += reader.feed(stream[at : at + size])
            at += size
        assert found == whole
    assert [kind for kind, _ in whole] == [1, 2, 3] * 39


def test_a_delivery_is_read() -> None:
    (_, deliver), (_, content), (_, text) = FrameReader().feed(delivery(77, "t12", "t12-p3~1:t12:9041", b"hello"))
    assert read_deliver(deliver) == (77, False, "t12")
    assert read_body_size(content) == 5
    assert read_publication(content) == ("t12-p3~1:t12:9041", NOW_US, None)
    assert text == b"hello"


def test_the_account_of_a_publication_is_read() -> None:
    properties = encode_properties("p~1:t:7", NOW_US, b"", False, encode_account("buoy"))
    content = pack_content_start(BASIC_CLASS, 0) + properties
    assert read_publication(content) == ("p~1:t:7", NOW_US, "buoy")
    for cut in range(len(content)):
        read_publication(content[:cut])


@pytest.mark.parametrize("message_id", ["t1-p1~1:t1:0", "t15-p4~1:t15:123456"])
def test_the_overhead_of_a_delivery_is_what_it_has_beside_its_body(message_id: str) -> None:
    topic = message_id.split(":")[1]
    assert len(delivery(1, topic, message_id, b"x" * 50)) - 50 == delivery_overhead(DELIVER_EXCHANGE, topic, message_id)


def test_messages_of_foreign_clients_are_read_too() -> None:
    for properties, expected in (
        (commands.Basic.Properties(), (None, None, None)),
        (commands.Basic.Properties(message_id="x", priority=3), ("x", None, None)),
        (commands.Basic.Properties(message_id="x", user_id="me"), ("x", None, "me")),
        (commands.Basic.Properties(headers={"a": 1, "tidegate-published-us": 5_000_000}), (None, 5_000_000, None)),
    ):
        content = frame.marshal(header.ContentHeader(body_size=0, properties=properties), CHANNEL)
        assert read_publication(content[7:-1]) == expected


def test_what_is_no_amqp_is_refused() -> None:
    with pytest.raises(BadFrame):
        list(FrameReader().feed(b"HTTP/1.1 400 Bad Request\r\n"))
    with pytest.raises(BadFrame):
        list(FrameReader().feed(acknowledge(1)[:-1] + b"\x00" + acknowledge(2)))


def test_acknowledgements_are_those_of_pamqp() -> None:
    assert acknowledge(9) == frame.marshal(commands.Basic.Ack(delivery_tag=9, multiple=True), CHANNEL)


def test_control_messages_are_written_and_read() -> None:
    properties = commands.Basic.Properties(correlation_id="17", reply_to="amq.rabbitmq.reply-to", expiration="10000")
    (_, publish), (_, content), (_, text) = FrameReader().feed(
        publication("tidegate.control", "hom", properties, b"{}")
    )
    method = read_method(publish)
    assert isinstance(method, commands.Basic.Publish)
    assert (method.exchange, method.routing_key) == ("tidegate.control", "hom")
    assert read_properties(content) == ("amq.rabbitmq.reply-to", "17")
    assert text == b"{}"
    assert frame.unmarshal(frame.marshal(body.ContentBody(text), CHANNEL))[2].value == b"{}"


def test_the_whole_opening_is_one_write() -> None:
    address = Address.parse("amqp://me:se%2Fcret@localhost:5673/b1")
    written = opening(address, "t8-s1", commands.Basic.Consume(queue="out.t8-s1.0", consumer_tag=CONSUMER_TAG))
    assert written.startswith(PROTOCOL_HEADER)
    methods = [read_method(payload) for _, payload in FrameReader().feed(written[len(PROTOCOL_HEADER) :])]
    assert [type(one).__name__ for one in methods] == ["StartOk", "TuneOk", "Open", "Open", "Consume"]
    start, tune, vhost, _, consume = methods
    assert start.response == "\0me\0se/cret"  # type: ignore[attr-defined]
    assert tune.frame_max == FRAME_BYTES_MAX  # type: ignore[attr-defined]
    assert vhost.virtual_host == "b1"  # type: ignore[attr-defined]
    assert consume.queue == "out.t8-s1.0"  # type: ignore[attr-defined]


def test_an_edge_is_reached_with_the_credentials_of_the_head() -> None:
    head = Address.parse("amqp://me:secret@127.0.0.1:5673/bh")
    assert Address.parse("amqp://127.0.0.1:6000/b1", head) == Address("127.0.0.1", 6000, "me", "secret", "b1")
