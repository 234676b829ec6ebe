"""RabbitMQ nodes that tests share, one test or module after the other.

A node takes longer to boot than most tests take to run. So a node is lent, comes back, is made empty and is lent again.
Clusters whose brokers have a RabbitMQ each borrow as many.
Nodes run in an event loop and a thread of the pool, since the loop of a test ends with the test or with its module.

Invariant: a node that is lent has an empty default virtual host, no other one, and no user but its administrator. It
is lent to one borrower at a time. A node that can't be made empty, such as one that a failed test left dead, is ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import httpx

from tests.support.containers import ContainerNode
from tidegate_embedded.nodes import ChildNode, RabbitNode, create_vhost, management_url

DEFAULT_VHOST: Final = "/"
CLEANING_TIMEOUT_S: Final = 30.0

T = TypeVar("T")
Boot = Callable[[str], AbstractAsyncContextManager[RabbitNode]]
"""Starts a node on a backend."""


@dataclass(slots=True)
class _Kept:
    node: RabbitNode
    stack: AsyncExitStack


class LentNode:
    """A `RabbitNode` of the pool. To start it again after `stop` or `kill` is up to the borrower."""

    def __init__(self, pool: NodePool, node: RabbitNode) -> None:
        self._pool = pool
        self._node = node
        self.name = node.name
        self.host = node.host
        self.amqp_port = node.amqp_port
        self.management_port = node.management_port
        self.prometheus_port = node.prometheus_port
        self.user = node.user
        self.password = node.password

    @property
    def configuration(self) -> Path:
        """The file that it reads when it starts; to restore it is up to the borrower, too."""
        assert isinstance(self._node, ChildNode | ContainerNode)
        return self._node.configuration

    async def start(self) -> None:
        await self._pool.run(self._node.start())

    async def stop(self) -> None:
        await self._pool.run(self._node.stop())

    async def kill(self) -> None:
        await self._pool.run(self._node.kill())


class LentToCluster(LentNode):
    """A node of the pool in an embedded cluster, which starts its nodes: the first time it runs already."""

    def __init__(self, pool: NodePool, node: RabbitNode) -> None:
        super().__init__(pool, node)
        self._used = False

    async def start(self) -> None:
        if self._used:
            await super().start()
        self._used = True


class NodePool:
    """Nodes of any backend, at most as many as were ever lent at the same time."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._free: dict[str, list[_Kept]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="node pool", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all nodes that came back."""
        for kept in self._free.values():
            for one in kept:
                asyncio.run_coroutine_threadsafe(one.stack.aclose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def run(self, work: Coroutine[object, object, T]) -> T:
        """Let the pool's loop do `work`."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    @asynccontextmanager
    async def lend(self, backend: str) -> AsyncIterator[RabbitNode]:
        """An empty node that runs."""
        kept = await self.run(self._take(backend))
        try:
            yield kept.node
        finally:
            self._free.setdefault(backend, []).append(kept)

    async def _take(self, backend: str) -> _Kept:
        free = self._free.setdefault(backend, [])
        while free:
            kept = free.pop()
            try:
                await _empty(kept.node)
            except httpx.HTTPError:
                await kept.stack.aclose()
            else:
                return kept
        stack = AsyncExitStack()
        return _Kept(await stack.enter_async_context(self._boot(backend)), stack)


async def _empty(node: RabbitNode) -> None:
    """Remove all virtual hosts and users but for the administrator; create the default virtual host again."""
    async with httpx.AsyncClient(base_url=management_url(node), timeout=CLEANING_TIMEOUT_S, trust_env=False) as client:
        for kind, kept in (("users", node.user), ("vhosts", "")):
            listed = (await client.get(f"/api/{kind}")).raise_for_status().json()
            for name in sorted({entry["name"] for entry in listed} - {kept}):
                (await client.delete(f"/api/{kind}/{quote(name, safe='')}")).raise_for_status()
    await create_vhost(node, DEFAULT_VHOST)
