"""The bytes of a publication: what we encode, pamqp and our own decoder read the same."""

from __future__ import annotations

import pamqp.frame
from hypothesis import given
from hypothesis import strategies as st
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from tidegate._wire import (
    decode_properties,
    encode_attributes,
    encode_properties,
    encode_publish,
    frames,
    split_headers,
)
from tidegate_protocol.form import Attributes

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
    ours = decode_properties(encoded, 0)
    theirs = ContentHeader()
    theirs.unmarshal(b"\x00\x3c\x00\x00" + bytes(8) + encoded)
    for headers in (ours["headers"], theirs.properties.headers):
        published_us, found = split_headers(headers)
        assert published_us == 1_700_000_000_123_456
        assert found == attributes
        assert {name: type(value) for name, value in found.items()} == {
            name: type(value) for name, value in attributes.items()
        }
    assert ours["message_id"] == theirs.properties.message_id == "p~1:t:7"
    assert ours["delivery_mode"] == (2 if persistent else 1)


@given(st.binary(max_size=300))
def test_frames_hold_the_whole_body_in_pieces_that_fit(body: bytes) -> None:
    frame_max = 64
    data = frames(3, encode_publish("x", "a.b"), encode_properties("i", 1, b"", True), body, frame_max)
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
    published_us, attributes = split_headers({"tidegate-published-us": "soon", "x-death": [1], "a": None, "b": 2})
    assert published_us is None
    assert attributes == {"b": 2}
