"""Content properties are read from whatever bytes a client has chosen: nothing raises, and nothing good is lost."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import example, given, strategies as st
from pamqp import commands
from pamqp.common import FieldTable

from tidegate_protocol.amqp.content import HEADERS_MAX, UnreadableHeaders, decode_headers, decode_properties

NEXT_FRAME = b"\xce\x01\x00\x01\x00\x00\x00\x0c" + bytes(13)
"""What follows content properties in a socket's buffer."""
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
FLAGS = st.integers(0, 0xFFFF).map(lambda flags: flags.to_bytes(2, "big"))


def sized(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def header(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


def nested(levels: int, kinds: bytes) -> bytes:
    """A value with `levels` levels of tables (F) and arrays (A), in turn."""
    value = b"V"
    for level in range(levels):
        kind = kinds[level % len(kinds) :][:1]
        value = kind + sized(header(b"a", value) if kind == b"F" else value)
    return value


def message(table: bytes, message_id: bytes = b"p~1:t:7") -> bytes:
    """The content properties of a message with these headers and this id."""
    return b"\x20\x80" + sized(table) + header(message_id, b"")


def read(properties: bytes) -> dict[str, object]:
    """As a client reads them, with another frame behind them."""
    return decode_properties(b"before" + properties + NEXT_FRAME, 6, 6 + len(properties))


@given(FLAGS, st.binary(max_size=400))
@example(b"\x20\x00", b"\xff\xff\xff\xff")
@example(b"\xff\xff", b"")
def test_any_bytes_can_be_read(flags: bytes, rest: bytes) -> None:
    found = read(flags + rest)
    texts = {name: value for name, value in found.items() if name not in ("headers", "delivery_mode", "priority")}
    assert all(isinstance(value, str) for value in texts.values())
    assert isinstance(found.get("headers", {}), dict)


@given(st.binary(max_size=300))
def test_any_header_table_leaves_the_id_readable(table: bytes) -> None:
    found = read(message(table))
    assert found["message_id"] == "p~1:t:7"
    assert isinstance(found["headers"], dict)
    assert all(value is None or type(value) in (str, int, float, bool) for value in found["headers"].values())


@given(st.data())
def test_a_cut_message_is_never_taken_for_a_whole_one(data: st.DataObject) -> None:
    whole = message(header(b"n", b"l" + (5).to_bytes(8, "big")) + header(b"s", b"S" + sized(b"text")))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert isinstance(read(cut)["headers"], UnreadableHeaders)
    assert read(whole) == {"headers": {"n": 5, "s": "text"}, "message_id": "p~1:t:7"}


@pytest.mark.parametrize("kinds", [b"F", b"A", b"FA", b"AAF"])
@pytest.mark.parametrize("levels", [1, 600, 10_000])
def test_what_is_nested_is_passed_over_and_the_rest_is_read(kinds: bytes, levels: int) -> None:
    table = (
        header(b"before", b"t\x01") + header(b"deep", nested(levels, kinds)) + header(b"after", b"I\x00\x00\x00\x07")
    )
    found = read(message(table))
    assert found == {"headers": {"before": True, "deep": None, "after": 7}, "message_id": "p~1:t:7"}
    assert not isinstance(found["headers"], UnreadableHeaders)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"?",
        b"S\xff\xff\xff\xff",
        b"S" + sized(b"text")[:-1],
        b"F\x00\x00\x00\x05\x01a",
        b"A\x7f\xff\xff\xff",
        b"l\x00",
        b"T\x00",
        b"D\xff",
    ],
)
def test_headers_that_can_not_be_read_are_left_out_with_a_reason(value: bytes) -> None:
    found = read(message(header(b"good", b"t\x01") + header(b"bad", value)))
    headers = found["headers"]
    assert isinstance(headers, UnreadableHeaders)
    assert headers == {}
    assert headers.reason
    assert found["message_id"] == "p~1:t:7"


def test_odd_values_do_no_harm_to_their_neighbours() -> None:
    odd = [
        b"T" + b"\xff" * 8,
        b"D\xff\x7f\xff\xff\xff",
        b"d" + b"\x7f\xf8" + bytes(6),
        b"x" + sized(bytes(range(256))),
        b"V",
    ]
    table = b"".join(header(b"odd", value) for value in odd) + header(b"\xff", b"S" + sized(b"\xff\xfe")) * 2
    headers = read(message(table + header(b"n", b"b\xff")))["headers"]
    assert headers == {"odd": None, "\ufffd": "\ufffd\ufffd", "n": -1}


def test_the_number_of_headers_is_bounded() -> None:
    for count in (HEADERS_MAX, HEADERS_MAX + 1, 60_000):
        table = header(b"", b"V") * count
        assert isinstance(decode_headers(table, 0, len(table)), UnreadableHeaders) == (count > HEADERS_MAX)


@given(
    st.dictionaries(
        st.text("abcdef", min_size=1, max_size=5),
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.text(max_size=10)
        | st.just(Decimal("1.5"))
        | st.just(LONG_AGO)
        | st.lists(st.integers(0, 9), max_size=3)
        | st.dictionaries(st.just("in"), st.integers(0, 9)),
        max_size=8,
    )
)
def test_what_pamqp_writes_is_read(table: FieldTable) -> None:
    properties = commands.Basic.Properties(headers=table, message_type="kind", timestamp=LONG_AGO, user_id="me")
    found = read(properties.marshal())
    scalars = (str, int, bool)
    assert found["headers"] == {name: value if type(value) in scalars else None for name, value in table.items()}
    assert (found["type"], found["user_id"]) == ("kind", "me")
