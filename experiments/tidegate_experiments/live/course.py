"""From what clients and brokers of a live run wrote down to the recorder that judges it, as it judges a simulated one.

What waits, and what an uplink is offered, is computed from the journal and not measured: a message waits at an edge
from when it has crossed the link until its last byte must have left, both known to the millisecond from when it was
published and when it arrived. So looking at the queues costs the run nothing, and shows what really waited, whatever
the agents believed. What they believed is beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidegate_experiments.burst.recorder import DecisionRow, MigrationRow, Recorder, SampleRow, TopicRow
from tidegate_protocol.decisions import MigrationEnded, SessionPlan
from tidegate_simulator.judging import is_late
from tidegate_simulator.scenario import PublisherSpec, Scenario, SubscriberSpec

from ..lean.subscriber import MoveSeen, PlaceSeen
from .brokers_said import Reading
from .journal import Delivery, Publication
from .workload import stream_of


@dataclass(slots=True)
class Course:
    """All that was written down in a run."""

    scenario: Scenario
    began_us: int
    publications: list[Publication]
    deliveries: list[Delivery]
    places: list[PlaceSeen]
    moves: list[MoveSeen]
    decisions: list[DecisionRow]
    readings: list[Reading]
    control_messages: int
    _where: dict[str, tuple[list[float], list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place in sorted(self.places, key=lambda one: one.at_us):
            times, edges = self._where.setdefault(place.subscriber, ([], []))
            times.append(self.seconds(place.at_us))
            edges.append(place.edge)

    def seconds(self, at_us: int) -> float:
        """Since the start of the run."""
        return (at_us - self.began_us) / 1e6

    def handed(self) -> Iterator[tuple[Delivery, SubscriberSpec, float, float, bool]]:
        """Each delivery with its subscriber, when it was published and when it arrived, and whether that was late."""
        for delivery in self.deliveries:
            subscriber = self.scenario.subscribers[delivery.subscriber]
            published_s, arrived_s = self.seconds(delivery.published_us), self.seconds(delivery.arrived_us)
            yield delivery, subscriber, published_s, arrived_s, is_late(arrived_s - published_s, subscriber.deadline_s)

    def sent(self) -> Iterator[tuple[PublisherSpec, float, list[str]]]:
        """Each publication with its publisher, when it was made, and the edge of every subscriber that has one then."""
        by_topic: dict[str, list[str]] = defaultdict(list)
        for subscriber in self.scenario.subscribers:
            by_topic[subscriber.pattern].append(subscriber.name)
        for publication in self.publications:
            spec, at_s = self.scenario.publishers[publication.publisher], self.seconds(publication.published_us)
            found = (self.edge_of(name, at_s) for name in by_topic[spec.topic])
            yield spec, at_s, [edge for edge in found if edge is not None]

    def edge_of(self, subscriber: str, at_s: float) -> str | None:
        """Where a subscription was served from."""
        times, edges = self._where.get(subscriber, ([], []))
        at = bisect_right(times, at_s) - 1
        return edges[at] if at >= 0 else None


def recorded(course: Course) -> Recorder:
    """The recorder of a run that is over."""
    recorder = Recorder()
    scenario = course.scenario
    recorder.begin(scenario)
    for place in sorted(course.places, key=lambda one: one.at_us):
        recorder.granted(place.subscriber, course.seconds(place.at_us))
    streams = [stream_of(spec) for spec in scenario.publishers]
    for publication in course.publications:
        spec = scenario.publishers[publication.publisher]
        identity = f"{streams[publication.publisher]}:{publication.sequence}"
        recorder.published(spec.name, spec.topic, identity, course.seconds(publication.published_us))
    for delivery, subscriber, published_s, arrived_s, late in course.handed():
        identity = f"{streams[delivery.publisher]}:{delivery.sequence}"
        collected = bool(delivery.collected)
        recorder.delivered(subscriber.name, identity, published_s, arrived_s, late=late, collected=collected)
    recorder.decisions.extend(row for row in course.decisions if row.at_s >= 0.0)
    _enter_moves(recorder, course)
    recorder.samples.extend(_samples(course))
    recorder.control_messages = course.control_messages
    recorder.end(len(course.publications) + _carried_by_links(course) + len(course.deliveries))
    return recorder


def _enter_moves(recorder: Recorder, course: Course) -> None:
    sessions: dict[tuple[str, str, str], str] = {}
    for row in recorder.decisions:
        decision = row.decision
        if isinstance(decision, SessionPlan) and decision.moves + decision.refused:
            recorder.planned.add(decision.session)
        elif isinstance(decision, MigrationEnded) and decision.moved:
            sessions[decision.subscriber, decision.source, decision.target] = decision.session
    for move in sorted(course.moves, key=lambda one: one.at_us):
        session = sessions.get((move.subscriber, move.source, move.target), "")
        at_s = course.seconds(move.at_us)
        recorder.moved_one(MigrationRow(at_s, move.subscriber, move.topic, move.source, move.target, session))


def _carried_by_links(course: Course) -> int:
    """Each publication crosses one link for every edge that has a subscriber of its topic."""
    return sum(len(set(edges)) for _, _, edges in course.sent())


# Samples


def _samples(course: Course) -> list[SampleRow]:
    """A row per edge and second, each at the end of its second."""
    scenario = course.scenario
    seconds = int(scenario.duration_s)
    waiting = _waiting(course, seconds)
    offered = _offered(course)
    sensed = _sensed(course)
    rows: list[SampleRow] = []
    for second in range(1, seconds + 1):
        for edge in scenario.edges:
            held = [one for one in scenario.subscribers if course.edge_of(one.name, second) == edge.name]
            reading = sensed.get((edge.name, second))
            topics = {
                topic: _topic_row([one.name for one in held if one.pattern == topic], second, waiting, reading)
                for topic in sorted({one.pattern for one in held})
            }
            width = edge.uplink_bytes_per_s or 0.0
            utilization = offered[edge.name, second] / width if width else 0.0
            believed = reading.offered_bytes_per_s if reading is not None else None
            rows.append(
                SampleRow(
                    float(second),
                    edge.name,
                    utilization,
                    topics,
                    believed / width if believed is not None and width else None,
                )
            )
    return rows


def _topic_row(subscribers: list[str], second: int, waiting: dict[str, list[int]], reading: Reading | None) -> TopicRow:
    depth = max(waiting[name][second] for name in subscribers)
    if reading is None:
        return TopicRow(float(depth), None, len(subscribers))
    thresholds = [reading.thresholds[name] for name in subscribers if name in reading.thresholds]
    depths = [reading.depths[name] for name in subscribers if name in reading.depths]
    return TopicRow(float(depth), min(thresholds, default=None), len(subscribers), max(depths, default=None))


def _waiting(course: Course, seconds: int) -> dict[str, list[int]]:
    """How many messages waited for each subscriber at each whole second."""
    scenario = course.scenario
    link_s = {edge.name: edge.head_delay_s for edge in scenario.edges}
    client_s = {edge.name: edge.client_delay_s for edge in scenario.edges}
    changes = [[0] * (seconds + 2) for _ in scenario.subscribers]
    for delivery, subscriber, published_s, arrived_s, _ in course.handed():
        edge = course.edge_of(subscriber.name, arrived_s)
        if edge is None:
            continue
        # It waits at every whole second between the two.
        first = int(published_s + link_s[edge]) + 1
        last = int(arrived_s - client_s[edge])
        if first <= last and first <= seconds:
            changes[delivery.subscriber][first] += 1
            changes[delivery.subscriber][min(last + 1, seconds + 1)] -= 1
    found: dict[str, list[int]] = {}
    for subscriber, steps in zip(scenario.subscribers, changes, strict=True):
        total, course_of = 0, []
        for step in steps:
            total += step
            course_of.append(total)
        found[subscriber.name] = course_of
    return found


def _offered(course: Course) -> Counter[tuple[str, int]]:
    """Bytes that each edge's uplink was asked for in each second, by the moment they came over the link."""
    link_s = {edge.name: edge.head_delay_s for edge in course.scenario.edges}
    offered: Counter[tuple[str, int]] = Counter()
    for spec, at_s, edges in course.sent():
        for edge in edges:
            offered[edge, int(at_s + link_s[edge]) + 1] += round(spec.message_bytes)
    return offered


def _sensed(course: Course) -> dict[tuple[str, int], Reading]:
    """What each edge said last before the end of each second."""
    found: dict[tuple[str, int], Reading] = {}
    for reading in course.readings:
        found[reading.broker, round(course.seconds(reading.at_us))] = reading
    return found
