"""A run: the scenario built and set in motion.

Puts together the kernel, the control network, the brokers with their data planes, and the clients, lets them go, and
counts. Everything that decides anything is in the agents and client machines, which are those of production. Invariant:
the scenario and its seed decide every step, so that two runs have the same `trace_hash`, whatever the hash seed of the
interpreter; observers are told in the order in which things happen and change nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tidegate_agents.config import EdgeConfig, HeadConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.head.agent import HeadAgent
from tidegate_agents.machine import Action, EdgeSampled, Event, HeadSampled
from tidegate_protocol.decisions import Decision

from .brokers import SimBroker, SimEdge, SimHead
from .clocks import Clock
from .configs import URL_START, edge_config, head_capacity, head_config, known_capacity
from .control import ControlNetwork
from .distances import Distances
from .injection import Faults
from .kernel import Kernel
from .links import Link, Message, Pipe, no_stages
from .observer import Observer, overriders
from .plane_edge import EdgePlane
from .plane_head import HeadPlane
from .publishers import SimPublisher
from .scenario import EdgeSpec, HeadSpec, Scenario
from .scenario_check import check
from .subscribers import SimSubscriber
from .trace import DataLines, Trace

MARKER_BYTES: Final = 120
"""An empty message with a routing key."""
DROPPED_KEPT_MAX: Final = 1_000_000
"""Messages whose dropping is remembered one by one."""
COLLECT_AFTER: Final = 200_000
"""Objects made and still there before the interpreter looks for cycles."""


@dataclass(frozen=True, slots=True)
class Counters:
    """How many messages of each kind a run has seen so far."""

    published: int
    link_transfers: int
    deliveries: int
    """What reached subscribers' applications."""
    control_messages: int
    dropped: int
    """What a limit on a slow subscriber's queue cost it."""

    @property
    def data_messages(self) -> int:
        return self.published + self.link_transfers + self.deliveries


class World:
    """One run of a scenario."""

    def __init__(
        self,
        scenario: Scenario,
        observers: Iterable[Observer] = (),
        trace_lines_max: int = 0,
        validate_every_step: bool = False,
        agents_validated_every: int = 1,
    ) -> None:
        check(scenario)
        self.scenario = scenario
        self.observers = tuple(observers)
        self.validate_every_step = validate_every_step
        self.agents_validated_every = agents_validated_every
        """With `validate_every_step`: a broker's agent only after every so many steps of its own, as its checks take
        longer than the step.
        """
        self.kernel = Kernel(scenario.seed)
        self.record = Trace(trace_lines_max)
        self.distances = Distances(scenario)
        self.delay_s: Callable[[str, str], float] = self.distances.delay_s
        self.network = ControlNetwork(self.kernel, self.record, scenario.control, self.delay_s, self.observers)
        self.edge_specs: dict[str, EdgeSpec] = {edge.name: edge for edge in scenario.edges}
        self.dropped: set[tuple[str, str]] = set()
        """Subscriber and message id of what a limit on a queue cost."""
        self.redelivered: set[tuple[str, str]] = set()
        """The same of the plain messages that came again because they had not been acknowledged."""
        watching = (DataLines(self.record), *self.observers) if self.record.reading else self.observers
        self.published_to = overriders(watching, "published")
        self.delivered_to = overriders(watching, "delivered")
        self._stepped_to = overriders(self.observers, "stepped")
        self._decided_to = overriders(self.observers, "decided")
        self._edge_sampled_to = overriders(self.observers, "edge_sampled")
        self._head_sampled_to = overriders(self.observers, "head_sampled")
        self._stopped: dict[str, set[str]] = {}
        """Per target why no link carries anything there at the moment."""
        self._last_index = 0
        self.head_specs: dict[str, HeadSpec] = {head.name: head for head in scenario.heads}
        self.liars = {one.name: one.lies_about for one in scenario.publishers if one.lies_about is not None}
        self.heads: dict[str, SimHead] = {}
        self.edges: dict[str, SimEdge] = {}
        self._build_brokers()
        self.brokers: dict[str, SimBroker] = {**self.heads, **self.edges}
        numbers = range(len(self.brokers), len(self.brokers) + len(scenario.publishers) + len(scenario.subscribers))
        following = iter(numbers)
        self.publishers = {spec.name: SimPublisher(self, spec, next(following)) for spec in scenario.publishers}
        self.subscribers = {spec.name: SimSubscriber(self, spec, next(following)) for spec in scenario.subscribers}
        self._by_id = {publisher.id: publisher for publisher in self.publishers.values()}
        for broker in self.brokers.values():
            self.network.enter_broker(broker, self._others(broker.name))
        for publisher in self.publishers.values():
            self.network.enter_client(publisher.id, publisher)
        for subscriber in self.subscribers.values():
            self.network.enter_client(subscriber.name, subscriber)
        self._faults = Faults(self)

    # Building

    def _build_brokers(self) -> None:
        number = 0
        for spec in self.scenario.edges:
            edge_plane = EdgePlane(
                self.kernel,
                self.record,
                number,
                uplink_bytes_per_s=spec.uplink_bytes_per_s,
                downlink_bytes_per_s=spec.downlink_bytes_per_s,
                matching_per_s=spec.matching_per_s,
                client_delay_s=spec.client_delay_s,
                on_dropped=self._dropped_message,
            )
            self.edges[spec.name] = SimEdge(self, spec.name, edge_plane, known_capacity(spec))
            number += 1
        for head in self.scenario.heads:
            head_plane = HeadPlane(
                self.kernel,
                self.record,
                number,
                head.uplink_bytes_per_s,
                head.downlink_bytes_per_s,
                self._link_maker(head.name),
                self.marker,
            )
            self.heads[head.name] = SimHead(self, head.name, head_plane, head_capacity(head))
            number += 1

    def _link_maker(self, head: str) -> Callable[[str, Pipe], Link]:
        def make(target: str, uplink: Pipe) -> Link:
            delay_s = self.delay_s(head, target)
            if target in self.edges:
                plane = self.edges[target].plane
                link = Link(self.kernel, target, uplink, delay_s, plane.arrive, plane.stages)
            else:
                forwarded = self.heads[target].plane.forwarded
                link = Link(self.kernel, target, uplink, delay_s, lambda message: forwarded(head, message), no_stages)
            for reason in sorted(self._stopped.get(target, ())):
                link.stop(reason)
            return link

        return make

    def _others(self, name: str) -> tuple[str, ...]:
        """The other brokers of the cluster, its head first."""
        head = self.edge_specs[name].head if name in self.edge_specs else name
        members = [head, *sorted(edge.name for edge in self.scenario.edges if edge.head == head)]
        return tuple(member for member in members if member != name)

    def head_config(self, name: str, incarnation: int) -> HeadConfig:
        return head_config(self.head_specs[name], self.scenario.balancing, incarnation)

    def edge_config(self, name: str, incarnation: int) -> EdgeConfig:
        return edge_config(self.edge_specs[name], self.scenario.balancing, incarnation)

    # Running

    def run(self) -> None:
        """Run the whole scenario: `duration_s`, and `settle_s` until all is at rest."""
        self.start()
        end_s = self.scenario.duration_s + self.scenario.settle_s
        with rare_collection():
            self.kernel.run(end_s)
        for observer in self.observers:
            observer.ended(self, end_s)

    def start(self) -> None:
        """Set everything in motion without letting time pass; `run` does it by itself."""
        for observer in self.observers:
            observer.started(self)
        kernel = self.kernel
        for head in self.heads.values():
            head.start()
        self._faults.schedule()
        for spec in self.scenario.edges:
            kernel.at(spec.joins_s, self._start_edge, spec.name)
        for publisher in self.publishers.values():
            kernel.at(publisher.spec.starts_s, _start, publisher)
        for subscriber in self.subscribers.values():
            kernel.at(subscriber.spec.joins_s, _start, subscriber)
            if subscriber.spec.leaves_s is not None:
                kernel.at(subscriber.spec.leaves_s, _leave, subscriber)

    def _start_edge(self, name: str) -> None:
        if not self._faults.keeps_down(name):
            self.edges[name].start()

    @property
    def now(self) -> float:
        return self.kernel.now

    @property
    def trace_hash(self) -> str:
        return self.record.digest

    @property
    def trace(self) -> tuple[str, ...]:
        """The last lines of the readable trace, if any were asked for."""
        return tuple(self.record.lines)

    @property
    def counters(self) -> Counters:
        links = [link for head in self.heads.values() for link in head.plane.links.values()]
        return Counters(
            published=sum(publisher.published for publisher in self.publishers.values()),
            link_transfers=sum(link.transferred for link in links),
            deliveries=sum(subscriber.delivered for subscriber in self.subscribers.values()),
            control_messages=self.network.sent,
            dropped=sum(edge.plane.dropped for edge in self.edges.values()),
        )

    # What brokers, clients and observers ask for

    def agent(self, broker: str) -> HeadAgent | EdgeAgent:
        return self.brokers[broker].agent

    def publisher_head(self, publisher: str) -> str:
        """Where a publisher publishes now."""
        return self.publishers[publisher].head

    def head_at(self, url: str) -> str:
        """The head that has this address."""
        name = url.removeprefix(URL_START)
        assert name in self.heads, url
        return name

    def clock_of(self, name: str) -> Clock:
        if name in self.brokers:
            return self.brokers[name].clock
        return self.subscribers[name].clock if name in self.subscribers else self.publishers[name].clock

    def disconnect_publisher(self, head: str, identity: str) -> None:
        """A head closes a publisher's connection, if that is one of its own, and lets it in again later.

        One that could come back at once would go on as before, and nothing would be contained.
        """
        publisher = self._by_id.get(identity)
        if publisher is not None and publisher.head == head:
            publisher.cut(self.now + self.scenario.balancing.containment_s)

    def stop_links(self, target: str, reason: str) -> None:
        """Stop all links that lead to `target`, those made later too."""
        self._stopped.setdefault(target, set()).add(reason)
        for head in self.heads.values():
            link = head.plane.links.get(target)
            if link is not None:
                link.stop(reason)

    def start_links(self, target: str, reason: str) -> None:
        self._stopped.get(target, set()).discard(reason)
        for head in self.heads.values():
            link = head.plane.links.get(target)
            if link is not None:
                link.start(reason)

    def next_index(self) -> int:
        """A number for a data message."""
        self._last_index = index = self._last_index + 1
        return index

    def marker(self, key: str) -> Message:
        self.record.event(self.now, f"marker {key}")
        return Message(None, self.next_index(), key, MARKER_BYTES, self.now)

    def _dropped_message(self, subscriber: str, message: Message) -> None:
        if message.id is not None and len(self.dropped) < DROPPED_KEPT_MAX:
            self.dropped.add((subscriber, message.id))

    # What observers are told

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        self.record.event(now, f"step {broker} {type(event).__name__} {len(actions)}")
        for stepped in self._stepped_to:
            stepped(broker, event, actions, now)

    def decided(self, broker: str, decision: Decision, now: float) -> None:
        self.record.event(now, f"decision {broker} {decision}")
        for decided in self._decided_to:
            decided(broker, decision, now)

    def edge_sampled(self, edge: str, sample: EdgeSampled, now: float) -> None:
        for sampled in self._edge_sampled_to:
            sampled(edge, sample, now)

    def head_sampled(self, head: str, sample: HeadSampled, now: float) -> None:
        for sampled in self._head_sampled_to:
            sampled(head, sample, now)


@contextmanager
def rare_collection() -> Iterator[None]:
    """Have the interpreter look for cycles rarely: messages make none, and looking costs a fifth of a run."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], COLLECT_AFTER), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _start(client: SimPublisher | SimSubscriber) -> None:
    client.start()


def _leave(subscriber: SimSubscriber) -> None:
    subscriber.leave()
