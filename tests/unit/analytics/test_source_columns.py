"""What becomes of a message's properties in the Spark source, and of failures in a row."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from rabbitmq_stream_source.columns import ARROW_SCHEMA, SCHEMA, TIMESTAMP_MAX_S, Rows, header_text
from rabbitmq_stream_source.errors import ConnectionFailed
from rabbitmq_stream_source.offsets import StreamKey
from rabbitmq_stream_source.retries import PAUSE_MAX_S, Retries, with_retries


def rows(*messages: tuple[int, int | None, str | bytes, dict[str, object], bytes]) -> pa.RecordBatch:
    gathered = Rows(StreamKey("b", "s"))
    for offset, timestamp, routing_key, headers, body in messages:
        gathered.offsets.append(offset)
        gathered.timestamps.append(timestamp)
        gathered.routing_keys.append(routing_key)
        gathered.headers.append({"x-stream-offset": offset, **headers})
        gathered.bodies.append(body)
    return gathered.batch()


def test_the_schema_is_the_one_that_spark_expects() -> None:
    assert to_arrow_schema(SCHEMA, timezone="UTC").equals(ARROW_SCHEMA)
    assert rows().schema.equals(ARROW_SCHEMA)


def test_a_message_becomes_a_row() -> None:
    (row,) = rows((7, 1_714_564_800, "quake.alert", {"n": 1, "deep": True, "none": None}, b"\x00\xff")).to_pylist()
    assert row == {
        "broker": "b",
        "stream": "s",
        "offset": 7,
        "timestamp": datetime(2024, 5, 1, 12, tzinfo=UTC),
        "routing_key": "quake.alert",
        "headers": [("n", "1"), ("deep", "true"), ("none", None)],
        "body": b"\x00\xff",
    }


def test_what_foreign_publishers_write_does_no_harm() -> None:
    batch = rows((0, None, b"\xff", {}, b""), (1, TIMESTAMP_MAX_S, "", {}, b""), (2, 2**63, "", {}, b""))
    assert batch.column("timestamp").null_count == 2
    assert batch.column("timestamp")[1].as_py().year == 9999
    assert batch.column("routing_key").to_pylist() == ["/w==", "", ""]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ü", "ü"),
        (b"plain", "plain"),
        (b"\xff\x00", "/wA="),
        (False, "false"),
        (-3, "-3"),
        (2.5, "2.5"),
        (Decimal("1.10"), "1.10"),
        (datetime(2024, 5, 1, 12, tzinfo=UTC), "2024-05-01T12:00:00+00:00"),
        ({"a": [1, b"\xff"]}, '{"a": [1, "/w=="]}'),
        (None, None),
    ],
)
def test_headers_as_text(value: object, text: str | None) -> None:
    assert header_text(value) == text


def test_tries_are_bounded_and_pauses_grow_to_a_limit() -> None:
    pauses: list[float] = []
    retries = Retries(8, pauses.append)
    error = ConnectionFailed("amqp://h", "gone")
    for _ in range(8):
        retries.failed(error)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0, PAUSE_MAX_S]
    with pytest.raises(ConnectionFailed) as caught:
        retries.failed(error)
    assert "connectRetries=8" in "".join(caught.value.__notes__)


def test_progress_begins_the_count_anew() -> None:
    retries = Retries(1, lambda _: None)
    for _ in range(5):
        retries.failed(ConnectionFailed("amqp://h", "gone"))
        retries.progressed()


def test_an_error_that_lasts_is_not_tried_again() -> None:
    tries = []

    def work() -> None:
        tries.append(1)
        raise KeyError

    with pytest.raises(KeyError):
        with_retries(work, 5)
    assert len(tries) == 1
