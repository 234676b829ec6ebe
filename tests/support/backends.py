"""Nodes and clusters on either RabbitMQ: `native`, the installed one, and `container`, the newest supported one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path

from tests.support.containers import ContainerNode
from tests.support.node_pool import LentToCluster, NodePool
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.installation import PLUGINS
from tidegate_embedded.nodes import NodePorts, RabbitNode, new_password, rabbit_nodes
from tidegate_embedded.ports import Ports
from tidegate_embedded.topology import Topology

# The helper that testcontainers starts to clean up after a killed test run is an image of its own; ours are removed
# below.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

Launch = Callable[..., AbstractAsyncContextManager[EmbeddedCluster]]
"""Like `EmbeddedCluster`, on the backend of the test."""


@asynccontextmanager
async def one_node(
    backend: str,
    directory: Path,
    options: Mapping[str, object] | None = None,
    folder: Path | None = None,
    plugins: Sequence[str] = (),
) -> AsyncIterator[RabbitNode]:
    """One bare RabbitMQ on a backend; `directory` is for what a container needs, `folder` for files of the options,
    `plugins` come besides the usual ones.
    """
    enabled = (*PLUGINS, *plugins)
    if backend == "native":
        async with rabbit_nodes(["rabbit"], plugins=enabled, options=options) as nodes:
            yield nodes["rabbit"]
        return
    with closing(Ports()) as ports:
        reserved = NodePorts.reserve(ports)
        container = ContainerNode("rabbit", reserved, new_password(), directory, options, folder, enabled)
        try:
            await container.start()
            yield container
        finally:
            await container.remove()


def launcher(backend: str, pool: NodePool, directory: Path) -> Launch:
    """Starts clusters on a backend; `directory` is for what containers need. Compact ones borrow their RabbitMQ."""

    @asynccontextmanager
    async def compact(topology: Topology, **options: bool) -> AsyncIterator[EmbeddedCluster]:
        async with pool.lend(backend) as node:
            lent = LentToCluster(pool, node)
            async with EmbeddedCluster(topology, compact=True, node_factory=lambda *_: lent, **options) as cluster:
                yield cluster

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

    def chosen(topology: Topology, **options: bool) -> AbstractAsyncContextManager[EmbeddedCluster]:
        if options.pop("compact", False):
            return compact(topology, **options)
        return (native if backend == "native" else container)(topology, **options)

    return chosen
