"""The columns of the source, and how messages become Arrow batches.

Columns are gathered as plain lists, one append per message, and become Arrow all at once: many times faster than rows.
A batch is bounded in rows and in bytes, and it is all that a partition ever holds.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType, TimestampType

from .offsets import StreamKey
from .tolerant import OFFSET_HEADER

ROWS_MAX: Final = 5_000
BYTES_MAX: Final = 8 * 2**20
TIMESTAMP_MAX_S: Final = 253_402_300_799
"""The end of the year 9999. AMQP counts seconds; a larger number is some other unit, and is not guessed at."""

SCHEMA: Final = StructType(
    [
        StructField("broker", StringType()),
        StructField("stream", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("routing_key", StringType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("body", BinaryType()),
    ]
)
_HEADERS: Final = pa.map_(pa.string(), pa.string())
ARROW_SCHEMA: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("stream", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("routing_key", pa.string()),
        ("headers", _HEADERS),
        ("body", pa.binary()),
    ]
)


class Rows:
    """Messages of one stream on their way into a batch."""

    def __init__(self, key: StreamKey) -> None:
        self._key = key
        self.offsets: list[int] = []
        self.timestamps: list[int | None] = []
        self.routing_keys: list[str | bytes] = []
        self.headers: list[Mapping[str, Any]] = []
        self.bodies: list[bytes] = []

    def __len__(self) -> int:
        return len(self.offsets)

    def batch(self) -> pa.RecordBatch:
        """All of it as Arrow."""
        count = len(self.offsets)
        names: list[str] = []
        values: list[str | None] = []
        ends = [0]
        for headers in self.headers:
            for name, value in headers.items():
                if name != OFFSET_HEADER:
                    names.append(_text(name))
                    values.append(header_text(value))
            ends.append(len(names))
        maps = pa.MapArray.from_arrays(
            pa.array(ends, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
        )
        columns = [
            pa.array([self._key.broker] * count, pa.string()),
            pa.array([self._key.stream] * count, pa.string()),
            pa.array(self.offsets, pa.int64()),
            pa.array([_microseconds(time) for time in self.timestamps], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array([_text(key) for key in self.routing_keys], pa.string()),
            maps,
            pa.array(self.bodies, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _microseconds(time_s: int | None) -> int | None:
    return None if time_s is None or time_s > TIMESTAMP_MAX_S else int(time_s) * 1_000_000


def header_text(value: Any) -> str | None:
    """An AMQP header's value as text: numbers and truth values as JSON has them, tables and lists as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return _text(bytes(value))
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict | list):
        try:
            return json.dumps(value, default=header_text, ensure_ascii=False)
        except RecursionError:
            return None  # nested deeper than anybody reads; the message counts
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, int) else str(value)


def _text(value: str | bytes) -> str:
    """Text as it is; bytes that are text as text (the client leaves what is not UTF-8 alone), others in base64."""
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
