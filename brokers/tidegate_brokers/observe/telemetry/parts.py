"""The telemetry of a head or an edge, put together: it observes the agent at work, counts records and writes them.

Records are always counted, as metrics of the process; they are written only where telemetry is on.

Invariants: telemetry changes nothing that the agent or the data plane does. An error in it is counted and logged, its
record is given up, and the broker works on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry

from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.machine import Action, EdgeSampled, Event, HeadSampled, Record, SendClient
from tidegate_protocol.messages import PublisherReport
from tidegate_protocol.operations import Role
from tidegate_protocol.reports import ReportTaken, SubscriberReport
from tidegate_protocol.telemetry import LatencyDigest, TelemetryRecord, WriterStatus

from ...rabbit.management import Management
from ...settings.options import EdgeConfig, HeadConfig
from ..exporting.deliveries import DeliveryMetrics
from ..exporting.records import HeadRecordMetrics, RecordMetrics
from .clients import PublisherTotals, SubscriberDesk
from .decisions import DecisionRecords
from .gauges import DropReason, TelemetryMetrics
from .origin import Origin
from .samples import EdgeSamples, HeadSamples
from .settling import HeadOutcomes
from .stream import EdgeStream, HeadStream, StreamLimits
from .writer import TelemetryWriter

log = logging.getLogger(__name__)

FLUSH_S: Final = 1.0
STATUS_EVERY_S: Final = 60.0

Sampled = Callable[[Event, int, float], list[TelemetryRecord]]


class Telemetry:
    """Records of one broker process. Without a writer they are counted, and that is all."""

    def __init__(
        self,
        origin: Origin,
        writer: TelemetryWriter | None,
        counts: RecordMetrics,
        detail_s: float,
        deliveries: DeliveryMetrics | None = None,
    ) -> None:
        self.writer = writer
        self.decisions = DecisionRecords(origin)
        self.sampled: Sampled = _no_samples
        """Makes records of a sample that was just judged; set by the process, which knows the agent."""
        self._origin = origin
        self._counts = counts
        self._deliveries = deliveries
        self._detail_s = detail_s
        self._publishers = PublisherTotals(origin, asyncio.get_running_loop().time())
        self._subscribers = SubscriberDesk(origin, detail_s)
        self._failures = 0

    # What is looked at

    def observe(self, event: Event, actions: Sequence[Action], now: float) -> None:
        """The agent has handled an event, and its actions are on their way."""
        try:
            self._write(self._observed(event, actions, now))
        except Exception:
            self._failed(f"{type(event).__name__} and what came of it")

    def _observed(self, event: Event, actions: Sequence[Action], now: float) -> list[TelemetryRecord]:
        records: list[TelemetryRecord] = []
        time_us = _wall_us()
        for action in actions:
            if isinstance(action, Record):
                records += self.decisions.decided(action.decision, time_us, now)
            elif isinstance(action, SendClient):
                self.decisions.ordered(action.message, now)
        if isinstance(event, EdgeSampled | HeadSampled):
            records += self.sampled(event, time_us, now)
        return records

    def publisher_reported(self, report: PublisherReport) -> None:
        """A publisher says what it sent."""
        if self.writer is not None:
            self._publishers.reported(report)

    def subscriber_reported(self, report: SubscriberReport) -> ReportTaken:
        """A subscriber says what it got; the answer says when to report next."""
        try:
            self._write(self._subscribers.records(report, _wall_us()))
        except Exception:
            self._failed("a subscriber's report")
        return self._subscribers.answer(report)

    # Running

    async def run(self) -> None:
        """Write until cancelled. If that ends by a bug, the broker goes on without."""
        if self.writer is None:
            return
        works = (self.writer.keeper.run(), self.writer.run(), self._add_up(self.writer))
        tasks = [asyncio.create_task(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._counts.errors.inc()
                log.error(
                    "telemetry failed by a bug of ours; the broker works on and writes no more records",
                    exc_info=task.exception(),
                )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def finish(self) -> None:
        """Before the process ends: write what there is, within a second."""
        if self.writer is not None:
            self._add_up_now(self.writer)
            await self.writer.flush(FLUSH_S)

    async def _add_up(self, writer: TelemetryWriter) -> None:
        """Every so often: what publishers reported, and how complete all this is."""
        loop = asyncio.get_running_loop()
        status_due_s = loop.time()
        while True:
            await asyncio.sleep(self._detail_s)
            self._add_up_now(writer)
            if loop.time() >= status_due_s:
                status_due_s = loop.time() + STATUS_EVERY_S
                self._write([self._status(writer)])

    def _add_up_now(self, writer: TelemetryWriter) -> None:
        try:
            self._write(self._publishers.take(_wall_us(), asyncio.get_running_loop().time()))
        except Exception:
            self._failed("the reports of publishers")
        left_out, self._publishers.left_out = self._publishers.left_out, 0
        writer.drop(DropReason.TOO_MANY, left_out)

    def _status(self, writer: TelemetryWriter) -> WriterStatus:
        origin = self._origin
        return WriterStatus(**origin.header(_wall_us()), run=origin.run, written=writer.written, dropped=writer.dropped)

    def _write(self, records: Iterable[TelemetryRecord]) -> None:
        for record in records:
            if self.writer is not None:
                self.writer.write(record)
            self._counts.taken(record)
            if self._deliveries is not None and isinstance(record, LatencyDigest):
                self._deliveries.taken(record)

    def _failed(self, what: str) -> None:
        """Logged in full the first time only: what fails once may fail every second."""
        self._counts.errors.inc()
        self._failures += 1
        log.log(logging.ERROR if self._failures == 1 else logging.DEBUG, "no record of %s", what, exc_info=True)


def head_telemetry(config: HeadConfig, management: Management, run: int, registry: CollectorRegistry) -> Telemetry:
    """Telemetry of a head; without a writer where it is switched off."""
    origin = Origin(config.cluster, config.name, Role.HEAD, config.policy, run)
    writer = None
    if config.telemetry:
        stream = HeadStream(str(config.url), management, StreamLimits(*config.telemetry_limits))
        writer = TelemetryWriter(config.url, stream.prepare, TelemetryMetrics(registry))
    deliveries = DeliveryMetrics(config.topic_series_max)
    registry.register(deliveries)
    telemetry = Telemetry(origin, writer, HeadRecordMetrics(registry), config.telemetry_detail_period_s, deliveries)
    samples, outcomes = HeadSamples(origin, config.telemetry_period_s), HeadOutcomes(origin)
    telemetry.decisions.followed = outcomes.decided

    def sampled(event: Event, time_us: int, now: float) -> list[TelemetryRecord]:
        assert isinstance(event, HeadSampled)
        state = telemetry.decisions.state
        loads = samples.sampled(event, state, time_us, now) if writer is not None else []
        return loads + outcomes.sampled(event, time_us, now)

    telemetry.sampled = sampled
    return telemetry


def edge_telemetry(config: EdgeConfig, agent: EdgeAgent, run: int, registry: CollectorRegistry) -> Telemetry:
    """Telemetry of an edge, written to its head's RabbitMQ; without a writer where it is switched off."""
    origin = Origin(config.cluster, config.name, Role.EDGE, config.policy, run)
    counts, detail_s = RecordMetrics(registry), config.telemetry_detail_period_s
    if not config.telemetry:
        return Telemetry(origin, None, counts, detail_s)
    stream = EdgeStream(str(config.head_url))
    writer = TelemetryWriter(config.head_url, stream.prepare, TelemetryMetrics(registry))
    telemetry = Telemetry(origin, writer, counts, detail_s)
    samples = EdgeSamples(origin, agent, config.telemetry_period_s, detail_s)

    def sampled(event: Event, time_us: int, now: float) -> list[TelemetryRecord]:
        assert isinstance(event, EdgeSampled)
        return samples.sampled(event, time_us, now)

    telemetry.sampled = sampled
    return telemetry


def _no_samples(event: Event, time_us: int, now: float) -> list[TelemetryRecord]:
    return []


def _wall_us() -> int:
    return time.time_ns() // 1_000
