"""Telemetry made up, with known answers: records of the protocol's own models, and raw messages of them for Spark.

Times are seconds after `START_US`, a whole hour some hours ago, so that windows of up to an hour begin where one
expects them and nothing is in the future.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType, TimestampType

from tidegate_analytics.judging import judged, records_of
from tidegate_protocol import telemetry as t
from tidegate_protocol.latency import bucket_of
from tidegate_protocol.operations import Role
from tidegate_protocol.parts import LoadState

HOUR_US: Final = 3_600 * 1_000_000
START_US: Final = (time.time_ns() // 1_000 // HOUR_US - 30) * HOUR_US
CLUSTER: Final = "north"
HEAD: Final = "head-1"
RAW: Final = StructType(
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
"""The columns of the source."""

Record = t.TelemetryRecord
Floats = NDArray[np.float64]


def header(at_s: float, broker: str = HEAD, cluster: str = CLUSTER) -> dict[str, Any]:
    return {"time_us": START_US + round(at_s * 1e6), "cluster": cluster, "broker": broker}


def window_start(at_s: float) -> float:
    """A moment as seconds since 1970."""
    return (START_US + at_s * 1e6) / 1e6


# Records


def digest(
    at_s: float,
    latencies_us: Sequence[int],
    *,
    subscriber: str = "siren",
    pattern: str = "quake.#",
    deadline_us: int = 1_500_000,
    number: int = 1,
    cluster: str = CLUSTER,
    broker: str = HEAD,
) -> t.LatencyDigest:
    """What a subscriber that got messages with these latencies would report."""
    buckets: dict[int, int] = {}
    for latency in latencies_us:
        buckets[bucket_of(latency)] = buckets.get(bucket_of(latency), 0) + 1
    return t.LatencyDigest(
        **header(at_s, broker, cluster), subscriber=subscriber, run=1, number=number, pattern=pattern, edge="edge-1",
        deadline_us=deadline_us, elapsed_us=10_000_000, received=len(latencies_us),
        late=sum(latency > deadline_us for latency in latencies_us), latency_us_sum=sum(latencies_us),
        buckets=tuple(sorted(buckets)), counts=tuple(buckets[bucket] for bucket in sorted(buckets)),
    )  # fmt: skip


def load(at_s: float, broker: str, uplink: float | None = None, **fields: Any) -> t.LoadSample:
    values: dict[str, Any] = {
        "role": Role.EDGE, "state": LoadState.LOW, "bytes_in_per_s": 0.0, "bytes_offered_per_s": 0.0,
        "messages_in_per_s": 0.0,
    }  # fmt: skip
    return t.LoadSample(**{**header(at_s, broker), **values, **fields}, uplink=uplink)


def move(at_s: float, client: str, source: str, target: str, *, moved: bool = True) -> t.Migration:
    return t.Migration(
        **header(at_s), session=f"{source}~1~1", migration=f"{HEAD}~1~m{at_s}", clients=t.Moved.SUBSCRIBERS,
        client=client, pattern="quake.#", source=source, target=target, moved=moved, duration_us=500_000,
    )  # fmt: skip


def topic_rate(topic: str, gaps_s: Floats, message_bytes: int = 100) -> t.TopicRate:
    """What a publisher reports that waited so long between its messages."""
    return t.TopicRate(
        topic=topic, messages=len(gaps_s), bytes=len(gaps_s) * message_bytes, gaps=len(gaps_s),
        gap_s_sum=float(gaps_s.sum()), gap_s2_sum=float((gaps_s**2).sum()),
    )  # fmt: skip


def report(
    at_s: float, topics: Iterable[t.TopicRate], *, publisher: str = "buoy~1", elapsed_s: float = 10.0
) -> t.PublisherRates:
    """Of the `elapsed_s` up to `at_s`."""
    elapsed_us = round(elapsed_s * 1e6)
    return t.PublisherRates(
        **header(at_s), publisher=publisher, elapsed_us=elapsed_us, active_us=elapsed_us, topics=tuple(topics)
    )


def reports_of_counts(counts: Floats, names: Sequence[str], window_s: int = 60) -> Iterator[t.PublisherRates]:
    """Reports of one publisher per 256 topics, one per window: `counts` has a row per topic, a column per window."""
    for first in range(0, len(names), t.TOPICS_MAX):
        some = names[first : first + t.TOPICS_MAX]
        for window in range(counts.shape[1]):
            column = counts[first : first + t.TOPICS_MAX, window]
            topics = [
                t.TopicRate(topic=name, messages=int(count), bytes=int(count) * 100)
                for name, count in zip(some, column, strict=True)
            ]
            yield report((window + 1) * window_s, topics, publisher=f"p{first}~1", elapsed_s=window_s)


# Raw messages


def raw_rows(bodies: Iterable[bytes], first_offset: int = 0) -> list[tuple[Any, ...]]:
    """As the source would tell them."""
    return [
        ("head", "tidegate.telemetry", first_offset + at, None, "kind", {}, bytearray(body))
        for at, body in enumerate(bodies)
    ]


def raw(spark: SparkSession, bodies: Iterable[bytes], first_offset: int = 0) -> DataFrame:
    return spark.createDataFrame(raw_rows(bodies, first_offset), RAW)


def records(spark: SparkSession, kind: str, made: Iterable[Record]) -> DataFrame:
    """Records as a job gets them: written as JSON, judged, typed."""
    return records_of(judged(raw(spark, map(t.encode, made))), kind)


class RawStream:
    """Raw messages in files, one batch a file, for a streaming query that can be started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.offset = 0
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, spark: SparkSession, bodies: Iterable[bytes]) -> None:
        """A batch more."""
        rows = raw_rows(bodies, self.offset)
        self.offset += len(rows)
        spark.createDataFrame(rows, RAW).coalesce(1).write.mode("append").parquet(str(self.directory))

    def read(self, spark: SparkSession) -> DataFrame:
        """Files are taken oldest first."""
        return spark.readStream.schema(RAW).option("maxFilesPerTrigger", 1).parquet(str(self.directory))
