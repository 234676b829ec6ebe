"""What is simulated: brokers, links, clients, what they do over time, and what goes wrong.

A scenario is plain data, complete and frozen: together with its seed it decides every step of a run. `check` says
what is impossible about one before anything runs. Knows nothing of how a run is carried out.

Times are seconds of virtual time since the start, sizes bytes on the wire, delays one way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

from tidegate_agents.config import BalancingConfig

EVERYBODY: Final = "*"
"""The target of a control fault that hits all messages."""


class Arrivals(StrEnum):
    """How a publisher spaces its messages."""

    REGULAR = "regular"
    POISSON = "poisson"


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """A head; `neighbours` are named by both sides, `neighbour_delay_s` is the delay between them."""

    name: str
    neighbours: tuple[str, ...] = ()
    uplink_bytes_per_s: float | None = None
    downlink_bytes_per_s: float | None = None
    neighbour_delay_s: float = 0.1


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """An edge of `head`. Its RabbitMQ and its agent run from `joins_s` on."""

    name: str
    head: str
    uplink_bytes_per_s: float | None = None
    downlink_bytes_per_s: float | None = None
    matching_per_s: float | None = None
    head_delay_s: float = 0.1
    client_delay_s: float = 0.2
    joins_s: float = 0.0
    capacity_known: bool = True
    """Whether the agent is told the capacities, or has to learn them."""


@dataclass(frozen=True, slots=True)
class RateChange:
    """From `at_s` on the publisher sends `factor` times its usual rate."""

    at_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class PublisherSpec:
    """A publisher of one topic. Nobody publishes after the run's `duration_s`."""

    name: str
    head: str
    topic: str
    messages_per_s: float
    message_bytes: float
    arrivals: Arrivals = Arrivals.REGULAR
    starts_s: float = 0.0
    stops_s: float | None = None
    delay_s: float = 0.0
    changes: tuple[RateChange, ...] = ()
    obedient: bool = True
    """Whether it keeps to what a throttle order says, as the SDK does; a foreign client does not."""
    contents: int | None = None
    """None: its messages carry ids of ours. Otherwise it is a plain AMQP publisher: its messages carry none, and their
    contents repeat after so many, or never (0)."""
    claims: str | None = None
    """The publisher whose ids its messages carry, from an account of its own: it is hostile then, and owed nothing."""
    lies_about: str | None = None
    """A topic of others that it reports to publish on, more than any line carries and from the end of the world."""

    def ends_s(self, duration_s: float) -> float:
        """When it stops publishing."""
        return duration_s if self.stops_s is None else min(self.stops_s, duration_s)

    def rates(self, duration_s: float) -> tuple[tuple[float, float], ...]:
        """From when on it sends how many messages per second, in the order of time; the last rate is 0."""
        ends_s = self.ends_s(duration_s)
        steps = [(self.starts_s, self.messages_per_s)]
        steps += [(max(one.at_s, self.starts_s), self.messages_per_s * one.factor) for one in self.changes]
        return (*(step for step in steps if step[0] < ends_s), (ends_s, 0.0))

    def messages_due(self, duration_s: float) -> float:
        """About how many messages it sends."""
        return sum((until_s - at_s) * per_s for (at_s, per_s), (until_s, _) in pairwise(self.rates(duration_s)))


@dataclass(frozen=True, slots=True)
class SubscriberSpec:
    """A subscriber with one subscription, through the head of its cluster."""

    name: str
    head: str
    pattern: str
    deadline_s: float
    joins_s: float = 0.0
    leaves_s: float | None = None
    """When it unsubscribes."""
    takes_per_s: float | None = None
    """How many messages per second its application manages; None: any."""
    prefetch: int = 1_000


class FaultKind(StrEnum):
    """What can go wrong. `target` of a `Fault` names whom it hits."""

    CRASH = "crash"
    """The process of a broker (head or edge) is killed; its RabbitMQ goes on. Back at `until_s`, state lost."""
    FREEZE = "freeze"
    """The process stops and goes on at `until_s` with its state: what was sent to it meanwhile has expired."""
    EDGE_DOWN = "edge-down"
    """The edge's RabbitMQ is down too: consumers lose their connections, its link stands still. Durable queues are
    there again at `until_s`."""
    LINK_DOWN = "link-down"
    """The links that lead to `target` carry nothing until `until_s`; what was unconfirmed is sent again."""
    CONTROL = "control"
    """Control messages from or to `target`, or `EVERYBODY`, are lost, doubled and delayed, each with a probability."""
    CLOCK = "clock"
    """The clock of `target` jumps by `amount` seconds and runs by the share `drift` faster from then on."""
    CLIENT_CRASH = "client-crash"
    """A subscriber's process is killed and started again at `until_s`, without its memory."""
    CLIENT_CUT = "client-cut"
    """A subscriber loses its connection to its edge; it reconnects by itself after `until_s`."""
    PUBLISHER_CUT = "publisher-cut"
    """A publisher loses its connection: what is unconfirmed is sent again."""
    DRAIN = "drain"
    """An operator drains the edge at `at_s` and takes that back at `until_s`."""


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: FaultKind
    target: str
    until_s: float | None = None
    loss: float = 0.0
    duplication: float = 0.0
    delay_max_s: float = 0.0
    amount: float = 0.0
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class PairSpec:
    """Two topics that an insight says rise together."""

    topic_a: str
    topic_b: str
    coefficient: float = 1.0


@dataclass(frozen=True, slots=True)
class ForecastSpec:
    """The rate that an insight says a topic will have."""

    topic: str
    level_per_s: float
    trend_per_s: float = 0.0
    error_per_s: float = 0.0
    horizon_s: float = 3_600.0


@dataclass(frozen=True, slots=True)
class UplinkSpec:
    """What an insight says the uplink of an edge carries."""

    edge: str
    uplink_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class InsightSpec:
    """An insight that an operator publishes to `head` at `at_s`, right or wrong."""

    at_s: float
    head: str
    pairs: tuple[PairSpec, ...] = ()
    forecasts: tuple[ForecastSpec, ...] = ()
    uplinks: tuple[UplinkSpec, ...] = ()
    made_at_s: float = 0.0
    """By the clock of whoever made it."""
    age_s: float = 0.0
    valid_for_s: float = 3_600.0
    cluster: str | None = None
    """None: that of the head."""
    withdraws: bool = False


@dataclass(frozen=True, slots=True)
class ControlSpec:
    """How control messages travel. `instant` is the assumption of seed 000: no time, for attaching neither."""

    instant: bool = False
    attach_round_trips: float = 1.0
    """How many round trips attaching to a queue takes."""
    jitter_s: float = 0.0
    """Up to so much is added to each message's delay, so that messages may overtake each other."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything a run depends on."""

    name: str
    seed: int
    duration_s: float
    heads: tuple[HeadSpec, ...]
    edges: tuple[EdgeSpec, ...]
    publishers: tuple[PublisherSpec, ...] = ()
    subscribers: tuple[SubscriberSpec, ...] = ()
    faults: tuple[Fault, ...] = ()
    control: ControlSpec = field(default_factory=ControlSpec)
    balancing: BalancingConfig = field(default_factory=BalancingConfig)
    insights: tuple[InsightSpec, ...] = ()
    settle_s: float = 30.0
    """After `duration_s` publishers stop and faults are over; so much longer it runs until all is at rest."""
