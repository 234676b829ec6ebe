"""The audit: what every session was predicted to do to each broker and metric, against what it did.

Records `prediction` and `outcome` are joined by session and broker, not by cluster: the target of a session may be in
another one. An outcome repeats what was predicted for its source; where the prediction itself was lost, that is used.
A session that is predicted anew counts with its last prediction, and a broker with its last outcome.

Invariants: an error is measured minus predicted, in the metric's own unit. A prediction without an outcome is in the
table, too, unmeasured, so that a policy can't look good by effects that were never measured.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window, functions as F

KEYS: Final = ("session", "broker", "metric")
OFFERED: Final = "bytes-offered"
"""Bytes per second offered to the uplink, which an outcome tells beside the metrics."""
UNKNOWN: Final = "unknown"


def audit(predictions: DataFrame, outcomes: DataFrame, began: DataFrame) -> DataFrame:
    """One row per session, broker and metric that was predicted."""
    policies = began.groupBy("session").agg(F.max("policy").alias("policy"), F.max("source").alias("began_by"))
    predicted, measured = _predicted(predictions), _measured(outcomes)
    rows = predicted.join(measured, list(KEYS), "full_outer").join(policies, "session", "left")
    value = F.coalesce("predicted_by_plan", "predicted_by_outcome")
    rows = rows.where(value.isNotNull()).select(
        F.coalesce("predicted_at", "measured_at").alias("time"),
        *KEYS,
        F.coalesce("policy", F.lit(UNKNOWN)).alias("policy"),
        F.when(F.col("broker") == F.coalesce("source", "began_by", "broker"), "source")
        .otherwise("target").alias("side"),
        "clients",
        "before",
        value.alias("predicted"),
        "measured",
        (F.col("measured") - value).alias("error"),
        "after_us",
    )  # fmt: skip
    right = F.signum(F.col("measured") - F.col("before")) == F.signum(F.col("predicted") - F.col("before"))
    return rows.withColumn("direction_right", right)


def errors(audited: DataFrame) -> DataFrame:
    """Per policy, metric and side: how many predictions, how many measured, and how wrong they were."""
    rows = audited.groupBy("policy", "metric", "side").agg(
        F.count_distinct("session").alias("sessions"),
        F.count("predicted").alias("predictions"),
        F.count("measured").alias("measured"),
        F.avg("error").alias("error_mean"),
        F.avg(F.abs("error")).alias("error_absolute_mean"),
        F.sqrt(F.avg(F.col("error") * F.col("error"))).alias("error_root_mean_square"),
        F.max(F.abs("error")).alias("error_absolute_max"),
        F.avg(F.col("direction_right").cast("double")).alias("direction_right_share"),
    )
    return rows.withColumn("unmeasured", F.col("predictions") - F.col("measured"))


def _predicted(predictions: DataFrame) -> DataFrame:
    rows = predictions.select(
        F.col("time").alias("predicted_at"), "time_us", "stream_offset", "session", "source", "clients",
        F.explode("effects").alias("effect"),
    )  # fmt: skip
    return _latest(
        rows.select(
            "predicted_at", "time_us", "stream_offset", "session", "source", "clients", "effect.broker",
            "effect.metric", "effect.before", F.col("effect.after").alias("predicted_by_plan"),
        )
    )  # fmt: skip


def _measured(outcomes: DataFrame) -> DataFrame:
    offered = F.when(
        F.col("bytes_offered_predicted_per_s").isNotNull(),
        F.array(
            F.struct(
                F.lit(OFFERED).alias("metric"),
                F.col("bytes_offered_per_s").alias("measured"),
                F.col("bytes_offered_predicted_per_s").alias("predicted"),
            )
        ),
    )
    none = F.expr("filter(metrics, one -> false)")
    rows = outcomes.select(
        F.col("time").alias("measured_at"), "time_us", "stream_offset", "session", "broker", "after_us",
        F.explode(F.concat("metrics", F.coalesce(offered, none))).alias("metric"),
    )  # fmt: skip
    return _latest(
        rows.select(
            "measured_at", "time_us", "stream_offset", "session", "broker", "after_us", "metric.metric",
            "metric.measured", F.col("metric.predicted").alias("predicted_by_outcome"),
        )
    )  # fmt: skip


def _latest(rows: DataFrame) -> DataFrame:
    """The last row for each of `KEYS`."""
    newest = Window.partitionBy(*KEYS).orderBy(F.desc("time_us"), F.desc("stream_offset"))
    ranked = rows.withColumn("rank", F.row_number().over(newest)).where(F.col("rank") == 1)
    return ranked.drop("rank", "time_us", "stream_offset")
