"""The early-warning burst of seeds 000 and 001 §V: what is simulated.

One head, four edges of different width, fifteen topics that differ in publishers, subscribers, size and deadline.
Publishers send from the start; the subscribers of one topic after another register in the first fifteen seconds; at
30 s seven topics double their rate. The numbers are those of seed 000 Tables V and VI; a random workload draws new
ones from the same ranges. Knows nothing of how it is run or judged.

Invariant: the same options give the same scenario; no two publishers publish at quite the same moment, so that no queue
is seen to grow and shrink with the beat of forty publishers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import ceil, isfinite
from types import MappingProxyType
from typing import Final

from tidegate_agents.config import BalancingConfig
from tidegate_agents.load.threshold import ThresholdKind
from tidegate_agents.policy import policy_named
from tidegate_simulator.scenario import (
    ControlSpec,
    EdgeSpec,
    HeadSpec,
    InsightSpec,
    PairSpec,
    PublisherSpec,
    RateChange,
    Scenario,
    SubscriberSpec,
)

NAME: Final = "ews-burst"
HEAD: Final = "bh"
HEAD_MBPS: Final = 20.0
EDGES: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {"b0": (800, 6.5), "b1": (1500, 8.0), "b2": (1300, 5.0), "b3": (1000, 8.0)}
)
"""Seed 000 Table V: CPU in MHz, and the bandwidth, the same in both directions, in Mbps."""

JOINS_S: Final[Mapping[str, float]] = MappingProxyType({"b0": 0.25, "b1": 0.0, "b2": 0.5, "b3": 0.75})
"""When each edge starts, and with it the beat of its samples: machines don't look at their load in step. That of b1
looks at whole seconds, as the paper does."""

MATCHING_PER_MHZ: Final = 10.0
"""Messages per second that one MHz matches. The paper gives no rate; with this one matching is never the bottleneck,
as in the paper, and the faster CPU is the faster broker."""

MESSAGES_PER_S: Final = 50.0
"""Of each publisher."""
REGISTERING_S: Final = 1.0
"""When the subscribers of topic 1 register; those of topic 2 a second later, and so on."""
BURST_S: Final = 30.0
BURST_FACTOR: Final = 2.0
DURATION_S: Final = 90.0
BROKER_TO_BROKER_S: Final = 0.1
TO_SUBSCRIBER_S: Final = 0.2

BURST_FACTOR_MAX: Final = 100.0
DURATION_S_MAX: Final = 3600.0
PREFETCH: Final = 10_000
"""Enough for the fastest topic times the longest wait seen here, so that the uplink alone decides what waits."""
SETTLE_S: Final = 30.0
"""So long, times the burst factor, what still waits at the end may take to arrive."""

SESSION_S_REALISTIC: Final = 3.5
"""About what a session takes over these delays, and therefore the first guess where control takes time: eight messages
between head and edges, three between head and client, attaching, and a marker on its way through the backlog."""

PEER_STABILIZING_S: Final = 1.0
PEER_STABILIZING_MAX_S: Final = 2.0
"""PEER waits one detection period after a session (seed 002 Table 5.2: both are about 30 s there, a second here), and
knows neither a cool-down for clients nor a back-off for brokers."""

SCALE_MIN: Final = 0.05
SCALE_MAX: Final = 10.0

PUBLISHERS: Final = (1, 5)
SUBSCRIBERS: Final = (1, 8)
MESSAGE_BYTES: Final = (200, 1000)
TIGHT_DEADLINES_S: Final = (0.9, 1.8)
"""Of topics 1 to 10."""
WIDE_DEADLINES_S: Final = (30, 100)
"""Of topics 11 to 15."""
RANDOM_LOAD: Final = (0.55, 0.70)
"""The share of all uplinks together that a random workload asks for before the burst; Table VI asks for 0.65.

Drawn from the ranges above alone it would be 1.8 on average, with every broker overloaded from the start, in which
case, as seed 000 §V says, balancing is not useful.
"""
RANDOM_TOPIC_LOAD_MAX: Final = 0.4
"""The share of the widest uplink that one topic asks for before the burst; 0.28 in Table VI."""
CORRELATED_LOAD: Final = 0.15
"""The share of an average uplink that a topic asks for that bursts together with others, about: before the burst edges
are used to 0.55 to 0.70, so that one that triples has room, and two seldom have.
"""
_ROUNDING: Final = 1e-6
"""Of a message: what adding up floats may be off by."""
DRAWS_MAX: Final = 1_000_000
"""About one draw in 6,000 has a load in that range."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One row of seed 000 Table VI."""

    number: int
    publishers: int
    subscribers: int
    deadline_s: float
    message_bytes: int

    @property
    def name(self) -> str:
        return topic_name(self.number)

    @property
    def bytes_per_s(self) -> float:
        """What it asks of an uplink before the burst."""
        return self.publishers * MESSAGES_PER_S * self.subscribers * self.message_bytes

    @property
    def bursts(self) -> bool:
        """Topics 2, 4, …, 14 (seed 001 §5)."""
        return self.number % 2 == 0


TABLE: Final = tuple(
    TopicSpec(number, publishers, subscribers, deadline_s, message_bytes)
    for number, publishers, subscribers, deadline_s, message_bytes in (
        (1, 1, 8, 1.8, 200),
        (2, 2, 2, 1.7, 800),
        (3, 5, 1, 1.6, 1000),
        (4, 4, 2, 1.5, 400),
        (5, 3, 3, 1.4, 200),
        (6, 1, 1, 1.3, 400),
        (7, 2, 5, 1.2, 300),
        (8, 2, 7, 1.1, 400),
        (9, 5, 2, 1.0, 500),
        (10, 4, 4, 0.9, 200),
        (11, 1, 5, 30, 600),
        (12, 3, 2, 60, 400),
        (13, 1, 6, 40, 200),
        (14, 2, 3, 50, 300),
        (15, 4, 5, 100, 200),
    )
)
"""Seed 000 Table VI."""


@dataclass(frozen=True, slots=True)
class EwsOptions:
    """What can be chosen about a run. The defaults are the paper's: its threshold, and control without delay."""

    policy: str = "peer-wd"
    seed: int = 0
    random: bool = False
    """A workload drawn by the seed instead of Table VI."""
    burst_factor: float = BURST_FACTOR
    threshold: ThresholdKind = ThresholdKind.PAPER
    instant: bool = True
    """Whether control messages and attaching take no time."""
    duration_s: float = DURATION_S
    burst_at_s: float = BURST_S
    scale: float = 1.0
    """Rates and bandwidths together times this: nearly the same course with fewer messages from 0.2 on. Below, a depth
    of a few messages is a large part of a threshold: at 0.1 sessions begin and backlogs go sooner, at 0.05 topics are
    placed elsewhere."""
    correlated: bool = False
    """Whether it is a few topics of a size that burst, and not every other one: see `bursting`."""
    insight: bool = False
    """Whether the head is told, before anybody registers, which topics will burst together."""

    def __post_init__(self) -> None:
        policy_named(self.policy)
        if self.seed < 0:
            raise ValueError(f"seed {self.seed} is below 0; use 0 or more")
        _within("burst factor", self.burst_factor, 1.0, BURST_FACTOR_MAX)
        _within("duration in seconds", self.duration_s, 1.0, DURATION_S_MAX)
        _within("start of the burst in seconds", self.burst_at_s, 1.0, DURATION_S_MAX)
        _within("scale", self.scale, SCALE_MIN, SCALE_MAX)
        if self.duration_s <= self.burst_at_s:
            raise ValueError(
                f"the burst would come at {self.burst_at_s:g} s, and the run is over after {self.duration_s:g} s; "
                f"use a duration above {self.burst_at_s:g}, or an earlier burst"
            )

    @property
    def control(self) -> str:
        return "instant" if self.instant else "realistic"


def _within(what: str, value: float, low: float, high: float) -> None:
    if not isfinite(value) or not low <= value <= high:
        raise ValueError(f"{what} {value:g} is not between {low:g} and {high:g}")


def topic_name(number: int) -> str:
    return f"t{number}"


def topic_number(name: str) -> int:
    return int(name.removeprefix("t"))


def subscriber_name(topic: int, index: int) -> str:
    return f"t{topic}-s{index}"


def topic_of_subscriber(subscriber: str) -> int:
    return topic_number(subscriber.partition("-")[0])


def uplink_bytes_per_s(edge: str, scale: float = 1.0) -> float:
    return _bytes_per_s(EDGES[edge][1]) * scale


def topics_of(options: EwsOptions) -> tuple[TopicSpec, ...]:
    """Table VI, or what the seed draws."""
    return random_topics(options.seed) if options.random else TABLE


@lru_cache(maxsize=64)
def random_topics(seed: int) -> tuple[TopicSpec, ...]:
    """Fifteen topics from the paper's ranges that the cluster can carry before the burst."""
    generator = random.Random(f"{NAME} topics {seed}")
    capacity = sum(uplink_bytes_per_s(edge) for edge in EDGES)
    widest = max(uplink_bytes_per_s(edge) for edge in EDGES)
    for _ in range(DRAWS_MAX):
        topics = tuple(_drawn(number, generator) for number in range(1, len(TABLE) + 1))
        share = sum(topic.bytes_per_s for topic in topics) / capacity
        largest = max(topic.bytes_per_s for topic in topics) / widest
        if RANDOM_LOAD[0] <= share <= RANDOM_LOAD[1] and largest <= RANDOM_TOPIC_LOAD_MAX:
            return topics
    raise AssertionError(f"no workload in {DRAWS_MAX} draws of seed {seed}")


def _drawn(number: int, generator: random.Random) -> TopicSpec:
    publishers = generator.randint(*PUBLISHERS)
    subscribers = generator.randint(*SUBSCRIBERS)
    message_bytes = generator.randrange(MESSAGE_BYTES[0], MESSAGE_BYTES[1] + 1, 50)
    if number <= 10:
        deadline_s = round(generator.uniform(*TIGHT_DEADLINES_S), 1)
    else:
        deadline_s = float(generator.randint(*WIDE_DEADLINES_S))
    return TopicSpec(number, publishers, subscribers, deadline_s, message_bytes)


def bursting(options: EwsOptions) -> tuple[int, ...]:
    """The topics that burst: every other one or, correlated, as many of about the same size as there are edges, so that
    each could have one of them.
    """
    topics = topics_of(options)
    if not options.correlated:
        return tuple(topic.number for topic in topics if topic.bursts)
    wanted = CORRELATED_LOAD * sum(uplink_bytes_per_s(edge) for edge in EDGES) / len(EDGES)
    by_size = sorted(topics, key=lambda topic: (abs(topic.bytes_per_s - wanted), topic.number))
    return tuple(sorted(topic.number for topic in by_size[: len(EDGES)]))


def insight(options: EwsOptions) -> InsightSpec:
    """What analytics would have learned from bursts before: which topics rise together."""
    names = [topic_name(number) for number in bursting(options)]
    return InsightSpec(0.0, HEAD, pairs=tuple(PairSpec(one, other) for one, other in combinations(names, 2)))


def scenario(options: EwsOptions) -> Scenario:
    """The experiment as the simulator takes it."""
    topics = topics_of(options)
    return Scenario(
        name=NAME,
        seed=options.seed,
        duration_s=options.duration_s,
        heads=(
            HeadSpec(
                HEAD,
                uplink_bytes_per_s=_bytes_per_s(HEAD_MBPS) * options.scale,
                downlink_bytes_per_s=_bytes_per_s(HEAD_MBPS) * options.scale,
            ),
        ),
        edges=tuple(_edge(name, options.scale) for name in EDGES),
        publishers=_publishers(topics, options),
        subscribers=tuple(
            SubscriberSpec(
                subscriber_name(topic.number, index),
                HEAD,
                topic.name,
                topic.deadline_s,
                joins_s=REGISTERING_S * topic.number,
                prefetch=PREFETCH,
            )
            for topic in topics
            for index in range(1, topic.subscribers + 1)
        ),
        control=ControlSpec(instant=options.instant),
        balancing=_balancing(options),
        insights=(insight(options),) if options.insight else (),
        settle_s=SETTLE_S * options.burst_factor,
    )


def _balancing(options: EwsOptions) -> BalancingConfig:
    config = BalancingConfig(policy=options.policy, seed=options.seed, threshold=options.threshold)
    if options.instant:
        # The paper acts on the first sample, and what it samples has no noise.
        config = replace(config, queue_samples_needed=1, noise_allowance=0.0)
    else:
        config = replace(config, session_s_first=SESSION_S_REALISTIC)
    if options.policy == "peer":
        config = replace(
            config,
            stabilizing_min_s=PEER_STABILIZING_S,
            stabilizing_max_s=PEER_STABILIZING_MAX_S,
            cooldown_s=PEER_STABILIZING_S,
            retry_s=PEER_STABILIZING_S,
            retry_max_s=PEER_STABILIZING_S,
        )
    return config


def _bytes_per_s(mbps: float) -> float:
    return mbps * 1e6 / 8


def _edge(name: str, scale: float) -> EdgeSpec:
    mhz, mbps = EDGES[name]
    return EdgeSpec(
        name,
        HEAD,
        uplink_bytes_per_s=_bytes_per_s(mbps) * scale,
        downlink_bytes_per_s=_bytes_per_s(mbps) * scale,
        matching_per_s=MATCHING_PER_MHZ * mhz * scale,
        head_delay_s=BROKER_TO_BROKER_S,
        client_delay_s=TO_SUBSCRIBER_S,
        joins_s=JOINS_S[name],
    )


def asked_messages(options: EwsOptions) -> int:
    """How many messages all publishers together are to publish, if nothing holds them back."""
    # What was left of a pause shrinks with the rate, so that a message comes with every whole one.
    return sum(
        ceil(spec.messages_due(options.duration_s) - _ROUNDING) for spec in _publishers(topics_of(options), options)
    )


def _publishers(topics: tuple[TopicSpec, ...], options: EwsOptions) -> tuple[PublisherSpec, ...]:
    rate = MESSAGES_PER_S * options.scale
    together = bursting(options)
    made: list[PublisherSpec] = []
    for topic in topics:
        changes = (RateChange(options.burst_at_s, options.burst_factor),) if topic.number in together else ()
        for index in range(1, topic.publishers + 1):
            # Steps of the golden ratio spread any number of phases evenly over one interval.
            phase = (len(made) * 0.6180339887) % 1.0
            made.append(
                PublisherSpec(
                    f"t{topic.number}-p{index}",
                    HEAD,
                    topic.name,
                    rate,
                    float(topic.message_bytes),
                    starts_s=phase / rate,
                    changes=changes,
                )
            )
    return tuple(made)
