"""From raw messages of a stream to judged ones: records of a known kind, or a reason why not.

A body is decoded by the protocol itself, so the lake takes exactly what every other reader takes. Beyond that a record
must fit the lake: whole numbers must be exactly representable, and its time must be possible.

Invariant: whatever the bytes, there is one row for each message, with a kind or with a reason from `REASONS`, and never
an exception.

A time in the future comes from a clock that has jumped. Such a record must not get into the lake: a streaming job would
take its time for the present and count all later records as late. "Now" is the moment the batch was planned, which
Spark keeps in the checkpoint: a batch that runs again is judged alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.telemetry import RECORD_BYTES_MAX, decode

from .schemas import QUARANTINE, WHOLE_MAX, record_schema

FUTURE_MAX_S: Final = 300
"""How far a clock may be ahead: no NTP lets it be, and a window's watermark can wait as long."""
AGE_MAX_S: Final = 10 * 365 * 86_400
"""The longest that a stream may be told to keep (`telemetry_age_s`). Older: a clock that was never set."""
REASONS: Final = (
    "too-large", "not-json", "unknown-kind", "unknown-version", "invalid-field", "impossible-value", "future-time",
    "past-time",
)  # fmt: skip

_LONG_NUMBER: Final = re.compile(r"[0-9]{16}")
_US: Final = 1_000_000

JUDGED: Final = StructType(
    [
        StructField("stream_broker", StringType()),
        StructField("stream", StringType()),
        StructField("stream_offset", LongType()),
        StructField("routing_key", StringType()),
        StructField("read_at", TimestampType()),
        StructField("kind", StringType()),
        StructField("time_us", LongType()),
        StructField("record", StringType()),
        StructField("reason", StringType()),
        StructField("detail", StringType()),
        StructField("body_bytes", LongType()),
        StructField("body", BinaryType()),
    ]
)
"""`record` is the record as we write it ourselves; where there is a reason instead, `body` is what came."""
_KEPT: Final = ("stream_broker", "stream", "stream_offset", "routing_key", "read_at")
_FOUND: Final = ("kind", "time_us", "record", "reason", "detail", "body_bytes", "body")
_ARROW: Final = {
    "kind": pa.string(), "time_us": pa.int64(), "record": pa.string(), "reason": pa.string(), "detail": pa.string(),
    "body_bytes": pa.int64(), "body": pa.binary(),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one body."""

    kind: str | None = None
    time_us: int | None = None
    record: str | None = None
    reason: str | None = None
    detail: str | None = None


def judge(body: bytes, now_us: int, future_max_s: float = FUTURE_MAX_S) -> Verdict:
    """A record of a known kind that fits the lake, or why not."""
    try:
        record = decode(body)
    except MalformedMessage as error:
        return Verdict(reason=error.reason, detail=error.detail)
    ahead_s = (record.time_us - now_us) / _US
    if ahead_s > future_max_s:
        return _refused("future-time", f"time_us: {ahead_s:.0f} s ahead; set the clock of {record.broker}")
    if -ahead_s > AGE_MAX_S:
        return _refused("past-time", f"time_us: {-ahead_s / 86_400:.0f} days ago; set the clock of {record.broker}")
    text = record.model_dump_json(exclude_none=True)
    # A look at the digits first: walking through every record would cost more than decoding it. Each has a time, which
    # is 16 digits of its own.
    if len(_LONG_NUMBER.findall(text)) > 1 and not _fits(json.loads(text)):
        return _refused("impossible-value", "a whole number beyond 2^53")
    return Verdict(kind=record.kind, time_us=record.time_us, record=text)


def _refused(reason: str, detail: str) -> Verdict:
    return Verdict(reason=reason, detail=detail)


def _fits(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_fits(each) for each in value.values())
    if isinstance(value, list):
        return all(_fits(each) for each in value)
    return not isinstance(value, int) or abs(value) <= WHOLE_MAX


def judged(raw: DataFrame, future_max_s: float = FUTURE_MAX_S) -> DataFrame:
    """Every message of the source with its verdict: `JUDGED`. Batch or streaming."""
    selected = raw.select(
        F.col("broker").alias("stream_broker"),
        "stream",
        F.col("offset").alias("stream_offset"),
        "routing_key",
        F.current_timestamp().alias("read_at"),
        "body",
    )
    return selected.mapInArrow(_judging(future_max_s), JUDGED)


def _judging(future_max_s: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def judge_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found: dict[str, list[Any]] = {name: [] for name in _FOUND}
            times = batch.column("read_at").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
            for body, now_us in zip(batch.column("body").to_pylist(), times, strict=True):
                _add(found, body or b"", judge(body or b"", now_us, future_max_s))
            columns = [batch.column(name) for name in _KEPT]
            columns += [pa.array(found[name], _ARROW[name]) for name in _FOUND]
            yield pa.RecordBatch.from_arrays(columns, names=[*_KEPT, *_FOUND])

    return judge_all


def _add(found: dict[str, list[Any]], body: bytes, verdict: Verdict) -> None:
    for name in ("kind", "time_us", "record", "reason", "detail"):
        found[name].append(getattr(verdict, name))
    found["body_bytes"].append(len(body))
    found["body"].append(None if verdict.reason is None else body[:RECORD_BYTES_MAX])


def records_of(judged_messages: DataFrame, kind: str) -> DataFrame:
    """The records of one kind, a column for each field. Batch or streaming."""
    # What is parsed was written by our own encoder a moment ago: if it can't be read, that is our bug, and not to be
    # passed over in silence.
    parsed = F.from_json("record", record_schema(kind), {"mode": "FAILFAST"})
    return judged_messages.where((F.col("kind") == kind) & F.col("reason").isNull()).select(
        parsed.alias("parsed"), "time_us", "stream_broker", "stream", "stream_offset", "read_at"
    ).select(
        "parsed.*", F.timestamp_micros("time_us").alias("time"), "stream_broker", "stream", "stream_offset", "read_at"
    )  # fmt: skip


def refused_of(judged_messages: DataFrame) -> DataFrame:
    """What is no record, as the quarantine keeps it. Batch or streaming."""
    return judged_messages.where(F.col("reason").isNotNull()).select(QUARANTINE.names)
