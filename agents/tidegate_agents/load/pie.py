"""Local load reports (PIE): when a broker publishes one, and what it remembers of the others'.

The rules of seed 002 §3.3.1. A report is generated once a period and published if a metric differs from the one
published last by more than a threshold, or if the state changed; otherwise it is suppressed, but never twice in a
row, because a report lives for three periods only and one that is lost must not make its broker disappear.

Invariant: an entry that expired is not seen by anybody, whether or not it has been thrown away yet; the
table has at most one entry per broker and a bounded number of them; a report of another cluster, or of oneself,
never gets in. Judges nobody: who may take load is a policy's decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing.loads import BrokerLoad, MetricReport, PieGlobal, PieLocal
from tidegate_protocol.parts import LoadState

from ..config import SILENT_PERIODS_MAX
from .metrics import BrokerSample, Metric, Role, utilizations
from .states import THRESHOLDS, Limits

RATIO_THRESHOLD: Final = 0.025
"""What a utilization may change without being told (seed 002 Table 5.2)."""

SUPPRESSED_MAX: Final = 1
"""How many reports in a row may be suppressed: published at least every other period."""

ENTRIES_MAX: Final = 1_024
"""Brokers remembered; more than a cluster has."""


class PiePublisher:
    """Decides which of the reports generated every period are published."""

    def __init__(self) -> None:
        self._last: PieLocal | PieGlobal | None = None
        self._suppressed = 0

    def published(self, report: PieLocal | PieGlobal) -> bool:
        """Whether this period's report is to be published. Called once a period."""
        last = self._last
        if last is not None and self._suppressed < SUPPRESSED_MAX and not _differs(report, last):
            self._suppressed += 1
            return False
        self._last, self._suppressed = report, 0
        return True


def _differs(report: PieLocal | PieGlobal, last: PieLocal | PieGlobal) -> bool:
    busy, busy_before = isinstance(report, PieLocal) and report.busy, isinstance(last, PieLocal) and last.busy
    if (report.state, busy) != (last.state, busy_before) or report.metrics.keys() != last.metrics.keys():
        return True
    return any(abs(now.value - last.metrics[name].value) > RATIO_THRESHOLD for name, now in report.metrics.items())


def pie_report(sample: BrokerSample, cluster: str, state: LoadState, *, busy: bool, period_s: float) -> PieLocal:
    """The report of one broker: its utilizations, as far as their capacities are known."""
    metrics = metrics_of(sample, THRESHOLDS)
    return PieLocal(broker=sample.broker, cluster=cluster, state=state, busy=busy, metrics=metrics, period_s=period_s)


def metrics_of(sample: BrokerSample, limits: Mapping[tuple[Role, Metric], Limits]) -> dict[str, MetricReport]:
    """The utilizations that are known, each with its thresholds."""
    reports = {}
    for metric, value in utilizations(sample).items():
        if value is not None:
            bounds = limits[sample.role, metric]
            reports[str(metric)] = MetricReport(value=value, low=bounds.low, high=bounds.high)
    return reports


def load_of(sample: BrokerSample, state: LoadState, *, busy: bool) -> BrokerLoad:
    """The load of one broker in absolute numbers, for a head that asks."""
    return BrokerLoad(
        broker=sample.broker,
        state=state,
        busy=busy,
        bytes_in_per_s=sample.bytes_in_per_s,
        bytes_offered_per_s=sample.bytes_offered_per_s,
        messages_in_per_s=sample.messages_in_per_s,
        capacity=sample.capacity,
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    report: PieLocal
    until_s: float


class PieTable:
    """What the other brokers of a cluster have reported lately."""

    def __init__(self, broker: str, cluster: str, entries_max: int = ENTRIES_MAX) -> None:
        self._broker = broker
        self._cluster = cluster
        self._entries_max = entries_max
        self._entries: dict[str, _Entry] = {}

    def heard(self, report: PieLocal, now: float) -> bool:
        """Keep a report, for three of its sender's periods. False if it is none of ours, or there is no room."""
        if report.cluster != self._cluster or report.broker == self._broker:
            return False
        if report.broker not in self._entries and len(self._entries) >= self._entries_max:
            self.expire(now)
            if len(self._entries) >= self._entries_max:
                return False
        self._entries[report.broker] = _Entry(report, now + SILENT_PERIODS_MAX * report.period_s)
        return True

    def forget(self, broker: str) -> None:
        """It said goodbye."""
        self._entries.pop(broker, None)

    def expire(self, now: float) -> None:
        """Throw away what is too old."""
        self._entries = {broker: entry for broker, entry in self._entries.items() if entry.until_s > now}

    def get(self, broker: str, now: float) -> PieLocal | None:
        """The last report of a broker, unless it has expired."""
        entry = self._entries.get(broker)
        return entry.report if entry is not None and entry.until_s > now else None

    def fresh(self, now: float) -> dict[str, PieLocal]:
        """All reports that have not expired, by broker, in the order of the names."""
        return {name: entry.report for name, entry in sorted(self._entries.items()) if entry.until_s > now}

    def validate(self) -> None:
        """Raise AssertionError if the table holds what it must not."""
        assert len(self._entries) <= self._entries_max
        for name, entry in self._entries.items():
            assert name == entry.report.broker != self._broker, name
            assert entry.report.cluster == self._cluster, name
