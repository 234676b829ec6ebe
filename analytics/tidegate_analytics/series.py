"""Rates of many topics as rows of numbers of equal length, in blocks that one task can hold.

Invariants: a series has one value for each window that is covered (`rates.coverage`), in order, 0 where the topic had
no messages. All topics of a cluster have the same windows, the last `WINDOWS_MAX` at most. So a block is a matrix, and
a formula is applied to all topics of a block at once.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window, functions as F

from .rates import COVERED_MIN

WINDOWS_MAX: Final = 1_440
"""A day of minutes."""
BLOCK_TOPICS: Final = 256
"""With all windows a block is 3 MB; two of them are multiplied in a task."""


def series(rates: DataFrame, coverage: DataFrame, window_s: int) -> DataFrame:
    """Per cluster and topic: `windows`, their numbers, and `rates_per_s`, as many."""
    covered = coverage.where(F.col("covered_s") >= COVERED_MIN * window_s)
    last = F.slice(F.reverse(F.sort_array(F.collect_list("window"))), 1, WINDOWS_MAX)
    windows = covered.groupBy("cluster").agg(F.sort_array(last).alias("windows"))
    pairs = F.map_from_entries(F.collect_list(F.struct("window", "rate_per_s")))
    topics = rates.groupBy("cluster", "topic").agg(pairs.alias("known"))
    filled = F.expr("transform(windows, one -> coalesce(known[one], 0.0d))")
    return topics.join(windows, "cluster").select("cluster", "topic", "windows", filled.alias("rates_per_s"))


def blocks(topics: DataFrame) -> DataFrame:
    """Per cluster and block: `topics`, their series in `rows`, the cluster's `windows`, and how many topics it has."""
    # Only names are sorted here, in one task per cluster; numbers stay where they are.
    order = Window.partitionBy("cluster").orderBy("topic")
    names = topics.select("cluster", "topic")
    numbered = names.withColumn("block", F.floor((F.row_number().over(order) - 1) / BLOCK_TOPICS))
    numbered = numbered.withColumn("topics_all", F.count("topic").over(Window.partitionBy("cluster")))
    together = topics.join(numbered, ["cluster", "topic"]).groupBy("cluster", "block").agg(
        F.sort_array(F.collect_list(F.struct("topic", "rates_per_s"))).alias("all"),
        F.first("windows").alias("windows"),
        F.first("topics_all").alias("topics_all"),
    )  # fmt: skip
    return together.select(
        "cluster", "block", F.col("all.topic").alias("topics"), F.col("all.rates_per_s").alias("rows"), "windows",
        "topics_all",
    )  # fmt: skip
