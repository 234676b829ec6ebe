"""Three clusters in a chain: everybody gets exactly what a naive matcher says, and nothing crosses a link in vain.

More deliveries by hand:

    TIDEGATE_CHAIN_DELIVERIES=200000 pytest tests/integration/test_chain.py
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tests.support.links import link_counts
from tests.support.truth import random_pattern, random_topic, wants
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, Message, Subscriber
from tidegate_embedded.cluster import EmbeddedCluster

SEED = 20_131_004
PUBLISHERS = 20
SUBSCRIBERS = 40
BLOCKING_SUBSCRIBERS = 6
"""So many of them use the blocking client, each with a thread of its own."""
DELIVERIES_MIN = int(os.environ.get("TIDEGATE_CHAIN_DELIVERIES", "20000"))
DEADLINE_S = 600.0


@dataclass
class Seen:
    """What one subscriber got: message bodies in order, by publisher."""

    cluster: str
    pattern: str
    edge: str = ""
    bodies: defaultdict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0

    def take(self, message: Message) -> None:
        publisher, _, _ = message.body.partition(b" ")
        self.bodies[publisher.decode()].append(message.body)
        self.count += 1


@dataclass(frozen=True)
class Plan:
    """Who publishes what, where: decided by the seed alone."""

    home: Mapping[str, str]
    topics: Mapping[str, list[str]]

    def body(self, publisher: str, turn: int) -> bytes:
        return f"{publisher} {turn} {self.topics[publisher][turn]}".encode()

    def expected(self, pattern: str) -> dict[str, list[bytes]]:
        found = {
            name: [self.body(name, turn) for turn, topic in enumerate(topics) if wants(pattern, topic)]
            for name, topics in self.topics.items()
        }
        return {name: bodies for name, bodies in found.items() if bodies}


def make_plan(chance: random.Random, clusters: list[str], patterns: list[str], deliveries_min: int) -> Plan:
    """Enough publications for the wanted number of deliveries, shared out evenly among the publishers."""
    topics: dict[str, list[str]] = {f"p{number}": [] for number in range(PUBLISHERS)}
    deliveries = 0
    while deliveries < deliveries_min:
        for drawn in topics.values():
            topic = random_topic(chance)
            drawn.append(topic)
            deliveries += sum(wants(pattern, topic) for pattern in patterns)
    return Plan({name: clusters[number % len(clusters)] for number, name in enumerate(topics)}, topics)


@pytest.mark.timeout(900)
async def test_exact_delivery_over_a_chain_of_clusters(chain: EmbeddedCluster) -> None:
    chance = random.Random(SEED)
    clusters = list(chain.clusters)
    everyone = [Seen(clusters[number % 3], random_pattern(chance)) for number in range(SUBSCRIBERS)]
    plan = make_plan(chance, clusters, [seen.pattern for seen in everyone], DELIVERIES_MIN)

    blocking: list[Subscriber] = []
    asynchronous: list[AsyncSubscriber] = []
    try:
        for number, seen in enumerate(everyone):
            url = chain.url(seen.cluster)
            if number < BLOCKING_SUBSCRIBERS:
                client = Subscriber(url, name=f"s{number}")
                blocking.append(client)
                await asyncio.to_thread(client.open)
                subscription = await asyncio.to_thread(
                    client.subscribe, seen.pattern, deadline=DEADLINE_S, callback=seen.take
                )
            else:
                other = AsyncSubscriber(url, name=f"s{number}")
                asynchronous.append(other)
                await other.open()
                subscription = await other.subscribe(seen.pattern, deadline=DEADLINE_S, callback=seen.take)
            seen.edge = subscription.edge

        async with asyncio.TaskGroup() as group:
            for name in plan.topics:
                group.create_task(publish(chain.url(plan.home[name]), plan, name))

        wanted = [sum(len(bodies) for bodies in plan.expected(seen.pattern).values()) for seen in everyone]
        await eventually(
            lambda: all(seen.count >= want for seen, want in zip(everyone, wanted, strict=True)),
            f"all deliveries arrive (seed {SEED})",
            timeout_s=480,
        )
    finally:
        for other in asynchronous:
            await other.close()
        for client in blocking:
            await asyncio.to_thread(client.close)

    for seen in everyone:
        assert dict(seen.bodies) == plan.expected(seen.pattern), f"{seen.pattern} on {seen.edge} (seed {SEED})"
    assert sum(seen.count for seen in everyone) >= DELIVERIES_MIN
    await check_links(chain, plan, everyone)


async def publish(url: str, plan: Plan, name: str) -> None:
    async with AsyncPublisher(url, name=name) as publisher:
        for turn, topic in enumerate(plan.topics[name]):
            await publisher.publish(topic, plan.body(name, turn))
        await publisher.flush(timeout_s=180)


async def check_links(chain: EmbeddedCluster, plan: Plan, everyone: list[Seen]) -> None:
    """Every link carried just the publications for which there is a subscription behind it."""
    expected = expected_on_links(list(chain.clusters), plan, everyone)
    heads = {broker.cluster: broker for broker in chain.brokers.values() if broker.kind == "head"}
    names = {cluster: head.name for cluster, head in heads.items()}

    async def counted() -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for cluster, head in heads.items():
            for target, count in (await link_counts(head)).items():
                found[cluster, target] += count
        return found

    wanted = Counter({(cluster, names.get(target, target)): count for (cluster, target), count in expected.items()})

    async def settled() -> bool:
        # RabbitMQ's statistics lag by a few seconds, so a count may still be on its way up.
        return (await counted()).total() >= wanted.total()

    await eventually(settled, "RabbitMQ's counters show all that crossed the links")
    assert +(await counted()) == +wanted


def expected_on_links(clusters: list[str], plan: Plan, everyone: list[Seen]) -> Counter[tuple[str, str]]:
    """By (cluster, target): targets are edges of that cluster and the clusters next to it in the chain."""
    on_edge: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for seen in everyone:
        on_edge[seen.cluster, seen.edge].add(seen.pattern)
    counts: Counter[tuple[str, str]] = Counter()
    for name, topics in plan.topics.items():
        home = clusters.index(plan.home[name])
        for topic, repeats in Counter(topics).items():
            wanting = {edge for edge, patterns in on_edge.items() if any(wants(pattern, topic) for pattern in patterns)}
            for cluster, edge in wanting:
                counts[cluster, edge] += repeats
            reached = {clusters.index(cluster) for cluster, _ in wanting}
            for place in range(home, max(reached, default=home)):
                counts[clusters[place], clusters[place + 1]] += repeats
            for place in range(home, min(reached, default=home), -1):
                counts[clusters[place], clusters[place - 1]] += repeats
    return counts
