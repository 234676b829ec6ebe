"""What the uplink of an edge carries, as far as it is known, and whether it is what holds the queues back.

A capacity is configured, or told with a sample, or learned from what was drained, or hinted at by an insight; the first
of these that there is counts. Invariants:

- a capacity that is configured, or told, never changes by what is seen;
- **a learned capacity** counts only what was drained while nearly all flows, and more than one, were held back: one
  backlog is a slow subscriber, not a narrow uplink. It falls only where `narrowing` has found that the uplink carries
  much less than before;
- **a hint** may be wrong. It counts only where nothing else is known, never for less than this uplink was seen to
  carry, and not for how long a message takes to leave: so no deadline becomes infeasible by it, and the first backlog
  that the uplink causes replaces it.

Knows no thresholds, and judges no queue.
"""

from __future__ import annotations

from typing import Final

from ..policy.selecting import BOTTLENECK_SHARE
from .following import Totals
from .metrics import utilization
from .narrowing import Narrowing
from .rates import LearnedCapacity

BACKLOGGED_SHARE: Final = 0.9
"""If queues that make this share of the traffic wait, it is the uplink that holds them back."""
USED_AT_LEAST: Final = 0.5
"""An uplink that carries less than this share of its configured capacity is not what holds anything back."""
COMING_AT_LEAST: Final = 0.1
"""Where less than this share of what is drained comes in, a backlog is just worked off: no move speeds it up."""


class Uplink:
    """The uplink of one edge, in bytes per second."""

    def __init__(self, configured: float | None) -> None:
        self.known = configured
        """As configured, told or learned here."""
        self.hint: float | None = None
        """What an insight says; set by the part that is told of it."""
        self.capacity = configured
        """What to reckon with: what is known or, where nothing is, the hint."""
        self.limits = False
        """Whether it may be what holds the queues back."""
        self.narrowed = False
        """Whether the last sample has shown that it is narrower than it was."""
        self._configured = configured
        self._learned = LearnedCapacity()
        self._narrowing = Narrowing()
        self._carried_most = 0.0

    @property
    def hinted(self) -> bool:
        """Whether the capacity is that of the hint."""
        return self.known is None and self.capacity is not None

    @property
    def may_narrow(self) -> bool:
        """Whether it is open if it has become narrower: nobody is called slow meanwhile."""
        return bool(self._narrowing.samples)

    def seen(self, totals: Totals, told: float | None, offered: float) -> None:
        """Take one sample in: what was drained and waited, the capacity that came with it, what is offered now."""
        all_wait = totals.backlogs > 1 and totals.backlogged >= BACKLOGGED_SHARE * totals.judged_offered
        self._learned = self._learned.seen(totals.drained, backlog=all_wait)
        known = self._configured or told
        less = known is None and totals.drained < USED_AT_LEAST * (self._learned.per_s or 0.0)
        self.narrowed = self._narrowing.seen(less, totals.waiting, totals.judged_offered, totals.drained)
        if self.narrowed:
            self._learned = self._learned.narrowed(totals.drained)
        self.known = self.capacity = self._learned.or_configured(known)
        self._carried_most = max(self._carried_most, totals.drained)
        if self.known is None and self.hint is not None:
            self.capacity = max(self.hint, self._carried_most)
        used = utilization(offered, self.capacity)
        busy = used is not None and used > BOTTLENECK_SHARE
        coming = totals.judged_offered >= COMING_AT_LEAST * totals.drained
        carries = self.capacity is None or totals.drained >= USED_AT_LEAST * self.capacity
        self.limits = busy or (all_wait and coming and carries)
