"""What one subscriber's application noticed: when each message came, how old it was, and whether all of them did.

Kept as plain numbers, not as objects: what measures pauses must leave nothing behind that a garbage collector has to
look at. Nothing here knows clients or clocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field


def _numbers() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Watch:
    """One subscriber's deliveries."""

    name: str
    topic: str
    interval_s: float
    """Between two publications of the topic."""
    at_s: array[float] = field(default_factory=_numbers)
    ages_s: array[float] = field(default_factory=_numbers)
    last: dict[str, int] = field(default_factory=dict)
    out_of_order: int = 0
    doubled: int = 0

    @property
    def seen(self) -> int:
        return len(self.at_s)

    def take(self, at_s: float, age_s: float, publisher: str, sequence: int) -> None:
        """A message of `publisher` came at `at_s`."""
        self.at_s.append(at_s)
        self.ages_s.append(age_s)
        before = self.last.get(publisher, -1)
        self.doubled += sequence == before
        self.out_of_order += sequence < before
        self.last[publisher] = max(sequence, before)

    def ages_between(self, began_s: float, ended_s: float) -> array[float]:
        """How old the messages were that came between these moments."""
        return self.ages_s[bisect_left(self.at_s, began_s) : bisect_right(self.at_s, ended_s)]

    def gap_ms(self, began_s: float, ended_s: float, usual_s: float) -> float:
        """The longest that this subscriber was kept waiting between these moments, beyond what is usual: how much
        older a message was, or how much longer a pause between two of them lasted than between their publications.
        """
        first, end = bisect_left(self.at_s, began_s), bisect_right(self.at_s, ended_s)
        if end - first < 2:
            return (ended_s - began_s) * 1000
        added_s = max(self.ages_s[first:end]) - usual_s
        pause_s = max(self.at_s[later] - self.at_s[later - 1] for later in range(first + 1, end))
        return max(0.0, added_s, pause_s - self.interval_s) * 1000

    def lost(self, published: int) -> int:
        """How many of the messages published have not come. One that came twice makes up for no other."""
        return max(0, published - self.seen + self.doubled)
