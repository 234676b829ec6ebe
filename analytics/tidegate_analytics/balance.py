"""Balance: how evenly the edges of a cluster are loaded, the states of brokers, and what balancing did about it.

Three tables. `imbalance` takes the mean of each metric of each edge over a window and compares the edges with one
another: an edge that samples more often weighs no more. The edges are all there are, so the standard deviation is that
of a population. Samples of an edge that takes no part (state N/A, as while it is drained) are left out. `states` tells
which share of a broker's samples had which state. `moves` counts sessions and moves, and the moves that were returns:
of a client to a broker that it had left by another move not long before, which is what oscillation looks like.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from tidegate_protocol.operations import Role
from tidegate_protocol.parts import LoadState

from .windows import check_window, in_windows, told_windows

WINDOW_S: Final = 60
LATENESS_S: Final = 600
MOVES_WINDOW_S: Final = 3_600
RETURN_S: Final = 3_600
"""How long a broker counts as one that the client left."""
METRICS: Final = (
    "uplink", "downlink", "matching", "bytes_offered_per_s", "messages_in_per_s", "waiting", "subscriptions",
)  # fmt: skip
STATES: Final = {
    LoadState.LOW: "share_low",
    LoadState.HIGH: "share_high",
    LoadState.OVERLOAD: "share_overload",
    LoadState.NOT_AVAILABLE: "share_not_available",
}


def imbalance(load: DataFrame, window_s: int = WINDOW_S, lateness_s: int = LATENESS_S) -> DataFrame:
    """Per window, cluster and metric, over the edges. Batch or streaming; in a batch nothing is late."""
    check_window(window_s, lateness_s)
    edges = load.withWatermark("time", f"{lateness_s} seconds").where(
        (F.col("role") == Role.EDGE.value) & (F.col("state") != LoadState.NOT_AVAILABLE.value)
    )
    of_edges = in_windows(edges, "time", window_s, "cluster", "broker").agg(
        *[F.avg(name).alias(name) for name in METRICS]
    )
    pairs = F.array(*[F.struct(F.lit(name).alias("metric"), F.col(name).alias("value")) for name in METRICS])
    values = of_edges.select("window", "cluster", F.explode(pairs).alias("pair")).select("window", "cluster", "pair.*")
    told = in_windows(values.where(F.col("value").isNotNull()), "window", window_s, "cluster", "metric").agg(
        F.count("value").alias("edges"),
        F.avg("value").alias("mean"),
        F.stddev_pop("value").alias("standard_deviation"),
        F.min("value").alias("min"),
        F.max("value").alias("max"),
    )
    some = F.col("mean") > 0
    return told.select(
        *told_windows(), "cluster", "metric", "edges", "mean", "standard_deviation",
        F.when(some, F.col("standard_deviation") / F.col("mean")).alias("coefficient_of_variation"),
        "min", "max",
        F.when(some, F.col("max") / F.col("mean")).alias("max_to_mean"),
    )  # fmt: skip


def states(load: DataFrame, changes: DataFrame, window_s: int = WINDOW_S) -> DataFrame:
    """Per window and broker: the share of samples in each state, and how often the state changed."""
    check_window(window_s)
    keys = ("cluster", "broker", "role")
    sampled = load.select("time", *keys, "state", F.lit(1).alias("sample"), F.lit(0).alias("change"))
    # The first state after a broker's start is a record, too, but no change.
    changed = changes.select(
        "time", *keys, "state", F.lit(0).alias("sample"), F.col("before").isNotNull().cast("int").alias("change")
    )
    rows = in_windows(sampled.unionByName(changed), "time", window_s, *keys).agg(
        F.sum("sample").alias("samples"),
        *[
            F.sum(F.when(F.col("state") == state.value, F.col("sample")).otherwise(0)).alias(name)
            for state, name in STATES.items()
        ],
        F.sum("change").alias("changes"),
    )
    shares = [F.when(F.col("samples") > 0, F.col(name) / F.col("samples")).alias(name) for name in STATES.values()]
    return rows.select(*told_windows(), *keys, "samples", *shares, "changes")


def moves(
    began: DataFrame, ended: DataFrame, migrations: DataFrame, window_s: int = MOVES_WINDOW_S, return_s: int = RETURN_S
) -> DataFrame:
    """Per window, by default an hour, cluster and kind of client: sessions, how they ended, moves and returns."""
    check_window(window_s)
    happenings = _beginnings(began).unionByName(_ends(ended), True).unionByName(_moves(migrations, return_s), True)
    names = [
        "sessions", "unnecessary_sessions", "remote_sessions", "sessions_ended", "migrations", "migrations_failed",
        "returns",
    ]  # fmt: skip
    rows = in_windows(happenings, "time", window_s, "cluster", "clients").agg(
        *[F.sum(F.coalesce(F.col(name), F.lit(0))).alias(name) for name in names],
        F.avg("session_us").alias("session_us_mean"),
        F.avg("migration_us").alias("migration_us_mean"),
    )
    return rows.select(*told_windows(), "cluster", "clients", *names, "session_us_mean", "migration_us_mean")


def _flag(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False)).cast("int")


def _beginnings(began: DataFrame) -> DataFrame:
    return began.select(
        "time", "cluster", "clients",
        F.lit(1).alias("sessions"),
        _flag(~F.col("necessary")).alias("unnecessary_sessions"),
        _flag(F.col("remote")).alias("remote_sessions"),
    )  # fmt: skip


def _ends(ended: DataFrame) -> DataFrame:
    return ended.select(
        "time", "cluster", "clients", F.lit(1).alias("sessions_ended"), F.col("duration_us").alias("session_us")
    )


def _moves(migrations: DataFrame, return_s: int) -> DataFrame:
    """Moves, and which of them were returns: the target was the source of an earlier move of the same client."""
    with_returns = returns(migrations, return_s)
    moved = F.col("moved")
    return with_returns.select(
        "time", "cluster", "clients",
        moved.cast("int").alias("migrations"),
        (~moved).cast("int").alias("migrations_failed"),
        F.col("is_return").cast("int").alias("returns"),
        F.when(moved, F.col("duration_us")).alias("migration_us"),
    )  # fmt: skip


def returns(migrations: DataFrame, return_s: int = RETURN_S) -> DataFrame:
    """Migrations with `is_return`. A client that stayed where it was has neither left nor returned."""
    earlier = (
        Window.partitionBy("clients", "client", "pattern").orderBy("time_us").rangeBetween(-return_s * 1_000_000, -1)
    )
    left = F.collect_set(F.when(F.col("moved"), F.col("source"))).over(earlier)
    return migrations.withColumn("is_return", F.col("moved") & F.array_contains(left, F.col("target")))
