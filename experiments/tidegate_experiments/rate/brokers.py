"""The brokers of a run in rate mode: the process of each with its agent, and what its RabbitMQ keeps.

Made from a scenario, with limits wide enough for any that fits into memory. Decides nothing.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidegate_agents.config import BalancingConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.head.agent import HeadAgent
from tidegate_agents.machine import Action, Event
from tidegate_protocol.balancing.loads import PieLocal
from tidegate_protocol.decisions import Decision
from tidegate_simulator.configs import edge_config, head_config
from tidegate_simulator.driver import Driver, perform_on_edge, perform_on_head
from tidegate_simulator.scenario import EdgeSpec, HeadSpec

from .dataplane import EdgeFlows, HeadFlows
from .planes import EdgePlane, HeadPlane

if TYPE_CHECKING:
    from .world import FlowWorld

PENDING_MAX: Final = 50_000
SUBSCRIPTIONS_MAX: Final = 2_000_000
PATTERNS_MAX: Final = 1_000_000
EDGES_MAX: Final = 10_000
_INCARNATION: Final = 1


class Broker(Driver):
    """One broker: either `edge` or `head` is its data plane. It always runs."""

    def __init__(self, world: FlowWorld, spec: HeadSpec | EdgeSpec) -> None:
        super().__init__(world.kernel, world.control, spec.name)
        self._world = world
        self.edge: EdgePlane | None = None
        self.head: HeadPlane | None = None
        self._orders: EdgeFlows | HeadFlows
        if isinstance(spec, EdgeSpec):
            self.head_name = spec.head
            """The head of its cluster, or itself."""
            self.edge = EdgePlane(spec)
            self.agent = _edge_agent(spec, world.scenario.balancing)
            self._orders = EdgeFlows(world.data, self)
        else:
            self.head_name = spec.name
            self.head = HeadPlane(spec, world.sources, world.reach)
            self.agent = _head_agent(spec, world.scenario.balancing)
            self._orders = HeadFlows(world.data, self)
        self.incarnation = _INCARNATION
        self.up = True
        self.phase_s = 0.0
        """When in each period it is sampled."""
        self.ticks = 0
        """How many periods have passed at its last or next sample."""
        self.last_report: tuple[int, PieLocal] | None = None
        """The load report it sent last, and after how many periods."""
        self.resting = False
        self.stirred = False
        """Whether anything has changed since it was first at rest."""
        self.token = 0
        """Tells a sample that is due from one that was given up."""

    @property
    def plane(self) -> EdgePlane:
        assert self.edge is not None, f"{self.name} is no edge"
        return self.edge

    def wake(self) -> None:
        """Something is about to change here."""
        self._world.sampling.wake(self)

    def _handle(self, event: Event) -> list[Action]:
        world = self._world
        began = time.perf_counter()
        actions = super()._handle(event)
        world.agent_s += time.perf_counter() - began
        if world.options.validated:
            self.agent.validate()
        for observer in world.observers:
            observer.stepped(self.name, event, actions, self._kernel.now)
        return actions

    def _perform(self, action: Action) -> Event | None:
        orders = self._orders
        return perform_on_edge(orders, action) if isinstance(orders, EdgeFlows) else perform_on_head(orders, action)

    def _decided(self, decision: Decision) -> None:
        self._world.control.trace(f"{self.name} {decision}")
        for observer in self._world.observers:
            observer.decided(self.name, decision, self._kernel.now)

    def _sample_soon(self, after_s: float) -> None:
        self._world.sampling.soon(self, after_s)


def make_brokers(world: FlowWorld) -> dict[str, Broker]:
    """All brokers of a scenario, heads first, known to the control network with the others of their clusters."""
    scenario = world.scenario
    specs: list[HeadSpec | EdgeSpec] = sorted(scenario.heads, key=lambda spec: spec.name)
    specs += sorted(scenario.edges, key=lambda spec: spec.name)
    brokers = {spec.name: Broker(world, spec) for spec in specs}
    members: dict[str, list[str]] = {}
    for broker in brokers.values():
        members.setdefault(broker.head_name, []).append(broker.name)
    for place, broker in enumerate(brokers.values()):
        cluster = members[broker.head_name]
        world.control.enter_broker(broker, tuple(name for name in cluster if name != broker.name))
        if world.options.staggered:
            broker.phase_s = scenario.balancing.period_s * place / len(brokers)
    return brokers


def _head_agent(spec: HeadSpec, balancing: BalancingConfig) -> HeadAgent:
    return HeadAgent(
        replace(
            head_config(spec, balancing, _INCARNATION),
            edges_max=EDGES_MAX,
            subscriptions_max=SUBSCRIPTIONS_MAX,
            patterns_per_link_max=PATTERNS_MAX,
            pending_max=PENDING_MAX,
        )
    )


def _edge_agent(spec: EdgeSpec, balancing: BalancingConfig) -> EdgeAgent:
    config = edge_config(spec, balancing, _INCARNATION)
    return EdgeAgent(replace(config, outputs_max=SUBSCRIPTIONS_MAX, pending_max=PENDING_MAX))
