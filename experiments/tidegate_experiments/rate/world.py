"""A run in rate mode: virtual time, the agents of production, and rates where messages would be.

What happens to control messages, timers and orders is the same as among messages; only what flows is a rate.

What is left out: faults, insights, and lost or doubled control messages; publishers that move or are throttled;
subscribers that leave or are slow; delays in downlinks, matching and heads; that the copies which both queues of a
migration deliver are one message. An edge at which nothing changes is not sampled every period: `sampling` says when,
and why that makes no difference; a test compares runs with and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tidegate_agents.machine import Started
from tidegate_protocol.messages import Subscription
from tidegate_simulator.errors import ScenarioError
from tidegate_simulator.kernel import Kernel
from tidegate_simulator.observer import Observer
from tidegate_simulator.scenario import Scenario

from .brokers import Broker, make_brokers
from .clients import Clients, Place
from .control import FlowNetwork
from .dataplane import DataPlane
from .planes import Reach
from .sampling import Rest, Sampling
from .sources import Sources
from .uplink import Delivered

Progress = Callable[[float], None]
"""How far virtual time has come."""


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """How a scenario is run in rate mode."""

    rest: Rest = field(default_factory=Rest)
    sampled_from_s: float = 0.0
    """Edges are looked at from this moment on, e.g. when all that is adopted at the start has been."""
    staggered: bool = False
    """Whether brokers sample one after another within a period, or all at once."""
    wire: bool = False
    """Whether every control message is written to its wire form and read back."""
    traced: bool = False
    validated: bool = False
    """Whether an agent is validated after each of its steps. Slow."""


class FlowWorld:
    """One run of a scenario. `adopt`, if at all, then `run`."""

    def __init__(
        self, scenario: Scenario, options: FlowOptions | None = None, observers: Iterable[Observer] = ()
    ) -> None:
        check(scenario)
        self.scenario = scenario
        self.options = options or FlowOptions()
        self.kernel = Kernel(scenario.seed)
        self.agent_s = 0.0
        """Time of this machine that the agents took, on the wall."""
        self.observers = tuple(observers)
        self._adopted: dict[str, list[Subscription]] | None = None
        self._started = False
        self.sources = Sources.of(scenario)
        self.reach = Reach(self.sources, scenario)
        self.control = FlowNetwork(self)
        self.clients = Clients(self.kernel, self.control, scenario)
        self.data = DataPlane(self)
        self.brokers = make_brokers(self)
        self.sampling = Sampling(
            self.kernel,
            scenario.balancing,
            self.options.rest,
            self.control.repeat,
            self.observers,
            from_s=self.options.sampled_from_s,
        )

    @property
    def trace_hash(self) -> str:
        return self.control.trace_hash

    @property
    def edges(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if broker.edge is not None]

    # Running

    def adopt(self, placed: Iterable[tuple[str, Subscription]]) -> None:
        """Have subscribers find their queues on these edges, as after a power cut: agents start and read what their
        RabbitMQ holds, and nobody asks for a place.
        """
        self._adopted = {broker.name: [] for broker in self.edges}
        places: dict[Place, Place] = {}
        for edge, subscription in placed:
            self._adopted[edge].append(subscription)
            self.data.add_queue(self.brokers[edge], subscription)
            place = (edge, subscription.number)
            self.clients.places[subscription.subscriber] = places.setdefault(place, place)

    def run(self, progress: Progress | None = None, until_s: float | None = None) -> None:
        """Run until `until_s`, by default the end of the scenario. May be called again to go on."""
        end_s = self.scenario.duration_s if until_s is None else until_s
        if not self._started:
            self._start()
        while self.kernel.now < end_s:
            self.kernel.run(min(self.kernel.now + self.scenario.balancing.period_s, end_s))
            if progress is not None:
                progress(self.kernel.now)
        for broker in self.edges:
            broker.plane.uplink.advance(self.kernel.now)

    def _start(self) -> None:
        self._started = True
        adopted = self._adopted or {}
        for broker in self.brokers.values():
            joins_s = broker.edge.spec.joins_s if broker.edge is not None else 0.0
            started = Started(outputs=tuple(adopted.get(broker.name, ())))
            self.kernel.at(joins_s + broker.phase_s / 2.0, self._boot, (broker, started))
        self.control.publishers_show_up(staggered=self.options.staggered)
        if self._adopted is None:
            for spec in self.scenario.subscribers:
                self.kernel.at(spec.joins_s, self.clients.join, spec.name)

    def _boot(self, argument: tuple[Broker, Started]) -> None:
        broker, started = argument
        broker.post(started)
        self.sampling.begin(broker)

    # Results

    def delivered(self) -> Delivered:
        """What all edges together have delivered."""
        total = Delivered()
        for broker in self.edges:
            part = broker.plane.uplink.delivered
            total.messages += part.messages
            total.late += part.late
            total.late_first_s = min(total.late_first_s, part.late_first_s)
            total.late_last_s = max(total.late_last_s, part.late_last_s)
            total.backlog_first_s = min(total.backlog_first_s, part.backlog_first_s)
            total.backlog_cleared_s = max(total.backlog_cleared_s, part.backlog_cleared_s)
            total.wait_longest_s = max(total.wait_longest_s, part.wait_longest_s)
        return total


def check(scenario: Scenario) -> None:
    """Raise `ScenarioError` for what rate mode does not simulate."""
    if scenario.faults:
        raise ScenarioError("faults", "are not simulated in rate mode", "run the scenario with messages")
    if scenario.insights:
        raise ScenarioError("insights", "are not simulated in rate mode", "run the scenario with messages")
    for spec in scenario.subscribers:
        if spec.takes_per_s is not None or spec.leaves_s is not None:
            problem = f"has {spec.name}, which is slow or leaves: not simulated in rate mode"
            raise ScenarioError("subscribers", problem, "run the scenario with messages")
