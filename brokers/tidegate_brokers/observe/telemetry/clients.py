"""From the reports of clients to records: rates of publishers are added up per period, digests of subscribers are
copied.

Time is an argument.

Invariants: a subscriber's report is taken once, by its number. Subscribers are told when to report next so that all of
them together stay below `REPORTS_PER_S`. At most `STREAMS_MAX` pairs of publisher and topic are written per period; the
others are counted as dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate_agents.kit.memory import Recent
from tidegate_protocol.messages import PublisherReport, TopicCount
from tidegate_protocol.parts import INTEGER_MAX
from tidegate_protocol.reports import ReportTaken, SubscriberReport
from tidegate_protocol.telemetry import (
    TOPICS_MAX,
    LatencyDigest,
    MigrationGapTold,
    PublisherRates,
    TelemetryRecord,
    TopicRate,
)

from .origin import Origin

STREAMS_MAX: Final = 5_000
REPORTERS_MAX: Final = 50_000
"""Subscribers whose last report is remembered; the one that was silent longest is forgotten first."""
REPORTS_PER_S: Final = 50.0
"""What all subscribers together may report: a head takes a good millisecond for one of many digests."""


class SubscriberDesk:
    """Takes the reports of subscribers."""

    def __init__(self, origin: Origin, period_s: float) -> None:
        self._origin = origin
        self._period_s = period_s
        self._last: Recent[str, tuple[int, int]] = Recent(REPORTERS_MAX)
        """Run and number of the last report, by subscriber."""

    def answer(self, report: SubscriberReport) -> ReportTaken:
        """Taken, and when the next one is due: later where many report."""
        after_s = max(self._period_s, len(self._last) / REPORTS_PER_S)
        return ReportTaken(number=report.number, wanted=True, after_us=round(after_s * 1e6))

    def records(self, report: SubscriberReport, time_us: int) -> list[TelemetryRecord]:
        """What is to be written: nothing for a report that was taken before."""
        known = self._last.get(report.subscriber, (-1, 0))
        again = known[0] == report.run and report.number <= known[1]
        self._last[report.subscriber] = known if again else (report.run, report.number)
        return [] if again else self._made(report, time_us)

    def _made(self, report: SubscriberReport, time_us: int) -> list[TelemetryRecord]:
        header = self._origin.header(time_us)
        records: list[TelemetryRecord] = [
            LatencyDigest(
                **header,
                subscriber=report.subscriber,
                run=report.run,
                number=report.number,
                **{name: getattr(digest, name) for name in type(digest).model_fields},
            )
            for digest in report.digests
        ]
        records += [
            MigrationGapTold(
                **header,
                subscriber=report.subscriber,
                **{name: getattr(gap, name) for name in type(gap).model_fields},
            )
            for gap in report.gaps
        ]
        return records


@dataclass(slots=True)
class _Sum:
    """One topic of one publisher."""

    messages: int = 0
    bytes: int = 0
    gaps: int = 0
    gap_s_sum: float = 0.0
    gap_s2_sum: float = 0.0

    def add(self, count: TopicCount) -> None:
        self.messages += count.messages
        self.bytes += count.bytes
        self.gaps += count.gaps or 0
        self.gap_s_sum += count.gap_s_sum or 0.0
        self.gap_s2_sum += count.gap_s2_sum or 0.0


@dataclass(slots=True)
class _PublisherSums:
    active_us: int = 0
    round_trip_us: int = 0
    topics: dict[str, _Sum] = field(default_factory=dict)


class PublisherTotals:
    """Adds up the reports of publishers."""

    def __init__(self, origin: Origin, now: float) -> None:
        self.left_out = 0
        """Reports on topics that had no room; the caller who takes the records takes and clears this count, too."""
        self._origin = origin
        self._since_s = now
        self._publishers: dict[str, _PublisherSums] = {}
        self._streams = 0

    def reported(self, report: PublisherReport) -> None:
        publisher = self._publishers.get(report.publisher)
        if publisher is None:
            if self._streams >= STREAMS_MAX:
                self.left_out += 1
                return
            publisher = self._publishers[report.publisher] = _PublisherSums()
        publisher.active_us += report.elapsed_us
        publisher.round_trip_us = report.round_trip_us or publisher.round_trip_us
        for count in report.topics:
            topic = publisher.topics.get(count.topic)
            if topic is None:
                if self._streams >= STREAMS_MAX or len(publisher.topics) >= TOPICS_MAX:
                    self.left_out += 1
                    continue
                topic = publisher.topics[count.topic] = _Sum()
                self._streams += 1
            topic.add(count)

    def take(self, time_us: int, now: float) -> list[TelemetryRecord]:
        """What was reported since this was last asked, one record per publisher."""
        publishers, self._publishers, self._streams = self._publishers, {}, 0
        elapsed_us, self._since_s = max(1, round((now - self._since_s) * 1e6)), now
        return [
            PublisherRates(
                **self._origin.header(time_us),
                publisher=name,
                elapsed_us=elapsed_us,
                active_us=min(publisher.active_us, INTEGER_MAX),
                round_trip_us=publisher.round_trip_us,
                topics=tuple(
                    TopicRate(
                        topic=topic,
                        messages=min(one.messages, INTEGER_MAX),
                        bytes=min(one.bytes, INTEGER_MAX),
                        gaps=min(one.gaps, INTEGER_MAX),
                        gap_s_sum=one.gap_s_sum,
                        gap_s2_sum=one.gap_s2_sum,
                    )
                    for topic, one in sorted(publisher.topics.items())
                ),
            )
            for name, publisher in sorted(publishers.items())
            if publisher.topics
        ]
