"""A load for a cluster that runs already: some topics, subscribers of each, and a burst of one topic.

It is sized by what one edge can take in, so that the same load fits any cluster: calm, a topic takes a quarter of an
edge; in the burst, one topic takes what its edge has left and a little more. That topic is chosen where others share
the edge, because those are what can be moved out of its way. Uses the SDK as any application would.
"""

from __future__ import annotations

import asyncio
from typing import Final

from .story import Audience
from .watching import Watched

CALM_SHARE: Final = 0.25
"""Of what an edge can take in, for one topic."""
BURST_SHARE: Final = 1.1
"""What the edge of the bursting topic is offered."""
OVERHEAD_BYTES: Final = 150
"""About what AMQP adds to a body."""
JOIN_EVERY_S: Final = 1.0
"""Topic after topic, so that each finds the load of those before it."""


class Load(Watched):
    """Publishers and subscribers against one head."""

    settle_s = 60.0
    """Long enough for a RabbitMQ to start again."""

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
        self.topics = [f"load.{number}" for number in range(1, topics + 1)]
        names = [f"{user}-{topic.replace('.', '-')}" for topic in self.topics]
        audiences = [Audience(*one, deadline, subscribers) for one in zip(names, self.topics, strict=True)]
        body_bytes = max(1, round(CALM_SHARE * edge_bytes_per_s / rate) - OVERHEAD_BYTES)
        super().__init__(url, audiences, [(one.name, one.topic, rate, body_bytes) for one in audiences])
        self._factors: dict[str, float] = {}

    async def join(self) -> None:
        """Have everybody subscribe, with a little of each topic flowing already."""
        for audience in self._audiences:
            await self._subscribe(audience)
            await asyncio.sleep(JOIN_EVERY_S)

    def places(self) -> dict[str, str]:
        """The edge of each subscriber."""
        return {watch.name: watch.edge for watch in self.watches}

    def burst_factor(self, topic: str) -> float:
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
