"""Runs jobs: finds their input, writes their tables, and waits for streaming queries.

Invariant: a table in the output directory is whole. A job over the lake writes its tables beside the old ones
and swaps them when they are done; a job over a stream appends windows, each once, with its checkpoint beside them. A
killed run leaves what was there before, and is simply run again.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidegate_protocol.names import TELEMETRY_STREAM

from . import lake as lakes
from .errors import InvalidOption, QueryFailed, SparkMissing
from .files import Files
from .jobs import OVER_LAKE, Job, Options
from .judging import judged, records_of

SOURCE: Final = "rabbitmq_stream_source"
FORMAT: Final = "rabbitmq_stream"
CHECKPOINTS: Final = "_checkpoints"
WRITING: Final = "_writing"
LIVE_TRIGGER_S: Final = 10
PROBLEM_LENGTH_MAX: Final = 1_000
_LOOK_S: Final = 1


@dataclass(frozen=True, slots=True)
class Table:
    """A table that was written."""

    name: str
    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a streaming query is."""

    batch: int
    rows: int
    """Read in all."""
    late: int
    """Dropped, because the watermark had passed their windows."""


OnProgress = Callable[[Progress], None]


def raw_messages(spark: SparkSession, urls: Sequence[str], **options: str) -> DataFrame:
    """A stream of what is in the telemetry streams of these heads."""
    if not urls:
        raise InvalidOption("url", "none is given", "give the address of a head's RabbitMQ")
    try:
        source = importlib.import_module(SOURCE)
    except ImportError as error:
        raise SparkMissing(f"the source {SOURCE} can't be imported ({error})", "install tidegate[analytics]") from None
    source.register(spark)
    reader = spark.readStream.format(FORMAT).option("urls", ",".join(urls)).option("streams", TELEMETRY_STREAM)
    with told_plainly():
        return reader.options(**options).load()


def write_lake(
    raw: DataFrame, path: str, *, follow: bool = False, trigger_s: int = lakes.TRIGGER_S, on_batch: lakes.OnBatch
) -> None:
    """Write a stream to a lake until all there is now is written, or with `follow` until stopped."""
    wait(lakes.start(raw, path, follow=follow, trigger_s=trigger_s, on_batch=on_batch))


def run_over_lake(
    spark: SparkSession,
    name: str,
    path: str,
    out: str,
    options: Options,
    since: date | None = None,
    until: date | None = None,
) -> list[Table]:
    """Work out the tables of a job from a lake, of some days or all, and write them."""
    job = _job(name)
    if since is not None and until is not None and since > until:
        raise InvalidOption("since", f"{since} is after {until}", "give the earlier day first")
    with told_plainly():
        lake = lakes.open_lake(spark, path)
        tables = job.tables(lambda kind: lake.read(kind, since, until), options)
        return write_tables(spark, tables, out)


def write_tables(spark: SparkSession, tables: Mapping[str, DataFrame], out: str) -> list[Table]:
    """Replace tables: all are written first, and then take the places of those before."""
    files = Files(spark, out)
    files.delete(WRITING)
    for name, table in tables.items():
        table.write.parquet(files.path(f"{WRITING}/{name}"))
    for name in tables:
        files.delete(name)
        files.rename(f"{WRITING}/{name}", name)
    files.delete(WRITING)
    return [Table(name, files.path(name), spark.read.parquet(files.path(name)).count()) for name in tables]


def run_live(
    raw: DataFrame,
    name: str,
    out: str,
    options: Options,
    *,
    follow: bool = True,
    trigger_s: int = LIVE_TRIGGER_S,
    on_progress: OnProgress | None = None,
) -> Progress:
    """Work out a job window by window from a stream: until stopped, or without `follow` up to what is there now."""
    return wait(start_live(raw, name, out, options, follow=follow, trigger_s=trigger_s), on_progress)


def start_live(
    raw: DataFrame, name: str, out: str, options: Options, *, follow: bool = True, trigger_s: int = LIVE_TRIGGER_S
) -> StreamingQuery:
    """The same, without waiting for it."""
    job = _job(name)
    if job.live is None:
        able = ", ".join(other for other, one in OVER_LAKE.items() if one.live is not None)
        raise InvalidOption("url", f"{name} needs all records at once", f"give --lake; over a stream run {able}")
    messages = judged(raw)
    ((table, rows),) = job.live(lambda kind: records_of(messages, kind), options).items()
    files = Files(raw.sparkSession, out)
    query = rows.writeStream.queryName(f"tidegate-{table}").outputMode("append").format("parquet")
    query = query.option("path", files.path(table)).option("checkpointLocation", files.path(f"{CHECKPOINTS}/{table}"))
    query = query.trigger(processingTime=f"{trigger_s} seconds") if follow else query.trigger(availableNow=True)
    return query.start()


def wait(query: StreamingQuery, on_progress: OnProgress | None = None) -> Progress:
    """Until a query has ended; an interrupt ends it between two batches."""
    seen: dict[int, Progress] = {}
    try:
        with told_plainly():
            while not query.awaitTermination(_LOOK_S):
                _look(query, seen, on_progress)
    finally:
        if query.isActive:
            query.stop()
    _look(query, seen, on_progress)
    return _total(seen)


def _look(query: StreamingQuery, seen: dict[int, Progress], on_progress: OnProgress | None) -> None:
    """Spark keeps the progress of the last hundred batches: looked at every second, none is missed."""
    for told in query.recentProgress:
        late = sum(operator.numRowsDroppedByWatermark for operator in told.stateOperators)
        one = Progress(told.batchId, told.numInputRows, late)
        known = seen.get(one.batch)
        if known is None or one.rows > known.rows or one.late > known.late:
            seen[one.batch] = one
            if on_progress is not None:
                on_progress(_total(seen))


def _total(seen: Mapping[int, Progress]) -> Progress:
    return Progress(
        max(seen, default=-1), sum(one.rows for one in seen.values()), sum(one.late for one in seen.values())
    )


def _job(name: str) -> Job:
    if name not in OVER_LAKE:
        raise InvalidOption("job", f"there is no job {name!r}", f"the jobs are {', '.join(OVER_LAKE)}")
    return OVER_LAKE[name]


@contextmanager
def told_plainly() -> Iterator[None]:
    """What Spark raises, as an error of ours: the first line of what it says, for the rest are its stacks."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise QueryFailed(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in text.splitlines()]
    # Where a Python function of ours failed, its own last line says why.
    raised = [line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception|Mismatch|Option|Loss|Failed): ", line)]
    return (raised[-1] if raised else next(filter(None, lines), repr(error)))[:PROBLEM_LENGTH_MAX]
