"""`tidegate analytics`: Spark jobs over telemetry. Spark is imported when a job is run, and not before."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource
from rich.markup import escape
from rich.table import Table as Shown

from tidegate_analytics import JOBS, LAKE
from tidegate_analytics.errors import InvalidOption
from tidegate_analytics.session import DEFAULT_MASTER, check_prerequisites, start

from ..console import err, head_option, json_option, out, print_json, progress, run
from ..demo_narration import AnalyticsTelling
from ..exit_codes import ExitCode
from ..result_files import out_option
from .analytics_publish import command as publish_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate_analytics.jobs import Options
    from tidegate_analytics.lake import BatchCounts
    from tidegate_analytics.report.material import Material
    from tidegate_analytics.runner import Progress, Table

_ROWS_SHOWN: Final = 10
_COLUMNS_SHOWN: Final = 8
_WIDE_ROWS_SHOWN: Final = 4
_DAY: Final = click.DateTime(["%Y-%m-%d"])
_MOMENT: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])
_master_option = click.option("--master", default=DEFAULT_MASTER, metavar="URL", help="Spark's master.")


@click.group("analytics")
def command() -> None:
    """Run Spark over telemetry: a lake of Parquet, and tables worked out from it (docs/analytics.md)."""


command.add_command(publish_command)


@command.command("run")
@click.argument("job", type=click.Choice(list(JOBS)))
@click.option("--lake", "lake_path", metavar="DIR", help="The lake to read.")
@head_option(
    "A head's RabbitMQ, whose telemetry stream is read: for `lake`, and instead of --lake for `attainment` and "
    "`balance`. May be repeated. A lake knows heads by their names, or else addresses: keep them.",
    multiple=True,
    metavar="[NAME=]AMQP_URL",
)
@click.option("--out", "out_path", required=True, metavar="DIR", help="Where tables are written; for `lake`, the lake.")
@_master_option
@click.option("--follow", is_flag=True, help="With --url: go on until Ctrl-C, instead of up to what is there now.")
@click.option("--since", type=_DAY, help="With --lake: the first day, UTC.")
@click.option("--until", type=_DAY, help="With --lake: the last day, UTC.")
@click.option("--window", "window_s", type=click.IntRange(min=1), metavar="S", help="Seconds of a window.")
@click.option(
    "--lateness", "lateness_s", type=click.IntRange(min=0), default=600, metavar="S",
    help="With --url: how late a record may be; later ones are dropped and counted.",
)  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=10, help="`rates`: windows to forecast.")
@click.option(
    "--coefficient", "coefficient_min", type=click.FloatRange(0, 1, min_open=True), default=0.5,
    help="`correlation`: the least that is told.",
)  # fmt: skip
@json_option
def run_job(job: str, urls: tuple[str, ...], lake_path: str | None, **given: Any) -> None:
    """Run a JOB and write its tables as Parquet.

    \b
    lake         streams of heads to Parquet, each record once; needs --url
    attainment   deadlines kept, latency quantiles
    balance      imbalance of edges, states, sessions, moves, returns
    audit        predicted against actual effect of sessions
    rates        rates, burstiness and forecasts of topics, service rates of edges
    correlation  topics whose rates rise together
    """
    if (
        lake_path is not None
        and click.get_current_context().get_parameter_source("urls") is ParameterSource.ENVIRONMENT
    ):
        urls = ()  # the variable is there for other commands
    _check(job, lake_path, urls, given)
    spark = start(given["master"])
    try:
        if job == LAKE:
            _lake(spark, urls, given)
        elif lake_path is not None:
            _over_lake(spark, job, lake_path, given)
        else:
            _live(spark, job, urls, given)
    except KeyboardInterrupt:
        if not given["follow"]:
            raise
    finally:
        spark.stop()


@command.command("report")
@click.option("--lake", "lake_path", required=True, metavar="DIR", help="A lake, or the --out of an experiment.")
@out_option("Where report.html is written.", required=True, metavar="DIR")
@click.option("--title", help="Heading of the page. [default: Tidegate, and the name of the lake]")
@click.option(
    "--since", type=_MOMENT, metavar="DAY[THH:MM]", help="Only what happened from then on: a day or a time, UTC."
)
@click.option("--until", type=_MOMENT, metavar="DAY[THH:MM]", help="Only what happened up to then; a day is included.")
@_master_option
@json_option
def report(
    lake_path: str,
    folder: Path,
    title: str | None,
    since: datetime | None,
    until: datetime | None,
    master: str,
    as_json: bool,
) -> None:
    """Draw what happened as one HTML page: load, queues, deadlines, moves, predictions, correlated topics.

    The page needs nothing else and fetches nothing: keep it, send it, print it.
    """
    check_prerequisites()
    from tidegate_agents.load.metrics import Metric, Role
    from tidegate_agents.load.states import THRESHOLDS
    from tidegate_analytics.report.gather import Choice
    from tidegate_analytics.report.loads import Lines
    from tidegate_analytics.report.writing import check_choice, prepare, write_report

    choice = Choice(_utc(since), _end(until))
    check_choice(choice)
    prepare(folder)
    low = THRESHOLDS[Role.EDGE, Metric.UPLINK].low
    assert low is not None
    heading = title or f"Tidegate: {Path(lake_path.rstrip('/')).name or lake_path}"
    with progress(quiet=as_json) as on_step:
        on_step("starting Spark", 0, 1)
        spark = start(master)
        on_step("starting Spark", 1, 1)
        try:
            written = write_report(
                spark, lake_path, folder, title=heading, choice=choice, lines=Lines(low), on_step=on_step
            )
        finally:
            spark.stop()
    if as_json:
        print_json({"report": str(written.path), "totals": asdict(written.material.totals)})
        return
    _tell(written.material)
    out().print(f"wrote {written.path}", soft_wrap=True)


@command.command("demo")
@out_option("Where report.html is written.", default=Path("tidegate-report"), metavar="DIR")
@click.option("--steady", type=click.FloatRange(3, 300), default=25, help="Seconds before the burst.")
@click.option("--burst", type=click.FloatRange(5, 300), default=45, help="Seconds of burst.")
@json_option
def demo(folder: Path, steady: float, burst: float, as_json: bool) -> None:
    """Start a cluster on real RabbitMQ, let a burst come, follow it with Spark, and draw a report.

    The story of `tidegate demo`, seen by the analytics. Ends by itself, and leaves nothing behind but the report. Exits
    with 1 if a message was lost, doubled or out of order.
    """
    check_prerequisites()
    from tidegate_analytics.report.writing import prepare
    from tidegate_experiments.demo.analytics import run_analytics_demo
    from tidegate_experiments.demo.story import JOINING_S

    prepare(folder)

    def say(text: str) -> None:
        if not as_json:
            out().print(escape(text), soft_wrap=True)

    burst_at_s = JOINING_S + steady
    with progress(quiet=as_json) as on_step:
        shown = run(run_analytics_demo(folder, burst_at_s, burst_at_s + burst, AnalyticsTelling(say), on_step))
    totals, windows = shown.written.material.totals, shown.windows
    if as_json:
        found = {"windows": [asdict(one) for one in windows], "totals": asdict(totals)}
        print_json({"report": str(shown.written.path), **asdict(shown.outcome), **found})
    else:
        if windows:
            late = sum(one.late for one in windows)
            received = sum(one.received for one in windows)
            say(f"\nAttainment, followed live: {len(windows)} windows, {late:,} late of {received:,} messages.")
        _tell(shown.written.material)
        say(f"\nLook at {shown.written.path.resolve()}")
    if not shown.outcome.complete:
        sys.exit(ExitCode.FAILED)


def _tell(material: Material) -> None:
    """The sentences of the page."""
    from tidegate_analytics.report.summary import sentences

    for sentence in sentences(material):
        out().print(escape(sentence), soft_wrap=True)


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)


def _end(moment: datetime | None) -> datetime | None:
    """The first moment that is not included: of a day without a time, the next day."""
    if moment is None:
        return None
    whole_day = (moment.hour, moment.minute, moment.second) == (0, 0, 0)
    return moment.replace(tzinfo=UTC) + (timedelta(days=1) if whole_day else timedelta(0))


def _check(job: str, lake_path: str | None, urls: tuple[str, ...], given: dict[str, Any]) -> None:
    if job == LAKE and lake_path is not None:
        raise InvalidOption("--lake", "it is what this job writes", "give --url and --out")
    if lake_path is not None and urls:
        raise InvalidOption("--url", "--lake is given too", "give one of them")
    if lake_path is None and not urls:
        missing = "--url" if job == LAKE else "--lake"
        raise InvalidOption(missing, "missing", "give --url AMQP_URL" if job == LAKE else "give the lake's directory")
    if lake_path is not None and given["follow"]:
        raise InvalidOption("--follow", "a lake is read as it is now", "leave it out, or give --url instead of --lake")
    if lake_path is None and (given["since"] or given["until"]):
        raise InvalidOption("--since", "days are chosen from a lake", "leave --since and --until out, or give --lake")


def _options(given: dict[str, Any]) -> Options:
    from tidegate_analytics.jobs import Options

    return Options(**{field.name: given[field.name] for field in fields(Options) if field.name in given})


def _day(moment: datetime | None) -> date | None:
    return None if moment is None else moment.date()


def _lake(spark: SparkSession, urls: tuple[str, ...], given: dict[str, Any]) -> None:
    from tidegate_analytics.runner import raw_messages, write_lake

    as_json = given["as_json"]

    def told(counts: BatchCounts) -> None:
        if as_json:
            print_json({"batch": counts.batch, "records": dict(counts.records), "refused": dict(counts.refused)})
            return
        text = f"batch {counts.batch}: {sum(counts.records.values())} records"
        refused = ", ".join(f"{number} {reason}" for reason, number in sorted(counts.refused.items()))
        out().print(f"{text}; in the quarantine: {refused}" if refused else text)

    write_lake(raw_messages(spark, urls), given["out_path"], follow=given["follow"], on_batch=told)


def _over_lake(spark: SparkSession, job: str, lake_path: str, given: dict[str, Any]) -> None:
    from tidegate_analytics.runner import run_over_lake

    days = _day(given["since"]), _day(given["until"])
    tables = run_over_lake(spark, job, lake_path, given["out_path"], _options(given), *days)
    if given["as_json"]:
        print_json({"job": job, "tables": {one.name: {"rows": one.rows, "path": one.path} for one in tables}})
        return
    for table in tables:
        _show(spark, table)


def _live(spark: SparkSession, job: str, urls: tuple[str, ...], given: dict[str, Any]) -> None:
    from tidegate_analytics.runner import raw_messages, run_live

    def told(progress: Progress) -> None:
        err().print(f"batch {progress.batch}: {progress.rows} messages read, {progress.late} records too late")

    options, follow = _options(given), given["follow"]
    total = run_live(raw_messages(spark, urls), job, given["out_path"], options, follow=follow, on_progress=told)
    if given["as_json"]:
        print_json({"job": job, "batch": total.batch, "messages": total.rows, "late": total.late})


def _show(spark: SparkSession, table: Table) -> None:
    """The first rows of a table, for a person."""
    console = out()
    console.print(f"[bold]{table.name}[/bold]  {table.rows} rows in {table.path}", soft_wrap=True)
    if not table.rows:
        return
    frame = spark.read.parquet(table.path)
    if len(frame.columns) <= _COLUMNS_SHOWN:
        shown = Shown(*frame.columns, box=None)
        for row in frame.limit(_ROWS_SHOWN).collect():
            shown.add_row(*[_text(value) for value in row])
    else:
        # Too wide for a terminal: a line for each column, and a few rows beside each other.
        shown = Shown(box=None, show_header=False)
        rows = frame.limit(_WIDE_ROWS_SHOWN).collect()
        for name in frame.columns:
            shown.add_row(name, *[_text(row[name]) for row in rows])
    console.print(shown)


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)
