"""Which edge a new subscription goes to: the placement rules, as one pure function.

In this order (seed 000 §IV.A):

1. subscribers of one topic pattern go to one edge, so that a message crosses one link only;
2. patterns known to be positively correlated go to different edges, because their bursts come together;
3. an edge on which every metric stays below its low threshold goes before one on which some metric would not;
4. the edge with the most link capacity left wins; near-ties go to the faster one, then to the first by name.

Loads are arguments: where nothing is known about them, as when a cluster has just started, the capacity left
is estimated by what each subscription would get of it. Rules 1 and 2 need no load.

Sees immutable views only and keeps nothing; a policy that knows more replaces this function, not its callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from tidegate_protocol.messages import Capacity

from .machine import Decision

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


class PlacementReason(StrEnum):
    """Which rule decided."""

    ONLY_EDGE = "only-edge"
    SAME_PATTERN = "same-pattern"
    MOST_CAPACITY_LEFT = "most-capacity-left"
    NEAR_TIE_FASTER = "near-tie-faster"
    FEWEST_SUBSCRIPTIONS = "fewest-subscriptions"


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


@dataclass(frozen=True, slots=True)
class Placement:
    """The edge chosen, and why."""

    edge: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class _Score:
    view: EdgeView
    left: float
    worst: float
    """The highest utilization of any metric after the placement; 0 where loads or capacities are unknown."""

    @property
    def speed(self) -> float:
        return self.view.capacity.matching_per_s or 0.0


def place(
    pattern: str,
    edges: Iterable[EdgeView],
    *,
    subscribers: int = 1,
    expected: Mapping[str, ExpectedLoad] = MappingProxyType({}),
    correlated: Mapping[str, AbstractSet[str]] = MappingProxyType({}),
    excluded: Mapping[str, str] = MappingProxyType({}),
) -> Placement | None:
    """Choose an edge for `subscribers` new subscriptions to `pattern`, or None where there is no edge.

    `excluded` names edges that the caller ruled out, with the reason, so that the decision can tell.
    """
    candidates = sorted(edges, key=lambda view: view.name)
    if not candidates:
        return None
    rejected = dict(excluded)
    same = [view for view in candidates if pattern in view.patterns]
    if same:
        rejected |= {v.name: "another edge has this pattern already" for v in candidates if v not in same}
        candidates = same
    else:
        candidates = _apart_from_correlated(pattern, candidates, correlated, rejected)

    known = bool(expected)
    sized = any(view.capacity.uplink_bytes_per_s is not None for view in candidates)
    if not sized:
        chosen = min(candidates, key=lambda v: (v.subscriptions, -(v.capacity.matching_per_s or 0.0), v.name))
        rejected |= {v.name: f"{v.subscriptions} subscriptions" for v in candidates if v is not chosen}
        numbers = {f"subscriptions.{v.name}": float(v.subscriptions) for v in candidates}
        reason = PlacementReason.FEWEST_SUBSCRIPTIONS
    else:
        largest = _largest_uplink(candidates)
        scores = [_score(pattern, view, subscribers, expected, candidates) for view in candidates]
        best, reason = _choose(scores, NEAR_TIE_SHARE * largest if known else 0.0)
        chosen = best.view
        rejected |= {s.view.name: _why_not(s, best) for s in scores if s is not best}
        numbers = {f"left_bytes_per_s.{s.view.name}": s.left for s in scores}
        numbers |= {f"utilization.{s.view.name}": s.worst for s in scores if known}
    if same:
        reason = PlacementReason.SAME_PATTERN
    elif len(candidates) == 1 and not rejected:
        reason = PlacementReason.ONLY_EDGE
    shortened = dict(sorted(rejected.items())[:REJECTED_MAX])
    return Placement(chosen.name, Decision("placement", pattern, f"{reason}: {chosen.name}", numbers, shortened))


def _apart_from_correlated(
    pattern: str,
    candidates: list[EdgeView],
    correlated: Mapping[str, AbstractSet[str]],
    rejected: dict[str, str],
) -> list[EdgeView]:
    """Leave out edges that hold a correlated pattern, unless that leaves none."""
    with_pattern = correlated.get(pattern, frozenset())
    if not with_pattern:
        return candidates
    clashes = {view.name: sorted(with_pattern & view.patterns.keys()) for view in candidates}
    apart = [view for view in candidates if not clashes[view.name]]
    if not apart:
        return candidates
    rejected |= {name: f"holds {found[0]}, which is correlated" for name, found in clashes.items() if found}
    return apart


def _score(
    pattern: str,
    view: EdgeView,
    subscribers: int,
    expected: Mapping[str, ExpectedLoad],
    candidates: list[EdgeView],
) -> _Score:
    uplink = view.capacity.uplink_bytes_per_s or _smallest_uplink(candidates)
    if not expected:
        return _Score(view, uplink / (view.subscriptions + subscribers), 0.0)
    offered = _offered(view.patterns, view.subscriptions, expected)
    left = uplink - offered.up
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


def _why_not(score: _Score, best: _Score) -> str:
    if score.worst > LOW_UTILIZATION >= best.worst:
        return f"a metric would reach {score.worst:.0%}"
    if score.left > best.left:
        return f"nearly tied and slower ({score.speed:g}/s against {best.speed:g}/s)"
    return f"{score.left:.0f} B/s left against {best.left:.0f} B/s"


def _largest_uplink(edges: list[EdgeView]) -> float:
    return max(view.capacity.uplink_bytes_per_s or 0.0 for view in edges)


def _smallest_uplink(edges: list[EdgeView]) -> float:
    """Stands in for an uplink that is not configured: better to trust it too little than too much."""
    return min(v.capacity.uplink_bytes_per_s for v in edges if v.capacity.uplink_bytes_per_s is not None)
