"""Latency statistics of one subscription, in a fixed amount of memory.

Latencies go into a histogram whose buckets grow with the value (`tidegate_protocol.latency`), so that a quantile is
right to 2 % from a microsecond to days. Adding a latency takes a handful of integer operations. Nothing here reads a
clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate_protocol.latency import BUCKETS, LATENCY_US_MAX, bucket_middle_us, bucket_of


@dataclass(frozen=True, slots=True)
class Statistics:
    """What one subscription has seen so far.

    Latencies are from publishing to hand-over to the application.
    """

    received: int
    late: int
    duplicates: int
    reordered: int
    missing: int
    foreign: int
    latency_count: int
    latency_mean_s: float
    latency_max_s: float
    latency_p50_s: float
    latency_p95_s: float
    latency_p99_s: float
    edge: str | None = None
    """The edge that serves it."""
    reconnects: int = 0
    """How often its consumer was lost and is back."""
    migrations: int = 0
    """How often it was moved to another edge."""
    migration_gap_s: float = 0.0
    """The longest pause in delivery around the last move."""
    migration_began_s: float | None = None
    """When the order for the last move came, on the clock of `time.monotonic`; None before the first."""
    migration_ended_s: float | None = None
    """When that move was over and its old queue left, on the same clock; None while it is under way."""
    held: int = 0
    """Messages that came by a new edge too early and were kept back until it was their turn."""
    collected: int = 0
    """Messages fetched from an edge that had been away."""
    malformed: int = 0
    """Messages whose headers can't be read: they were delivered without attributes."""
    unchecked: int = 0
    """Messages with an id of our form for which no account was checked, in a cluster that checks accounts. They were
    delivered, are counted as foreign, too, and no repetition of them is recognised."""
    late_unchecked: int = 0
    """Messages that came after their deadline by a time that nobody has checked, or that was found wrong; not in
    `late`."""
    replayed: int = 0
    """Messages that had been dropped because too much waited, and that an operator had sent again."""
    stray: int = 0
    """Messages whose topic the pattern does not match: their publisher had them sent here (header `CC` or `BCC`). They
    were dropped."""


class Histogram:
    """Counts of latencies, in buckets of growing width."""

    __slots__ = ("_counts", "count", "max_us", "total_us")

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self.count = 0
        self.total_us = 0
        self.max_us = 0

    def add(self, latency_us: int) -> None:
        """Count one latency; a negative one, which two clocks can produce, as zero."""
        if latency_us < 0:
            latency_us = 0
        self.count += 1
        if latency_us > self.max_us:
            self.max_us = latency_us
        # A publisher may claim any time: an absurd one must not make the sum too large to be reported.
        latency_us = min(latency_us, LATENCY_US_MAX)
        self.total_us += latency_us
        self._counts[bucket_of(latency_us)] += 1

    def counts(self) -> list[int]:
        """Of all buckets. A copy, because the synchronous client counts in one thread and asks in another."""
        return self._counts.copy()

    def mean_s(self) -> float:
        return self.total_us / self.count / 1e6 if self.count else 0.0

    def quantile_s(self, share: float) -> float:
        """The latency that `share` of all did not exceed; 0 where there is none."""
        counts = self.counts()
        wanted = share * sum(counts)
        seen = 0
        for bucket, count in enumerate(counts):
            seen += count
            if count and seen >= wanted:
                return min(bucket_middle_us(bucket), self.max_us) / 1e6
        return 0.0
