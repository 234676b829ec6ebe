"""The demo's story as plain data: an early-warning network in miniature, and the quake that floods it.

Sensors publish at a steady rate; then the ground shakes, the seismometers and the people on the coast send several
times as much, and the edge that serves the sirens is offered more than its uplink carries. The same story is told
twice: live, with the SDK on RabbitMQ, and to the simulator, which says what would have happened had nobody moved.
Knows nothing of how it is run or shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_agents.config import BalancingConfig
from tidegate_brokers.settings.balancing import BalancingOptions
from tidegate_embedded.topology import BrokerSpec, ClusterSpec, Topology
from tidegate_protocol.ids import publisher_id
from tidegate_protocol.names import DELIVER_EXCHANGE
from tidegate_simulator.scenario import EdgeSpec, HeadSpec, PublisherSpec, RateChange, Scenario, SubscriberSpec

from ..lean.codec import delivery_overhead
from ..live.workload import CONFIRM_BYTES, INCARNATION

CLUSTER: Final = "coast"
HEAD: Final = "coast-head"
TYPICAL_SEQUENCE: Final = 1_000
SESSION_S: Final = 3.0
"""About what a session takes on one busy machine; later ones are measured."""
LINK_DELAY_S: Final = 0.02
CLIENT_DELAY_S: Final = 0.05
PREFETCH: Final = 2_000


@dataclass(frozen=True, slots=True)
class Feed:
    """Publishers of one topic: how often, how much, and how many times as much once the ground shakes."""

    name: str
    topic: str
    rate_per_s: float
    wire_bytes: int
    """What one delivery takes of an edge's uplink."""
    burst_factor: float = 1.0

    @property
    def body_bytes(self) -> int:
        """What is left of it for the body: the SDK writes ids, times and topics, AMQP its frames."""
        message_id = f"{publisher_id(self.name, INCARNATION)}:{self.topic}:{TYPICAL_SEQUENCE}"
        confirm = CONFIRM_BYTES // max(sum(audience.count for audience in AUDIENCES if audience.topic == self.topic), 1)
        return self.wire_bytes - delivery_overhead(DELIVER_EXCHANGE, self.topic, message_id) - confirm


@dataclass(frozen=True, slots=True)
class Audience:
    """Subscribers of one topic, and how old a message may be when it reaches them."""

    name: str
    topic: str
    deadline_s: float
    count: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{number}" for number in range(1, self.count + 1))


EDGES: Final = {"north": 70_000.0, "south": 60_000.0, "cape": 40_000.0}
"""What each edge's uplink carries, in bytes per second."""

FEEDS: Final = (
    Feed("seismometers", "quake.alert", 20.0, 400, burst_factor=1.55),
    Feed("tide-gauges", "tide.level", 20.0, 400),
    Feed("buoys", "buoy.pressure", 20.0, 500),
    Feed("citizens", "social.report", 10.0, 600, burst_factor=1.5),
)
AUDIENCES: Final = (
    Audience("siren", "quake.alert", 1.0, 4),
    Audience("forecast", "tide.level", 2.0, 3),
    Audience("wave-model", "buoy.pressure", 1.5, 2),
    Audience("crisis-desk", "social.report", 10.0, 3),
)
JOIN_EVERY_S: Final = 1.5
"""Subscribers of one topic after another register, so that each finds the load of those before it."""
JOINING_S: Final = 1.0 + JOIN_EVERY_S * len(AUDIENCES)
"""Until all have."""


def feed_of(topic: str) -> Feed:
    return next(feed for feed in FEEDS if feed.topic == topic)


def topology() -> Topology:
    """The cluster to start."""
    edges = tuple(
        BrokerSpec(name=name, uplink_bytes_per_s=uplink, link_delay_s=LINK_DELAY_S, client_delay_s=CLIENT_DELAY_S)
        for name, uplink in EDGES.items()
    )
    return Topology(
        cluster=(ClusterSpec(name=CLUSTER, head=BrokerSpec(name=HEAD), edge=edges),),
        balancing=BalancingOptions.model_validate({"session_s_first": SESSION_S}),
    )


def scenario(policy: str, burst_s: float, duration_s: float) -> Scenario:
    """The same to the simulator."""
    return Scenario(
        name="demo",
        seed=0,
        duration_s=duration_s,
        heads=(HeadSpec(HEAD),),
        edges=tuple(
            EdgeSpec(
                name,
                HEAD,
                uplink_bytes_per_s=uplink,
                head_delay_s=LINK_DELAY_S,
                client_delay_s=CLIENT_DELAY_S,
            )
            for name, uplink in EDGES.items()
        ),
        publishers=tuple(
            PublisherSpec(
                feed.name,
                HEAD,
                feed.topic,
                feed.rate_per_s,
                float(feed.wire_bytes),
                changes=(RateChange(burst_s, feed.burst_factor),),
            )
            for feed in FEEDS
        ),
        subscribers=tuple(
            SubscriberSpec(
                name, HEAD, audience.topic, audience.deadline_s, joins_s=1.0 + JOIN_EVERY_S * place, prefetch=PREFETCH
            )
            for place, audience in enumerate(AUDIENCES)
            for name in audience.names
        ),
        balancing=BalancingConfig(policy=policy, session_s_first=SESSION_S),
    )
