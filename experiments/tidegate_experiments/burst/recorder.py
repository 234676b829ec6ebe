"""What an experiment remembers of a run: every delivery judged, a row per broker and second, every decision.

An observer only: of a simulated run, step by step, or of a live one, told afterwards from what its clients and brokers
wrote down (`begin`, `published`, `delivered`, `moved_one`, `end`). Invariants:

- a delivery is judged when it comes (`tidegate_simulator.judging`), against what was published. Nothing relies on
  what a client machine says of itself;
- what is lost is known only at the end: whatever follows the first message a subscriber got of a publisher and did not
  come; and, where nothing at all came, whatever was published once it had had `GRACE_S` to register. Where it is known
  when its route was granted, whatever was published from then on and did not come;
- samples and control messages count while publishers publish; after that only what still waits is awaited;
- thresholds are those the agents used, read after they judged the sample, not computed a second time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.machine import Action, EdgeSampled, Event, MessageReceived
from tidegate_protocol.balancing.migrations import MigrationReport, MigrationStage
from tidegate_protocol.balancing.sessions import BalancePlan
from tidegate_protocol.decisions import Decision
from tidegate_protocol.topics import matches
from tidegate_simulator.judging import Judge, Wrong, stream_of, total
from tidegate_simulator.observer import Observer

if TYPE_CHECKING:
    from tidegate_simulator.scenario import Scenario
    from tidegate_simulator.world import World

GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic on one edge in one sample: the deepest of its queues, and the lowest of their thresholds."""

    depth: float
    threshold: float | None
    subscribers: int
    sensed_depth: float | None = None
    """What the agent took the depth for, where that is another matter than what it was."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One edge in one sample."""

    at_s: float
    edge: str
    utilization: float
    """What the uplink is asked for ÷ what it carries."""
    topics: dict[str, TopicRow]
    sensed_utilization: float | None = None
    """What the agent took it for, where that is another matter."""

    def backlogged(self, messages: float) -> bool:
        """Whether more than so much waits in any of its queues."""
        return any(row.depth > messages for row in self.topics.values())


@dataclass(frozen=True, slots=True)
class DecisionRow:
    at_s: float
    broker: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class MigrationRow:
    """One subscription that has moved."""

    at_s: float
    subscriber: str
    topic: str
    source: str
    target: str
    session: str


@dataclass(slots=True)
class Moved:
    """The subscriptions of one topic that went from one edge to another in one session."""

    topic: str
    source: str
    target: str
    session: str
    at_s: float
    """When the first of them had arrived."""
    ended_s: float
    subscribers: int = 0


class Recorder(Observer):
    """Watches one run; read it afterwards."""

    def __init__(self) -> None:
        self.data_messages = 0
        """Publications, what links carried, and deliveries."""
        self.control_messages = 0
        self.control_kinds: Counter[str] = Counter()
        self.lost = 0
        self.lost_by: Counter[str] = Counter()
        """The same by subscriber."""
        self.late: Counter[str] = Counter()
        """Late deliveries by topic."""
        self.first_late_s: dict[str, float] = {}
        """When, by topic, the first message was published that came late."""
        self.last_late_s = 0.0
        self.late_per_s: Counter[int] = Counter()
        """Late deliveries by the second in which they came."""
        self.samples: list[SampleRow] = []
        self.decisions: list[DecisionRow] = []
        self.planned: set[str] = set()
        """The sessions in which somebody was to move."""
        self.migrated: list[MigrationRow] = []
        self.moved: list[Moved] = []
        self._pattern: dict[str, str] = {}
        self._joins_s: dict[str, float] = {}
        self._granted_s: dict[str, float] = {}
        self._judges: dict[str, Judge] = {}
        self._published: dict[str, array[float]] = {}
        self._world: World | None = None
        self._duration_s = inf
        self._sessions: dict[tuple[str, int], str] = {}
        self._reported: set[str] = set()
        self._moved: dict[tuple[str, str, str, str], Moved] = {}

    # The observer

    def started(self, world: World) -> None:
        self._world = world
        self.begin(world.scenario)

    def begin(self, scenario: Scenario) -> None:
        """Who will publish and subscribe, and for how long."""
        self._duration_s = scenario.duration_s
        for subscriber in scenario.subscribers:
            self._pattern[subscriber.name] = subscriber.pattern
            self._joins_s[subscriber.name] = subscriber.joins_s
            self._judges[subscriber.name] = Judge()

    def granted(self, subscriber: str, now: float) -> None:
        """The subscriber was told that its route is live: from now on it is owed everything, where that is known."""
        self._granted_s.setdefault(subscriber, now)

    def published(self, publisher: str, topic: str, message_id: str, now: float) -> None:
        stream = message_id.rpartition(":")[0]
        times = self._published.get(stream)
        if times is None:
            times = self._published[stream] = array("d")
        times.append(now)

    def delivered(
        self, subscriber: str, message_id: str, published_s: float, now: float, *, late: bool, collected: bool
    ) -> None:
        stream, sequence = stream_of(message_id)
        self._judges[subscriber].take(stream, sequence, collected=collected)
        if late:
            topic = self._pattern[subscriber]
            self.late[topic] += 1
            if topic not in self.first_late_s:
                self.first_late_s[topic] = published_s
            self.last_late_s = now
            self.late_per_s[int(now)] += 1

    def control_sent(self, sender: str, receiver: str, kind: str, now: float) -> None:
        if now <= self._duration_s:
            self.control_messages += 1
            self.control_kinds[kind] += 1

    def decided(self, broker: str, decision: Decision, now: float) -> None:
        self.decisions.append(DecisionRow(now, broker, decision))

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        if isinstance(event, EdgeSampled):
            if now > self._duration_s:
                return
            self._sampled(broker, event, now)
        elif isinstance(event, MessageReceived):
            message = event.message
            if isinstance(message, BalancePlan):
                if message.moves:
                    self.planned.add(message.session)
                for move in message.moves:
                    self._sessions[move.subscriber, move.number] = message.session
            elif isinstance(message, MigrationReport) and message.stage is MigrationStage.MOVED:
                self._migrated(message, now)

    def ended(self, world: World, now: float) -> None:
        self.end(world.counters.data_messages)

    def end(self, data_messages: int) -> None:
        """Everything that can arrive has: see what is lost."""
        self.data_messages = data_messages
        by_topic: dict[str, list[str]] = {}
        for stream in sorted(self._published):
            by_topic.setdefault(stream.partition(":")[2], []).append(stream)
        for subscriber, pattern in self._pattern.items():
            for topic, streams in by_topic.items():
                if matches(pattern, topic):
                    self.lost_by[subscriber] += sum(self._lost(subscriber, stream) for stream in streams)
        self.lost = self.lost_by.total()

    # What was seen

    @property
    def deliveries(self) -> int:
        return sum(judge.deliveries for judge in self._judges.values())

    @property
    def duplicates(self) -> int:
        return total(self._judges.values(), Wrong.DOUBLED)

    @property
    def out_of_order(self) -> int:
        return total(self._judges.values(), Wrong.OUT_OF_ORDER)

    @property
    def migrations(self) -> int:
        return len(self.migrated)

    @property
    def publications(self) -> int:
        """What publishers have published."""
        return sum(len(times) for times in self._published.values())

    def _lost(self, subscriber: str, stream: str) -> int:
        times, judge = self._published[stream], self._judges[subscriber]
        owed_s = self._granted_s.get(subscriber)
        if owed_s is None and not judge.following(stream):
            owed_s = self._joins_s[subscriber] + GRACE_S
        return len(judge.lost(stream, len(times), None if owed_s is None else bisect_left(times, owed_s)))

    def _sampled(self, edge: str, sample: EdgeSampled, now: float) -> None:
        thresholds = self._thresholds(edge, (one.name for one in sample.subscriptions))
        depths: dict[str, float] = {}
        lowest: dict[str, float] = {}
        counts: Counter[str] = Counter()
        for one in sample.subscriptions:
            depths[one.pattern] = max(depths.get(one.pattern, 0.0), one.depth)
            counts[one.pattern] += 1
            threshold = thresholds.get(one.name)
            if threshold is not None:
                lowest[one.pattern] = min(lowest.get(one.pattern, threshold), threshold)
        width = sample.broker.capacity.uplink_bytes_per_s
        rows = {topic: TopicRow(depths[topic], lowest.get(topic), counts[topic]) for topic in sorted(depths)}
        utilization = sample.broker.bytes_offered_per_s / width if width else 0.0
        self.samples.append(SampleRow(now, edge, utilization, rows))

    def _thresholds(self, edge: str, names: Iterable[str]) -> dict[str, float]:
        assert self._world is not None
        agent = self._world.agent(edge)
        if not isinstance(agent, EdgeAgent):
            return {}
        found = {name: agent.detector.queue(name) for name in names}
        return {name: queue.threshold for name, queue in found.items() if queue and queue.threshold is not None}

    def _migrated(self, report: MigrationReport, now: float) -> None:
        # A client repeats its report until it is acknowledged.
        if report.migration in self._reported or report.other_edge is None or report.other_number is None:
            return
        self._reported.add(report.migration)
        session = self._sessions.get((report.subscriber, report.other_number), "")
        self.moved_one(MigrationRow(now, report.subscriber, report.pattern, report.other_edge, report.edge, session))

    def moved_one(self, row: MigrationRow) -> None:
        """A subscription has moved."""
        self.migrated.append(row)
        key = (row.topic, row.source, row.target, row.session)
        together = self._moved.get(key)
        if together is None:
            self._moved[key] = together = Moved(*key, at_s=row.at_s, ended_s=row.at_s)
            self.moved.append(together)
        together.subscribers += 1
        together.ended_s = row.at_s
