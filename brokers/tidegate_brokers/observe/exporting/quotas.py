"""What accounts and tenants use of their quotas, as gauges made when Prometheus asks.

Invariant: labels are bounded: of at most `QUOTA_SERIES_MAX` quotas, those of which most is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate_protocol.operations import QuotaUse

QUOTA_SERIES_MAX: Final = 50


class QuotaMetrics(Collector):
    """Gauges of a head."""

    def __init__(self, uses: Callable[[], tuple[QuotaUse, ...]]) -> None:
        """`uses`: the most used first."""
        self._uses = uses

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry for every answer to /metrics."""
        family = GaugeMetricFamily(
            "tidegate_quota_used_ratio", "What an account or a tenant uses of a quota; 1 is all of it",
            labels=["account", "tenant", "quota"],
        )  # fmt: skip
        for use in self._uses()[:QUOTA_SERIES_MAX]:
            family.add_metric([use.account, use.tenant, str(use.quota)], use.share)
        yield family
