"""A process that holds clients of a live run, started by the conductor as `python -m tidegate_experiments.live.worker`.

The conductor tells it what to do as `serving` describes, beginning with a `LiveAssignment`. Once the worker is ready it
waits for `start`, which names the moment at which time zero is.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tidegate_agents.load.threshold import ThresholdKind
from tidegate_experiments.burst.scenario import EwsOptions, scenario
from tidegate_simulator.scenario import Scenario

from ..lean.subscriber import as_plain
from .clients import Cast, Clients, LeanClients, SdkClients
from .journal import Journal
from .serving import Assignment, run_worker

TICK_S: Final = 0.05
"""How often a worker looks how late its event loop is."""
COMPLETE_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class LiveAssignment(Assignment):
    """Which clients of a live run this worker holds."""

    options: dict[str, Any]
    """Of the experiment: the worker makes the same scenario of them as everybody else."""
    publishers: tuple[str, ...]
    subscribers: tuple[str, ...]
    publish_url: str
    """The head's RabbitMQ as publishers reach it."""
    head_url: str
    """The head's RabbitMQ as subscribers reach it."""
    folder: str
    persistent: bool = False
    sdk: bool = False
    """Whether its clients are those of the SDK, and not lean ones."""


def plain_options(options: EwsOptions) -> dict[str, Any]:
    """Options as JSON takes them."""
    return asdict(options) | {"threshold": str(options.threshold)}


def read_options(plain: dict[str, Any]) -> EwsOptions:
    """Options as `plain_options` wrote them."""
    return EwsOptions(**plain | {"threshold": ThresholdKind(plain["threshold"])})


class Worker:
    """All clients of one process."""

    def __init__(self, task: LiveAssignment) -> None:
        self._task = task
        self._journal = Journal()
        self._scenario: Scenario = scenario(read_options(task.options))
        self._lag_s_max = 0.0
        self._watching: asyncio.Task[None] | None = None
        cast = Cast(
            self._scenario,
            [one for one in enumerate(self._scenario.publishers) if one[1].name in task.publishers],
            [one for one in enumerate(self._scenario.subscribers) if one[1].name in task.subscribers],
            task.publish_url,
            task.head_url,
            task.persistent,
            self._journal,
        )
        self._clients: Clients = SdkClients(cast) if task.sdk else LeanClients(cast)

    async def open(self) -> None:
        """Connect to the head."""
        await self._clients.open()

    def start(self, began_us: int) -> None:
        """Begin: time zero is at `began_us`."""
        self._watching = asyncio.get_running_loop().create_task(self._watch_lag())
        self._clients.start(began_us)

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            lag_s = loop.time() - due_s
            self._lag_s_max = max(self._lag_s_max, lag_s)

    async def published(self) -> dict[str, Any]:
        """Wait until everything is published, and say how much of each publisher."""
        return {"published": await self._clients.published(), "refused": self._clients.refused}

    async def complete(self, published: dict[str, int], patience_s: float) -> dict[str, Any]:
        """Wait until every subscriber has the last message of each of its publishers, or time is up."""
        topics = {number: spec.topic for number, spec in enumerate(self._scenario.publishers)}
        wanted = {int(number): count - 1 for number, count in published.items() if count}
        end_s = time.monotonic() + patience_s
        while True:
            behind = [
                subscriber.name
                for subscriber in self._clients.subscribers
                if any(
                    subscriber.highest.get(number, -1) < last
                    for number, last in wanted.items()
                    if topics[number] == subscriber.pattern
                )
            ]
            if not behind or time.monotonic() > end_s:
                return {"behind": behind}
            await asyncio.sleep(COMPLETE_POLL_S)

    async def finish(self) -> dict[str, Any]:
        """End all connections, write the journal, and tell the rest."""
        if self._watching is not None:
            self._watching.cancel()
        await self._clients.close()
        self._journal.write(Path(self._task.folder), self._task.name)
        subscribers = self._clients.subscribers
        return {
            "moves": [row for one in subscribers for row in as_plain(one.moves)],
            "places": [row for one in subscribers for row in as_plain(one.places)],
            "losses": self._clients.losses,
            "control_sent": self._clients.control_sent,
            "lag_s_max": round(self._lag_s_max, 4),
        }

    async def command(self, line: dict[str, Any]) -> dict[str, Any]:
        """Do one command."""
        match line["do"]:
            case "start":
                self.start(line["began_us"])
                return {}
            case "published":
                return await self.published()
            case "complete":
                return await self.complete(line["published"], line["patience_s"])
            case "finish":
                return await self.finish()
            case other:
                raise ValueError(f"unknown command {other!r}")


async def _make(text: str) -> Worker:
    worker = Worker(LiveAssignment.from_json(text))
    await worker.open()
    return worker


if __name__ == "__main__":
    run_worker(_make)
