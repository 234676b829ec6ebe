"""What the RabbitMQ of a head and of an edge would do in rate mode, and what a look at them would show.

An edge: output queues on an `Uplink`. A head: the patterns bound on each link, and
with them how far each topic gets. Invariants:

- a topic reaches an edge only over links that are bound for it, from the head where it is published;
- a sample covers the time since the one before, and everything in it was seen at one moment;
- as long as nothing about a group changes, its members' samples are the very same objects.

Only uplinks of edges hold anything up: the load of downlinks, matching and heads is told in the samples, but nothing
queues there. A queue drains from the moment it exists; its subscriber attaches a few round trips later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, isclose
from typing import Final

from tidegate_agents.load.metrics import BrokerSample, PublisherSample, Role, SubscriptionSample
from tidegate_agents.machine import EdgeSampled, HeadSampled
from tidegate_protocol.names import marker_prefix
from tidegate_protocol.topics import matches
from tidegate_simulator.configs import head_capacity, known_capacity
from tidegate_simulator.scenario import EdgeSpec, HeadSpec, Scenario

from .sources import Sources
from .uplink import Group, Uplink

UNCHANGED: Final = 1e-9
"""Relative difference of two rates that the arithmetic of floats explains."""

MARKERS: Final = marker_prefix("")
"""No publisher's topic starts with this."""


@dataclass(slots=True)
class _Seen:
    """The last sample of one group."""

    enqueue_per_s: float
    drain_per_s: float
    depth: float
    message_bytes: float
    members: int
    samples: tuple[SubscriptionSample, ...]


class EdgePlane:
    """One edge: its uplink, and its samples."""

    def __init__(self, spec: EdgeSpec) -> None:
        self.spec = spec
        self.uplink = Uplink(spec.uplink_bytes_per_s)
        self._capacity = known_capacity(spec)
        self._head_round_trip_s = 2.0 * spec.head_delay_s
        self._round_trip_s = 2.0 * spec.client_delay_s
        self.sampled_s = 0.0
        self._seen: dict[int, _Seen] = {}
        self._touched = False
        self.steady = 0
        """How many samples in a row have said the same."""

    def touch(self) -> None:
        """Queues or rates have changed: the next sample is not that of before."""
        self._touched = True
        self.steady = 0

    def skip_to(self, now: float) -> None:
        """Nobody looked until now and nothing has changed: the next sample begins here."""
        self.uplink.advance(now)
        for group in self.uplink.groups:
            group.arrived = group.drained = 0.0
        self.sampled_s = now

    def sample(self, now: float) -> EdgeSampled:
        """What happened since the last sample, and what waits now."""
        uplink, span_s = self.uplink, now - self.sampled_s
        uplink.advance(now)
        seen: dict[int, _Seen] = {}
        parts: list[tuple[SubscriptionSample, ...]] = []
        bytes_in = messages_in = offered = 0.0
        changed = self._touched
        for pattern in uplink.patterns:
            most = most_bytes = 0.0
            for group in uplink.of_pattern(pattern):
                before = self._seen.get(id(group))
                after = self._look(group, span_s, before)
                changed = changed or after is not before
                seen[id(group)] = after
                parts.append(after.samples)
                offered += after.enqueue_per_s * after.message_bytes * after.members
                most = max(most, after.enqueue_per_s)
                most_bytes = max(most_bytes, after.enqueue_per_s * after.message_bytes)
                group.arrived = group.drained = 0.0
            messages_in += most
            bytes_in += most_bytes
        self._seen, self.sampled_s, self._touched = seen, now, False
        self.steady = 0 if changed else self.steady + 1
        uplink.merge()
        broker = BrokerSample(self.spec.name, Role.EDGE, bytes_in, offered, messages_in, self._capacity)
        return EdgeSampled(broker, tuple(sample for part in parts for sample in part), self._head_round_trip_s)

    def _look(self, group: Group, span_s: float, before: _Seen | None) -> _Seen:
        enqueue, drain = group.arrived / span_s, group.drained / span_s
        depth, size, members = group.depth, group.message_bytes, len(group.members)
        if (
            before is not None
            and not self._touched
            and before.members == members
            and before.message_bytes == size
            and isclose(before.enqueue_per_s, enqueue, rel_tol=UNCHANGED)
            and isclose(before.drain_per_s, drain, rel_tol=UNCHANGED)
            and isclose(before.depth, depth, rel_tol=UNCHANGED, abs_tol=UNCHANGED)
        ):
            return before
        round_trip_s, pattern = self._round_trip_s, group.pattern
        in_flight = drain * round_trip_s
        samples = tuple(
            SubscriptionSample(name, pattern, enqueue, drain, depth, in_flight, round_trip_s, size)
            for name in group.members
        )
        return _Seen(enqueue, drain, depth, size, members, samples)


class Reach:
    """Which links are bound for what, and how far each topic gets over them."""

    def __init__(self, sources: Sources, scenario: Scenario) -> None:
        self._sources = sources
        self._neighbours = {head.name: sorted(head.neighbours) for head in scenario.heads}
        self._bound: dict[tuple[str, str], set[str]] = {}
        self._wild: dict[tuple[str, str], set[str]] = {}
        self._edges_of_head: dict[str, list[str]] = {}
        for edge in sorted(scenario.edges, key=lambda spec: spec.name):
            self._edges_of_head.setdefault(edge.head, []).append(edge.name)
        self._heads: dict[tuple[str, str], tuple[str, ...]] = {}
        """Per topic and head where it is published: the heads it gets to."""
        self._reached: dict[tuple[str, str], frozenset[str]] = {}
        """The same for the edges."""

    def reaches(self, topic: str, head: str, edge: str) -> bool:
        """Whether what is published on `topic` at `head` gets to `edge`."""
        return edge in self._reached.get((topic, head), ())

    def change(self, head: str, target: str, add: tuple[str, ...], remove: tuple[str, ...]) -> set[tuple[str, str]]:
        """Bind and unbind. Returns the topics and edges for which that made a difference."""
        bound = self._bound.setdefault((head, target), set())
        bound.update(add)
        bound.difference_update(remove)
        wild = self._wild.setdefault((head, target), set())
        wild.update(pattern for pattern in add if "*" in pattern or "#" in pattern)
        wild.difference_update(remove)
        changed: set[tuple[str, str]] = set()
        for pattern in (*add, *remove):
            if pattern.startswith(MARKERS):
                continue
            for topic in self._sources.topics_of(pattern):
                for start in sorted({source.head for source in self._sources.by_topic[topic]}):
                    if head in self._heads.get((topic, start), (start,)):
                        changed |= self._walk_again(topic, start)
        return changed

    def _walk_again(self, topic: str, start: str) -> set[tuple[str, str]]:
        before = self._reached.get((topic, start), frozenset())
        heads, edges = [start], []
        queue = deque([(start, "")])
        while queue:
            head, came_from = queue.popleft()
            edges += [name for name in self._edges_of_head.get(head, ()) if self._carries(head, name, topic)]
            for neighbour in self._neighbours[head]:
                if neighbour != came_from and self._carries(head, neighbour, topic):
                    heads.append(neighbour)
                    queue.append((neighbour, head))
        after = frozenset(edges)
        self._heads[topic, start], self._reached[topic, start] = tuple(heads), after
        return {(topic, edge) for edge in before ^ after}

    def _carries(self, head: str, target: str, topic: str) -> bool:
        bound = self._bound.get((head, target))
        if not bound:
            return False
        if topic in bound:
            return True
        return any(matches(pattern, topic) for pattern in self._wild[head, target] if not pattern.startswith(MARKERS))

    def load(self, head: str, publishers: tuple[PublisherSample, ...]) -> tuple[float, float, float]:
        """Bytes in, bytes offered and messages in per second at a head, as far as its own publishers make them.

        What only passes through is left out: it would take every head's publishers to tell, and heads have no limits
        in rate mode that it could run into.
        """
        bytes_in = offered = messages = 0.0
        for sample in publishers:
            rate = sample.messages_per_s * sample.message_bytes
            links = sum(
                self._carries(head, target, sample.topic)
                for target in (*self._edges_of_head.get(head, ()), *self._neighbours[head])
            )
            bytes_in += rate
            offered += rate * links
            messages += sample.messages_per_s
        return bytes_in, offered, messages


class HeadPlane:
    """One head: what its publishers send, sampled; unchanged samples are the same objects."""

    def __init__(self, spec: HeadSpec, sources: Sources, reach: Reach) -> None:
        self.spec = spec
        self._sources = sources
        self._reach = reach
        self._sampled_s = 0.0
        self._capacity = head_capacity(spec)
        self._round_trips = {name: 2.0 * sources.distances.delay_s(spec.name, name) for name in sorted(spec.neighbours)}
        self._last: tuple[PublisherSample, ...] = ()
        self._broker: BrokerSample | None = None
        self._changes_s = sorted(
            {at_s for source in sources.by_head.get(spec.name, ()) for at_s, _ in source.steps if at_s < inf}
        )

    def routes_changed(self) -> None:
        self._broker = None

    def sample(self, now: float) -> HeadSampled:
        since_s, self._sampled_s = self._sampled_s, now
        # Once more after a change: the sample during which it happened is a mixture.
        if self._broker is None or any(since_s - (now - since_s) <= at_s <= now for at_s in self._changes_s):
            self._last = self._sources.samples(self.spec.name, since_s, now)
            bytes_in, offered, messages = self._reach.load(self.spec.name, self._last)
            self._broker = BrokerSample(self.spec.name, Role.HEAD, bytes_in, offered, messages, self._capacity)
        return HeadSampled(self._broker, self._last, self._round_trips)
