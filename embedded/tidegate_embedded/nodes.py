"""Real RabbitMQ nodes as child processes: private directory, reserved ports, loopback only.

A node can be stopped or killed and started again with the same data and ports. It is ready when it has been talked to
over AMQP and over the management API, not when a port is open. No node needs an epmd: each is told its distribution
port, and distribution runs before RabbitMQ looks for it (which also saves RabbitMQ the start of a second Erlang machine
just to launch epmd). One that RabbitMQ starts later all the same ends with the launch. Everything that uses a node does
so through the protocol `RabbitNode`, so that tests can supply a container in its place.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote

import aio_pika
import httpx

from tidegate_brokers.errors import ChildDied, EmbeddedError, StartTimedOut
from tidegate_protocol.form import BODY_BYTES_MAX

from .guard import Guard, GuardedProcess, tail
from .installation import PLUGINS, Installation, find_installation
from .ports import LOOPBACK, Ports

BOOT_TIMEOUT_S: Final = 180.0
"""Five nodes on two busy cores have taken 60 s; a node that is stuck is no better after three minutes."""
STOP_TIMEOUT_S: Final = 30.0
"""RabbitMQ 3.10 takes 6 s to stop even when it is idle."""
POLL_S: Final = 0.1
ANSWER_TIMEOUT_S: Final = 10.0
VHOST_TIMEOUT_S: Final = 30.0
USER: Final = "tidegate"
UNUSED_EPMD_PORT: Final = 1
"""Nothing listens there: registering with an epmd of the system fails at once, and is not needed."""


class RabbitNode(Protocol):
    """A RabbitMQ that can be started, stopped and killed."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def amqp_port(self) -> int: ...
    @property
    def management_port(self) -> int: ...
    @property
    def prometheus_port(self) -> int: ...
    @property
    def user(self) -> str: ...
    @property
    def password(self) -> str: ...

    async def start(self) -> None:
        """Start, with the data of the last run if there was one; return when ready."""

    async def stop(self) -> None:
        """Stop in good order."""

    async def kill(self) -> None:
        """End at once, as a power cut would."""


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The ports of one node."""

    amqp: int
    management: int
    prometheus: int
    stream: int
    distribution: int

    @classmethod
    def reserve(cls, ports: Ports, amqp: int | None = None) -> NodePorts:
        """Free ports, but for a fixed AMQP port that is reserved already."""
        return cls(ports.free() if amqp is None else amqp, ports.free(), ports.free(), ports.free(), ports.free())


class ChildNode:
    """A `RabbitNode` that runs as a child process."""

    def __init__(
        self, guard: Guard, installation: Installation, name: str, ports: NodePorts, password: str,
        plugins: Sequence[str] = PLUGINS, options: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        self._guard = guard
        self._installation = installation
        self._ports = ports
        self._directory = guard.directory / f"rabbit-{name}"
        self.configuration = self._directory / "rabbitmq.conf"
        self._plugins = plugins
        self._options = options or {}
        self._process: GuardedProcess | None = None
        self.name = name
        self.host = LOOPBACK
        self.amqp_port = ports.amqp
        self.management_port = ports.management
        self.prometheus_port = ports.prometheus
        self.user = USER
        self.password = password
        self.log = guard.directory / "logs" / f"rabbit-{name}.log"
        self.output = guard.directory / "logs" / f"rabbit-{name}.out"

    @property
    def pid(self) -> int | None:
        """The Erlang machine itself, while it runs."""
        return self._process.pid if self._process is not None and self._process.is_running else None

    async def start(self) -> None:
        """Start and wait until AMQP and the management API answer."""
        assert self.pid is None, f"node {self.name} runs already"
        if not self._directory.exists():
            self._write_files()
        node = f"{self.name}@localhost"
        # With input "allowed" the script replaces itself by Erlang, so that signals reach it; -noinput takes it back.
        argv = [
            str(self._installation.server), "-noinput", "+B", "i", "-sname", node, "-start_epmd", "false",
            "-erl_epmd_port", str(self._ports.distribution), "-kernel", "inet_dist_use_interface", "{127,0,0,1}",
        ]  # fmt: skip
        self._process = await self._guard.spawn(
            f"RabbitMQ {self.name}", argv, log=self.output, env=self._environment(node), cwd=self._directory
        )
        await wait_until_ready(self, self._process, self._tail)

    async def stop(self) -> None:
        """Let RabbitMQ write everything down and end; kill it when it takes too long."""
        if self.pid is not None and self._process is not None:
            await self._process.end(signal.SIGTERM, STOP_TIMEOUT_S)

    async def kill(self) -> None:
        """SIGKILL."""
        if self.pid is not None and self._process is not None:
            await self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    def _tail(self) -> str:
        return f"{tail(self.log)}\n{tail(self.output)}"

    def _environment(self, node: str) -> dict[str, str]:
        directory = self._directory
        inherited = {key: value for key in ("PATH", "LANG", "LC_ALL", "TMPDIR") if (value := os.environ.get(key))}
        return inherited | {
            "HOME": str(directory),  # of the Erlang cookie
            "RABBITMQ_ALLOW_INPUT": "true",
            "RABBITMQ_NODENAME": node,
            "RABBITMQ_DIST_PORT": str(self._ports.distribution),
            "RABBITMQ_CONFIG_FILE": str(self.configuration),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "no-such-file"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.log.parent),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            # Bound schedulers of several nodes would all sit on the same cores.
            "RABBITMQ_SCHEDULER_BIND_TYPE": "u",
            "ERL_EPMD_PORT": str(UNUSED_EPMD_PORT),
            "ERL_EPMD_ADDRESS": LOOPBACK,
        }

    def _write_files(self) -> None:
        self._directory.mkdir(mode=0o700)
        self.log.parent.mkdir(mode=0o700, exist_ok=True)
        cookie = self._directory / ".erlang.cookie"
        cookie.touch(mode=0o600)
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (self._directory / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")
        options = {
            "listeners.tcp.1": f"{LOOPBACK}:{self._ports.amqp}",
            "management.tcp.ip": LOOPBACK,
            "management.tcp.port": self._ports.management,
            "prometheus.tcp.ip": LOOPBACK,
            "prometheus.tcp.port": self._ports.prometheus,
            "default_user": self.user,
            "default_pass": self.password,
            # Links use this account, too, and pass on messages with the `user_id` of any account added by hand.
            "default_user_tags.administrator": "true",
            "default_user_tags.impersonator": "true",
            # A message that a head takes and an edge refuses would stop the link between them: the same everywhere.
            "max_message_size": BODY_BYTES_MAX,
            "collect_statistics_interval": 1000,
            "disk_free_limit.absolute": "50MB",
            "vm_memory_high_watermark.relative": 0.6,
            # A consumer that holds deliveries back for a quarter of an hour is stuck, not slow.
            "consumer_timeout": 900_000,
            "log.file": self.log.name,
            "log.file.level": "info",
        }
        if "rabbitmq_stream" in self._plugins:
            options["stream.listeners.tcp.1"] = f"{LOOPBACK}:{self._ports.stream}"
        self.configuration.touch(mode=0o600)
        lines = (options | dict(self._options)).items()
        self.configuration.write_text("".join(f"{key} = {value}\n" for key, value in lines))


def amqp_url(node: RabbitNode, vhost: str = "/") -> str:
    """The address of a node for AMQP clients, with credentials."""
    return f"amqp://{node.user}:{node.password}@{node.host}:{node.amqp_port}/{quote(vhost, safe='')}"


def management_url(node: RabbitNode) -> str:
    """The address of a node's management API, with credentials."""
    return f"http://{node.user}:{node.password}@{node.host}:{node.management_port}"


def prometheus_url(node: RabbitNode) -> str:
    """The address of a node's Prometheus endpoint."""
    return f"http://{node.host}:{node.prometheus_port}"


async def wait_until_ready(node: RabbitNode, process: GuardedProcess, words: Callable[[], str]) -> None:
    """Wait until `node` answers over AMQP and the management API; raise when its process ends or time is up."""
    ready = asyncio.ensure_future(answers(node))
    ended = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({ready, ended}, timeout=BOOT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            await ready
        elif ended.done():
            raise ChildDied(process.name, await ended, words())
        else:
            raise StartTimedOut(process.name, BOOT_TIMEOUT_S, words())
    finally:
        ready.cancel()
        ended.cancel()


async def answers(node: RabbitNode) -> None:
    """Return once `node` has been talked to over AMQP and the management API; the caller bounds the time."""
    while True:
        if await _port_open(node.host, node.amqp_port):
            break
        await asyncio.sleep(POLL_S)
    while True:
        try:
            connection = await aio_pika.connect(amqp_url(node), timeout=ANSWER_TIMEOUT_S)
            await connection.close()
            break
        except (OSError, TimeoutError, aio_pika.exceptions.AMQPError):  # not listening yet, or not ready for us
            await asyncio.sleep(POLL_S)
    async with httpx.AsyncClient(base_url=management_url(node), timeout=ANSWER_TIMEOUT_S, trust_env=False) as client:
        while True:
            try:
                if (await client.get("/api/overview")).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass  # not listening yet, or not answering yet
            await asyncio.sleep(POLL_S)


async def _port_open(host: str, port: int) -> bool:
    """A cheap look before an AMQP client, which logs every refusal as an error, tries in earnest."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


async def create_vhost(node: RabbitNode, vhost: str) -> None:
    """Create a virtual host, with all rights for the node's user."""
    async with httpx.AsyncClient(base_url=management_url(node), timeout=VHOST_TIMEOUT_S, trust_env=False) as client:
        name = quote(vhost, safe="")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        for path, body in ((f"/api/vhosts/{name}", {}), (f"/api/permissions/{name}/{node.user}", everything)):
            answer = await client.put(path, json=body)
            if answer.is_error:
                problem = f"RabbitMQ {node.name} did not create the virtual host {vhost}: {answer.text:.200}"
                raise EmbeddedError(problem, "read its log")


async def together(work: Sequence[Coroutine[object, object, object]]) -> None:
    """Do all at once; the first failure ends the rest and is raised as itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def new_password() -> str:
    """A password for one launch."""
    return secrets.token_urlsafe(24)


@asynccontextmanager
async def rabbit_nodes(
    names: Sequence[str],
    *,
    installation: Installation | None = None,
    plugins: Sequence[str] = PLUGINS,
    options: Mapping[str, object] | None = None,
    password: str | None = None,
) -> AsyncIterator[dict[str, ChildNode]]:
    """Bare nodes without anything of ours on them, booted at once; gone afterwards. `options`: for rabbitmq.conf.
    They have the same password, a new one where none is given.
    """
    installation = installation or find_installation()
    ports = Ports()
    try:
        async with Guard() as guard:
            secret = password or new_password()
            nodes = {
                name: ChildNode(guard, installation, name, NodePorts.reserve(ports), secret, plugins, options)
                for name in names
            }
            try:
                await together([node.start() for node in nodes.values()])
            except EmbeddedError as error:
                error.logs = str(await guard.keep("logs"))
                raise
            yield nodes
    finally:
        ports.close()
