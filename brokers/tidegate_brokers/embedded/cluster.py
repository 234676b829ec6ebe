"""A whole cluster on this machine, as an async context manager: what the CLI, the tests and the experiments start.

    async with EmbeddedCluster(Topology.simple(edges=2), compact=True) as cluster:
        url = cluster.url("alpha")

Inside, every broker is ready: RabbitMQ, its process, its links. Afterwards nothing is left, whatever happened. Nodes boot
all at once; conditioners and broker processes follow when the nodes answer.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from ..errors import ChildDied, EmbeddedError, StartTimedOut
from ..topology import Kind, Topology
from .conditioner import ConditionerConfig
from .conditioner_client import ConditionerClient
from .guard import Guard, GuardedProcess
from .installation import find_installation
from .nodes import ChildNode, NodePorts, RabbitNode, create_vhost, management_url, new_password
from .plan import BrokerPlan, LaunchPlan, address
from .ports import LOOPBACK, Ports

READY_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.1
ANSWER_TIMEOUT_S: Final = 5.0
TERMINATE_GRACE_S: Final = 15.0
"""A broker process finishes within 10 s of SIGTERM (its `shutdown_timeout_s`), or is killed."""

Progress = Callable[[str, int, int], None]
NodeFactory = Callable[[str, NodePorts, str], RabbitNode]
"""Makes a node from its name, its ports and a password, where it is not to be a child process."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """Where a broker of the running cluster is. Addresses hold credentials and bypass any conditioner."""

    name: str
    cluster: str
    kind: Kind
    vhost: str
    url: str
    management_url: str
    http_url: str


class ProcessHandle:
    """The Tidegate process of one broker: it can be killed, ended and started again."""

    def __init__(self, guard: Guard, broker: BrokerInfo, argv: Sequence[str], log: Path) -> None:
        self._guard = guard
        self._broker = broker
        self._argv = argv
        self._log = log
        self._process: GuardedProcess | None = None

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._process.pid if self._process is not None and self._process.is_running else None

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        assert self.pid is None, f"the process of {self._broker.name} runs already"
        name = f"{self._broker.kind} {self._broker.name}"
        self._process = await self._guard.spawn(name, self._argv, log=self._log, grace_s=TERMINATE_GRACE_S)
        await self._until_ready(self._process)

    async def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None and await self._process.signal(signal.SIGKILL):
            await self._process.wait()

    async def terminate(self) -> int:
        """SIGTERM; returns its exit code."""
        assert self._process is not None
        await self._process.end(signal.SIGTERM, TERMINATE_GRACE_S)
        return await self._process.wait()

    async def _until_ready(self, process: GuardedProcess) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + READY_TIMEOUT_S
        async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S) as http:
            while loop.time() < end:
                if not process.is_running:
                    raise ChildDied(process.name, await process.wait(), process.tail())
                try:
                    if (await http.get(f"{self._broker.http_url}/readyz")).status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                await asyncio.sleep(POLL_S)
        raise StartTimedOut(process.name, READY_TIMEOUT_S, process.tail())


class EmbeddedCluster:
    """Boots a topology on entering; ends it on leaving."""

    def __init__(
        self,
        topology: Topology,
        *,
        compact: bool = False,
        conditioned: bool | None = None,
        processes: bool = True,
        node_factory: NodeFactory | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`conditioned`: None puts conditioners where the topology calls for them. `processes`: False boots RabbitMQ only."""
        self._topology = topology
        self._compact = compact
        self._conditioned = conditioned
        self._with_processes = processes
        self._node_factory = node_factory
        self._progress = progress or (lambda step, done, total: None)
        self._password = new_password()
        self._nodes: dict[str, RabbitNode] = {}
        self._processes: dict[str, ProcessHandle] = {}
        self._conditioners: dict[str, ConditionerClient] = {}
        self._stack = AsyncExitStack()
        self.brokers: dict[str, BrokerInfo] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._boot()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    # The running cluster

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters, in the order of the topology."""
        return tuple(cluster.name for cluster in self._topology.cluster)

    @property
    def directory(self) -> Path:
        """The private directory of this launch; logs are in `logs`."""
        return self._guard.directory

    def url(self, cluster: str) -> str:
        """The address of a cluster's head for clients, with credentials."""
        head = self._plan.head_of(cluster)
        return address(self._nodes[head.node], self._plan.port(head.name, "client"), head.name)

    def node(self, broker: str) -> RabbitNode:
        """The RabbitMQ of a broker."""
        return self._nodes[self._plan.brokers[broker].node]

    def process(self, broker: str) -> ProcessHandle:
        """The Tidegate process of a broker."""
        return self._processes[broker]

    @property
    def conditioners(self) -> Mapping[str, ConditionerClient]:
        """The link conditioners by broker; empty where links are not shaped."""
        return self._conditioners

    # Booting

    async def _boot(self) -> None:
        ports = Ports()
        self._stack.callback(ports.close)
        self._plan = LaunchPlan.make(self._topology, ports, compact=self._compact, conditioned=self._conditioned)
        self._guard = await self._stack.enter_async_context(Guard())
        (self.directory / "logs").mkdir(exist_ok=True)
        try:
            await self._boot_nodes()
            await self._boot_conditioners()
            if self._with_processes:
                await self._boot_processes()
        except* EmbeddedError as group:
            error = group.exceptions[0]
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            assert isinstance(error, EmbeddedError)
            error.logs = str(await self._guard.keep("logs"))
            raise error from None

    async def _boot_nodes(self) -> None:
        factory = self._node_factory or self._child_factory()
        self._nodes = {name: factory(name, ports, self._password) for name, ports in self._plan.nodes.items()}
        await self._all("RabbitMQ nodes", [node.start for node in self._nodes.values()])
        for plan in self._plan.brokers.values():
            node = self._nodes[plan.node]
            self.brokers[plan.name] = BrokerInfo(
                name=plan.name,
                cluster=plan.cluster,
                kind=plan.kind,
                vhost=plan.name,
                url=address(node, node.amqp_port, plan.name),
                management_url=management_url(node),
                http_url=f"http://{LOOPBACK}:{plan.http_port}",
            )
        for plan in self._plan.brokers.values():
            await create_vhost(self._nodes[plan.node], plan.name)

    def _child_factory(self) -> NodeFactory:
        installation = find_installation()
        return lambda name, ports, password: ChildNode(self._guard, installation, name, ports, password)

    async def _boot_conditioners(self) -> None:
        if self._plan.conditioned:
            await self._all("link conditioners", [lambda b=b: self._condition(b) for b in self._plan.brokers.values()])

    async def _condition(self, plan: BrokerPlan) -> None:
        control = self.directory / f"{plan.name}.sock"
        config = ConditionerConfig(
            broker=plan.name,
            host=LOOPBACK,
            control=str(control),
            uplink_bytes_per_s=plan.spec.uplink_bytes_per_s,
            downlink_bytes_per_s=plan.spec.downlink_bytes_per_s,
            listeners=self._plan.listeners(plan.name),
        )
        file = self.directory / f"conditioner-{plan.name}.json"
        file.write_text(config.to_json())
        argv = [sys.executable, "-m", "tidegate_brokers.embedded.conditioner", str(file)]
        log = self.directory / "logs" / f"conditioner-{plan.name}.log"
        process = await self._guard.spawn(f"link conditioner {plan.name}", argv, log=log)
        loop = asyncio.get_running_loop()
        end = loop.time() + READY_TIMEOUT_S
        while not control.exists():
            if not process.is_running:
                raise ChildDied(process.name, await process.wait(), process.tail())
            if loop.time() > end:
                raise StartTimedOut(process.name, READY_TIMEOUT_S, process.tail())
            await asyncio.sleep(POLL_S)
        self._conditioners[plan.name] = ConditionerClient(plan.name, control)

    async def _boot_processes(self) -> None:
        for plan in self._plan.brokers.values():
            file = self.directory / f"{plan.kind}-{plan.name}.toml"
            file.touch(mode=0o600)
            file.write_text(_toml(self._config(plan)))
            argv = [sys.executable, "-m", f"tidegate_brokers.{plan.kind}", "--config", str(file)]
            log = self.directory / "logs" / f"{plan.kind}-{plan.name}.log"
            self._processes[plan.name] = ProcessHandle(self._guard, self.brokers[plan.name], argv, log)
        await self._all("broker processes", [process.start for process in self._processes.values()])

    def _config(self, plan: BrokerPlan) -> dict[str, Any]:
        """The options of a broker process; None means that an option is left out."""
        broker = self.brokers[plan.name]
        common = {
            "name": plan.name,
            "cluster": plan.cluster,
            "url": broker.url,
            "management_url": broker.management_url,
            "http_port": plan.http_port,
        }
        node = self._nodes[plan.node]
        launch = self._plan
        head = launch.head_of(plan.cluster)
        if plan.kind == "edge":
            return common | {
                "head_url": address(self._nodes[head.node], launch.port(head.name, "link"), head.name),
                "client_url": address(node, launch.port(plan.name, "client"), plan.name, credentials=False),
                "link_url": address(node, launch.link_port(head.name, plan.name), plan.name),
                "uplink_bytes_per_s": plan.spec.uplink_bytes_per_s,
                "downlink_bytes_per_s": plan.spec.downlink_bytes_per_s,
                "matching_per_s": plan.spec.matching_per_s,
            }
        neighbours = [launch.head_of(name) for name, _ in self._topology.neighbours(plan.cluster)]
        return common | {
            "neighbours": [
                {
                    "name": other.name,
                    "url": address(self._nodes[other.node], launch.port(other.name, "link"), other.name),
                    "link_url": address(self._nodes[other.node], launch.link_port(plan.name, other.name), other.name),
                }
                for other in neighbours
            ]
        }

    async def _all(self, step: str, starts: Sequence[Callable[[], Any]]) -> None:
        """Run them at once, telling how many are done."""
        done = 0
        self._progress(step, done, len(starts))

        async def one(start: Callable[[], Any]) -> None:
            nonlocal done
            await start()
            done += 1
            self._progress(step, done, len(starts))

        async with asyncio.TaskGroup() as group:
            for start in starts:
                group.create_task(one(start))


def _toml(options: Mapping[str, Any]) -> str:
    """Flat options first, then lists of tables, which is all that a broker's configuration has."""
    lines = []
    tables = []
    for key, value in options.items():
        if isinstance(value, list):
            for table in value:
                tables += [f"[[{key}]]", *(f"{name} = {_value(item)}" for name, item in table.items())]
        elif value is not None:
            lines.append(f"{key} = {_value(value)}")
    return "\n".join(lines + tables) + "\n"


def _value(value: str | float) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
