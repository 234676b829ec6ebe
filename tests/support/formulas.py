"""The formulas of seed 000 as the paper writes them, to check against them the rules that the detector works out for
thousands of queues at once; and a subscription with nothing but what an analysis reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate_agents.load.rates import SMOOTHING, TREND_SHARE
from tidegate_protocol.messages import Capacity


@dataclass(frozen=True, slots=True)
class Rate:
    """A smoothed rate and how it changed last."""

    level: float
    change: float = 0.0

    def updated(self, sample: float, alpha: float = SMOOTHING) -> Rate:
        """This rate after one more sample, one period later."""
        level = alpha * sample + (1.0 - alpha) * self.level
        return Rate(level, level - self.level)

    @property
    def predicted(self) -> float:
        """What to expect of the next period, never below 0."""
        return max(self.level + TREND_SHARE * self.change, 0.0)


def follow(rate: Rate | None, sample: float, alpha: float = SMOOTHING) -> Rate:
    """The rate after `sample`, whether or not there was one before."""
    return Rate(sample) if rate is None else rate.updated(sample, alpha)


def edge_time_s(message_bytes: float, capacity: Capacity) -> float:
    """Arrival, matching and departure at an edge. A capacity that is not known takes no time."""

    def over(amount: float, per_s: float | None) -> float:
        return 0.0 if per_s is None else amount / per_s

    arrival_s = over(message_bytes, capacity.downlink_bytes_per_s)
    departure_s = over(message_bytes, capacity.uplink_bytes_per_s)
    return arrival_s + over(1.0, capacity.matching_per_s) + departure_s


def allowed_wait_s(deadline_s: float, paths_s: Iterable[float] = (), *others_s: float) -> float:
    """t_e: the deadline minus the way of the worst publisher through the heads and everything else that takes time."""
    return deadline_s - max(paths_s, default=0.0) - sum(others_s)


@dataclass(frozen=True, slots=True)
class SubscriberLoad:
    """One subscription as a client of an edge. `local` and `remote` say where its topic is published."""

    name: str
    pattern: str
    enqueue_per_s: float
    message_bytes: float
    allowed_wait_s: float
    depth: float = 0.0
    local: bool = False
    remote: bool = False
