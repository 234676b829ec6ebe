"""How long delivery paused around a move.

The gap is the longest time between two new deliveries, from the order to move until `AFTER_S` after the switch. It says
something only where messages are frequent: a subscription that gets a message every ten seconds has a gap of ten
seconds. Time is an argument.
"""

from __future__ import annotations

from typing import Final

AFTER_S: Final = 1.0
"""So long after the switch a pause is still put down to the move."""


class GapMeter:
    """Measures while `watching`; only then are deliveries noted."""

    def __init__(self) -> None:
        self.watching = False
        self._last_s = 0.0
        self._longest_s = 0.0
        self._until_s: float | None = None
        self._known_s = 0.0

    @property
    def gap_s(self) -> float:
        """The longest pause around the last move that succeeded; 0 where there was none."""
        return self._longest_s if self.watching and self._until_s is not None else self._known_s

    def begin(self, now: float) -> None:
        """A move begins."""
        self._known_s = self.gap_s
        self.watching = True
        self._last_s = now
        self._longest_s = 0.0
        self._until_s = None

    def end(self, moved: bool, now: float) -> None:
        """The move has succeeded, or it has not and leaves no trace."""
        if moved and self.watching:
            self._until_s = now + AFTER_S
        else:
            self.watching = False

    def delivered(self, now: float) -> None:
        """Something new was delivered."""
        self._longest_s = max(self._longest_s, now - self._last_s)
        self._last_s = now
        if self._until_s is not None and now >= self._until_s:
            self._known_s = self._longest_s
            self.watching = False
