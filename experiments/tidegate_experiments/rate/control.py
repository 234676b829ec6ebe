"""Control messages in rate mode: the control network of message mode without faults.

A message takes the delay of its way and always arrives, in order. It is handed over as the object it is, or, if asked
for, written to its wire form and read back.

Invariant: every message sent is counted once by its kind, a load report to all brokers of a cluster too (RabbitMQ makes
the copies).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from tidegate_agents.machine import MessageReceived, ReplyAddress
from tidegate_protocol.balancing.loads import PieLocal
from tidegate_protocol.balancing.sessions import SessionNotice
from tidegate_protocol.messages import ControlMessage, PublisherHello, decode, encode
from tidegate_simulator.control import Broker as Process, Client, ControlNetwork
from tidegate_simulator.trace import Trace

from .clients import OneClient

if TYPE_CHECKING:
    from .brokers import Broker
    from .world import FlowWorld

PUBLISHER_PERIOD_S: Final = 5.0
"""How often a publisher says that it is there."""


class FlowNetwork(ControlNetwork):
    """Carries control messages between the brokers and the clients of a run."""

    def __init__(self, world: FlowWorld) -> None:
        super().__init__(world.kernel, Trace(), world.scenario.control, self._way_s, world.observers)
        self._world = world
        self._wired = world.options.wire
        self._traced = world.options.traced
        self._client_delays_s = {spec.name: spec.client_delay_s for spec in world.scenario.edges}
        self._peers: dict[str, dict[float, list[Broker]]] = {}
        """Per broker the others of its cluster, by how long a report takes to them."""
        self.kinds: Counter[str] = Counter()
        """Messages by kind."""

    def trace(self, text: str) -> None:
        """Enter something that happened into the hash of the run."""
        if self._traced:
            self._trace.event(self._kernel.now, text)

    @property
    def trace_hash(self) -> str:
        return self._trace.digest

    def _wire(self, sender: str, receiver: str, message: ControlMessage) -> ControlMessage:
        self.kinds[message.kind] += 1
        for control_sent in self._control_sent_to:
            control_sent(sender, receiver, message.kind, self._kernel.now)
        if self._traced:
            self.trace(f"{sender} > {receiver} {message!r}")
        return decode(encode(message)) if self._wired else message

    def _way_s(self, sender: str, receiver: str) -> float:
        """Between two brokers, or between a head and a client, which is as far away as its edge."""
        for name in (sender, receiver):
            if name not in self._brokers:
                place = self._world.clients.places.get(name)
                return self._client_delays_s[place[0]] if place is not None else 0.0
        return self._world.sources.distances.delay_s(sender, receiver)

    # Brokers

    def send(self, sender: Process, to: str, message: ControlMessage, request_id: str | None) -> None:
        if isinstance(message, SessionNotice):
            self._world.brokers[to].wake()
        super().send(sender, to, message, request_id)

    def announce(self, sender: Process, message: PieLocal) -> None:
        broker = self._world.brokers[sender.name]
        broker.last_report = (broker.ticks, message)
        self.repeat(broker, message)

    def repeat(self, broker: Broker, message: PieLocal) -> None:
        """Send a load report to every other broker of the cluster."""
        event = MessageReceived(self._wire(broker.name, broker.head_name, message))
        for delay_s, receivers in self._peers_of(broker.name).items():
            self._kernel.after(delay_s, _post_to_all, (receivers, event))

    def _peers_of(self, name: str) -> dict[float, list[Broker]]:
        peers = self._peers.get(name)
        if peers is None:
            peers = self._peers[name] = {}
            for other in self._clusters[name]:
                delay_s = 0.0 if self._instant else self._way_s(name, other)
                peers.setdefault(delay_s, []).append(self._world.brokers[other])
        return peers

    # Clients

    def _client(self, name: str) -> Client | None:
        clients = self._world.clients
        return OneClient(clients, name) if name in clients.specs else None

    def publishers_show_up(self, *, staggered: bool) -> None:
        """Every publisher says that it is there, now and again and again."""
        publishers = self._world.sources.by_publisher
        for place, (publisher, sources) in enumerate(publishers.items()):
            hello = PublisherHello(
                publisher=publisher,
                topics=tuple(sorted({source.topic for source in sources})),
                round_trip_us=round(2e6 * max(source.delay_s for source in sources)),
            )
            phase_s = PUBLISHER_PERIOD_S * place / len(publishers) if staggered else 0.0
            self._kernel.after(phase_s, self._publisher_hello, (self._world.brokers[sources[0].head], hello))

    def _publisher_hello(self, argument: tuple[Broker, PublisherHello]) -> None:
        head, hello = argument
        message = self._wire(hello.publisher, head.name, hello)
        head.post(MessageReceived(message, ReplyAddress(f"{hello.publisher} 1", "hello")))
        self._kernel.after(PUBLISHER_PERIOD_S, self._publisher_hello, argument)


def _post_to_all(argument: tuple[list[Broker], MessageReceived]) -> None:
    receivers, event = argument
    for receiver in receivers:
        receiver.post(event)
