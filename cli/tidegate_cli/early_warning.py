"""The demo's story, live: the SDK's publishers and subscribers, and the book-keeping that says whether all arrived.

It uses the SDK as any application would. What a subscriber should have got is known from the publishers' own count and
from the first message that reached it, so that the summary does not rely on what it checks.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from tidegate import AsyncPublisher, AsyncSubscriber, AsyncSubscription, Message

from .pacing import Pacer
from .story import AUDIENCES, FEEDS, JOIN_EVERY_S, Audience, Feed

SETTLE_S: Final = 10.0
"""How long the last messages may take to arrive before they count as lost."""
LOOK_EVERY_S: Final = 0.05
RECENT: Final = 100
"""Deliveries over which the present latency is told."""


@dataclass(slots=True)
class Watch:
    """What one subscriber saw."""

    audience: Audience
    name: str
    seen: Counter[int] = field(default_factory=Counter)
    """How often each sequence number of its one publisher was handed over."""
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    out_of_order: int = 0
    last: int = -1
    subscription: AsyncSubscription | None = None

    def take(self, message: Message) -> None:
        sequence = message.sequence
        assert sequence is not None, "the demo's publishers number their messages"
        self.seen[sequence] += 1
        # What is fetched from an edge that was away is known to be older, and says so.
        self.out_of_order += sequence < self.last and not message.collected
        self.last = max(self.last, sequence)
        self.recent_s.append(message.age_s or 0.0)

    @property
    def delivered(self) -> int:
        return self.seen.total()

    @property
    def doubled(self) -> int:
        return self.delivered - len(self.seen)

    @property
    def edge(self) -> str:
        return (self.subscription.edge if self.subscription is not None else None) or "-"

    @property
    def queue(self) -> str:
        return (self.subscription.queue if self.subscription is not None else None) or ""

    @property
    def late(self) -> int:
        return self.subscription.statistics().late if self.subscription is not None else 0

    def lost(self, published: int) -> int:
        """Of what was published since its first message: what never came."""
        return max(0, published - min(self.seen) - len(self.seen)) if self.seen else published


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run's result, over all subscribers."""

    published: int
    delivered: int
    lost: int
    doubled: int
    out_of_order: int
    late: int

    @property
    def complete(self) -> bool:
        """Whether everything arrived once and in order. Lateness depends on the machine, too: told, not judged."""
        return self.delivered > 0 and not (self.lost or self.doubled or self.out_of_order)

    @classmethod
    def of(cls, published: Counter[str], watches: Sequence[Watch]) -> Outcome:
        """So far, by what was confirmed per topic."""
        return cls(
            published=published.total(),
            delivered=sum(watch.delivered for watch in watches),
            lost=sum(watch.lost(published[watch.audience.topic]) for watch in watches),
            doubled=sum(watch.doubled for watch in watches),
            out_of_order=sum(watch.out_of_order for watch in watches),
            late=sum(watch.late for watch in watches),
        )


async def settled(published: Counter[str], watches: Sequence[Watch], within_s: float) -> None:
    """Wait until everything has arrived; what has not come by then counts as lost in the outcome."""
    until = asyncio.get_running_loop().time() + within_s
    while any(watch.lost(published[watch.audience.topic]) for watch in watches):
        if asyncio.get_running_loop().time() > until:
            return
        await asyncio.sleep(LOOK_EVERY_S)


class EarlyWarning:
    """Publishers and subscribers of the story, against one head."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stack = AsyncExitStack()
        self._shaking = False
        self.published: Counter[str] = Counter()
        """Confirmed publications per topic."""
        self.watches = [Watch(audience, name) for audience in AUDIENCES for name in audience.names]

    async def __aenter__(self) -> EarlyWarning:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def join(self) -> None:
        """Have the subscribers of one topic after another register."""
        for audience in AUDIENCES:
            await asyncio.sleep(JOIN_EVERY_S)
            for watch in [watch for watch in self.watches if watch.audience is audience]:
                subscriber = await self._stack.enter_async_context(AsyncSubscriber(self._url, name=watch.name))
                watch.subscription = await subscriber.subscribe(
                    audience.topic, deadline=audience.deadline_s, callback=watch.take
                )
                self._stack.push_async_callback(watch.subscription.unsubscribe)

    def shake(self) -> None:
        """From now on feeds send their burst."""
        self._shaking = True

    async def play(self, burst_at_s: float, total_s: float, on_burst: Callable[[], None]) -> None:
        """The whole story: feeds run, audiences register, the ground shakes, and the last message arrives."""

        async def shaking() -> None:
            await asyncio.sleep(burst_at_s)
            self.shake()
            on_burst()

        async with asyncio.TaskGroup() as group:
            group.create_task(self.publish(total_s))
            group.create_task(shaking())
            await self.join()
        await self.settle()

    async def publish(self, seconds: float) -> None:
        """Let every feed run for so long; returns when all of it is confirmed."""
        async with asyncio.TaskGroup() as group:
            for feed in FEEDS:
                group.create_task(self._feed(feed, seconds))

    async def settle(self) -> None:
        """Wait until everything has arrived, within a bound."""
        await settled(self.published, self.watches, SETTLE_S)

    def outcome(self) -> Outcome:
        return Outcome.of(self.published, self.watches)

    async def _feed(self, feed: Feed, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        body = b"." * feed.body_bytes
        until = loop.time() + seconds
        calm, burst = Pacer(feed.rate_per_s), Pacer(feed.rate_per_s * feed.burst_factor)
        async with AsyncPublisher(self._url, name=feed.name) as publisher:
            while loop.time() < until:
                await (burst if self._shaking else calm).wait()
                await publisher.publish(feed.topic, body)
                self.published[feed.topic] += 1
