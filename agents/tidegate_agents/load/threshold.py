"""The dynamic queue-depth threshold: how much may wait for a subscription before its deadline is in danger.

Of the two steps of seed 000 §IV.B the first is the detector's: the **allowed wait** t_e, which is left of the deadline
for the output queue when everything else that takes time has been taken off. Here is the second, the **threshold** TH,
in messages:

- *paper*, equation 2: TH = (t_e − t_LB)·μ − (λ − μ). It presupposes that a session is short (t_LB ≪ t_e). Where
  it is not, TH turns negative and an empty queue counts as overloaded;
- *projected*: TH = (1 − margin)·t_e·μ − max(λ − μ, 0)·max(t_LB, one period): could the queue, grown at the
  predicted rate until a session started now takes effect, still be drained in time?

λ and μ are the predicted rates of the next period, in messages per second; λ − μ is what the paper adds to a
depth in one period, which it takes to be a second: `period_s` scales it.

Invariant: where t_e ≤ 0 there is no threshold, because no broker behind these links can meet the deadline; a longer
deadline never lowers a threshold and a higher λ never raises one. Knows no queue, no clock and no broker's state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SESSION_S_FIRST: Final = 0.5
"""t_LB until sessions have been seen."""

SESSION_WEIGHT_MAX: Final = 20
"""After this many sessions the average becomes a moving one, so that it follows links that change."""

PERIOD_S: Final = 1.0
"""How often load is sampled."""

MARGIN: Final = 0.2
"""The share of the allowed wait that the projected threshold keeps in reserve.

For what the formula does not see: depths are up to a second old when they are read, and an overload may have to
be confirmed by a second sample. In the burst of seed 000 §V both together cost two periods, in which the wait
grows by 0.14 s: 18 % of topic 8's 0.8 s.
"""


class ThresholdKind(StrEnum):
    """Which formula; the papers' experiments use `paper`."""

    PROJECTED = "projected"
    PAPER = "paper"


def paper_depth(
    allowed_wait_s: float, enqueue_per_s: float, drain_per_s: float, session_s: float, period_s: float = PERIOD_S
) -> float | None:
    """Equation 2: TH = (t_e − t_LB)·μ − (λ − μ)."""
    if allowed_wait_s <= 0.0:
        return None
    return (allowed_wait_s - session_s) * drain_per_s - (enqueue_per_s - drain_per_s) * period_s


def projected_depth(
    allowed_wait_s: float,
    enqueue_per_s: float,
    drain_per_s: float,
    session_s: float,
    period_s: float = PERIOD_S,
    margin: float = MARGIN,
) -> float | None:
    """TH = (1 − margin)·t_e·μ − max(λ − μ, 0)·max(t_LB, one period).

    At least one period, because nothing can be done before the next sample.
    """
    if allowed_wait_s <= 0.0:
        return None
    growth = max(enqueue_per_s - drain_per_s, 0.0) * max(session_s, period_s)
    return (1.0 - margin) * allowed_wait_s * drain_per_s - growth


@dataclass(frozen=True, slots=True)
class SessionTime:
    """t_LB, learned from the sessions themselves: a running average that begins with a guess.

    The guess counts as one session, so that a single odd one does not replace it.
    """

    average_s: float = SESSION_S_FIRST
    weight: int = 1

    def learned(self, session_s: float) -> SessionTime:
        """After one more session, which took `session_s` from its start until the load had moved."""
        weight = min(self.weight + 1, SESSION_WEIGHT_MAX)
        return SessionTime(self.average_s + (session_s - self.average_s) / weight, weight)
