"""What one subscription reports to its head: its counts since the last report, and the pauses around its moves.

The inbox counts messages; a digest is the difference of two readings of its counters, taken when a report is made. So
reporting costs nothing per message.

Invariant: every message counted by the inbox is in exactly one digest. Of moves that are not reported yet, the latest
`GAPS_MAX` are kept. Time is an argument.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing.migrations import MigrateOrder
from tidegate_protocol.latency import BUCKETS, difference
from tidegate_protocol.parts import INTEGER_MAX
from tidegate_protocol.reports import MigrationGap, SubscriptionDigest

from .inbox import Inbox

GAPS_MAX: Final = 8
GAP_SETTLED_S: Final = 5.0
"""So long after a move its gap is told as it is known then, although nothing more has been delivered."""


@dataclass(frozen=True, slots=True)
class _Counters:
    """The counters of an inbox at one moment."""

    at_s: float
    received: int
    late: int
    duplicates: int
    reordered: int
    latency_us: int
    counts: list[int]
    late_unchecked: int = 0


@dataclass(frozen=True, slots=True)
class _MeasuredMove:
    """A move that succeeded and whose gap is still being measured."""

    order: MigrateOrder
    at_s: float
    held_before: int


class Digester:
    """Digests of one subscription."""

    def __init__(self, inbox: Inbox, pattern: str, deadline_us: int, now: float) -> None:
        self._inbox = inbox
        self._pattern = pattern
        self._deadline_us = deadline_us
        self._seen = _Counters(now, 0, 0, 0, 0, 0, [0] * BUCKETS)
        self._order: MigrateOrder | None = None
        self._held_before = 0
        self._move: _MeasuredMove | None = None
        self._gaps: deque[MigrationGap] = deque(maxlen=GAPS_MAX)

    def digest(self, edge: str | None, now: float) -> SubscriptionDigest | None:
        """What was seen since this was last asked; None if that is nothing."""
        before, after = self._seen, self._look(now)
        if (after.received, after.duplicates) == (before.received, before.duplicates) or now <= before.at_s:
            return None
        self._seen = after
        buckets, counts = difference(after.counts, before.counts)
        return SubscriptionDigest(
            pattern=self._pattern,
            edge=edge,
            deadline_us=self._deadline_us,
            elapsed_us=max(1, round((now - before.at_s) * 1e6)),
            received=after.received - before.received,
            late=after.late - before.late,
            late_unchecked=after.late_unchecked - before.late_unchecked,
            duplicates=after.duplicates - before.duplicates,
            reordered=after.reordered - before.reordered,
            # Anybody may claim a sequence far ahead, and all below it is missing then.
            missing=min(self._inbox.missing(now), INTEGER_MAX),
            latency_us_sum=after.latency_us - before.latency_us,
            buckets=buckets,
            counts=counts,
        )

    def _look(self, now: float) -> _Counters:
        inbox = self._inbox
        return _Counters(
            now,
            inbox.received,
            inbox.late,
            inbox.duplicates,
            inbox.reordered,
            inbox.latencies.total_us,
            inbox.latencies.counts(),
            inbox.late_unchecked,
        )

    # Moves

    def move_began(self, order: MigrateOrder | None, gap_s: float, held: int) -> None:
        """A migration begins; `gap_s` and `held` are what is known of the time before it."""
        self._settle(gap_s, held)
        self._order, self._held_before = order, held

    def move_ended(self, moved: bool, now: float) -> None:
        order, self._order = self._order, None
        if moved and order is not None:
            self._move = _MeasuredMove(order, now, self._held_before)

    def gaps(self, gap_s: float, held: int, measuring: bool, now: float) -> list[MigrationGap]:
        """The moves whose gaps are known, each told once. `measuring`: whether the last gap may still grow."""
        if self._move is not None and (not measuring or now - self._move.at_s >= GAP_SETTLED_S):
            self._settle(gap_s, held)
        gaps = list(self._gaps)
        self._gaps.clear()
        return gaps

    def _settle(self, gap_s: float, held: int) -> None:
        move, self._move = self._move, None
        if move is None:
            return
        order = move.order
        self._gaps.append(
            MigrationGap(
                migration=order.migration,
                pattern=order.pattern,
                source=order.edge_from,
                target=order.edge,
                gap_us=round(gap_s * 1e6),
                held=held - move.held_before,
            )
        )
