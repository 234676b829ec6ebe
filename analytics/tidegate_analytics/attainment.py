"""Deadline attainment: which share of messages came in time, per subscription, topic pattern and cluster, by window.

It is worked out from what subscribers report (records `latency`), which they count themselves, message by message. Each
digest belongs to the window that its end falls into; it is never split, so a window should be many reports long.
Quantiles come from the digests' buckets, added up: right to within 2 %, however many are merged, and by the protocol's
own rule.

Runs as a batch or as a streaming query.

Invariants: a digest counts once, even if its report is taken twice around a head's restart. A streaming query writes a
window when the watermark has passed its end, and never changes it afterwards; a later digest is dropped and counted by
Spark (`numRowsDroppedByWatermark` of its progress). In a batch nothing is late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import ArrayType, DoubleType

from tidegate_protocol.latency import quantile_us

from .windows import check_window, in_windows, told_windows

KIND: Final = "latency"
WINDOW_S: Final = 300
LATENESS_S: Final = 600
QUANTILES: Final = (0.5, 0.9, 0.99)
_IDENTITY: Final = ["broker", "subscriber", "run", "number", "pattern"]
"""A subscriber counts its reports per head."""
_SUMMED: Final = ("received", "late", "duplicates", "reordered", "latency_us_sum")
_KEYS: Final = ("cluster", "grain", "pattern", "subscriber")
_NO_BUCKET: Final = -1


def attainment(
    digests: DataFrame,
    window_s: int = WINDOW_S,
    lateness_s: int = LATENESS_S,
    quantiles: Sequence[float] = QUANTILES,
) -> DataFrame:
    """Rows per window and grain: `subscription`, `pattern` (of all its subscribers), `cluster` (of all patterns)."""
    check_window(window_s, lateness_s)
    once = _once(digests.withWatermark("time", f"{lateness_s} seconds"))
    # Counters and buckets are added up in one go: each digest becomes a row with its counters, and one per bucket. Sums
    # too large for a number come out as unknown, instead of ending the query.
    entries = once.withColumn("grains", _grains()).select(
        "*", F.explode("grains").alias("of")
    ).select(
        "time", "cluster", "of.*", "deadline_us", "missing", *_SUMMED, F.explode(_entries()).alias("entry")
    )  # fmt: skip
    counters = F.col("entry.bucket") == _NO_BUCKET
    by_bucket = in_windows(entries, "time", window_s, *_KEYS, F.col("entry.bucket").alias("bucket")).agg(
        F.try_sum("entry.count").alias("count"),
        F.sum(counters.cast("long")).alias("digests"),
        F.min("deadline_us").alias("deadline_us_min"),
        F.max("missing").alias("missing_max"),
        *[F.try_sum(F.when(counters, F.col(name)).otherwise(0)).alias(name) for name in _SUMMED],
    )
    bucket = F.when(F.col("bucket") != _NO_BUCKET, F.struct("bucket", "count"))
    told = in_windows(by_bucket, "window", window_s, *_KEYS).agg(
        F.sum("digests").alias("digests"),
        F.min("deadline_us_min").alias("deadline_us_min"),
        F.max("missing_max").alias("missing_max"),
        *[F.try_sum(name).alias(name) for name in _SUMMED],
        F.try_sum(F.when(F.col("bucket") != _NO_BUCKET, F.col("count")).otherwise(0)).alias("timed"),
        F.collect_list(bucket).alias("histogram"),
    )
    return _table(told, quantiles)


def _once(digests: DataFrame) -> DataFrame:
    return (
        digests.dropDuplicatesWithinWatermark(_IDENTITY) if digests.isStreaming else digests.dropDuplicates(_IDENTITY)
    )


def _grains() -> Column:
    """A digest counts for its subscription, for its pattern and for its cluster."""

    def grain(name: str, pattern: Column, subscriber: Column) -> Column:
        return F.struct(F.lit(name).alias("grain"), pattern.alias("pattern"), subscriber.alias("subscriber"))

    nothing = F.lit(None).cast("string")
    return F.array(
        grain("subscription", F.col("pattern"), F.col("subscriber")),
        grain("pattern", F.col("pattern"), nothing),
        grain("cluster", nothing, nothing),
    )


def _entries() -> Column:
    def entry(bucket: Column, count: Column) -> Column:
        return F.struct(bucket.cast("long").alias("bucket"), count.cast("long").alias("count"))

    buckets = F.zip_with("buckets", "counts", entry)
    return F.concat(F.array(entry(F.lit(_NO_BUCKET), F.lit(0))), buckets)


def _table(told: DataFrame, quantiles: Sequence[float]) -> DataFrame:
    wanted = tuple(quantiles)

    def found(buckets: list[int], counts: list[int]) -> list[float | None]:
        merged = {bucket: count or 0 for bucket, count in zip(buckets, counts, strict=True)}
        return [quantile_us(merged, share) for share in wanted]

    find = F.udf(found, ArrayType(DoubleType()), useArrow=True)
    rows = told.withColumn("quantiles_us", find("histogram.bucket", "histogram.count"))
    return rows.select(
        *told_windows(),
        *_KEYS,
        "deadline_us_min",
        "digests",
        "received",
        "timed",
        "late",
        F.when(F.col("received") > 0, 1 - F.col("late") / F.col("received")).alias("attainment"),
        "duplicates",
        "reordered",
        "missing_max",
        F.when(F.col("timed") > 0, F.col("latency_us_sum") / F.col("timed")).alias("latency_us_mean"),
        *[F.col("quantiles_us")[at].alias(quantile_name(share)) for at, share in enumerate(wanted)],
    )


def quantile_name(share: float) -> str:
    """The column of a quantile: `latency_us_p50`, `latency_us_p99_9`."""
    return "latency_us_p" + f"{share * 100:g}".replace(".", "_")
