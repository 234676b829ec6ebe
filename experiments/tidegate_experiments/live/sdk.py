"""Clients of a live run that are the SDK's own: what an application would use, with nothing taken away.

They cost several times what lean clients do, so that only some take part, or all of them at a lower scale. Invariant:
they publish and subscribe what and when the lean clients they stand for would have.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from tidegate import AsyncPublisher, AsyncSubscriber, AsyncSubscription, Message
from tidegate._core.config import PREFETCH_MAX
from tidegate_simulator.scenario import PublisherSpec, SubscriberSpec

from ..lean.subscriber import MoveSeen, PlaceSeen, PublisherNumbers
from .journal import Journal
from .workload import body_bytes, due_times_s

LOOK_S: Final = 0.05
"""How often it is looked where a subscription is served from."""


class SdkPublisher:
    """One publisher of one topic."""

    def __init__(
        self, spec: PublisherSpec, number: int, url: str, persistent: bool, journal: Journal, subscribers: int
    ) -> None:
        self._spec = spec
        self._subscribers = subscribers
        self._persistent = persistent
        self._journal = journal
        self._publisher = AsyncPublisher(url, spec.name)
        self.number = number
        self.name = spec.name
        self.sequence = 0

    async def open(self) -> None:
        await self._publisher.open()

    async def run(self, began_us: int, duration_s: float) -> None:
        """Publish everything, each publication when it is due."""
        for due_s in due_times_s(self._spec, duration_s):
            due_us = began_us + round(due_s * 1e6)
            await asyncio.sleep(max(due_us / 1e6 - time.time(), 0.0))
            now_us = time.time_ns() // 1000
            size = body_bytes(self._spec, self._publisher.id, self.sequence, self._subscribers)
            await self._publisher.publish(self._spec.topic, bytes(size), persistent=self._persistent)
            self._journal.published(self.number, self.sequence, due_us, now_us)
            self.sequence += 1
        await self._publisher.flush()

    async def close(self) -> None:
        await self._publisher.close()


class SdkSubscriber:
    """One subscriber with one subscription."""

    def __init__(
        self, spec: SubscriberSpec, number: int, url: str, publishers: PublisherNumbers, journal: Journal
    ) -> None:
        self._spec = spec
        self._number = number
        self._publishers = publishers
        self._journal = journal
        self._subscriber = AsyncSubscriber(url, spec.name)
        self._subscription: AsyncSubscription | None = None
        self._edge = ""
        self.name = spec.name
        self.pattern = spec.pattern
        self.highest: dict[int, int] = {}
        self.moves: list[MoveSeen] = []
        self.places: list[PlaceSeen] = []

    async def open(self) -> None:
        await self._subscriber.open()

    async def subscribe(self) -> None:
        """Register, and watch where that leads."""
        self._subscription = await self._subscriber.subscribe(
            self._spec.pattern,
            self._spec.deadline_s,
            callback=self._take,
            prefetch=min(self._spec.prefetch, PREFETCH_MAX),
        )
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        await self._subscriber.close()

    @property
    def attached(self) -> bool:
        return self._subscription is not None and self._subscription.attached

    def _take(self, message: Message) -> None:
        arrived_us = time.time_ns() // 1000
        if message.id is None:
            return
        stream, _, sequence = message.id.rpartition(":")
        publisher, number = self._publishers[stream], int(sequence)
        self._journal.delivered(
            self._number, publisher, number, message.published_us or 0, arrived_us, message.collected
        )
        if number > self.highest.get(publisher, -1):
            self.highest[publisher] = number

    def _look(self) -> None:
        assert self._subscription is not None
        edge = self._subscription.edge
        if edge is None or edge == self._edge:
            return
        now_us = time.time_ns() // 1000
        if self._edge:
            self.moves.append(MoveSeen(now_us, self.name, self.pattern, self._edge, edge, ""))
        self._edge = edge
        self.places.append(PlaceSeen(now_us, self.name, edge))
