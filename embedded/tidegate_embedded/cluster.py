"""A whole cluster on this machine, as an async context manager: for the CLI, for tests and for experiments.

    async with EmbeddedCluster(Topology.simple(clusters=1, edges=4), compact=True) as cluster:
        publisher = AsyncPublisher(cluster.url("alpha"), …)

Entering starts all RabbitMQ nodes at once (or one node for all brokers, `compact`), the link conditioners the topology
needs, and a head or edge process per broker, and returns when every process says it is ready. Leaving ends all of it;
the guardian sees to that even if this process is killed. When starting fails, the logs stay, and the error names
their directory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import httpx

from tidegate_brokers.errors import ChildDied, ConfigurationError, EmbeddedError, StartTimedOut
from tidegate_brokers.settings.reading import ENVIRONMENT_PREFIX

from .conditioner_client import ConditionerClient
from .guard import Guard, GuardedProcess
from .installation import Installation, find_installation
from .nodes import ChildNode, NodePorts, RabbitNode, create_vhost, new_password, together
from .plan import (
    SHUTDOWN_TIMEOUT_S,
    BrokerInfo,
    Member,
    Plan,
    all_brokers,
    conditioned_for_clients_only,
    needs_conditioner,
)
from .ports import Ports
from .topology import Topology

READY_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.1
ANSWER_TIMEOUT_S: Final = 5.0
GRACE_S: Final = SHUTDOWN_TIMEOUT_S + 1.0
COMPACT_NODE: Final = "shared"
DIRECTORY_BYTES_MAX: Final = 80
"""The path of a Unix socket has at most 107 bytes, and those of the conditioners lie in our directory."""

Progress = Callable[[str, int, int], None]
"""Called with the step, how much of it is done, and how much there is."""
NodeFactory = Callable[[str, NodePorts, str], RabbitNode]
"""Makes a node from its name, its reserved ports and its password. The caller removes what its factory made."""

__all__ = ["BrokerInfo", "BrokerProcess", "EmbeddedCluster", "NodeFactory", "Progress"]


class BrokerProcess:
    """The head or edge process of one broker; can be ended and started again."""

    def __init__(self, guard: Guard, member: Member, config: Path) -> None:
        self._guard = guard
        self._member = member
        self._config = config
        self._process: GuardedProcess | None = None
        self.log = guard.directory / "logs" / f"{member.name}.log"

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None and self._process.is_running else None

    async def start(self) -> None:
        """Start and wait until it is ready."""
        assert self.pid is None, f"the process of {self._member.name} runs already"
        # Variables of the caller's shell would take precedence over the file.
        env = {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}
        argv = [sys.executable, "-m", f"tidegate_brokers.{self._member.kind}", "--config", str(self._config)]
        name = f"{self._member.kind} process {self._member.name}"
        self._process = await self._guard.spawn(name, argv, log=self.log, env=env, grace_s=GRACE_S)
        await _until_ready(self._process, self._is_ready)

    async def terminate(self) -> int:
        """SIGTERM: it drains and ends; its exit code."""
        return await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL."""
        await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        await self._process.send_signal(number)
        return await self._process.wait()

    async def _is_ready(self) -> str | None:
        """None when ready, otherwise what it says."""
        url = f"http://127.0.0.1:{self._member.http_port}/readyz"
        try:
            async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, trust_env=False) as client:
                answer = await client.get(url)
        except httpx.TransportError as error:
            return f"/readyz does not answer ({error!r})"
        return None if answer.status_code == httpx.codes.OK else f"/readyz: {answer.text:.400}"


class EmbeddedCluster:
    """Real RabbitMQ nodes, link conditioners and broker processes for one topology."""

    def __init__(
        self,
        topology: Topology,
        *,
        compact: bool = False,
        node_factory: NodeFactory | None = None,
        conditioned: Collection[str] | Literal["all"] | None = None,
        progress: Progress | None = None,
        keep_logs_on_failure: bool = True,
        processes: bool = True,
        period_s: float = 1.0,
        installation: Installation | None = None,
    ) -> None:
        """`conditioned`: brokers that get a conditioner even if the topology does not need one ("all": every one).
        `processes=False` leaves out the head and edge processes. `period_s`: how often they send signs of life."""
        self._topology = topology
        self._compact = compact
        self._node_factory = node_factory
        self._progress = progress or (lambda step, done, total: None)
        self._keep_logs = keep_logs_on_failure
        self._with_processes = processes
        self._period_s = period_s
        self._installation = installation
        every = {spec.name for _, _, spec in all_brokers(topology)}
        wanted = every if conditioned == "all" else set(conditioned or ())
        assert wanted <= every, f"no such brokers: {sorted(wanted - every)}"
        self._conditioned = wanted | needs_conditioner(topology, compact=compact)
        self._clients_only = conditioned_for_clients_only(topology) - wanted
        self._stack = AsyncExitStack()
        self._plan: Plan
        self._nodes: dict[str, RabbitNode] = {}
        self._conditioners: dict[str, ConditionerClient] = {}
        self._conditioning: list[GuardedProcess] = []
        self._processes: dict[str, BrokerProcess] = {}
        self.brokers: dict[str, BrokerInfo] = {}
        """All brokers by name, heads before their edges."""
        self.clusters: tuple[str, ...] = tuple(cluster.name for cluster in topology.cluster)
        self.directory = Path()
        """Private directory of the launch; `logs` in it has everything that was said."""

    async def __aenter__(self) -> Self:
        try:
            guard = await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        try:
            await self._start(guard)
        except BaseException as error:
            if isinstance(error, Exception) and self._keep_logs:
                await _keep_logs(guard, error)
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def url(self, cluster: str) -> str:
        """Where clients of a cluster connect: its head, with credentials."""
        return self._plan.client_url(self._plan.head(cluster))

    def node(self, broker: str) -> RabbitNode:
        """The RabbitMQ of a broker; in a compact cluster the same for all."""
        return self._nodes[broker]

    def process(self, broker: str) -> BrokerProcess:
        """The head or edge process of a broker."""
        return self._processes[broker]

    def conditioner(self, broker: str) -> ConditionerClient:
        """The link conditioner of a broker that has one."""
        return self._conditioners[broker]

    @property
    def conditioners(self) -> Mapping[str, ConditionerClient]:
        """All link conditioners by broker; empty where no link is shaped."""
        return self._conditioners

    @property
    def conditioner_pids(self) -> tuple[int, ...]:
        """The processes of all link conditioners, for measurements of what they use."""
        return tuple(process.pid for process in self._conditioning)

    @property
    def logs(self) -> Path:
        """Where everything logs while the cluster runs."""
        return self.directory / "logs"

    async def _open(self) -> Guard:
        """Reserve ports and choose nodes. What is wrong with the request shows here, before anything boots."""
        ports = Ports()
        self._stack.callback(ports.close)
        # Before any free one is chosen, which could be the very port that is asked for.
        for _, _, spec in all_brokers(self._topology):
            if spec.port is not None:
                ports.fixed(spec.port, spec.name)
        installation = self._installation
        if self._node_factory is None and installation is None:
            installation = find_installation()
        guard = await self._stack.enter_async_context(Guard())
        self.directory = guard.directory
        if self._conditioned and len(os.fsencode(self.directory)) > DIRECTORY_BYTES_MAX:
            problem = f"sockets in {self.directory} would have longer paths than the kernel allows"
            raise ConfigurationError("TMPDIR", "environment", problem, "choose a shorter directory, such as /tmp")
        self.logs.mkdir(mode=0o700)
        password = new_password()

        def make(name: str, amqp: int | None) -> RabbitNode:
            reserved = NodePorts.reserve(ports, amqp)
            if self._node_factory is not None:
                return self._node_factory(name, reserved, password)
            assert installation is not None
            return ChildNode(guard, installation, name, reserved, password)

        shared = make(COMPACT_NODE, None) if self._compact else None
        for _, _, spec in all_brokers(self._topology):
            fixed = None
            if shared is None and spec.port is not None and spec.name not in self._conditioned:
                fixed = spec.port
            self._nodes[spec.name] = shared or make(spec.name, fixed)
        self._plan = Plan(self._topology, self._nodes, self._conditioned, ports, clients_only=self._clients_only)
        self.brokers = {name: self._plan.info(member) for name, member in self._plan.members.items()}
        return guard

    async def _start(self, guard: Guard) -> None:
        members = list(self._plan.members.values())
        nodes = list({id(node): node for node in self._nodes.values()}.values())
        await self._step("RabbitMQ nodes", [node.start() for node in nodes])
        await self._step("virtual hosts", [create_vhost(member.node, member.name) for member in members])
        shaped = [member for member in members if member.is_conditioned]
        # Brokers that share a RabbitMQ share the process that shapes their links: fewer wake-ups on few processors.
        shares = [shaped] if self._compact and shaped else [[member] for member in shaped]
        await self._step("link conditioners", [self._condition(guard, group) for group in shares])
        if self._with_processes:
            # A head first serves its edges and neighbours when they are there, so all start at once.
            await self._step("broker processes", [self._run(guard, member) for member in members])

    async def _step(self, name: str, work: Sequence[Coroutine[object, object, object]]) -> None:
        if not work:
            return
        done = 0
        self._progress(name, done, len(work))

        async def count(one: Coroutine[object, object, object]) -> None:
            nonlocal done
            await one
            done += 1
            self._progress(name, done, len(work))

        await together([count(one) for one in work])

    async def _condition(self, guard: Guard, members: Sequence[Member]) -> None:
        files: list[str] = []
        clients: dict[str, ConditionerClient] = {}
        for member in members:
            index = list(self._plan.members).index(member.name)
            control = guard.directory / f"conditioner-{index}.sock"
            file = guard.directory / f"conditioner-{index}.json"
            file.write_text(self._plan.conditioner(member, control).to_json())
            files.append(str(file))
            clients[member.name] = ConditionerClient(member.name, control)
        process = await guard.spawn(
            f"link conditioner of {', '.join(clients)}",
            [sys.executable, "-m", "tidegate_embedded.conditioner", *files],
            log=self.logs / f"{members[0].name}.conditioner.log",
        )

        async def is_ready() -> str | None:
            try:
                for client in clients.values():
                    await client.stats()
            except EmbeddedError as error:
                return str(error)
            return None

        await _until_ready(process, is_ready)
        self._conditioners |= clients
        self._conditioning.append(process)

    async def _run(self, guard: Guard, member: Member) -> None:
        file = guard.directory / f"{member.name}.toml"
        file.touch(mode=0o600)
        file.write_text(self._plan.process_config(member, self._period_s))
        process = self._processes[member.name] = BrokerProcess(guard, member, file)
        await process.start()


async def _until_ready(process: GuardedProcess, is_ready: Callable[[], Coroutine[object, object, str | None]]) -> None:
    """Wait until `is_ready` returns None; raise when the process ends first or time is up."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + READY_TIMEOUT_S
    while (missing := await is_ready()) is not None:
        if process.returncode is not None:
            raise ChildDied(process.name, process.returncode, process.tail())
        if loop.time() > end_s:
            raise StartTimedOut(process.name, READY_TIMEOUT_S, f"{process.tail()}\n{missing}")
        await asyncio.sleep(POLL_S)


async def _keep_logs(guard: Guard, error: Exception) -> None:
    try:
        kept = await guard.keep("logs")
    except EmbeddedError:  # the guardian itself is what failed, and has removed everything
        return
    if isinstance(error, EmbeddedError):
        error.logs = str(kept)
    else:
        error.add_note(f"logs are kept in {kept}")
