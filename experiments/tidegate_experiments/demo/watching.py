"""Subscribers that are watched, and the account of whether all that was published reached them.

Uses the SDK as any application would. What a subscriber should have got is known from the publishers' own count and
from the first message that reached it, so that the account does not rely on what it checks.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

from tidegate import AsyncPublisher, AsyncSubscriber, AsyncSubscription, Message
from tidegate_simulator.judging import Judge, Wrong, total

from ..pacing import Pacer
from .story import Audience

LOOK_EVERY_S: Final = 0.05
RECENT: Final = 100
"""Deliveries over which the present latency is told."""


@dataclass(slots=True)
class Watch:
    """What one subscriber saw."""

    audience: Audience
    name: str
    judge: Judge = field(default_factory=Judge)
    """Of what was handed over; the topic has one publisher."""
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    subscription: AsyncSubscription | None = None

    def take(self, message: Message) -> None:
        sequence = message.sequence
        assert sequence is not None, "the demo's publishers number their messages"
        self.judge.take(self.audience.topic, sequence, collected=message.collected)
        self.recent_s.append(message.age_s or 0.0)

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
        return len(self.judge.lost(self.audience.topic, published))


class DeliveryRates:
    """Deliveries per second of each subscriber since the last time they were asked for."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches
        self._last = {watch.name: (time.monotonic(), 0) for watch in watches}

    def now(self) -> dict[str, float]:
        """The rates by name of the subscriber."""
        found: dict[str, float] = {}
        for watch in self._watches:
            then, count = self._last[watch.name]
            moment, delivered = time.monotonic(), watch.judge.deliveries
            self._last[watch.name] = (moment, delivered)
            found[watch.name] = (delivered - count) / (moment - then) if moment > then else 0.0
        return found


@dataclass(frozen=True, slots=True)
class DemoOutcome:
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


class Watched:
    """Publishers and subscribers against one head."""

    settle_s: ClassVar = 10.0
    """How long the last messages may take to arrive before they count as lost."""

    def __init__(self, url: str, audiences: Sequence[Audience], feeds: Sequence[tuple[str, str, float, int]]) -> None:
        """`feeds` are publishers, each with its topic, messages per second and size of their bodies."""
        self._url = url
        self._audiences = audiences
        self._feeds = feeds
        self._stack = AsyncExitStack()
        self._stopped = False
        self.published: Counter[str] = Counter()
        """Confirmed publications per topic."""
        self.watches = [Watch(audience, name) for audience in audiences for name in audience.names]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _subscribe(self, audience: Audience) -> None:
        """Have the subscribers of an audience register."""
        for watch in [watch for watch in self.watches if watch.audience is audience]:
            subscriber = await self._stack.enter_async_context(AsyncSubscriber(self._url, name=watch.name))
            watch.subscription = await subscriber.subscribe(
                audience.topic, deadline=audience.deadline_s, callback=watch.take
            )
            self._stack.push_async_callback(watch.subscription.unsubscribe)

    async def publish(self, seconds: float) -> None:
        """Let every feed run for so long; returns when all of it is confirmed."""
        async with asyncio.TaskGroup() as group:
            for feed in self._feeds:
                group.create_task(self._feed(*feed, seconds))

    async def _feed(self, publisher: str, topic: str, rate_per_s: float, body_bytes: int, seconds: float) -> None:
        """Publish for so long, in a burst faster."""
        loop, body, pacers = asyncio.get_running_loop(), b"." * body_bytes, dict[float, Pacer]()
        until = loop.time() + seconds
        async with AsyncPublisher(self._url, name=publisher) as it:
            while loop.time() < until and not self._stopped:
                factor = self.burst_factor(topic)
                await pacers.setdefault(factor, Pacer(rate_per_s * factor)).wait()
                await it.publish(topic, body)
                self.published[topic] += 1

    def burst_factor(self, topic: str) -> float:
        """How many times its rate a topic has at the moment."""
        raise AssertionError

    def stop(self) -> None:
        """Publish no more, whatever time is left."""
        self._stopped = True

    async def settle(self) -> None:
        """Wait until everything has arrived, within a bound; what has not come by then counts as lost."""
        until = asyncio.get_running_loop().time() + self.settle_s
        while any(watch.lost(self.published[watch.audience.topic]) for watch in self.watches):
            if asyncio.get_running_loop().time() > until:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    def outcome(self) -> DemoOutcome:
        """Over all subscribers, so far."""
        judges = [watch.judge for watch in self.watches]
        return DemoOutcome(
            published=self.published.total(),
            delivered=sum(judge.deliveries for judge in judges),
            lost=sum(watch.lost(self.published[watch.audience.topic]) for watch in self.watches),
            doubled=total(judges, Wrong.DOUBLED),
            out_of_order=total(judges, Wrong.OUT_OF_ORDER),
            late=sum(watch.late for watch in self.watches),
        )
