"""Mutual TLS on a real RabbitMQ: brokers and clients known by their certificates, links by passwords behind theirs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from tests.integration.test_access import EDGES, LAYOUT
from tests.integration.test_tls import Secured, make_authority
from tests.support.backends import one_node
from tests.support.brokers import Process, start_all, terminate_all
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, ConnectionFailed, Publisher, Subscriber
from tidegate_brokers.access.layout import Layout
from tidegate_brokers.access.preparing import MUTUAL, Access
from tidegate_brokers.access.roles import broker_user
from tidegate_brokers.errors import EX_CONFIG
from tidegate_embedded.nodes import RabbitNode, management_url
from tidegate_embedded.ports import Ports

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = ("head", *EDGES)
CLIENTS = ("siren", "buoy")


class Mutual(Secured):
    """A RabbitMQ that takes nobody without a certificate."""

    def __init__(self, directory: Path, node: RabbitNode, ports: dict[str, int]) -> None:
        super().__init__(directory, node, ports)
        self.access = Access(Layout.load(directory / "layout.toml"), directory, {}, str(directory / "tls"), mutual=True)

    def url(self, user: str, authority: str = "tls") -> str:
        """With the certificate of an account, and no password."""
        folder = quote(str(self.directory / authority), safe="/")
        trusted = quote(str(self.directory / "tls" / "ca.pem"), safe="/")
        certificate = f"certfile={folder}/{user}/cert.pem&keyfile={folder}/{user}/key.pem"
        return f"amqps://{user}@localhost:{self.ports['amqps']}/head?cafile={trusted}&{certificate}"

    def process(self, broker: str, **changes: object) -> Process:
        user, folder = broker_user(broker), self.directory / "tls"
        password = (self.directory / "passwords" / user).read_text().strip()
        own = {
            "management_url": f"https://{user}:{quote(password)}@localhost:{self.ports['https']}",
            "tls_cert_file": str(folder / user / "cert.pem"),
            "tls_key_file": str(folder / user / "key.pem"),
        }
        return super().process(broker, **{**own, **changes})


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    with closing(Ports()) as reserved:
        yield {part: reserved.free() for part in ("amqps", "https", "prometheus")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mutual(
    backend: str, ports: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Mutual]:
    directory = tmp_path_factory.mktemp("mutual")
    make_authority(directory / "tls", "rabbit=localhost", *CLIENTS, *map(broker_user, NAMES))
    make_authority(directory / "wrong", *CLIENTS)
    certificates = directory / "tls"
    for file in ("cert.pem", "key.pem"):
        (certificates / file).write_text((certificates / "rabbit" / file).read_text())
    files = {"cacertfile": "ca.pem", "certfile": "cert.pem", "keyfile": "key.pem"}
    options: dict[str, object] = {"listeners.ssl.1": f"127.0.0.1:{ports['amqps']}"}
    for part in ("ssl_options", "management.ssl", "prometheus.ssl"):
        options |= {f"{part}.{option}": certificates / file for option, file in files.items()}
    options |= {"management.ssl.port": ports["https"], "prometheus.ssl.port": ports["prometheus"]}
    options |= dict(line.split(" = ") for line in MUTUAL)
    plugins = ("rabbitmq_auth_mechanism_ssl",)
    async with one_node(backend, directory / "container", options, certificates, plugins) as node:
        places = {"host": "localhost", "port": ports["amqps"], "management": ports["https"]}
        (directory / "layout.toml").write_text(LAYOUT.format(**places))
        found = Mutual(directory, node, ports)
        found.access.write()
        async with httpx.AsyncClient(base_url=management_url(node), timeout=60, trust_env=False) as http:
            for name in NAMES:
                for definitions in sorted((directory / name / "definitions").iterdir()):
                    answer = await http.post("/api/definitions", json=json.loads(definitions.read_text()))
                    assert answer.is_success, answer.text
        processes = [found.process(name) for name in NAMES]
        try:
            await start_all(processes)
            yield found
        finally:
            await terminate_all(processes)


async def test_certificates_say_who_it_is(mutual: Mutual) -> None:
    async with (
        AsyncSubscriber(mutual.url("siren")) as subscriber,
        AsyncPublisher(mutual.url("buoy")) as publisher,
    ):
        subscription = await subscriber.subscribe("t.#", deadline=5)
        await publisher.publish("t.a", b"async")
        async with asyncio.timeout(30):
            assert (await anext(aiter(subscription))).body == b"async"
        async with httpx.AsyncClient(base_url=management_url(mutual.node), timeout=60, trust_env=False) as http:
            found: dict[str, set[str]] = {}

            async def told() -> bool:
                for one in (await http.get("/api/connections")).json():
                    if one.get("ssl"):
                        found.setdefault(str(one.get("user")), set()).add(str(one.get("auth_mechanism")))
                return found.keys() >= {"broker.head", "broker.edge-1", "link.head", "siren", "buoy"}

            await eventually(told, f"RabbitMQ tells of all connections: {found}")
    assert found.pop("link.head") == {"PLAIN"}
    assert set.union(*found.values()) == {"EXTERNAL"}
    await asyncio.to_thread(blocking_clients_too, mutual)


def blocking_clients_too(mutual: Mutual) -> None:
    with Subscriber(mutual.url("siren")) as subscriber, Publisher(mutual.url("buoy")) as publisher:
        subscription = subscriber.subscribe("u.#", deadline=5)
        publisher.publish("u.a", b"sync")
        assert next(iter(subscription)).body == b"sync"


async def test_without_a_certificate_of_the_authority_nobody_gets_in(mutual: Mutual) -> None:
    without = f"{mutual.access.url('buoy').reveal()}?cafile={mutual.directory}/tls/ca.pem"
    for url in (without, mutual.url("buoy", "wrong")):
        with pytest.raises(ConnectionFailed):
            async with AsyncPublisher(url) as publisher:
                await publisher.publish("t.a", b"x")
        with pytest.raises(ConnectionFailed):
            await asyncio.to_thread(subscribe_blocking, url)


def subscribe_blocking(url: str) -> None:
    with Subscriber(url) as subscriber:
        subscriber.subscribe("t.#", deadline=5)


async def test_a_broker_without_its_certificate_says_so_and_stops(mutual: Mutual) -> None:
    process = mutual.process("edge-2", tls_cert_file=str(mutual.directory / "none.pem"))
    await process.start(ready=False)
    assert await process.ended() == EX_CONFIG
    assert "option tls_cert_file" in process.words()
