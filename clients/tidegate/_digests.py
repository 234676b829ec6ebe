"""What one subscription has to report: what was counted since the last report, and how moves felt.

Nothing here is touched by a message on its way: the inbox counts, and the difference between two moments is taken when
a report is made. What always holds: every message counted by the inbox is in exactly one digest; of moves that are not
reported yet the latest `GAPS_MAX` are kept. Time is an argument."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing import MigrateOrder
from tidegate_protocol.latency import BUCKETS, difference
from tidegate_protocol.reports import MigrationGap, SubscriptionDigest

from ._inbox import Inbox

GAPS_MAX: Final = 8
GAP_SETTLED_S: Final = 5.0
"""So long after a move its gap is told as it is known then, although nothing more has been delivered."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The counters of an inbox at one moment."""

    at_s: float
    received: int
    late: int
    duplicates: int
    reordered: int
    latency_us: int
    counts: list[int]


@dataclass(frozen=True, slots=True)
class _Move:
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
        self._seen = _Seen(now, 0, 0, 0, 0, 0, [0] * BUCKETS)
        self._order: MigrateOrder | None = None
        self._held_before = 0
        self._move: _Move | None = None
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
            duplicates=after.duplicates - before.duplicates,
            reordered=after.reordered - before.reordered,
            missing=self._inbox.missing(now),
            latency_us_sum=after.latency_us - before.latency_us,
            buckets=buckets,
            counts=counts,
        )

    def _look(self, now: float) -> _Seen:
        inbox = self._inbox
        return _Seen(
            now,
            inbox.received,
            inbox.late,
            inbox.duplicates,
            inbox.reordered,
            inbox.latencies.total_us,
            inbox.latencies.counts(),
        )

    # Moves

    def move_began(self, order: MigrateOrder | None, gap_s: float, held: int) -> None:
        """A migration begins; `gap_s` and `held` are what is known of the time before it."""
        self._settle(gap_s, held)
        self._order, self._held_before = order, held

    def move_ended(self, moved: bool, now: float) -> None:
        order, self._order = self._order, None
        if moved and order is not None:
            self._move = _Move(order, now, self._held_before)

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
