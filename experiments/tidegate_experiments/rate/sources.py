"""Who publishes what at which rate, and how long it takes to get where.

A source is one topic of one publisher. A subscriber's pattern is fed by all sources whose topic it matches, each with
the delay of its own way: a burst reaches an edge when its first message would. Invariant: rates are those of the
scenario and nothing else changes them (publishers neither move nor are throttled in rate mode).

Knows no agent and no queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from tidegate_agents.load.metrics import PublisherSample
from tidegate_protocol.ids import publisher_id
from tidegate_protocol.topics import matches
from tidegate_simulator.distances import Distances
from tidegate_simulator.scenario import EdgeSpec, PublisherSpec, Scenario

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
    name = publisher_id(spec.name, PUBLISHER_INCARNATION)
    return Source(name, spec.head, spec.topic, spec.message_bytes, spec.delay_s, spec.rates(ends_s))


@dataclass(frozen=True, slots=True)
class Inflow:
    """What reaches one subscription: messages per second and their mean size."""

    per_s: float = 0.0
    message_bytes: float = 0.0


@dataclass(slots=True)
class Sources:
    """All sources of a scenario, found by topic, pattern, publisher and head."""

    distances: Distances
    by_topic: dict[str, tuple[Source, ...]] = field(default_factory=dict)
    by_publisher: dict[str, tuple[Source, ...]] = field(default_factory=dict)
    by_head: dict[str, tuple[Source, ...]] = field(default_factory=dict)
    _by_pattern: dict[str, tuple[Source, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario: Scenario) -> Sources:
        # A million clients would have as many entries, and their delays are known to the sources and the edges.
        sources = cls(Distances(replace(scenario, publishers=(), subscribers=())))
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
        return source.delay_s + self.distances.delay_s(source.head, edge.name)

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
