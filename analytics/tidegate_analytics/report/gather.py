"""From a lake to the material of a report, with Spark: small, whatever the size of the lake.

Invariants: counts cover everything in the chosen time. For the drawings, time is cut into at most `WINDOWS_MAX`
windows, and Spark chooses the brokers, queues, topics, sessions and moves that matter most before anything is
collected. Numbers that a job works out are taken from that job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import reduce
from typing import Any, Final

import numpy as np
from pyspark.sql import Column, DataFrame, Window, functions as F

from tidegate_protocol.operations import Role
from tidegate_protocol.telemetry import KINDS

from ..attainment import attainment
from ..audit import OFFERED, audit, errors
from ..balance import returns
from ..correlation import WINDOWS_MIN, correlation
from ..errors import LakeEmpty
from ..lake import Lake
from ..rates import coverage, rates
from ..record_file import RecordFile
from ..series import series
from .material import (
    STATES,
    US,
    BrokerLoad,
    Correlations,
    LatenessPoint,
    LoadPoint,
    Material,
    MetricError,
    Move,
    Predicted,
    QueueDepth,
    QueuePoint,
    Session,
    Span,
    TopicLateness,
    Totals,
)
from .svg import window_s

WINDOWS_MAX: Final = 150
DETAIL_WINDOWS_MAX: Final = 75
BROKERS_MAX: Final = 12
QUEUES_MAX: Final = 6
TOPICS_MAX: Final = 15
SESSIONS_MAX: Final = 500
MOVES_MAX: Final = 300
PREDICTIONS_MAX: Final = 400
CORRELATED_MAX: Final = 14
CORRELATED_WINDOWS_MIN: Final = 8
PAIRS_MAX: Final = 1_000
STEADY: Final = 0.01
"""A rate whose root deviates by less than this share of its mean does not change: what is left is rounding."""
RATIO_MAX: Final = 99.0
"""Depth ÷ threshold where nothing at all might have waited."""
_HAPPENINGS: Final = ("load", "latency", "publisher-rates", "session-began", "session-ended", "migration")
"""Their times make up the span."""

Records = Callable[[str], DataFrame]
Step = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which time; None: from the beginning, to the end. `until` is not included."""

    since: datetime | None = None
    until: datetime | None = None

    def days(self) -> tuple[date | None, date | None]:
        since = None if self.since is None else self.since.date()
        return since, None if self.until is None else (self.until - timedelta(microseconds=1)).date()

    def of(self, rows: DataFrame) -> DataFrame:
        if self.since is not None:
            rows = rows.where(F.col("time_us") >= round(self.since.timestamp() * US))
        return rows if self.until is None else rows.where(F.col("time_us") < round(self.until.timestamp() * US))


def gather(lake: Lake | RecordFile, choice: Choice, on_step: Step) -> Material:
    """Everything for a report on the chosen time."""
    since, until = choice.days()

    def records(kind: str) -> DataFrame:
        return choice.of(lake.read(kind, since, until))

    steps = ("load", "queues", "deadlines", "sessions and moves", "predictions", "correlation")

    def done(count: int) -> None:
        on_step("reading the lake", count, len(steps) + 1)

    done(0)
    counts, span = _span(records, lake.files.root)
    refused = lake.quarantine().count()
    done(1)
    loads, edges = _loads(records("load"), span)
    done(2)
    queues = _queues(records("thresholds"), span)
    done(3)
    topics, clients = _deadlines(records("latency"), span)
    done(4)
    sessions, moves, happened = _sessions(records)
    done(5)
    predictions, wrong = _predictions(records)
    done(6)
    correlated = correlations(records, span)
    done(7)
    totals = Totals(records=counts, refused=refused, edges=edges, **clients, **happened)
    clusters = tuple(sorted({load.cluster for load in loads} | {topic.cluster for topic in topics}))
    return Material(
        span, totals, loads, queues, topics, sessions, moves, predictions, wrong, correlated, clusters
    )  # fmt: skip


def _span(records: Records, path: str) -> tuple[int, Span]:
    times = [records(kind).select(F.lit(kind).alias("kind"), "time_us") for kind in KINDS]
    rows = (
        reduce(DataFrame.unionByName, times)
        .groupBy("kind")
        .agg(F.count("*").alias("count"), F.min("time_us").alias("first"), F.max("time_us").alias("last"))
        .collect()
    )
    shown = [row for row in rows if row["kind"] in _HAPPENINGS]
    if not shown:
        raise LakeEmpty(path)
    start_us, end_us = min(row["first"] for row in shown), max(row["last"] for row in shown)
    seconds = max((end_us - start_us) / US, 1.0)
    # Windows begin at whole multiples of their length: nothing is drawn for a part of one.
    window = window_s(seconds, WINDOWS_MAX)
    periods = records("latency").select("elapsed_us").unionByName(records("publisher-rates").select("elapsed_us"))
    usual_us = periods.agg(F.percentile_approx("elapsed_us", 0.5)).collect()[0][0] or US
    detail = max(window_s(seconds, DETAIL_WINDOWS_MAX), window_s(usual_us / US, 1))
    span = Span(start_us, max(end_us, start_us + US), window, detail)
    return sum(row["count"] for row in rows), span


def _window_us(window_s: int) -> Column:
    """The middle of the window of a record."""
    width_us = window_s * US
    return (F.floor(F.col("time_us") / width_us) * width_us + width_us // 2).cast("long").alias("at_us")


# Load and queues


def _loads(load: DataFrame, span: Span) -> tuple[tuple[BrokerLoad, ...], int]:
    edges = load.where(F.col("role") == Role.EDGE.value)
    weight = F.array_position(F.array(*[F.lit(state) for state in STATES]), F.col("state")) - 1
    windows = (
        edges.where(F.col("uplink").isNotNull())
        .groupBy("cluster", "broker", _window_us(span.window_s))
        .agg(F.avg("uplink").alias("uplink"), F.max(weight).alias("weight"))
        .persist()
    )
    worst = windows.groupBy("cluster", "broker").agg(F.max("uplink").alias("most"))
    chosen = worst.orderBy(F.desc("most"), "broker").limit(BROKERS_MAX).select("cluster", "broker")
    rows = windows.join(chosen, ["cluster", "broker"]).orderBy("cluster", "broker", "at_us").collect()
    found: dict[tuple[str, str], list[LoadPoint]] = {}
    for row in rows:
        point = LoadPoint(row["at_us"], row["uplink"], STATES[row["weight"]])
        found.setdefault((row["cluster"], row["broker"]), []).append(point)
    count = edges.select("cluster", "broker").distinct().count()
    return tuple(BrokerLoad(*name, tuple(points)) for name, points in found.items()), count


def _queues(thresholds: DataFrame, span: Span) -> tuple[QueueDepth, ...]:
    """Of each pattern the subscription that came nearest to its threshold, and of these the nearest few."""
    queues = thresholds.select("cluster", "broker", "time_us", F.explode("queues").alias("queue")).select(
        "cluster", "broker", "time_us", "queue.*"
    )
    queues = queues.where(F.col("threshold").isNotNull() & ~F.col("migrating") & ~F.col("away")).persist()
    ratio = F.when(F.col("threshold") > 0, F.col("depth") / F.col("threshold")).otherwise(
        F.when(F.col("depth") > 0, RATIO_MAX).otherwise(0.0)
    )
    keys = ["cluster", "pattern", "subscriber"]
    nearest = queues.groupBy(*keys).agg(
        F.max(F.least(ratio, F.lit(RATIO_MAX))).alias("nearest"), F.max("deadline_us").alias("deadline")
    )
    order = Window.partitionBy("cluster", "pattern").orderBy(F.desc("nearest"), "subscriber")
    best = nearest.withColumn("rank", F.row_number().over(order)).where("rank = 1").drop("rank")
    chosen = best.orderBy(F.desc("nearest"), "pattern").limit(QUEUES_MAX)
    windows = (
        queues.join(chosen, keys)
        .groupBy(*keys, "nearest", "deadline", _window_us(span.window_s))
        .agg(
            F.max("depth").alias("depth"),
            F.min("threshold").alias("threshold"),
            F.max_by("broker", "time_us").alias("broker"),
        )
    )
    rows = windows.orderBy(F.desc("nearest"), *keys, "at_us").collect()
    found: dict[tuple[str, str, int, float], list[QueuePoint]] = {}
    for row in rows:
        name = (row["subscriber"], row["pattern"], row["deadline"], row["nearest"])
        found.setdefault(name, []).append(QueuePoint(row["at_us"], row["depth"], row["threshold"], row["broker"]))
    return tuple(QueueDepth(*name, tuple(points)) for name, points in found.items())


# Deadlines


def _deadlines(digests: DataFrame, span: Span) -> tuple[tuple[TopicLateness, ...], dict[str, Any]]:
    attained = attainment(digests, span.detail_s).where("grain = 'pattern'").persist()
    keys = ["cluster", "pattern"]
    closeness = F.max(F.col("latency_us_p99") / F.col("deadline_us_min"))
    topics = attained.groupBy(*keys).agg(
        F.sum("received").alias("received"),
        F.sum("late").alias("late"),
        F.min("deadline_us_min").alias("deadline"),
        F.sum("duplicates").alias("duplicates"),
        closeness.alias("closeness"),
    )
    totals = topics.agg(
        F.count("*").alias("topics"),
        *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("received", "late", "duplicates")],
    ).collect()[0]
    missing = digests.groupBy("subscriber", "pattern").agg(F.max_by("missing", "time_us").alias("missing"))
    told = missing.agg(F.count("*").alias("subscriptions"), F.coalesce(F.sum("missing"), F.lit(0)).alias("lost"))
    chosen = topics.orderBy(F.desc("late"), F.desc("closeness"), "pattern").limit(TOPICS_MAX)
    rows = (
        attained.select(
            *keys,
            F.unix_micros("window_start").alias("start_us"),
            F.col("received").alias("n"),
            F.col("late").alias("late_n"),
            "latency_us_p99",
        )
        .join(chosen, keys)
        .orderBy(F.desc("late"), F.desc("closeness"), *keys, "start_us")
        .collect()
    )
    found: dict[tuple[str, str, int, int, int], list[LatenessPoint]] = {}
    for row in rows:
        name = (row["cluster"], row["pattern"], row["deadline"], row["received"], row["late"])
        point = LatenessPoint(row["start_us"], row["n"], row["late_n"], row["latency_us_p99"])
        found.setdefault(name, []).append(point)
    counts = {**totals.asDict(), **told.collect()[0].asDict()}
    return tuple(TopicLateness(*name, tuple(points)) for name, points in found.items()), counts


# Sessions, moves, predictions


def _sessions(records: Records) -> tuple[tuple[Session, ...], tuple[Move, ...], dict[str, Any]]:
    began, ended, migrations = records("session-began"), records("session-ended"), records("migration")
    counted = began.agg(
        F.count("*").alias("sessions"),
        F.coalesce(F.sum((~F.col("necessary")).cast("int")), F.lit(0)).alias("unnecessary"),
        F.collect_set("policy").alias("policies"),
    ).collect()[0]
    moved, failed = F.col("moved").cast("int"), (~F.col("moved")).cast("int")
    with_returns = returns(migrations)
    moves_counted = with_returns.agg(
        F.count_distinct(F.when(F.col("moved"), F.col("session"))).alias("sessions_moving"),
        F.coalesce(F.sum(moved), F.lit(0)).alias("moves"),
        F.coalesce(F.sum(failed), F.lit(0)).alias("moves_failed"),
        F.coalesce(F.sum(F.col("is_return").cast("int")), F.lit(0)).alias("returns"),
    ).collect()[0]
    ends: dict[str, list[Any]] = {}
    for row in ended.orderBy("time_us").limit(10 * SESSIONS_MAX).collect():
        ends.setdefault(row["session"], []).append(row)
    sessions = [
        _session(row, ends.get(row["session"], []))
        for row in began.orderBy(F.desc("time_us")).limit(SESSIONS_MAX).collect()
    ]
    together = migrations.groupBy("session", "source", "target", "pattern").agg(
        F.min("time_us").alias("began_us"), F.max("time_us").alias("ended_us"),
        F.sum(moved).alias("moved"), F.sum(failed).alias("failed"),
    )  # fmt: skip
    moves = [
        Move(
            row["session"], row["source"], row["target"], row["pattern"] or "", row["began_us"], row["ended_us"],
            row["moved"], row["failed"],
        )
        for row in together.orderBy(F.desc("began_us"), "pattern").limit(MOVES_MAX).collect()
    ]  # fmt: skip
    totals = {**counted.asDict(), **moves_counted.asDict()}
    totals["policies"] = tuple(sorted(totals["policies"]))
    return tuple(sorted(sessions, key=lambda one: one.began_us)), tuple(reversed(moves)), totals


def _session(row: Any, ends: list[Any]) -> Session:
    """The session of a drain has the same name each time: its end is the first one after its beginning."""
    end = next((one for one in ends if one["time_us"] >= row["time_us"]), None)
    return Session(
        row["session"],
        row["source"],
        row["clients"],
        row["policy"],
        row["time_us"],
        end["time_us"] if end is not None else None,
        row["necessary"],
        end["moved"] if end is not None else 0,
        end["failed"] if end is not None else 0,
    )


def _predictions(records: Records) -> tuple[tuple[Predicted, ...], tuple[MetricError, ...]]:
    audited = audit(records("prediction"), records("outcome"), records("session-began")).persist()
    measured = audited.where((F.col("metric") != OFFERED) & F.col("measured").isNotNull())
    names = ["session", "broker", "metric", "side", "predicted", "measured"]
    rows = measured.orderBy(F.desc("time"), *names[:3]).limit(PREDICTIONS_MAX).select(*names).collect()
    summed = errors(audited).groupBy("metric", "side").agg(
        F.sum("predictions").alias("predictions"),
        F.sum("measured").alias("n"),
        (F.sum(F.col("error_mean") * F.col("measured")) / F.sum("measured")).alias("mean"),
        (F.sum(F.col("error_absolute_mean") * F.col("measured")) / F.sum("measured")).alias("absolute"),
        F.max("error_absolute_max").alias("most"),
    )  # fmt: skip
    wrong = [MetricError(*row) for row in summed.where("n > 0").orderBy("metric", "side").collect()]
    return tuple(Predicted(*row) for row in rows), tuple(wrong)


# Correlation


def correlations(records: Records, span: Span) -> Correlations | None:
    """Of the busiest cluster: topics of pairs that the job tells, strongest first, and then the busiest ones."""
    reports, load = records("publisher-rates"), records("load")
    by_window = rates(reports, load, span.detail_s).persist()
    covered = coverage(reports, load, span.detail_s).persist()
    busiest = by_window.groupBy("cluster", "topic").agg(F.sum("messages").alias("messages"))
    top = busiest.orderBy(F.desc("messages"), "topic").limit(CORRELATED_MAX).collect()
    if len(top) < 2:
        return None
    cluster = top[0]["cluster"]
    pairs: list[tuple[str, str]] = []
    if covered.where(F.col("cluster") == cluster).count() >= WINDOWS_MIN:
        told = correlation(by_window, covered, span.detail_s).where(F.col("cluster") == cluster)
        pairs = [(row["topic_a"], row["topic_b"]) for row in told.limit(PAIRS_MAX).collect()]
    wanted = dict.fromkeys([topic for pair in pairs for topic in pair][:CORRELATED_MAX])
    wanted |= dict.fromkeys(row["topic"] for row in top if row["cluster"] == cluster)
    names = sorted(list(wanted)[:CORRELATED_MAX])
    chosen = by_window.where((F.col("cluster") == cluster) & F.col("topic").isin(names))
    rows = {row["topic"]: row["rates_per_s"] for row in series(chosen, covered, span.detail_s).collect()}
    names = [name for name in names if name in rows]
    if len(names) < 2:
        return None
    values = in_traffic(np.asarray([rows[name] for name in names], dtype=np.float64))
    if values.shape[1] < CORRELATED_WINDOWS_MIN:
        return None
    return Correlations(
        tuple(names), coefficients(np.sqrt(values)), frozenset(pairs), values.shape[1], span.detail_s
    )  # fmt: skip


def in_traffic(values: Any) -> Any:
    """Without the time before anybody published and after everybody did, and without the windows that are only partly
    in between: that all of them begin and end together says nothing of how they go together.
    """
    busy = np.flatnonzero(values.sum(axis=0) > 0)
    return values[:, busy[0] + 1 : busy[-1]] if len(busy) else values[:, :0]


def coefficients(values: Any) -> tuple[tuple[float | None, ...], ...]:
    """Pearson's, of each row with each; None where one of them hardly changes."""
    means = values.mean(axis=1, keepdims=True)
    centred = values - means
    lengths = np.sqrt((centred**2).sum(axis=1))
    known = lengths > STEADY * means[:, 0] * np.sqrt(values.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (centred @ centred.T) / np.outer(lengths, lengths)
    return tuple(
        tuple(float(found[i, j]) if known[i] and known[j] else None for j in range(len(values)))
        for i in range(len(values))
    )
