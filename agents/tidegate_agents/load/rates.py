"""Rates as detection uses them: smoothed, predicted for the next period, and learned as capacities.

Invariant: nothing here is negative, and an estimate is replaced, never changed. A rate before its first sample does not
exist; there is no guess to start from.

**The prediction.** Seed 000 asks for the "predicted" λ and μ of the next period and says no more. Chosen here
is the smoothed level plus *half* of its last change (a damped trend):

- without a trend, a level smoothed with α = 0.75 lags behind a ramp by a third of its step per period, and
  behind a burst by a quarter of it for one period: the wrong side to err on;
- with the whole change, a burst from 100 to 200 messages/s would be predicted to reach 250. Half of it gives
  212, which is 200 again two samples later. For λ that is careful, for μ, which a link bounds, it is wrong,
  so it had better be short;
- a trend with a memory of its own (Holt) is quieter under noise, but still predicts a rise ten periods after
  the step. λ and μ of a healthy queue rise and fall together, so their difference, which is what the
  threshold is sensitive to, is quiet anyway.

**A step.** A burst is no noise: what asks for another twentieth of an uplink from one sample to the next is taken as it
is, without an average of before and without expecting the same again. Only what comes in: what is drained is bounded by
a link, and capacities are learned from it.

Knows no queue and no threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SMOOTHING: Final = 0.75
"""α of y = α·x + (1 − α)·y' (seed 002 Table 5.2)."""

TREND_SHARE: Final = 0.5
"""How much of the last change of the level is expected to happen again; the module's docstring says why."""

STEP_SHARE: Final = 0.05
"""A change of what is offered by more than this share of the uplink is a step."""


def is_step(sample: float, previous: float, width: float | None) -> bool:
    """Whether a rate has changed by more than noise, on an uplink of this width; where nobody knows it, of itself."""
    return abs(sample - previous) > STEP_SHARE * (previous if width is None else width)


def smooth(sample: float, previous: float | None, alpha: float = SMOOTHING) -> float:
    """y = α·x + (1 − α)·y'; the first sample stands for itself."""
    return sample if previous is None else alpha * sample + (1.0 - alpha) * previous


@dataclass(frozen=True, slots=True)
class LearnedCapacity:
    """What a link or a matcher has been seen to carry, where nobody configured it.

    Only a drain that had something waiting behind it was limited by the capacity; an idle one says how little
    there was to do. So the highest drain rate seen *while a backlog existed* counts, and nothing is known
    before the first backlog, which is harmless: until then the capacity was enough. What was learned is a lower
    bound, so that a higher drain corrects it whether or not anything waits. Feed it smoothed rates, or one
    irregular sample would be believed for ever. A lower drain says nothing by itself: whoever has other evidence that
    the capacity has become smaller (`narrowing`) says so.
    """

    per_s: float | None = None

    def seen(self, drain_per_s: float, *, backlog: bool) -> LearnedCapacity:
        """What is known after one more sample."""
        if drain_per_s <= (self.per_s or 0.0) or (self.per_s is None and not backlog):
            return self
        return LearnedCapacity(drain_per_s)

    def narrowed(self, drain_per_s: float) -> LearnedCapacity:
        """What is known once it is certain that no more than this is carried any longer."""
        return self if self.per_s is None else LearnedCapacity(min(drain_per_s, self.per_s))

    def or_configured(self, configured: float | None) -> float | None:
        """The capacity to reckon with: what an operator configured goes before what was learned."""
        return self.per_s if configured is None else configured
