"""The demo's story, live: the SDK's publishers and subscribers, watched, and the head asked how it fares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate import TidegateError
from tidegate._engine.asking import Asking
from tidegate_protocol.operations import QUEUES_TOLD_MAX, OverviewReply, OverviewRequest

from .story import AUDIENCES, FEEDS, JOIN_EVERY_S, feed_of
from .watching import Watched

OVERVIEW_EVERY_S: Final = 1.0


class EarlyWarning(Watched):
    """Publishers and subscribers of the story, against one head."""

    def __init__(self, url: str) -> None:
        super().__init__(url, AUDIENCES, [(one.name, one.topic, one.rate_per_s, one.body_bytes) for one in FEEDS])
        self._shaking = False

    async def join(self) -> None:
        """Have the subscribers of one topic after another register."""
        for audience in self._audiences:
            await asyncio.sleep(JOIN_EVERY_S)
            await self._subscribe(audience)

    def shake(self) -> None:
        """From now on feeds send their burst."""
        self._shaking = True

    async def play(
        self,
        burst_at_s: float,
        total_s: float,
        *,
        on_burst: Callable[[], None],
        on_overview: Callable[[OverviewReply], None],
    ) -> None:
        """The whole story, from the first message to the last; `on_overview` gets what the head says meanwhile."""
        async with Asking(self._url) as head, asyncio.TaskGroup() as group:
            playing = group.create_task(self._play(burst_at_s, total_s, on_burst))
            while not (await asyncio.wait({playing}, timeout=OVERVIEW_EVERY_S))[0]:
                try:
                    overview = await head.ask(OverviewRequest(queues=QUEUES_TOLD_MAX), OverviewReply)
                except TidegateError:
                    continue  # The next request may be answered, and the story does not depend on it.
                on_overview(overview)

    async def _play(self, burst_at_s: float, total_s: float, on_burst: Callable[[], None]) -> None:
        """Feeds run, audiences register, the ground shakes, and the last message arrives."""

        async def shaking() -> None:
            await asyncio.sleep(burst_at_s)
            self.shake()
            on_burst()

        async with asyncio.TaskGroup() as group:
            group.create_task(self.publish(total_s))
            group.create_task(shaking())
            await self.join()
        await self.settle()

    def burst_factor(self, topic: str) -> float:
        return feed_of(topic).burst_factor if self._shaking else 1.0
