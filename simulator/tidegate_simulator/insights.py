"""Insights of a scenario as the control messages they are."""

from __future__ import annotations

from tidegate_protocol.insight import CorrelatedPair, EdgeUplink, Insight, RateForecast

from .scenario import InsightSpec


def insight_message(spec: InsightSpec, cluster: str) -> Insight:
    """The message of an insight; `cluster` is that of the head it is for. Raises pydantic's `ValidationError`."""
    return Insight(
        cluster=spec.cluster or cluster,
        made_at_us=round(spec.made_at_s * 1e6),
        age_us=round(spec.age_s * 1e6),
        valid_for_us=round(spec.valid_for_s * 1e6),
        withdraws=spec.withdraws,
        pairs=tuple(
            CorrelatedPair(topic_a=one.topic_a, topic_b=one.topic_b, coefficient=one.coefficient) for one in spec.pairs
        ),
        forecasts=tuple(
            RateForecast(
                topic=one.topic,
                level_per_s=one.level_per_s,
                trend_per_s=one.trend_per_s,
                error_per_s=one.error_per_s,
                horizon_us=round(one.horizon_s * 1e6),
            )
            for one in spec.forecasts
        ),
        capacities=tuple(EdgeUplink(edge=one.edge, uplink_bytes_per_s=one.uplink_bytes_per_s) for one in spec.uplinks),
    )
