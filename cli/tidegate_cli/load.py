"""A load for a cluster that runs already: some topics, subscribers of each, and a burst of one topic.

It is sized by what one edge can take in, so that the same load fits any cluster: calm, a topic takes a quarter of an
edge; in the burst, one topic takes what its edge has left and a little more. That topic is chosen where others share
the edge, because those are what can be moved out of its way. Uses the SDK as any application would.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Final, Self

from tidegate import AsyncPublisher, AsyncSubscriber

from .early_warning import Outcome, Watch, settled
from .pacing import Pacer
from .story import Audience

CALM_SHARE: Final = 0.25
"""Of what an edge can take in, for one topic."""
BURST_SHARE: Final = 1.1
"""What the edge of the bursting topic is offered."""
OVERHEAD_BYTES: Final = 150
"""About what AMQP adds to a body."""
JOIN_EVERY_S: Final = 1.0
"""Topic after topic, so that each finds the load of those before it."""
SETTLE_S: Final = 60.0
"""How long the last messages may take before they count as lost: long enough for a RabbitMQ to start again."""


class Load:
    """Publishers and subscribers against one head."""

    def __init__(
        self,
        url: str,
        user: str,
        *,
        edge_bytes_per_s: float,
        topics: int,
        subscribers: int,
        rate: float,
        deadline: float,
    ) -> None:
        self._url = url
        self._user = user
        self._rate_per_s = rate
        self._body = b"." * max(1, round(CALM_SHARE * edge_bytes_per_s / rate) - OVERHEAD_BYTES)
        self._stack = AsyncExitStack()
        self._factors: dict[str, float] = {}
        self._stopped = False
        self.topics = [f"load.{number}" for number in range(1, topics + 1)]
        self.published: Counter[str] = Counter()
        self.watches = [
            Watch(audience, name)
            for topic in self.topics
            for audience in [Audience(f"{user}-{topic.replace('.', '-')}", topic, deadline, subscribers)]
            for name in audience.names
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def join(self) -> None:
        """Have everybody subscribe, with a little of each topic flowing already."""
        for topic in self.topics:
            for watch in [watch for watch in self.watches if watch.audience.topic == topic]:
                subscriber = await self._stack.enter_async_context(AsyncSubscriber(self._url, name=watch.name))
                watch.subscription = await subscriber.subscribe(
                    topic, deadline=watch.audience.deadline_s, callback=watch.take
                )
                self._stack.push_async_callback(watch.subscription.unsubscribe)
            await asyncio.sleep(JOIN_EVERY_S)

    def places(self) -> dict[str, str]:
        """The edge of each subscriber."""
        return {watch.name: watch.edge for watch in self.watches}

    def burst_factor(self, topic: str) -> float:
        """How many times its rate a topic has at the moment."""
        return self._factors.get(topic, 1.0)

    def shake(self) -> str:
        """From now on one topic bursts: which."""
        edges: dict[str, set[str]] = {}
        for watch in self.watches:
            edges.setdefault(watch.edge, set()).add(watch.audience.topic)
        topics = max(edges.values(), key=lambda found: (len(found), sorted(found)))
        topic = min(topics)
        left = BURST_SHARE - CALM_SHARE * (len(topics) - 1)
        self._factors[topic] = max(left, CALM_SHARE) / CALM_SHARE
        return topic

    async def publish(self, seconds: float) -> None:
        """Let every topic run for so long; returns when all of it is confirmed."""
        async with asyncio.TaskGroup() as group:
            for topic in self.topics:
                group.create_task(self._feed(topic, seconds))

    def stop(self) -> None:
        """Publish no more, whatever time is left."""
        self._stopped = True

    async def settle(self) -> None:
        """Wait until everything has arrived, within a bound."""
        await settled(self.published, self.watches, SETTLE_S)

    def outcome(self) -> Outcome:
        """Over all subscribers, so far."""
        return Outcome.of(self.published, self.watches)

    async def _feed(self, topic: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        pacers: dict[float, Pacer] = {}
        async with AsyncPublisher(self._url, name=f"{self._user}-{topic.replace('.', '-')}") as publisher:
            while loop.time() < until and not self._stopped:
                factor = self.burst_factor(topic)
                await pacers.setdefault(factor, Pacer(self._rate_per_s * factor)).wait()
                await publisher.publish(topic, self._body)
                self.published[topic] += 1
