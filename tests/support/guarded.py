"""A cluster whose parts have the least rights: the accounts that `tidegate access prepare` makes, on one RabbitMQ.

Every broker of the layout has a virtual host of its name. The layout's places are filled in by `{host}` and `{port}`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aio_pika
import httpx
from aio_pika.abc import AbstractChannel

from tests.support.brokers import PERIOD_S, Process, start_all, terminate_all
from tidegate_brokers.access.layout import HeadPlace, Layout
from tidegate_brokers.access.preparing import Access
from tidegate_embedded.nodes import RabbitNode, management_url


@dataclass
class Guarded:
    """The accounts and the processes of such a cluster."""

    access: Access
    processes: dict[str, Process]

    def url(self, user: str, vhost: str = "head") -> str:
        whole = self.access.url(user).reveal()
        return f"{whole.rpartition('/')[0]}/{vhost}"

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
    accounts: str = "unchecked",
    without_tag: tuple[str, str] | None = None,
) -> AsyncIterator[Guarded]:
    """Make the accounts, import them as an operator would, and run the processes with them.

    `without_tag`: an account, and a tag that was forgotten.
    """
    (directory / "layout.toml").write_text(layout_text.format(host=node.host, port=node.amqp_port))
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
        place.name: _process(node, directory / place.name, "head" if isinstance(place, HeadPlace) else "edge", accounts)
        for place in layout.places
    }
    try:
        await start_all(processes.values())
        yield Guarded(access, processes)
    finally:
        await terminate_all(processes.values())


def _process(node: RabbitNode, folder: Path, role: str, accounts: str) -> Process:
    options = {
        "management_url": f"http://{node.host}:{node.management_port}",
        "prometheus_url": f"http://{node.host}:{node.prometheus_port}",
        "period_s": PERIOD_S,
        "http_port": 0,
        "startup_timeout_s": 60,
        "accounts": accounts,
    }
    file = folder / "whole.toml"
    more = "".join(f"{option} = {json.dumps(value)}\n" for option, value in options.items())
    file.write_text(more + (folder / "broker.toml").read_text())
    return Process(role, file, folder / "log")
