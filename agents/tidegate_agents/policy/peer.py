"""PEER, as far as it is compared with: static thresholds and balancing by load difference, deadlines ignored.

Seed 002 §3.3.2 and §4.2.3. Detection has two steps. First: a utilization above 0.95 is an overload and is balanced
away at once; between 0.90 and 0.95 a broker neither gives nor takes (PEER calls it N/A from 0.90 on). Second: a
broker that is not overloaded, and sees nobody who is, balances with the least loaded one if their utilizations
differ by more than 0.1. Either way subscribers move until both are equally loaded, as nearly as they can be.

Invariants:

- deadlines and queue depths reach no decision; a session is therefore unnecessary unless the detector happens to see
  a deadline in danger, or a downlink or matching overload, at the same moment;
- load goes to one broker per session, and only as much as leaves that broker below 0.90 in every metric;
- no new subscriber is placed by load: PEER has no distribution of its own (seed 000 §V), so all of them go to
  one entry broker and are balanced away from there.

Not here: matching delay as a load index of its own, global sessions, bit vectors and covering sets. Matching
utilization stands for PEER's input utilization.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import floor, inf
from types import MappingProxyType
from typing import Final, Unpack

from tidegate_protocol.balancing.loads import PieLocal
from tidegate_protocol.balancing.sessions import CANDIDATES_MAX, MOVES_PER_SESSION_MAX, SHARED_PATTERNS_MAX, Candidate
from tidegate_protocol.decisions import Cause, Placed, PlacementReason, PlanOutcome, Rejected, Rejection

from ..load.metrics import BrokerSample, Metric, Role, utilizations
from ..load.states import THRESHOLDS, Assessment, Limits, LoadState, assess
from .bundles import subscriber_bundle
from .effects import subscribers_moved
from .interface import REJECTED_MAX, LoadView, QueueLoad, SelectedMove, Selection, Trigger, sample_of
from .placement import REJECTED_MAX as PLACES_REJECTED_MAX, EdgeView, Known, Placement
from .selecting import effects, would_overload

LOWER_OVERLOAD: Final = 0.90
HIGHER_OVERLOAD: Final = 0.95
"""Seed 002 Figure 3.4."""

RATIO_DIFFERENCE: Final = 0.1
"""The local ratio threshold of seed 002 §3.3.2.1: a larger difference between two brokers is balanced."""

BALANCED_DIFFERENCE: Final = 0.005
"""The balance percentage of seed 002 Table 5.2: how equal two brokers are made."""

BALANCED: Final = (Metric.UPLINK, Metric.MATCHING)
"""PEER's load indices: output utilization, and input utilization, which is the input rate ÷ the matching rate."""

LIMITS: Final[Mapping[tuple[Role, Metric], Limits]] = MappingProxyType(
    {**THRESHOLDS, (Role.EDGE, Metric.UPLINK): Limits(LOWER_OVERLOAD, HIGHER_OVERLOAD)}
)
"""PEER gives an edge's uplink a high threshold, too; the others are those seed 000 took over from it."""


class PeerPolicy:
    """Keeps nothing: see the module's docstring."""

    name = "peer"
    limits: Mapping[tuple[Role, Metric], Limits] = LIMITS

    # Detection

    def detect(self, view: LoadView) -> Trigger | None:
        values = {metric: value for metric, value in utilizations(view.broker).items() if value is not None}
        overloaded = {metric: value for metric, value in values.items() if value > HIGHER_OVERLOAD}
        if overloaded:
            return self._overload(view, overloaded)
        if any(value >= LOWER_OVERLOAD for value in values.values()):
            return None
        return self._difference(view, values)

    def _overload(self, view: LoadView, overloaded: Mapping[Metric, float]) -> Trigger | None:
        """Step one. Input goes first where it is overloaded, because relieving it relieves everything else."""
        metric = min(overloaded, key=lambda m: (m is not Metric.MATCHING, -overloaded[m], m))
        rejected = _unable(view.peers, metric)
        unable = {one.name for one in rejected}
        loads = {name: report.metrics[metric].value for name, report in view.peers.items() if name not in unable}
        if not loads and any(_occupied(report) for report in view.peers.values()):
            return None  # who is in a session now may have room when it ends: nobody outside is asked before
        return Trigger(
            Cause(metric, overloaded[metric], HIGHER_OVERLOAD),
            _necessary(view.assessment),
            tuple(sorted(loads, key=lambda name: (loads[name], name)))[:CANDIDATES_MAX],
            _patterns(view.queues),
            rejected,
        )

    def _difference(self, view: LoadView, values: Mapping[Metric, float]) -> Trigger | None:
        """Step two. Overloaded brokers are prioritised: as long as one of them is waiting, all others hold back."""
        if any(report.state is not LoadState.LOW and not report.busy for report in view.peers.values()):
            return None
        found: dict[Metric, dict[str, float]] = {}
        for metric in BALANCED:
            if metric not in values:
                continue
            value = values[metric]
            usable = {name: report for name, report in view.peers.items() if _why_not(name, report, metric) is None}
            differences = {name: value - report.metrics[metric].value for name, report in usable.items()}
            large = {name: difference for name, difference in differences.items() if difference > RATIO_DIFFERENCE}
            if large:
                found[metric] = large
        if not found:
            return None
        metric = min(found, key=lambda m: (-max(found[m].values()), m))
        # One partner is asked at a time, so that those with an overload find the others free.
        partner = min(found[metric], key=lambda name: (-found[metric][name], name))
        difference = found[metric][partner]
        return Trigger(
            Cause(metric, difference, RATIO_DIFFERENCE, partner=partner),
            _necessary(view.assessment),
            (partner,),
            _patterns(view.queues),
            _unable(view.peers, metric),
        )

    # Selection

    def rank(self, trigger: Trigger, candidates: Iterable[Candidate], *, session: str) -> tuple[Candidate, ...]:
        """The least loaded first, by the metric to be balanced."""

        def position(candidate: Candidate) -> tuple[float, str]:
            value = utilizations(sample_of(candidate.load)).get(trigger.metric)
            return inf if value is None else value, candidate.load.broker

        return tuple(sorted(candidates, key=position))

    def select(
        self,
        view: LoadView,
        trigger: Trigger,
        candidates: Sequence[Candidate],
        *,
        resting: Collection[str] = frozenset(),
        session: str = "",
    ) -> Selection:
        rejected: list[Rejected] = []
        free = [queue for queue in view.queues if not (queue.migrating or queue.away) and queue.name not in resting]
        for candidate in candidates:
            source, target, moves = self._balance(view, trigger.metric, free, candidate, rejected)
            if moves:
                value = utilizations(source)[trigger.metric]
                assert value is not None, "a metric without a capacity triggers nothing"
                return Selection(
                    tuple(moves),
                    PlanOutcome.BALANCED,
                    relieved=value <= HIGHER_OVERLOAD,
                    source_after=source,
                    effects=effects(view.broker, source) + effects(sample_of(candidate.load), target),
                    rejected=tuple(rejected),
                )
        outcome = PlanOutcome.NOBODY_MOVABLE if candidates else PlanOutcome.NO_CANDIDATE
        return Selection((), outcome, rejected=tuple(rejected))

    def _balance(
        self,
        view: LoadView,
        metric: Metric,
        queues: Sequence[QueueLoad],
        candidate: Candidate,
        rejected: list[Rejected],
    ) -> tuple[BrokerSample, BrokerSample, list[SelectedMove]]:
        """Who moves to this candidate until it is as loaded as the source, and the load of both then."""
        source, target = view.broker, sample_of(candidate.load)
        together = Counter(queue.pattern for queue in view.queues)
        held = frozenset(candidate.patterns)
        members: dict[str, list[QueueLoad]] = {}
        for queue in queues:
            members.setdefault(queue.pattern, []).append(queue)
        moves: list[SelectedMove] = []
        left = MOVES_PER_SESSION_MAX
        # What the target carries anyway costs it nothing that comes in; the largest first, so that few have to move.
        for pattern in sorted(members, key=lambda p: (p not in held, -members[p][0].bytes_per_s, p)):
            difference = _difference(source, target, metric)
            if difference < BALANCED_DIFFERENCE:
                break
            count = min(_fitting(source, target, metric, members[pattern], difference), left)
            if count == 0:
                _reject(rejected, Rejected(pattern, Rejection.OVERSHOOTS, target.broker))
                continue
            bundle = subscriber_bundle(members[pattern][:count])
            split, known = count < together[pattern], pattern in held
            effect = subscribers_moved(bundle, source, target, target_has_topic=known, some_stay=split)
            after = assess(Role.EDGE, effect.target_values, thresholds=LIMITS)
            if after.state is not LoadState.LOW:
                _reject(rejected, would_overload(pattern, target.broker, after))
                continue
            if abs(_difference(effect.source_after, effect.target_after, metric)) >= difference:
                _reject(rejected, Rejected(pattern, Rejection.NO_RELIEF, target.broker, metric=metric))
                continue
            moves.append(SelectedMove(target.broker, bundle, split, known))
            left -= count
            source, target = effect.source_after, effect.target_after
        return source, target, moves

    # Placement

    def place(self, pattern: str, edges: Iterable[EdgeView], **known: Unpack[Known]) -> Placement | None:
        """All go to the entry broker: the one with the widest uplink, then the faster, then the first by name."""

        def strength(edge: EdgeView) -> tuple[float, float, str]:
            capacity = edge.capacity
            return -(capacity.uplink_bytes_per_s or 0.0), -(capacity.matching_per_s or 0.0), edge.name

        ordered = sorted(edges, key=strength)
        if not ordered:
            return None
        others = [Rejected(edge.name, Rejection.NOT_ENTRY_BROKER) for edge in ordered[1:]]
        rejected = tuple(sorted([*known.get("excluded", ()), *others], key=lambda one: one.name)[:PLACES_REJECTED_MAX])
        chosen = ordered[0].name
        return Placement(chosen, Placed(pattern, PlacementReason.ENTRY_BROKER, chosen, rejected=rejected))


def _necessary(assessment: Assessment) -> bool:
    """By the same measure as for every policy: a deadline in danger, or a high threshold that all of them have.

    That an uplink is busy is a reason to PEER alone.
    """
    return any(
        finding.metric is Metric.QUEUE_DEPTH or THRESHOLDS[Role.EDGE, finding.metric].high is not None
        for finding in assessment.overloads
    )


def _occupied(report: PieLocal) -> bool:
    """In a session, and able to take load otherwise."""
    return report.busy and report.state is LoadState.LOW


def _why_not(name: str, report: PieLocal, metric: Metric) -> Rejected | None:
    """Why a broker can't take load now; None if it can."""
    if report.state is not LoadState.LOW:
        return Rejected(name, Rejection.STATE, state=report.state)
    if report.busy:
        return Rejected(name, Rejection.BUSY)
    return None if metric in report.metrics else Rejected(name, Rejection.METRIC_UNKNOWN, metric=metric)


def _unable(peers: Mapping[str, PieLocal], metric: Metric) -> tuple[Rejected, ...]:
    found = (_why_not(name, report, metric) for name, report in peers.items())
    return tuple(one for one in found if one is not None)


def _patterns(queues: Sequence[QueueLoad]) -> tuple[str, ...]:
    """The patterns of an edge, those that ask most of the uplink first."""
    loads: dict[str, float] = {}
    for queue in queues:
        loads[queue.pattern] = loads.get(queue.pattern, 0.0) + queue.bytes_per_s
    return tuple(sorted(loads, key=lambda pattern: (-loads[pattern], pattern))[:SHARED_PATTERNS_MAX])


def _difference(source: BrokerSample, target: BrokerSample, metric: Metric) -> float:
    """How much higher the source's utilization is; 0, so that nothing moves, where one of them is unknown."""
    here, there = utilizations(source)[metric], utilizations(target)[metric]
    return 0.0 if here is None or there is None else here - there


def _fitting(
    source: BrokerSample, target: BrokerSample, metric: Metric, members: Sequence[QueueLoad], difference: float
) -> int:
    """How many of the subscribers of one pattern may go without making the target the more loaded one.

    The incoming load leaves a broker only with the last of them, so that for those metrics it is all or none.
    """
    if metric is not Metric.UPLINK:
        return len(members)
    wide, width = source.capacity.uplink_bytes_per_s, target.capacity.uplink_bytes_per_s
    each = members[0].bytes_per_s
    if wide is None or width is None or each <= 0.0:
        return 0
    equal = difference / (each / wide + each / width)
    room = (LOWER_OVERLOAD * width - target.bytes_offered_per_s) / each
    # Exactly at the lower threshold is not below it any more.
    return max(0, min(len(members), floor(equal), floor(room - 1e-9)))


def _reject(rejected: list[Rejected], one: Rejected) -> None:
    if len(rejected) < REJECTED_MAX:
        rejected.append(one)
