"""`tidegate up` as a process: whatever ends it, nothing stays; what it can't start with is named with a remedy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.children import child
from tests.support.leftovers import listening, nothing_left, processes_of
from tests.support.waiting import eventually
from tidegate_cli.exit_codes import ExitCode

TIMEOUT_S = 180.0


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where a launch keeps its files. Short, because the path of a control socket must be."""
    with tempfile.TemporaryDirectory(prefix="up-") as made:
        yield Path(made)


@asynccontextmanager
async def tidegate(directory: Path, *arguments: str, **variables: str) -> AsyncIterator[Process]:
    environment = os.environ | {"TMPDIR": str(directory)} | variables
    async with child(sys.executable, "-m", "tidegate_cli", *arguments, env=environment) as process:
        yield process


async def ready(process: Process) -> dict[str, Any]:
    """What it prints when the cluster is there."""
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)
    if not line:
        pytest.fail(f"it did not start: {(await process.communicate())[1].decode()}")
    described: dict[str, Any] = json.loads(line)
    return described


async def fails(directory: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Exit code and message of a command that ends by itself."""
    async with tidegate(directory, *arguments, **variables) as process:
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert out == b""
    assert b"Traceback" not in err
    assert process.returncode is not None
    return process.returncode, err.decode()


def urls_of(described: dict[str, Any]) -> list[str]:
    keys = ("url", "management_url", "http_url")
    return [*described["urls"].values(), *(broker[key] for broker in described["brokers"] for key in keys)]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.OK), (signal.SIGTERM, ExitCode.OK), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["SIGINT", "SIGTERM", "SIGKILL"],
)
async def test_a_running_cluster_leaves_nothing_behind(number: int, code: int, directory: Path) -> None:
    async with tidegate(directory, "up", "--compact", "--edges", "1", "--json") as process:
        urls = urls_of(await ready(process))
        # The command, the guardian, one RabbitMQ, two broker processes.
        assert len(processes_of(directory)) >= 5
        assert len(listening(*urls)) == len(urls)
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == code
        if number != signal.SIGKILL:
            assert processes_of(directory) == {}, "whoever stops it in good order has nothing to wait for afterwards"
        await nothing_left(directory, *urls)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["SIGINT", "SIGTERM", "SIGKILL"],
)
async def test_a_cluster_that_is_still_booting_leaves_nothing_behind(number: int, code: int, directory: Path) -> None:
    async with tidegate(directory, "up", "--compact", "--edges", "1", "--json") as process:
        # The command, the guardian and RabbitMQ, which takes seconds from here.
        await eventually(lambda: len(processes_of(directory)) >= 3, "RabbitMQ is starting")
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == code
        await nothing_left(directory)


async def test_a_fixed_port_is_used_and_conditioners_can_be_commanded(directory: Path) -> None:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as topology:
        topology.write(f'[[cluster]]\nname = "coast"\n[cluster.head]\nport = {port}\n')
        topology.write('[[cluster.edge]]\nname = "pier"\nclient_delay_s = 0.1\n')
        topology.flush()
        async with tidegate(directory, "up", "--compact", "--json", "--topology", topology.name) as process:
            described = await ready(process)
            assert urlsplit(described["urls"]["coast"]).port == port
            sockets = {broker["name"]: broker["conditioner"] for broker in described["brokers"]}
            command = ("condition", sockets["pier"], "--delay", "0.5", "--listener", "client", "--json")
            async with tidegate(directory, *command) as condition:
                shown = json.loads((await condition.communicate())[0])
            assert shown["listeners"]["client"]["delay_s"] == 0.5
            code, words = await fails(directory, "condition", sockets["pier"], "--stall", "--listener", "clinet")
            assert code == ExitCode.UNAVAILABLE
            assert "no listener 'clinet'" in words
            process.terminate()
            assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == ExitCode.OK
        await nothing_left(directory, *urls_of(described))


@pytest.mark.parametrize("options", [(), ("--compact",)], ids=["node each", "compact"])
async def test_a_taken_port_is_refused(options: tuple[str, ...], directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "fixed.toml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file.write_text(f'[[cluster]]\nname = "coast"\n[cluster.head]\nport = {port}\n')
        code, words = await fails(directory, "up", "--topology", str(file), "--json", *options)
    assert code == ExitCode.BAD_CONFIGURATION
    assert f"port {port} of broker coast-head can't be used" in words
    assert "choose another port in the topology" in words
    await nothing_left(directory)


async def test_a_machine_without_rabbitmq_is_told_what_to_install(directory: Path) -> None:
    code, words = await fails(directory, "up", "--compact", "--json", PATH=str(directory))
    assert code == ExitCode.BAD_CONFIGURATION
    assert "apt-get install rabbitmq-server" in words
    await nothing_left(directory)


COAST = '[[cluster]]\nname = "coast"\n'
INLAND = '[[cluster]]\nname = "inland"\n'
LINK = '[[link]]\nbetween = ["coast", "inland"]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            COAST + "[[cluster.edge]]\nuplink_byte_per_s = 5\n",
            ["cluster[0] (coast).edge[0]", "'uplink_byte_per_s' is not a known key", "mean 'uplink_bytes_per_s'?"],
        ),
        (COAST + INLAND + LINK * 2, ["link[1]", "coast – inland – coast form a cycle", "remove one of these links"]),
        (COAST + COAST, ["2 clusters have the name 'coast'", "give every cluster a name of its own"]),
        (COAST + LINK, ["link[0]", "there is no cluster 'inland'", "known clusters are coast"]),
        ("[[cluster]\n", ["is not TOML", "line 1", "correct the syntax there"]),
        ("[cluster]\nname = 'coast'\n", ["write [[cluster]] instead of [cluster]"]),
    ],
    ids=["unknown key", "cycle", "duplicate name", "unknown cluster", "syntax", "single brackets"],
)
async def test_a_bad_topology_is_named_with_place_and_remedy(
    text: str, words: list[str], directory: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    code, said = await fails(directory, "up", "--topology", str(file))
    assert code == ExitCode.BAD_CONFIGURATION
    assert said.startswith(f"error: topology {file}")
    for word in words:
        assert word in said
    await nothing_left(directory)


async def test_command_lines_that_contradict_themselves(directory: Path, tmp_path: Path) -> None:
    code, said = await fails(directory, "up", "--topology", str(tmp_path / "missing.toml"))
    assert code == ExitCode.USAGE
    assert "missing.toml" in said
    assert "does not exist" in said
    file = tmp_path / "good.toml"
    file.write_text(COAST)
    code, said = await fails(directory, "up", "--topology", str(file), "--edges", "2")
    assert code == ExitCode.USAGE
    assert "leave out --clusters and --edges" in said
