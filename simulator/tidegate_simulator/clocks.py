"""The clock of one process: off by an amount, and a little fast or slow.

Invariant: a clock never goes back (machines are given monotonic time), so one that is set back stands still until the
true time has caught up with it.
"""

from __future__ import annotations


class Clock:
    """Reads the local time at a true time, and turns local durations into true ones."""

    __slots__ = ("_base_s", "_last_s", "_since_s", "rate")

    def __init__(self) -> None:
        self._base_s = 0.0
        self._since_s = 0.0
        self._last_s = 0.0
        self.rate = 1.0

    def read(self, true_s: float) -> float:
        local_s = self._base_s + (true_s - self._since_s) * self.rate
        if local_s > self._last_s:
            self._last_s = local_s
        return self._last_s

    def true_duration_s(self, local_s: float) -> float:
        """How long something takes that takes `local_s` by this clock."""
        return local_s / self.rate

    def disturb(self, true_s: float, jump_s: float, drift: float) -> None:
        """Jump by so much, and run by the share `drift` faster from now on."""
        self._base_s = self._base_s + (true_s - self._since_s) * self.rate + jump_s
        self._since_s = true_s
        self.rate = 1.0 + drift
