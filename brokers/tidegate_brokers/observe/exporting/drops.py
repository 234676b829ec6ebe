"""What subscriptions did not get, as counters, made when Prometheus asks for them.

Invariants: the total by reason counts from 0 for every reason, so that the first drop shows as an increase. Of single
queues there are at most as many as configured, those that lost most; the label is a queue that was there.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from tidegate_agents.edge.drops import EdgeDrops


class DropMetrics(Collector):
    """Counters of an edge."""

    def __init__(self, drops: EdgeDrops, queues_max: int) -> None:
        self._drops = drops
        self._queues_max = queues_max

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Called by the registry for every answer to /metrics."""
        total = CounterMetricFamily(
            "tidegate_dropped_messages", "Messages that subscriptions did not get", labels=["reason"]
        )
        for reason, count in self._drops.totals.items():
            total.add_metric([str(reason)], count)
        yield total
        single = CounterMetricFamily(
            "tidegate_output_dropped_messages", "The same of one subscription", labels=["queue", "reason"]
        )
        counts = self._drops.by_queue()
        for (queue, reason), count in nsmallest(self._queues_max, counts.items(), key=lambda one: (-one[1], one[0])):
            single.add_metric([queue, str(reason)], count)
        yield single
