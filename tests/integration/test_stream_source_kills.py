"""Every message exactly once in the files, though the Spark driver and RabbitMQ are killed in the middle.

STREAM_SOURCE_RECORDS=200000 runs it with more than the suite does.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.drivers import Driver
from tests.support.spark import java_problem
from tests.support.streams import contents, declare, publish
from tests.support.waiting import eventually
from tidegate_embedded.nodes import amqp_url, rabbit_nodes

RECORDS = int(os.environ.get("STREAM_SOURCE_RECORDS", "20000"))
STREAMS = ("kill.a", "kill.b")
BATCHES = 10
BATCH_S = 300.0
DRIVER_S = 300.0 + RECORDS / 500


class FilesDriver(Driver):
    """Writes everything available to files."""

    async def in_the_middle(self, process: asyncio.subprocess.Process, batches: int) -> None:
        """Wait until a batch is under way, after `batches` more were finished."""
        goal = self.committed + batches

        def reached() -> bool:
            assert process.returncode is None, self.said()
            return self.committed >= goal and self.under_way

        await eventually(reached, f"batch {goal} is under way", BATCH_S)

    def written(self) -> list[tuple[str, int, bytes]]:
        """All rows of the files that Spark has committed, from the log that it keeps beside them."""
        files: set[str] = set()
        for entry in (self.directory / "out" / "_spark_metadata").iterdir():
            if entry.name[0].isdigit():
                lines = entry.read_text().splitlines()[1:]
                files |= {json.loads(line)["path"].removeprefix("file://") for line in lines}
        rows: list[tuple[str, int, bytes]] = []
        for file in sorted(files):
            table = pq.read_table(file, columns=["stream", "offset", "body"])  # type: ignore[no-untyped-call]
            rows += zip(*(table[name].to_pylist() for name in ("stream", "offset", "body")), strict=True)
        return rows


@pytest.mark.timeout(600 + RECORDS / 50)
async def test_every_message_once_through_kills_of_spark_and_rabbitmq(tmp_path: Path) -> None:
    problem = java_problem()
    if problem is not None:
        pytest.skip(f"Spark is not tested: {problem}")
    async with rabbit_nodes(["rabbit"]) as nodes:
        node = nodes["rabbit"]
        url = amqp_url(node)
        each = RECORDS // len(STREAMS)

        async def fill(count: int, start: int) -> None:
            for stream in STREAMS:
                numbers = range(start, start + count)
                await asyncio.to_thread(publish, url, stream, (b"%s %d" % (stream.encode(), n) for n in numbers))

        await asyncio.to_thread(declare, url, *STREAMS)
        await fill(each, 0)
        options = {
            "urls": f"b={url}", "streams": ",".join(STREAMS), "connectRetries": "60",
            "maxRowsPerBatch": str(RECORDS // BATCHES), "rowsPerPartition": str(RECORDS // BATCHES // 4),
        }  # fmt: skip
        module = "tests.support.stream_to_files"
        driver = FilesDriver(tmp_path, tmp_path / "checkpoint", module, str(tmp_path), json.dumps(options))
        async with driver.started() as process:
            await driver.in_the_middle(process, 2)
            await driver.kill(process)
        assert 0 < driver.committed < BATCHES
        # The batch that was interrupted keeps its end, though there is more by now.
        await fill(each // 10, each)
        async with driver.started() as process:
            await driver.in_the_middle(process, 2)
            await node.kill()
            assert driver.committed < BATCHES
            await node.start()
            # The query has waited for RabbitMQ, and goes on.
            await driver.finish(process, DRIVER_S)

        rows = await asyncio.to_thread(driver.written)
        truth = {(stream, *one) for stream in STREAMS for one in contents(url, stream).items()}
        assert len(truth) == len(STREAMS) * (each + each // 10), "RabbitMQ lost messages"
        assert len(rows) == len(truth)
        assert set(rows) == truth
