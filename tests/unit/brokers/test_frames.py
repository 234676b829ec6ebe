"""Content headers cut down to the three properties that control messages use."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pamqp import commands, frame
from pamqp.header import ContentHeader

from tidegate_brokers.frames import plain_header, plain_properties


def test_the_three_properties_survive_whatever_surrounds_them() -> None:
    properties = commands.Basic.Properties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={"a": "b", "n": 7},
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
    _, channel, header = frame.unmarshal(plain_header(5, whole[7:]))
    assert channel == 5
    assert isinstance(header, ContentHeader)
    assert header.body_size == 9
    assert header.properties.correlation_id == "request-1"
    assert header.properties.reply_to == "amq.rabbitmq.reply-to.x"
    assert header.properties.user_id == "siren"
    assert header.properties.headers is None
    assert header.properties.message_id is None


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        (b"\x00\x00", b"\x00\x00"),
        (b"\x00\x40" + b"\xff" * 8, b"\x00\x00"),  # a timestamp that is none
        (b"\x04\x00\x02\xff\xfe", b"\x00\x00"),  # a correlation id that is not text
        (b"\x06\x00\x02\xff\xfe\x01r", b"\x02\x00\x01r"),
        (b"\x00\x50" + b"\xff" * 8 + b"\x01u", b"\x00\x10\x01u"),
    ],
)
def test_what_can_not_be_read_is_dropped(properties: bytes, kept: bytes) -> None:
    assert plain_properties(properties) == kept
