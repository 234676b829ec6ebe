"""What one subscriber's application noticed: when each message came, how old it was, and whether all of them did.

Kept as plain numbers, not as objects: what measures pauses must leave nothing behind that a garbage collector has to
look at. Nothing here knows clients or clocks, or why a stretch of time is looked at.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

from tidegate_simulator.judging import Judge


def _numbers() -> array[float]:
    return array("d")


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time."""

    began_s: float
    ended_s: float

    @property
    def length_s(self) -> float:
        return self.ended_s - self.began_s

    def overlaps(self, other: Window) -> bool:
        return self.began_s < other.ended_s and other.began_s < self.ended_s

    def parts(self, length_s: float, but: Window | None = None) -> list[Window]:
        """As many stretches of this length as fit in, one after another, none of which overlaps `but`."""
        whole = [self]
        if but is not None and self.overlaps(but):
            whole = [Window(self.began_s, but.began_s), Window(but.ended_s, self.ended_s)]
        return [
            Window(one.began_s + number * length_s, one.began_s + (number + 1) * length_s)
            for one in whole
            for number in range(int(one.length_s / length_s) if one.length_s > 0 else 0)
        ]


@dataclass(slots=True)
class Watch:
    """One subscriber's deliveries."""

    name: str
    topic: str
    interval_s: float
    """Between two publications of the topic."""
    at_s: array[float] = field(default_factory=_numbers)
    ages_s: array[float] = field(default_factory=_numbers)
    judge: Judge = field(default_factory=Judge)

    @property
    def seen(self) -> int:
        return len(self.at_s)

    def take(self, at_s: float, age_s: float, sequence: int) -> None:
        """A message of the topic's one publisher came at `at_s`."""
        self.at_s.append(at_s)
        self.ages_s.append(age_s)
        self.judge.take(self.topic, sequence)

    def ages_in(self, window: Window) -> array[float]:
        """How old the messages were that came in this time."""
        return self.ages_s[bisect_left(self.at_s, window.began_s) : bisect_right(self.at_s, window.ended_s)]

    def gap_ms(self, window: Window, usual_s: float) -> float:
        """The longest that this subscriber was kept waiting in this time, beyond what is usual: how much older a
        message was, or how much longer a pause between two of them lasted than between their publications. A pause that
        reaches into this time counts whole, also where it began before or ended after.
        """
        first, end = bisect_left(self.at_s, window.began_s), bisect_right(self.at_s, window.ended_s)
        if first == end:
            return window.length_s * 1000
        added_s = max(self.ages_s[first:end]) - usual_s
        around = self.at_s[max(0, first - 1) : end + 1]
        pause_s = max((later - before for before, later in pairwise(around)), default=0.0)
        return max(0.0, added_s, pause_s - self.interval_s) * 1000

    def lost(self, published: int) -> int:
        """How many of the messages published have not come."""
        return len(self.judge.lost(self.topic, published, owed_from=0))
