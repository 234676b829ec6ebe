"""What subscribers report to their head, for telemetry alone: no placement and no move depends on it.

    subscriber → head   subscriber-report    what its subscriptions have seen since the last report
    head → subscriber   report-taken         whether reports are wanted at all, and when the next one is due

A report takes the control connection that the subscriber has anyway. The head says in each answer when it wants the
next report, later where many subscribers report, so that it is never flooded. A head without telemetry says that it
wants none.

Invariant: a report is repeated unchanged, under its number, until it is answered, and the head takes each number once.
So nothing is counted twice, and what was seen while no head was there comes with the next report.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from .latency import BUCKETS
from .parts import INTEGER_MAX, DeadlineUs, Id, Message, Micros, Name, Part, Pattern

DIGESTS_PER_REPORT_MAX: Final = 50
"""Subscriptions in one report; others come with the next one. The widest digests fit into a control message."""
GAPS_PER_REPORT_MAX: Final = 50

Count = Annotated[int, Field(ge=0, le=INTEGER_MAX)]
Bucket = Annotated[int, Field(ge=0, lt=BUCKETS)]
Positive = Annotated[int, Field(gt=0, le=INTEGER_MAX)]


class LatencyCounts(Part):
    """Latencies between two moments, as `latency` describes: sparse, mergeable by adding counts of equal buckets."""

    latency_us_sum: Micros = 0
    """Of all of them, for an exact mean."""
    buckets: Annotated[tuple[Bucket, ...], Field(max_length=BUCKETS)] = ()
    """Ascending numbers of the buckets that hold something."""
    counts: Annotated[tuple[Positive, ...], Field(max_length=BUCKETS)] = ()
    """As many, one for each bucket."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.buckets) != len(self.counts):
            raise ValueError(f"counts: {len(self.counts)} for {len(self.buckets)} buckets; write one for each")
        if any(one >= other for one, other in zip(self.buckets, self.buckets[1:], strict=False)):
            raise ValueError("buckets: not ascending; write each bucket once, in order")
        return self


class SubscriptionDigest(LatencyCounts):
    """What one subscription has seen in a period. Without `published`, a message has no latency and is never late."""

    pattern: Pattern
    edge: Name | None = None
    """The edge that serves it now."""
    deadline_us: DeadlineUs
    elapsed_us: Positive
    """How long the period was, by the subscriber's own clock."""
    received: Count = 0
    """Messages handed to the application."""
    late: Count = 0
    late_unchecked: Count = 0
    """Late by the clock of a publisher that was not checked, or found wrong; not in `late`, and without a latency."""
    duplicates: Count = 0
    reordered: Count = 0
    missing: Count = 0
    """Not of the period: all that were skipped since the subscription began and have not come yet."""


class MigrationGap(Part):
    """How a move felt to its subscriber."""

    migration: Id
    pattern: Pattern
    source: Name
    target: Name
    gap_us: Micros
    """The longest pause in delivery around it."""
    held: Count = 0
    """Messages that came by the new edge too early and were kept back until it was their turn."""


class SubscriberReport(Message):
    kind: Literal["subscriber-report"] = "subscriber-report"
    subscriber: Name
    run: Count
    """Another number in every run of the subscriber's process; later runs have larger ones."""
    number: Positive
    """1, 2, 3 … in one run and towards one head."""
    digests: Annotated[tuple[SubscriptionDigest, ...], Field(max_length=DIGESTS_PER_REPORT_MAX)] = ()
    gaps: Annotated[tuple[MigrationGap, ...], Field(max_length=GAPS_PER_REPORT_MAX)] = ()


class ReportTaken(Message):
    kind: Literal["report-taken"] = "report-taken"
    number: Positive
    wanted: bool
    after_us: Positive
    """When to report next; where none are wanted, when to ask again."""


ReportMessage = SubscriberReport | ReportTaken
"""The part of the union `messages.ControlMessage` that this module defines."""
