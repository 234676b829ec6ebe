"""A cluster whose parts have the least rights: the accounts that `tidegate access prepare` makes, on one RabbitMQ.

Every broker of the layout has a virtual host of its name. The layout's places are filled in by `{host}` and `{port}`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import aio_pika
import httpx
from aio_pika.abc import AbstractChannel

from tests.support.brokers import PERIOD_S, Process, start_all, terminate_all
from tests.support.waiting import eventually
from tidegate_brokers.access.applying import Change
from tidegate_brokers.access.layout import HeadPlace, Layout
from tidegate_brokers.access.preparing import Access
from tidegate_embedded.nodes import RabbitNode, management_url
from tidegate_protocol.names import ACCOUNTS_EXCHANGE


@dataclass
class Guarded:
    """The accounts and the processes of such a cluster."""

    access: Access
    processes: dict[str, Process]
    node: RabbitNode
    layout: Layout
    directory: Path
    """Where everything was written, the layout among it."""

    async def applied(self, change: Callable[[str], str]) -> list[Change]:
        """Apply the layout with something changed in its text, as `tidegate access apply` does."""
        file = self.directory / "changed.toml"
        file.write_text(change((self.directory / "layout.toml").read_text()))
        return await Access(Layout.load(file), self.directory, {}).apply()

    def url(self, user: str, vhost: str = "head") -> str:
        whole = self.access.url(user).reveal()
        return f"{whole.rpartition('/')[0]}/{vhost}"

    async def allows_accounts(self, head: str = "head") -> bool:
        """Whether publishers find at this head that they may name their accounts."""
        async with httpx.AsyncClient(base_url=management_url(self.node), timeout=60, trust_env=False) as http:
            answer = await http.get(f"/api/exchanges/{head}/{ACCOUNTS_EXCHANGE}")
        assert answer.status_code in (httpx.codes.OK, httpx.codes.NOT_FOUND), answer.text
        return answer.is_success

    @asynccontextmanager
    async def channel(self, user: str, vhost: str = "head") -> AsyncIterator[AbstractChannel]:
        connection = await aio_pika.connect(self.url(user, vhost))
        async with connection:
            yield await connection.channel(on_return_raises=True)


@asynccontextmanager
async def guarded_cluster(
    node: RabbitNode,
    directory: Path,
    layout_text: str,
    later: Collection[str] = (),
    changes: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
    accounts: str = "checked",
    without_tag: tuple[str, str] | None = None,
) -> AsyncIterator[Guarded]:
    """Make the accounts, import them as an operator would, and run the processes with them; those in `later` are
    started by the test, and `changes` are options of single brokers.

    `accounts`: whether brokers check them. `without_tag`: an account, and a tag that was forgotten.
    """
    ports = {"port": node.amqp_port, "management": node.management_port}
    (directory / "layout.toml").write_text(layout_text.format(host=node.host, **ports))
    layout = Layout.load(directory / "layout.toml")
    access = Access(layout, directory, {})
    access.write()
    async with httpx.AsyncClient(base_url=management_url(node), timeout=60, trust_env=False) as http:
        for place in layout.places:
            for file in sorted((directory / place.name / "definitions").iterdir()):
                definitions = json.loads(file.read_text())
                for user in definitions.get("users", ()) if without_tag is not None else ():
                    if user["name"] == without_tag[0]:
                        user["tags"] = [tag for tag in user["tags"] if tag != without_tag[1]]
                answer = await http.post("/api/definitions", json=definitions)
                assert answer.is_success, answer.text
    processes = {
        place.name: _process(
            node,
            directory / place.name,
            "head" if isinstance(place, HeadPlace) else "edge",
            {"accounts": accounts, **changes.get(place.name, {})},
        )
        for place in layout.places
    }
    try:
        await start_all(process for name, process in processes.items() if name not in later)
        guarded = Guarded(access, processes, node, layout, directory)
        for head in layout.head if accounts == "checked" else ():
            await eventually(partial(guarded.allows_accounts, head.name), f"{head.name} lets accounts be named")
        yield guarded
    finally:
        await terminate_all(processes.values())


def _process(node: RabbitNode, folder: Path, role: str, changes: Mapping[str, object]) -> Process:
    options: dict[str, object] = {
        "management_url": f"http://{node.host}:{node.management_port}",
        "prometheus_url": f"http://{node.host}:{node.prometheus_port}",
        "period_s": PERIOD_S,
        "http_port": 0,
        "startup_timeout_s": 60,
    }
    file = folder / "whole.toml"
    # A node of the tests has its management API at a port of its own.
    prepared = (folder / "broker.toml").read_text().replace(":15672", f":{node.management_port}")
    own = tomllib.loads(prepared)
    lines = [line for line in prepared.splitlines() if line.partition(" = ")[0] not in changes]
    more = {**{option: value for option, value in options.items() if option not in own}, **changes}
    lines[:0] = [f"{option} = {json.dumps(value)}" for option, value in more.items()]
    file.write_text("\n".join(lines) + "\n")
    return Process(role, file, folder / "log")
