"""How long it takes from a record's time to a window that counts it, while a query follows a stream at a steady rate.

A publisher in a process of its own writes records with the time of writing in them. The query judges, types and counts
them per topic and window of ten seconds, and is told of every updated window; whatever a batch brought has waited until
the moment at which its windows are there. The first seconds, in which classes are loaded, don't count.
"""

from __future__ import annotations

import subprocess
import sys
import time
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pika

from ..progress import Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .analytics import Memory

STREAM: Final = "bench.following"
WINDOW_S: Final = 10
WARM_UP_S: Final = 15.0
POINTS: Final = 6
"""Looks at memory, evenly over the time."""
TICK_S: Final = 0.02
PUBLISHER_END_S: Final = 60
US: Final = 1_000_000


def follow(
    spark: SparkSession, url: str, rate_per_s: int, seconds: float, folder: Path, memory: Memory, report: Report
) -> dict[str, Any]:
    """Publish and follow for so long; the lags, and how many records they are of."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        connection.channel().queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
    total_s = WARM_UP_S + seconds
    batches: list[tuple[int, int, int]] = []
    """Per batch: the least and the largest time of its records, and when its windows were there."""

    def updated(windows: DataFrame, _batch: int) -> None:
        rows = windows.collect()
        if rows:
            batches.append((min(r["first"] for r in rows), max(r["last"] for r in rows), time.time_ns() // 1_000))

    query = _query(spark, url).writeStream.outputMode("update").foreachBatch(updated)
    running = query.option("checkpointLocation", str(folder / "following")).start()
    command = [
        sys.executable,
        "-m",
        "tidegate_experiments.benchmarks.analytics_lag",
        STREAM,
        str(rate_per_s),
        str(total_s),
    ]
    publisher = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    try:
        assert publisher.stdin is not None
        publisher.stdin.write(url + "\n")  # not on the command line, which everybody can read: it holds a password
        publisher.stdin.close()
        began = time.monotonic()
        for point in range(POINTS + 1):
            due = began + WARM_UP_S + seconds * point / POINTS
            time.sleep(max(due - time.monotonic(), 0.0))
            memory.look(spark, f"following for {due - began:.0f} s", round(rate_per_s * (due - began)))
            report("following a stream", round(due - began), round(total_s))
            problem = running.exception()
            if problem is not None:
                raise problem
        publisher.wait(timeout=PUBLISHER_END_S)
        # A query that is stopped in the middle of a batch may end in a stack overflow of Spark's own, where it looks
        # through the words of the error for the cause.
        running.processAllAvailable()
    finally:
        publisher.kill()
        publisher.wait()
        running.stop()
    return _lags(batches, rate_per_s, seconds)


def _query(spark: SparkSession, url: str) -> DataFrame:
    from pyspark.sql import functions as F

    from rabbitmq_stream_source import FORMAT
    from tidegate_analytics.judging import judged, records_of

    raw = spark.readStream.format(FORMAT).option("url", f"bench={url}").option("streams", STREAM).load()
    records = records_of(judged(raw), "latency").withWatermark("time", "600 seconds")
    return records.groupBy(F.window("time", f"{WINDOW_S} seconds"), "pattern").agg(
        F.sum("received").alias("received"),
        F.sum("late").alias("late"),
        F.min("time_us").alias("first"),
        F.max("time_us").alias("last"),
    )


def _lags(batches: list[tuple[int, int, int]], rate_per_s: int, seconds: float) -> dict[str, Any]:
    """Of records at even distances, each with the first batch whose windows hold it."""
    if not batches:
        return {"lag_p50_s": None, "lag_p95_s": None, "lag_records_per_s": rate_per_s}
    # Windows tell all of their time so far: what is new in a batch is what is younger than all before it.
    reached: list[int] = []
    there: list[int] = []
    for _, last_us, there_us in batches:
        if not reached or last_us > reached[-1]:
            reached.append(last_us)
            there.append(there_us)
    begin_us = batches[0][0] + round(WARM_UP_S * US)
    step_us = US // rate_per_s
    lags: list[float] = []
    for written_us in range(begin_us, reached[-1], step_us):
        at = bisect_right(reached, written_us - 1)
        if at < len(there):
            lags.append((there[at] - written_us) / US)
    lags.sort()
    return {
        "lag_records_per_s": rate_per_s,
        "lag_records": len(lags),
        "lag_seconds": seconds,
        "lag_batches": len(reached),
        "lag_p50_s": round(lags[len(lags) // 2], 3) if lags else None,
        "lag_p95_s": round(lags[int(0.95 * (len(lags) - 1))], 3) if lags else None,
        "lag_max_s": round(lags[-1], 3) if lags else None,
    }


def publish(url: str, stream: str, rate_per_s: int, seconds: float) -> None:
    """Write records at a steady rate, each with the time at which it is written."""
    from .analytics import digest

    marker = 1_234_567_890_123_456
    forms = [digest(number, marker).replace(str(marker).encode(), b"%d") for number in range(1_000)]
    properties = pika.BasicProperties(type="latency", content_type="application/json")
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        began = time.monotonic()
        sent = 0
        while (elapsed_s := time.monotonic() - began) < seconds:
            for _ in range(int(elapsed_s * rate_per_s) - sent):
                form = forms[sent % len(forms)]
                channel.basic_publish("", stream, form % (time.time_ns() // 1_000), properties)
                sent += 1
            connection.process_data_events(TICK_S)


if __name__ == "__main__":
    publish(sys.stdin.readline().strip(), sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
