"""Control messages in rate mode: between brokers, and between heads and clients.

In process and in virtual time: a message takes the delay of its way and always arrives, in order. It is handed over as
the object it is, or, if asked for, written to its wire form and read back. What always holds: every message sent is
counted once by its kind, a load report to all brokers of a cluster too (RabbitMQ makes the copies).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from tidegate_agents.machine import Event, MessageReceived, ReplyAddress, ReplyReceived, Undeliverable
from tidegate_protocol.balancing import PieLocal
from tidegate_protocol.messages import ControlMessage, PublisherHello, decode, encode

from ..kernel import Kernel
from ..observer import Observer
from ..scenario import Scenario
from .brokers import Broker
from .clients import Clients, Ways
from .sources import Sources

PUBLISHER_PERIOD_S: Final = 5.0
"""How often a publisher says that it is there."""

Feed = Callable[[Broker, Event], None]


class Control:
    """Carries control messages; owns the clients, which are at the end of some of them."""

    def __init__(
        self,
        kernel: Kernel,
        scenario: Scenario,
        sources: Sources,
        brokers: Mapping[str, Broker],
        feed: Feed,
        observers: tuple[Observer, ...],
        *,
        wire: bool,
        traced: bool,
    ) -> None:
        self._kernel = kernel
        self._tree = sources.tree
        self._sources = sources
        self._brokers = brokers
        self._feed = feed
        self._observers = observers
        self._spec = scenario.control
        self._client_delays_s = {spec.name: spec.client_delay_s for spec in scenario.edges}
        self._wire = wire
        self._traced = traced
        self._digest = hashlib.sha256()
        self.sent: Counter[str] = Counter()
        """Messages by kind."""
        self.last_sent_s: dict[str, float] = {}
        """When one of each kind was last sent."""
        self.clients = Clients(Ways(kernel, self._from_client, self._attach_s), scenario.subscribers)

    # Book-keeping

    def trace(self, text: str) -> None:
        """Enter something that happened into the hash of the run."""
        if self._traced:
            self._digest.update(f"{self._kernel.now!r} {text}\n".encode())

    @property
    def trace_hash(self) -> str:
        return self._digest.hexdigest()

    def _count(self, sender: str, receiver: str, message: ControlMessage) -> ControlMessage:
        self.sent[message.kind] += 1
        self.last_sent_s[message.kind] = self._kernel.now
        for observer in self._observers:
            observer.control_sent(sender, receiver, message.kind, self._kernel.now)
        if self._traced:
            self.trace(f"{sender} > {receiver} {message!r}")
        return decode(encode(message)) if self._wire else message

    # Between brokers

    def _delay_s(self, one: Broker, other: Broker) -> float:
        if self._spec.instant:
            return 0.0
        if one.head_name == other.head_name:
            return one.delay_s + other.delay_s
        return self._tree.way_s(one.head_name, other.head_name)

    def send(self, broker: Broker, to: str, message: ControlMessage, request_id: str | None) -> None:
        read = self._count(broker.name, to, message)
        receiver = self._brokers[to]
        reply_to = ReplyAddress(broker.name, request_id) if request_id is not None else None
        event = MessageReceived(read, reply_to)
        self._kernel.after(self._delay_s(broker, receiver), self._deliver, (receiver, event))

    def reply(self, broker: Broker, to: ReplyAddress, message: ControlMessage) -> None:
        read = self._count(broker.name, to.token, message)
        receiver = self._brokers.get(to.token)
        if receiver is not None:
            event = ReplyReceived(to.request, read)
            self._kernel.after(self._delay_s(broker, receiver), self._deliver, (receiver, event))
        elif to.token in self.clients.specs:
            self._kernel.after(self._client_delay_s(to.token), self._answer_client, (to.token, read))

    def announce(self, broker: Broker, message: PieLocal) -> None:
        """To every other broker of the cluster."""
        event = MessageReceived(self._count(broker.name, broker.head_name, message))
        for delay_s, receivers in broker.peers.items():
            self._kernel.after(delay_s, self._deliver_all, (receivers, event))

    def _deliver(self, argument: tuple[Broker, Event]) -> None:
        self._feed(*argument)

    def _deliver_all(self, argument: tuple[list[Broker], Event]) -> None:
        receivers, event = argument
        for receiver in receivers:
            self._feed(receiver, event)

    # Clients

    def _client_delay_s(self, subscriber: str) -> float:
        place = self.clients.places.get(subscriber)
        if self._spec.instant or place is None:
            return 0.0
        return self._client_delays_s[place[0]]

    def _attach_s(self, edge: str) -> float:
        if self._spec.instant:
            return 0.0
        return self._spec.attach_round_trips * 2.0 * self._client_delays_s[edge]

    def _from_client(self, subscriber: str, head: str, message: ControlMessage) -> None:
        event = MessageReceived(self._count(subscriber, head, message), ReplyAddress(subscriber, "client"))
        self._kernel.after(self._client_delay_s(subscriber), self._deliver, (self._brokers[head], event))

    def _answer_client(self, argument: tuple[str, ControlMessage]) -> None:
        self.clients.answered(*argument)

    def send_client(self, broker: Broker, client: str, message: ControlMessage, request_id: str | None) -> None:
        read = self._count(broker.name, client, message)
        self._kernel.after(self._client_delay_s(client), self._ask_client, (broker, client, read, request_id))

    def _ask_client(self, argument: tuple[Broker, str, ControlMessage, str | None]) -> None:
        broker, client, message, request_id = argument
        answer = self.clients.receive(client, broker.name, message)
        if request_id is None:
            return
        event: Event = Undeliverable(request_id)
        if answer is not None:
            event = ReplyReceived(request_id, self._count(client, broker.name, answer))
        self._kernel.after(self._client_delay_s(client), self._deliver, (broker, event))

    # Publishers

    def publishers_show_up(self, *, staggered: bool) -> None:
        """Every publisher says that it is there, now and again and again."""
        publishers = self._sources.by_publisher
        for place, (publisher, sources) in enumerate(publishers.items()):
            hello = PublisherHello(
                publisher=publisher,
                topics=tuple(sorted({source.topic for source in sources})),
                round_trip_us=round(2e6 * max(source.delay_s for source in sources)),
            )
            phase_s = PUBLISHER_PERIOD_S * place / len(publishers) if staggered else 0.0
            self._kernel.after(phase_s, self._publisher_hello, (self._brokers[sources[0].head], hello))

    def _publisher_hello(self, argument: tuple[Broker, PublisherHello]) -> None:
        head, hello = argument
        message = self._count(hello.publisher, head.name, hello)
        self._feed(head, MessageReceived(message, ReplyAddress(hello.publisher, "hello")))
        self._kernel.after(PUBLISHER_PERIOD_S, self._publisher_hello, argument)
