"""ELD, the load detector of an edge: follows every subscription, judges the edge once per sample.

For each subscription it keeps smoothed and predicted rates, what of its deadline is left for waiting, and the
threshold that follows; for the edge its smoothed load and, where nobody configured it, what its uplink has been seen
to carry. What always holds:

- one object per output queue that is there, and nothing for one that is gone;
- a queue is judged from its second sample on: in the first one acknowledgements are still on their way, so that any
  subscription that just came looks as if it were not drained;
- queues in migration, and those of subscribers that are slow or away, are left out of the assessment;
- infeasible deadlines are named when they are found, and when that changes, never in every sample.

**Slow subscribers.** A FIFO uplink gives all flows the same share of what they offer. A queue that is past its
threshold, or grows, while it is drained clearly slower than that share is held back by its own subscriber, and no
move of others would help it. At a busy uplink the shares are less equal, so there "clearly" means much more.

**A step** in what is offered is taken as it is, and not smoothed. What was drained before it says little of what will
be, so from its second sample on a queue is expected to be drained at its share of the uplink at least, and its growth
is followed a period further: that long it takes until it is looked at again. In the first sample, which has seen a part
of the change only, a queue is better suspected too early. The papers' threshold does without all that.

**A learned capacity** counts only what was drained while nearly all flows, and more than one, were held back: one
backlog is a slow subscriber, not a narrow uplink. It falls only where `narrowing` has found that the uplink carries
much less than before; while that is open nobody is called slow, and then whoever was is judged anew. A capacity that is
configured, or told, never changes by what is seen.

**Hints from an insight** (`insights`) may be wrong. One about the uplink counts only where its capacity is neither
configured nor told nor learned here, never for less than this uplink was seen to carry, and not for how long a message
takes to leave: so no deadline becomes infeasible by it, and the first backlog that the uplink causes replaces it.
Forecasts lower thresholds by the rules of `anticipation`.

One pass over all queues per sample, in plain arithmetic: an edge may have tens of thousands.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Final

from tidegate_protocol.balancing import BrokerLoad, PatternPath, PieLocal
from tidegate_protocol.messages import Capacity, Subscription
from tidegate_protocol.names import output_queue

from .anticipation import anticipate
from .config import BalancingConfig
from .machine import Action, Decision, EdgeSampled, LimitOutput
from .metrics import BrokerSample, Metric, Role, utilization, utilizations
from .narrowing import Narrowing
from .policy import LoadView, Movable, Policy, QueueLoad, ThresholdRule
from .rates import SMOOTHING, TREND_SHARE, LearnedCapacity, is_step, smooth
from .selecting import BOTTLENECK_SHARE
from .states import Assessment, LoadState, assess
from .threshold import SessionTime, ThresholdKind

FIRST_JUDGED_SAMPLE: Final = 2
FIRST_SLOW_SAMPLE: Final = 15
"""From this sample on a queue behind a busy uplink may be called that of a slow subscriber."""
SLOW_SHARE: Final = 0.95
"""Drained at less than this share of what it should get, a queue is held back by its subscriber."""
SLOW_SHARE_BUSY: Final = 0.5
"""The same where the uplink is busy."""
STEADY_SHARE: Final = 0.025
"""A sample that changes the offered load by no more than this share of the uplink shows that it is steady."""
BACKLOGGED_SHARE: Final = 0.9
"""If queues that make this share of the traffic wait, it is the uplink that holds them back."""
USED_AT_LEAST: Final = 0.5
"""An uplink that carries less than this share of its configured capacity is not what holds anything back."""
COMING_AT_LEAST: Final = 0.1
"""Where less than this share of what is drained comes in, a backlog is just worked off: no move speeds it up."""
IN_FLIGHT_DEVIATIONS: Final = 3.0
"""Standard deviations of what is in flight above which a depth is a backlog and not chance."""
NOISE_MESSAGES_MIN: Final = 1.0
"""So many are allowed for chance whatever the margin is."""
FEASIBLE_AGAIN_SHARE: Final = 0.05
"""A deadline named infeasible is called feasible again when this share of it is left for waiting."""
NAMED_MAX: Final = 16
"""How many subscriptions one decision names."""
PATHS_MAX: Final = 50_000
"""Patterns whose paths are remembered; those without a subscription here are thrown away first."""


@dataclass(slots=True)
class _Followed(QueueLoad):
    """A subscription with what only the detector needs of it."""

    path_s: float = 0.0
    samples: int = 0
    slow_samples: int = 0
    healthy_samples: int = 0
    grows: bool = False
    infeasible: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one sample led to."""

    assessment: Assessment
    decisions: tuple[Decision, ...]
    actions: tuple[Action, ...]


@dataclass(slots=True)
class _Totals:
    """What one pass over the queues adds up."""

    drained: float = 0.0
    judged_offered: float = 0.0
    """What the queues offer that are neither in migration nor those of slow subscribers; of that, backlogged."""
    backlogged: float = 0.0
    backlogs: int = 0
    waiting: list[_Followed] = field(default_factory=list)
    """Queues with more than chance would put there, and those of slow subscribers."""
    judged: list[tuple[_Followed, float | None]] = field(default_factory=list)
    infeasible: list[_Followed] = field(default_factory=list)


class Detector:
    """The load of one edge, followed over time."""

    def __init__(self, edge: str, config: BalancingConfig, capacity: Capacity, policy: Policy) -> None:
        self.edge = edge
        self.session_time = SessionTime(config.session_s_first)
        self.assessment = Assessment(LoadState.LOW, (), {})
        self.broker = BrokerSample(edge, Role.EDGE, capacity=capacity)
        """Smoothed."""
        self.offered_change = 0.0
        """How the smoothed offered load changed with the last sample, in bytes per second."""
        self.steps = 0
        """Samples in a row, up to the last one, that showed a step, or the rest of one."""
        self.steady_samples = 0
        """Samples in a row, up to the last one, that changed the offered load by next to nothing."""
        self.uplink_limits = False
        self.samples = 0
        self.unknown = 0
        """Samples of queues we do not have: gone, or not there yet."""
        self.forecasts: Mapping[str, float] = {}
        """The rates to expect, by pattern; whoever is told of them sets this, and the next one."""
        self.uplink_hint: float | None = None
        self.hinted = False
        """Whether the uplink's capacity is that of the hint."""
        self._config = config
        self._configured = capacity
        self._policy = policy
        self._queues: dict[str, _Followed] = {}
        self._sorted: list[_Followed] = []
        """By name."""
        self._by_pattern: dict[str, set[str]] = {}
        self._worked_out: dict[frozenset[str], Movable] = {}
        """For the views of the queues as they are now."""
        self._paths: dict[str, PatternPath] = {}
        self._slow: set[str] = set()
        self._infeasible: set[str] = set()
        self._learned_uplink = LearnedCapacity()
        self._narrowing = Narrowing()
        self._narrowed = False
        """Whether the last sample has shown that the uplink is narrower than it was."""
        self._known_uplink = capacity.uplink_bytes_per_s
        """As configured, told or learned here."""
        self._carried_most = 0.0
        self._anticipated: list[QueueLoad] = []
        self._head_round_trip_s: float | None = None

    # What is there

    def track(self, subscription: Subscription) -> None:
        """The output queue of this subscription is there; its deadline may have changed."""
        name = output_queue(subscription.subscriber, subscription.number)
        known = self._queues.get(name)
        deadline_s = subscription.deadline_us / 1e6
        if known is not None and known.pattern == subscription.pattern:
            known.deadline_s = deadline_s
            return
        self.forget(name)
        queue = _Followed(name, subscription.subscriber, subscription.number, subscription.pattern, deadline_s)
        path = self._paths.get(queue.pattern)
        if path is not None:
            _set_path(queue, path)
        self._worked_out = {}
        self._queues[name] = queue
        insort(self._sorted, queue, key=_name)
        self._by_pattern.setdefault(queue.pattern, set()).add(name)

    def forget(self, name: str) -> None:
        """This output queue is gone."""
        queue = self._queues.pop(name, None)
        if queue is None:
            return
        self._worked_out = {}
        del self._sorted[bisect_left(self._sorted, name, key=_name)]
        self._slow.discard(name)
        self._infeasible.discard(name)
        names = self._by_pattern[queue.pattern]
        names.discard(name)
        if not names:
            del self._by_pattern[queue.pattern]

    def learn_paths(self, paths: Iterable[PatternPath]) -> None:
        """The head says how publications of some patterns get to it."""
        for path in paths:
            if self._paths.get(path.pattern) == path:
                continue  # told again, in case it had been lost
            self._paths[path.pattern] = path
            self._worked_out = {}
            for name in self._by_pattern.get(path.pattern, ()):
                _set_path(self._queues[name], path)
        if len(self._paths) > PATHS_MAX:
            self._paths = {p: path for p, path in self._paths.items() if p in self._by_pattern}

    def learn_session(self, session_s: float) -> None:
        """A session of ours took so long from its start until the load had moved: t_LB."""
        self.session_time = self.session_time.learned(session_s)

    # Judging

    @property
    def undecided(self) -> bool:
        """Whether the last sample has shown a change, and so a part of it only."""
        return self.steps == 1

    @property
    def typical_rate(self) -> float:
        """What comes for a queue per second, on average over all messages: where most of them are."""
        rates = [queue.enqueue_per_s for queue in self._queues.values()]
        total = sum(rates)
        return sum(rate * rate for rate in rates) / total if total > 0.0 else 0.0

    @property
    def rule(self) -> ThresholdRule:
        config = self._config
        return ThresholdRule(config.threshold, self.session_time.average_s, config.period_s, config.margin)

    def sampled(self, event: EdgeSampled, migrating: Collection[str] = frozenset()) -> Judgement:
        """Take one sample in and judge the edge. `migrating` names queues in migration, which are not judged."""
        self.samples += 1
        self._worked_out = {}
        self._head_round_trip_s = smooth(event.head_round_trip_s, self._head_round_trip_s)
        before, width = self.broker.bytes_offered_per_s, self._known_uplink
        # A change begins in the middle of a period: the sample after the one that first showed it shows the rest.
        changed = is_step(event.broker.bytes_offered_per_s, before, width)
        step = self.samples > 1 and (changed or self.steps == 1)
        self.steps = self.steps + 1 if step else 0
        totals = self._follow(event, migrating, step)
        self._follow_broker(event.broker, totals, step)
        if self.forecasts or self._anticipated:
            self._anticipate(totals)
        decisions, actions = self._judge_subscribers(totals)
        if self._narrowed:
            decisions.insert(0, self._about_narrowing(width))
        decisions += self._name_infeasible(totals.infeasible)
        assessed = self.assessment
        self.assessment = assess(
            Role.EDGE,
            utilizations(self.broker),
            [(queue, threshold) for queue, threshold in totals.judged if not queue.slow],
            above=assessed.above,
            samples_needed={Metric.QUEUE_DEPTH: self._config.queue_samples_needed},
            thresholds=self._policy.limits,
        )
        if self.assessment.state is not assessed.state or self.samples == 1:
            decisions.append(self._with_hints(self.assessment.decision(self.edge)))
        return Judgement(self.assessment, tuple(decisions), tuple(actions))

    def _follow(self, event: EdgeSampled, migrating: Collection[str], step: bool) -> _Totals:
        """Rates, allowed waits and thresholds of all queues, in one pass."""
        totals, queues = _Totals(), self._queues
        alpha, rest, trend = SMOOTHING, 1.0 - SMOOTHING, TREND_SHARE
        arriving_alpha, arriving_rest, arriving_trend = (1.0, 0.0, 0.0) if step else (alpha, rest, trend)
        fair = self._fair_share(event.broker.bytes_offered_per_s)
        per_byte_s, fixed_s, per_drain_s, share, per_growth_s, shrinking = self._constants(further=fair > 0.0)
        noise_allowance, noise_share = self._config.noise_allowance, self._config.margin / 4.0
        drained, offered, backlogged, backlogs = 0.0, 0.0, 0.0, 0
        judge, wait = totals.judged.append, totals.waiting.append
        for sample in event.subscriptions:
            queue = queues.get(sample.name)
            if queue is None:
                self.unknown += 1
                continue
            arriving, draining = sample.enqueue_per_s, sample.drain_per_s
            seen = queue.samples = queue.samples + 1
            if seen > 1:
                before, drain_before = queue.enqueue_per_s, queue.drain_per_s
                level = arriving_alpha * arriving + arriving_rest * before
                expected = level + arriving_trend * (level - before)
                drain_level = alpha * draining + rest * drain_before
                drain = drain_level + trend * (drain_level - drain_before)
                expected, at_least = expected if expected > 0.0 else 0.0, fair * arriving
                drain = drain if drain > at_least else at_least
            else:
                level = expected = arriving
                drain_level = drain = draining
            queue.enqueue_per_s, queue.enqueue_predicted_per_s = level, expected
            queue.drain_per_s, queue.drain_predicted_per_s = drain_level, drain
            size = sample.message_bytes
            queue.message_bytes = size if size > 0.0 else queue.message_bytes
            in_flight = draining * (round_trip_s := sample.round_trip_s)
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
            drained += drain_level * size
            queue.away = not sample.attached
            if queue.away:
                queue.slow_samples = 0
                continue
            if counts := not (moves or queue.slow):
                offered += level * size
            waits = depth > 1.0 and depth > 1.0 + IN_FLIGHT_DEVIATIONS * deviation
            if waits and counts:
                backlogged += level * size
                backlogs += 1
            if waits or queue.slow:
                wait(queue)
            elif queue.slow_samples:
                queue.slow_samples = 0
            if threshold is None or queue.infeasible:
                totals.infeasible.append(queue)
            if seen >= FIRST_JUDGED_SAMPLE and (threshold is None or depth > threshold or moves):
                judge((queue, threshold))
        totals.drained, totals.judged_offered = drained, offered
        totals.backlogged, totals.backlogs = backlogged, backlogs
        return totals

    def _fair_share(self, offered: float) -> float:
        """The share of what comes for a queue that it is expected to be drained of at least: what a FIFO uplink carries
        of each flow. 0 but from the second sample of a step on, where nobody knows, and for the papers' threshold.
        """
        uplink = self._known_uplink
        if self.steps < 2 or uplink is None or offered <= 0.0 or self._config.threshold is ThresholdKind.PAPER:
            return 0.0
        return min(1.0, uplink / offered)

    def _constants(self, further: bool) -> tuple[float, float, float, float, float, bool]:
        """What is the same for all queues of a sample.

        The fixed part of a path, per byte and per message; and the two formulas of `threshold` taken apart, so that
        no function is called per queue: TH = (share·t_e − per drain)·μ − per growth·(λ − μ), the last also where the
        queue shrinks if `shrinking`. `further`: growth counts for a period more.
        """
        capacity, rule = self.broker.capacity, self.rule
        per_byte_s = _inverse(capacity.downlink_bytes_per_s) + _inverse(self._known_uplink)
        fixed_s = (self._head_round_trip_s or 0.0) / 2.0 + _inverse(capacity.matching_per_s)
        if rule.kind is ThresholdKind.PAPER:
            return per_byte_s, fixed_s, rule.session_s, 1.0, rule.period_s, True
        ahead_s = max(rule.session_s, rule.period_s) + (rule.period_s if further else 0.0)
        return per_byte_s, fixed_s, 0.0, 1.0 - rule.margin, ahead_s, False

    def _follow_broker(self, sample: BrokerSample, totals: _Totals, step: bool) -> None:
        """The load of the edge as a whole, and what its uplink is known to carry."""
        before = self.broker
        alpha = 1.0 if step or self.samples == 1 else SMOOTHING
        offered = smooth(sample.bytes_offered_per_s, before.bytes_offered_per_s, alpha)
        self.offered_change = 0.0 if self.samples == 1 else offered - before.bytes_offered_per_s
        width = self._known_uplink or offered
        self.steady_samples = self.steady_samples + 1 if abs(self.offered_change) <= STEADY_SHARE * width else 0
        all_wait = totals.backlogs > 1 and totals.backlogged >= BACKLOGGED_SHARE * totals.judged_offered
        configured, told = self._configured, sample.capacity
        self._learned_uplink = self._learned_uplink.seen(totals.drained, backlog=all_wait)
        known = configured.uplink_bytes_per_s or told.uplink_bytes_per_s
        less = known is None and totals.drained < USED_AT_LEAST * (self._learned_uplink.per_s or 0.0)
        self._narrowed = self._narrowing.seen(less, totals.waiting, totals.judged_offered, totals.drained)
        if self._narrowed:
            self._learned_uplink = self._learned_uplink.narrowed(totals.drained)
        uplink = self._learned_uplink.or_configured(known)
        self._known_uplink = uplink
        self._carried_most = max(self._carried_most, totals.drained)
        self.hinted = uplink is None and self.uplink_hint is not None
        if uplink is None and self.uplink_hint is not None:
            uplink = max(self.uplink_hint, self._carried_most)
        capacity = Capacity(
            uplink_bytes_per_s=uplink,
            downlink_bytes_per_s=configured.downlink_bytes_per_s or told.downlink_bytes_per_s,
            matching_per_s=configured.matching_per_s or told.matching_per_s,
        )
        self.broker = BrokerSample(
            self.edge,
            Role.EDGE,
            smooth(sample.bytes_in_per_s, before.bytes_in_per_s, alpha),
            offered,
            smooth(sample.messages_in_per_s, before.messages_in_per_s, alpha),
            before.capacity if capacity == before.capacity else capacity,
        )
        used = utilization(offered, uplink)
        busy = used is not None and used > BOTTLENECK_SHARE
        coming = totals.judged_offered >= COMING_AT_LEAST * totals.drained
        carries = uplink is None or totals.drained >= USED_AT_LEAST * uplink
        self.uplink_limits = busy or (all_wait and coming and carries)

    # Hints

    def _anticipate(self, totals: _Totals) -> None:
        """Lower the thresholds of queues that are forecast to grow, and judge those that are past them then."""
        for queue in self._anticipated:
            queue.forecast_per_s, queue.threshold_measured = 0.0, None
        names = [name for pattern in sorted(self.forecasts) for name in sorted(self._by_pattern.get(pattern, ()))]
        queues = [self._queues[name] for name in names]
        offered, uplink = self.broker.bytes_offered_per_s, self.broker.capacity.uplink_bytes_per_s
        self._anticipated = anticipate(queues, self.forecasts, offered, uplink, self.rule)
        past = {queue.name for queue, _ in totals.judged}
        totals.judged = [(queue, queue.threshold) for queue, _ in totals.judged]
        totals.judged += [
            (followed, queue.threshold)
            for queue in self._anticipated
            if queue.name not in past and queue.threshold is not None and queue.depth > queue.threshold
            if (followed := self._queues[queue.name]).samples >= FIRST_JUDGED_SAMPLE
        ]

    def _with_hints(self, decision: Decision) -> Decision:
        """The same decision, saying which forecasts and whose capacity it rests on."""
        numbers = self.hint_numbers(finding.subscription for finding in self.assessment.findings[:NAMED_MAX])
        if not numbers:
            return decision
        lowered = any(name.endswith(".forecast_per_s") for name in numbers)
        said = "; a forecast lowered the threshold" if lowered else ""
        return replace(decision, reason=decision.reason + said, numbers={**numbers, **decision.numbers})

    def hint_numbers(self, queues: Iterable[str]) -> dict[str, float]:
        """What an insight has to do with the judgement of these queues; empty where it has nothing."""
        numbers: dict[str, float] = {}
        if self.hinted and self.broker.capacity.uplink_bytes_per_s is not None:
            numbers["insight.uplink_bytes_per_s"] = self.broker.capacity.uplink_bytes_per_s
        for queue in (self._queues[name] for name in queues if name in self._queues):
            if queue.forecast_per_s > 0.0 and queue.threshold_measured is not None:
                numbers[f"insight.{queue.name}.forecast_per_s"] = queue.forecast_per_s
                numbers[f"insight.{queue.name}.threshold_measured"] = queue.threshold_measured
        return numbers

    # Slow subscribers

    def _judge_subscribers(self, totals: _Totals) -> tuple[list[Decision], list[Action]]:
        changed: list[tuple[str, Decision, Action]] = []
        uplink, offered = self.broker.capacity.uplink_bytes_per_s, self.broker.bytes_offered_per_s
        fair = 1.0 if uplink is None or offered <= uplink else uplink / offered
        clearly = SLOW_SHARE_BUSY if self.uplink_limits else SLOW_SHARE
        needed = self._config.slow_subscriber_samples_needed
        lagging = clearly * fair
        for queue in totals.waiting:
            lags = queue.drain_per_s < lagging * queue.enqueue_per_s
            if not lags and not queue.slow:
                queue.slow_samples = 0
                continue
            past = queue.threshold is not None and queue.depth > queue.threshold
            # What comes first to a line that is long already waits for its turn, however fast its subscriber is.
            new = self.uplink_limits and queue.samples < FIRST_SLOW_SAMPLE
            if queue.migrating or new or not lags or not (past or queue.grows):
                queue.slow_samples = 0
            elif not self._narrowing.samples:
                queue.slow_samples = min(queue.slow_samples + 1, needed)
            if queue.slow:
                keeps_up = queue.drain_per_s >= SLOW_SHARE * fair * queue.enqueue_per_s and not past
                queue.healthy_samples = min(queue.healthy_samples + 1, needed) if keeps_up else 0
                if queue.healthy_samples >= needed or (self._narrowed and not lags):
                    queue.slow = False
                    self._slow.discard(queue.name)
                    decision = self._about(queue, "slow-subscriber-recovered", "keeps up again", fair)
                    changed.append((queue.name, decision, LimitOutput(queue.subscriber, queue.number, None)))
            elif queue.slow_samples >= needed:
                queue.slow, queue.healthy_samples = True, 0
                self._slow.add(queue.name)
                reason = "takes less than the uplink would give it: not judged, not moved, and limited"
                decision = self._about(queue, "slow-subscriber", reason, fair)
                limit = LimitOutput(queue.subscriber, queue.number, self._config.slow_subscriber_messages_max)
                changed.append((queue.name, decision, limit))
        changed.sort(key=lambda change: change[0])
        return [decision for _, decision, _ in changed], [action for _, _, action in changed]

    def _about_narrowing(self, before: float | None) -> Decision:
        numbers = {"offered": self.broker.bytes_offered_per_s, "uplink_before": before, "uplink": self._known_uplink}
        reason = "all subscribers alike get less than they are sent: less is carried than was learned"
        return Decision("uplink-narrowed", self.edge, reason, {n: v for n, v in numbers.items() if v is not None})

    def _about(self, queue: _Followed, kind: str, reason: str, fair: float) -> Decision:
        numbers = {
            "enqueue_per_s": queue.enqueue_per_s,
            "drain_per_s": queue.drain_per_s,
            "fair_share": fair,
            "depth": queue.depth,
        }
        if queue.threshold is not None:
            numbers["threshold"] = queue.threshold
        used = utilizations(self.broker)[Metric.UPLINK]
        if used is not None:
            numbers["uplink"] = used
        return Decision(kind, queue.name, reason, numbers)

    # Infeasible deadlines

    def _name_infeasible(self, queues: list[_Followed]) -> list[Decision]:
        """Name deadlines that no broker behind these links can meet: when found, and when that changes."""
        found: list[_Followed] = []
        cleared: list[_Followed] = []
        for queue in queues:
            if not queue.infeasible and queue.allowed_wait_s <= 0.0:
                queue.infeasible = True
                found.append(queue)
            elif queue.infeasible and queue.allowed_wait_s > FEASIBLE_AGAIN_SHARE * queue.deadline_s:
                queue.infeasible = False
                cleared.append(queue)
        self._infeasible |= {queue.name for queue in found}
        self._infeasible -= {queue.name for queue in cleared}
        decisions: list[Decision] = []
        for kind, changed, why in (
            ("infeasible-deadline", found, "no time is left to wait: not balanced for"),
            ("feasible-deadline", cleared, "can be met again"),
        ):
            if not changed:
                continue
            changed.sort(key=lambda queue: queue.name)
            numbers: dict[str, float] = {"count": float(len(changed))}
            for queue in changed[:NAMED_MAX]:
                numbers[f"{queue.name}.deadline_s"] = queue.deadline_s
                numbers[f"{queue.name}.allowed_wait_s"] = queue.allowed_wait_s
            named = {queue.name: why for queue in changed[:NAMED_MAX]}
            decisions.append(Decision(kind, changed[0].name, f"{len(changed)} deadlines: {why}", numbers, named))
        return decisions

    # What others see

    def view(self, peers: dict[str, PieLocal]) -> LoadView:
        """What a policy sees. The queues in it are those followed here: read, not kept."""
        return LoadView(
            self.broker, self.assessment, self._sorted, self.rule, peers, self.uplink_limits, self._worked_out
        )

    def load(self, state: LoadState, *, busy: bool) -> BrokerLoad:
        """The load in absolute numbers, for a head that asks."""
        broker = self.broker
        return BrokerLoad(
            broker=self.edge,
            state=state,
            busy=busy,
            bytes_in_per_s=broker.bytes_in_per_s,
            bytes_offered_per_s=broker.bytes_offered_per_s,
            messages_in_per_s=broker.messages_in_per_s,
            capacity=broker.capacity,
        )

    def queue(self, name: str) -> QueueLoad | None:
        return self._queues.get(name)

    @property
    def slow(self) -> frozenset[str]:
        return frozenset(self._slow)

    @property
    def infeasible(self) -> frozenset[str]:
        return frozenset(self._infeasible)

    def validate(self, outputs: Collection[str]) -> None:
        """Raise AssertionError if what is followed is not what is there."""
        assert self._queues.keys() == set(outputs), "what is followed is not what is there"
        assert [queue.name for queue in self._sorted] == sorted(self._queues), "the order of the queues"
        assert {n for names in self._by_pattern.values() for n in names} == self._queues.keys()
        assert self._slow == {name for name, queue in self._queues.items() if queue.slow}
        assert self._infeasible == {name for name, queue in self._queues.items() if queue.infeasible}
        assert len(self._paths) <= max(PATHS_MAX, len(self._by_pattern))


def _name(queue: _Followed) -> str:
    return queue.name


def _set_path(queue: _Followed, path: PatternPath) -> None:
    queue.path_s, queue.local, queue.remote = path.path_us / 1e6, path.local, path.remote


def _inverse(per_s: float | None) -> float:
    return 0.0 if per_s is None else 1.0 / per_s
