"""The timers of one machine: named, replaceable, cancellable, and a little late by chance.

One coroutine serves all of them and sleeps while none is set. A timer fires later than asked for by up to
`TIMER_CHANCE`, so that no crowd of clients comes back at once; never earlier. Everything happens in the runtime's
thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .runtime import Runtime

TIMER_CHANCE: Final = 0.1
"""The share of a delay that may be added to it; as in the simulator."""


class Timers:
    """Calls `fire` with the name of each timer that is due."""

    def __init__(self, runtime: Runtime, fire: Callable[[str], None], name: str) -> None:
        self._runtime = runtime
        self._fire = fire
        self._due: dict[str, float] = {}
        self._changed = runtime.signal()
        self._stopped = False
        runtime.spawn(self._run(), f"{name} timers")

    def set(self, name: str, after_s: float) -> None:
        """Set a timer, or set it anew."""
        self._due[name] = self._runtime.now() + after_s * (1.0 + TIMER_CHANCE * self._runtime.chance())
        self._changed.set()

    def cancel(self, name: str) -> None:
        self._due.pop(name, None)

    def stop(self) -> None:
        """None fires any more."""
        self._stopped = True
        self._due.clear()
        self._changed.set()

    async def _run(self) -> None:
        while not self._stopped:
            next_at = min(self._due.values(), default=None)
            await self._changed.wait(None if next_at is None else max(0.0, next_at - self._runtime.now()))
            now = self._runtime.now()
            for name in sorted((name for name, at in self._due.items() if at <= now), key=self._due.__getitem__):
                # What fired before may have cancelled it, or set it anew.
                if self._due.get(name, now + 1.0) <= now:
                    del self._due[name]
                    self._fire(name)
