"""Sending at a steady rate without drifting: each message has a due time, counted from the start."""

from __future__ import annotations

import asyncio


class Pacer:
    """`await wait()` before each message; returns at once while behind, so that a hiccup is caught up with."""

    def __init__(self, rate_per_s: float | None) -> None:
        self._interval_s = 1.0 / rate_per_s if rate_per_s else 0.0
        self._due: float | None = None

    async def wait(self) -> None:
        if not self._interval_s:
            return
        loop = asyncio.get_running_loop()
        if self._due is None:
            self._due = loop.time()
        pause_s = self._due - loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        self._due += self._interval_s
