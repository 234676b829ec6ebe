"""A process that holds clients of a live run. Run as `python -m tidegate_cli.live.worker`, by the conductor only.

It is told what to do by JSON lines on its standard input, answers with JSON lines on its standard output, and ends when
its input does: it can't outlive the conductor. The first line says who it is (`Task`); after it is ready it waits for
`start`, which names the moment at which time zero is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tidegate_agents.threshold import ThresholdKind
from tidegate_simulator.experiments.ews import EwsOptions, scenario
from tidegate_simulator.scenario import Scenario

from .codec import Address
from .head_line import Client, HeadLine
from .journal import Journal
from .publisher import LeanPublisher, LeanPublishers
from .subscriber import LeanSubscriber, as_plain
from .workload import stream_of

ACKNOWLEDGE_S: Final = 0.1
"""How often deliveries are acknowledged in bulk."""
TICK_S: Final = 0.05
"""How often a worker looks how late its event loop is."""
COMPLETE_POLL_S: Final = 0.1
LINE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is told first."""

    name: str
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

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        fields = json.loads(text)
        return cls(**fields | {name: tuple(fields[name]) for name in ("publishers", "subscribers")})


def plain_options(options: EwsOptions) -> dict[str, Any]:
    """Options as JSON takes them."""
    return asdict(options) | {"threshold": str(options.threshold)}


def read_options(plain: dict[str, Any]) -> EwsOptions:
    """Options as `plain_options` wrote them."""
    return EwsOptions(**plain | {"threshold": ThresholdKind(plain["threshold"])})


class Worker:
    """All clients of one process."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._journal = Journal()
        self._scenario: Scenario = scenario(read_options(task.options))
        self._lag_s_max = 0.0
        self._lags = 0
        self._tasks: list[asyncio.Task[None]] = []
        head, beside = Address.parse(task.head_url), Address.parse(task.publish_url)
        streams = {stream_of(spec): number for number, spec in enumerate(self._scenario.publishers)}
        self._subscribers = [
            LeanSubscriber(spec, number, head, streams, self._journal)
            for number, spec in enumerate(self._scenario.subscribers)
            if spec.name in task.subscribers
        ]
        self._publishers = [
            LeanPublisher(spec, number, self._scenario.duration_s, task.persistent)
            for number, spec in enumerate(self._scenario.publishers)
            if spec.name in task.publishers
        ]
        self._sending = LeanPublishers(self._publishers, beside, self._journal)
        self._lines: list[HeadLine] = []
        self._lines_ready = asyncio.Event()
        self._publishing: asyncio.Task[None] | None = None
        for address, clients in ((head, self._subscribers), (beside, self._publishers)):
            if clients:
                self._add_line(address, clients)

    def _add_line(self, address: Address, clients: list[LeanSubscriber] | list[LeanPublisher]) -> None:
        known: list[Client] = list(clients)
        line = HeadLine(address, f"{self._task.name} control", known, self._lines_ready.set)
        for client in clients:
            client.line = line
        self._lines.append(line)

    async def open(self) -> None:
        """Connect to the head."""
        for line in self._lines:
            self._lines_ready.clear()
            line.open()
            await self._lines_ready.wait()
        if self._publishers:
            await self._sending.connect()

    def start(self, began_us: int) -> None:
        """Begin: time zero is at `began_us`."""
        loop = asyncio.get_running_loop()
        delay_s = began_us / 1e6 - time.time()
        joins_s = {spec.name: spec.joins_s for spec in self._scenario.subscribers}
        for subscriber in self._subscribers:
            loop.call_later(max(delay_s + joins_s[subscriber.name], 0.0), subscriber.start)
        self._tasks.append(loop.create_task(self._watch_lag()))
        if self._subscribers:
            self._tasks.append(loop.create_task(self._acknowledge()))
        if self._publishers:
            self._publishing = loop.create_task(self._sending.run(began_us))
            self._tasks.append(loop.create_task(self._control(delay_s)))

    async def _control(self, delay_s: float) -> None:
        await asyncio.sleep(max(delay_s, 0.0))
        await self._sending.control()

    async def _acknowledge(self) -> None:
        while True:
            await asyncio.sleep(ACKNOWLEDGE_S)
            for subscriber in self._subscribers:
                subscriber.flush()

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            lag_s = loop.time() - due_s
            self._lags += lag_s > TICK_S
            self._lag_s_max = max(self._lag_s_max, lag_s)

    async def published(self) -> dict[str, Any]:
        """Wait until everything is published, and say how much of each publisher."""
        if self._publishing is not None:
            await self._publishing
        return {
            "published": {str(one.number): one.sequence for one in self._publishers},
            "refused": self._sending.refused,
            "problem": self._sending.problem,
        }

    async def complete(self, published: dict[str, int], patience_s: float) -> dict[str, Any]:
        """Wait until every subscriber has the last message of each of its publishers, or time is up."""
        topics = {number: spec.topic for number, spec in enumerate(self._scenario.publishers)}
        wanted = {int(number): count - 1 for number, count in published.items() if count}
        patterns = {spec.name: spec.pattern for spec in self._scenario.subscribers}
        end_s = time.monotonic() + patience_s
        while True:
            behind = [
                subscriber.name
                for subscriber in self._subscribers
                if any(
                    subscriber.highest.get(number, -1) < last
                    for number, last in wanted.items()
                    if topics[number] == patterns[subscriber.name]
                )
            ]
            if not behind or time.monotonic() > end_s:
                return {"behind": behind}
            await asyncio.sleep(COMPLETE_POLL_S)

    def finish(self) -> dict[str, Any]:
        """End all connections, write the journal, and tell the rest."""
        for task in self._tasks:
            task.cancel()
        for subscriber in self._subscribers:
            subscriber.stop()
        self._sending.close()
        for line in self._lines:
            line.close()
        self._journal.write(Path(self._task.folder), self._task.name)
        return {
            "moves": [row for one in self._subscribers for row in as_plain(one.moves)],
            "places": [row for one in self._subscribers for row in as_plain(one.places)],
            "losses": [f"{one.name}: {problem}" for one in self._subscribers for problem in one.losses],
            "duplicates_removed": sum(one.deduplicator.duplicates for one in self._subscribers),
        } | self.status()

    def status(self) -> dict[str, Any]:
        """How it is doing."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "deliveries": self._journal.deliveries,
            "control_sent": sum(line.sent for line in self._lines),
            "line_reconnects": sum(line.reconnects for line in self._lines),
            "lag_s_max": round(self._lag_s_max, 4),
            "lags": self._lags,
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "placed": sum(one.machine.attached for one in self._subscribers),
        }

    async def command(self, line: dict[str, Any]) -> dict[str, Any]:
        """Do one command."""
        match line["do"]:
            case "start":
                self.start(line["began_us"])
                return {}
            case "status":
                return self.status()
            case "published":
                return await self.published()
            case "complete":
                return await self.complete(line["published"], line["patience_s"])
            case "finish":
                return self.finish()
            case other:
                raise ValueError(f"unknown command {other!r}")


async def main() -> None:
    """Serve the conductor until its input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    first = await reader.readline()
    if not first:
        return
    worker = Worker(Task.from_json(first.decode()))
    await worker.open()
    _say({"ready": True})
    running: set[asyncio.Task[None]] = set()

    async def serve(line: dict[str, Any]) -> None:
        try:
            _say({"id": line["id"], "answer": await worker.command(line)})
        except Exception as error:
            logging.getLogger(__name__).exception("the command %s failed", line["do"])
            _say({"id": line["id"], "error": repr(error)})

    while text := await reader.readline():
        # Commands that wait must not keep others from being heard.
        task = loop.create_task(serve(json.loads(text)))
        running.add(task)
        task.add_done_callback(running.discard)


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            import uvloop
        except ImportError:
            asyncio.run(main())
        else:
            uvloop.run(main())
