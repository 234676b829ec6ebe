"""What was sensed, as metrics of our own, made when Prometheus asks for them and not before.

Labels are bounded: of the output queues only so many as configured, those with the largest depth first; brokers are
those of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate_agents.load.metrics import BrokerSample, SubscriptionSample

from .trips import ProbedTrip

ALARMS = ("memory", "disk", "file-descriptors")


class SensingMetrics:
    """What sensing costs, and whether it works."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Summary(
            "tidegate_sensing_seconds", "Time from asking RabbitMQ for its metrics until judged", registry=registry
        )
        self.cpu = Counter(
            "tidegate_sensing_cpu_seconds", "Processor time for reading metrics and judging them", registry=registry
        )
        self.read_bytes = Counter("tidegate_sensing_read_bytes", "Text read from RabbitMQ", registry=registry)
        self.failures = Counter(
            "tidegate_sensing_failures", "Periods without a sample: RabbitMQ's metrics were not to be had",
            registry=registry,
        )  # fmt: skip
        self.alarm = Gauge(
            "tidegate_rabbitmq_alarm_info", "1 while RabbitMQ blocks publishers for this", ["resource"],
            registry=registry,
        )  # fmt: skip
        for resource in ALARMS:
            self.alarm.labels(resource).set(0)


@dataclass(slots=True)
class Sensed:
    """The latest of every value, for Prometheus."""

    broker: BrokerSample | None = None
    subscriptions: tuple[SubscriptionSample, ...] = ()
    oldest_s: float = 0.0
    publishers: int = 0


Threshold = Callable[[str], float | None]
"""Of an output queue, as its agent has it now."""


class SensedCollector(Collector):
    """Turns the latest sample into gauges."""

    def __init__(
        self,
        sensed: Sensed,
        trips: Callable[[], Mapping[str, ProbedTrip]],
        capacity: Callable[[], float | None],
        threshold: Threshold,
        queues_max: int,
    ) -> None:
        self._sensed = sensed
        self._trips = trips
        self._capacity = capacity
        self._threshold = threshold
        self._queues_max = queues_max

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry for every answer to /metrics."""
        yield from self._links()
        broker = self._sensed.broker
        if broker is None:
            return
        for name, text, value in (
            ("tidegate_broker_in_bytes_per_second", "What comes in", broker.bytes_in_per_s),
            ("tidegate_broker_in_messages_per_second", "What comes in", broker.messages_in_per_s),
            ("tidegate_broker_offered_bytes_per_second", "What the uplink is asked for", broker.bytes_offered_per_s),
            ("tidegate_broker_oldest_message_seconds", "How long the oldest message waits", self._sensed.oldest_s),
        ):
            yield GaugeMetricFamily(name, text, value)
        capacity = self._capacity()
        if capacity is not None:
            text = "What the uplink carries, configured or learned"
            yield GaugeMetricFamily("tidegate_broker_uplink_capacity_bytes_per_second", text, capacity)
        yield from self._queues()

    def _links(self) -> Iterator[GaugeMetricFamily]:
        trip = GaugeMetricFamily("tidegate_link_round_trip_seconds", "Of a probe to another broker", labels=["target"])
        clock = GaugeMetricFamily(
            "tidegate_link_clock_offset_seconds", "How far the clock there is ahead of ours", labels=["target"]
        )
        for name, probed in sorted(self._trips().items()):
            if probed.round_trip_s is not None:
                trip.add_metric([name], probed.round_trip_s)
            if probed.clock_offset_s is not None:
                clock.add_metric([name], probed.clock_offset_s)
        yield trip
        yield clock

    def _queues(self) -> Iterator[GaugeMetricFamily]:
        families = {
            "depth": ("tidegate_output_depth_messages", "Messages that wait for a subscription"),
            "threshold": ("tidegate_output_threshold_messages", "Messages that may wait, by its deadline"),
            "enqueued": ("tidegate_output_enqueued_messages_per_second", "What comes for a subscription"),
            "drained": ("tidegate_output_drained_messages_per_second", "What its subscriber takes"),
            "trip": ("tidegate_output_round_trip_seconds", "To its subscriber and back"),
            "size": ("tidegate_output_message_bytes", "Average message on the wire"),
        }
        gauges = {key: GaugeMetricFamily(name, text, labels=["queue"]) for key, (name, text) in families.items()}
        worst = nsmallest(self._queues_max, self._sensed.subscriptions, key=lambda one: (-one.depth, one.name))
        for sample in worst:
            label = [sample.name]
            gauges["depth"].add_metric(label, sample.depth)
            threshold = self._threshold(sample.name)
            if threshold is not None:
                gauges["threshold"].add_metric(label, threshold)
            gauges["enqueued"].add_metric(label, sample.enqueue_per_s)
            gauges["drained"].add_metric(label, sample.drain_per_s)
            gauges["trip"].add_metric(label, sample.round_trip_s)
            gauges["size"].add_metric(label, sample.message_bytes)
        yield from gauges.values()
