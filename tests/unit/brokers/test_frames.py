"""Content headers cut down to what brokers use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import pytest
from hypothesis import given, strategies as st
from pamqp import commands, frame
from pamqp.common import FieldTable
from pamqp.header import ContentHeader

from tidegate_brokers.access.admission import detour
from tidegate_brokers.rabbit.frames import plain_properties
from tidegate_protocol.amqp.content import HEADERS_MAX
from tidegate_protocol.amqp.rewriting import Reader, RewritingReader, rewrite_frame


def test_what_brokers_use_survives_whatever_surrounds_them() -> None:
    properties = commands.Basic.Properties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={"a": "b", "n": 7, "x-stream-offset": 2**40, "nested": {"a": {"a": {}}}},
        delivery_mode=2,
        priority=1,
        correlation_id="request-1",
        reply_to="amq.rabbitmq.reply-to.x",
        expiration="10000",
        message_id="m",
        timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        message_type="t",
        user_id="siren",
        app_id="other",
    )
    whole = frame.marshal(ContentHeader(body_size=9, properties=properties), 5)
    _, channel, header = frame.unmarshal(rewrite_frame(whole[:7], whole[7:], plain_properties))
    assert channel == 5
    assert isinstance(header, ContentHeader)
    assert header.body_size == 9
    assert header.properties.correlation_id == "request-1"
    assert header.properties.reply_to == "amq.rabbitmq.reply-to.x"
    assert header.properties.user_id == "siren"
    assert header.properties.message_type == "t"
    assert header.properties.headers == {"x-stream-offset": 2**40}
    assert header.properties.message_id is None


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"a": 1}, None),
        ({"x-death": [{"queue": "q", "count": 1}]}, "dead-lettered"),
        ({"CC": ["operator"]}, "copied"),
        ({"BCC": "operator", "a": {}}, "copied"),
        ({f"h{number}": 1 for number in range(HEADERS_MAX + 1)}, "unreadable-headers"),
    ],
)
def test_a_detour_shows_whatever_the_headers_hold(headers: FieldTable, reason: str | None) -> None:
    whole = frame.marshal(ContentHeader(properties=commands.Basic.Properties(headers=headers)), 5)
    _, _, header = frame.unmarshal(rewrite_frame(whole[:7], whole[7:], plain_properties))
    assert isinstance(header, ContentHeader)
    assert detour(header.properties.headers) == reason


UNKNOWN = b"\x00\x00\x00\x0f\x0cx-unreadablet\x01"
"""What stands for headers that can't be read."""


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        (b"\x00\x00", b"\x00\x00"),
        (b"\x00\x40" + b"\xff" * 8, b"\x00\x00"),  # a timestamp that is none
        (b"\x04\x00\x02\xff\xfe", b"\x00\x00"),  # a correlation id that is not text
        (b"\x06\x00\x02\xff\xfe\x01r", b"\x02\x00\x01r"),
        (b"\x00\x50" + b"\xff" * 8 + b"\x01u", b"\x00\x10\x01u"),
        (
            b"\x24\x00" + b"\x00\x00\x00\x02\x00?" + b"\x01c",
            b"\x24\x00" + UNKNOWN + b"\x01c",
        ),  # a header of an unknown type
        (b"", b"\x20\x00" + UNKNOWN),
        (b"\x24\x00\xff\xff\xff\xff", b"\x20\x00" + UNKNOWN),
        (b"\x04\x00\x09cut", b"\x20\x00" + UNKNOWN),
    ],
)
def test_what_can_not_be_read_is_dropped(properties: bytes, kept: bytes) -> None:
    assert plain_properties(properties) == kept


class Bytes:
    """A stream reader with all its bytes at hand."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def readexactly(self, size: int) -> bytes:
        piece, self._data = self._data[:size], self._data[size:]
        return piece


@given(st.binary(max_size=60), st.binary(max_size=200))
async def test_no_delivery_is_refused_by_pamqp(key: bytes, properties: bytes) -> None:
    deliver = b"\x00\x3c\x00\x3c\x01c" + (7).to_bytes(8, "big") + b"\x00\x10tidegate.control" + bytes([len(key)]) + key
    content = b"\x00\x3c\x00\x00" + bytes(8) + properties
    stream = b"".join(
        kind + b"\x00\x05" + len(payload).to_bytes(4, "big") + payload + b"\xce"
        for kind, payload in ((b"\x01", deliver), (b"\x02", content))
    )
    reader = RewritingReader(cast(Reader, Bytes(stream)), plain_properties)
    for expected in (commands.Basic.Deliver, ContentHeader):
        start = await reader.readexactly(7)
        rest = await reader.readexactly(int.from_bytes(start[3:], "big") + 1)
        _, channel, found = frame.unmarshal(start + rest)
        assert channel == 5
        assert isinstance(found, expected)
