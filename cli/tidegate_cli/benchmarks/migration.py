"""`tidegate bench migration`: a hundred subscribers moved under load, and how long each went without a message.

All of them sit on one edge. In each round that edge is drained, as for maintenance, while publishers go on at a steady
rate; the other edge takes everybody, and is drained in the next round. The gap of one move is what the subscriber's
application noticed: how much longer than usual a message took, or the pause between two of them lasted beyond the
publishing interval, whichever is more. Link delays are in the usual latency, so they don't count.

Needs nothing but the address of a head with two edges, so it runs on any cluster.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from tidegate import AsyncPublisher, AsyncSubscriber, AsyncSubscription, Message
from tidegate_brokers.embedded.cluster import EmbeddedCluster
from tidegate_brokers.topology import Topology
from tidegate_protocol.balancing import DrainReply, DrainRequest
from tidegate_protocol.messages import StatusReply, StatusRequest

from ..ask import Asking
from ..console import Report
from ..errors import CommandFailed
from ..pacing import Pacer

TOPICS: Final = 10
RATE_PER_S: Final = 20.0
"""Messages per second and topic: enough that a pause shows, little enough that two cores carry it beside RabbitMQ."""
BODY: Final = b"." * 300
DEADLINE_S: Final = 5.0
CALM_S: Final = 3.0
"""How long it is watched before anything moves, to know the usual latency."""
AFTER_S: Final = 1.0
"""What counts as part of a move after its end."""
LOOK_EVERY_S: Final = 0.05
ROUND_S_MAX: Final = 120.0
SETTLE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is moved, and how often."""

    subscribers: int = 100
    rounds: int = 3


@dataclass(slots=True)
class Watch:
    """One subscriber's deliveries: when each came, and how old it was."""

    name: str
    topic: str
    arrivals: list[tuple[float, float]] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    seen: int = 0
    out_of_order: int = 0
    doubled: int = 0

    def take(self, message: Message) -> None:
        self.arrivals.append((time.monotonic(), message.age_s or 0.0))
        publisher, sequence = message.publisher or "", message.sequence or 0
        before = self.last.get(publisher, -1)
        self.doubled += sequence == before
        self.out_of_order += sequence < before
        self.last[publisher] = max(sequence, before)
        self.seen += 1

    def gap_ms(self, began: float, ended: float, usual_s: float) -> float:
        """The longest that this subscriber was kept waiting between these moments, beyond what is usual."""
        window = [arrival for arrival in self.arrivals if began <= arrival[0] <= ended]
        if len(window) < 2:
            return (ended - began) * 1000
        added_s = max(age for _, age in window) - usual_s
        pause_s = max(later[0] - earlier[0] for earlier, later in pairwise(window))
        return max(0.0, added_s, pause_s - 1.0 / RATE_PER_S) * 1000


@dataclass(slots=True)
class _Load:
    """Publishers that go on until told to stop."""

    url: str
    published: dict[str, int] = field(default_factory=dict)
    stopping: bool = False

    async def publish(self, topic: str) -> None:
        pacer = Pacer(RATE_PER_S)
        async with AsyncPublisher(self.url, name=f"bench-{topic.rpartition('.')[2]}") as publisher:
            while not self.stopping:
                await pacer.wait()
                await publisher.publish(topic, BODY)
                self.published[topic] = self.published.get(topic, 0) + 1


class Bench:
    """The subscribers, the load, and the operator who drains."""

    def __init__(self, url: str, size: Size, report: Report) -> None:
        self._url = url
        self._size = size
        self._report = report
        self._watches: list[Watch] = []
        self._subscriptions: list[AsyncSubscription] = []
        self._load = _Load(url)

    async def run(self) -> dict[str, Any]:
        """All rounds; returns the figures."""
        async with AsyncExitStack() as stack:
            head = await stack.enter_async_context(Asking(self._url))
            home, away = await self._edges(head)
            # Everybody starts on one edge: the other takes nobody for now.
            await _drain(head, away, True)
            await self._subscribe(stack)
            await _drain(head, away, False)
            publishing = [asyncio.create_task(self._load.publish(_topic(index))) for index in range(TOPICS)]
            try:
                gaps, durations = await self._rounds(head, home, away)
            finally:
                self._load.stopping = True
                await asyncio.gather(*publishing)
            await self._settle()
            return self._figures(gaps, durations)

    async def _edges(self, head: Asking) -> tuple[str, str]:
        status = await head.ask(StatusRequest(), StatusReply)
        alive = sorted(edge.edge for edge in status.edges if edge.alive)
        if len(alive) != 2:
            found = ", ".join(alive) or "none"
            raise CommandFailed(f"the cluster of {status.head} has {len(alive)} edges alive ({found}); this takes two")
        return alive[0], alive[1]

    async def _subscribe(self, stack: AsyncExitStack) -> None:
        for index in range(self._size.subscribers):
            watch = Watch(f"bench-subscriber-{index}", _topic(index % TOPICS))
            subscriber = await stack.enter_async_context(AsyncSubscriber(self._url, name=watch.name))
            subscription = await subscriber.subscribe(watch.topic, deadline=DEADLINE_S, callback=watch.take)
            stack.push_async_callback(subscription.unsubscribe)
            self._watches.append(watch)
            self._subscriptions.append(subscription)
            self._report("subscribers", index + 1, self._size.subscribers)

    async def _rounds(self, head: Asking, home: str, away: str) -> tuple[list[float], list[float]]:
        gaps: list[float] = []
        durations: list[float] = []
        for number in range(self._size.rounds):
            calm_began = time.monotonic()
            await asyncio.sleep(CALM_S)
            usual_s = self._usual_s(calm_began)
            began = time.monotonic()
            await _drain(head, home, True)
            await self._all_on(away)
            ended = time.monotonic()
            await _emptied(head, home)
            await asyncio.sleep(max(0.0, ended + AFTER_S - time.monotonic()))
            durations.append(ended - began)
            gaps += [watch.gap_ms(began, ended + AFTER_S, usual_s) for watch in self._watches]
            await _drain(head, home, False)
            home, away = away, home
            self._report("rounds", number + 1, self._size.rounds)
        return gaps, durations

    def _usual_s(self, since: float) -> float:
        """The median latency while nothing moves."""
        ages = [age for watch in self._watches for at, age in watch.arrivals if at >= since]
        if not ages:
            raise CommandFailed("nothing was delivered before the first move: look at the logs of the brokers")
        return statistics.median(ages)

    async def _all_on(self, edge: str) -> None:
        """Wait until every subscriber is served from `edge` and nothing of its move is left."""
        try:
            async with asyncio.timeout(ROUND_S_MAX):
                while any(one.edge != edge or not one.attached for one in self._subscriptions):
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            stuck = [
                watch.name for watch, one in zip(self._watches, self._subscriptions, strict=True) if one.edge != edge
            ]
            shown = ", ".join(stuck[:5])
            raise CommandFailed(
                f"{len(stuck)} subscribers have not moved to {edge} in {ROUND_S_MAX:g} s: {shown}"
            ) from None

    async def _settle(self) -> None:
        """Wait for what is under way, within a bound: what has not come by then is lost."""
        until = time.monotonic() + SETTLE_S
        while self._lost() and time.monotonic() < until:
            await asyncio.sleep(LOOK_EVERY_S)

    def _lost(self) -> int:
        return sum(max(0, self._load.published.get(watch.topic, 0) - watch.seen) for watch in self._watches)

    def _figures(self, gaps: list[float], durations: list[float]) -> dict[str, Any]:
        statistics_of = [subscription.statistics() for subscription in self._subscriptions]
        quantiles = statistics.quantiles(gaps, n=100, method="inclusive")
        return {
            "subscribers": self._size.subscribers,
            "rounds": self._size.rounds,
            "moves": len(gaps),
            "messages_per_s": TOPICS * RATE_PER_S * self._size.subscribers / TOPICS,
            "gap_p50_ms": round(quantiles[49], 1),
            "gap_p99_ms": round(quantiles[98], 1),
            "gap_max_ms": round(max(gaps), 1),
            "duration_s": round(statistics.median(durations), 2),
            "deliveries": sum(watch.seen for watch in self._watches),
            "lost": self._lost(),
            "duplicates": sum(watch.doubled for watch in self._watches),
            "duplicates_removed": sum(one.duplicates for one in statistics_of),
            "out_of_order": sum(watch.out_of_order for watch in self._watches),
        }


async def run_migration(url: str | None, size: Size, report: Report) -> dict[str, Any]:
    """Measure on the cluster at `url`, or on one started for this."""
    if url is not None:
        return await Bench(url, size, report).run()
    async with EmbeddedCluster(Topology.simple(clusters=1, edges=2), compact=True, progress=report) as cluster:
        return await Bench(cluster.url(next(iter(cluster.clusters))), size, report).run()


def _topic(index: int) -> str:
    return f"bench.move.{index}"


async def _drain(head: Asking, edge: str, draining: bool) -> DrainReply:
    return await head.ask(DrainRequest(edge=edge, draining=draining), DrainReply)


async def _emptied(head: Asking, edge: str) -> None:
    """Wait until the head counts nobody there any more."""
    until = time.monotonic() + ROUND_S_MAX
    while (await _drain(head, edge, True)).left:
        if time.monotonic() > until:
            raise CommandFailed(f"{edge} is not empty after {ROUND_S_MAX:g} s")
        await asyncio.sleep(LOOK_EVERY_S)
