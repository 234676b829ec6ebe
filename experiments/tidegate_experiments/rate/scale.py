"""How the cost of balancing grows with the number of edges: a scenario of any size, its run, and what it came to.

Clusters of ten edges, their heads in a tree. A cluster has a hundred topics; every tenth of them is published in a
neighbouring cluster. Topics differ in rate, size, subscribers and deadline, by the seed, and are placed by the rule
that a HOM places by. In every tenth cluster, at `burst_s`, every second topic of two edges bursts until those edges
are offered `BURST_UTILIZATION` of what their uplinks carry.

Subscribers have their places from before (`FlowWorld.adopt`): asking a HOM for one costs about a quarter of a
millisecond of this machine, which for a million of them would be most of a run. Brokers are started as after a power
cut and learn what there is from their RabbitMQ, as production does.
"""

from __future__ import annotations

import gc
import random
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any, Final

from tidegate_agents.config import BalancingConfig
from tidegate_agents.policy.placement import EdgeView, ExpectedLoad, place
from tidegate_protocol.decisions import Decision, SessionCandidates, SessionEnded, SessionRequested
from tidegate_protocol.messages import Subscription
from tidegate_simulator.configs import edge_capacity
from tidegate_simulator.errors import ScenarioError
from tidegate_simulator.observer import Observer
from tidegate_simulator.scenario import EdgeSpec, HeadSpec, PublisherSpec, RateChange, Scenario, SubscriberSpec

from ..progress import Report, unseen
from .world import FlowOptions, FlowWorld

EDGES_PER_CLUSTER: Final = 10
TOPICS_PER_EDGE: Final = 10
TOPICS_PER_PUBLISHER: Final = 10
REMOTE_EVERY: Final = 10
BURST_CLUSTER_EVERY: Final = 10
BURST_EDGES: Final = 2
HEADS_PER_HEAD: Final = 4
"""Children of each head in the tree."""

UPLINK_BYTES_PER_S: Final = 1_250_000.0
UTILIZATION: Final = 0.6
"""What uplinks are offered before the burst, on average."""
BURST_UTILIZATION: Final = 1.1
SPREAD: Final = (0.5, 1.5)
"""Rates and numbers of subscribers, against their mean."""
MESSAGE_BYTES: Final = (200, 1000)
TIGHT_DEADLINES_S: Final = (1.0, 2.0)
WIDE_DEADLINES_S: Final = (30, 100)
HEAD_DELAY_S: Final = 0.005
CLIENT_DELAY_S: Final = 0.02
NEIGHBOUR_DELAY_S: Final = 0.01
SETTLED_S: Final = 10.0
"""By then every agent has adopted what it found, and all routes are live."""
EXPIRES_S: Final = 600

EDGES_MAX: Final = 2_500
"""A head names at most so many clusters in one message."""
SUBSCRIPTIONS_PER_EDGE_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """One size."""

    edges: int = 10
    subscriptions_per_edge: int = 1_000
    duration_s: float = 600.0
    burst_s: float = 60.0
    seed: int = 0
    policy: str = "peer-wd"

    def __post_init__(self) -> None:
        if self.edges < EDGES_PER_CLUSTER or self.edges % EDGES_PER_CLUSTER or self.edges > EDGES_MAX:
            remedy = f"use a multiple of {EDGES_PER_CLUSTER}, at most {EDGES_MAX}"
            raise ScenarioError("edges", f"is {self.edges}", remedy)
        if not TOPICS_PER_EDGE <= self.subscriptions_per_edge <= SUBSCRIPTIONS_PER_EDGE_MAX:
            remedy = f"use {TOPICS_PER_EDGE} to {SUBSCRIPTIONS_PER_EDGE_MAX}"
            raise ScenarioError("subscriptions_per_edge", f"is {self.subscriptions_per_edge}", remedy)
        if not isfinite(self.duration_s):
            remedy = f"use more than {self.burst_s:g} seconds, when the burst comes"
            raise ScenarioError("duration_s", f"is {self.duration_s:g}", remedy)
        if not SETTLED_S < self.burst_s < self.duration_s:
            raise ScenarioError("burst_s", f"is {self.burst_s:g}", f"use {SETTLED_S:g} up to the duration")

    @property
    def clusters(self) -> int:
        return self.edges // EDGES_PER_CLUSTER


@dataclass(frozen=True, slots=True)
class _Topic:
    name: str
    head: str
    """Where it is published."""
    per_s: float
    message_bytes: float
    subscribers: int
    deadline_s: float

    @property
    def offered_bytes_per_s(self) -> float:
        return self.per_s * self.message_bytes * self.subscribers


@dataclass(frozen=True, slots=True)
class ScaleScenario:
    """A scenario, and where its subscribers are at the start."""

    scenario: Scenario
    placed: tuple[tuple[str, int, int], ...]
    """Edge, and the first and last (not included) of the subscribers placed there."""

    def subscriptions(self) -> Iterator[tuple[str, Subscription]]:
        subscribers = self.scenario.subscribers
        for edge, first, last in self.placed:
            for spec in subscribers[first:last]:
                yield (
                    edge,
                    Subscription(
                        subscriber=spec.name,
                        number=0,
                        pattern=spec.pattern,
                        deadline_us=round(spec.deadline_s * 1e6),
                        expires_s=EXPIRES_S,
                    ),
                )


def scale_scenario(options: ScaleOptions) -> ScaleScenario:
    """The scenario of one size."""
    heads = [_head(number, options.clusters) for number in range(options.clusters)]
    edges = [_edge(cluster, number) for cluster in range(options.clusters) for number in range(EDGES_PER_CLUSTER)]
    publishers: list[PublisherSpec] = []
    subscribers: list[SubscriberSpec] = []
    placed: list[tuple[str, int, int]] = []
    for cluster, head in enumerate(heads):
        topics = _topics(cluster, head, options)
        on_edge = _place(topics, edges[cluster * EDGES_PER_CLUSTER : (cluster + 1) * EDGES_PER_CLUSTER])
        factors = _burst_factors(on_edge) if cluster % BURST_CLUSTER_EVERY == 0 else {}
        for number, topic in enumerate(topics):
            changes = (RateChange(options.burst_s, factors[topic.name]),) if topic.name in factors else ()
            name = f"p-{topic.head}-{head.name}-{number // TOPICS_PER_PUBLISHER}"
            publishers.append(
                PublisherSpec(name, topic.head, topic.name, topic.per_s, topic.message_bytes, changes=changes)
            )
        for edge, mine in on_edge.items():
            first = len(subscribers)
            for topic in mine:
                subscribers += [
                    SubscriberSpec(f"s{number:07d}", head.name, topic.name, topic.deadline_s)
                    for number in range(len(subscribers), len(subscribers) + topic.subscribers)
                ]
            placed.append((edge, first, len(subscribers)))
    scenario = Scenario(
        name=f"scale-{options.edges}",
        seed=options.seed,
        duration_s=options.duration_s,
        heads=tuple(heads),
        edges=tuple(edges),
        publishers=tuple(publishers),
        subscribers=tuple(subscribers),
        # Depths of a fluid have no noise that could be allowed for.
        balancing=BalancingConfig(policy=options.policy, seed=options.seed, noise_allowance=0.0),
    )
    return ScaleScenario(scenario, tuple(placed))


def _head(number: int, clusters: int) -> HeadSpec:
    children = range(number * HEADS_PER_HEAD + 1, min((number + 1) * HEADS_PER_HEAD + 1, clusters))
    neighbours = [_head_name(child) for child in children]
    if number:
        neighbours.append(_head_name((number - 1) // HEADS_PER_HEAD))
    return HeadSpec(_head_name(number), tuple(sorted(neighbours)), neighbour_delay_s=NEIGHBOUR_DELAY_S)


def _head_name(number: int) -> str:
    return f"h{number:03d}"


def _edge(cluster: int, number: int) -> EdgeSpec:
    return EdgeSpec(
        f"{_head_name(cluster)}-e{number}",
        _head_name(cluster),
        uplink_bytes_per_s=UPLINK_BYTES_PER_S,
        downlink_bytes_per_s=UPLINK_BYTES_PER_S,
        head_delay_s=HEAD_DELAY_S,
        client_delay_s=CLIENT_DELAY_S,
    )


def _topics(cluster: int, head: HeadSpec, options: ScaleOptions) -> list[_Topic]:
    """The topics of one cluster: their subscribers are as many as asked for, their load what edges are to carry."""
    generator = random.Random(f"scale topics {options.seed} {cluster}")
    count = EDGES_PER_CLUSTER * TOPICS_PER_EDGE
    shares = [generator.uniform(*SPREAD) for _ in range(count)]
    wanted = EDGES_PER_CLUSTER * options.subscriptions_per_edge
    numbers = [max(1, int(share / sum(shares) * wanted)) for share in shares]
    numbers[0] += wanted - sum(numbers)
    topics = []
    for number, subscribers in enumerate(numbers):
        remote = number % REMOTE_EVERY == REMOTE_EVERY - 1 and head.neighbours
        tight = number % 2 == 0
        topics.append(
            _Topic(
                name=f"{head.name}.t{number:03d}",
                head=head.neighbours[0] if remote else head.name,
                per_s=generator.uniform(*SPREAD),
                message_bytes=float(generator.randrange(MESSAGE_BYTES[0], MESSAGE_BYTES[1] + 1, 50)),
                subscribers=subscribers,
                deadline_s=(
                    round(generator.uniform(*TIGHT_DEADLINES_S), 1) if tight else generator.randint(*WIDE_DEADLINES_S)
                ),
            )
        )
    # One factor for all rates brings the load to what it is to be, whatever was drawn.
    offered = sum(topic.offered_bytes_per_s for topic in topics)
    factor = UTILIZATION * UPLINK_BYTES_PER_S * EDGES_PER_CLUSTER / offered
    return [replace(topic, per_s=topic.per_s * factor) for topic in topics]


def _place(topics: list[_Topic], edges: list[EdgeSpec]) -> dict[str, list[_Topic]]:
    """Where a HOM would put them, one topic with all its subscribers after another."""
    expected = {topic.name: ExpectedLoad(topic.per_s * topic.message_bytes, topic.per_s) for topic in topics}
    patterns: dict[str, dict[str, int]] = {edge.name: {} for edge in edges}
    on_edge: dict[str, list[_Topic]] = {edge.name: [] for edge in edges}
    for topic in topics:
        views = [
            EdgeView(edge.name, edge_capacity(edge), sum(patterns[edge.name].values()), patterns[edge.name])
            for edge in edges
        ]
        placement = place(topic.name, views, subscribers=topic.subscribers, expected=expected)
        assert placement is not None
        patterns[placement.edge][topic.name] = topic.subscribers
        on_edge[placement.edge].append(topic)
    return on_edge


def _burst_factors(on_edge: dict[str, list[_Topic]]) -> dict[str, float]:
    """How many times as fast every second topic of the first edges becomes."""
    factors: dict[str, float] = {}
    for edge in sorted(on_edge)[:BURST_EDGES]:
        bursting = on_edge[edge][::2]
        steady = sum(topic.offered_bytes_per_s for topic in on_edge[edge][1::2])
        usual = sum(topic.offered_bytes_per_s for topic in bursting)
        factor = (BURST_UTILIZATION * UPLINK_BYTES_PER_S - steady) / usual
        factors |= {topic.name: max(factor, 1.0) for topic in bursting}
    return factors


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """What a run came to. Times of this machine end in `_wall_s` or `_cpu_s`, the others are virtual."""

    edges: int
    clusters: int
    subscriptions: int
    simulated_s: float
    sessions: int
    sessions_after_burst: int
    """Those that began after it."""
    migrations: int
    balanced_s: float | None
    """From the burst until the last of the sessions that began after it has ended; None if none has."""
    settling_s: float | None
    """From the burst until the backlog of an edge is gone: the median of those that had one; None if none had."""
    settling_max_s: float | None
    """The same for the last of them. An edge left with an uplink that is nearly full takes long, in time."""
    deliveries: int
    late: int
    wait_longest_s: float
    control_messages: int
    control_messages_per_edge_per_s: float
    agent_cpu_s_per_s: float
    """What all agents together take of one core per simulated second."""
    agent_cpu_ms_per_edge_per_s: float
    samples: int
    """Subscriptions looked at; without rest it would be every one in every period."""
    heartbeats_differing: int
    boot_wall_s: float
    """Until all agents know what there is (virtual time `SETTLED_S`)."""
    wall_s: float
    cpu_s: float
    """The same on a machine that has nothing else to do: what of it was this process's."""
    peak_memory_mb: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Sessions(Observer):
    """When the last of the sessions ended that began after the burst: what came before it was about something else."""

    def __init__(self, options: ScaleOptions) -> None:
        self._burst_s = options.burst_s
        self._heads = {_head_name(number) for number in range(options.clusters)}
        self._begun: set[str] = set()
        self.count = 0
        self.last_ended_s: float | None = None

    def decided(self, broker: str, decision: Decision, now: float) -> None:
        if isinstance(decision, SessionRequested) and now >= self._burst_s:
            self._begun.add(decision.session)
        elif decision.session not in self._begun or broker not in self._heads:
            return
        elif isinstance(decision, SessionCandidates):
            self.count += 1
        elif isinstance(decision, SessionEnded):
            self.last_ended_s = now


def run_scale(options: ScaleOptions, report: Report = unseen) -> ScaleResult:
    """Run one size and measure it."""
    label, end = f"{options.edges} edges", int(options.duration_s)
    began, began_cpu_s = time.perf_counter(), time.process_time()
    collecting = gc.isenabled()
    # Millions of objects live from the start to the end: looking through them for garbage would take longer than the
    # run, and reference counts free nearly all there is.
    gc.collect()
    gc.disable()
    try:
        prepared = scale_scenario(options)
        sessions = _Sessions(options)
        world = FlowWorld(prepared.scenario, FlowOptions(sampled_from_s=SETTLED_S, staggered=True), (sessions,))
        world.adopt(prepared.subscriptions())
        world.run(lambda now: report(label, int(now), end), until_s=SETTLED_S)
        booted, booted_cpu_s = time.perf_counter(), time.process_time()
        boot_agent_s, boot_messages = world.agent_s, world.control.kinds.total()
        world.run(lambda now: report(label, int(now), end))
        wall_s, cpu_s = time.perf_counter() - booted, time.process_time() - booted_cpu_s
        # Asking for the processor time of every single step would cost more than many of them: agents are taken to
        # have had the same share of it as the whole.
        agent_s = (world.agent_s - boot_agent_s) * cpu_s / wall_s
        return replace(
            _result(options, world, sessions, agent_s, boot_messages),
            boot_wall_s=round(booted - began, 1),
            wall_s=round(time.perf_counter() - began, 1),
            cpu_s=round(time.process_time() - began_cpu_s, 1),
        )
    finally:
        if collecting:
            gc.enable()


def _result(
    options: ScaleOptions, world: FlowWorld, sessions: _Sessions, agent_s: float, boot_messages: int
) -> ScaleResult:
    """All but the times of this machine. Agent time and control messages are those after the start: what a system
    costs that runs.
    """
    delivered, sent = world.delivered(), world.control.kinds
    running_s = options.duration_s - SETTLED_S
    messages = sent.total() - boot_messages
    ended_s = sessions.last_ended_s
    cleared_s = [
        broker.plane.uplink.delivered.backlog_cleared_s - options.burst_s
        for broker in world.edges
        if broker.plane.uplink.delivered.backlog_cleared_s > options.burst_s
    ]
    return ScaleResult(
        edges=options.edges,
        clusters=options.clusters,
        subscriptions=len(world.scenario.subscribers),
        simulated_s=options.duration_s,
        sessions=sent["balance-candidates"],
        sessions_after_burst=sessions.count,
        migrations=world.clients.moved,
        balanced_s=None if ended_s is None else round(ended_s - options.burst_s, 2),
        settling_s=round(statistics.median(cleared_s), 2) if cleared_s else None,
        settling_max_s=round(max(cleared_s), 2) if cleared_s else None,
        deliveries=round(delivered.messages),
        late=round(delivered.late),
        wait_longest_s=round(delivered.wait_longest_s, 3),
        control_messages=messages,
        control_messages_per_edge_per_s=round(messages / options.edges / running_s, 2),
        agent_cpu_s_per_s=round(agent_s / running_s, 4),
        agent_cpu_ms_per_edge_per_s=round(1000.0 * agent_s / running_s / options.edges, 3),
        samples=world.sampling.samples,
        heartbeats_differing=world.sampling.heartbeats_differing,
        boot_wall_s=0.0,
        wall_s=0.0,
        cpu_s=0.0,
        # Linux tells it in units of 1,024 bytes.
        peak_memory_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6),
    )
