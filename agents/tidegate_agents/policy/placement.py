"""Which edge a new subscription goes to: the placement rules, as one pure function.

In this order (seed 000 §IV.A):

1. subscribers of one topic pattern go to one edge, so that a message crosses one link only;
2. patterns known to be positively correlated go to different edges, because their bursts come together. What is known
   of that may be wrong, so that it yields to rule 3: it never leads to an edge that would not stay low while there is
   one that would. Where no edge is free of them, what is correlated counts twice, as if it had burst already;
3. an edge on which every metric stays below its low threshold goes before one on which some metric would not;
4. the edge with the most link capacity left wins; near-ties go to the faster one, then to the first by name.

Loads are arguments: where nothing is known about them, as when a cluster has just started, the capacity left
is estimated by what each subscription would get of it. Rules 1 and 2 need no load.

Sees immutable views only and keeps nothing; a policy that knows more replaces this function, not its callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, TypedDict, Unpack

from tidegate_protocol.decisions import EdgeScore, Placed, PlacementReason, Rejected, Rejection
from tidegate_protocol.messages import Capacity

NEAR_TIE_SHARE: Final = 0.0175
"""Two edges are nearly tied if what they have left differs by at most this share of the largest configured
uplink.

Derived from seed 001 Table 7. With the topics of seed 000 Table VI registered one after another, topic 8 goes
to b1 although b3 has 10,000 B/s more left, and topic 14 to b1 although b0 has 12,500 B/s more left; topic 7
goes to b0 although b3, which is faster, has only 22,500 B/s less. The largest uplink is 1,000,000 B/s (8
Mbps), so any share from 1.25 % up to, not including, 2.25 % gives the paper's table; the middle of it leaves room on
both sides for loads that are measured. (Taken as a share of what is left, the range would be 3.11 % to 3.20 %: too
narrow to be a rule.)
"""

LOW_UTILIZATION: Final = 0.90
"""The low threshold of the link and matching metrics: above it an edge takes no load if another
can.
"""

REJECTED_MAX: Final = 16
"""How many rejected alternatives a decision names."""


@dataclass(frozen=True, slots=True)
class ExpectedLoad:
    """What the publications matching one pattern amount to, before they are copied to subscribers."""

    bytes_per_s: float
    messages_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EdgeView:
    """What placement may know about an edge. `patterns` counts the subscriptions per pattern."""

    name: str
    capacity: Capacity = field(default_factory=Capacity)
    subscriptions: int = 0
    patterns: Mapping[str, int] = field(default_factory=dict)


class Known(TypedDict, total=False):
    """What a policy may be told besides the edges when it places a subscription."""

    subscribers: int
    """How many subscriptions are placed together; 1 if nothing is said."""
    expected: Mapping[str, ExpectedLoad]
    correlated: Mapping[str, AbstractSet[str]]
    excluded: Sequence[Rejected]
    """Edges that the caller ruled out, with the reason, so that the decision can tell."""
    subject: str
    """The name of the subscriber."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The edge chosen, and why."""

    edge: str
    decision: Placed


@dataclass(frozen=True, slots=True)
class _Score:
    view: EdgeView
    left: float
    worst: float
    """The highest utilization of any metric after the placement; 0 where loads or capacities are unknown."""

    @property
    def speed(self) -> float:
        return self.view.capacity.matching_per_s or 0.0


def place(pattern: str, edges: Iterable[EdgeView], **known: Unpack[Known]) -> Placement | None:
    """Choose an edge for new subscriptions to `pattern`, or None where there is no edge."""
    subscribers, expected = known.get("subscribers", 1), known.get("expected", {})
    candidates = sorted(edges, key=lambda view: view.name)
    if not candidates:
        return None
    rejected = {one.name: one for one in known.get("excluded", ())}
    same = [view for view in candidates if pattern in view.patterns]
    if same:
        others = [view.name for view in candidates if view not in same]
        rejected |= {name: Rejected(name, Rejection.PATTERN_ELSEWHERE) for name in others}
        candidates = same
    choice = _choose_among(pattern, candidates, subscribers, expected)
    reason = choice.reason
    partners = known.get("correlated", {}).get(pattern, frozenset())
    if partners and not same:
        apart = _apart(pattern, candidates, subscribers, expected, partners, choice)
        if apart is not None:
            reason = apart.reason if apart.edge == choice.edge else PlacementReason.APART_FROM_CORRELATED
            rejected |= _clashing(candidates, partners, apart)
            choice = apart
    rejected |= choice.rejected
    if same:
        reason = PlacementReason.SAME_PATTERN
    elif len(candidates) == 1 and not rejected:
        reason = PlacementReason.ONLY_EDGE
    named = tuple(rejected[name] for name in sorted(rejected)[:REJECTED_MAX])
    return Placement(choice.edge, Placed(pattern, reason, choice.edge, scores=choice.scores, rejected=named))


@dataclass(frozen=True, slots=True)
class _Choice:
    """The best of some edges by rules 3 and 4."""

    edge: str
    reason: PlacementReason
    scores: tuple[EdgeScore, ...]
    rejected: Mapping[str, Rejected]
    stays_low: bool


def _choose_among(
    pattern: str,
    candidates: list[EdgeView],
    subscribers: int,
    expected: Mapping[str, ExpectedLoad],
    *,
    free: list[EdgeView] | None = None,
    twice: AbstractSet[str] = frozenset(),
) -> _Choice:
    """The best edge, of those that are `free` if that is given; the load of patterns in `twice` counts twice.

    What stands in for an unknown uplink is the same whichever edges are free, so that choices can be compared.
    """
    among = candidates if free is None else free
    if not any(view.capacity.uplink_bytes_per_s is not None for view in candidates):
        chosen = min(among, key=lambda v: (v.subscriptions, -(v.capacity.matching_per_s or 0.0), v.name))
        rejected = {
            v.name: Rejected(v.name, Rejection.MORE_SUBSCRIPTIONS, value=float(v.subscriptions))
            for v in among
            if v is not chosen
        }
        held = tuple(EdgeScore(view.name, view.subscriptions) for view in among[:REJECTED_MAX])
        return _Choice(chosen.name, PlacementReason.FEWEST_SUBSCRIPTIONS, held, rejected, True)
    known = bool(expected)
    largest = _largest_uplink(candidates)
    scores = [_score(pattern, view, subscribers, expected, candidates, twice) for view in among]
    best, reason = _choose(scores, NEAR_TIE_SHARE * largest if known else 0.0)
    rejected = {s.view.name: _why_not(s, best) for s in scores if s is not best}
    told = tuple(
        EdgeScore(
            score.view.name,
            left_bytes_per_s=score.left,
            utilization=score.worst if known else None,
            correlated_bytes_per_s=_held_of(twice, score.view, expected) if twice else None,
        )
        for score in scores[:REJECTED_MAX]
    )
    return _Choice(best.view.name, reason, told, rejected, best.worst <= LOW_UTILIZATION)


def _apart(
    pattern: str,
    candidates: list[EdgeView],
    subscribers: int,
    expected: Mapping[str, ExpectedLoad],
    partners: AbstractSet[str],
    plain: _Choice,
) -> _Choice | None:
    """The best of the edges that hold nothing correlated or, where there is none that stays low, of all of them with
    what is correlated counted twice. None where nobody holds any of it. `plain` is the choice without all that.
    """
    free = [view for view in candidates if not partners & view.patterns.keys()]
    if len(free) == len(candidates):
        return None
    if free:
        chosen = _choose_among(pattern, candidates, subscribers, expected, free=free)
        if chosen.stays_low or not plain.stays_low:
            return chosen
    return _choose_among(pattern, candidates, subscribers, expected, twice=partners)


def _clashing(candidates: list[EdgeView], partners: AbstractSet[str], choice: _Choice) -> dict[str, Rejected]:
    """Which edges were left out because they hold something correlated."""
    left_out = [view for view in candidates if view.name != choice.edge and view.name not in choice.rejected]
    held = {view.name: sorted(partners & view.patterns.keys()) for view in left_out}
    return {name: Rejected(name, Rejection.CORRELATED, other=found[0]) for name, found in held.items()}


def _score(
    pattern: str,
    view: EdgeView,
    subscribers: int,
    expected: Mapping[str, ExpectedLoad],
    candidates: list[EdgeView],
    twice: AbstractSet[str],
) -> _Score:
    uplink = view.capacity.uplink_bytes_per_s or _smallest_uplink(candidates)
    if not expected:
        return _Score(view, uplink / (view.subscriptions + subscribers), 0.0)
    offered = _offered(view.patterns, view.subscriptions, expected)
    left = uplink - offered.up
    left -= _held_of(twice, view, expected)
    downlink = view.capacity.downlink_bytes_per_s
    if downlink is not None:
        left = min(left, downlink - offered.down)
    after = dict(view.patterns)
    after[pattern] = after.get(pattern, 0) + subscribers
    then = _offered(after, view.subscriptions + subscribers, expected)
    worst = then.up / uplink
    if downlink is not None:
        worst = max(worst, then.down / downlink)
    if view.capacity.matching_per_s is not None:
        worst = max(worst, then.messages / view.capacity.matching_per_s)
    return _Score(view, left, worst)


def _held_of(patterns: AbstractSet[str], view: EdgeView, expected: Mapping[str, ExpectedLoad]) -> float:
    """What the subscriptions of an edge to these patterns ask of its uplink, as far as it is known."""
    known = sorted(patterns & view.patterns.keys() & expected.keys())
    return sum(expected[name].bytes_per_s * view.patterns[name] for name in known)


@dataclass(frozen=True, slots=True)
class _Offered:
    up: float
    down: float
    messages: float


def _offered(patterns: Mapping[str, int], subscriptions: int, expected: Mapping[str, ExpectedLoad]) -> _Offered:
    """The load of an edge: each message comes in once per pattern and goes out once per subscription.

    A subscription to a pattern of which no load is known counts as an average one: nobody publishing yet does
    not mean that nobody will.
    """
    up = down = messages = 0.0
    counted = 0
    for name in sorted(expected.keys() & patterns.keys()):
        load, copies = expected[name], patterns[name]
        up += load.bytes_per_s * copies
        down += load.bytes_per_s
        messages += load.messages_per_s
        counted += copies
    average = sum(load.bytes_per_s for load in expected.values()) / len(expected)
    up += average * (subscriptions - counted)
    return _Offered(up, down, messages)


def _choose(scores: list[_Score], tolerance: float) -> tuple[_Score, PlacementReason]:
    fitting = [score for score in scores if score.worst <= LOW_UTILIZATION]
    if not fitting:
        # Nothing stays low: the least bad edge, so that the overload is as small as it can be.
        return min(scores, key=lambda s: (s.worst, -s.left, s.view.name)), PlacementReason.MOST_CAPACITY_LEFT
    most = min(fitting, key=lambda s: (-s.left, -s.speed, s.view.name))
    near = [score for score in fitting if most.left - score.left <= tolerance]
    best = min(near, key=lambda s: (-s.speed, -s.left, s.view.name))
    return best, PlacementReason.MOST_CAPACITY_LEFT if best is most else PlacementReason.NEAR_TIE_FASTER


def _why_not(score: _Score, best: _Score) -> Rejected:
    name = score.view.name
    if score.worst > LOW_UTILIZATION >= best.worst:
        return Rejected(name, Rejection.METRIC_TOO_HIGH, value=score.worst, limit=LOW_UTILIZATION)
    if score.left > best.left:
        return Rejected(name, Rejection.SLOWER, value=score.speed, limit=best.speed)
    return Rejected(name, Rejection.LESS_LEFT, value=score.left, limit=best.left)


def _largest_uplink(edges: list[EdgeView]) -> float:
    return max(view.capacity.uplink_bytes_per_s or 0.0 for view in edges)


def _smallest_uplink(edges: list[EdgeView]) -> float:
    """Stands in for an uplink that is not configured: better to trust it too little than too much."""
    return min(v.capacity.uplink_bytes_per_s for v in edges if v.capacity.uplink_bytes_per_s is not None)
