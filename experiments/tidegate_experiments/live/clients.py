"""The clients of one worker process as a whole: all lean, or all of the SDK.

Both kinds offer the same to the worker: connect, begin at time zero, say how much was published, end. Everything else
about them is in the files of the clients themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidegate_simulator.scenario import PublisherSpec, Scenario, SubscriberSpec

from ..lean.codec import Address
from ..lean.head_line import Client, HeadLine
from ..lean.publisher import LeanPublisher, LeanPublishers
from ..lean.subscriber import LeanSubscriber, MoveSeen, PlaceSeen, PublisherNumbers
from .journal import Journal
from .sdk import SdkPublisher, SdkSubscriber
from .workload import subscribers_of

ACKNOWLEDGE_S: Final = 0.05
"""How often a lean subscriber acknowledges, as often as one of the SDK."""
ACKNOWLEDGE_TURNS: Final = 5
"""Not all at once: what queues hold would rise and fall together, and look like load."""


class SubscriberLike(Protocol):
    """What a worker wants to know of a subscriber."""

    name: str
    pattern: str
    highest: dict[int, int]
    moves: list[MoveSeen]
    places: list[PlaceSeen]

    @property
    def attached(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Cast:
    """Which clients there are, each with its number in the scenario, and where they find the head."""

    scenario: Scenario
    publishers: Sequence[tuple[int, PublisherSpec]]
    subscribers: Sequence[tuple[int, SubscriberSpec]]
    publish_url: str
    head_url: str
    persistent: bool
    journal: Journal


class Clients:
    """What both kinds have in common."""

    subscribers: Sequence[SubscriberLike]

    def __init__(self, cast: Cast) -> None:
        self._joins_s = {spec.name: spec.joins_s for _, spec in cast.subscribers}
        self._numbers = PublisherNumbers(spec.name for spec in cast.scenario.publishers)
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect to the head."""
        raise AssertionError

    def start(self, began_us: int) -> None:
        """Begin: time zero is at `began_us`."""
        raise AssertionError

    async def published(self) -> dict[int, int]:
        """Wait until everything is published, and say how much of each publisher."""
        raise AssertionError

    async def close(self) -> None:
        """End everything at once: the run is over."""
        raise AssertionError

    @property
    def control_sent(self) -> int:
        """Control messages that these clients have sent."""
        return 0

    @property
    def refused(self) -> int:
        """Publications that RabbitMQ did not take."""
        return 0

    @property
    def losses(self) -> list[str]:
        """Connections to edges that were lost, and why."""
        return []

    def _spawn(self, work: Coroutine[Any, Any, None], *, publishing: bool = False) -> None:
        task = asyncio.get_running_loop().create_task(work)
        (self._publishing if publishing else self._tasks).append(task)


class LeanClients(Clients):
    """Lean publishers on one connection, lean subscribers on one each."""

    subscribers: Sequence[LeanSubscriber]

    def __init__(self, cast: Cast) -> None:
        super().__init__(cast)
        head, beside = Address.parse(cast.head_url), Address.parse(cast.publish_url)
        self.subscribers = [
            LeanSubscriber(spec, number, head, self._numbers, cast.journal) for number, spec in cast.subscribers
        ]
        scenario, persistent = cast.scenario, cast.persistent
        self._publishers = [
            LeanPublisher(spec, number, scenario.duration_s, persistent, subscribers_of(scenario, spec.topic))
            for number, spec in cast.publishers
        ]
        self._sending = LeanPublishers(self._publishers, beside, cast.journal)
        self._lines: list[HeadLine] = []
        self._ready = asyncio.Event()
        self._add_line(head, "subscribers control", list(self.subscribers))
        self._add_line(beside, "publishers control", list(self._publishers))

    def _add_line(self, address: Address, name: str, clients: list[Any]) -> None:
        if not clients:
            return
        known: list[Client] = clients
        line = HeadLine(address, name, known, self._ready.set)
        for client in clients:
            client.line = line
        self._lines.append(line)

    async def open(self) -> None:
        for line in self._lines:
            self._ready.clear()
            line.open()
            await self._ready.wait()
        if self._publishers:
            await self._sending.connect()

    def start(self, began_us: int) -> None:
        loop = asyncio.get_running_loop()
        delay_s = began_us / 1e6 - time.time()
        for subscriber in self.subscribers:
            loop.call_later(max(delay_s + self._joins_s[subscriber.name], 0.0), subscriber.start)
        if self.subscribers:
            self._spawn(self._acknowledge())
        if self._publishers:
            self._spawn(self._sending.run(began_us), publishing=True)
            self._spawn(self._control(delay_s))

    async def _control(self, delay_s: float) -> None:
        await asyncio.sleep(max(delay_s, 0.0))
        await self._sending.control()

    async def _acknowledge(self) -> None:
        while True:
            for turn in range(ACKNOWLEDGE_TURNS):
                await asyncio.sleep(ACKNOWLEDGE_S / ACKNOWLEDGE_TURNS)
                for subscriber in self.subscribers[turn::ACKNOWLEDGE_TURNS]:
                    subscriber.flush()

    async def published(self) -> dict[int, int]:
        await asyncio.gather(*self._publishing)
        if self._sending.problem:
            raise ConnectionError(f"the publishers lost their connection: {self._sending.problem}")
        return {one.number: one.sequence for one in self._publishers}

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for subscriber in self.subscribers:
            subscriber.stop()
        self._sending.close()
        for line in self._lines:
            line.close()

    @property
    def control_sent(self) -> int:
        return sum(line.sent for line in self._lines)

    @property
    def refused(self) -> int:
        return self._sending.refused

    @property
    def losses(self) -> list[str]:
        return [f"{one.name}: {problem}" for one in self.subscribers for problem in one.losses]


class SdkClients(Clients):
    """Publishers and subscribers of the SDK."""

    subscribers: Sequence[SdkSubscriber]

    def __init__(self, cast: Cast) -> None:
        super().__init__(cast)
        self._duration_s = cast.scenario.duration_s
        self.subscribers = [
            SdkSubscriber(spec, number, cast.head_url, self._numbers, cast.journal) for number, spec in cast.subscribers
        ]
        url, persistent, journal = cast.publish_url, cast.persistent, cast.journal
        self._publishers = [
            SdkPublisher(spec, number, url, persistent, journal, subscribers_of(cast.scenario, spec.topic))
            for number, spec in cast.publishers
        ]

    async def open(self) -> None:
        await asyncio.gather(*[one.open() for one in self._publishers], *[one.open() for one in self.subscribers])

    def start(self, began_us: int) -> None:
        for publisher in self._publishers:
            self._spawn(publisher.run(began_us, self._duration_s), publishing=True)
        for subscriber in self.subscribers:
            self._spawn(self._join(subscriber, began_us / 1e6 + self._joins_s[subscriber.name]))

    async def _join(self, subscriber: SdkSubscriber, at_s: float) -> None:
        await asyncio.sleep(max(at_s - time.time(), 0.0))
        await subscriber.subscribe()

    async def published(self) -> dict[int, int]:
        await asyncio.gather(*self._publishing)
        return {one.number: one.sequence for one in self._publishers}

    async def close(self) -> None:
        # What a subscription could not do is the run's to know, not to be lost with its task.
        failed = [task for task in self._tasks if task.done() and not task.cancelled() and task.exception()]
        for task in self._tasks:
            task.cancel()
        closing = [one.close() for one in self._publishers] + [one.close() for one in self.subscribers]
        await asyncio.gather(*closing, return_exceptions=True)
        for task in failed:
            task.result()
