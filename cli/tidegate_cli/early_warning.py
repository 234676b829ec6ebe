"""The demo's scenario: an early-warning network in miniature, and the book-keeping that says whether all arrived.

It uses the SDK as any application would. Expected deliveries come from matching every publication against every
subscription by hand, so that the summary does not rely on what it checks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate import AsyncPublisher, AsyncSubscriber, AsyncSubscription, Message
from tidegate_protocol.topics import matches

from .pacing import Pacer

SETTLE_S: Final = 10.0
"""How long the last messages may take to arrive before they count as lost."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One publisher that goes through its topics in turn."""

    name: str
    topics: tuple[str, ...]
    rate_per_s: float
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Interest:
    """One subscription: who wants what, and how old it may be."""

    subscriber: str
    pattern: str
    deadline_s: float


FEEDS: Final = (
    Feed("seismometers", ("quake.alert.north", "quake.alert.south", "quake.raw.north"), 40, 300),
    Feed("tide-gauges", ("tide.gauge.harbour", "tide.gauge.cape"), 60, 200),
    Feed("buoys", ("buoy.pressure.1", "buoy.pressure.2", "buoy.battery.1"), 60, 400),
    Feed("citizens", ("social.report.coast", "social.report.city"), 20, 600),
)
INTERESTS: Final = (
    Interest("sirens", "quake.alert.*", 0.5),
    Interest("shore-map", "quake.#", 1.0),
    Interest("forecast", "tide.gauge.*", 1.5),
    Interest("wave-model", "buoy.pressure.*", 1.5),
    Interest("crisis-desk", "social.report.#", 5.0),
    Interest("archive", "#", 30.0),
)


@dataclass
class Watch:
    """What one subscription saw."""

    interest: Interest
    subscription: AsyncSubscription
    seen: Counter[str] = field(default_factory=Counter)

    @property
    def delivered(self) -> int:
        return self.seen.total()

    @property
    def doubled(self) -> int:
        return self.delivered - len(self.seen)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The demo's result, over all subscriptions."""

    published: int
    delivered: int
    lost: int
    doubled: int
    late: int

    @property
    def complete(self) -> bool:
        """Whether everything arrived once. Lateness depends on the machine, too, so it is told but not judged."""
        return self.delivered > 0 and not (self.lost or self.doubled)


class EarlyWarning:
    """Subscribers and publishers of the scenario, against one head."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._published: Counter[str] = Counter()
        self._subscribers: list[AsyncSubscriber] = []
        self.watches: list[Watch] = []

    async def __aenter__(self) -> EarlyWarning:
        for interest in INTERESTS:
            subscriber = AsyncSubscriber(self._url, name=interest.subscriber)
            self._subscribers.append(await subscriber.__aenter__())
            seen: Counter[str] = Counter()
            subscription = await subscriber.subscribe(
                interest.pattern, deadline=interest.deadline_s, callback=_counter(seen)
            )
            self.watches.append(Watch(interest, subscription, seen))
        return self

    async def __aexit__(self, *_: object) -> None:
        for watch in self.watches:
            await watch.subscription.unsubscribe()
        for subscriber in self._subscribers:
            await subscriber.close()

    async def publish(self, seconds: float) -> None:
        """Let every feed run for so long; returns when all of it is confirmed."""
        async with asyncio.TaskGroup() as group:
            for feed in FEEDS:
                group.create_task(self._feed(feed, seconds))

    async def settle(self) -> None:
        """Wait until everything has arrived, within a bound."""
        try:
            async with asyncio.timeout(SETTLE_S):
                while any(watch.delivered < self.expected(watch) for watch in self.watches):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            return  # what has not come counts as lost in the outcome

    def expected(self, watch: Watch) -> int:
        """How many publications so far match the subscription's pattern."""
        return sum(count for topic, count in self._published.items() if matches(watch.interest.pattern, topic))

    def outcome(self) -> Outcome:
        return Outcome(
            published=self._published.total(),
            delivered=sum(watch.delivered for watch in self.watches),
            lost=sum(max(0, self.expected(watch) - len(watch.seen)) for watch in self.watches),
            doubled=sum(watch.doubled for watch in self.watches),
            late=sum(watch.subscription.statistics().late for watch in self.watches),
        )

    @property
    def published(self) -> Mapping[str, int]:
        """Confirmed publications per topic."""
        return self._published

    async def _feed(self, feed: Feed, seconds: float) -> None:
        body = b"." * feed.body_bytes
        async with AsyncPublisher(self._url, name=feed.name) as publisher:
            pacer = Pacer(feed.rate_per_s)
            for turn in range(round(feed.rate_per_s * seconds)):
                await pacer.wait()
                topic = feed.topics[turn % len(feed.topics)]
                await publisher.publish(topic, body, attributes={"station": feed.name, "turn": turn})
                self._published[topic] += 1


def _counter(seen: Counter[str]) -> Callable[[Message], None]:
    def count(message: Message) -> None:
        seen[message.id or "foreign"] += 1

    return count
