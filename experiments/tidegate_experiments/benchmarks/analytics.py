"""`tidegate bench analytics`: the Spark source beside a bare consumer and beside files, its memory, and its delay.

One RabbitMQ, one Spark, rounds interleaved: in each round a bare consumer reads a range of a stream, the source reads
the same range as one partition and as two, and Spark reads the same records from JSON files. What is timed is all from
asking to the last row, planning and connecting included, on all sides. Nothing is kept: Spark's `noop` sink takes every
column of every row. Then a query follows a stream at a steady rate, for its delay; memory is looked at all along.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pika

from tidegate_analytics.session import check_prerequisites, start
from tidegate_embedded.guardian import descendants
from tidegate_embedded.nodes import amqp_url, rabbit_nodes
from tidegate_protocol.latency import bucket_of
from tidegate_protocol.telemetry import LatencyDigest, encode

from ..progress import Report
from . import bare
from .dataplane import Rates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM: Final = "bench.source"
PREFETCH: Final = 2_000
"""The source's own default, for both."""
KINDS_OF_BODY: Final = 1_000
FILES: Final = 2
"""As many as cores that read them, on the machine at hand."""
PUBLISH_BLOCK: Final = 500
US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Size:
    """How much is read, how often, and how long a stream is followed."""

    rounds: int = 5
    records: int = 200_000
    rate_per_s: int = 1_000
    seconds: float = 60.0


@dataclass(slots=True)
class Memory:
    """What processes use, at several points of a run."""

    points: list[dict[str, Any]] = field(default_factory=list)

    def look(self, spark: SparkSession, what: str, records: int) -> None:
        """Of Spark's Python processes the memory they hold; of its JVM what is left after cleaning up."""
        gc.collect()
        jvm: Any = spark._jvm
        jvm.java.lang.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        heap = (runtime.totalMemory() - runtime.freeMemory()) / 2**20
        workers = sum(resident_mb(pid) for pid in descendants(os.getpid()) if is_python(pid))
        self.points.append(
            {
                "after": what,
                "records": records,
                "workers_mb": round(workers, 1),
                "driver_mb": round(resident_mb(os.getpid()), 1),
                "jvm_heap_mb": round(heap, 1),
            }
        )


def is_python(pid: int) -> bool:
    """Judged by the program that runs: the name in `comm` is for a moment still the parent's after a start."""
    try:
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False


def resident_mb(pid: int) -> float:
    """Without what it shares with the process it was forked from."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    wanted = ("Private_Clean:", "Private_Dirty:")
    return sum(int(line.split()[1]) for line in lines if line.startswith(wanted)) / 1024


async def run_analytics(size: Size, report: Report) -> dict[str, Any]:
    """Start RabbitMQ and Spark, run all rounds, follow a stream, and return the figures."""
    check_prerequisites()
    report("starting RabbitMQ", 0, 1)
    async with rabbit_nodes(["bench"]) as nodes:
        report("starting RabbitMQ", 1, 1)
        return await asyncio.to_thread(_measure, amqp_url(nodes["bench"]), size, report)


def _measure(url: str, size: Size, report: Report) -> dict[str, Any]:
    from rabbitmq_stream_source import register

    from .analytics_lag import follow

    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        folder = Path(directory)
        fill(url, STREAM, size.records, report)
        write_files(folder / "json", size.records)
        report("starting Spark", 0, 1)
        spark = start()
        report("starting Spark", 1, 1)
        try:
            register(spark)
            memory = Memory()
            rates = _rounds(spark, url, folder / "json", size, memory, report)
            lag = follow(spark, url, size.rate_per_s, size.seconds, folder, memory, report)
        finally:
            spark.stop()
    return {
        "rounds": size.rounds,
        "records": size.records,
        "ratio_to_bare_consumer": round(rates.ratio("source_1", "bare"), 3),
        "ratio_to_bare_consumer_2_partitions": round(rates.ratio("source_2", "bare"), 3),
        "ratio_to_files": round(rates.ratio("source_2", "files"), 3),
        "records_per_s": {name: round(rates.median(name)) for name in sorted(rates.of)},
        **lag,
        "memory": memory.points,
    }


def _rounds(spark: SparkSession, url: str, files: Path, size: Size, memory: Memory, report: Report) -> Rates:
    count = size.records
    contenders: list[tuple[str, Callable[[], float]]] = [
        ("bare", lambda: bare.pika_stream(url, STREAM, count, PREFETCH)),
        ("source_1", lambda: read_source(spark, url, count, partitions=1)),
        ("source_2", lambda: read_source(spark, url, count, partitions=2)),
        ("files", lambda: read_files(spark, files, count)),
    ]
    # The first time, classes are loaded, plans compiled and workers forked.
    for _, contender in contenders:
        contender()
    rates = Rates()
    memory.look(spark, "warming up", 2 * count)
    for number in range(size.rounds):
        for name, contender in contenders if number % 2 == 0 else reversed(contenders):
            rates.add(name, contender())
        memory.look(spark, f"round {number + 1}", 2 * count * (number + 2))
        report("rounds: bare consumer, source, files", number + 1, size.rounds)
    return rates


def read_source(spark: SparkSession, url: str, count: int, partitions: int) -> float:
    """Records per second of `format("rabbitmq_stream")`, all columns of all rows."""
    reader = spark.read.format("rabbitmq_stream").option("url", f"bench={url}").option("streams", STREAM)
    reader = reader.option("endingOffsets", str(count)).option("rowsPerPartition", str(-(-count // partitions)))
    began = time.perf_counter()
    reader.option("prefetch", str(PREFETCH)).load().write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - began)


def read_files(spark: SparkSession, files: Path, count: int) -> float:
    """Records per second of Spark's own JSON source, with a schema given."""
    from tidegate_analytics.schemas import record_schema

    began = time.perf_counter()
    spark.read.schema(record_schema("latency")).json(str(files)).write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - began)


# The records


def digest(number: int, time_us: int) -> bytes:
    """A record as a subscriber's report makes it, of about the usual size."""
    latencies = [20_000 + 37 * ((number * 7 + each) % 900) for each in range(12)]
    buckets = sorted({bucket_of(latency) for latency in latencies})
    return encode(
        LatencyDigest(
            time_us=time_us,
            cluster="bench",
            broker="bench-head",
            subscriber=f"subscriber-{number % 100}",
            run=1,
            number=number + 1,
            pattern=f"bench.topic.{number % 20}",
            edge=f"edge-{number % 4}",
            deadline_us=US,
            elapsed_us=10 * US,
            received=120,
            late=number % 3,
            latency_us_sum=sum(latencies) * 10,
            buckets=tuple(buckets),
            counts=tuple(10 for _ in buckets),
        )
    )


def bodies(count: int) -> Iterator[bytes]:
    """So many records; they repeat, for making each anew would take longer than sending it."""
    now_us = time.time_ns() // 1_000
    made = [digest(number, now_us + number) for number in range(min(KINDS_OF_BODY, count))]
    for number in range(count):
        yield made[number % len(made)]


def fill(url: str, stream: str, count: int, report: Report) -> None:
    """Have a stream hold exactly these, from offset 0 on."""
    step = "filling a stream"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
        properties = pika.BasicProperties(type="latency", content_type="application/json")
        for number, body in enumerate(bodies(count)):
            channel.basic_publish("", stream, body, properties)
            if number % PUBLISH_BLOCK == 0:
                connection.process_data_events(0)
                report(step, number, count)
    # What was written last is there when a consumer of all has got it, which the first reader waits for.
    report(step, count, count)


def write_files(folder: Path, count: int) -> None:
    """The same records as lines of JSON."""
    folder.mkdir()
    opened = [(folder / f"records-{number}.json").open("wb") for number in range(FILES)]
    try:
        for number, body in enumerate(bodies(count)):
            opened[number % FILES].write(body + b"\n")
    finally:
        for file in opened:
            file.close()
