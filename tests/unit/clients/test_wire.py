"""The bytes of a publication: what we encode, pamqp and our own decoder read the same."""

from __future__ import annotations

import pamqp.frame
import pytest
from hypothesis import given, strategies as st
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.exceptions import UnmarshalingException
from pamqp.header import ContentHeader

from tidegate._io.aio_transport import seal, unseal
from tidegate_protocol.amqp.content import decode_properties
from tidegate_protocol.amqp.methods import encode_publish
from tidegate_protocol.amqp.publications import encode_attributes, encode_properties, encode_publication
from tidegate_protocol.amqp.rewriting import rewrite_frame
from tidegate_protocol.form import Attributes, attributes_of, published_us

VALUES = (
    st.text(max_size=20).filter(lambda text: "\x00" not in text)
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
)
NAMES = st.text("abcdefghij", min_size=1, max_size=8)


@given(st.dictionaries(NAMES, VALUES, max_size=6), st.booleans())
def test_attributes_arrive_exactly_by_both_decoders(attributes: Attributes, persistent: bool) -> None:
    encoded = encode_properties("p~1:t:7", 1_700_000_000_123_456, encode_attributes(attributes), persistent)
    ours = decode_properties(encoded, 0, len(encoded))
    theirs = ContentHeader()
    theirs.unmarshal(b"\x00\x3c\x00\x00" + bytes(8) + encoded)
    for headers in (ours["headers"], theirs.properties.headers):
        found = attributes_of(headers)
        assert published_us(headers) == 1_700_000_000_123_456
        assert found == attributes
        assert {name: type(value) for name, value in found.items()} == {
            name: type(value) for name, value in attributes.items()
        }
    assert ours["message_id"] == theirs.properties.message_id == "p~1:t:7"
    assert ours["delivery_mode"] == (2 if persistent else 1)


def test_a_publication_without_an_id_has_none() -> None:
    encoded = encode_properties("", 1_700_000_000_123_456, b"", True)
    ours = decode_properties(encoded, 0, len(encoded))
    assert "message_id" not in ours
    assert (ours["delivery_mode"], published_us(ours["headers"])) == (2, 1_700_000_000_123_456)
    theirs = ContentHeader()
    theirs.unmarshal(b"\x00\x3c\x00\x00" + bytes(8) + encoded)
    assert theirs.properties.message_id is None
    assert theirs.properties.timestamp is not None


@given(st.binary(max_size=300))
def test_frames_hold_the_whole_body_in_pieces_that_fit(body: bytes) -> None:
    frame_max = 64
    data = encode_publication(3, encode_publish("x", "a.b"), encode_properties("i", 1, b"", True), body, frame_max)
    found = []
    while data:
        size, channel, frame = pamqp.frame.unmarshal(data)
        assert channel == 3
        assert size <= frame_max or isinstance(frame, ContentHeader)
        found.append(frame)
        data = data[size:]
    method, header, *parts = found
    assert isinstance(method, Basic.Publish)
    assert (method.exchange, method.routing_key, method.mandatory) == ("x", "a.b", False)
    assert isinstance(header, ContentHeader)
    assert header.body_size == len(body)
    assert b"".join(part.value for part in parts if isinstance(part, ContentBody)) == body


def test_what_a_foreign_client_puts_into_headers_does_no_harm() -> None:
    assert attributes_of({"tidegate-published-us": 1, "x-death": [1], "CC": ["a"], "a": None, "b": 2}) == {"b": 2}
    for no_time in ("soon", 1.5, True, 0, -1, None, b"1"):
        assert published_us({"tidegate-published-us": no_time}) is None
    assert published_us(None) is None


def test_a_frame_that_pamqp_refuses_arrives_whole() -> None:
    table = b"\x01t" + b"T" + b"\xff" * 8 + b"\x01a" + b"l" + (7).to_bytes(8, "big") + b"\x01\xffS\0\0\0\x01\xff"
    flags = (0x2000 | 0x0080 | 0x0040).to_bytes(2, "big")
    properties = flags + len(table).to_bytes(4, "big") + table + b"\x02\xffx" + b"\xff" * 8
    payload = b"\x00\x3c\x00\x00" + (5).to_bytes(8, "big") + properties
    start = b"\x02\x00\x03" + len(payload).to_bytes(4, "big")
    with pytest.raises(UnmarshalingException):
        pamqp.frame.unmarshal(start + payload + b"\xce")
    _, channel, header = pamqp.frame.unmarshal(rewrite_frame(start, payload + b"\xce", seal))
    assert channel == 3
    assert isinstance(header, ContentHeader)
    assert header.body_size == 5
    found = unseal(header)
    assert found["message_id"] == "\ufffdx"
    assert attributes_of(found["headers"]) == {"a": 7, "\ufffd": "\ufffd"}


@given(st.binary(max_size=40))
def test_any_topic_can_be_read(topic: bytes) -> None:
    fields = b"\x03tag" + (258).to_bytes(8, "big") + b"\x01" + b"\x10tidegate.deliver" + bytes([len(topic)]) + topic
    payload = b"\x00\x3c\x00\x3c" + fields
    start = b"\x01\x00\x01" + len(payload).to_bytes(4, "big")
    _, _, deliver = pamqp.frame.unmarshal(rewrite_frame(start, payload + b"\xce", seal))
    assert isinstance(deliver, Basic.Deliver)
    assert (deliver.delivery_tag, deliver.redelivered, deliver.exchange) == (258, True, "tidegate.deliver")
    assert len(deliver.routing_key) <= len(topic)
    if topic.isascii():
        assert deliver.routing_key.encode() == topic
