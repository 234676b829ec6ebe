"""One head with edges and clients in virtual time, for finding what goes wrong when clients are moved about.

Small on purpose: links are FIFO with a fixed delay, one publisher numbers its messages, an edge is a dictionary of
queues, a client follows the rules of a migration and nothing else. Control messages may be lost, doubled and delayed;
the head, the processes of edges and clients may crash. What RabbitMQ would keep (queues, bindings) stays.
Deterministic: one seed, one history.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from tests.support.migration_clients import PATTERN, Client, Place, Queue
from tidegate_agents.config import BalancingConfig, HeadConfig
from tidegate_agents.head.agent import HeadAgent
from tidegate_agents.kit.subscriptions import registry_digest
from tidegate_agents.machine import (
    Action,
    CancelTimer,
    ChangeRoutes,
    Event,
    MarkerPublished,
    MessageReceived,
    PublishMarker,
    Reply,
    ReplyAddress,
    ReplyReceived,
    RoutesChanged,
    Send,
    SendClient,
    SetTimer,
    Started,
    TimerFired,
    Undeliverable,
)
from tidegate_protocol.balancing.drains import DrainNotice
from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_protocol.balancing.markers import MarkerBind, MarkerReady
from tidegate_protocol.balancing.sessions import (
    BalanceCandidates,
    BalancePlan,
    BalanceRequest,
    LoadReply,
    LoadRequest,
    PlannedMove,
)
from tidegate_protocol.decisions import PlanOutcome
from tidegate_protocol.messages import (
    ControlMessage,
    EdgeHello,
    LoadState,
    OutputPrepare,
    OutputReady,
    OutputRemove,
    OutputRemoved,
    Refusal,
    RefusalReason,
    RegistryPage,
    RegistryRequest,
    decode,
    encode,
)
from tidegate_protocol.names import output_queue
from tidegate_protocol.parts import Metric

LINK_S = 0.05
PUBLISH_S = 0.1


@dataclass
class Edge:
    name: str
    queues: dict[tuple[str, int], Queue] = field(default_factory=dict)
    up: bool = True
    reachable: bool = True
    """Whether clients, and the link, reach its RabbitMQ."""
    draining: bool = False
    backlog: list[int | str] = field(default_factory=list)
    """What waits in the link queue while its RabbitMQ is not there."""
    sessions: int = 0


class World:
    """A cluster `c` with the head `h`."""

    def __init__(self, seed: int, edges: int = 3, clients: int = 4) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.loss = self.duplication = 0.0
        self.delay_max_s = 0.02
        self.edges = {f"e{n}": Edge(f"e{n}") for n in range(1, edges + 1)}
        self.clients = {f"s{n}": Client(f"s{n}", self) for n in range(clients)}
        self.bindings: dict[str, set[str]] = {}
        self.sequence = 0
        self.removed_in_use = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._incarnation = 0
        self._timers: dict[str, int] = {}
        self.head_up = False
        self.head = self._new_head()
        self.start_head()
        for name in self.edges:
            self._every(1.0, partial(self._hello, name))
        for client in self.clients.values():
            self._every(0.05, client.serve)
            self._every(1.0, client.remind)
        self._every(PUBLISH_S, self._publish)

    # Time

    def after(self, delay_s: float, step: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, step))

    def _every(self, period_s: float, step: Callable[[], None]) -> None:
        def again() -> None:
            step()
            self.after(period_s, again)

        self.after(self.random.random() * period_s, again)

    def run(self, for_s: float) -> None:
        end = self.now + for_s
        while self._queue and self._queue[0][0] <= end:
            self.now, _, step = heapq.heappop(self._queue)
            step()
        self.now = end

    # The head

    def _new_head(self) -> HeadAgent:
        self._incarnation += 1
        balancing = BalancingConfig(cooldown_s=5.0, edge_away_s=5.0, migration_timeout_s=8.0)
        return HeadAgent(HeadConfig("h", "c", self._incarnation, balancing=balancing))

    def start_head(self) -> None:
        if not self.head_up:
            self.head_up = True
            self._feed(Started({edge: frozenset(bound) for edge, bound in self.bindings.items() if bound}))

    def crash_head(self) -> None:
        self.head_up, self.head = False, self._new_head()
        self._timers.clear()

    def _feed(self, event: Event, incarnation: int | None = None) -> None:
        if not self.head_up or incarnation not in (None, self._incarnation):
            return
        actions = self.head.handle(event, self.now)
        self.head.validate()
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        incarnation = self._incarnation
        match action:
            case SetTimer(name, after_s):
                self._count += 1
                self._timers[name] = token = self._count
                self.after(after_s, lambda: self._fire(name, token))
            case CancelTimer(name):
                self._timers.pop(name, None)
            case ChangeRoutes():
                bound = self.bindings.setdefault(action.target, set())
                bound |= set(action.add)
                bound -= set(action.remove)
                self.after(0.01, lambda: self._feed(RoutesChanged(action.change_id), incarnation))
            case PublishMarker(key, targets):
                for target in targets:
                    self._link(target, key)
                self.after(0.01, lambda: self._feed(MarkerPublished(key), incarnation))
            case Send(to, message, request_id):
                self._deliver(self.edges[to].up, message, request_id, lambda m: self._edge(self.edges[to], m))
            case SendClient(client, message, request_id):
                there = self.clients[client]
                self._deliver(there.up, message, request_id, there.receive)
            case Reply(to, message):
                self._reply(to, message)
            case _:
                pass

    def _fire(self, name: str, token: int) -> None:
        if self._timers.get(name) == token:
            del self._timers[name]
            self._feed(TimerFired(name))

    # Control messages

    def _copies(self) -> int:
        if self.random.random() < self.loss:
            return 0
        return 2 if self.random.random() < self.duplication else 1

    def _delay_s(self) -> float:
        return self.random.random() * self.delay_max_s

    def _deliver(
        self,
        there: bool,
        message: ControlMessage,
        request_id: str | None,
        receive: Callable[[ControlMessage], ControlMessage | None],
    ) -> None:
        """From the head to an edge or a client, and the answer back."""
        incarnation = self._incarnation
        wire = decode(encode(message))

        def arrive() -> None:
            answer = receive(wire)
            if answer is not None and request_id is not None:
                for _ in range(self._copies()):
                    reply = ReplyReceived(request_id, decode(encode(answer)))
                    self.after(self._delay_s(), partial(self._feed, reply, incarnation))

        if not there:
            if request_id is not None:
                self.after(self._delay_s(), lambda: self._feed(Undeliverable(request_id), incarnation))
            return
        for _ in range(self._copies()):
            self.after(self._delay_s(), arrive)

    def tell(self, sender: str, message: ControlMessage) -> None:
        """To the head. The answer goes to the sender, whoever it is."""
        event = MessageReceived(decode(encode(message)), ReplyAddress(sender, ""))
        for _ in range(self._copies()):
            self.after(self._delay_s(), lambda: self._feed(event))

    def _reply(self, to: ReplyAddress, message: ControlMessage) -> None:
        wire = decode(encode(message))
        for _ in range(self._copies()):
            if to.token in self.clients:
                client = self.clients[to.token]
                self.after(self._delay_s(), partial(client.answered, wire, client.life))
            elif isinstance(wire, BalanceCandidates):
                self.after(self._delay_s(), partial(self._plan, self.edges[to.token], wire))

    # The data plane

    def _publish(self) -> None:
        self.sequence += 1
        for name in self.edges:
            if PATTERN in self.bindings.get(name, ()):
                self._link(name, self.sequence)

    def _link(self, name: str, item: int | str) -> None:
        self.after(LINK_S, lambda: self._arrive(self.edges[name], item))

    def _arrive(self, edge: Edge, item: int | str) -> None:
        edge.backlog.append(item)
        if edge.reachable:
            for waiting in edge.backlog:
                for queue in edge.queues.values():
                    if isinstance(waiting, int) or any(waiting.startswith(m[:-1]) for m in queue.markers):
                        queue.items.append(waiting)
            edge.backlog.clear()

    # Edges

    def _hello(self, name: str) -> None:
        edge = self.edges[name]
        if not edge.up:
            return
        held = [queue.subscription for queue in edge.queues.values()]
        self.tell(
            name,
            EdgeHello(
                edge=name,
                cluster="c",
                client_url=f"amqp://{name}:1",
                link_url=f"amqp://{name}:2",
                registry_count=len(held),
                registry_digest=registry_digest(held),
                draining=edge.draining,
            ),
        )

    def _edge(self, edge: Edge, message: ControlMessage) -> ControlMessage | None:
        if not edge.up:
            return None
        match message:
            case OutputPrepare(subscription=subscription, marker=marker):
                key = (subscription.subscriber, subscription.number)
                queue = edge.queues.setdefault(key, Queue(subscription))
                queue.subscription = subscription
                if marker is not None:
                    queue.markers.add(marker)
                return OutputReady(subscription=subscription, queue=output_queue(*key))
            case OutputRemove(subscriber=subscriber, number=number):
                client = self.clients[subscriber]
                if client.place == (edge.name, number) and (subscriber, number) in edge.queues:
                    self.removed_in_use += 1
                edge.queues.pop((subscriber, number), None)
                return OutputRemoved(edge=edge.name, subscriber=subscriber, number=number)
            case MarkerBind(subscriber=subscriber, number=number, key=marker):
                if (subscriber, number) not in edge.queues:
                    return Refusal(reason=RefusalReason.UNKNOWN, message="no such queue")
                edge.queues[subscriber, number].markers.add(marker)
                return MarkerReady(subscriber=subscriber, number=number, key=marker)
            case RegistryRequest():
                held = tuple(edge.queues[key].subscription for key in sorted(edge.queues))
                return RegistryPage(edge=edge.name, digest=registry_digest(held), subscriptions=held)
            case LoadRequest(session=session):
                load = BrokerLoad(
                    broker=edge.name,
                    state=LoadState.LOW,
                    bytes_in_per_s=0,
                    bytes_offered_per_s=0,
                    messages_in_per_s=0,
                )
                return LoadReply(session=session, load=load)
            case DrainNotice(draining=draining):
                edge.draining = draining
            case _:
                pass
        return None

    def balance(self, name: str) -> None:
        edge = self.edges[name]
        edge.sessions += 1
        others = tuple(other for other in self.edges if other != name)
        self.tell(
            name,
            BalanceRequest(session=f"{name}~1~{edge.sessions}", edge=name, metric=Metric.UPLINK, candidates=others),
        )

    def _plan(self, edge: Edge, message: BalanceCandidates) -> None:
        targets = [candidate.load.broker for candidate in message.candidates]
        if edge.up and targets:
            moves = tuple(
                PlannedMove(subscriber=subscriber, number=number, target=self.random.choice(targets))
                for subscriber, number in sorted(edge.queues)
            )
            outcome = PlanOutcome.RELIEVED if moves else PlanOutcome.NO_IMPROVEMENT
            self.tell(
                edge.name,
                BalancePlan(session=message.session, edge=edge.name, moves=moves, outcome=outcome),
            )

    # Clients

    def is_reachable(self, edge: str) -> bool:
        return self.edges[edge].reachable

    def queue_at(self, subscriber: str, place: Place) -> Queue | None:
        edge, number = place
        return self.edges[edge].queues.get((subscriber, number)) if self.is_reachable(edge) else None

    @property
    def moved(self) -> int:
        return sum(client.moves for client in self.clients.values())

    # What must hold in the end

    def places(self, name: str) -> list[Place]:
        return [
            (edge.name, number)
            for edge in self.edges.values()
            for subscriber, number in sorted(edge.queues)
            if subscriber == name
        ]

    def check(self) -> None:
        for name, client in self.clients.items():
            assert self.places(name) == [client.place], f"{name} is at {client.place}, has {self.places(name)}"
            assert client.first is not None
            expected = set(range(client.first, self.sequence - 10))
            missing = sorted(expected - client.seen)
            assert not missing, f"{name} lacks {len(missing)} messages from {missing[0]} to {missing[-1]}"
