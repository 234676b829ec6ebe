"""ELD, the load detector of an edge: follows every subscription, judges the edge once per sample.

It puts together what its parts find: `following` the rates, depths and thresholds of all queues, `uplink` what the
uplink carries, `anticipation` what forecasts take off thresholds, `slowness` the subscribers that are too slow, and
`states` the state of the edge. Invariants:

- one object per output queue that is there, and nothing for one that is gone;
- queues in migration, and those of subscribers that are slow or away, are left out of the assessment;
- infeasible deadlines are named when they are found, and when that changes, never in every sample.

**A step** in what is offered is taken as it is, and not smoothed. What was drained before it says little of what will
be, so from its second sample on a queue is expected to be drained at its share of the uplink at least, and its growth
is followed a period further: that long it takes until it is looked at again. In the first sample, which has seen a part
of the change only, a queue is better suspected too early. The papers' threshold does without all that.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tidegate_protocol.balancing.loads import BrokerLoad, PieLocal
from tidegate_protocol.balancing.paths import PatternPath
from tidegate_protocol.decisions import (
    DeadlineOfQueue,
    DeadlineOutcome,
    DeadlinesJudged,
    Decision,
    Hints,
    QueueForecast,
    SlownessOutcome,
    SlowSubscriber,
    UplinkNarrowed,
)
from tidegate_protocol.messages import Capacity, Subscription
from tidegate_protocol.names import output_queue

from ..config import BalancingConfig
from ..machine import Action, EdgeSampled
from ..policy.interface import LoadView, Movable, Policy, QueueLoad, ThresholdRule
from .anticipation import anticipate
from .following import FIRST_JUDGED_SAMPLE, Followed, Terms, Totals, follow
from .metrics import BrokerSample, Metric, Role, utilizations
from .pie import load_of
from .rates import SMOOTHING, is_step, smooth
from .slowness import SlowSubscribers
from .states import NAMED_MAX, Assessment, LoadState, assess
from .threshold import SessionTime, ThresholdKind
from .uplink import Uplink

STEADY_SHARE: Final = 0.025
"""A sample that changes the offered load by no more than this share of the uplink shows that it is steady."""
FEASIBLE_AGAIN_SHARE: Final = 0.05
"""A deadline named infeasible is called feasible again when this share of it is left for waiting."""
PATHS_MAX: Final = 50_000
"""Patterns whose paths are remembered; those without a subscription here are thrown away first."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one sample led to."""

    decisions: tuple[Decision, ...]
    actions: tuple[Action, ...]


class Detector:
    """The load of one edge, followed over time."""

    def __init__(self, edge: str, config: BalancingConfig, capacity: Capacity, policy: Policy) -> None:
        self.edge = edge
        self.session_time = SessionTime(config.session_s_first)
        self.rule = ThresholdRule(config.threshold, config.session_s_first, config.period_s, config.margin)
        self.assessment = Assessment(LoadState.LOW, (), {})
        self.broker = BrokerSample(edge, Role.EDGE, capacity=capacity)
        """Smoothed."""
        self.steps = 0
        """Samples in a row, up to the last one, that showed a step, or the rest of one."""
        self.steady_samples = 0
        """Samples in a row, up to the last one, that changed the offered load by next to nothing."""
        self.uplink = Uplink(capacity.uplink_bytes_per_s)
        self.samples = 0
        self.unknown = 0
        """Samples of queues we do not have: gone, or not there yet."""
        self.forecasts: Mapping[str, float] = {}
        """The rates to expect, by pattern; set by the part that is told of them."""
        self._config = config
        self._configured = capacity
        self._policy = policy
        self._queues: dict[str, Followed] = {}
        self._sorted: list[Followed] = []
        """By name."""
        self._by_pattern: dict[str, set[str]] = {}
        self._worked_out: dict[frozenset[str], Movable] = {}
        """For the views of the queues as they are now."""
        self._paths: dict[str, PatternPath] = {}
        self._slow = SlowSubscribers(config)
        self._infeasible: set[str] = set()
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
        queue = Followed(name, subscription.subscriber, subscription.number, subscription.pattern, deadline_s)
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
        self._slow.names.discard(name)
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
        self.rule = replace(self.rule, session_s=self.session_time.average_s)

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
    def uplink_limits(self) -> bool:
        """Whether the uplink may be what holds the queues back."""
        return self.uplink.limits

    def sampled(self, event: EdgeSampled, migrating: Collection[str] = frozenset()) -> Judgement:
        """Take one sample in and judge the edge. `migrating` names queues in migration, which are not judged."""
        self.samples += 1
        self._worked_out = {}
        self._head_round_trip_s = smooth(event.head_round_trip_s, self._head_round_trip_s)
        before, width = self.broker.bytes_offered_per_s, self.uplink.known
        # A change begins in the middle of a period: the sample after the one that first showed it shows the rest.
        changed = is_step(event.broker.bytes_offered_per_s, before, width)
        step = self.samples > 1 and (changed or self.steps == 1)
        self.steps = self.steps + 1 if step else 0
        fair = self._fair_share(event.broker.bytes_offered_per_s)
        terms = self._terms(further=fair > 0.0)
        totals = follow(self._queues, event.subscriptions, migrating, terms, step=step, fair_share=fair)
        self.unknown += totals.unknown
        self._follow_broker(event.broker, totals, step)
        if self.forecasts or self._anticipated:
            self._anticipate(totals)
        decisions, actions = self._slow.judge(totals.waiting, self.broker, self.uplink)
        if self.uplink.narrowed:
            narrowed = UplinkNarrowed(self.edge, self.broker.bytes_offered_per_s, width, self.uplink.known)
            decisions.insert(0, narrowed)
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
            named = (finding.queue for finding in self.assessment.findings[:NAMED_MAX])
            decisions.append(self.assessment.decision(self.edge, self.hints(named)))
        return Judgement(tuple(decisions), tuple(actions))

    def _fair_share(self, offered: float) -> float:
        """The share of what comes for a queue that it is expected to be drained of at least: what a FIFO uplink carries
        of each flow. 0 but from the second sample of a step on, where nobody knows, and for the papers' threshold.
        """
        uplink = self.uplink.known
        if self.steps < 2 or uplink is None or offered <= 0.0 or self._config.threshold is ThresholdKind.PAPER:
            return 0.0
        return min(1.0, uplink / offered)

    def _terms(self, further: bool) -> Terms:
        capacity = self.broker.capacity
        per_byte_s = _inverse(capacity.downlink_bytes_per_s) + _inverse(self.uplink.known)
        fixed_s = (self._head_round_trip_s or 0.0) / 2.0 + _inverse(capacity.matching_per_s)
        return Terms.of(self.rule, per_byte_s, fixed_s, self._config.noise_allowance, further=further)

    def _follow_broker(self, sample: BrokerSample, totals: Totals, step: bool) -> None:
        """The load of the edge as a whole."""
        before = self.broker
        alpha = 1.0 if step or self.samples == 1 else SMOOTHING
        offered = smooth(sample.bytes_offered_per_s, before.bytes_offered_per_s, alpha)
        change = 0.0 if self.samples == 1 else offered - before.bytes_offered_per_s
        steady = abs(change) <= STEADY_SHARE * (self.uplink.known or offered)
        self.steady_samples = self.steady_samples + 1 if steady else 0
        configured, told = self._configured, sample.capacity
        self.uplink.seen(totals, told.uplink_bytes_per_s, offered)
        uplink = self.uplink.capacity
        downlink = configured.downlink_bytes_per_s or told.downlink_bytes_per_s
        matching = configured.matching_per_s or told.matching_per_s
        capacity = before.capacity
        # Capacities hardly ever change: a new record is made, and checked, only then.
        if (uplink, downlink, matching) != (
            capacity.uplink_bytes_per_s,
            capacity.downlink_bytes_per_s,
            capacity.matching_per_s,
        ):
            capacity = Capacity(uplink_bytes_per_s=uplink, downlink_bytes_per_s=downlink, matching_per_s=matching)
        self.broker = BrokerSample(
            self.edge,
            Role.EDGE,
            smooth(sample.bytes_in_per_s, before.bytes_in_per_s, alpha),
            offered,
            smooth(sample.messages_in_per_s, before.messages_in_per_s, alpha),
            capacity,
        )

    # Hints

    def _anticipate(self, totals: Totals) -> None:
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

    def hints(self, queues: Iterable[str]) -> Hints | None:
        """What an insight has to do with the judgement of these queues; None where it has nothing."""
        uplink = self.broker.capacity.uplink_bytes_per_s if self.uplink.hinted else None
        forecasts = tuple(
            QueueForecast(queue.name, queue.forecast_per_s, queue.threshold_measured)
            for queue in (self._queues[name] for name in queues if name in self._queues)
            if queue.forecast_per_s > 0.0 and queue.threshold_measured is not None
        )
        return None if uplink is None and not forecasts else Hints(uplink, forecasts)

    # Infeasible deadlines

    def _name_infeasible(self, queues: list[Followed]) -> list[Decision]:
        """Name deadlines that no broker behind these links can meet: when found, and when that changes."""
        found: list[Followed] = []
        cleared: list[Followed] = []
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
        for outcome, changed in ((DeadlineOutcome.INFEASIBLE, found), (DeadlineOutcome.FEASIBLE, cleared)):
            if not changed:
                continue
            changed.sort(key=lambda queue: queue.name)
            named = tuple(DeadlineOfQueue(q.name, q.deadline_s, q.allowed_wait_s) for q in changed[:NAMED_MAX])
            decisions.append(DeadlinesJudged(self.edge, outcome, len(changed), named))
        return decisions

    # What others see

    def view(self, peers: dict[str, PieLocal]) -> LoadView:
        """What a policy sees. The queues in it are those followed here: read, not kept."""
        return LoadView(
            self.broker, self.assessment, self._sorted, self.rule, peers, self.uplink_limits, self._worked_out
        )

    def load(self, state: LoadState, *, busy: bool) -> BrokerLoad:
        """The load in absolute numbers, for a head that asks."""
        return load_of(self.broker, state, busy=busy)

    def queue(self, name: str) -> QueueLoad | None:
        return self._queues.get(name)

    @property
    def slow(self) -> frozenset[str]:
        """The queues of slow subscribers."""
        return frozenset(self._slow.names)

    def about_slowness(self, queue: QueueLoad) -> SlowSubscriber:
        """How a slow subscriber is doing now."""
        return self._slow.about(queue, SlownessOutcome.SLOW, self.broker)

    @property
    def infeasible(self) -> frozenset[str]:
        return frozenset(self._infeasible)

    def validate(self, outputs: Collection[str]) -> None:
        """Raise AssertionError if what is followed is not what is there."""
        assert self._queues.keys() == set(outputs), "what is followed is not what is there"
        assert [queue.name for queue in self._sorted] == sorted(self._queues), "the order of the queues"
        assert {n for names in self._by_pattern.values() for n in names} == self._queues.keys()
        assert self._slow.names == {name for name, queue in self._queues.items() if queue.slow}
        assert self._infeasible == {name for name, queue in self._queues.items() if queue.infeasible}
        assert len(self._paths) <= max(PATHS_MAX, len(self._by_pattern))


def _name(queue: Followed) -> str:
    return queue.name


def _set_path(queue: Followed, path: PatternPath) -> None:
    queue.path_s, queue.local, queue.remote = path.path_us / 1e6, path.local, path.remote


def _inverse(per_s: float | None) -> float:
    return 0.0 if per_s is None else 1.0 / per_s
