"""What edges can serve: their uplinks and matching, as configured or learned, and as seen while they were busy.

An uplink's service rate shows only while something waits: then it carries what it can. So the rate that an edge really
had is a high quantile of what it carried in samples with a backlog; the highest sample of all would be the one with
the luckiest timing. An edge that never had a backlog has no such rate, and none is made up.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, functions as F

from tidegate_protocol.operations import Role

BACKLOG_MIN: Final = 1.0
"""Messages that wait on an edge that counts as busy."""
QUANTILE: Final = 0.95


def service(load: DataFrame) -> DataFrame:
    """Per edge: capacities as last told, and rates as seen."""
    edges = load.where(F.col("role") == Role.EDGE.value)
    busy = (F.col("waiting") >= BACKLOG_MIN) & F.col("bytes_used_per_s").isNotNull()
    used = F.when(busy, F.col("bytes_used_per_s"))
    rows = edges.groupBy("cluster", "broker").agg(
        F.count("*").alias("samples"),
        F.count(used).alias("busy_samples"),
        # The newest that is known: `max_by` passes over nulls of the order, not of the value, so both are told.
        *[
            F.max_by(name, F.when(F.col(name).isNotNull(), F.col("time_us"))).alias(name)
            for name in ("uplink_bytes_per_s", "downlink_bytes_per_s", "matching_per_s")
        ],
        F.percentile_approx(used, QUANTILE, 1_000).alias("served_bytes_per_s"),
        F.try_divide(F.sum("bytes_in_per_s"), F.sum("messages_in_per_s")).alias("message_bytes"),
    )
    served = F.when(F.col("message_bytes") > 0, F.col("served_bytes_per_s") / F.col("message_bytes"))
    return rows.withColumn("served_messages_per_s", served)
