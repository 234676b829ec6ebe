"""The lake: every record of the streams once, as typed Parquet, and whatever is no record in a quarantine.

    LAKE/kind=load/date=2026-02-01/batch=17/*.parquet     one table per kind
    LAKE/quarantine/date=…/batch=…/*.parquet
    LAKE/_committed/17                                    empty; its name is the last batch that is complete
    LAKE/_checkpoint/…                                    how far the streams were read

All kinds are written by one query. A query per kind would leave the exactly-once to Spark's file sink, but read and
decode every stream thirteen times; one table for all kinds would need columns of two types at once.

Why each record is there exactly once, whenever the process is killed:

1. Spark notes the offsets of batch N in the checkpoint before it runs, so that if N runs again it reads the same
   messages, and judges them alike (`judging`). Only the last batch can ever run again.
2. The files of batch N are in directories of their own, and readers pass over those of batches above the one in
   `_committed`: what a killed batch left behind is seen by nobody, and is deleted before N runs again.
3. Creating the file `_committed/N` is atomic, and makes all tables of the batch visible together. Killed before it: N
   runs again, as if for the first time. Killed after it: N is handed to us again, and passed over.

The checkpoint lives in the lake because neither is right without the other. A lake whose checkpoint is gone, or is that
of another time, is refused instead of being written to twice or with a gap. One query writes to a lake at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tidegate_protocol.names import TELEMETRY_FILE
from tidegate_protocol.telemetry import KINDS

from .errors import LakeMismatch, LakeMissing
from .files import Files
from .judging import FUTURE_MAX_S, judged, records_of, refused_of
from .record_file import RecordFile
from .schemas import quarantine_schema, table_schema
from .windows import day_of

QUARANTINE_TABLE: Final = "quarantine"
COMMITTED: Final = "_committed"
CHECKPOINT: Final = "_checkpoint"
NOTHING: Final = -1
TRIGGER_S: Final = 60
"""How often a query that follows the streams writes: each batch is at least one file per kind."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What one batch brought."""

    batch: int
    records: Mapping[str, int] = field(default_factory=dict)
    """By kind."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """By reason; these are in the quarantine."""


OnBatch = Callable[[BatchCounts], None]


def table_name(kind: str) -> str:
    """The directory of a kind's table."""
    return f"kind={kind}"


class Lake:
    """A lake for reading, as of now: batches that are committed later are not seen."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.files = Files(spark, path)
        self.committed = committed(self.files)
        self._spark = spark
        if self.committed == NOTHING:
            raise LakeMissing(path)

    def read(self, kind: str, since: date | None = None, until: date | None = None) -> DataFrame:
        """The records of a kind, of the days from `since` up to and with `until`, UTC."""
        return self._table(table_name(kind), table_schema(kind), since, until)

    def quarantine(self, since: date | None = None, until: date | None = None) -> DataFrame:
        """What is no record; the days are those of reading."""
        return self._table(QUARANTINE_TABLE, quarantine_schema(), since, until)

    def counts(self) -> BatchCounts:
        """How many records of each kind there are, and how many messages were refused for which reason."""
        present = [kind for kind in KINDS if self.files.exists(table_name(kind))]
        records = {kind: self.read(kind).count() for kind in present}
        refused = _counted(self.quarantine().groupBy("reason").count(), "reason")
        return BatchCounts(self.committed, records, refused)

    def _table(self, name: str, schema: StructType, since: date | None, until: date | None) -> DataFrame:
        if not self.files.exists(name):
            return self._spark.createDataFrame([], schema)
        table = self._spark.read.schema(schema).parquet(self.files.path(name))
        table = table.where(F.col("batch") <= self.committed)
        if since is not None:
            table = table.where(F.col("date") >= F.lit(since))
        return table if until is None else table.where(F.col("date") <= F.lit(until))


def open_lake(spark: SparkSession, path: str) -> Lake | RecordFile:
    """A lake, or the folder of an experiment, which is read like one."""
    files = Files(spark, path)
    if committed(files) == NOTHING and files.exists(TELEMETRY_FILE):
        return RecordFile(spark, path)
    return Lake(spark, path)


def committed(files: Files) -> int:
    """The last batch that is complete, or `NOTHING`."""
    return max((int(name) for name in files.names(COMMITTED) if name.isdigit()), default=NOTHING)


class LakeWriter:
    """Writes batches of judged messages, each once."""

    def __init__(self, spark: SparkSession, path: str, on_batch: OnBatch | None = None) -> None:
        self.files = Files(spark, path)
        self.committed = committed(self.files)
        self._on_batch = on_batch or _log_batch
        if self.committed != NOTHING and not self.files.exists(f"{CHECKPOINT}/metadata"):
            raise LakeMismatch(path, "its checkpoint is gone, and reading from the beginning would repeat records")
        self._clean()

    def __call__(self, messages: DataFrame, batch: int) -> None:
        """Write one batch: what Spark calls for each, and again for one that it does not know to be done."""
        if batch == self.committed:
            log.info("batch %d was written before; skipped", batch)
            return
        if batch != self.committed + 1:
            problem = f"the checkpoint is at batch {batch}, the last one here is {self.committed}"
            raise LakeMismatch(self.files.root, problem)
        messages.persist()
        try:
            counts = _counts(messages, batch)
            for kind in counts.records:
                self._write(table_name(kind), _dated(records_of(messages, kind), F.col("time_us")), batch)
            if counts.refused:
                self._write(QUARANTINE_TABLE, _dated(refused_of(messages), F.unix_micros("read_at")), batch)
        finally:
            messages.unpersist()
        self._commit(batch)
        self._on_batch(counts)

    def _write(self, table: str, rows: DataFrame, batch: int) -> None:
        rows.withColumn("batch", F.lit(batch)).write.partitionBy("date", "batch").mode("append").parquet(
            self.files.path(table)
        )

    def _commit(self, batch: int) -> None:
        self.files.touch(f"{COMMITTED}/{batch}")
        self.committed = batch
        for name in self.files.names(COMMITTED):
            if name.isdigit() and int(name) < batch:
                self.files.delete(f"{COMMITTED}/{name}")

    def _clean(self) -> None:
        """Delete what a killed batch left behind. Once is enough: no batch of this process is run twice."""
        for pattern in ("kind=*", QUARANTINE_TABLE):
            for name in self.files.matching(f"{pattern}/date=*/batch=*"):
                if int(name.rpartition("=")[2]) > self.committed:
                    log.info("deleting what a killed batch left in %s", name)
                    self.files.delete(name)
            for name in self.files.matching(f"{pattern}/_temporary"):
                self.files.delete(name)


def start(
    raw: DataFrame,
    path: str,
    *,
    follow: bool = False,
    trigger_s: int = TRIGGER_S,
    future_max_s: float = FUTURE_MAX_S,
    on_batch: OnBatch | None = None,
) -> StreamingQuery:
    """Start writing a stream of raw messages to a lake: all there are now, or with `follow` for ever."""
    writer = LakeWriter(raw.sparkSession, path, on_batch)
    query = judged(raw, future_max_s).writeStream.queryName("tidegate-lake").foreachBatch(writer)
    query = query.option("checkpointLocation", writer.files.path(CHECKPOINT))
    query = query.trigger(processingTime=f"{trigger_s} seconds") if follow else query.trigger(availableNow=True)
    return query.start()


def _dated(rows: DataFrame, time_us: Column) -> DataFrame:
    return rows.withColumn("date", day_of(time_us))


def _counts(messages: DataFrame, batch: int) -> BatchCounts:
    rows = messages.groupBy("kind", "reason").count().collect()
    return BatchCounts(
        batch,
        {str(row["kind"]): int(row["count"]) for row in rows if row["reason"] is None},
        {str(row["reason"]): int(row["count"]) for row in rows if row["reason"] is not None},
    )


def _counted(table: DataFrame, name: str) -> dict[str, int]:
    return {str(row[name]): int(row["count"]) for row in table.collect()}


def _log_batch(counts: BatchCounts) -> None:
    log.info("batch %d: %d records", counts.batch, sum(counts.records.values()))
    if counts.refused:
        told = ", ".join(f"{number} {reason}" for reason, number in sorted(counts.refused.items()))
        log.warning("batch %d: messages that are no valid records went to the quarantine: %s", counts.batch, told)
