"""What checkers may see of a world: the one place that knows how it is made.

Only reads. The tree of heads is here too, because who is behind whom is part of the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set as AbstractSet
from itertools import pairwise
from typing import TYPE_CHECKING

from tidegate_protocol.topics import covers
from tidegate_simulator.scenario import Scenario, SubscriberSpec

if TYPE_CHECKING:
    from tidegate_simulator.world import World


class Tree:
    """Heads and who is behind whom."""

    def __init__(self, scenario: Scenario) -> None:
        self.neighbours = {head.name: head.neighbours for head in scenario.heads}
        self.edges = {edge.name: edge.head for edge in scenario.edges}

    def edges_of(self, head: str) -> list[str]:
        return sorted(edge for edge, owner in self.edges.items() if owner == head)

    def behind(self, head: str, awaiting: Iterable[str]) -> frozenset[str]:
        """The heads in `awaiting`, and those that are reached from `head` only through one of them."""
        missing = set(awaiting)
        live, to_visit = {head}, [head]
        while to_visit:
            for neighbour in self.neighbours[to_visit.pop()]:
                if neighbour not in missing and neighbour not in live:
                    live.add(neighbour)
                    to_visit.append(neighbour)
        return frozenset(self.neighbours.keys() - live)

    def path(self, start: str, goal: str) -> list[str]:
        """The heads from one to the other, both included."""
        paths = [[start]]
        for path in paths:
            if path[-1] == goal:
                return path
            paths += [[*path, other] for other in self.neighbours[path[-1]] if other not in path]
        raise AssertionError(f"{goal} can't be reached from {start}")


Place = tuple[str, str]
"""An edge and the name of a queue there."""


def queues_of(world: World, subscriber: str) -> list[Place]:
    """All queues of a subscriber, on whatever edge."""
    return [
        (edge, name)
        for edge in sorted(world.edges)
        for name, queue in sorted(world.edges[edge].plane.queues.items())
        if queue.subscription.subscriber == subscriber
    ]


def attached(world: World, subscriber: str) -> list[Place]:
    """The queues of a subscriber that somebody consumes from."""
    places = queues_of(world, subscriber)
    return [(edge, name) for edge, name in places if world.edges[edge].plane.queues[name].consumer is not None]


def markers_of(world: World, subscriber: str) -> list[Place]:
    """The marker keys bound to the queues of a subscriber, each with its edge."""
    places = queues_of(world, subscriber)
    return sorted((edge, key) for edge, name in places for key in world.edges[edge].plane.queues[name].markers)


def waiting_for(world: World, subscriber: str) -> frozenset[str]:
    """The ids of what is in the queues of a subscriber, unacknowledged ones included, and in its client."""
    planes = [(world.edges[edge].plane.queues[name]) for edge, name in queues_of(world, subscriber)]
    found = [message.id for queue in planes for message in (*queue.ready, *queue.unacked)]
    found += [message.id for message in world.subscribers[subscriber].buffered]
    return frozenset(identity for identity in found if identity is not None)


def said_goodbye(world: World, subscriber: str) -> bool:
    """Whether a subscriber that wanted to leave could say so. One that was dead at that moment, or had not been granted
    anything yet, leaves a queue behind that nobody but RabbitMQ can know to be of no use; it expires.
    """
    one = world.subscribers[subscriber]
    return one.up and one.machine is not None and one.machine.place is not None


def backlogged(world: World) -> bool:
    """Whether messages are still on their way to anybody, or wait for an application that is slow."""
    links = [link for head in world.heads.values() for link in head.plane.links.values()]
    queues = [queue for edge in world.edges.values() for queue in edge.plane.queues.values()]
    return (
        any(publisher.backlog for publisher in world.publishers.values())
        or any(head.plane.coming_in for head in world.heads.values())
        or any(not link.empty for link in links)
        or any(queue.ready or queue.unacked for queue in queues)
        or any(subscriber.buffered for subscriber in world.subscribers.values())
    )


def patterns_on(world: World, edge: str) -> set[str]:
    """What the queues of an edge are subscribed to."""
    return {queue.subscription.pattern for queue in world.edges[edge].plane.queues.values()}


def routes(world: World, head: str) -> Mapping[str, AbstractSet[str]]:
    """Per target what a head forwards there."""
    return world.heads[head].plane.routes


def head_of(world: World, publisher: str) -> str:
    """Where a publisher publishes now."""
    return world.publisher_head(publisher)


def was_dropped(world: World, subscriber: str, message_id: str) -> bool:
    """Whether a limit on the queue of this subscriber cost it this message, or one copy of it."""
    return (subscriber, message_id) in world.dropped


def dropped(world: World, subscriber: str) -> frozenset[str]:
    """What a limit on its queue cost a subscriber that was too slow."""
    return frozenset(identity for name, identity in world.dropped if name == subscriber)


def was_redelivered(world: World, subscriber: str, message_id: str) -> bool:
    """Whether this plain message came again because it had not been acknowledged."""
    return (subscriber, message_id) in world.redelivered


def redelivered(world: World, subscriber: str) -> frozenset[str]:
    """The plain messages that came to a subscriber again because they had not been acknowledged."""
    return frozenset(identity for name, identity in world.redelivered if name == subscriber)


def machines(world: World) -> dict[str, object]:
    """The machines of all processes that run, by name."""
    found: dict[str, object] = {name: broker.agent for name, broker in world.brokers.items() if broker.up}
    found |= {name: one.machine for name, one in world.subscribers.items() if one.machine is not None}
    return found | {name: one.machine for name, one in world.publishers.items()}


def route_exists(world: World, tree: Tree, head: str, spec: SubscriberSpec) -> bool:
    """Whether something published at `head` now would reach a queue of this subscription, by routes that all heads on
    the way have confirmed: one that is left over from a subscription before may be about to go.
    """
    for edge, _ in queues_of(world, spec.name):
        heads = tree.path(head, tree.edges[edge])
        bound = all(
            any(covers(bound, spec.pattern) for bound in routes(world, here).get(there, ()))
            for here, there in pairwise([*heads, edge])
        )
        if bound and all(world.heads[there].agent.has_confirmed(here) for here, there in pairwise(heads)):
            return True
    return False
