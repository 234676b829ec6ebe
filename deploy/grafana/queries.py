"""Pieces of queries that several dashboards share."""

from __future__ import annotations

IN_CLUSTER = 'cluster=~"$cluster"'
OF_TOPIC = 'cluster=~"$cluster", topic=~"$topic"'
OF_BROKER = 'cluster=~"$cluster", broker="$broker"'
OF_BROKERS = 'cluster=~"$cluster", broker=~"$broker"'
RATE = "[$__rate_interval]"

STATE = """
    sum by (cluster, broker) (tidegate_broker_state_info{%s, state="HIGH"})
    + 2 * sum by (cluster, broker) (tidegate_broker_state_info{%s, state="OVERLOAD"})
    + 3 * sum by (cluster, broker) (tidegate_broker_state_info{%s, state="N/A"})
"""
ACTIVITY = """
    sum by (cluster, broker) (tidegate_broker_activity_info{%s, activity="stabilizing"})
    + 2 * sum by (cluster, broker) (tidegate_broker_activity_info{%s, activity="target"})
    + 3 * sum by (cluster, broker) (tidegate_broker_activity_info{%s, activity="source"})
"""


def selected(template: str, labels: str) -> str:
    """A template with the same labels everywhere."""
    return template.replace("%s", labels)


def recent(share: float, metric: str, labels: str, over: str, by: str = "le") -> str:
    """The same of something rare: over a fixed time."""
    return f"histogram_quantile({share}, sum by ({by}) (increase({metric}_bucket{{{labels}}}[{over}])))"


def quantile(share: float, metric: str, labels: str, by: str = "le") -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({share}, sum by ({by}) (rate({metric}_bucket{{{labels}}}{RATE})))"
