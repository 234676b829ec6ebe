"""The demo of the analytics: the demo's story on a real cluster, Spark following its telemetry, a report at the end.

One Spark runs beside the cluster and follows the stream of the head with two queries: one writes a lake, the other
works out attainment window by window. When the story is over, they take up the last records, and the report is drawn
from the lake.

Invariant: nothing is left behind but the report: the lake lives in a directory that goes with the demo.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import TelemetrySpec, Topology
from tidegate_protocol.operations import OverviewReply

from ..progress import Report
from . import story
from .early_warning import EarlyWarning
from .watching import DemoOutcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tidegate_analytics.report.writing import Written

DETAIL_S: Final = 2.0
"""How often clients report: a story of a minute needs more than the usual ten seconds."""
TRIGGER_S: Final = 10
WINDOW_S: Final = 10
LATENESS_S: Final = 10
BATCH_S_MAX: Final = 60.0
LAST_REPORTS_S: Final = 2 * DETAIL_S + 1.0
"""After the end, until the last reports of clients are in the stream."""


class Listener(Protocol):
    """Is told how far the demo is."""

    def begins(self, scenario: EarlyWarning) -> None:
        """Spark follows the telemetry, and the story begins."""

    def shakes(self) -> None:
        """The burst begins."""

    def looks(self, overview: OverviewReply) -> None:
        """What the head says, about every second of the story."""

    def ends(self) -> None:
        """The story is over, and the report is about to be drawn."""


@dataclass(frozen=True, slots=True)
class Window:
    """What the query that follows found for one window, over all topics."""

    start_s: float
    received: int
    late: int
    p99_us: float | None


@dataclass(frozen=True, slots=True)
class Shown:
    """What came of the demo."""

    outcome: DemoOutcome
    windows: tuple[Window, ...]
    written: Written


def topology() -> Topology:
    """The cluster of the story, with telemetry that tells more often."""
    return story.topology().model_copy(update={"telemetry": TelemetrySpec(detail_period_s=DETAIL_S)})


async def run_analytics_demo(
    folder: Path, burst_at_s: float, total_s: float, listener: Listener, report: Report
) -> Shown:
    """Start Spark and the cluster, play the story, follow it, and draw the report into `folder`."""
    # Spark has set up logging for all of the process, and a client that is moved is none of its news.
    logging.getLogger("aiormq").propagate = False
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-demo-")))
        spark = await asyncio.to_thread(_spark, report)
        stack.callback(spark.stop)
        cluster = EmbeddedCluster(topology(), compact=True, progress=report)
        await stack.enter_async_context(cluster)
        url = cluster.url(story.CLUSTER)
        following = Following(spark, url, directory)
        await asyncio.to_thread(following.start)
        stack.callback(following.stop)
        async with EarlyWarning(url) as scenario:
            listener.begins(scenario)
            await scenario.play(burst_at_s, total_s, on_burst=listener.shakes, on_overview=listener.looks)
            await asyncio.sleep(LAST_REPORTS_S)
            outcome = scenario.outcome()
        listener.ends()
        windows, written = await asyncio.to_thread(following.finish, folder, report)
        return Shown(outcome, windows, written)


def _spark(report: Report) -> SparkSession:
    from tidegate_analytics.session import start

    report("starting Spark", 0, 1)
    # One core is enough for so little, and leaves the other to the cluster.
    spark = start("local[2]", spark__sql__shuffle__partitions="1", spark__driver__memory="1g")
    report("starting Spark", 1, 1)
    return spark


def _between_batches(query: StreamingQuery) -> None:
    """Stopped in the middle of a batch, Spark would say so at length."""
    until = time.monotonic() + BATCH_S_MAX
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
        time.sleep(0.05)


class Following:
    """The queries that follow the stream of a head, and what is made of it afterwards."""

    def __init__(self, spark: SparkSession, url: str, directory: Path) -> None:
        self._spark = spark
        self._urls = [f"{story.CLUSTER}={url}"]
        self._lake = str(directory / "lake")
        self._tables = str(directory / "tables")
        self._queries: list[StreamingQuery] = []

    def start(self) -> None:
        from tidegate_analytics import lake
        from tidegate_analytics.jobs import Options
        from tidegate_analytics.runner import raw_messages, start_live

        options = Options(window_s=WINDOW_S, lateness_s=LATENESS_S)
        raw = raw_messages(self._spark, self._urls)
        self._queries.append(lake.start(raw, self._lake, follow=True, trigger_s=TRIGGER_S, on_batch=lambda _: None))
        raw = raw_messages(self._spark, self._urls)
        self._queries.append(start_live(raw, "attainment", self._tables, options, trigger_s=TRIGGER_S))

    def stop(self) -> None:
        for query in self._queries:
            query.stop()
        self._queries.clear()

    def finish(self, folder: Path, report: Report) -> tuple[tuple[Window, ...], Written]:
        """End the queries, take up what is left, and write the report."""
        from tidegate_analytics.report.gather import Choice
        from tidegate_analytics.report.loads import Lines
        from tidegate_analytics.report.writing import write_report
        from tidegate_analytics.runner import raw_messages, told_plainly, write_lake

        with told_plainly():
            for query in self._queries:
                problem = query.exception()
                if problem is not None:
                    raise problem
                _between_batches(query)
                query.stop()
        windows = self._windows()
        self._queries.clear()
        write_lake(raw_messages(self._spark, self._urls), self._lake, on_batch=lambda _: None)
        written = write_report(
            self._spark,
            self._lake,
            folder,
            title="Tidegate: the ground shakes",
            choice=Choice(),
            lines=Lines(),
            on_step=report,
            origin="the demo's telemetry",
        )
        return windows, written

    def _windows(self) -> tuple[Window, ...]:
        """What the query over the stream has told so far: windows whose time for late records is over."""
        path = Path(self._tables, "attainment")
        if not (path / "_spark_metadata").exists():
            return ()
        from pyspark.sql import functions as F

        rows: list[Any] = (
            self._spark.read.parquet(str(path))
            .where("grain = 'cluster'")
            .select(F.unix_micros("window_start").alias("start_us"), "received", "late", "latency_us_p99")
            .orderBy("start_us")
            .collect()
        )
        return tuple(Window(row["start_us"] / 1e6, row["received"], row["late"], row["latency_us_p99"]) for row in rows)
