"""Drives one head's agent by hand: what it is told, what it does."""

from __future__ import annotations

from typing import TypeVar

from tidegate_agents.config import HeadConfig, NeighbourConfig
from tidegate_agents.head.agent import HeadAgent
from tidegate_agents.kit.subscriptions import registry_digest
from tidegate_agents.machine import (
    Action,
    ChangeRoutes,
    Event,
    MessageReceived,
    Reply,
    ReplyAddress,
    ReplyReceived,
    RoutesChanged,
    Send,
    Started,
    TimerFired,
)
from tidegate_protocol.messages import (
    ControlMessage,
    EdgeHello,
    OutputPrepare,
    OutputReady,
    RoutesAccepted,
    RoutesUpdate,
    SubscribeRequest,
    Subscription,
)
from tidegate_protocol.names import output_queue

M = TypeVar("M")


def subscription(subscriber: str = "s", number: int = 0, pattern: str = "a") -> Subscription:
    return Subscription(subscriber=subscriber, number=number, pattern=pattern, deadline_us=1_000, expires_s=600)


def subscribe(subscriber: str = "s", pattern: str = "a", deadline_us: int = 1_000) -> SubscribeRequest:
    return SubscribeRequest(subscriber=subscriber, pattern=pattern, deadline_us=deadline_us, expires_s=600)


class Driver:
    """A head `h` of cluster `c`, with the answers of its surroundings given by the test."""

    def __init__(self, *neighbours: str, routes: dict[str, frozenset[str]] | None = None, **config: float) -> None:
        names = tuple(NeighbourConfig(name, f"amqp://{name}") for name in neighbours)
        self.agent = HeadAgent(HeadConfig("h", "c", 7, names, **config))  # type: ignore[arg-type]
        self.now = 100.0
        self._requests = 0
        self.first = self.give(Started(routes or {}))

    def give(self, event: Event) -> list[Action]:
        actions = self.agent.handle(event, self.now)
        self.agent.validate()
        return actions

    def tell(self, message: ControlMessage) -> list[Action]:
        """A message whose sender wants an answer."""
        self._requests += 1
        return self.give(MessageReceived(message, ReplyAddress("peer", str(self._requests))))

    def answer(self, request: Send, message: ControlMessage) -> list[Action]:
        assert request.request_id is not None
        return self.give(ReplyReceived(request.request_id, message))

    def tick(self, seconds: float = 1.0) -> list[Action]:
        self.now += seconds
        return self.give(TimerFired("tick"))

    def hello(
        self,
        edge: str,
        *subscriptions: Subscription,
        draining: bool = False,
        cluster: str = "c",
        alarms: tuple[str, ...] = (),
    ) -> list[Action]:
        return self.tell(
            EdgeHello(
                edge=edge,
                cluster=cluster,
                client_url=f"amqp://{edge}:1",
                link_url=f"amqp://{edge}:2",
                registry_count=len(subscriptions),
                registry_digest=registry_digest(subscriptions),
                draining=draining,
                alarms=alarms,
            )
        )

    def bind(self, actions: list[Action]) -> list[Action]:
        """Carry out all binding changes."""
        done = []
        for change in of(actions, ChangeRoutes):
            done += self.give(RoutesChanged(change.change_id))
        return done

    def ready(self, prepare: Send) -> list[Action]:
        assert isinstance(prepare.message, OutputPrepare)
        asked = prepare.message.subscription
        return self.answer(prepare, OutputReady(subscription=asked, queue=output_queue(asked.subscriber, asked.number)))

    def accept(self, update: Send, *awaiting: str) -> list[Action]:
        assert isinstance(update.message, RoutesUpdate)
        return self.answer(update, RoutesAccepted(head=update.to, version=update.message.version, awaiting=awaiting))


def of(actions: list[Action], kind: type[M]) -> list[M]:
    return [action for action in actions if isinstance(action, kind)]


def replies(actions: list[Action], kind: type[M]) -> list[M]:
    return [action.message for action in actions if isinstance(action, Reply) and isinstance(action.message, kind)]


def sent(actions: list[Action], kind: type[ControlMessage], to: str | None = None) -> list[Send]:
    return [
        action
        for action in actions
        if isinstance(action, Send) and isinstance(action.message, kind) and to in (None, action.to)
    ]
