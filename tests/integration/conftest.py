"""Real clusters to test on: on the RabbitMQ of this machine, and on a newer one in a container. And a Spark.

Every test that asks for `backend` (or for a cluster made with it) runs once per backend. Without Docker the second run
is skipped, and says so; in CI that counts as a failure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.backends import Launch, launcher
from tests.support.containers import IMAGE, docker_problem
from tests.support.node_pool import LentNode, NodePool
from tidegate_brokers.settings.balancing import BalancingOptions
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.nodes import RabbitNode
from tidegate_embedded.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BACKENDS = ["native", pytest.param("container", marks=pytest.mark.docker)]


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
async def node(backend: str, pool: NodePool) -> AsyncIterator[RabbitNode]:
    """One bare RabbitMQ for all tests of a module."""
    async with pool.lend(backend) as found:
        yield LentNode(pool, found)


@pytest.fixture
def launch(backend: str, pool: NodePool) -> Launch:
    """Start clusters on the backend."""
    return launcher(backend, pool)


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


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests that use one in this process. Without Java they are skipped."""
    from tests.support.spark import java_problem, shared_session

    problem = java_problem()
    if problem is not None:
        pytest.skip(f"Spark is not tested: {problem}")
    with shared_session() as session:
        yield session
