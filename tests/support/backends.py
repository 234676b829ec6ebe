"""Nodes and clusters on either RabbitMQ: `native`, the installed one, and `container`, the newest supported one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

from tests.support.containers import ContainerNode
from tests.support.node_pool import LentToCluster, NodePool
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.nodes import NodePorts, RabbitNode, new_password, rabbit_nodes
from tidegate_embedded.plan import all_brokers
from tidegate_embedded.ports import Ports
from tidegate_embedded.topology import Topology

# The helper that testcontainers starts to clean up after a killed test run is an image of its own; ours are removed
# below.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

Launch = Callable[..., AbstractAsyncContextManager[EmbeddedCluster]]
"""Like `EmbeddedCluster`, on the backend of the test."""


PASSWORD: Final = new_password()
"""Of all nodes: the clients of a cluster have one for the RabbitMQs of all its brokers."""


@asynccontextmanager
async def one_node(
    backend: str, directory: Path, options: Mapping[str, object] | None = None, folder: Path | None = None
) -> AsyncIterator[RabbitNode]:
    """One bare RabbitMQ on a backend; `directory` is for what a container needs, `folder` for files of the options."""
    if backend == "native":
        async with rabbit_nodes(["rabbit"], options=options, password=PASSWORD) as nodes:
            yield nodes["rabbit"]
        return
    with closing(Ports()) as ports:
        container = ContainerNode("rabbit", NodePorts.reserve(ports), PASSWORD, directory, options, folder)
        try:
            await container.start()
            yield container
        finally:
            await container.remove()


def launcher(backend: str, pool: NodePool) -> Launch:
    """Starts clusters on a backend. They borrow their RabbitMQs: compact ones one, others one for each broker."""

    @asynccontextmanager
    async def launch(topology: Topology, *, compact: bool = False, **options: Any) -> AsyncIterator[EmbeddedCluster]:
        async with AsyncExitStack() as stack:
            count = 1 if compact else len(list(all_brokers(topology)))
            lent = await asyncio.gather(*(stack.enter_async_context(pool.lend(backend)) for _ in range(count)))
            nodes = [LentToCluster(pool, node) for node in lent]
            made = EmbeddedCluster(topology, compact=compact, node_factory=lambda *_: nodes.pop(), **options)
            yield await stack.enter_async_context(made)

    return launch
