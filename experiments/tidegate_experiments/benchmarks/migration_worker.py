"""A process that holds some of the subscribers of `tidegate bench migration`. Run by the benchmark only.

An application is a process, with an event loop and a garbage collector of its own. A hundred of them in one process
would wait for each other: a full collection there takes 150 to 200 ms, and everybody's deliveries stop meanwhile. So
they are spread, and every process says how long its own loop has stood still at most.
"""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from tidegate import AsyncSubscriber, AsyncSubscription, Message
from tidegate_simulator.judging import Wrong, total

from ..live.serving import Assignment, run_worker
from .watches import Watch, Window

TICK_S: Final = 0.01
"""How often a process looks how late its event loop is."""
LOOK_EVERY_S: Final = 0.02
SETTLE_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class MigrationAssignment(Assignment):
    """Which subscribers a process holds."""

    url: str
    subscribers: tuple[tuple[str, str], ...]
    """Names and topics."""
    deadline_s: float
    interval_s: float


class Subscribers:
    """All subscribers of one process."""

    def __init__(self, task: MigrationAssignment) -> None:
        self._task = task
        self._stack = AsyncExitStack()
        self._watches = [Watch(name, topic, task.interval_s) for name, topic in task.subscribers]
        self._subscriptions: list[AsyncSubscription] = []
        self._own: list[Window | None] = [None] * len(self._watches)
        """Of each subscriber the time of its last move, with what counts as part of it afterwards."""
        self._stalls = Watch("event loop", "", TICK_S)
        self._ticking: asyncio.Task[None] | None = None

    async def command(self, line: dict[str, Any]) -> dict[str, Any]:
        """Do one command."""
        match line["do"]:
            case "subscribe":
                return await self._subscribe()
            case "ages":
                window = Window(line["began"], line["ended"])
                return {"ages": [age for watch in self._watches for age in watch.ages_in(window)]}
            case "moved":
                return {"stuck": await self._moved(line["edge"], line["patience_s"])}
            case "gaps":
                return self._gaps(Window(line["began"], line["ended"]), line["usual_s"], line["after_s"])
            case "unmoved":
                return {"gaps": self._unmoved(Window(line["began"], line["ended"]), line["usual_s"], line["length_s"])}
            case "settle":
                return await self._settle(line["published"], line["patience_s"])
            case "finish":
                await self._stack.aclose()
                return {}
            case other:
                raise ValueError(f"unknown command {other!r}")

    async def _subscribe(self) -> dict[str, Any]:
        for watch in self._watches:
            subscriber = await self._stack.enter_async_context(AsyncSubscriber(self._task.url, name=watch.name))
            subscription = await subscriber.subscribe(
                watch.topic, deadline=self._task.deadline_s, callback=_taker(watch)
            )
            self._stack.push_async_callback(subscription.unsubscribe)
            self._subscriptions.append(subscription)
        # As a server does that has started: what will stay is not looked through again and again.
        gc.collect()
        gc.freeze()
        self._ticking = asyncio.create_task(self._tick())
        self._stack.callback(self._ticking.cancel)
        return {}

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._stalls.take(time.monotonic(), 0.0, self._stalls.seen)

    async def _moved(self, edge: str, patience_s: float) -> list[str]:
        """Wait until everybody is served from `edge` and has left the old one; who has not when time is up."""
        until = time.monotonic() + patience_s
        while True:
            stuck = [
                watch.name
                for watch, one in zip(self._watches, self._subscriptions, strict=True)
                if one.edge != edge or not one.attached
            ]
            # Statistics are dear, and what asks for them all the time would show in what it measures.
            stuck = stuck or [
                watch.name
                for watch, one in zip(self._watches, self._subscriptions, strict=True)
                if one.statistics().migration_ended_s is None
            ]
            if not stuck or time.monotonic() > until:
                return stuck
            await asyncio.sleep(LOOK_EVERY_S)

    def _gaps(self, drain: Window, usual_s: float, after_s: float) -> dict[str, Any]:
        """What each subscriber noticed of its own move, and in the whole drain."""
        gaps: list[float] = []
        for number, (watch, one) in enumerate(zip(self._watches, self._subscriptions, strict=True)):
            told = one.statistics()
            assert told.migration_began_s is not None
            assert told.migration_ended_s is not None
            own = self._own[number] = Window(told.migration_began_s, told.migration_ended_s + after_s)
            gaps.append(watch.gap_ms(own, usual_s))
        return {
            "gaps": gaps,
            "moves_s": [own.length_s - after_s for own in self._own if own is not None],
            "drain": [watch.gap_ms(drain, usual_s) for watch in self._watches],
            "stall_ms": self._stalls.gap_ms(drain, 0.0),
        }

    def _unmoved(self, window: Window, usual_s: float, length_s: float) -> list[float]:
        """What subscribers noticed while they did not move, in stretches of this length."""
        return [
            watch.gap_ms(part, usual_s)
            for watch, own in zip(self._watches, self._own, strict=True)
            for part in window.parts(length_s, but=own)
        ]

    async def _settle(self, published: dict[str, int], patience_s: float) -> dict[str, Any]:
        """Wait for what is under way, within a bound: what has not come by then is lost."""
        until = time.monotonic() + patience_s
        while (lost := self._lost(published)) and time.monotonic() < until:
            await asyncio.sleep(SETTLE_LOOK_S)
        judges = [watch.judge for watch in self._watches]
        return {
            "deliveries": sum(watch.seen for watch in self._watches),
            "lost": lost,
            "duplicates": total(judges, Wrong.DOUBLED),
            "duplicates_removed": sum(one.statistics().duplicates for one in self._subscriptions),
            "out_of_order": total(judges, Wrong.OUT_OF_ORDER),
        }

    def _lost(self, published: dict[str, int]) -> int:
        return sum(watch.lost(published.get(watch.topic, 0)) for watch in self._watches)


def _taker(watch: Watch) -> Any:
    def take(message: Message) -> None:
        watch.take(time.monotonic(), message.age_s or 0.0, message.sequence or 0)

    return take


async def _make(text: str) -> Subscribers:
    return Subscribers(MigrationAssignment.from_json(text))


if __name__ == "__main__":
    run_worker(_make)
