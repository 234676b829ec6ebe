"""Whether the uplink of an edge has become narrower than it was learned to be.

What was learned is the most that was ever carried (`rates.LearnedCapacity`). Where everybody waits and much less than
that is carried, either all subscribers are slow, or the uplink is narrow now. Taking the first for the second makes
an edge give its load away for nothing, and believe in a small uplink until it carries more again; taking the second for
the first makes it blind: every subscriber is called slow, none is judged, and others move load to it.

**What separates the two** is that a FIFO uplink holds everybody back alike, and subscribers are slow each in its own
way. So an uplink has become narrower only if, in `SAMPLES_NEEDED` samples in a row,

- nobody gets what it is sent: queues that wait and are drained of less than comes for them make nearly all traffic,
  those of subscribers that were called slow included;
- they are all drained of about the same share of what comes for them;
- they are independent: several subscribers of several patterns, none of which makes most of the traffic. Those of one
  pattern often are copies of one program, which wait for the same database;
- something is still carried, and about as much as a sample ago. Where less and less is, the uplink is cut or the
  subscribers have stopped, and nothing can be learned from that.

Programs of different patterns that are all equally slow can't be told from a narrow uplink. What is learned from them
is corrected by the first sample in which more is carried.

Knows no thresholds, and decides nothing about a subscriber.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..policy.interface import QueueLoad

SAMPLES_NEEDED: Final = 5
"""More than a hiccup of the network takes; meanwhile nobody is called slow."""
HELD_BACK_SHARE: Final = 0.95
"""Drained of less than this share of what comes for it, a queue does not get what it is sent."""
NEARLY_ALL_SHARE: Final = 0.9
"""Of the traffic: the rest may be too little, or too new, to show anything."""
ALIKE_SHARE: Final = 0.75
"""Shares that differ from that of all by no more than this factor, up or down, are about the same."""
INDEPENDENT_MIN: Final = 3
"""So many subscribers, and so many patterns, have to be held back."""
ONE_SHARE_MAX: Final = 0.5
"""None of them may make more than this share of what is held back."""
STILL_CARRIED_SHARE: Final = 0.5
"""Of the smoothed rate of a sample ago; what has stopped falls to a quarter each time."""


class Narrowing:
    """The evidence that an uplink is narrower than what was learned of it, sample by sample."""

    __slots__ = ("_drained", "samples")

    def __init__(self) -> None:
        self.samples = 0
        """Samples in a row, up to the last one, that spoke for it."""
        self._drained = 0.0

    def seen(self, possible: bool, waiting: Iterable[QueueLoad], offered: float, drained: float) -> bool:
        """Take one more sample in; says whether the uplink is as narrow as what is drained.

        `possible`: the capacity was learned, and much less than it is carried. `waiting` are the queues with a backlog
        and those of slow subscribers; `offered` is what comes for all queues but the latter, `drained` what is carried.
        """
        still = drained > 0.0 and drained >= STILL_CARRIED_SHARE * self._drained
        self._drained = drained
        self.samples = self.samples + 1 if possible and still and _held_back_alike(waiting, offered) else 0
        if self.samples < SAMPLES_NEEDED:
            return False
        self.samples = 0
        return True


def _held_back_alike(waiting: Iterable[QueueLoad], offered: float) -> bool:
    held: list[tuple[QueueLoad, float, float]] = []
    for queue in waiting:
        if queue.migrating:
            continue
        coming = queue.enqueue_per_s * queue.message_bytes
        if queue.slow:
            offered += coming
        if queue.drain_per_s < HELD_BACK_SHARE * queue.enqueue_per_s:
            held.append((queue, coming, queue.drain_per_s * queue.message_bytes))
    total = sum(coming for _, coming, _ in held)
    if total <= 0.0 or total < NEARLY_ALL_SHARE * offered:
        return False
    fair = sum(carried for _, _, carried in held) / total
    subscribers: dict[str, float] = {}
    patterns: dict[str, float] = {}
    alike = 0.0
    for queue, coming, carried in held:
        if ALIKE_SHARE * fair * coming <= carried <= fair / ALIKE_SHARE * coming:
            alike += coming
            subscribers[queue.subscriber] = subscribers.get(queue.subscriber, 0.0) + coming
            patterns[queue.pattern] = patterns.get(queue.pattern, 0.0) + coming
    return alike >= NEARLY_ALL_SHARE * offered and all(
        len(shares) >= INDEPENDENT_MIN and max(shares.values()) <= ONE_SHARE_MAX * total
        for shares in (subscribers, patterns)
    )
