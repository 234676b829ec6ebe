"""A file of records as a lake: what an experiment leaves beside its other files, one record per line.

It is read with the eyes of the lake: a line that is no record of ours is in the quarantine, with the reason. The file
is small and never changes, so it is judged once and kept; there are no batches.
"""

from __future__ import annotations

from datetime import date

from pyspark.sql import DataFrame, SparkSession, functions as F

from tidegate_protocol.names import TELEMETRY_FILE

from .files import Files
from .judging import judged, records_of, refused_of
from .windows import day_of

BATCH = 0


class RecordFile:
    """The records of a directory's `telemetry.jsonl`; read like `lake.Lake`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.files = Files(spark, path)
        lines = spark.read.text(self.files.path(TELEMETRY_FILE))
        raw = lines.select(
            F.lit("file").alias("broker"),
            F.lit(TELEMETRY_FILE).alias("stream"),
            F.monotonically_increasing_id().alias("offset"),
            F.lit(None).cast("string").alias("routing_key"),
            F.encode("value", "UTF-8").alias("body"),
        )
        self._judged = judged(raw).persist()
        self._kinds: dict[str, DataFrame] = {}

    def read(self, kind: str, since: date | None = None, until: date | None = None) -> DataFrame:
        """The records of a kind, of the days from `since` up to and with `until`, UTC."""
        # Kept, which also keeps later conditions on fields from being looked at before other kinds are left out: Spark
        # would parse those as if they were of this kind, and fail.
        if kind not in self._kinds:
            self._kinds[kind] = records_of(self._judged, kind).persist()
        return _of_days(self._kinds[kind], "time_us", since, until)

    def quarantine(self, since: date | None = None, until: date | None = None) -> DataFrame:
        """What is no record; the days are those of reading."""
        rows = refused_of(self._judged).withColumn("time_us", F.unix_micros("read_at"))
        return _of_days(rows, "time_us", since, until).drop("time_us")


def _of_days(rows: DataFrame, time_us: str, since: date | None, until: date | None) -> DataFrame:
    dated = rows.withColumn("date", day_of(F.col(time_us))).withColumn("batch", F.lit(BATCH).cast("long"))
    if since is not None:
        dated = dated.where(F.col("date") >= F.lit(since))
    return dated if until is None else dated.where(F.col("date") <= F.lit(until))
