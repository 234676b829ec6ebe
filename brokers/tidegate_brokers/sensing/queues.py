"""From RabbitMQ's counters to rates, and to how many messages a queue holds at the very moment of the counters.

RabbitMQ's answers mix two ages. Counters of channels (enqueued, acknowledged) are up to date. What a queue holds
(ready, unacknowledged) is what the queue said at its last tick, up to `STATISTICS_AGE_MAX_S` ago, the same number in
several answers if need be. But a queue holds what came minus what went, plus a constant that only a lost count or a
dropped message changes. That constant is learned from every answer, and makes the two ages one:

    held now = constant + enqueued − acknowledged, and within what the last tick allows

Invariants: a counter that restarts (its channel was closed) never makes a negative rate. The first answer gives no rate
at all. Rate and depth of a queue belong to the same moment, and a repeated tick does not look like a rate of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .exposition import Counter

STATISTICS_AGE_MAX_S: Final = 1.0
"""How old a tick may be: `collect_statistics_interval` of RabbitMQ, which our deployments set to 1,000 ms."""
LEARNING_SHARE: Final = 0.2
"""How much of the constant each answer replaces: the noise of one tick's unknown age does not pass, a drift does."""


class Differences:
    """Counters per channel and queue, as what was added since the last answer, per queue."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], float] | None = None
        self._counters: Sequence[Counter] | None = None

    def taken(self, counters: Sequence[Counter]) -> tuple[dict[str, float], set[str]]:
        """What was added per queue, and the queues of which a channel has gone or begun anew.

        A channel that was not there before has begun since: all of its count is new. The first answer only remembers.
        """
        if counters is self._counters:
            return {}, set()  # the reader found nothing new
        self._counters = counters
        before = self._before
        after = {(channel, queue): value for channel, queue, value in counters}
        self._before = after
        added: dict[str, float] = {}
        if before is None:
            return added, set()
        for key, value in after.items():
            known = before.get(key, 0.0)
            if value != known:
                queue = key[1]
                added[queue] = added.get(queue, 0.0) + (value - known if value > known else value)
        if before.keys() == after.keys():
            return added, set()
        return added, {queue for _, queue in before.keys() - after.keys()}


@dataclass(slots=True)
class DepthEstimate:
    """What one queue holds, at the moment of the last answer."""

    balance: float = 0.0
    """Enqueued minus acknowledged since we began to follow it."""
    constant: float | None = None

    def now(self, enqueued: float, acknowledged: float, seen: float, elapsed_s: float) -> float:
        """Messages in the queue now. `seen` is what it said at its last tick; the counts are since the last answer."""
        self.balance += enqueued - acknowledged
        share = STATISTICS_AGE_MAX_S / elapsed_s
        came, went = enqueued * share, acknowledged * share
        # In the middle of what the age of the tick leaves open.
        middle = seen - self.balance + (came - went) / 2.0
        if self.constant is None:
            self.constant = middle
        else:
            self.constant += LEARNING_SHARE * (middle - self.constant)
        held = self.constant + self.balance
        lowest, highest = seen - went, seen + came
        if held < lowest:
            held = lowest
        elif held > highest:
            held = highest
        self.constant = held - self.balance
        return held if held > 0.0 else 0.0

    def recount(self) -> None:
        """Counts were lost: learn the constant anew."""
        self.constant = None
