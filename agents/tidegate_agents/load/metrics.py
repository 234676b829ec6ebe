"""What load is made of: samples of a broker and of its subscriptions, and the metrics computed from them.

Invariants:

- everything in one sample was seen at one moment: a depth taken with the rates of another moment lies;
- rates are those at which messages are *enqueued*. What is offered to an uplink may therefore be more than it
  carries, and its utilization may pass 1: that is how an overload shows before anything is late;
- a metric whose capacity is not known is None, never 0: nothing is claimed about it;
- one infinity would stay in a smoothed rate for ever, so that whoever smooths passes over what is not `finite`.

The metrics are those of seed 000, Table I (heads) and Table II (edges). Knows no threshold and judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tidegate_protocol.messages import Capacity
from tidegate_protocol.operations import Role as Role
from tidegate_protocol.parts import Metric as Metric

UTILIZATIONS: Final[Mapping[Role, tuple[Metric, ...]]] = MappingProxyType(
    {
        Role.HEAD: (Metric.UPLINK, Metric.DOWNLINK),
        Role.EDGE: (Metric.UPLINK, Metric.DOWNLINK, Metric.MATCHING),
    }
)
"""The metrics that a broker has one value of; queue depth has one per subscription."""


@dataclass(frozen=True, slots=True)
class BrokerSample:
    """The load of one broker as a whole. `capacity` may be configured or learned."""

    broker: str
    role: Role
    bytes_in_per_s: float = 0.0
    bytes_offered_per_s: float = 0.0
    """What would go out if the uplink were wide enough."""
    messages_in_per_s: float = 0.0
    capacity: Capacity = field(default_factory=Capacity)

    @property
    def finite(self) -> bool:
        return math.isfinite(self.bytes_in_per_s + self.bytes_offered_per_s + self.messages_in_per_s)


@dataclass(frozen=True, slots=True)
class SubscriptionSample:
    """The load of one subscription on its edge. `name` is unique on that edge."""

    name: str
    pattern: str
    enqueue_per_s: float
    """λ, in messages per second."""
    drain_per_s: float
    """μ, in messages per second: what was acknowledged."""
    ready: float
    unacknowledged: float
    round_trip_s: float
    message_bytes: float
    """The average on the wire."""
    attached: bool = True
    """Whether a subscriber takes from it. What waits for one that is away is late through nobody's load."""

    @property
    def depth(self) -> float:
        """How many messages *wait*: what is merely in flight to the subscriber, or back from it as an
        acknowledgement, is taken off. On a healthy queue that is all of it.
        """
        return max(self.ready + self.unacknowledged - self.drain_per_s * self.round_trip_s, 0.0)

    @property
    def offered_bytes_per_s(self) -> float:
        """What this subscription asks of the uplink."""
        return self.enqueue_per_s * self.message_bytes


@dataclass(frozen=True, slots=True)
class PublisherSample:
    """What one publisher sent on one topic in the last period."""

    publisher: str
    topic: str
    messages_per_s: float
    message_bytes: float
    round_trip_s: float = 0.0
    """From publishing until the confirm."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.messages_per_s * self.message_bytes + self.round_trip_s)


@dataclass(frozen=True, slots=True)
class AccountSample:
    """What all connections of one account send to a head, as its RabbitMQ counts it."""

    account: str
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    """On the wire, control messages and acknowledgements included: never less than what is published."""
    useless_per_s: float = 0.0
    """Messages that no queue took."""
    connections: int = 0
    published_per_s: float = 0.0
    """Of its messages, those that may be publications: the others are control messages."""


def offered_bytes_per_s(subscriptions: Iterable[SubscriptionSample]) -> float:
    """What all subscriptions of an edge ask of its uplink, those in migration too: they do use it."""
    return sum(subscription.offered_bytes_per_s for subscription in subscriptions)


def utilizations(sample: BrokerSample) -> dict[Metric, float | None]:
    """The metrics of seed 000, Tables I and II, for this kind of broker; None where a capacity is unknown."""
    capacity = sample.capacity
    parts = {
        Metric.UPLINK: (sample.bytes_offered_per_s, capacity.uplink_bytes_per_s),
        Metric.DOWNLINK: (sample.bytes_in_per_s, capacity.downlink_bytes_per_s),
        Metric.MATCHING: (sample.messages_in_per_s, capacity.matching_per_s),
    }
    return {metric: utilization(*parts[metric]) for metric in UTILIZATIONS[sample.role]}


def utilization(used: float, capacity: float | None) -> float | None:
    """The share of a capacity that is used or asked for."""
    return None if capacity is None else used / capacity


def carried_share(sample: BrokerSample) -> float:
    """The share of what it offers that each flow gets through a FIFO uplink: the same for all of them.

    1 where the uplink is wide enough, or not known to be too narrow.
    """
    uplink = sample.capacity.uplink_bytes_per_s
    if uplink is None or sample.bytes_offered_per_s <= uplink:
        return 1.0
    return uplink / sample.bytes_offered_per_s
