"""Real clusters to test on: on the RabbitMQ of this machine, and on a newer one in a container.

Every test that asks for `backend` (or for a cluster made with it) runs once per backend. Without Docker the second run
is skipped, and says so; in CI that counts as a failure.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.containers import IMAGE, ContainerNode, docker_problem
from tidegate_brokers.balancing import BalancingOptions
from tidegate_brokers.embedded.cluster import EmbeddedCluster
from tidegate_brokers.embedded.nodes import NodePorts, RabbitNode, new_password, rabbit_nodes
from tidegate_brokers.embedded.ports import Ports
from tidegate_brokers.topology import Topology

# The helper that testcontainers starts to clean up after a killed test run is an image of its own; ours are removed by
# the fixture below.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

BACKENDS = ["native", pytest.param("container", marks=pytest.mark.docker)]

Launch = Callable[..., AbstractAsyncContextManager[EmbeddedCluster]]
"""Like `EmbeddedCluster`, on the backend of the test."""


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """`native`: the RabbitMQ installed here. `container`: the newest supported one, in Docker."""
    name = str(request.param)
    if name == "container":
        problem = docker_problem()
        if problem is not None:
            pytest.skip(f"RabbitMQ in a container ({IMAGE}) is not tested: {problem}")
    return name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RabbitNode]:
    """One bare RabbitMQ for all tests of a module."""
    async with one_node(backend, tmp_path_factory.mktemp("container")) as found:
        yield found


@asynccontextmanager
async def one_node(
    backend: str, directory: Path, options: Mapping[str, object] | None = None, folder: Path | None = None
) -> AsyncIterator[RabbitNode]:
    """One bare RabbitMQ on a backend; `directory` is for what a container needs, `folder` for files of the options."""
    if backend == "native":
        async with rabbit_nodes(["rabbit"], options=options) as nodes:
            yield nodes["rabbit"]
        return
    ports = Ports()
    container = ContainerNode("rabbit", NodePorts.reserve(ports), new_password(), directory, options, folder)
    try:
        await container.start()
        yield container
    finally:
        await container.remove()
        ports.close()


@pytest.fixture
def launch(backend: str, tmp_path: Path) -> Launch:
    """Start clusters on the backend."""
    return launcher(backend, tmp_path)


def launcher(backend: str, directory: Path) -> Launch:
    """Starts clusters on a backend; `directory` is for what containers need."""

    @asynccontextmanager
    async def native(topology: Topology, **options: bool) -> AsyncIterator[EmbeddedCluster]:
        async with EmbeddedCluster(topology, **options) as cluster:
            yield cluster

    @asynccontextmanager
    async def container(topology: Topology, **options: bool) -> AsyncIterator[EmbeddedCluster]:
        nodes: list[ContainerNode] = []
        files = Path(tempfile.mkdtemp(prefix="containers-", dir=directory))

        def make(name: str, ports: NodePorts, password: str) -> ContainerNode:
            nodes.append(ContainerNode(name, ports, password, files))
            return nodes[-1]

        try:
            async with EmbeddedCluster(topology, node_factory=make, **options) as cluster:
                yield cluster
        finally:
            for node in nodes:
                await node.remove()

    return native if backend == "native" else container


@pytest.fixture
async def chain(launch: Launch) -> AsyncIterator[EmbeddedCluster]:
    """Three clusters in a chain with two edges each, on one RabbitMQ. Nobody is moved: links are counted exactly, and
    a move sends markers over them. Nor is anything dropped of what waits: all that was published is counted.
    """
    balancing = BalancingOptions(policy="none", slow_subscriber_messages_max=1_000_000)
    topology = Topology.simple(clusters=3, edges=2).model_copy(update={"balancing": balancing})
    async with launch(topology, compact=True) as cluster:
        yield cluster


@pytest.fixture
async def nodes_cluster(launch: Launch) -> AsyncIterator[EmbeddedCluster]:
    """One head and two edges, each with a RabbitMQ of its own."""
    async with launch(Topology.simple(clusters=1, edges=2)) as cluster:
        yield cluster
