"""Kill each part under load: flow goes on or resumes by itself, and nothing that was confirmed is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.truth import wants
from tests.support.waiting import eventually
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_protocol.ids import MessageId

RATE_PER_S = 60
PUBLISHERS = {"seismometer": ("quake.alert", "quake.raw"), "gauge": ("tide.gauge",)}
SUBSCRIBERS = {"siren": "quake.*", "archive": "#", "forecast": "tide.#"}
Handed = tuple[str, bool, bool]
"""The id of a message, whether it is marked as redelivered, whether as collected."""
FLOW = 40
"""Flow has resumed when every subscriber got so many messages that were confirmed after the fault."""


@dataclass
class Load:
    """Publisher and subscriber processes, and their books."""

    url: str
    directory: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        if name in PUBLISHERS:
            arguments = ["load_publisher", self.url, name, str(self.book(name)), str(RATE_PER_S), *PUBLISHERS[name]]
        else:
            arguments = ["load_subscriber", self.url, name, str(self.book(name)), SUBSCRIBERS[name]]
        command = [sys.executable, "-m", f"tests.support.{arguments[0]}", *arguments[1:]]
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def stop(self, names: dict[str, object]) -> None:
        for name in names:
            self.processes[name].send_signal(signal.SIGTERM)
        for name in names:
            assert self.processes[name].wait(timeout=60) == 0, self.log(name)

    def book(self, name: str) -> Path:
        return self.directory / name

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()[-2000:]

    def lines(self, name: str) -> list[str]:
        # A process may be killed in the middle of a line: only whole lines count.
        text = self.book(name).read_text() if self.book(name).exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def confirmed(self) -> list[str]:
        return [line for name in PUBLISHERS for line in self.lines(name)]

    def received(self, name: str) -> set[str]:
        return {line.split()[0] for line in self.lines(name) if not line.startswith("#")}

    def runs(self, name: str) -> list[list[Handed]]:
        """Per run of a subscriber process, what it was handed, in order."""
        found: list[list[Handed]] = []
        for line in self.lines(name):
            if line.startswith("#"):
                found.append([])
            else:
                identity, redelivered, collected = line.split()
                found[-1].append((identity, redelivered == "1", collected == "1"))
        return found


@contextmanager
def load(url: str, directory: Path) -> Iterator[Load]:
    running = Load(url, directory)
    try:
        for name in SUBSCRIBERS:
            running.start(name)
        yield running
    finally:
        for process in running.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


async def flowing(running: Load, what: str) -> None:
    """Messages confirmed from now on reach every subscriber that wants them."""
    before = set(running.confirmed())

    def reached() -> bool:
        fresh = set(running.confirmed()) - before
        got = {name: running.received(name) & fresh for name in SUBSCRIBERS}
        return all(len(messages) >= FLOW for messages in got.values())

    try:
        await eventually(reached, f"messages flow {what}", timeout_s=90)
    except AssertionError as error:
        logs = "\n".join(f"--- {name}\n{running.log(name)}" for name in running.processes)
        raise AssertionError(f"{error}\n{logs}") from None


@pytest.mark.timeout(900)
async def test_every_part_can_be_killed_under_load(
    backend: str, nodes_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster = nodes_cluster
    head = next(broker.name for broker in cluster.brokers.values() if broker.kind == "head")
    edge = next(broker.name for broker in cluster.brokers.values() if broker.kind == "edge")
    with load(cluster.url(cluster.brokers[head].cluster), tmp_path) as running:
        await eventually(lambda: all(running.lines(name) for name in SUBSCRIBERS), "subscribers start")
        for name in PUBLISHERS:
            running.start(name)
        await flowing(running, "before any fault")
        if backend == "native":
            await kill_processes(cluster, running, head, edge)
        for broker in (edge, head):
            await cluster.node(broker).stop()
            await cluster.node(broker).start()
            await flowing(running, f"after the RabbitMQ of {broker} was stopped and started")
            await cluster.node(broker).kill()
            await cluster.node(broker).start()
            await flowing(running, f"after the RabbitMQ of {broker} was killed and started")
        running.stop(PUBLISHERS)
        await check(running)
        running.stop(SUBSCRIBERS)


async def kill_processes(cluster: EmbeddedCluster, running: Load, head: str, edge: str) -> None:
    """Ours: what RabbitMQ keeps for them while they are away, it keeps in every version."""
    for broker in (head, edge):
        await cluster.process(broker).kill()
        await flowing(running, f"while the process of {broker} is dead")
        await cluster.process(broker).start()
        await flowing(running, f"after the process of {broker} is back")
    for name in ("siren", "gauge"):
        running.kill(name)
        running.start(name)
        await flowing(running, f"after {name} was killed and started again")


async def check(running: Load) -> None:
    confirmed = running.confirmed()
    for name, pattern in SUBSCRIBERS.items():
        wanted = {identity for identity in confirmed if wants(pattern, topic_of(identity))}
        await eventually(
            lambda name=name, wanted=wanted: not wanted - running.received(name),  # type: ignore[misc]
            f"{name} has all {len(wanted)} confirmed messages",
        )
        earlier: set[str] = set()
        for run in running.runs(name):
            identities = [identity for identity, _, _ in run]
            assert len(set(identities)) == len(identities), f"{name} was handed a message twice in one run"
            again = [identity for identity, redelivered, _ in run if identity in earlier and not redelivered]
            assert not again, f"{name} was handed again, unmarked: {again[:5]}"
            assert_in_order(name, run)
            earlier.update(identities)


def topic_of(identity: str) -> str:
    parsed = MessageId.parse(identity)
    assert parsed is not None, identity
    return parsed.topic


def assert_in_order(name: str, run: list[Handed]) -> None:
    """What waited on an edge that was away, while its subscriber was served elsewhere, comes after newer ones and says
    so; nothing else does.
    """
    last: dict[str, int] = {}
    for identity, _, collected in run:
        parsed = MessageId.parse(identity)
        assert parsed is not None, identity
        before = last.get(parsed.stream, -1)
        assert collected or parsed.sequence > before, f"{name}: {identity} came after {before}"
        last[parsed.stream] = max(before, parsed.sequence)
