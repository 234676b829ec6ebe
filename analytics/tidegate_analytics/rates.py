"""Rates and burstiness of topics, from what publishers report (records `publisher-rates`).

A report tells how many messages a publisher sent on a topic in a period, and the sums of the gaps between them and of
their squares. A period seldom fits a window: its numbers are shared out over the windows it overlaps, by time, as if
the publisher had been even within it; nothing is lost or counted twice.

**Silence is not absence.** A publisher that sends nothing reports nothing, and so does a head that is down. A rate of 0
is believed where the cluster's telemetry is known to have been written: in periods in which any publisher reported, and
in windows with as many load samples of the head as is usual there. `coverage` says how much of each window that is;
rates are per second of it, and readers of several windows leave out the ones below `COVERED_MIN`.

**Several publishers on one topic.** Let λ_i be the rate of publisher i, λ their sum, and c_i² the squared coefficient
of variation of its gaps (1 for Poisson arrivals, 0 for a clock, more for bursts; 1 where it sent too little to tell).
The merged stream is no renewal process, so its c² is an approximation, that of W. Whitt's queueing network analyzer
(1983) for independent publishers:

    c² = w·Σ (λ_i/λ)·c_i² + (1 − w),    w = 1 ÷ (1 + 4·(1 − ρ)²·(v − 1)),    v = 1 ÷ Σ (λ_i/λ)²

The sum is exact for long times, and what a queue under heavy load feels; many publishers together look like Poisson
over short times, and to a queue under little load. ρ is the utilization of the queue in question, and v how many
publishers of equal rate there might be. One publisher: w = 1, and c² is its own.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, functions as F

from tidegate_protocol.operations import Role

from .windows import check_window

WINDOW_S: Final = 60
COVERED_MIN: Final = 0.9
UTILIZATION: Final = 0.9
"""ρ above: where the load management begins to look (the low threshold)."""
PERIOD_S_MAX: Final = 86_400
"""Reports of a longer period say nothing of rates: they are left out, which also bounds the windows of one report."""
GAPS_MIN: Final = 2
_US: Final = 1_000_000
_SUMS: Final = ("messages", "bytes", "gaps", "gap_s_sum", "gap_s2_sum")


def rates(
    reports: DataFrame, load: DataFrame | None = None, window_s: int = WINDOW_S, utilization: float = UTILIZATION
) -> DataFrame:
    """Per window, cluster and topic with messages: rate and burstiness. A window without messages has no row."""
    merged = _merged(_shares(reports, window_s), ["window", "cluster", "topic"], utilization)
    covered = coverage(reports, load, window_s).select("window", "cluster", "covered_s")
    return _told(merged.join(covered, ["window", "cluster"]), window_s)


def moments(
    reports: DataFrame, load: DataFrame | None = None, window_s: int = WINDOW_S, utilization: float = UTILIZATION
) -> DataFrame:
    """Per cluster and topic, over all the time there is: rate and burstiness."""
    merged = _merged(_shares(reports, window_s), ["cluster", "topic"], utilization)
    covered = coverage(reports, load, window_s).groupBy("cluster").agg(F.sum("covered_s").alias("covered_s"))
    return _columns(merged.join(covered, "cluster"), "cluster", "topic")


def coverage(reports: DataFrame, load: DataFrame | None = None, window_s: int = WINDOW_S) -> DataFrame:
    """Per window (by number, `window`, and by time) and cluster: of how many seconds the rates are known."""
    check_window(window_s)
    # All publishers of one report period have the same two times: it counts once.
    periods = _believable(reports).select("cluster", "broker", "time_us", "elapsed_us").distinct()
    known = _in_windows(periods, window_s).groupBy("window", "cluster").agg(F.sum("overlap_s").alias("reported_s"))
    if load is None:
        seen = known.withColumn("sampled_s", F.lit(0.0))
    else:
        seen = known.join(_sampled(load, window_s), ["window", "cluster"], "full_outer")
    nothing = F.lit(0.0)
    most = F.greatest(F.coalesce("reported_s", nothing), F.coalesce("sampled_s", nothing))
    rows = seen.withColumn("covered_s", F.least(most, F.lit(float(window_s))))
    return rows.select("window", *_times(window_s), "cluster", "covered_s")


def _sampled(load: DataFrame, window_s: int) -> DataFrame:
    """By the samples of the head: as many as in the median window of the cluster, and the whole window is covered."""
    heads = load.where(F.col("role") == Role.HEAD.value)
    counted = heads.groupBy(F.floor(F.col("time_us") / (window_s * _US)).alias("window"), "cluster").count()
    usual = counted.groupBy("cluster").agg(F.percentile_approx("count", 0.5, 1_000).alias("usual"))
    share = F.least(F.col("count") / F.col("usual"), F.lit(1.0))
    return counted.join(usual, "cluster").select("window", "cluster", (share * window_s).alias("sampled_s"))


def _believable(reports: DataFrame) -> DataFrame:
    return reports.where(F.col("elapsed_us") <= PERIOD_S_MAX * _US)


def _shares(reports: DataFrame, window_s: int) -> DataFrame:
    """What each publisher sent on each topic in each window."""
    check_window(window_s)
    rows = _in_windows(_believable(reports), window_s)
    rows = rows.select("window", "cluster", "publisher", "elapsed_us", "overlap_s", F.explode("topics").alias("of"))
    share = F.col("overlap_s") * _US / F.col("elapsed_us")
    return rows.select(
        "window", "cluster", "publisher", "of.topic", *[(F.col(f"of.{name}") * share).alias(name) for name in _SUMS]
    )


def _in_windows(periods: DataFrame, window_s: int) -> DataFrame:
    """A row for each window that a period overlaps, with the seconds of the overlap."""
    width_us = window_s * _US
    start_us, end_us = F.col("time_us") - F.col("elapsed_us"), F.col("time_us")
    first, last = F.floor(start_us / width_us), F.floor((end_us - 1) / width_us)
    rows = periods.withColumn("window", F.explode(F.sequence(first, last)))
    begins_us = F.col("window") * width_us
    overlap_us = F.least(end_us, begins_us + width_us) - F.greatest(start_us, begins_us)
    return rows.withColumn("overlap_s", overlap_us / _US)


def _merged(shares: DataFrame, keys: list[str], utilization: float) -> DataFrame:
    """Publishers together, by the formulas above."""
    of_publishers = shares.groupBy(*keys, "publisher").agg(*[F.sum(name).alias(name) for name in _SUMS])
    own = F.when(
        (F.col("gaps") >= GAPS_MIN) & (F.col("gap_s_sum") > 0),
        F.col("gaps") * F.col("gap_s2_sum") / (F.col("gap_s_sum") * F.col("gap_s_sum")) - 1,
    ).otherwise(1.0)
    # Shares of the rate are shares of the messages, for all were counted over the same time. Rounding may leave the c²
    # of a clock a hair below 0.
    parts = of_publishers.withColumn("scv", F.greatest(own, F.lit(0.0)))
    merged = parts.groupBy(*keys).agg(
        *[F.sum(name).alias(name) for name in ("messages", "bytes", "gaps")],
        F.count("publisher").alias("publishers"),
        F.sum(F.col("messages") * F.col("scv")).alias("weighted"),
        F.sum(F.col("messages") * F.col("messages")).alias("squares"),
    )
    some = merged.where(F.col("messages") > 0)
    equals = F.col("messages") * F.col("messages") / F.col("squares")
    weight = 1 / (1 + 4 * (1 - F.lit(utilization)) ** 2 * (equals - 1))
    asymptotic = F.col("weighted") / F.col("messages")
    return some.withColumn("scv_asymptotic", asymptotic).withColumn("scv", weight * asymptotic + 1 - weight)


def _told(merged: DataFrame, window_s: int) -> DataFrame:
    return _columns(merged.select("*", *_times(window_s)), "window", "window_start", "window_end", "cluster", "topic")


def _columns(merged: DataFrame, *keys: str) -> DataFrame:
    return merged.where(F.col("covered_s") > 0).select(
        *keys, "messages", "bytes", "publishers", "covered_s",
        (F.col("messages") / F.col("covered_s")).alias("rate_per_s"),
        (F.col("bytes") / F.col("covered_s")).alias("bytes_per_s"),
        "scv", "scv_asymptotic", "gaps",
    )  # fmt: skip


def _times(window_s: int) -> tuple[Column, Column]:
    width_us = window_s * _US
    begins_us = F.col("window") * width_us
    return (
        F.timestamp_micros(begins_us).alias("window_start"),
        F.timestamp_micros(begins_us + width_us).alias("window_end"),
    )
