"""The loop of sensing: once per period ask RabbitMQ, make a sample, hand it to the agent.

Invariants:

- a period in which RabbitMQ's metrics can't be read gives no sample, never a sample of zeros. Such periods are counted,
  and the first and the last of them are logged; without samples an agent's reports expire by themselves;
- a request that takes longer than a period delays the next one, and two requests never run at once. A request that the
  agent wants sooner shifts the following ones, so that there are hardly more of them;
- sizes of messages, which cost RabbitMQ and us more to tell than all the rest, are asked for less often where there are
  many queues.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tidegate_agents.machine import AlarmsSeen, Event

from ..errors import RabbitError
from ..rabbit.management import Management
from .gauges import ALARMS, SensingMetrics
from .source import MetricsSource, Scrape

log = logging.getLogger(__name__)

SIZES_EVERY_S: Final = 10.0
QUEUES_CHEAP: Final = 100
"""Up to so many queues sizes are asked for in every period."""
ALARMS_EVERY_S: Final = 5.0


class Sensor:
    """Asks, times and hands on."""

    def __init__(
        self,
        source: MetricsSource,
        families: tuple[str, ...],
        period_s: float,
        queues: Callable[[], int],
        taken: Callable[[Scrape], None],
        metrics: SensingMetrics,
    ) -> None:
        """`queues`: how many there are. `taken`: makes the sample and hands it on."""
        self.problem: str | None = None
        self._source = source
        self._families = families
        self._period_s = period_s
        self._queues = queues
        self._taken = taken
        self._metrics = metrics
        self._sizes_due_s = 0.0
        self._soon_s: float | None = None

    def soon(self, after_s: float) -> None:
        """Ask for the next sample so soon; for agents, who say so when they are handed a sample."""
        self._soon_s = after_s

    async def run(self) -> None:
        """Sense until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        try:
            while True:
                self._soon_s = None
                await self._once()
                wait_s = self._period_s if self._soon_s is None else min(self._soon_s, self._period_s)
                due_s = max(due_s + wait_s, loop.time())
                await asyncio.sleep(due_s - loop.time())
        finally:
            await self._source.close()

    async def _once(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        sizes = self._queues() <= QUEUES_CHEAP or began_s >= self._sizes_due_s
        try:
            answer = await self._source.ask(self._families, sizes=sizes)
        except RabbitError as error:
            self._failed(error)
            return
        if sizes:
            self._sizes_due_s = began_s + SIZES_EVERY_S
        self._worked()
        began_cpu_s = time.thread_time()
        self._taken(answer)
        self._metrics.cpu.inc(time.thread_time() - began_cpu_s)
        self._metrics.read_bytes.inc(answer.length_bytes)
        self._metrics.seconds.observe(loop.time() - began_s)

    def _failed(self, error: RabbitError) -> None:
        self._metrics.failures.inc()
        if self.problem is None:
            log.warning("cannot read RabbitMQ metrics; load sampling suspended: %s", error)
        self.problem = str(error)

    def _worked(self) -> None:
        if self.problem is not None:
            log.info("RabbitMQ metrics can be read again; load sampling resumed")
        self.problem = None


class AlarmWatch:
    """Looks every few seconds whether RabbitMQ blocks publishers, and says so."""

    def __init__(
        self,
        alarms: Callable[[], Awaitable[frozenset[str]]],
        metrics: SensingMetrics,
        post: Callable[[Event], None],
    ) -> None:
        self.raised: frozenset[str] = frozenset()
        self._alarms = alarms
        self._post = post
        self._metrics = metrics

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                self._noted(await self._alarms())
            except RabbitError as error:
                log.debug("cannot read the alarms of RabbitMQ; the last known ones hold: %s", error)
            await asyncio.sleep(ALARMS_EVERY_S)

    def _noted(self, raised: frozenset[str]) -> None:
        for resource in sorted(raised - self.raised):
            log.error(
                "RabbitMQ has an alarm and blocks publishers until it is over: %s",
                resource,
                extra={"resource": resource},
            )
        for resource in sorted(self.raised - raised):
            log.info("RabbitMQ's alarm is over: %s", resource, extra={"resource": resource})
        if raised != self.raised:
            self._post(AlarmsSeen(tuple(sorted(raised))))
        self.raised = raised
        for resource in ALARMS:
            self._metrics.alarm.labels(resource).set(resource in raised)

    @property
    def reasons(self) -> list[str]:
        """For readiness."""
        return [f"RabbitMQ has an alarm and blocks publishers: {resource}" for resource in sorted(self.raised)]


def watch_alarms(management: Management, metrics: SensingMetrics, post: Callable[[Event], None]) -> AlarmWatch:
    """The watch over the node behind a management API."""
    return AlarmWatch(management.alarms, metrics, post)
