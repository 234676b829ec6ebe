"""Round trips, and how far a clock is off: small estimators fed with what passes by.

**Edge to subscriber.** While nothing is ready, all that a queue holds is on its way to the subscriber or back as an
acknowledgement, so that held ÷ drain rate is the round trip (Little's law). It is averaged over blocks, because what
is in flight fluctuates; and of the blocks of the last minutes nearly the smallest counts, because on a busy uplink the
same quotient contains the waiting that is to be found out. The very smallest would be biased by chance.

**Edge to head, head to head.** Probes, answered by the other process at once. A probe can wait behind data, so again a
low one counts; and the one with the shortest round trip tells the clocks' offset best (half of it is the error).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

BLOCK_SAMPLES: Final = 5
BLOCK_MESSAGES_MIN: Final = 10.0
"""A block with fewer messages says little, and is extended."""
BLOCK_SAMPLES_MAX: Final = 60
BLOCKS_MAX: Final = 60
"""At five samples of a second each: five minutes."""
RANK: Final = 2
"""Which of the sorted values counts: the third smallest, or, of a few, the one in the middle."""
FIRST_SAMPLES_SKIPPED: Final = 2
"""Just after a subscriber has come, acknowledgements are still on their way: the quotient would be far too large."""
READY_SHARE: Final = 0.05
"""Up to this share of what is held, or one message, may be ready: it just came."""
PROBES_MAX: Final = 30
CLOCK_PROBES_MAX: Final = 300


@dataclass(slots=True)
class SubscriberTrip:
    """The round trip from an edge to one subscriber."""

    blocks: deque[float] = field(default_factory=lambda: deque(maxlen=BLOCKS_MAX))
    estimate_s: float | None = None
    """None before the first block is complete."""
    _held: float = 0.0
    _drained: float = 0.0
    _elapsed_s: float = 0.0
    _samples: int = 0
    _skip: int = FIRST_SAMPLES_SKIPPED

    def sampled(self, held: float, ready: float, drained: float, elapsed_s: float) -> None:
        """One more sample: what the queue holds, what of it is ready, what was drained since the last one."""
        if self._skip > 0:
            self._skip -= 1
            return
        if ready > 1.0 and ready > READY_SHARE * held:
            self._restart()
            return
        self._held += held
        self._drained += drained
        self._elapsed_s += elapsed_s
        self._samples += 1
        if self._samples < BLOCK_SAMPLES:
            return
        if self._drained >= BLOCK_MESSAGES_MIN:
            self.blocks.append(self._quotient())
            self.estimate_s = _low(self.blocks)
            self._restart()
        elif self._samples >= BLOCK_SAMPLES_MAX:
            self._restart()

    @property
    def provisional_s(self) -> float | None:
        """The best that can be said before there is an estimate."""
        if self.estimate_s is not None:
            return self.estimate_s
        return self._quotient() if self._drained > 0.0 else None

    def reconnected(self) -> None:
        """The subscriber came over another connection: what was learned does not count any more."""
        self.blocks.clear()
        self.estimate_s = None
        self._skip = FIRST_SAMPLES_SKIPPED
        self._restart()

    def interrupted(self) -> None:
        """The subscriber holds messages back while it moves: until it is done nothing can be learned."""
        self._skip = FIRST_SAMPLES_SKIPPED
        self._restart()

    def _quotient(self) -> float:
        """Mean held ÷ mean drain rate."""
        return self._held / self._samples * self._elapsed_s / self._drained

    def _restart(self) -> None:
        self._held = self._drained = self._elapsed_s = 0.0
        self._samples = 0


@dataclass(slots=True)
class ProbedTrip:
    """The round trip to another process, and how far its clock is ahead of ours."""

    _trips_s: deque[float] = field(default_factory=lambda: deque(maxlen=PROBES_MAX))
    _clocks: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=CLOCK_PROBES_MAX))

    def answered(self, sent_s: float, came_s: float, wall_sent_s: float, wall_there_s: float) -> None:
        """A probe is back. Monotonic times of sending and return; our wall clock at sending, theirs in between."""
        trip_s = came_s - sent_s
        self._trips_s.append(trip_s)
        self._clocks.append((trip_s, wall_there_s - (wall_sent_s + trip_s / 2.0)))

    @property
    def round_trip_s(self) -> float | None:
        """Nearly the smallest of the last ones; None before the first."""
        return _low(self._trips_s) if self._trips_s else None

    @property
    def clock_offset_s(self) -> float | None:
        """What their clock shows more than ours; None before the first answer."""
        return min(self._clocks)[1] if self._clocks else None

    @property
    def clock_error_s(self) -> float | None:
        """At most so much is the offset wrong."""
        return min(self._clocks)[0] / 2.0 if self._clocks else None


def _low(values: Collection[float]) -> float:
    return sorted(values)[min(RANK, (len(values) - 1) // 2)]
