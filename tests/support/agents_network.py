"""Agents in virtual time: heads in a tree, their edges, clients, a network that loses, doubles and delays.

Deterministic: one seed, one history. Every message goes through its wire form. What RabbitMQ would keep
(bindings of links, output queues) outlives a restart of the agent that made it. After each step the agent
that moved is validated, and every grant is checked against the bindings that exist at that moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from tidegate_agents.config import EdgeConfig, HeadConfig, NeighbourConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.head.agent import HeadAgent
from tidegate_agents.machine import (
    Action,
    CancelTimer,
    ChangeRoutes,
    DeclareOutput,
    DeleteOutput,
    DropLink,
    Event,
    MessageReceived,
    OutputDeclared,
    OutputDeleted,
    OutputsListed,
    Reply,
    ReplyAddress,
    ReplyReceived,
    RoutesChanged,
    Send,
    SetTimer,
    Started,
    TimerFired,
    Undeliverable,
)
from tidegate_protocol.messages import (
    ControlMessage,
    Refusal,
    SubscribeReply,
    SubscribeRequest,
    Subscription,
    UnsubscribeReply,
    UnsubscribeRequest,
    decode,
    encode,
)
from tidegate_protocol.topics import covers

CLIENT_PATIENCE_S = 6.0
LISTING_PERIOD_S = 3.0
STEPS_MAX = 200_000


@dataclass(frozen=True)
class Faults:
    """What may happen to a message between brokers."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_max_s: float = 0.02


def maximal(patterns: set[str]) -> set[str]:
    """The covering set by brute force; of equivalent patterns the smallest."""
    return {p for p in patterns if not any(covers(q, p) and (q < p or not covers(p, q)) for q in patterns if q != p)}


@dataclass
class Node:
    """One broker: an agent that may be restarted, and what its RabbitMQ keeps."""

    name: str
    agent: HeadAgent | EdgeAgent
    incarnation: int = 1
    up: bool = True
    timers: dict[str, int] = field(default_factory=dict)
    plane_free_s: float = 0.0
    bindings: dict[str, set[str]] = field(default_factory=dict)
    outputs: dict[tuple[str, int], Subscription] = field(default_factory=dict)


@dataclass
class Call:
    """A client's request, repeated until it is granted."""

    head: str
    message: SubscribeRequest | UnsubscribeRequest
    answer: SubscribeReply | UnsubscribeReply | None = None
    refusals: list[Refusal] = field(default_factory=list)
    sent: int = 0


class Network:
    """`tree` maps each head to its neighbours, `edges` each edge to its head."""

    def __init__(
        self,
        seed: int,
        tree: Mapping[str, tuple[str, ...]],
        edges: Mapping[str, str],
        faults: Faults | None = None,
    ) -> None:
        self.random = Random(seed)
        self.tree, self.edges = tree, edges
        self.faults = faults or Faults()
        self.now = 0.0
        self.calls: list[Call] = []
        self.grants = 0
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.nodes = {name: Node(name, self._head(name, 1)) for name in tree}
        self.nodes |= {name: Node(name, self._edge(name, 1)) for name in edges}
        for name in sorted(self.nodes):
            self._after(self.random.random() * 0.1, lambda name=name: self._boot(name))  # type: ignore[misc]

    def _head(self, name: str, incarnation: int) -> HeadAgent:
        neighbours = tuple(NeighbourConfig(n, f"amqp://{n}") for n in self.tree[name])
        return HeadAgent(HeadConfig(name, f"cluster-{name}", incarnation, neighbours))

    def _edge(self, name: str, incarnation: int) -> EdgeAgent:
        head = self.edges[name]
        config = EdgeConfig(name, f"cluster-{head}", head, f"amqp://{name}", f"amqp://{name}", incarnation)
        return EdgeAgent(config)

    # Time

    def _after(self, delay_s: float, step: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, step))

    def run(self, for_s: float) -> None:
        """Let `for_s` seconds of virtual time pass."""
        end = self.now + for_s
        for _ in range(STEPS_MAX):
            if not self._queue or self._queue[0][0] > end:
                self.now = end
                return
            self.now, _, step = heapq.heappop(self._queue)
            step()
        raise AssertionError(f"more than {STEPS_MAX} steps in {for_s} s")

    def run_until(self, condition: Callable[[], bool], at_most_s: float = 60.0) -> None:
        end = self.now + at_most_s
        while not condition():
            assert self.now < end, f"not within {at_most_s} s"
            self.run(0.25)

    # Brokers

    def _boot(self, name: str) -> None:
        node = self.nodes[name]
        routes = {target: frozenset(bound) for target, bound in node.bindings.items() if bound}
        self._feed(node, Started(routes, tuple(node.outputs.values())))
        if name in self.edges:
            self._list_outputs(node, node.incarnation)

    def stop(self, name: str) -> None:
        """Kill the process: timers, and data-plane actions not yet carried out, are gone."""
        node = self.nodes[name]
        node.up = False
        node.incarnation += 1
        node.timers.clear()

    def start(self, name: str) -> None:
        node = self.nodes[name]
        if not node.up:
            make = self._head if name in self.tree else self._edge
            node.agent, node.up = make(name, node.incarnation), True
            self._boot(name)

    def _feed(self, node: Node, event: Event, incarnation: int | None = None) -> None:
        if not node.up or incarnation not in (None, node.incarnation):
            return
        actions = node.agent.handle(event, self.now)
        node.agent.validate()
        for action in actions:
            self._carry_out(node, action)

    def _carry_out(self, node: Node, action: Action) -> None:
        match action:
            case Send():
                self._send(node, action)
            case Reply():
                self._reply(node, action)
            case SetTimer(name, after_s):
                self._count += 1
                node.timers[name] = token = self._count
                self._after(after_s, lambda: self._fire(node, name, token))
            case CancelTimer(name):
                node.timers.pop(name, None)
            case ChangeRoutes() | DeclareOutput() | DeleteOutput() | DropLink():
                node.plane_free_s = max(node.plane_free_s, self.now) + self.random.random() * 0.02
                incarnation = node.incarnation
                self._after(node.plane_free_s - self.now, lambda: self._change(node, action, incarnation))
            case _:
                pass

    def _fire(self, node: Node, name: str, token: int) -> None:
        if node.timers.get(name) == token:
            del node.timers[name]
            self._feed(node, TimerFired(name))

    def _change(self, node: Node, action: Action, incarnation: int) -> None:
        if incarnation != node.incarnation:
            return  # the process that ordered it was killed first
        match action:
            case ChangeRoutes():
                bound = node.bindings.setdefault(action.target, set())
                bound |= set(action.add)
                bound -= set(action.remove)
                done: Event = RoutesChanged(action.change_id)
            case DeclareOutput(subscription):
                node.outputs[subscription.subscriber, subscription.number] = subscription
                done = OutputDeclared(subscription)
            case DeleteOutput(subscription):
                node.outputs.pop((subscription.subscriber, subscription.number), None)
                done = OutputDeleted(subscription.subscriber, subscription.number)
            case DropLink(target):
                node.bindings.pop(target, None)
                return
            case _:
                raise AssertionError(action)
        self._after(self.random.random() * 0.01, lambda: self._feed(node, done, incarnation))

    def _list_outputs(self, node: Node, incarnation: int) -> None:
        """The runtime looks at its RabbitMQ from time to time; what it saw arrives a little later."""
        if incarnation != node.incarnation:
            return
        seen = tuple(node.outputs.values())
        delay_s = self.random.random() * 0.05
        self._after(delay_s, lambda: self._feed(node, OutputsListed(seen), incarnation))
        self._after(LISTING_PERIOD_S, lambda: self._list_outputs(node, incarnation))

    # Messages

    def _copies(self) -> int:
        if self.random.random() < self.faults.loss:
            return 0
        return 2 if self.random.random() < self.faults.duplication else 1

    def _delay_s(self) -> float:
        return self.random.random() * self.faults.delay_max_s

    def _send(self, node: Node, action: Send) -> None:
        body, incarnation = encode(action.message), node.incarnation
        for _ in range(self._copies()):
            self._after(self._delay_s(), lambda: self._deliver(node, incarnation, action, body))

    def _deliver(self, sender: Node, incarnation: int, action: Send, body: bytes) -> None:
        receiver = self.nodes[action.to]
        request_id = action.request_id
        if not receiver.up:
            if request_id is not None:
                undeliverable = Undeliverable(request_id)
                self._after(self._delay_s(), lambda: self._feed(sender, undeliverable, incarnation))
            return
        reply_to = None
        if request_id is not None:
            reply_to = ReplyAddress(f"{sender.name} {incarnation}", request_id)
        self._feed(receiver, MessageReceived(decode(body), reply_to))

    def _reply(self, node: Node, action: Reply) -> None:
        message = decode(encode(action.message))
        if isinstance(message, SubscribeReply):
            self.check_live(node.name, message)
        name, incarnation = action.to.token.split(" ")
        for _ in range(self._copies()):
            if name == "client":
                call = self.calls[int(incarnation)]
                self._after(self._delay_s(), lambda call=call: self._answer(call, message))  # type: ignore[misc]
            else:
                reply = ReplyReceived(action.to.request, message)
                origin = self.nodes[name]
                self._after(
                    self._delay_s(),
                    lambda origin=origin, reply=reply: self._feed(origin, reply, int(incarnation)),  # type: ignore[misc]
                )

    # Clients

    def subscribe(self, head: str, subscriber: str, pattern: str, deadline_us: int = 1_000_000) -> Call:
        return self._call(head, SubscribeRequest(subscriber=subscriber, pattern=pattern, deadline_us=deadline_us))

    def unsubscribe(self, head: str, subscriber: str, number: int) -> Call:
        return self._call(head, UnsubscribeRequest(subscriber=subscriber, number=number))

    def _call(self, head: str, message: SubscribeRequest | UnsubscribeRequest) -> Call:
        self.calls.append(Call(head, message))
        self._ask(len(self.calls) - 1)
        return self.calls[-1]

    def _ask(self, index: int) -> None:
        call = self.calls[index]
        if call.answer is not None:
            return
        call.sent += 1
        head = self.nodes[call.head]
        event = MessageReceived(call.message, ReplyAddress(f"client {index}", str(call.sent)))
        for _ in range(self._copies()):
            self._after(self._delay_s(), lambda: self._feed(head, event))
        self._after(CLIENT_PATIENCE_S, lambda: self._ask(index))

    def _answer(self, call: Call, message: ControlMessage) -> None:
        if isinstance(message, Refusal):
            call.refusals.append(message)
        elif isinstance(message, SubscribeReply | UnsubscribeReply) and call.answer is None:
            call.answer = message

    # What must hold

    def check_live(self, head: str, reply: SubscribeReply) -> None:
        """A grant means that the route is there, from every head but those in `awaiting` and behind them."""
        self.grants += 1
        pattern = reply.subscription.pattern
        assert self._carries(head, reply.edge, pattern), f"{head} does not carry {pattern} to {reply.edge}"
        reached = [(neighbour, head) for neighbour in self.tree[head]]
        for name, towards in reached:
            if name not in reply.awaiting:
                assert self._carries(name, towards, pattern), f"{name} does not carry {pattern} to {towards}"
                reached += [(n, name) for n in self.tree[name] if n != towards]

    def _carries(self, head: str, target: str, pattern: str) -> bool:
        return any(covers(bound, pattern) for bound in self.nodes[head].bindings.get(target, ()))

    def behind(self, head: str, target: str) -> set[str]:
        """The patterns subscribed to behind the link from `head` to `target`."""
        if target in self.edges:
            return {s.pattern for s in self.nodes[target].outputs.values()}
        found: set[str] = set()
        for edge, owner in self.edges.items():
            if owner == target:
                found |= self.behind(target, edge)
        for neighbour in self.tree[target]:
            if neighbour != head:
                found |= self.behind(target, neighbour)
        return found

    def check_bindings(self) -> None:
        """Every link carries what is needed behind it, and nothing more."""
        for head in self.tree:
            targets = [*self.tree[head], *(edge for edge, owner in self.edges.items() if owner == head)]
            for target in targets:
                truth = maximal(self.behind(head, target))
                bound = self.nodes[head].bindings.get(target, set())
                assert bound == truth, f"{head} to {target}: bound {sorted(bound)}, needed {sorted(truth)}"
