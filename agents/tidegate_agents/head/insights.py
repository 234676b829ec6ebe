"""What a head makes of an insight: advice from analytics on where to place what, bounded so that it can't do harm.

An insight comes from outside and may be wrong, stale or forged. Invariants:

- at most one insight is in force: the newest by its `made_at_us`, until it expires or is withdrawn. It is dated by its
  age, so that no two clocks are compared. The order counts only while it is in force, so that an insight whose maker's
  clock was ahead keeps others out no longer than it is valid itself. No insight survives a restart of the head;
- without an insight, everything is as if there were no such thing;
- *correlated topics* only choose among edges (`placement` rule 2): never an edge that would not stay LOW where another
  would, never away from subscribers of the same pattern, and nobody is moved for them;
- *capacities* count only for edges whose uplink nobody configured, and then no more than `UPLINK_SPREAD_MAX` times, and
  no less than that part of, the median of all that are known. What an edge itself makes of its own is more strictly
  bounded still: see `detector`;
- *forecasts* go to the edges that have subscribers of those topics, less their own usual error: see `anticipation`;
- a placement on which an insight had a bearing says so in its numbers, one that it decided in its reason.

Sessions, migrations and drains are none of its business; a drain places its subscribers as any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Unpack

from tidegate_protocol.decisions import (
    Advice,
    Decision,
    InsightEnd,
    InsightOver,
    InsightRefusal,
    InsightRefused,
    InsightTaken,
    PlacementReason,
    UnknownDecision,
    UplinkHint,
)
from tidegate_protocol.insight import (
    FORECASTS_MAX,
    RATE_PER_S_MAX,
    UNUSED_TOLD_MAX,
    EdgeInsight,
    Insight,
    InsightReply,
    InsightState,
    PatternForecast,
    RateForecast,
    Unused,
    UnusedReason,
)
from tidegate_protocol.rendering import refusals
from tidegate_protocol.topics import matches

from ..kit.dispatch import Dispatch
from ..machine import ReplyAddress, Send
from ..policy.interface import Policy
from ..policy.placement import EdgeView, Known, Placement
from ..topics.covering import is_exact
from ..topics.tree import TopicTree, matching
from .context import HeadContext
from .publishers.paths import Paths
from .registry import EdgeRecord

UPLINK_SPREAD_MAX: Final = 4.0
"""So many times the median of the known uplinks, and no more, an uplink that only an insight knows counts for in a
placement; and no less than the same part of it."""
PARTNERS_MAX: Final = 100
"""Topics, the most strongly correlated ones, that one pattern is kept apart from."""
WILD_MAX: Final = 100
"""Patterns with wildcards, per edge, for which forecasts are added up."""
REFRESH_S: Final = 30.0
"""How often an edge is told what it was told already, in case it has forgotten."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What an edge knows."""

    insight: int
    registry: tuple[int, str]
    patterns: tuple[str, ...]
    uplink: float | None
    at_s: float

    @property
    def nothing(self) -> bool:
        return not self.patterns and self.uplink is None

    def says_what(self, other: _Told) -> bool:
        """Whether both say the same."""
        return (self.insight, self.patterns, self.uplink) == (other.insight, other.patterns, other.uplink)


_NOTHING_TOLD: Final = _Told(-1, (-1, ""), (), None, 0.0)


class Insights:
    """The insight in force at one head, and what follows from it."""

    def __init__(self, context: HeadContext, paths: Paths) -> None:
        self._context = context
        self._paths = paths
        self._insight: Insight | None = None
        self._count = 0
        """Insights taken and withdrawn so far: tells one in force from the next."""
        self._sent = 0
        self._made_s = 0.0
        """When it was made, by our own clock."""
        self._partners: dict[str, dict[str, float]] = {}
        self._forecasts: dict[str, RateForecast] = {}
        self._uplinks: dict[str, float] = {}
        self._told: dict[str, _Told] = {}
        self._placements = 0
        self._refused = 0
        self._last_refusal: Decision = UnknownDecision()

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(Insight, self.on_insight)
        dispatch.ticks.append(self._tick)
        dispatch.checks.append(self.validate)

    # In force

    @property
    def _in_force(self) -> Insight | None:
        insight = self._insight
        return insight if insight is not None and self._left_s(insight) > 0.0 else None

    def _age_s(self) -> float:
        return max(self._context.now - self._made_s, 0.0)

    def _left_s(self, insight: Insight) -> float:
        return insight.valid_for_us / 1e6 - self._age_s()

    def on_insight(self, message: Insight, reply_to: ReplyAddress | None) -> None:
        """Somebody publishes an insight, or withdraws the one in force."""
        context = self._context
        before = self._in_force
        why_not = self._why_not(message, before)
        if why_not is not None:
            self._refused += 1
            self._last_refusal = why_not
            context.refuse(reply_to, refusals.insight(why_not))
            context.decide(why_not)
            return
        repeated = before is not None and before.made_at_us == message.made_at_us and not message.withdraws
        if message.withdraws:
            self._forget(InsightEnd.WITHDRAWN)
        elif not repeated:
            self._take(message)
        self._tell_edges()
        context.reply(reply_to, self._answer(message, repeated))

    def _why_not(self, message: Insight, before: Insight | None) -> InsightRefused | None:
        cluster = self._context.config.cluster

        def refused(reason: InsightRefusal, other: str = "", by_s: float | None = None) -> InsightRefused:
            counts = len(message.pairs), len(message.forecasts), len(message.capacities)
            return InsightRefused(cluster, reason, *counts, other, by_s)

        if message.cluster != cluster:
            return refused(InsightRefusal.OTHER_CLUSTER, message.cluster)
        if message.withdraws:
            return None
        if message.age_us >= message.valid_for_us:
            since_s = (message.age_us - message.valid_for_us) / 1e6
            return refused(InsightRefusal.EXPIRED, by_s=since_s)
        if before is not None and message.made_at_us < before.made_at_us:
            older_s = (before.made_at_us - message.made_at_us) / 1e6
            return refused(InsightRefusal.OLDER, by_s=older_s)
        return None

    def _take(self, message: Insight) -> None:
        self._insight, self._made_s = message, self._context.now - message.age_us / 1e6
        self._count += 1
        self._placements = 0
        self._partners = {}
        for pair in message.pairs:
            if pair.topic_a != pair.topic_b:
                for one, other in ((pair.topic_a, pair.topic_b), (pair.topic_b, pair.topic_a)):
                    known = self._partners.setdefault(one, {})
                    known[other] = max(pair.coefficient, known.get(other, 0.0))
        self._forecasts = {forecast.topic: forecast for forecast in message.forecasts}
        self._uplinks = {one.edge: one.uplink_bytes_per_s for one in message.capacities}
        counts = len(message.pairs), len(message.forecasts), len(message.capacities)
        left_s = self._left_s(message)
        cluster, age_s = self._context.config.cluster, message.age_us / 1e6
        self._context.decide(InsightTaken(cluster, *counts, age_s, left_s))

    def _forget(self, reason: InsightEnd) -> None:
        if self._insight is None:
            return
        self._insight = None
        self._count += 1
        self._partners, self._forecasts, self._uplinks = {}, {}, {}
        self._context.decide(InsightOver(self._context.config.head, reason))

    def _answer(self, message: Insight, repeated: bool) -> InsightReply:
        config, edges = self._context.config, self._context.registry.edges
        insight = self._in_force
        unused: list[Unused] = []
        for name in sorted(self._uplinks):
            if name not in edges:
                unused.append(Unused(name=name, reason=UnusedReason.NO_SUCH_EDGE))
            elif edges[name].capacity.uplink_bytes_per_s is not None:
                unused.append(Unused(name=name, reason=UnusedReason.CONFIGURED))
        over = [topic for topic, one in sorted(self._forecasts.items()) if one.horizon_us / 1e6 <= self._age_s()]
        unused += [Unused(name=topic, reason=UnusedReason.HORIZON_PASSED) for topic in over]
        return InsightReply(
            cluster=config.cluster,
            head=config.head,
            made_at_us=message.made_at_us,
            left_us=0 if insight is None else round(self._left_s(insight) * 1e6),
            repeated=repeated,
            pairs=sum(map(len, self._partners.values())) // 2,
            forecasts=len(self._forecasts),
            capacities=len(self._uplinks),
            unused=tuple(unused[:UNUSED_TOLD_MAX]),
        )

    def state(self) -> InsightState | None:
        """What operators are told; None where none is in force."""
        insight = self._in_force
        if insight is None:
            return None
        return InsightState(
            made_at_us=insight.made_at_us,
            age_us=round(self._age_s() * 1e6),
            left_us=round(self._left_s(insight) * 1e6),
            pairs=sum(map(len, self._partners.values())) // 2,
            forecasts=len(self._forecasts),
            capacities=len(self._uplinks),
            placements=self._placements,
            refused=self._refused,
            last_refusal=self._last_refusal,
        )

    # Placement

    def place(self, policy: Policy, pattern: str, edges: list[EdgeView], **known: Unpack[Known]) -> Placement | None:
        """Where the policy puts a subscription, given what is known from an insight too."""
        if self._in_force is None:
            return policy.place(pattern, edges, **known)
        coefficient = None
        if not any(pattern in view.patterns for view in edges):
            partners = self.partners(pattern)
            held = [name for view in edges for name in partners.keys() & view.patterns.keys()]
            if held:
                known["correlated"] = {pattern: frozenset(partners)}
                coefficient = max(partners[name] for name in held)
        sized, uplinks = self._sized(edges)
        placement = policy.place(pattern, sized, **known)
        if placement is None or (coefficient is None and not uplinks):
            return placement
        self._placements += placement.decision.reason is PlacementReason.APART_FROM_CORRELATED
        advice = Advice(self._age_s(), coefficient, tuple(UplinkHint(*each) for each in uplinks.items()))
        return replace(placement, decision=replace(placement.decision, advice=advice))

    def partners(self, pattern: str) -> dict[str, float]:
        """The patterns that this one is to be kept apart from, as far as they may be in use, each with the strongest
        coefficient. One that has a topic in common with it is none of them: that topic is on both edges anyway.
        """
        exact = is_exact(pattern)
        own = [pattern] if exact else [topic for topic in sorted(self._partners) if matches(pattern, topic)]
        found: dict[str, float] = {}
        for topic in own:
            for other, coefficient in self._partners.get(topic, {}).items():
                if not matches(pattern, other):
                    found[other] = max(coefficient, found.get(other, 0.0))
        strongest = sorted(found, key=lambda topic: (-found[topic], topic))[:PARTNERS_MAX]
        partners = {topic: found[topic] for topic in strongest}
        shared = {wild for topic in own for wild in self._paths.wild_patterns_of(topic)} if partners else set()
        for topic in strongest:
            for wild in self._paths.wild_patterns_of(topic):
                if wild not in shared:
                    partners[wild] = max(found[topic], partners.get(wild, 0.0))
        return partners

    def _sized(self, edges: list[EdgeView]) -> tuple[list[EdgeView], dict[str, float]]:
        """The edges with the uplinks that only the insight knows, and those uplinks."""
        lacking = [view for view in edges if view.capacity.uplink_bytes_per_s is None and view.name in self._uplinks]
        if not lacking:
            return edges, {}
        configured = [view.capacity.uplink_bytes_per_s for view in edges]
        known = sorted([uplink for uplink in configured if uplink is not None] or self._uplinks.values())
        median = known[len(known) // 2]
        uplinks = {
            view.name: min(max(self._uplinks[view.name], median / UPLINK_SPREAD_MAX), median * UPLINK_SPREAD_MAX)
            for view in lacking
        }
        sized = [
            view
            if view.name not in uplinks
            else replace(view, capacity=view.capacity.model_copy(update={"uplink_bytes_per_s": uplinks[view.name]}))
            for view in edges
        ]
        return sized, uplinks

    # Edges

    def _tick(self) -> None:
        """Every period: notice that it has expired, and tell edges what concerns them."""
        if self._insight is not None and self._in_force is None:
            self._forget(InsightEnd.EXPIRED)
        self._tell_edges()

    def _tell_edges(self) -> None:
        edges = self._context.registry.edges
        for name in [name for name in self._told if name not in edges or not edges[name].alive]:
            del self._told[name]  # it may have forgotten everything, and is told anew when it is back
        if self._insight is None and not self._told:
            return
        for name in sorted(edges):
            if edges[name].alive:
                self._tell_edge(edges[name])
        if self._insight is None:
            self._told = {name: told for name, told in self._told.items() if not told.nothing}

    def _tell_edge(self, record: EdgeRecord) -> None:
        context, before = self._context, self._told.get(record.name, _NOTHING_TOLD)
        registry = (record.digest.count, record.digest.text)
        overdue = not before.nothing and context.now - before.at_s >= REFRESH_S
        if (before.insight, before.registry) == (self._count, registry) and not overdue:
            return
        forecasts = self._forecasts_for(record)
        uplink = None if record.capacity.uplink_bytes_per_s is not None else self._uplinks.get(record.name)
        told = _Told(self._count, registry, tuple(each.pattern for each in forecasts), uplink, context.now)
        if (before.nothing and told.nothing) or (told.says_what(before) and not overdue):
            self._told[record.name] = replace(told, at_s=before.at_s)
            return
        self._told[record.name] = told
        insight = self._in_force
        self._sent += 1
        message = EdgeInsight(
            head=context.config.head,
            incarnation=context.config.incarnation,
            number=self._sent,
            made_at_us=0 if insight is None else insight.made_at_us,
            left_us=0 if insight is None else round(self._left_s(insight) * 1e6),
            forecasts=forecasts,
            uplink_bytes_per_s=uplink,
        )
        context.do(Send(record.name, message))

    def _forecasts_for(self, record: EdgeRecord) -> tuple[PatternForecast, ...]:
        """What is expected of the patterns of an edge from now on."""
        if not self._forecasts:
            return ()
        found: list[PatternForecast] = []
        wild = sorted(pattern for pattern in self._paths.wild_patterns if pattern in record.patterns)[:WILD_MAX]
        for pattern in sorted(self._forecasts.keys() & record.patterns.keys()):
            found += self._expected_of(pattern, [self._forecasts[pattern]])
        fitting: dict[str, list[RateForecast]] = {pattern: [] for pattern in wild}
        for topic, pattern in matching(TopicTree(self._forecasts if wild else ()), TopicTree(wild)):
            fitting[pattern].append(self._forecasts[topic])
        for pattern in wild:
            found += self._expected_of(pattern, fitting[pattern])
        return tuple(found[:FORECASTS_MAX])

    def _expected_of(self, pattern: str, forecasts: list[RateForecast]) -> list[PatternForecast]:
        age_s = self._age_s()
        level = trend = 0.0
        left_s = float("inf")
        for forecast in forecasts:
            still_s = forecast.horizon_us / 1e6 - age_s
            if still_s > 0.0:
                level += max(forecast.level_per_s + forecast.trend_per_s * age_s - forecast.error_per_s, 0.0)
                trend += forecast.trend_per_s
                left_s = min(left_s, still_s)
        if left_s == float("inf") or (level <= 0.0 and trend <= 0.0):
            return []
        bounded = min(level, RATE_PER_S_MAX)
        return [PatternForecast(pattern=pattern, level_per_s=bounded, trend_per_s=trend, left_us=round(left_s * 1e6))]

    def validate(self) -> None:
        """Raise AssertionError if something of an insight is left that is not in force."""
        empty = not (self._partners or self._forecasts or self._uplinks)
        assert self._insight is not None or empty, "what is not in force is forgotten"
        for topic, partners in self._partners.items():
            assert topic not in partners, f"{topic} is correlated with itself"
            assert all(self._partners[other][topic] == c for other, c in partners.items()), "pairs go both ways"
