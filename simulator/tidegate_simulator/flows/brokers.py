"""The brokers of a run in rate mode: the process of each with its agent, and what its RabbitMQ keeps.

Made from a scenario, with limits wide enough for any that fits into memory. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate_agents.config import BalancingConfig, EdgeConfig, HeadConfig, NeighbourConfig
from tidegate_agents.edge import EdgeAgent
from tidegate_agents.head import HeadAgent
from tidegate_protocol.balancing import PieLocal
from tidegate_protocol.messages import Capacity

from ..scenario import EdgeSpec, HeadSpec, Scenario
from .planes import EdgePlane, HeadPlane, Reach, edge_capacity, head_capacity
from .sources import Sources

PENDING_MAX: Final = 50_000
SUBSCRIPTIONS_MAX: Final = 2_000_000
PATTERNS_MAX: Final = 1_000_000
EDGES_MAX: Final = 10_000
_INCARNATION: Final = 1


@dataclass(eq=False, slots=True)
class Broker:
    """One broker: either `edge` or `head` is its data plane."""

    name: str
    head_name: str
    """The head of its cluster, or itself."""
    agent: HeadAgent | EdgeAgent
    delay_s: float
    """To the head's RabbitMQ; 0 for the head."""
    edge: EdgePlane | None = None
    head: HeadPlane | None = None
    peers: dict[float, list[Broker]] = field(default_factory=dict)
    """The other brokers of the cluster, by how long a report takes to them."""
    phase_s: float = 0.0
    """When in each period it is sampled."""
    ticks: int = 0
    """How many periods have passed at its last or next sample."""
    timers: dict[str, int] = field(default_factory=dict)
    last_report: tuple[int, PieLocal] | None = None
    """The load report it sent last, and after how many periods."""
    resting: bool = False
    stirred: bool = False
    """Whether anything has changed since it was first at rest."""
    token: int = 0
    """Tells a sample that is due from one that was given up."""

    @property
    def plane(self) -> EdgePlane:
        assert self.edge is not None, f"{self.name} is no edge"
        return self.edge


def cluster_name(head: str) -> str:
    return f"cluster-{head}"


def make_brokers(scenario: Scenario, sources: Sources, reach: Reach, *, staggered: bool) -> dict[str, Broker]:
    """All brokers of a scenario, heads first, each told who else is in its cluster."""
    brokers: dict[str, Broker] = {}
    for head in sorted(scenario.heads, key=lambda spec: spec.name):
        plane = HeadPlane(head, sources, reach)
        brokers[head.name] = Broker(head.name, head.name, _head_agent(head, scenario.balancing), 0.0, head=plane)
    for edge in sorted(scenario.edges, key=lambda spec: spec.name):
        agent = _edge_agent(edge, scenario)
        brokers[edge.name] = Broker(edge.name, edge.head, agent, edge.head_delay_s, edge=EdgePlane(edge))
    members: dict[str, list[Broker]] = {}
    for broker in brokers.values():
        members.setdefault(broker.head_name, []).append(broker)
    for place, broker in enumerate(brokers.values()):
        for other in members[broker.head_name]:
            if other is not broker:
                delay_s = 0.0 if scenario.control.instant else broker.delay_s + other.delay_s
                broker.peers.setdefault(delay_s, []).append(other)
        if staggered:
            broker.phase_s = scenario.balancing.period_s * place / len(brokers)
    return brokers


def _head_agent(spec: HeadSpec, balancing: BalancingConfig) -> HeadAgent:
    return HeadAgent(
        HeadConfig(
            spec.name,
            cluster_name(spec.name),
            _INCARNATION,
            tuple(NeighbourConfig(name, f"amqp://{name}") for name in sorted(spec.neighbours)),
            capacity=head_capacity(spec),
            publisher_url=f"amqp://{spec.name}",
            balancing=balancing,
            edges_max=EDGES_MAX,
            subscriptions_max=SUBSCRIPTIONS_MAX,
            patterns_per_link_max=PATTERNS_MAX,
            pending_max=PENDING_MAX,
        )
    )


def _edge_agent(spec: EdgeSpec, scenario: Scenario) -> EdgeAgent:
    url = f"amqp://{spec.name}"
    return EdgeAgent(
        EdgeConfig(
            spec.name,
            cluster_name(spec.head),
            spec.head,
            client_url=url,
            link_url=url,
            incarnation=_INCARNATION,
            capacity=edge_capacity(spec) if spec.capacity_known else Capacity(),
            outputs_max=SUBSCRIPTIONS_MAX,
            pending_max=PENDING_MAX,
            balancing=scenario.balancing,
        )
    )
