"""A cluster with two edges on RabbitMQ in a container, for measuring by hand on another RabbitMQ than this machine's.

    python -m tests.support.container_cluster -- tidegate bench migration --json

starts it, runs the command with its address in TIDEGATE_URL, and removes it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.support.containers import IMAGE, ContainerNode, docker_problem
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.nodes import NodePorts
from tidegate_embedded.topology import Topology

# The helper that testcontainers starts to clean up is an image of its own; the container is removed below.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")


async def main(command: list[str]) -> int:
    """Run `command` on such a cluster; its exit code."""
    nodes: list[ContainerNode] = []
    with tempfile.TemporaryDirectory(prefix="tidegate-") as directory:

        def make(name: str, ports: NodePorts, password: str) -> ContainerNode:
            nodes.append(ContainerNode(name, ports, password, Path(directory)))
            return nodes[-1]

        try:
            topology = Topology.simple(clusters=1, edges=2)
            async with EmbeddedCluster(topology, compact=True, node_factory=make) as cluster:
                environment = os.environ | {"TIDEGATE_URL": cluster.url(cluster.clusters[0])}
                process = await asyncio.create_subprocess_exec(*command, env=environment)
                return await process.wait()
        finally:
            for node in nodes:
                await node.remove()


if __name__ == "__main__":
    wanted = [argument for argument in sys.argv[1:] if argument != "--"]
    problem = docker_problem() or (None if wanted else "no command is given")
    if problem is not None:
        sys.exit(f"{IMAGE}: {problem}")
    sys.exit(asyncio.run(main(wanted)))
