"""Who publishes what at which rate, and how long it takes to get where.

A source is one topic of one publisher. A subscriber's pattern is fed by all sources whose topic it matches, each with
the delay of its own way: a burst reaches an edge when its first message would. What always holds: rates are those of
the scenario and nothing else changes them (publishers neither move nor are throttled in rate mode); the tree of heads
has one way between any two of them.

Knows no agent and no queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from tidegate_agents.metrics import PublisherSample
from tidegate_protocol.ids import publisher_id
from tidegate_protocol.topics import matches

from ..scenario import EdgeSpec, HeadSpec, PublisherSpec, Scenario

PUBLISHER_INCARNATION = 1


@dataclass(frozen=True, slots=True)
class Source:
    """One topic of one publisher, from `starts_s` until `stops_s`."""

    publisher: str
    head: str
    topic: str
    message_bytes: float
    delay_s: float
    steps: tuple[tuple[float, float], ...]
    """From when on it sends at which rate, in order of time; the last one is 0."""

    def per_s(self, at_s: float) -> float:
        """Messages per second that leave the publisher at `at_s`."""
        rate = 0.0
        for from_s, per_s in self.steps:
            if from_s > at_s:
                break
            rate = per_s
        return rate

    def mean_per_s(self, from_s: float, until_s: float) -> float:
        """The same, on average over a period."""
        messages = 0.0
        for place, (at_s, per_s) in enumerate(self.steps):
            ends_s = self.steps[place + 1][0] if place + 1 < len(self.steps) else inf
            messages += per_s * max(min(ends_s, until_s) - max(at_s, from_s), 0.0)
        return messages / (until_s - from_s)


def source_of(spec: PublisherSpec, ends_s: float) -> Source:
    """The source that a publisher of a scenario is; nobody publishes after `ends_s`."""
    stops_s = min(spec.stops_s if spec.stops_s is not None else inf, ends_s)
    steps = [(spec.starts_s, spec.messages_per_s)]
    steps += [(change.at_s, spec.messages_per_s * change.factor) for change in spec.changes]
    steps = [(max(at_s, spec.starts_s), per_s) for at_s, per_s in sorted(steps) if at_s < stops_s]
    steps.append((stops_s, 0.0))
    name = publisher_id(spec.name, PUBLISHER_INCARNATION)
    return Source(name, spec.head, spec.topic, spec.message_bytes, spec.delay_s, tuple(steps))


@dataclass(frozen=True, slots=True)
class Inflow:
    """What reaches one subscription: messages per second and their mean size."""

    per_s: float = 0.0
    message_bytes: float = 0.0


class Tree:
    """The heads and the delays between them."""

    def __init__(self, heads: Iterable[HeadSpec]) -> None:
        self.neighbours: dict[str, tuple[str, ...]] = {}
        self._delay_s: dict[tuple[str, str], float] = {}
        self._ways: dict[str, Mapping[str, float]] = {}
        for head in heads:
            self.neighbours[head.name] = tuple(sorted(head.neighbours))
            for neighbour in head.neighbours:
                self._delay_s[head.name, neighbour] = head.neighbour_delay_s

    def hop_s(self, head: str, neighbour: str) -> float:
        return self._delay_s[head, neighbour]

    def way_s(self, start: str, end: str) -> float:
        """The delay from one head to another, over all heads between them; infinite where there is no way."""
        if start == end:
            return 0.0
        if start not in self._ways:
            self._ways[start] = self._all_ways(start)
        return self._ways[start].get(end, inf)

    def _all_ways(self, start: str) -> dict[str, float]:
        found = {start: 0.0}
        queue = deque([start])
        while queue:
            head = queue.popleft()
            for neighbour in self.neighbours[head]:
                if neighbour not in found:
                    found[neighbour] = found[head] + self._delay_s[head, neighbour]
                    queue.append(neighbour)
        return found


@dataclass(slots=True)
class Sources:
    """All sources of a scenario, found by topic, pattern, publisher and head."""

    tree: Tree
    by_topic: dict[str, tuple[Source, ...]] = field(default_factory=dict)
    by_publisher: dict[str, tuple[Source, ...]] = field(default_factory=dict)
    by_head: dict[str, tuple[Source, ...]] = field(default_factory=dict)
    _by_pattern: dict[str, tuple[Source, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario: Scenario) -> Sources:
        sources = cls(Tree(scenario.heads))
        for spec in scenario.publishers:
            source = source_of(spec, scenario.duration_s)
            for index, key in (
                (sources.by_topic, source.topic),
                (sources.by_publisher, source.publisher),
                (sources.by_head, source.head),
            ):
                index[key] = (*index.get(key, ()), source)
        return sources

    def topics_of(self, pattern: str) -> list[str]:
        """The published topics that a pattern matches."""
        if "*" not in pattern and "#" not in pattern:
            return [pattern] if pattern in self.by_topic else []
        return [topic for topic in self.by_topic if matches(pattern, topic)]

    def of_pattern(self, pattern: str) -> tuple[Source, ...]:
        found = self._by_pattern.get(pattern)
        if found is None:
            found = tuple(source for topic in self.topics_of(pattern) for source in self.by_topic[topic])
            self._by_pattern[pattern] = found
        return found

    def delay_s(self, source: Source, edge: EdgeSpec) -> float:
        """From the publisher to the edge."""
        return source.delay_s + self.tree.way_s(source.head, edge.head) + edge.head_delay_s

    def inflow(self, sources: Iterable[Source], edge: EdgeSpec, now: float) -> Inflow:
        """What of these sources arrives at the edge at this moment."""
        per_s = bytes_per_s = 0.0
        for source in sources:
            rate = source.per_s(now - self.delay_s(source, edge))
            per_s += rate
            bytes_per_s += rate * source.message_bytes
        return Inflow(per_s, bytes_per_s / per_s) if per_s else Inflow()

    def changes_s(self, pattern: str, edge: EdgeSpec, after_s: float) -> list[float]:
        """When what arrives at the edge for a pattern changes, after a moment."""
        times = {at_s + self.delay_s(source, edge) for source in self.of_pattern(pattern) for at_s, _ in source.steps}
        return sorted(at_s for at_s in times if after_s < at_s < inf)

    def worst_way_s(self, pattern: str, edge: EdgeSpec) -> float:
        """The longest way of a message of this pattern until it is at the edge."""
        return max((self.delay_s(source, edge) for source in self.of_pattern(pattern)), default=edge.head_delay_s)

    def samples(self, head: str, from_s: float, until_s: float) -> tuple[PublisherSample, ...]:
        """What the publishers of a head sent in a period; silent ones are left out."""
        return tuple(
            PublisherSample(source.publisher, source.topic, rate, source.message_bytes, 2.0 * source.delay_s)
            for source in self.by_head.get(head, ())
            if (rate := source.mean_per_s(from_s, until_s)) > 0.0
        )
