"""What the detector of an edge follows of every queue: rates, what waits, the allowed wait, and the threshold.

`follow` takes one sample in, in two passes: first the smoothed and predicted rates of every queue, then its depth, its
allowed wait t_e and its threshold TH. It adds up what the judgement of the edge needs (`Totals`).

Invariants:

- a queue is judged from its second sample on: in the first one acknowledgements are still on their way, so that any
  subscription that just came looks as if it were not drained;
- a queue that nobody takes from is followed, and neither judged nor counted.

Plain arithmetic, and no call per queue: an edge may have tens of thousands. The formulas of `threshold` are taken apart
for that (`Terms`). Knows no clock, keeps nothing but what is in the queues, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from ..policy.interface import QueueLoad, ThresholdRule
from .metrics import SubscriptionSample
from .rates import SMOOTHING, TREND_SHARE
from .threshold import ThresholdKind

FIRST_JUDGED_SAMPLE: Final = 2
IN_FLIGHT_DEVIATIONS: Final = 3.0
"""Standard deviations of what is in flight above which a depth is a backlog and not chance."""
NOISE_MESSAGES_MIN: Final = 1.0
"""So many are allowed for chance whatever the margin is."""


@dataclass(slots=True)
class Followed(QueueLoad):
    """A subscription with what only the detector needs of it."""

    path_s: float = 0.0
    samples: int = 0
    slow_samples: int = 0
    healthy_samples: int = 0
    grows: bool = False
    infeasible: bool = False


@dataclass(slots=True)
class Totals:
    """What one sample adds up to."""

    unknown: int = 0
    """Samples of queues that are not followed: gone, or not there yet."""
    drained: float = 0.0
    judged_offered: float = 0.0
    """What the queues offer that are neither in migration nor those of slow subscribers; of that, backlogged."""
    backlogged: float = 0.0
    backlogs: int = 0
    waiting: list[Followed] = field(default_factory=list)
    """Queues with more than chance would put there, and those of slow subscribers."""
    judged: list[tuple[Followed, float | None]] = field(default_factory=list)
    infeasible: list[Followed] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Terms:
    """What is the same for all queues of a sample.

    TH = (share·t_e − per drain)·μ − per growth·(λ − μ), the last term also where the queue shrinks if `shrinking`.
    """

    per_byte_s: float
    fixed_s: float
    """The part of a path that all queues share, per byte and per message."""
    share: float
    per_drain_s: float
    per_growth_s: float
    shrinking: bool
    noise_allowance: float
    noise_share: float

    @classmethod
    def of(
        cls, rule: ThresholdRule, per_byte_s: float, fixed_s: float, noise_allowance: float, *, further: bool
    ) -> Terms:
        """The terms of a threshold rule. `further`: growth counts for a period more."""
        noise_share = rule.margin / 4.0
        if rule.kind is ThresholdKind.PAPER:
            paper = (1.0, rule.session_s, rule.period_s, True)
            return cls(per_byte_s, fixed_s, *paper, noise_allowance, noise_share)
        ahead_s = max(rule.session_s, rule.period_s) + (rule.period_s if further else 0.0)
        return cls(per_byte_s, fixed_s, 1.0 - rule.margin, 0.0, ahead_s, False, noise_allowance, noise_share)


_Sampled = list[tuple[Followed, SubscriptionSample]]


def follow(
    queues: Mapping[str, Followed],
    samples: Iterable[SubscriptionSample],
    migrating: Collection[str],
    terms: Terms,
    *,
    step: bool,
    fair_share: float,
) -> Totals:
    """Take one sample in. `migrating` names the queues in migration, which are not judged.

    `step`: what comes in is taken as it is. `fair_share` is the share of what comes for a queue that it is expected to
    be drained of at least.
    """
    totals = Totals()
    _follow_depths(_follow_rates(queues, samples, totals, step, fair_share), migrating, terms, totals)
    return totals


def _follow_rates(
    queues: Mapping[str, Followed], samples: Iterable[SubscriptionSample], totals: Totals, step: bool, fair_share: float
) -> _Sampled:
    """λ and μ of every queue, smoothed and predicted."""
    alpha, rest, trend = SMOOTHING, 1.0 - SMOOTHING, TREND_SHARE
    arriving_alpha, arriving_rest, arriving_trend = (1.0, 0.0, 0.0) if step else (alpha, rest, trend)
    found: _Sampled = []
    get, enter = queues.get, found.append
    for sample in samples:
        queue = get(sample.name)
        if queue is None:
            totals.unknown += 1
            continue
        enter((queue, sample))
        arriving, draining = sample.enqueue_per_s, sample.drain_per_s
        if queue.samples:
            before, drain_before = queue.enqueue_per_s, queue.drain_per_s
            level = arriving_alpha * arriving + arriving_rest * before
            expected = level + arriving_trend * (level - before)
            drain_level = alpha * draining + rest * drain_before
            drain = drain_level + trend * (drain_level - drain_before)
            expected, at_least = expected if expected > 0.0 else 0.0, fair_share * arriving
            drain = drain if drain > at_least else at_least
        else:
            level = expected = arriving
            drain_level = drain = draining
        queue.samples += 1
        queue.enqueue_per_s, queue.enqueue_predicted_per_s = level, expected
        queue.drain_per_s, queue.drain_predicted_per_s = drain_level, drain
    return found


def _follow_depths(sampled: _Sampled, migrating: Collection[str], terms: Terms, totals: Totals) -> None:
    """What waits in every queue, and how much may."""
    per_byte_s, fixed_s, share, per_drain_s = terms.per_byte_s, terms.fixed_s, terms.share, terms.per_drain_s
    per_growth_s, shrinking = terms.per_growth_s, terms.shrinking
    noise_allowance, noise_share = terms.noise_allowance, terms.noise_share
    drained, offered, backlogged, backlogs = 0.0, 0.0, 0.0, 0
    judge, wait = totals.judged.append, totals.waiting.append
    for queue, sample in sampled:
        size, round_trip_s = sample.message_bytes, sample.round_trip_s
        drain, expected = queue.drain_predicted_per_s, queue.enqueue_predicted_per_s
        queue.message_bytes = size if size > 0.0 else queue.message_bytes
        in_flight = sample.drain_per_s * round_trip_s
        depth = sample.ready + sample.unacknowledged - in_flight
        depth = depth if depth > 0.0 else 0.0
        queue.grows, queue.depth = depth >= queue.depth, depth
        wait_s = queue.deadline_s - queue.path_s - fixed_s - round_trip_s / 2.0 - size * per_byte_s
        deviation = sqrt(in_flight)
        noise, bound = noise_allowance * deviation, noise_share * wait_s * drain
        noise = min(noise, bound if bound > NOISE_MESSAGES_MIN else NOISE_MESSAGES_MIN)
        queue.allowed_wait_s, queue.noise = wait_s, noise
        threshold: float | None = None
        if wait_s > 0.0:
            threshold = (share * wait_s - per_drain_s) * drain + noise
            if expected > drain or shrinking:
                threshold -= (expected - drain) * per_growth_s
        queue.threshold = threshold
        moves = queue.migrating = sample.name in migrating
        drained += queue.drain_per_s * size
        queue.away = not sample.attached
        if queue.away:
            queue.slow_samples = 0
            continue
        waits = depth > 1.0 and depth > 1.0 + IN_FLIGHT_DEVIATIONS * deviation
        if not (moves or queue.slow):
            coming = queue.enqueue_per_s * size
            offered += coming
            if waits:
                backlogged += coming
                backlogs += 1
        if waits or queue.slow:
            wait(queue)
        elif queue.slow_samples:
            queue.slow_samples = 0
        if threshold is None or queue.infeasible:
            totals.infeasible.append(queue)
        if queue.samples >= FIRST_JUDGED_SAMPLE and (threshold is None or depth > threshold or moves):
            judge((queue, threshold))
    totals.drained, totals.judged_offered = drained, offered
    totals.backlogged, totals.backlogs = backlogged, backlogs
