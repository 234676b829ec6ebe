"""As much of a world as checkers look at, made by hand: to show that each of them can fail."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from tidegate_agents.config import BalancingConfig
from tidegate_agents.machine import Action, MessageReceived, Reply, ReplyAddress
from tidegate_protocol.decisions import Decision
from tidegate_protocol.messages import SubscribeReply, SubscribeRequest, Subscription
from tidegate_protocol.names import output_queue
from tidegate_simulator.checkers import Checker
from tidegate_simulator.scenario import EdgeSpec, Fault, HeadSpec, PublisherSpec, Scenario, SubscriberSpec
from tidegate_simulator.world import World

SEED = 7
ADDRESS = ReplyAddress("somebody 1", "1")


def scenario(
    *faults: Fault,
    heads: int = 1,
    edges: int = 2,
    subscribers: tuple[SubscriberSpec, ...] = (SubscriberSpec("s", "h0", "t", 1.0),),
    balancing: BalancingConfig | None = None,
) -> Scenario:
    """Heads in a chain; all edges at the first."""
    names = [f"h{number}" for number in range(heads)]
    return Scenario(
        name="by-hand",
        seed=SEED,
        duration_s=100.0,
        heads=tuple(
            HeadSpec(name, tuple(other for other in names if abs(names.index(other) - names.index(name)) == 1))
            for name in names
        ),
        edges=tuple(EdgeSpec(f"e{number}", "h0") for number in range(edges)),
        publishers=(PublisherSpec("p", names[-1], "t", 1.0, 100.0),),
        subscribers=subscribers,
        faults=faults,
        balancing=balancing or BalancingConfig(),
    )


def subscription(subscriber: str = "s", number: int = 0, pattern: str = "t") -> Subscription:
    return Subscription(subscriber=subscriber, number=number, pattern=pattern, deadline_us=1_000_000, expires_s=600)


class FakeWorld:
    """Queues and routes are put in by hand; checkers are started and told by hand."""

    def __init__(self, plan: Scenario, *checkers: Checker) -> None:
        self.scenario = plan
        self.edges = {edge.name: SimpleNamespace(plane=SimpleNamespace(queues={})) for edge in plan.edges}
        self.heads = {head.name: _head() for head in plan.heads}
        self.brokers: dict[str, Any] = {}
        self.publishers = {
            spec.name: SimpleNamespace(head=spec.head, machine=SimpleNamespace()) for spec in plan.publishers
        }
        self.subscribers = {
            spec.name: SimpleNamespace(up=True, machine=SimpleNamespace(place=("e0", 0)), buffered=())
            for spec in plan.subscribers
        }
        self.dropped: set[tuple[str, str]] = set()
        self.redelivered: set[tuple[str, str]] = set()
        (publisher,) = plan.publishers
        self._stream = "p~1:t" if publisher.contents is None else "p:t"
        self._checkers = checkers
        for checker in checkers:
            checker.started(self.world)

    @property
    def world(self) -> World:
        return cast(World, self)

    def publisher_head(self, publisher: str) -> str:
        head: str = self.publishers[publisher].head
        return head

    def queue(self, edge: str, what: Subscription | None = None, *, consumed: bool = True) -> SimpleNamespace:
        """Put a queue on an edge."""
        made = SimpleNamespace(
            subscription=what or subscription(),
            consumer=object() if consumed else None,
            markers={},
            ready=[],
            unacked=[],
        )
        name = output_queue(made.subscription.subscriber, made.subscription.number)
        self.edges[edge].plane.queues[name] = made
        return made

    def route(self, head: str, target: str, *patterns: str) -> None:
        self.heads[head].plane.routes[target] = set(patterns)

    def step(self, broker: str, now: float, *actions: Action, event: object = None) -> None:
        """An agent did something."""
        for checker in self._checkers:
            checker.stepped(broker, cast(Any, event), list(actions), now)

    def decide(self, broker: str, decision: Decision, now: float) -> None:
        """An agent recorded a decision."""
        for checker in self._checkers:
            checker.decided(broker, decision, now)

    def grant(
        self,
        now: float,
        subscriber: str = "s",
        awaiting: tuple[str, ...] = (),
        edge: str = "e0",
        unreachable: str | None = None,
    ) -> None:
        """The head grants a subscription."""
        request = SubscribeRequest(subscriber=subscriber, pattern="t", deadline_us=1_000_000, unreachable=unreachable)
        reply = SubscribeReply(
            subscription=subscription(subscriber), edge=edge, url=f"amqp://{edge}", queue="out.s.0", awaiting=awaiting
        )
        self.step("h0", now, Reply(ADDRESS, reply), event=MessageReceived(request, ADDRESS))

    def publish(self, sequence: int, now: float) -> None:
        for checker in self._checkers:
            checker.published("p", "t", f"{self._stream}:{sequence}", now)

    def deliver(
        self,
        sequence: int,
        now: float,
        subscriber: str = "s",
        collected: bool = False,
        published_s: float | None = None,
    ) -> None:
        sent_s = now if published_s is None else published_s
        for checker in self._checkers:
            checker.delivered(subscriber, f"{self._stream}:{sequence}", sent_s, now, late=False, collected=collected)

    def end(self, now: float = 150.0) -> list[str]:
        """The names of all violations."""
        for checker in self._checkers:
            checker.ended(self.world, now)
        found = [violation for checker in self._checkers for violation in checker.violations]
        assert all(violation.seed == SEED for violation in found)
        return [violation.name for violation in found]


def leaving(at_s: float) -> tuple[SubscriberSpec, ...]:
    return (replace(scenario().subscribers[0], leaves_s=at_s),)


def _head() -> SimpleNamespace:
    """A head whose neighbours have confirmed everything."""
    return SimpleNamespace(
        plane=SimpleNamespace(routes={}), agent=SimpleNamespace(has_confirmed=lambda neighbour: True)
    )
