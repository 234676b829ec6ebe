"""Virtual time: a clock, a heap of what is to happen, and randomness by name.

Invariants:

- time never goes back; what is due at one moment happens in the order in which it was asked for;
- nothing here reads the machine's clock or its randomness, and nothing depends on the order of a set or on `hash()`;
- every random stream has a name and depends on that name and the seed alone, so that a new consumer of randomness
  does not shift the numbers that the others get;
- a run is bounded by `STEPS_MAX`: a scenario that never comes to rest is an error and not a process that hangs.

Knows nothing of brokers, messages or links.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from .errors import RunawayError

STEPS_MAX: Final = 100_000_000
"""More events than this in one run: something feeds itself. The largest experiment needs a few million."""
LAST: Final = 1 << 62
"""Greater than any count: comes last at its moment."""

Step = Callable[[Any], None]
Entry = tuple[float, int, Step, Any]
"""When, which of those at that moment, what, and with what."""


class Kernel:
    """The heart of a run. `heap` is open so that the data planes can push without a call in between."""

    __slots__ = ("_running", "_seed", "_streams", "count", "heap", "now")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, Random] = {}
        self.now = 0.0
        self.count = 0
        """How many events were scheduled so far: decides between what is due at the same moment."""
        self._running = False
        self.heap: list[Entry] = []

    def at(self, time_s: float, step: Step, argument: Any = None) -> None:
        """Have `step(argument)` called at `time_s`, or now if that is over."""
        self.count = count = self.count + 1
        heappush(self.heap, (time_s if time_s > self.now else self.now, count, step, argument))
        if count > STEPS_MAX:
            raise RunawayError(self.now, STEPS_MAX)

    def after(self, delay_s: float, step: Step, argument: Any = None) -> None:
        """Have `step(argument)` called `delay_s` from now."""
        self.at(self.now + delay_s, step, argument)

    def stream(self, name: str) -> Random:
        """The random numbers that belong to `name`; always the same object for one name."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = Random(stream_seed(self._seed, name))
        return stream

    def run(self, until_s: float) -> None:
        """Let everything happen that is due up to and including `until_s`."""
        heap, pop = self.heap, heappop
        self._running = True
        # Comes behind all that is due at the same moment, so that the loop need not look at the time.
        last: Entry = (max(until_s, self.now), LAST, self._halt, None)
        heappush(heap, last)
        while self._running:
            self.now, _, step, argument = pop(heap)
            step(argument)

    def _halt(self, _: None) -> None:
        self._running = False


def stream_seed(seed: int, name: str) -> int:
    """A seed that depends on both, whatever the hash seed of the interpreter is."""
    return int.from_bytes(blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest(), "big")
