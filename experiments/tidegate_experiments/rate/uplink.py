"""The uplink of an edge as a fluid: FIFO, shared by all of its subscriptions.

A flow that offers a share of all bytes gets that share of the capacity; once something waits, it drains in proportion
to what waits of each flow. With a(t) offered by one flow, A by all, C the capacity, and b, B what waits:

    b' = a − C·b/B        B' = A − C

Between two changes of the input this has a closed solution, b(t) = (a/A)·B(t) + h·(B(t)/B(0))^(C/(C−A)), so that
nothing depends on how finely time is divided. Invariants:

- bytes are neither made nor lost: what arrived has been drained or waits, except for a queue that was removed;
- whatever arrives now waits B/C, whichever flow it belongs to: that is what FIFO means;
- subscriptions to one pattern whose queues have had the same history form one group, and cost as much as one.

An exact FIFO drains in the proportions of what arrived B/C ago; this one mixes what waits. The two agree while the
proportions of what is offered stay the same, as in a burst; after a change they differ for as long as the old backlog
lasts, in the shares of the flows and never in the wait.

Knows no agent and no message; time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, inf
from typing import Final

EMPTY_BYTES: Final = 1e-6
"""Less than this does not wait: the arithmetic of floats leaves such crumbs."""

SAME_RATE: Final = 1e-12
"""Relative difference below which offered and capacity count as equal: the general solution would divide by it."""


class Group:
    """Subscriptions to one pattern whose queues have had the same history; amounts are those of each member."""

    __slots__ = ("arrived", "backlog_bytes", "drained", "members", "message_bytes", "pattern", "per_s", "waits")

    def __init__(self, pattern: str, per_s: float, message_bytes: float) -> None:
        self.pattern = pattern
        self.per_s = per_s
        self.message_bytes = message_bytes
        self.backlog_bytes = 0.0
        self.members: dict[str, float] = {}
        """Queues, with how long a message may wait in each."""
        self.waits: dict[float, int] = {}
        """How many members allow each wait."""
        self.arrived = 0.0
        self.drained = 0.0
        """Messages to each member since the last sample."""

    @property
    def bytes_per_s(self) -> float:
        return self.per_s * self.message_bytes

    @property
    def depth(self) -> float:
        """Messages that wait for each member."""
        return self.backlog_bytes / self.message_bytes if self.message_bytes else 0.0


@dataclass(slots=True)
class Delivered:
    """What an uplink has done since the start, over all members."""

    messages: float = 0.0
    late: float = 0.0
    """Messages that arrived when the wait was longer than they may wait."""
    late_first_s: float = inf
    """When the first of them arrived."""
    late_last_s: float = -inf
    backlog_first_s: float = inf
    backlog_cleared_s: float = -inf
    """When a backlog last came to its end."""
    wait_longest_s: float = 0.0


class Uplink:
    """The groups of one edge and what waits for them. `capacity` in bytes per second; None: wide enough for all."""

    def __init__(self, capacity: float | None, now: float = 0.0) -> None:
        self.capacity = capacity
        self.delivered = Delivered()
        self._at = now
        self._groups: dict[str, list[Group]] = {}
        self._group_of: dict[str, Group] = {}

    # What is there

    @property
    def groups(self) -> Iterator[Group]:
        return (group for groups in self._groups.values() for group in groups)

    def of_pattern(self, pattern: str) -> list[Group]:
        return self._groups.get(pattern, [])

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, queue: str) -> bool:
        return queue in self._group_of

    @property
    def backlog_bytes(self) -> float:
        return sum(group.backlog_bytes * len(group.members) for group in self.groups)

    @property
    def offered_bytes_per_s(self) -> float:
        return sum(group.bytes_per_s * len(group.members) for group in self.groups)

    def wait_s(self, now: float) -> float:
        """How long a message that arrives now will wait."""
        self.advance(now)
        return self.backlog_bytes / self.capacity if self.capacity is not None else 0.0

    # What changes

    def add(
        self, queue: str, pattern: str, allowed_wait_s: float, per_s: float, message_bytes: float, now: float
    ) -> None:
        """A queue is made; nothing waits in it. Made again, it stays as it is."""
        self.advance(now)
        if queue in self._group_of:
            return
        groups = self._groups.setdefault(pattern, [])
        group = next((group for group in groups if group.backlog_bytes <= EMPTY_BYTES), None)
        if group is None:
            group = Group(pattern, per_s, message_bytes)
            groups.append(group)
        group.members[queue] = allowed_wait_s
        group.waits[allowed_wait_s] = group.waits.get(allowed_wait_s, 0) + 1
        self._group_of[queue] = group

    def remove(self, queue: str, now: float) -> None:
        """A queue goes, with all that waits in it."""
        self.advance(now)
        group = self._group_of.pop(queue, None)
        if group is None:
            return
        allowed_wait_s = group.members.pop(queue)
        group.waits[allowed_wait_s] -= 1
        if not group.waits[allowed_wait_s]:
            del group.waits[allowed_wait_s]
        if not group.members:
            groups = self._groups[group.pattern]
            groups.remove(group)
            if not groups:
                del self._groups[group.pattern]
        if self.delivered.backlog_first_s < inf and self.backlog_bytes <= EMPTY_BYTES:
            self._cleared(now)

    def set_rate(self, pattern: str, per_s: float, message_bytes: float, now: float) -> None:
        """From now on so much arrives for each subscription to `pattern`."""
        self.advance(now)
        for group in self._groups.get(pattern, ()):
            group.per_s = per_s
            if message_bytes:
                group.message_bytes = message_bytes

    def merge(self) -> None:
        """Make one group of those of a pattern for which nothing waits any more. Called after sampling, when the
        amounts since the last sample are 0 for all of them.
        """
        for pattern, groups in self._groups.items():
            if len(groups) < 2 or sum(group.backlog_bytes <= EMPTY_BYTES for group in groups) < 2:
                continue
            empty = [group for group in groups if group.backlog_bytes <= EMPTY_BYTES]
            first, others = empty[0], empty[1:]
            for group in others:
                first.members |= group.members
                for wait, count in group.waits.items():
                    first.waits[wait] = first.waits.get(wait, 0) + count
                for queue in group.members:
                    self._group_of[queue] = first
            self._groups[pattern] = [group for group in groups if group not in others]

    # Time

    def advance(self, now: float) -> None:
        """Let time pass until `now`, with the input that there is."""
        left_s = now - self._at
        if left_s <= 0.0:
            return
        capacity, backlog, offered = self.capacity, self.backlog_bytes, self.offered_bytes_per_s
        if capacity is not None and (backlog > EMPTY_BYTES or offered > capacity):
            excess = offered - capacity
            if abs(excess) <= SAME_RATE * capacity:
                excess = 0.0
            until_empty_s = inf if excess >= 0.0 else backlog / -excess
            busy_s = min(left_s, until_empty_s)
            after = 0.0 if until_empty_s <= left_s else backlog + excess * busy_s
            self._busy(busy_s, backlog, after, offered, excess, capacity)
            self._at += busy_s
            left_s -= busy_s
            if after <= EMPTY_BYTES:
                self._cleared(self._at)
        if left_s > 0.0:
            self._idle(left_s)
        self._at = now

    def _idle(self, span_s: float) -> None:
        """Nothing waits: what arrives is drained."""
        for group in self.groups:
            messages = group.per_s * span_s
            group.arrived += messages
            group.drained += messages
            self.delivered.messages += messages * len(group.members)
            self._count_late(group, span_s, 0.0, 0.0)

    def _busy(self, span_s: float, before: float, after: float, offered: float, excess: float, capacity: float) -> None:
        """Something waits all the time: `before` bytes at first and `after` at last."""
        if before <= EMPTY_BYTES or after <= EMPTY_BYTES:
            kept = 0.0
        elif excess == 0.0:
            kept = exp(-capacity * span_s / before)
        else:
            kept = (after / before) ** (-capacity / excess)
        wait_s, growth = before / capacity, excess / capacity
        for group in self.groups:
            share = group.bytes_per_s / offered if offered else 0.0
            waiting = share * after + (group.backlog_bytes - share * before) * kept
            messages = group.per_s * span_s
            drained = messages
            if group.message_bytes:
                drained -= (waiting - group.backlog_bytes) / group.message_bytes
            group.arrived += messages
            group.drained += drained
            group.backlog_bytes = max(waiting, 0.0)
            self.delivered.messages += drained * len(group.members)
            self._count_late(group, span_s, wait_s, growth)
        self.delivered.backlog_first_s = min(self.delivered.backlog_first_s, self._at)
        longest = max(wait_s, after / capacity)
        self.delivered.wait_longest_s = max(self.delivered.wait_longest_s, longest)

    def _cleared(self, now: float) -> None:
        self.delivered.backlog_cleared_s = now
        for group in self.groups:
            group.backlog_bytes = 0.0

    def _count_late(self, group: Group, span_s: float, wait_s: float, growth: float) -> None:
        """Count what arrives while the wait, `wait_s` at first and growing, is longer than allowed."""
        for allowed_s, members in group.waits.items():
            begins_s, ends_s = late_between(allowed_s, span_s, wait_s, growth)
            if ends_s > begins_s and group.per_s > 0.0:
                delivered = self.delivered
                delivered.late += group.per_s * members * (ends_s - begins_s)
                delivered.late_first_s = min(delivered.late_first_s, self._at + begins_s)
                delivered.late_last_s = max(delivered.late_last_s, self._at + ends_s)


def late_between(allowed_s: float, span_s: float, wait_s: float, growth: float) -> tuple[float, float]:
    """When in a span of time the wait is longer than allowed: from and until, both 0 where it never is."""
    over_at_first, over_at_last = wait_s > allowed_s, wait_s + growth * span_s > allowed_s
    if over_at_first and over_at_last:
        return 0.0, span_s
    if not over_at_first and not over_at_last:
        return 0.0, 0.0
    crossing_s = (allowed_s - wait_s) / growth
    return (crossing_s, span_s) if over_at_last else (0.0, crossing_s)
