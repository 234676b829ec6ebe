"""The dynamic queue-depth threshold: how much may wait for a subscription before its deadline is in danger.

Two steps (seed 000 §IV.B). First the **allowed wait** t_e: what is left of the deadline for the
output queue when everything else that takes time has been taken off. Then the **threshold** TH, in messages:

- *paper*, equation 2: TH = (t_e − t_LB)·μ − (λ − μ). It presupposes that a session is short (t_LB ≪ t_e). Where
  it is not, TH turns negative and an empty queue counts as overloaded;
- *projected*: TH = (1 − margin)·t_e·μ − max(λ − μ, 0)·max(t_LB, one period): could the queue, grown at the
  predicted rate until a session started now takes effect, still be drained in time?

λ and μ are the predicted rates of the next period, in messages per second; λ − μ is what the paper adds to a
depth in one period, which it takes to be a second: `period_s` scales it.

What always holds: where t_e ≤ 0 there is no threshold, because no broker behind these links can meet the
deadline; a longer deadline never lowers a threshold and a higher λ never raises one. Every result carries the
numbers it came from and can say them. Knows no queue, no clock and no broker's state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate_protocol.messages import Capacity

from .machine import Decision

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


class ThresholdReason(StrEnum):
    """How a threshold came to be what it is. Bounded, because it labels a metric."""

    ALLOWED_WAIT = "allowed-wait"
    SESSION_TOO_LONG = "session-longer-than-allowed-wait"
    GROWTH_TOO_FAST = "grows-faster-than-it-can-be-helped"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class PublisherPath:
    """How long a message of one publisher takes to get out of the head of the subscriber's cluster."""

    publisher: str
    to_head_s: float = 0.0
    """t_{p-h}."""
    between_heads_s: float = 0.0
    """t_{h-h}; 0 where publisher and subscriber are of one cluster."""
    in_heads_s: float = 0.0
    """t_h + t_{remote-h}."""

    @property
    def total_s(self) -> float:
        return self.to_head_s + self.between_heads_s + self.in_heads_s


@dataclass(frozen=True, slots=True)
class EdgeTimes:
    """What a message costs at the edge besides waiting."""

    arrival_s: float = 0.0
    matching_s: float = 0.0
    departure_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.arrival_s + self.matching_s + self.departure_s


def edge_times(message_bytes: float, capacity: Capacity) -> EdgeTimes:
    """Arrival and departure from the message's size and the bandwidths, matching from the matching rate.

    What is not known is taken as 0, as it was when nobody could say it was slow.
    """

    def over(amount: float, per_s: float | None) -> float:
        return 0.0 if per_s is None else amount / per_s

    return EdgeTimes(
        arrival_s=over(message_bytes, capacity.downlink_bytes_per_s),
        matching_s=over(1.0, capacity.matching_per_s),
        departure_s=over(message_bytes, capacity.uplink_bytes_per_s),
    )


@dataclass(frozen=True, slots=True)
class AllowedWait:
    """t_e of one subscription, and what it is left over from."""

    seconds: float
    deadline_s: float
    worst: PublisherPath
    head_to_edge_s: float
    edge_to_subscriber_s: float
    edge: EdgeTimes

    @property
    def feasible(self) -> bool:
        """Whether any broker behind these links could meet the deadline."""
        return self.seconds > 0.0

    def decision(self, subscription: str) -> Decision:
        numbers = {
            "deadline_s": self.deadline_s,
            "publisher_to_head_s": self.worst.to_head_s,
            "between_heads_s": self.worst.between_heads_s,
            "in_heads_s": self.worst.in_heads_s,
            "head_to_edge_s": self.head_to_edge_s,
            "edge_to_subscriber_s": self.edge_to_subscriber_s,
            "arrival_s": self.edge.arrival_s,
            "matching_s": self.edge.matching_s,
            "departure_s": self.edge.departure_s,
            "allowed_wait_s": self.seconds,
        }
        verdict = "may wait" if self.feasible else "infeasible: no time is left to wait"
        worst = f", worst publisher {self.worst.publisher}" if self.worst.publisher else ""
        return Decision("allowed-wait", subscription, f"{verdict}{worst}", numbers)


NO_PUBLISHER: Final = PublisherPath("")


def allowed_wait(
    deadline_s: float,
    paths: Iterable[PublisherPath],
    *,
    head_to_edge_s: float = 0.0,
    edge_to_subscriber_s: float = 0.0,
    edge: EdgeTimes | None = None,
) -> AllowedWait:
    """t_e: the deadline minus transmission, time in heads, and arrival, matching and departure at the edge.

    The worst publisher counts. The paper takes the longest transmission and leaves open whose time in the
    heads goes with it; here it is the publisher for whom both together are longest, since a message takes one
    way only. Ties go to the first by name.
    """
    worst = min(paths, key=lambda path: (-path.total_s, path.publisher), default=NO_PUBLISHER)
    times = edge if edge is not None else EdgeTimes()
    seconds = deadline_s - worst.total_s - head_to_edge_s - edge_to_subscriber_s - times.total_s
    return AllowedWait(seconds, deadline_s, worst, head_to_edge_s, edge_to_subscriber_s, times)


@dataclass(frozen=True, slots=True)
class Threshold:
    """How many messages may wait; None where the deadline is infeasible."""

    kind: ThresholdKind
    depth: float | None
    reason: ThresholdReason
    allowed_wait_s: float
    enqueue_per_s: float
    """λ(t_{i+1}), predicted."""
    drain_per_s: float
    """μ(t_{i+1}), predicted."""
    session_s: float
    """t_LB."""
    period_s: float
    margin: float = 0.0

    def at_drain(self, factor: float) -> Threshold:
        """The threshold of the same subscription if it were drained `factor` times as fast."""
        drain = self.drain_per_s * factor
        if self.kind is ThresholdKind.PAPER:
            return paper_threshold(self.allowed_wait_s, self.enqueue_per_s, drain, self.session_s, self.period_s)
        return projected_threshold(
            self.allowed_wait_s, self.enqueue_per_s, drain, self.session_s, self.period_s, self.margin
        )

    def decision(self, subscription: str) -> Decision:
        numbers = {
            "allowed_wait_s": self.allowed_wait_s,
            "enqueue_per_s": self.enqueue_per_s,
            "drain_per_s": self.drain_per_s,
            "session_s": self.session_s,
            "period_s": self.period_s,
            "margin": self.margin,
        }
        if self.depth is not None:
            numbers["threshold"] = self.depth
        return Decision("threshold", subscription, f"{self.kind}: {self.reason}", numbers)


def paper_depth(
    allowed_wait_s: float, enqueue_per_s: float, drain_per_s: float, session_s: float, period_s: float = PERIOD_S
) -> float | None:
    """Equation 2: TH = (t_e − t_LB)·μ − (λ − μ). The bare number, for judging many queues quickly."""
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
    """TH = (1 − margin)·t_e·μ − max(λ − μ, 0)·max(t_LB, one period). The bare number.

    At least one period, because nothing can be done before the next sample.
    """
    if allowed_wait_s <= 0.0:
        return None
    growth = max(enqueue_per_s - drain_per_s, 0.0) * max(session_s, period_s)
    return (1.0 - margin) * allowed_wait_s * drain_per_s - growth


def paper_threshold(
    allowed_wait_s: float, enqueue_per_s: float, drain_per_s: float, session_s: float, period_s: float = PERIOD_S
) -> Threshold:
    """`paper_depth` with everything it came from."""
    depth = paper_depth(allowed_wait_s, enqueue_per_s, drain_per_s, session_s, period_s)
    reason = _reason(depth)
    if depth is not None and allowed_wait_s <= session_s:
        reason = ThresholdReason.SESSION_TOO_LONG
    return Threshold(
        ThresholdKind.PAPER, depth, reason, allowed_wait_s, enqueue_per_s, drain_per_s, session_s, period_s
    )


def projected_threshold(
    allowed_wait_s: float,
    enqueue_per_s: float,
    drain_per_s: float,
    session_s: float,
    period_s: float = PERIOD_S,
    margin: float = MARGIN,
) -> Threshold:
    """`projected_depth` with everything it came from."""
    depth = projected_depth(allowed_wait_s, enqueue_per_s, drain_per_s, session_s, period_s, margin)
    return Threshold(
        ThresholdKind.PROJECTED,
        depth,
        _reason(depth),
        allowed_wait_s,
        enqueue_per_s,
        drain_per_s,
        session_s,
        period_s,
        margin,
    )


def _reason(depth: float | None) -> ThresholdReason:
    if depth is None:
        return ThresholdReason.INFEASIBLE
    return ThresholdReason.GROWTH_TOO_FAST if depth < 0.0 else ThresholdReason.ALLOWED_WAIT


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
