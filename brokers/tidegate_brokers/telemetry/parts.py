"""Telemetry of a head or an edge, put together: it looks on while the agent works, and writes.

What always holds: it changes nothing that the agent or the data plane does, and an error in it concerns nobody else:
it is counted, logged, and the broker goes on without that record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry

from tidegate_agents.edge import EdgeAgent
from tidegate_agents.machine import Action, EdgeSampled, Event, HeadSampled, Record, SendClient
from tidegate_protocol.messages import PublisherReport
from tidegate_protocol.operations import Role
from tidegate_protocol.reports import ReportTaken, SubscriberReport
from tidegate_protocol.telemetry import TelemetryRecord, WriterStatus

from ..config import EdgeConfig, HeadConfig
from ..management import Management
from .clients import PublisherBook, SubscriberDesk
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
    """Records of one broker process."""

    def __init__(self, origin: Origin, writer: TelemetryWriter, metrics: TelemetryMetrics, detail_s: float) -> None:
        self.writer = writer
        self.decisions = DecisionRecords(origin)
        self.sampled: Sampled = _no_samples
        """Makes records of a sample that was just judged; set by whoever knows the agent."""
        self._origin = origin
        self._metrics = metrics
        self._detail_s = detail_s
        self._publishers = PublisherBook(origin, asyncio.get_running_loop().time())
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
        works = (self.writer.keeper.run(), self.writer.run(), self._add_up())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._metrics.errors.inc()
                log.error("a bug ended telemetry; the broker goes on without", exc_info=task.exception())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def finish(self) -> None:
        """Before the process ends: write what there is, within a second."""
        self._add_up_now()
        await self.writer.flush(FLUSH_S)

    async def _add_up(self) -> None:
        """Every so often: what publishers reported, and how complete all this is."""
        loop = asyncio.get_running_loop()
        status_due_s = loop.time()
        while True:
            await asyncio.sleep(self._detail_s)
            self._add_up_now()
            if loop.time() >= status_due_s:
                status_due_s = loop.time() + STATUS_EVERY_S
                self._write([self._status()])

    def _add_up_now(self) -> None:
        try:
            self._write(self._publishers.take(_wall_us(), asyncio.get_running_loop().time()))
        except Exception:
            self._failed("the reports of publishers")
        left_out, self._publishers.left_out = self._publishers.left_out, 0
        self.writer.drop(DropReason.TOO_MANY, left_out)

    def _status(self) -> WriterStatus:
        writer, origin = self.writer, self._origin
        return WriterStatus(**origin.header(_wall_us()), run=origin.run, written=writer.written, dropped=writer.dropped)

    def _write(self, records: Iterable[TelemetryRecord]) -> None:
        for record in records:
            self.writer.write(record)

    def _failed(self, what: str) -> None:
        """Logged in full the first time only: what fails once may fail every second."""
        self._metrics.errors.inc()
        self._failures += 1
        log.log(logging.ERROR if self._failures == 1 else logging.DEBUG, "no telemetry of %s", what, exc_info=True)


def head_telemetry(
    config: HeadConfig, management: Management, run: int, registry: CollectorRegistry
) -> Telemetry | None:
    """Telemetry of a head; None where it is switched off."""
    if not config.telemetry:
        return None
    limits = StreamLimits(*config.telemetry_limits)
    metrics = TelemetryMetrics(registry)
    origin = Origin(config.cluster, config.name, Role.HEAD, config.policy, run)
    writer = TelemetryWriter(config.url, HeadStream(str(config.url), management, limits).prepare, metrics)
    telemetry = Telemetry(origin, writer, metrics, config.telemetry_detail_period_s)
    samples, outcomes = HeadSamples(origin, config.telemetry_period_s), HeadOutcomes(origin)
    telemetry.decisions.followed = outcomes.decided

    def sampled(event: Event, time_us: int, now: float) -> list[TelemetryRecord]:
        assert isinstance(event, HeadSampled)
        state = telemetry.decisions.state
        return samples.sampled(event, state, time_us, now) + outcomes.sampled(event, time_us, now)

    telemetry.sampled = sampled
    return telemetry


def edge_telemetry(config: EdgeConfig, agent: EdgeAgent, run: int, registry: CollectorRegistry) -> Telemetry | None:
    """Telemetry of an edge, written to its head's RabbitMQ; None where it is switched off."""
    if not config.telemetry:
        return None
    metrics = TelemetryMetrics(registry)
    origin = Origin(config.cluster, config.name, Role.EDGE, config.policy, run)
    writer = TelemetryWriter(config.head_url, EdgeStream(str(config.head_url)).prepare, metrics)
    telemetry = Telemetry(origin, writer, metrics, config.telemetry_detail_period_s)
    samples = EdgeSamples(origin, agent, config.telemetry_period_s, config.telemetry_detail_period_s)

    def sampled(event: Event, time_us: int, now: float) -> list[TelemetryRecord]:
        assert isinstance(event, EdgeSampled)
        return samples.sampled(event, time_us, now)

    telemetry.sampled = sampled
    return telemetry


def _no_samples(event: Event, time_us: int, now: float) -> list[TelemetryRecord]:
    return []


def _wall_us() -> int:
    return time.time_ns() // 1_000
