"""Sending at a steady rate without drifting: each message has a due time, counted from the start."""

from __future__ import annotations

import asyncio


class Pacer:
    """Wait `pause_s` before each message; it is 0 while behind, so that a hiccup is caught up with."""

    def __init__(self, rate_per_s: float | None) -> None:
        self._interval_s = 1.0 / rate_per_s if rate_per_s else 0.0
        self._due: float | None = None

    def pause_s(self, now: float) -> float:
        """How long the next message must wait; `now` is any clock that goes forward."""
        if not self._interval_s:
            return 0.0
        due = now if self._due is None else self._due
        self._due = due + self._interval_s
        return max(0.0, due - now)

    async def wait(self) -> None:
        """Let the pause pass."""
        pause_s = self.pause_s(asyncio.get_running_loop().time())
        if pause_s:
            await asyncio.sleep(pause_s)
