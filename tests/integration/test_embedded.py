"""The embedded cluster leaves nothing behind, whatever ends it, and says clearly why it can't start."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import sys
from pathlib import Path

import aio_pika
import httpx
import pytest

from tests.support.children import child
from tests.support.waiting import eventually
from tidegate_brokers.errors import ChildDied, ClientPortTaken, GuardianLost, RabbitNotInstalled, RabbitTooOld
from tidegate_embedded import guardian
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.guard import Guard
from tidegate_embedded.guardian import descendants
from tidegate_embedded.installation import PLUGINS, Installation, find_installation
from tidegate_embedded.nodes import amqp_url, create_vhost, management_url, rabbit_nodes
from tidegate_embedded.topology import Topology

LOOPBACK = "127.0.0.1"
BOOT_S = 180.0

# Run as a process of its own, because it is going to be killed: starts RabbitMQ nodes and link conditioners, says on
# standard output where everything is, and waits.
LAUNCHER = """
import asyncio, json
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import Topology

async def main():
    topology = Topology.simple(clusters=1, edges=1)
    async with EmbeddedCluster(topology, processes=False, conditioned="all") as cluster:
        nodes = map(cluster.node, cluster.brokers)
        ports = [port for node in nodes for port in (node.amqp_port, node.management_port, node.prometheus_port)]
        ports += [int(broker.client_url.rsplit(":", 1)[1].split("/")[0]) for broker in cluster.brokers.values()]
        print(json.dumps({"directory": str(cluster.directory), "ports": ports}), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def birth(pid: int) -> str:
    """When a process started, which tells it from a later one with the same number; empty if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def alive(started: dict[int, str]) -> list[int]:
    return [pid for pid, born in started.items() if birth(pid) == born]


def listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((LOOPBACK, port)) == 0


def words_in(logs: Path) -> str:
    return "".join(file.read_text() for file in logs.iterdir())


async def test_a_killed_launcher_leaves_nothing_behind() -> None:
    async with child(sys.executable, "-c", LAUNCHER) as process:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), BOOT_S)
        assert line, "the launcher ended before it was ready"
        told = json.loads(line)
        directory, ports = Path(told["directory"]), told["ports"]
        started = {pid: born for pid in descendants(process.pid) if (born := birth(pid))}
        # The guardian, two nodes with helpers of their own, two conditioners.
        assert len(started) >= 5
        assert all(listens(port) for port in ports)
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        await eventually(lambda: not alive(started), f"the processes end: {alive(started)}")
        await eventually(lambda: not directory.exists(), f"{directory} is removed")
        assert not [port for port in ports if listens(port)]


async def test_a_killed_guardian_takes_its_processes_along() -> None:
    async with Guard() as guard:
        process = await guard.spawn("sleeper", ["sleep", "1000"], log=guard.directory / "log")
        started = {process.pid: birth(process.pid)}
        os.kill(guard.guardian_pid, signal.SIGKILL)
        await process.wait()
        await eventually(lambda: not alive(started), "the kernel ends it")
    shutil.rmtree(guard.directory)  # the one thing that nobody is left to remove


async def test_a_guardian_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(guardian, "__file__", str(tmp_path / "none.py"))
    with pytest.raises(GuardianLost, match="could not start"):
        async with Guard():
            pytest.fail("it can't have started")


async def test_a_grandchild_in_a_session_of_its_own_is_found() -> None:
    async with Guard() as guard:
        shell = "setsid sleep 1000 & echo $! > pid; exit 0"
        process = await guard.spawn("shell", ["sh", "-c", shell], log=guard.directory / "log")
        assert await process.wait() == 0
        pid = int((guard.directory / "pid").read_text())
        started = {pid: birth(pid)}
        assert alive(started) == [pid]
    assert alive(started) == []


async def test_a_node_comes_back_with_its_data_and_ports() -> None:
    async with rabbit_nodes(["phoenix"]) as nodes:
        node = nodes["phoenix"]
        await create_vhost(node, "kept")
        for end in (node.kill, node.stop):
            await end()
            assert node.pid is None
            assert not listens(node.amqp_port)
            await node.start()
            connection = await aio_pika.connect(amqp_url(node, "kept"))
            await connection.close()

        async def has_all_plugins() -> bool:
            async with httpx.AsyncClient(base_url=management_url(node), trust_env=False) as client:
                (only,) = (await client.get("/api/nodes")).json()
            return set(only.get("enabled_plugins", ())) >= set(PLUGINS)

        await eventually(has_all_plugins, "the management API lists the plugins")
        assert stat.S_IMODE(node.log.parent.stat().st_mode) == 0o700


async def test_a_node_that_dies_while_booting_is_reported_with_its_last_words(tmp_path: Path) -> None:
    server = tmp_path / "rabbitmq-server"
    server.write_text("#!/bin/sh\necho out of cheese\nexit 3\n")
    server.chmod(0o700)
    broken = Installation(server, "3.10.8")
    with pytest.raises(ChildDied, match="out of cheese") as caught:
        async with EmbeddedCluster(Topology.simple(edges=1), installation=broken):
            pytest.fail("it can't have started")
    assert "ended with code 3" in str(caught.value)
    logs = Path(caught.value.logs or "")
    assert str(logs) in str(caught.value)
    assert words_in(logs).count("out of cheese") >= 1
    assert os.listdir(logs.parent) == ["logs"]  # no data, no passwords
    shutil.rmtree(logs.parent)


@pytest.mark.parametrize("compact", [False, True])
async def test_a_taken_port_is_named_before_anything_boots(compact: bool) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        topology = Topology.parse(f'[[cluster]]\nname = "alpha"\n[cluster.head]\nport = {port}\n')
        with pytest.raises(ClientPortTaken, match=f"port {port} of broker alpha-head") as caught:
            async with EmbeddedCluster(topology, compact=compact):
                pytest.fail("it can't have started")
    assert caught.value.port == port


def make_installation(directory: Path, version: str, plugins: tuple[str, ...] = PLUGINS) -> str:
    (directory / "sbin").mkdir()
    (directory / "sbin" / "rabbitmq-server").touch()
    for name in ("rabbit", *plugins):
        (directory / "plugins" / f"{name}-{version}").mkdir(parents=True)
    return str(directory / "sbin" / "rabbitmq-server")


def test_an_installation_is_found_with_its_version(tmp_path: Path) -> None:
    found = find_installation(["/no/such/file", make_installation(tmp_path, "4.10.2")], erlang="sh")
    assert found.version == "4.10.2"


def test_a_machine_without_rabbitmq_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(RabbitNotInstalled, match=r"make setup.*apt-get install rabbitmq-server"):
        find_installation([str(tmp_path / "none")])
    with pytest.raises(RabbitNotInstalled, match="Erlang"):
        find_installation([make_installation(tmp_path, "3.12.0")], erlang="no-such-erlang")


def test_an_old_rabbitmq_and_one_without_a_plugin_are_refused(tmp_path: Path) -> None:
    for name in ("old", "bare"):
        (tmp_path / name).mkdir()
    with pytest.raises(RabbitTooOld, match=r"3\.9\.13 is too old.*3\.10"):
        find_installation([make_installation(tmp_path / "old", "3.9.13")], erlang="sh")
    bare = make_installation(tmp_path / "bare", "3.11.0", ("rabbitmq_management", "rabbitmq_prometheus"))
    with pytest.raises(RabbitNotInstalled, match="rabbitmq_shovel"):
        find_installation([bare], erlang="sh")
