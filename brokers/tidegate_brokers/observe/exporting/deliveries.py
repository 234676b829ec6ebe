"""Deliveries as subscribers saw them, from their reports to the head: in time or late, and after how long, by topic.

A report counts latencies in fine buckets (`tidegate_protocol.latency`). They are kept per topic, and are put into the
coarser buckets of a histogram when Prometheus asks. Bucket edges can therefore be at the deadlines, whatever deadlines
come: a new edge has the right counts from the beginning.

Invariants:

- topics are bounded by `TopicLabels`, edges by `DEADLINE_EDGES_MAX`, subscriptions remembered by `MISSING_MAX`;
- `late` and the bucket `le="1"` of latency over deadline are exact; in seconds a bucket's edge is right to 2 %;
- every count only grows, except the count of missing messages.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate_protocol.latency import bucket_middle_us
from tidegate_protocol.telemetry import LatencyDigest

from .classes import OTHER, TopicLabels

EDGES_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
DEADLINE_EDGES_MAX: Final = 12
"""Deadlines that get an edge of their own, first come first served."""
SHARE_EDGES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 2.0, 5.0)
"""Of latency over deadline: above 1 is late."""
IN_TIME: Final = SHARE_EDGES.index(1.0)
MISSING_MAX: Final = 50_000
"""Subscriptions whose missing messages are remembered; the longest silent ones are forgotten first."""


@dataclass(slots=True)
class _TopicDeliveries:
    """All that was reported of one class."""

    received: int = 0
    late: int = 0
    late_unchecked: int = 0
    duplicates: int = 0
    reordered: int = 0
    missing: int = 0
    deadline_s: float = float("inf")
    latency_s_sum: float = 0.0
    counts: dict[int, int] = field(default_factory=dict)
    """By fine bucket."""
    shares: list[int] = field(default_factory=lambda: [0] * (len(SHARE_EDGES) + 1))
    """By bucket of latency over deadline; the last is above all edges."""
    share_sum: float = 0.0


class DeliveryMetrics(Collector):
    """Adds up the digests that reach one head."""

    def __init__(self, topics_max: int) -> None:
        self._labels = TopicLabels(topics_max)
        self._topics: dict[str, _TopicDeliveries] = {OTHER: _TopicDeliveries()}
        self._deadlines_s: list[float] = []
        self._missing: OrderedDict[tuple[str, str], tuple[int, str]] = OrderedDict()
        """Per subscription: what it misses, and under which label that is counted."""

    def taken(self, digest: LatencyDigest) -> None:
        """Add one digest of one subscription."""
        label, gone = self._labels.label(digest.pattern, digest.time_us / 1e6)
        if gone is not None:
            del self._topics[gone]
        seen = self._topics.setdefault(label, _TopicDeliveries())
        deadline_s = digest.deadline_us / 1e6
        self._remember(deadline_s)
        seen.received += digest.received
        seen.late += digest.late
        seen.late_unchecked += digest.late_unchecked
        seen.duplicates += digest.duplicates
        seen.reordered += digest.reordered
        seen.deadline_s = min(seen.deadline_s, deadline_s)
        seen.latency_s_sum += digest.latency_us_sum / 1e6
        seen.share_sum += digest.latency_us_sum / digest.deadline_us
        for bucket, count in zip(digest.buckets, digest.counts, strict=True):
            seen.counts[bucket] = seen.counts.get(bucket, 0) + count
        for place, count in enumerate(shares(digest)):
            seen.shares[place] += count
        self._miss(digest, label)

    def _remember(self, deadline_s: float) -> None:
        if deadline_s not in self._deadlines_s and len(self._deadlines_s) < DEADLINE_EDGES_MAX:
            insort(self._deadlines_s, deadline_s)

    def _miss(self, digest: LatencyDigest, label: str) -> None:
        """What a subscription misses is told as it stands; it may become less."""
        subscription = (digest.subscriber, digest.pattern)
        before, under = self._missing.pop(subscription, (0, label))
        if under in self._topics:
            self._topics[under].missing -= before
        self._topics[label].missing += digest.missing
        if digest.missing:
            self._missing[subscription] = (digest.missing, label)
        if len(self._missing) > MISSING_MAX:
            _, (lost, of) = self._missing.popitem(last=False)
            if of in self._topics:
                self._topics[of].missing -= lost

    @property
    def edges_s(self) -> tuple[float, ...]:
        """The upper edges of the latency histogram, ascending."""
        return tuple(sorted({*EDGES_S, *self._deadlines_s}))

    # What is exported

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for every answer to /metrics."""
        topics = sorted((topic, seen) for topic, seen in self._topics.items() if seen.received or topic != OTHER)
        yield from self._counters(topics)
        edges_s = self.edges_s
        latency = HistogramMetricFamily(
            "tidegate_delivery_latency_seconds", "From publishing to the application, as subscribers saw it; with a "
            "bucket edge at each deadline", labels=["topic"],
        )  # fmt: skip
        share = HistogramMetricFamily(
            "tidegate_delivery_latency_deadline_ratio", "The same as a share of the deadline: above 1 is late",
            labels=["topic"],
        )  # fmt: skip
        for topic, seen in topics:
            latency.add_metric([topic], buckets=cumulated(_coarse(seen.counts, edges_s), edges_s),
                               sum_value=seen.latency_s_sum)  # fmt: skip
            share.add_metric([topic], buckets=cumulated(seen.shares, SHARE_EDGES), sum_value=seen.share_sum)
        yield latency
        yield share

    def _counters(self, topics: Sequence[tuple[str, _TopicDeliveries]]) -> Iterator[Metric]:
        for name, text, field_name in (
            ("received", "Messages handed to applications", "received"),
            ("late", "Of those, after their deadline", "late"),
            (
                "late_unchecked",
                "Not among those: after their deadline by a clock that was not checked",
                "late_unchecked",
            ),
            ("duplicate", "Messages that came again and were not handed over", "duplicates"),
            ("reordered", "Messages that came after later ones of their publisher", "reordered"),
        ):
            counter = CounterMetricFamily(f"tidegate_delivery_{name}_messages", text, labels=["topic"])
            for topic, seen in topics:
                counter.add_metric([topic], getattr(seen, field_name))
            yield counter
        missing = GaugeMetricFamily(
            "tidegate_delivery_missing_messages", "Skipped so far and not there yet, over all subscriptions",
            labels=["topic"],
        )  # fmt: skip
        deadline = GaugeMetricFamily(
            "tidegate_delivery_deadline_seconds", "The shortest deadline among its subscriptions", labels=["topic"]
        )
        for topic, seen in topics:
            missing.add_metric([topic], seen.missing)
            if seen.deadline_s < float("inf"):
                deadline.add_metric([topic], seen.deadline_s)
        yield missing
        yield deadline


def shares(digest: LatencyDigest) -> list[int]:
    """A digest in buckets of latency over deadline, as many late as it says: that is exact, a fine bucket is not."""
    found = [0] * (len(SHARE_EDGES) + 1)
    early = late = 0
    for bucket, count in zip(digest.buckets, digest.counts, strict=True):
        place = bisect_left(SHARE_EDGES, bucket_middle_us(bucket) / digest.deadline_us)
        found[place] += count
        if place <= IN_TIME:
            early += count
        else:
            late += count
    # The fine bucket in which the deadline lies may be on the wrong side of it: put right what that makes.
    wrong = min(max(digest.late - late, -late), early)
    for place in _towards(IN_TIME, wrong):
        moved = min(abs(wrong), found[place])
        found[place] -= moved
        found[IN_TIME + 1 if wrong > 0 else IN_TIME] += moved
        wrong -= moved if wrong > 0 else -moved
    return found


def _towards(in_time: int, wrong: int) -> range:
    """Buckets to take from, those next to the deadline first."""
    if wrong > 0:
        return range(in_time, -1, -1)
    return range(in_time + 1, len(SHARE_EDGES) + 1) if wrong < 0 else range(0)


def _coarse(counts: dict[int, int], edges_s: Sequence[float]) -> list[int]:
    found = [0] * (len(edges_s) + 1)
    for bucket, count in counts.items():
        found[bisect_left(edges_s, bucket_middle_us(bucket) / 1e6)] += count
    return found


def cumulated(counts: Sequence[int], edges: Sequence[float]) -> list[tuple[str, float]]:
    """As Prometheus wants it: each bucket holds all that are not above its edge."""
    total, found = 0, []
    for count, edge in zip(counts, (*edges, float("inf")), strict=True):
        total += count
        found.append(("+Inf" if edge == float("inf") else str(edge), float(total)))
    return found
