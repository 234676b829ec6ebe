"""The data source as Spark sees it: schema, offsets, partitions, rows.

Spark keeps the offsets; nothing is stored on RabbitMQ, and no consumer there outlives the reading of a partition. A
batch is planned from two offsets alone (`offsets.ranges_between`), so a batch that is run again after a crash reads the
same messages, and a sink that is idempotent per batch (files, Delta) has every message exactly once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from .columns import SCHEMA
from .errors import DataLoss, InvalidOption
from .link import quiet_client
from .offsets import Offsets, Position, Range, StreamKey, plan, ranges_between, share
from .options import Settings, parse_options
from .reading import read_range
from .survey import Survey

FORMAT: Final = "rabbitmq_stream"
PARTITIONS_MAX: Final = 10_000
"""Per batch; beyond that the partitions get larger."""
POLL_S: Final = 0.1
"""At least so long between two looks by a query that found nothing new: Spark would look 100 times a second."""
CATCH_UP_POLL_S: Final = 0.5

logger = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Make `format("rabbitmq_stream")` known to a session."""
    spark.dataSource.register(RabbitMQStreamSource)


class StreamPartition(InputPartition):
    """A range of offsets, read by one task."""

    def __init__(self, part: Range) -> None:
        super().__init__((*part.key, part.start, part.end))
        self.part = part


class RabbitMQStreamSource(DataSource):
    """RabbitMQ streams for `spark.readStream` and `spark.read`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._settings = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        _check_schema(schema)
        return RangeReader(self._settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        _check_schema(schema)
        if self._settings.ending.given:
            raise InvalidOption("endingOffsets", "a streaming query has no end", "leave it out, or use spark.read")
        return FollowingReader(self._settings)


def _check_schema(schema: StructType) -> None:
    if schema != SCHEMA:
        raise InvalidOption("schema", "the columns of this source are fixed", "leave .schema(…) out, and select later")


def _partitions(ranges: list[Range], settings: Settings) -> list[StreamPartition]:
    return [StreamPartition(part) for part in plan(ranges, settings.rows_per_partition, PARTITIONS_MAX)]


def _read(partition: InputPartition, settings: Settings) -> Iterator[pa.RecordBatch]:
    """Spark makes up a partition without a value where a plan has none."""
    if isinstance(partition, StreamPartition):
        yield from read_range(partition.part, settings)


class RangeReader(DataSourceReader):
    """`spark.read`: from startingOffsets up to endingOffsets, as they are when the query is planned."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        quiet_client()
        survey = Survey(self._settings)
        try:
            keys = survey.streams()
            ends = survey.ends(keys)
            starting = survey.resolve(self._settings.starting, keys, ends)
            ending = survey.resolve(self._settings.ending, keys, ends)
        finally:
            survey.close()
        for key in keys:
            if starting[key] > ending[key]:
                problem = f"stream {key.stream!r} of {key.broker} would end at {ending[key]}, before {starting[key]}"
                raise InvalidOption("endingOffsets", problem, "give an end that is not before startingOffsets")
        return _partitions([Range(key, starting[key], ending[key]) for key in keys], self._settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._settings)


class FollowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: from startingOffsets, or from the checkpoint, on and on."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._survey = Survey(settings)
        self._target: dict[StreamKey, int] | None = None
        self._ends: dict[StreamKey, int] = {}
        self._looked_at = float("-inf")
        self._checked: set[StreamKey] = set()
        self._gone_known: set[StreamKey] = set()

    def initialOffset(self) -> dict[str, Any]:
        quiet_client()
        # What came after the target was set is none of this query's business: "latest" is the target, too.
        ends = self._target if self._target is not None else self._survey.ends(self._survey.streams(fresh=True))
        keys = sorted(ends)
        starts = self._survey.resolve(self._settings.starting, keys, ends)
        return Offsets({key: Position(starts[key], starts[key]) for key in keys}, initial=True).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._settings.max_rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        quiet_client()
        self._target = self._survey.ends(self._survey.streams(fresh=True))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        quiet_client()
        before = Offsets.from_json(start)
        ends = self._look()
        bases = self._bases(before, ends)
        backlogs = {key: ends[key] - base.next for key, base in bases.items() if key in ends}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(backlogs.values())
        granted = share(backlogs, rows_max)
        after = {key: Position(base.first, base.next + granted.get(key, 0)) for key, base in bases.items()}
        if not any(granted.values()):
            self._looked_at = time.monotonic()
        return Offsets(after).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress of the query: how far the streams reached when they were looked at last."""
        return Offsets({key: Position(0, end) for key, end in self._ends.items()}).to_json() if self._ends else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _partitions(ranges_between(Offsets.from_json(start), Offsets.from_json(end)), self._settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._settings)

    def stop(self) -> None:
        self._survey.close()

    def _look(self) -> dict[StreamKey, int]:
        """Where the streams end now, or where they ended when a query that reads what is available began."""
        if self._target is not None:
            self._ends = self._target
            return self._ends
        time.sleep(max(0.0, self._looked_at + POLL_S - time.monotonic()))
        self._ends = self._survey.ends(self._survey.streams())
        return self._ends

    def _bases(self, before: Offsets, ends: dict[StreamKey, int]) -> dict[StreamKey, Position]:
        """Where this batch begins in every stream, known or new, once what is lost has been passed."""
        bases = {key: self._gone(key, before.positions[key]) for key in before if key not in ends}
        known = {key: position for key in ends if (position := before.get(key)) is not None}
        new = [key for key in ends if key not in known]
        behind = [key for key, position in known.items() if ends[key] < position.next]
        short = [key for key in behind if not self._caught_up(key, known[key].next, ends)]
        unchecked = [key for key in known if key not in self._checked]
        beginnings = self._survey.beginnings({*new, *short, *unchecked}, ends)
        for key in new:
            bases[key] = self._at(beginnings[key], ends[key])
        for key, position in known.items():
            bases[key] = position
            if key in short:
                self._lost(key, f"it ends at {ends[key]}, though it was read up to {position.next}: it was made anew")
                bases[key] = self._at(beginnings[key], ends[key])
            elif key in unchecked and beginnings[key] > position.next:
                self._lost(key, f"offsets from {position.next} up to {beginnings[key] - 1} are gone by its retention")
                bases[key] = self._at(beginnings[key], ends[key])
        self._checked.update(ends)
        self._gone_known.difference_update(ends)
        return bases

    @staticmethod
    def _at(beginning: int, end: int) -> Position:
        """A position at the beginning of a stream. Retention may have passed an end that was seen before."""
        return Position(min(beginning, end), min(beginning, end))

    def _caught_up(self, key: StreamKey, offset: int, ends: dict[StreamKey, int]) -> bool:
        """A replica may lag behind after a change of leader: give it time before calling it a loss."""
        deadline = time.monotonic() + self._settings.read_timeout_s
        while ends[key] < offset and time.monotonic() < deadline:
            time.sleep(CATCH_UP_POLL_S)
            ends[key] = self._survey.ends([key])[key]
        return ends[key] >= offset

    def _gone(self, key: StreamKey, position: Position) -> Position:
        """A stream that was read before and is no longer there. It keeps its place, should it come back."""
        if key not in self._gone_known:
            self._lost(key, "it is no longer there")
            self._gone_known.add(key)
        return position

    def _lost(self, key: StreamKey, problem: str) -> None:
        address = self._settings.broker(key.broker).address
        if not self._settings.skip_lost:
            raise DataLoss(address, key.stream, problem)
        logger.warning("%s: stream %r: %s; reading goes on, because onDataLoss=skip", address, key.stream, problem)
