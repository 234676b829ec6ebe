"""Publishers and subscribers in processes of their own, and the books that say what each sent and got.

Books are read as they grow. What always holds: a line counts once it is whole, because a process may be killed in the
middle of one; an id in a publisher's book was confirmed by RabbitMQ; an id in a subscriber's book was handed over.

Plain AMQP publishers send no ids. The id of a distinct message is its body. Messages that repeat a few contents have
the body `<number>/<contents>`; the books know the nth of them as `=<topic>:<n>`. A content that is not the next one is
out of order, or something before it is lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tidegate_simulator.judging import Judge, Wrong, stream_of

LOG_TAIL_BYTES = 3_000
PARENT_CHECK_S = 1.0
STOP_TIMEOUT_S = 60


async def orphaned() -> None:
    """Return when the process that started this one is gone: nobody else would ever end it."""
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(PARENT_CHECK_S)


@dataclass(frozen=True, slots=True)
class Feed:
    """One publisher: `factor` times as much in a burst."""

    name: str
    topic: str
    rate_per_s: float
    body_bytes: int
    factor: float = 1.0
    contents: int | None = None
    """None: a publisher of the SDK. Otherwise a plain one whose contents repeat after so many, or never (0)."""

    @property
    def argument(self) -> str:
        last = self.factor if self.contents is None else self.contents
        return f"{self.name}:{self.topic}:{self.rate_per_s}:{self.body_bytes}:{last}"


@dataclass(frozen=True, slots=True)
class Listener:
    """One subscriber of one topic."""

    name: str
    topic: str
    deadline_s: float

    @property
    def argument(self) -> str:
        return f"{self.name}:{self.topic}:{self.deadline_s}"


@dataclass
class Book:
    """A growing file of one client."""

    path: Path
    _offset: int = 0

    def fresh(self) -> list[str]:
        """The lines since the last look."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as stream:
            stream.seek(self._offset)
            content = stream.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode().splitlines()


@dataclass
class Handed:
    """What one subscriber was handed, and whatever is wrong with that."""

    book: Book
    judge: Judge = field(default_factory=Judge)
    got: set[str] = field(default_factory=set)
    runs: int = 0

    def read(self) -> None:
        for line in self.book.fresh():
            if line.startswith("#"):
                self.runs += 1
                continue
            identity = line.rstrip("*")
            stream, sequence = self._counted(identity) if line.startswith("=") else stream_of(identity)
            # What waited on an edge that was away comes late and out of order, but is not lost.
            self.judge.take(stream, sequence, life=self.runs, collected=line.endswith("*"))
            self.got.add(f"{stream}:{sequence}")

    def _counted(self, line: str) -> tuple[str, int]:
        """As which message of its topic one with a repeating content counts: the nearest that has it to the one due."""
        stream, _, body = line.rpartition(":")
        number, contents = (int(one) for one in body.split("/"))
        due = self.judge.following(stream)
        sequence = due + (number - due) % contents
        behind = sequence - due > contents // 2 and sequence >= contents
        return stream, sequence - contents if behind else sequence


@dataclass
class Load:
    """All processes of a test, by name: `feeds` publish, each of `audiences` hosts some subscribers."""

    url: str
    directory: Path
    feeds: tuple[Feed, ...]
    audiences: dict[str, tuple[Listener, ...]]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    handed: dict[str, Handed] = field(default_factory=dict)
    confirmed: dict[str, list[str]] = field(default_factory=dict)
    """By topic, in the order of confirmation."""
    _sent: dict[str, Book] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.handed = {one.name: Handed(Book(self.directory / one.name)) for one in self.listeners}
        self._sent = {feed.name: Book(self.directory / feed.name) for feed in self.feeds}

    @property
    def listeners(self) -> list[Listener]:
        return [listener for group in self.audiences.values() for listener in group]

    def start_audience(self, name: str) -> None:
        self._start(name, "audience", [listener.argument for listener in self.audiences[name]])

    def start_feeds(self) -> None:
        self._start("feeds", "feed", [feed.argument for feed in self.feeds if feed.contents is None])
        plain = [feed.argument for feed in self.feeds if feed.contents is not None]
        if plain:
            self._start("plain feeds", "plain_feed", plain)

    def stop_feeds(self) -> None:
        self.stop(name for name in ("feeds", "plain feeds") if name in self.processes)

    def _start(self, name: str, module: str, arguments: list[str]) -> None:
        command = [sys.executable, "-m", f"tests.system.{module}", self.url, str(self.directory), *arguments]
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def burst(self, burst: bool) -> None:
        self.processes["feeds"].send_signal(signal.SIGUSR1 if burst else signal.SIGUSR2)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def stop(self, names: Iterable[str]) -> None:
        """End processes in good order."""
        names = list(names)
        for name in names:
            self.processes[name].send_signal(signal.SIGTERM)
        for name in names:
            assert self.processes[name].wait(timeout=STOP_TIMEOUT_S) == 0, f"{name}: {self.log(name)}"

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        path = self.directory / f"{name}.log"
        return path.read_text()[-LOG_TAIL_BYTES:] if path.exists() else ""

    # What the books say.

    def read(self) -> None:
        for feed in self.feeds:
            self.confirmed.setdefault(feed.topic, []).extend(self._sent[feed.name].fresh())
        for handed in self.handed.values():
            handed.read()

    def confirmed_count(self) -> dict[str, int]:
        """How many messages of each topic are confirmed by now."""
        self.read()
        return {topic: len(identities) for topic, identities in self.confirmed.items()}

    def missing(self, until: dict[str, int] | None = None) -> dict[str, list[str]]:
        """Per subscriber what it lacks of what was confirmed, all of it or the first so many of each topic."""
        self.read()
        found: dict[str, list[str]] = {}
        for listener in self.listeners:
            wanted = self.confirmed.get(listener.topic, [])
            wanted = wanted if until is None else wanted[: until.get(listener.topic, 0)]
            judge = self.handed[listener.name].judge
            lacks = [identity for identity in wanted if not judge.came(*stream_of(identity))]
            if lacks:
                found[listener.name] = lacks
        return found

    def surplus(self) -> dict[str, list[str]]:
        """Per subscriber what it got more often than it was confirmed; to be asked once the feeds have ended."""
        self.read()
        sent = {identity for identities in self.confirmed.values() for identity in identities}
        return {name: sorted(more) for name, handed in self.handed.items() if (more := handed.got - sent)}

    def forget_mishaps(self) -> None:
        self.read()
        for handed in self.handed.values():
            handed.judge.offenders.clear()

    def doubled(self) -> dict[str, list[str]]:
        return self._offenders(Wrong.DOUBLED)

    def disordered(self) -> dict[str, list[str]]:
        return self._offenders(Wrong.OUT_OF_ORDER)

    def _offenders(self, wrong: Wrong) -> dict[str, list[str]]:
        named = {name: handed.judge.offenders.get(wrong, []) for name, handed in self.handed.items()}
        return {name: offenders for name, offenders in named.items() if offenders}

    def dead(self) -> list[str]:
        """Processes that ended by themselves."""
        return [name for name, process in self.processes.items() if process.poll() not in (None, 0, -9)]
