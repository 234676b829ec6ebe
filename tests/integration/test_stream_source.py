"""`format("rabbitmq_stream")` in a real Spark on a real RabbitMQ, as an analyst uses it."""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
import pytest_asyncio
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

from rabbitmq_stream_source import FORMAT
from rabbitmq_stream_source.errors import DataLoss
from rabbitmq_stream_source.options import parse_options
from rabbitmq_stream_source.source import FollowingReader
from tests.support.streams import contents, declare, delete, publish
from tests.support.waiting import eventually
from tidegate_embedded.nodes import RabbitNode, amqp_url, create_vhost, management_url

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER = "other"
QUERY_S = 120


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(node: RabbitNode) -> AsyncIterator[str]:
    """Two brokers: the default virtual host of a RabbitMQ, and another."""
    await create_vhost(node, OTHER)
    yield amqp_url(node)


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


_MET = "broker string, stream string, task int, met int"
MEETING_S = 60.0


def _meeting(folder: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Has a task that reads its stream wait for another one to begin; how many have begun by then."""

    def meet(batches: Iterator[Any]) -> Iterator[Any]:
        Path(folder, uuid.uuid4().hex).touch()
        end_s = time.monotonic() + MEETING_S
        while len(os.listdir(folder)) < 2 and time.monotonic() < end_s:
            time.sleep(0.05)
        for batch in batches:
            first = batch.iloc[:1].copy()
            first["met"] = len(os.listdir(folder))
            yield first

    return meet


class Files:
    """A streaming query from streams to Parquet files, run until it has read what there is."""

    def __init__(self, spark: SparkSession, directory: Path, **options: str) -> None:
        self._spark = spark
        self._directory = directory
        self.options = options

    def run(self) -> list[int]:
        """Rows per batch."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(QUERY_S), "the query does not end"
        return [progress.numInputRows for progress in query.recentProgress]

    def start(self, **trigger: Any) -> StreamingQuery:
        source = self._spark.readStream.format(FORMAT).options(**self.options).load()
        writer = source.writeStream.format("parquet").option("path", str(self._directory / "out"))
        return writer.option("checkpointLocation", str(self._directory / "checkpoint")).trigger(**trigger).start()

    def rows(self) -> DataFrame:
        return self._spark.read.parquet(str(self._directory / "out"))

    def read(self) -> dict[tuple[str, str], dict[int, bytes]]:
        """What was written: by broker and stream, body by offset. No offset may be there twice."""
        found: dict[tuple[str, str], dict[int, bytes]] = {}
        for row in self.rows().select("broker", "stream", "offset", "body").collect():
            stream = found.setdefault((row.broker, row.stream), {})
            assert row.offset not in stream, f"{row.stream} {row.offset} was read twice"
            stream[row.offset] = bytes(row.body)
        return found


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    try:
        yield query
    finally:
        query.stop()


async def off_loop(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


async def test_a_range_as_a_table(spark: SparkSession, url: str) -> None:
    published = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp())

    def properties(number: int) -> pika.BasicProperties:
        return pika.BasicProperties(headers={"number": number, "even": number % 2 == 0}, timestamp=published)

    def fill_and_read() -> DataFrame:
        declare(url, "table")
        publish(url, "table", bodies(1_000), properties)
        reader = spark.read.format(FORMAT).options(url=url, streams="table", rowsPerPartition="200")
        return reader.options(startingOffsets="100", endingOffsets='{"table": 900}').load()

    frame = await off_loop(fill_and_read)
    rows = await off_loop(lambda: frame.withColumn("task", spark_partition_id()).orderBy("offset").collect())
    assert [(row.offset, bytes(row.body)) for row in rows] == list(zip(range(100, 900), bodies(800, 100), strict=True))
    assert len({row.task for row in rows}) == 4, "one partition per 200 rows"
    assert {(row.broker, row.stream, row.routing_key) for row in rows} == {
        (url.rsplit("@")[1].replace("%2F", "/"), "table", "table")
    }
    assert rows[5].headers == {"number": "105", "even": "false"}
    assert rows[5].timestamp == datetime(2024, 5, 1)


async def test_two_runs_read_everything_once(spark: SparkSession, url: str, tmp_path: Path) -> None:
    files = Files(spark, tmp_path, url=f"b={url}", streams="twice", maxRowsPerBatch="400", rowsPerPartition="150")
    await off_loop(lambda: declare(url, "twice"))
    await off_loop(lambda: publish(url, "twice", bodies(1_000)))
    assert await off_loop(files.run) == [400, 400, 200]
    await off_loop(lambda: publish(url, "twice", bodies(300, 1_000)))
    assert sum(await off_loop(files.run)) == 300
    assert sum(await off_loop(files.run)) == 0
    assert await off_loop(files.read) == {("b", "twice"): await off_loop(lambda: contents(url, "twice"))}
    checkpoint = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    assert checkpoint["brokers"] == {"b": {"twice": {"first": 0, "next": 400}}}


async def test_two_brokers_with_streams_of_the_same_names(
    spark: SparkSession, url: str, node: RabbitNode, tmp_path: Path
) -> None:
    brokers = {"here": url, "there": amqp_url(node, OTHER)}

    def fill() -> dict[tuple[str, str], dict[int, bytes]]:
        truth = {}
        for number, (name, address) in enumerate(sorted(brokers.items())):
            declare(address, "left", "right")
            for stream, count in (("left", 300), ("right", 40)):
                publish(address, stream, bodies(count, number * 1_000))
                truth[name, stream] = contents(address, stream)
        return truth

    truth = await off_loop(fill)
    urls = ",".join(f"{name}={address}" for name, address in brokers.items())
    files = Files(spark, tmp_path, urls=urls, streams="left,right", maxRowsPerBatch="400", rowsPerPartition="100")
    assert await off_loop(files.run) == [400, 280]
    assert await off_loop(files.read) == truth

    # Each of the four streams is a task of its own, and tasks run beside each other.
    (tmp_path / "begun").mkdir()

    def read_apart() -> dict[int, tuple[str, str, int]]:
        frame = spark.read.format(FORMAT).options(urls=urls, streams="left,right").load()
        told = frame.select("broker", "stream", spark_partition_id().alias("task"))
        rows = told.mapInPandas(_meeting(str(tmp_path / "begun")), _MET).collect()
        return {row.task: (row.broker, row.stream, row.met) for row in rows}

    tasks = await off_loop(read_apart)
    assert sorted(told[:2] for told in tasks.values()) == sorted(truth)
    assert all(met >= 2 for _, _, met in tasks.values()), f"the first one has ended before another began: {tasks}"


async def test_a_stream_that_is_added_meanwhile(
    spark: SparkSession, url: str, node: RabbitNode, tmp_path: Path
) -> None:
    files = Files(spark, tmp_path, url=f"b={url}", streamsPattern=r"grow\..*", managementUrl=management_url(node))
    await off_loop(lambda: declare(url, "grow.a"))
    await off_loop(lambda: publish(url, "grow.a", bodies(10)))

    def counts() -> dict[str, int]:
        return (
            {stream: len(found) for (_, stream), found in files.read().items()} if (tmp_path / "out").exists() else {}
        )

    async def reach(expected: dict[str, int]) -> None:
        async def reached() -> bool:
            assert query.exception() is None
            return bool(await asyncio.to_thread(counts) == expected)

        await eventually(reached, f"{expected} is written", QUERY_S)

    with running(await off_loop(lambda: files.start(processingTime="0 seconds"))) as query:
        await eventually(lambda: any(p.numInputRows for p in query.recentProgress), "the first batch", QUERY_S)
        await off_loop(lambda: declare(url, "grow.b"))
        await off_loop(lambda: publish(url, "grow.b", bodies(20)))
        await off_loop(lambda: publish(url, "grow.a", bodies(5, 10)))
        await reach({"grow.a": 15, "grow.b": 20})


async def test_what_retention_removed_between_two_runs(spark: SparkSession, url: str, tmp_path: Path) -> None:
    files = Files(spark, tmp_path, url=f"b={url}", streams="brief")

    def fill(rounds: int) -> None:
        for number in range(rounds):
            publish(url, "brief", (b"%d-%d-" % (number, n) + bytes(500) for n in range(40)))

    await off_loop(lambda: declare(url, "brief", max_length_bytes=60_000, stream_max_segment_size_bytes=20_000))
    await off_loop(lambda: fill(1))
    assert await off_loop(files.run) == [40]
    await off_loop(lambda: fill(12))
    # A new segment takes an offset for itself, so the first 40 messages need not end at offset 39.
    before = max((await off_loop(files.read))["b", "brief"]) + 1
    left = await off_loop(lambda: contents(url, "brief"))
    assert min(left) > before
    with pytest.raises(
        StreamingQueryException, match=rf"offsets from {before} up to {min(left) - 1} are gone.*onDataLoss=skip"
    ):
        await off_loop(files.run)
    files.options["onDataLoss"] = "skip"
    assert sum(await off_loop(files.run)) == len(left)
    written = (await off_loop(files.read))["b", "brief"]
    assert {offset: body for offset, body in written.items() if offset >= before} == left


def count(spark: SparkSession, options: dict[str, str]) -> int:
    return spark.read.format(FORMAT).options(**options).load().count()


async def test_mistakes_are_named(spark: SparkSession, url: str) -> None:
    def make_others() -> None:
        declare(url, "fine")
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            connection.channel().queue_declare("plain", durable=True)

    await off_loop(make_others)
    wrong = url.replace("://tidegate:", "://tidegate:not")
    for options, says in (
        ({"url": url, "streams": "plain"}, "the queue 'plain' is not a stream"),
        ({"url": url, "streams": "nowhere"}, "there is no stream 'nowhere'; declare it"),
        ({"url": wrong, "streams": "fine"}, "access refused: .*check user, password"),
        ({"url": url, "streams": "fine", "prefech": "1"}, "option prefech: .*did you mean prefetch"),
        ({"url": url, "streams": "fine", "endingOffsets": "5"}, "option endingOffsets: 5, .*ends at 0"),
    ):
        with pytest.raises(AnalysisException, match=says) as caught:
            await off_loop(partial(count, spark, options))
        assert url.split(":")[2].split("@")[0] not in str(caught.value), "a password in an error"


async def test_an_empty_stream_is_an_empty_table(spark: SparkSession, url: str) -> None:
    await off_loop(lambda: declare(url, "void"))
    frame = spark.read.format(FORMAT).options(url=url, streams="void").load()
    assert await off_loop(frame.count) == 0


@contextmanager
def following(**options: str) -> Iterator[FollowingReader]:
    """The reader on the driver without Spark, which would stop it however its query ends."""
    reader = FollowingReader(parse_options(options))
    try:
        yield reader
    finally:
        reader.stop()


async def test_a_stream_that_was_made_anew(url: str) -> None:
    """Without Spark: only the reader on the driver has to notice."""
    given = {"url": f"b={url}", "streams": "anew", "readTimeoutS": "1"}

    def positions(offset: dict[str, Any]) -> dict[str, int]:
        found: dict[str, int] = offset["brokers"]["b"]["anew"]
        return found

    def read_then_make_anew() -> dict[str, Any]:
        declare(url, "anew")
        publish(url, "anew", bodies(30))
        with following(**given, startingOffsets="latest") as reader:
            start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert positions(start) == {"first": 30, "next": 30}
        delete(url, "anew")
        declare(url, "anew")
        publish(url, "anew", bodies(20))
        return start

    start = await off_loop(read_then_make_anew)
    with (
        following(**given) as reader,
        pytest.raises(DataLoss, match="'anew': it ends at 20, though it was read up to 30"),
    ):
        await off_loop(lambda: reader.latestOffset(start, ReadAllAvailable()))
    with following(**given, onDataLoss="skip") as skipping:
        end = await off_loop(lambda: skipping.latestOffset(start, ReadMaxRows(15)))
        assert positions(end) == {"first": 0, "next": 15}
        assert [(part.part.start, part.part.end) for part in skipping.partitions(start, end)] == [(0, 15)]  # type: ignore[attr-defined]
        after = await off_loop(lambda: skipping.latestOffset(end, ReadMaxRows(15)))
        assert positions(after) == {"first": 0, "next": 20}
        assert await off_loop(lambda: skipping.latestOffset(after, ReadMaxRows(15))) == after


async def test_a_deleted_stream_of_a_pattern_is_a_loss(url: str, node: RabbitNode) -> None:
    given = {"url": f"b={url}", "streamsPattern": r"leave\..*", "managementUrl": management_url(node)}

    def read_then_delete() -> dict[str, Any]:
        declare(url, "leave.a", "leave.b")
        publish(url, "leave.b", bodies(3))
        with following(**given) as reader:
            start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        delete(url, "leave.a")
        return start

    start = await off_loop(read_then_delete)
    with following(**given) as reader, pytest.raises(DataLoss, match=r"'leave\.a': it is no longer there"):
        await off_loop(lambda: reader.latestOffset(start, ReadAllAvailable()))
    with following(**given, onDataLoss="skip") as skipping:
        assert await off_loop(lambda: skipping.latestOffset(start, ReadAllAvailable())) == start
