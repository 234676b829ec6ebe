"""Drives one agent: hands it events, one at a time, and carries out what it orders, in virtual time.

Message mode and rate mode share this driver. What differs between them stands behind three seams: `Network` carries
control messages, `HeadOrders` and `EdgeOrders` are the data planes. A subclass says when samples are taken and who
watches.

Invariants: orders are begun in the order given; orders on the data plane are done one after another, and only by the
run of the process that gave them; a timer that was set again or cancelled does not fire.

Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.head.agent import HeadAgent
from tidegate_agents.machine import (
    Action,
    ActionFailed,
    AllowAccounts,
    Announce,
    BindMarker,
    CancelTimer,
    ChangeRoutes,
    DeclareOutput,
    DeleteOutput,
    DisconnectPublisher,
    DropLink,
    EnsureLink,
    Event,
    LimitOutput,
    MarkerBound,
    MarkerPublished,
    OutputDeclared,
    OutputDeleted,
    PublishMarker,
    Record,
    Reply,
    ReplyAddress,
    RoutesChanged,
    SampleSoon,
    Send,
    SendClient,
    SetTimer,
    TimerFired,
    UnbindMarker,
    UnwatchFence,
    WatchFence,
)
from tidegate_protocol.balancing.loads import PieLocal
from tidegate_protocol.decisions import Decision
from tidegate_protocol.messages import ControlMessage, Subscription
from tidegate_protocol.names import output_queue

from .clocks import Clock
from .kernel import Kernel

HELD_MAX: Final = 100_000
"""What a frozen process finds when it goes on: timers that are due, orders that were done."""


class Network(Protocol):
    """Carries the control messages of agents."""

    def send(self, sender: Driver, to: str, message: ControlMessage, request_id: str | None) -> None: ...

    def send_client(self, sender: Driver, client: str, message: ControlMessage, request_id: str | None) -> None: ...

    def reply(self, sender: str, to: ReplyAddress, message: ControlMessage) -> None: ...

    def announce(self, sender: Driver, message: PieLocal) -> None: ...


class HeadOrders(Protocol):
    """The data plane of a head, as its agent orders it about."""

    def ensure_link(self, target: str) -> None: ...

    def drop_link(self, target: str) -> None: ...

    def change_routes(self, target: str, add: tuple[str, ...], remove: tuple[str, ...]) -> None: ...

    def publish_marker(self, key: str, targets: tuple[str, ...]) -> None: ...

    def watch_fence(self, neighbour: str, key: str) -> None: ...

    def unwatch_fence(self, neighbour: str, key: str) -> None: ...


class EdgeOrders(Protocol):
    """The data plane of an edge, as its agent orders it about. Queues are known by their names."""

    def declare(self, subscription: Subscription) -> None: ...

    def delete(self, name: str) -> None: ...

    def bind_marker(self, name: str, key: str) -> bool:
        """Whether the queue is there."""

    def unbind_marker(self, name: str, key: str) -> None: ...

    def limit(self, name: str, messages_max: int | None) -> None: ...


class Driver:
    """The process of one broker around its agent."""

    agent: HeadAgent | EdgeAgent

    def __init__(self, kernel: Kernel, network: Network, name: str) -> None:
        self._kernel = kernel
        self._network = network
        self._timers: dict[str, int] = {}
        self._timer_count = 0
        self._plane_free_s = 0.0
        self._held: list[tuple[Callable[[Any], None], Any]] = []
        self.name = name
        self.clock = Clock()
        self.incarnation = 0
        self.up = False
        self.frozen = False

    def post(self, event: Event) -> None:
        """Have the agent handle an event, and do what it orders."""
        if not self.up:
            return
        actions = self._handle(event)
        for action in actions:
            self._carry_out(action)

    def _handle(self, event: Event) -> list[Action]:
        return self.agent.handle(event, self.clock.read(self._kernel.now))

    def _carry_out(self, action: Action) -> None:
        match action:
            case Send(to, message, request_id):
                self._network.send(self, to, message, request_id)
            case SendClient(client, message, request_id):
                self._network.send_client(self, client, message, request_id)
            case Reply(to=address, message=message):
                self._network.reply(self.name, address, message)
            case Announce(message):
                self._network.announce(self, message)
            case SetTimer(name, after_s):
                self._set_timer(name, after_s)
            case CancelTimer(name):
                self._timers.pop(name, None)
            case Record(decision):
                self._decided(decision)
            case SampleSoon(after_s):
                self._sample_soon(after_s)
            case DisconnectPublisher(publisher, _):
                self._disconnect_publisher(publisher)
            case _:
                self._submit(action)

    # Timers

    def _set_timer(self, name: str, after_s: float) -> None:
        self._timer_count += 1
        self._timers[name] = self._timer_count
        self._kernel.after(self.clock.true_duration_s(after_s), self._fire, (name, self._timer_count, self.incarnation))

    def _fire(self, argument: tuple[str, int, int]) -> None:
        name, token, incarnation = argument
        if self._timers.get(name) != token or self._postponed(incarnation, self._fire, argument):
            return
        del self._timers[name]
        self.post(TimerFired(name))

    def _postponed(self, incarnation: int, step: Callable[[Any], None], argument: Any) -> bool:
        """Whether something the process would do now has to wait, or is void."""
        if not self.up or incarnation != self.incarnation:
            return True
        if self.frozen:
            assert len(self._held) < HELD_MAX
            self._held.append((step, argument))
        return self.frozen

    # The data plane

    def _submit(self, action: Action) -> None:
        self._plane_free_s = max(self._plane_free_s, self._kernel.now) + self._order_takes_s()
        self._kernel.at(self._plane_free_s, self._perform_step, (action, self.incarnation))

    def _perform_step(self, argument: tuple[Action, int]) -> None:
        action, incarnation = argument
        if self._postponed(incarnation, self._perform_step, argument):
            return
        done = self._perform(action)
        if done is not None:
            self.post(done)

    def _order_takes_s(self) -> float:
        """How long RabbitMQ takes for an order."""
        return 0.0

    # What the modes and the two kinds of brokers do differently

    def _perform(self, action: Action) -> Event | None:
        """Do it with `perform_on_head` or `perform_on_edge`."""
        raise AssertionError

    def _decided(self, decision: Decision) -> None:
        raise AssertionError

    def _sample_soon(self, after_s: float) -> None:
        raise AssertionError

    def _disconnect_publisher(self, publisher: str) -> None:
        """Close the connection of a publisher that floods, if that is one of this head's."""


def perform_on_head(plane: HeadOrders, action: Action) -> Event | None:
    """Carry out an order on a head's data plane; the event with which the agent learns that it is done."""
    match action:
        case EnsureLink(target=target):
            plane.ensure_link(target)
        case AllowAccounts():
            pass  # Simulated publishers learn it from their head.
        case DropLink(target):
            plane.drop_link(target)
        case ChangeRoutes(change_id, target, add, remove):
            plane.change_routes(target, add, remove)
            return RoutesChanged(change_id)
        case PublishMarker(key, targets):
            plane.publish_marker(key, targets)
            return MarkerPublished(key)
        case WatchFence(neighbour, key):
            plane.watch_fence(neighbour, key)
        case UnwatchFence(neighbour, key):
            plane.unwatch_fence(neighbour, key)
        case _:
            raise AssertionError(f"a head has no use for {type(action).__name__}")
    return None


def perform_on_edge(plane: EdgeOrders, action: Action) -> Event | None:
    """Carry out an order on an edge's data plane; the event with which the agent learns that it is done."""
    match action:
        case DeclareOutput(subscription):
            plane.declare(subscription)
            return OutputDeclared(subscription)
        case DeleteOutput(subscription):
            plane.delete(output_queue(subscription.subscriber, subscription.number))
            return OutputDeleted(subscription.subscriber, subscription.number)
        case BindMarker(subscriber, number, key):
            if plane.bind_marker(output_queue(subscriber, number), key):
                return MarkerBound(subscriber, number, key)
            return ActionFailed(action, "no such queue")
        case UnbindMarker(subscriber, number, key):
            plane.unbind_marker(output_queue(subscriber, number), key)
        case LimitOutput(subscriber, number, messages_max):
            plane.limit(output_queue(subscriber, number), messages_max)
        case _:
            raise AssertionError(f"an edge has no use for {type(action).__name__}")
    return None
