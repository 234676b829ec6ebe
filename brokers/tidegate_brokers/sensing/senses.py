"""Everything a head or an edge senses with, put together: source, sampler, prober, watch for alarms, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry

from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.machine import Event, ReplyAddress
from tidegate_protocol.messages import ControlMessage, PublisherReport
from tidegate_protocol.topics import matches

from ..links.limits import Limits
from ..plane.edge import EdgePlane
from ..rabbit.management import Management
from ..settings.options import EdgeConfig, HeadConfig
from ..settings.quotas import account_quotas
from .accounts import AccountWatch
from .edges import EdgeSampler
from .gauges import Sensed, SensedCollector, SensingMetrics
from .heads import HeadSampler
from .prober import Prober, Switchboard
from .sensor import AlarmWatch, Sensor, watch_alarms
from .source import EDGE_FAMILIES, HEAD_FAMILIES, MetricsSource, Scrape

HEAD_ROUND_TRIP_S_DEFAULT: Final = 0.0
"""Until the first probe is back, which takes one round trip."""
SUBSCRIBER_ROUND_TRIP_S_DEFAULT: Final = 0.0
"""Until the first acknowledgements are counted. Too little makes a healthy queue look fuller than it is, but a queue is
not judged by its first sample."""
PROBE_PERIOD_S_MIN: Final = 0.5

Request = Callable[[ControlMessage, str], None]


@dataclass(slots=True)
class Senses:
    """What the rest of a process needs of them."""

    switchboard: Switchboard
    sensor: Sensor
    alarms: AlarmWatch
    sensed: Sensed
    probe_period_s: float
    prober: Prober | None = None
    also_reported: Callable[[PublisherReport], None] | None = None
    """Who else wants to know what publishers report."""
    more: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
    """What else runs."""

    def connect(self, reply: Callable[[ReplyAddress, ControlMessage], None], targets: Mapping[str, Request]) -> None:
        """Say how probes are sent and answered; done once, because control channels in turn need the switchboard."""
        self.switchboard.reply = reply
        self.prober = self.switchboard.prober = Prober(targets, asyncio.get_running_loop().time)

    def tell_limits(self, limits: Limits) -> None:
        """Have probes say what the own RabbitMQ takes, and what others say of theirs compared with it. An edge is
        probed by nobody.
        """
        assert self.prober is not None
        self.prober.make = limits.probe
        self.switchboard.probed = limits.heard

    @property
    def tasks(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        """What runs as long as the process."""
        return self._probe, self.sensor.run, self.alarms.run, *self.more

    def lacking(self) -> list[str]:
        """What readiness lacks."""
        return self.alarms.reasons

    async def _probe(self) -> None:
        assert self.prober is not None
        while True:
            self.prober.probe()
            await asyncio.sleep(self.probe_period_s)


def edge_senses(
    config: EdgeConfig,
    agent: EdgeAgent,
    plane: EdgePlane,
    post: Callable[[Event], None],
    management: Management,
    registry: CollectorRegistry,
) -> Senses:
    """The senses of an edge; its samples go to `post`."""
    sampler = EdgeSampler(config.name, config.capacity, SUBSCRIBER_ROUND_TRIP_S_DEFAULT)
    sensed = Sensed()

    def taken(answer: Scrape) -> None:
        trips = senses.prober.round_trips_s if senses.prober is not None else {}
        head_trip_s = trips.get("head", HEAD_ROUND_TRIP_S_DEFAULT)
        reading = sampler.taken(
            answer.exposition, answer.moment_s, plane.outputs, head_trip_s, time.time(), agent.migrating
        )
        if reading is not None:
            sample = reading.sample
            sensed.broker, sensed.subscriptions, sensed.oldest_s = sample.broker, sample.subscriptions, reading.oldest_s
            post(sample)

    def threshold(queue: str) -> float | None:
        load = agent.detector.queue(queue)
        return load.threshold if load is not None else None

    senses = _senses(config, EDGE_FAMILIES, lambda: len(plane.outputs), taken, post, management, registry, sensed)
    capacity = lambda: agent.detector.broker.capacity.uplink_bytes_per_s  # noqa: E731
    registry.register(SensedCollector(sensed, _trips(senses), capacity, threshold, config.output_series_max))
    return senses


def head_senses(
    config: HeadConfig,
    links: Callable[[], int],
    post: Callable[[Event], None],
    management: Management,
    registry: CollectorRegistry,
) -> Senses:
    """The senses of a head; its samples go to `post`."""
    accounts = AccountWatch(management.senders)
    sampler = HeadSampler(config.name, config.capacity, accounts, _may_publish(config), config.url.credentials[0])
    sensed = Sensed()

    def taken(answer: Scrape) -> None:
        trips = senses.prober.round_trips_s if senses.prober is not None else {}
        sample = sampler.taken(answer.exposition, answer.moment_s, trips)
        if sample is not None:
            sensed.broker, sensed.publishers = sample.broker, len({one.publisher for one in sample.publishers})
            post(sample)

    def reported(report: PublisherReport, account: str) -> None:
        sampler.publishers.reported(report, asyncio.get_running_loop().time(), account)
        if senses.also_reported is not None:
            senses.also_reported(report)

    senses = _senses(config, HEAD_FAMILIES, links, taken, post, management, registry, sensed)
    senses.switchboard.reported = reported
    senses.more = (accounts.run,)
    capacity = lambda: config.uplink_bytes_per_s  # noqa: E731
    registry.register(SensedCollector(sensed, _trips(senses), capacity, lambda queue: None, 0))
    return senses


def _may_publish(config: HeadConfig) -> Callable[[str, str], bool]:
    """Whether an account may publish on a topic, as far as its quota says."""
    rules = {account: quota.publish for account, quota in account_quotas(config.quotas).items()}
    return lambda account, topic: any(matches(pattern, topic) for pattern in rules.get(account, ("#",)))


def _trips(senses: Senses) -> Callable[[], Mapping[str, Any]]:
    return lambda: senses.prober.trips if senses.prober is not None else {}


def _senses(
    config: HeadConfig | EdgeConfig,
    families: tuple[str, ...],
    queues: Callable[[], int],
    taken: Callable[[Scrape], None],
    post: Callable[[Event], None],
    management: Management,
    registry: CollectorRegistry,
    sensed: Sensed,
) -> Senses:
    metrics = SensingMetrics(registry)
    source = MetricsSource(config.prometheus, config.url.vhost)
    sensor = Sensor(source, families, config.sample_period_s, queues, taken, metrics)
    return Senses(
        Switchboard(post),
        sensor,
        watch_alarms(management, metrics, post),
        sensed,
        max(config.sample_period_s, PROBE_PERIOD_S_MIN),
    )
