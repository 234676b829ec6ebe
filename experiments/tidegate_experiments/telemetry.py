"""The telemetry of an experiment: what brokers record and what clients count, as a file of JSON lines.

What brokers would say of a simulated run is made by the very code that says it on RabbitMQ, looking on at the same
agents; of a live run it is read from the stream of its head. What clients saw is made from the run's own books in both
cases, because those hold every publication and every delivery. Knows nothing of how a run is judged or drawn.

Invariant: records are in the order of their times; a simulated run is dated as if it had ended just now, so that
nothing is in the future; periods grow with the length of the run, so that the file stays small.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.machine import Action, EdgeSampled, Event, HeadSampled, Record, SendClient
from tidegate_brokers.observe.telemetry.decisions import DecisionRecords
from tidegate_brokers.observe.telemetry.origin import Origin
from tidegate_brokers.observe.telemetry.reader import EARLIEST, reading
from tidegate_brokers.observe.telemetry.samples import EdgeSamples, HeadSamples
from tidegate_brokers.settings.urls import ServerUrl
from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.latency import LATENCY_US_MAX, bucket_of
from tidegate_protocol.names import TELEMETRY_FILE
from tidegate_protocol.operations import Role
from tidegate_protocol.telemetry import LatencyDigest, PublisherRates, TelemetryRecord, TopicRate, encode
from tidegate_simulator.observer import Observer
from tidegate_simulator.scenario import Scenario, SubscriberSpec

from .live.course import Course
from .live.workload import stream_of

if TYPE_CHECKING:
    from tidegate_simulator.world import World

LOAD_PERIOD_S: Final = 1.0
DETAIL_PERIOD_S: Final = 2.0
"""How often thresholds and what clients count are told; less often in a long run, see `PERIODS_MAX`."""
PERIODS_MAX: Final = 120
RUN: Final = 1
SILENT_S: Final = 2.0
"""Brokers write what they have every second: what is not in the stream after so long was never there."""
RECORDS_MAX: Final = 1_000_000
_CLIENT_KINDS: Final = ("latency", "publisher-rates")


def detail_period_s(duration_s: float) -> float:
    """How often what is told in detail is told."""
    return max(DETAIL_PERIOD_S, float(ceil(duration_s / PERIODS_MAX)))


@dataclass(slots=True)
class _Digest:
    """What one subscription got in the present period."""

    received: int = 0
    late: int = 0
    latency_us_sum: int = 0
    buckets: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Sent:
    """What one publisher sent on one topic in the present period."""

    messages: int = 0
    bytes: int = 0
    gaps: int = 0
    gap_s_sum: float = 0.0
    gap_s2_sum: float = 0.0


class ClientBook:
    """What publishers and subscribers did, period by period. Times are seconds since the start of the run."""

    def __init__(self, scenario: Scenario, cluster: str, broker: str, began_us: int) -> None:
        self._header = {"cluster": cluster, "broker": broker}
        self._began_us = began_us
        self._period_s = detail_period_s(scenario.duration_s)
        self._subscribers: dict[str, SubscriberSpec] = {one.name: one for one in scenario.subscribers}
        self._bytes = {one.topic: round(one.message_bytes) for one in scenario.publishers}
        self._digests: dict[tuple[int, str], _Digest] = {}
        self._sent: dict[tuple[int, str, str], _Sent] = {}
        self._last_s: dict[tuple[str, str], float] = {}

    def published(self, publisher: str, topic: str, at_s: float) -> None:
        """A message was handed over by `publisher`, an id."""
        key = int(at_s / self._period_s), publisher, topic
        sent = self._sent.get(key)
        if sent is None:
            sent = self._sent[key] = _Sent()
        sent.messages += 1
        sent.bytes += self._bytes.get(topic, 0)
        before_s = self._last_s.get((publisher, topic))
        if before_s is not None:
            sent.gaps += 1
            sent.gap_s_sum += at_s - before_s
            sent.gap_s2_sum += (at_s - before_s) ** 2
        self._last_s[publisher, topic] = at_s

    def delivered(self, subscriber: str, published_s: float, at_s: float, *, late: bool) -> None:
        """A message was handed to an application."""
        key = int(at_s / self._period_s), subscriber
        digest = self._digests.get(key)
        if digest is None:
            digest = self._digests[key] = _Digest()
        latency_us = min(max(round((at_s - published_s) * 1e6), 0), LATENCY_US_MAX)
        bucket = bucket_of(latency_us)
        digest.received += 1
        digest.late += late
        digest.latency_us_sum += latency_us
        digest.buckets[bucket] = digest.buckets.get(bucket, 0) + 1

    def records(self) -> list[TelemetryRecord]:
        """Everything, as their head would have written it at the end of each period."""
        found: list[TelemetryRecord] = []
        elapsed_us = round(self._period_s * 1e6)
        for (period, name), digest in self._digests.items():
            spec = self._subscribers[name]
            found.append(
                LatencyDigest(
                    **self._told(period),
                    subscriber=name,
                    run=RUN,
                    number=period + 1,
                    pattern=spec.pattern,
                    deadline_us=round(spec.deadline_s * 1e6),
                    elapsed_us=elapsed_us,
                    received=digest.received,
                    late=digest.late,
                    latency_us_sum=digest.latency_us_sum,
                    buckets=tuple(sorted(digest.buckets)),
                    counts=tuple(digest.buckets[one] for one in sorted(digest.buckets)),
                )
            )
        for (period, publisher, topic), sent in self._sent.items():
            rate = TopicRate(
                topic=topic,
                messages=sent.messages,
                bytes=sent.bytes,
                gaps=sent.gaps,
                gap_s_sum=sent.gap_s_sum,
                gap_s2_sum=sent.gap_s2_sum,
            )
            found.append(
                PublisherRates(
                    **self._told(period),
                    publisher=publisher,
                    elapsed_us=elapsed_us,
                    active_us=elapsed_us,
                    topics=(rate,),
                )
            )
        return found

    def _told(self, period: int) -> dict[str, Any]:
        return {"time_us": self._began_us + round((period + 1) * self._period_s * 1e6), **self._header}


class SimulatedTelemetry(Observer):
    """Looks on at a simulated run, and has its records afterwards."""

    def __init__(self, ended_us: int) -> None:
        self._ended_us = ended_us
        self._began_us = 0
        self._world: World | None = None
        self._clients: ClientBook | None = None
        self._origins: dict[str, Origin] = {}
        self._decisions: dict[str, DecisionRecords] = {}
        self._heads: dict[str, HeadSamples] = {}
        self._edges: dict[str, tuple[EdgeAgent, EdgeSamples]] = {}
        self._records: list[TelemetryRecord] = []

    def started(self, world: World) -> None:
        scenario = world.scenario
        self._world = world
        self._began_us = self._ended_us - round((scenario.duration_s + scenario.settle_s) * 1e6)
        first = scenario.heads[0].name
        self._clients = ClientBook(scenario, first, first, self._began_us)
        policy = scenario.balancing.policy
        for head in scenario.heads:
            self._origins[head.name] = Origin(head.name, head.name, Role.HEAD, policy, RUN)
            self._heads[head.name] = HeadSamples(self._origins[head.name], LOAD_PERIOD_S)
        for edge in scenario.edges:
            self._origins[edge.name] = Origin(edge.head, edge.name, Role.EDGE, policy, RUN)
        self._decisions = {name: DecisionRecords(origin) for name, origin in self._origins.items()}

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        time_us = self._began_us + round(now * 1e6)
        decisions = self._decisions[broker]
        for action in actions:
            if isinstance(action, Record):
                self._records += decisions.decided(action.decision, time_us, now)
            elif isinstance(action, SendClient):
                decisions.ordered(action.message, now)
        assert self._world is not None
        if now > self._world.scenario.duration_s:
            return  # nobody publishes any more, and what still waits is awaited
        if isinstance(event, EdgeSampled):
            self._records += self._edge_samples(broker).sampled(event, time_us, now)
        elif isinstance(event, HeadSampled):
            self._records += self._heads[broker].sampled(event, decisions.state, time_us, now)

    def _edge_samples(self, edge: str) -> EdgeSamples:
        """An edge that was restarted has another agent."""
        assert self._world is not None
        agent = self._world.agent(edge)
        assert isinstance(agent, EdgeAgent)
        known = self._edges.get(edge)
        if known is None or known[0] is not agent:
            detail_s = detail_period_s(self._world.scenario.duration_s)
            known = self._edges[edge] = agent, EdgeSamples(self._origins[edge], agent, LOAD_PERIOD_S, detail_s)
        return known[1]

    def published(self, publisher: str, topic: str, message_id: str, now: float) -> None:
        assert self._clients is not None
        self._clients.published(message_id.partition(":")[0], topic, now)

    def delivered(
        self, subscriber: str, message_id: str, published_s: float, now: float, *, late: bool, collected: bool
    ) -> None:
        assert self._clients is not None
        self._clients.delivered(subscriber, published_s, now, late=late)

    def records(self) -> list[TelemetryRecord]:
        """Of the whole run."""
        assert self._clients is not None
        return [*self._records, *self._clients.records()]


async def read_stream(url: str) -> list[TelemetryRecord]:
    """All that brokers have written to the stream of their head so far. They go on writing: what is made from now on is
    not waited for.
    """
    found: list[TelemetryRecord] = []
    until_us = time.time_ns() // 1_000 + round(SILENT_S * 1e6)
    async with reading(ServerUrl.parse(url), EARLIEST) as reader:
        while len(found) < RECORDS_MAX:
            try:
                async with asyncio.timeout(SILENT_S):
                    read = await anext(reader)
            except TimeoutError:
                break
            try:
                record = read.record
            except MalformedMessage:
                continue  # of no use to anybody, and counted by those who count
            if record.time_us > until_us:
                break
            found.append(record)
    return found


def live_records(course: Course, brokers: Iterable[TelemetryRecord]) -> list[TelemetryRecord]:
    """What brokers wrote during a live run, and what its clients counted: all of them, not only those of the SDK."""
    told = [record for record in brokers if record.kind not in _CLIENT_KINDS]
    scenario = course.scenario
    head = next((record for record in told if record.broker == scenario.heads[0].name), None)
    cluster = head.cluster if head is not None else scenario.heads[0].name
    clients = ClientBook(scenario, cluster, scenario.heads[0].name, course.began_us)
    for publication in course.publications:
        spec = scenario.publishers[publication.publisher]
        clients.published(stream_of(spec).partition(":")[0], spec.topic, course.seconds(publication.published_us))
    for _, subscriber, published_s, arrived_s, late in course.handed():
        clients.delivered(subscriber.name, published_s, arrived_s, late=late)
    return [*told, *clients.records()]


def write_telemetry(records: Iterable[TelemetryRecord], folder: Path) -> Path:
    """One record per line, as in a stream; `tidegate analytics` reads the folder as a lake."""
    path = folder / TELEMETRY_FILE
    with path.open("wb") as file:
        for record in sorted(records, key=lambda one: one.time_us):
            file.write(encode(record) + b"\n")
    return path
