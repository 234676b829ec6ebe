"""TLS on a real RabbitMQ: a head, two edges and their clients with certificates, and what a wrong certificate gets."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from tests.integration.test_access import EDGES, LAYOUT
from tests.support.backends import one_node
from tests.support.brokers import PERIOD_S, Process, start_all, terminate_all
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, CertificateRefused, Publisher, Subscriber
from tidegate_brokers.access.layout import Layout
from tidegate_brokers.access.preparing import Access
from tidegate_brokers.errors import EX_CONFIG
from tidegate_embedded.nodes import RabbitNode, management_url
from tidegate_embedded.ports import Ports

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
NAMES = ("head", *EDGES)


class TlsProcess(Process):
    """A broker that answers /readyz with TLS."""

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            return await client.get(f"https://127.0.0.1:{self.port}/{path}")


class Secured:
    """A RabbitMQ with TLS, brokers that speak nothing else, and certificates."""

    def __init__(self, directory: Path, node: RabbitNode, ports: dict[str, int]) -> None:
        self.directory = directory
        self.node = node
        self.ports = ports
        layout = directory / "layout.toml"
        layout.write_text(LAYOUT.format(host="localhost", port=ports["amqps"], management=ports["https"]))
        self.access = Access(Layout.load(layout), directory, {}, str(directory / "tls"))

    def url(self, user: str, authority: str = "tls") -> str:
        cafile = quote(str(self.directory / authority / "ca.pem"), safe="/")
        return f"{self.access.url(user).reveal()}?cafile={cafile}"

    def process(self, broker: str, **changes: object) -> Process:
        folder = self.directory / broker
        options = {
            "management_url": f"https://localhost:{self.ports['https']}",
            "prometheus_url": f"https://localhost:{self.ports['prometheus']}",
            "period_s": PERIOD_S,
            "http_port": 0,
            "startup_timeout_s": 60,
            **changes,
        }
        lines = [
            line for line in (folder / "broker.toml").read_text().splitlines() if line.partition(" ")[0] not in options
        ]
        lines[:0] = [f"{option} = {json.dumps(value)}" for option, value in options.items()]
        file = folder / f"whole{len(changes)}.toml"
        file.write_text("\n".join(lines) + "\n")
        role = "head" if broker == "head" else "edge"
        return TlsProcess(role, file, folder / f"log{len(changes)}")


def make_authority(directory: Path, *entries: str) -> None:
    subprocess.run([ROOT / "deploy" / "make-test-authority.sh", directory, *entries], check=True)


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """Where RabbitMQ speaks TLS."""
    with closing(Ports()) as reserved:
        yield {part: reserved.free() for part in ("amqps", "https", "prometheus")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured(
    backend: str, ports: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Secured]:
    directory = tmp_path_factory.mktemp("tls")
    make_authority(directory / "tls", "rabbit=localhost")
    make_authority(directory / "wrong", "rabbit=localhost")
    certificates = directory / "tls"
    for file in ("cert.pem", "key.pem"):
        (certificates / file).write_text((certificates / "rabbit" / file).read_text())
    files = {"cacertfile": "ca.pem", "certfile": "cert.pem", "keyfile": "key.pem"}
    options: dict[str, object] = {"listeners.ssl.1": f"127.0.0.1:{ports['amqps']}"}
    for part in ("ssl_options", "management.ssl", "prometheus.ssl"):
        options |= {f"{part}.{option}": certificates / file for option, file in files.items()}
    options |= {"management.ssl.port": ports["https"], "prometheus.ssl.port": ports["prometheus"]}
    # The test itself looks at RabbitMQ without TLS; brokers and clients are not given those addresses.
    async with one_node(backend, directory / "container", options, certificates) as node:
        found = Secured(directory, node, ports)
        found.access.write()
        async with httpx.AsyncClient(base_url=management_url(found.node), timeout=60, trust_env=False) as http:
            for name in NAMES:
                for file in sorted((directory / name / "definitions").iterdir()):
                    answer = await http.post("/api/definitions", json=json.loads(file.read_text()))
                    assert answer.is_success, answer.text
        processes = [found.process(name) for name in NAMES]
        try:
            await start_all(processes)
            yield found
        finally:
            await terminate_all(processes)


async def test_a_whole_cluster_speaks_tls(secured: Secured) -> None:
    async with (
        AsyncSubscriber(secured.url("siren")) as subscriber,
        AsyncPublisher(secured.url("buoy")) as publisher,
    ):
        subscription = await subscriber.subscribe("t.#", deadline=5)
        await publisher.publish("t.a", b"async")
        async with asyncio.timeout(30):
            assert (await anext(aiter(subscription))).body == b"async"
        async with httpx.AsyncClient(base_url=management_url(secured.node), timeout=60, trust_env=False) as http:
            found: list[dict[str, object]] = []

            async def told() -> bool:
                answer = (await http.get("/api/connections")).json()
                found[:] = [one for one in answer if one.get("user") != secured.node.user]
                users = {str(one.get("user")) for one in found}
                return users >= {"broker.head", "broker.edge-1", "link.head", "siren", "buoy"}

            await eventually(told, f"RabbitMQ tells of all connections: {found}")
        # A shovel reads from its own node without a network, and so without TLS.
        plain = [one for one in found if one.get("ssl") is not True and one.get("protocol") != "Direct 0-9-1"]
        assert not plain
    await asyncio.to_thread(blocking_clients_too, secured)


def blocking_clients_too(secured: Secured) -> None:
    with Subscriber(secured.url("siren")) as subscriber, Publisher(secured.url("buoy")) as publisher:
        subscription = subscriber.subscribe("u.#", deadline=5)
        publisher.publish("u.a", b"sync")
        assert next(iter(subscription)).body == b"sync"


async def test_the_sdk_says_so_when_it_does_not_trust_a_server(secured: Secured) -> None:
    with pytest.raises(CertificateRefused, match=r"certificate was refused: .*cafile"):
        async with AsyncPublisher(secured.url("buoy", "wrong")) as publisher:
            await publisher.publish("t.a", b"x")
    with pytest.raises(CertificateRefused, match="certificate was refused"):
        await asyncio.to_thread(subscribe_blocking, secured.url("siren", "wrong"))


async def test_the_sdk_says_so_when_a_certificate_is_for_another_name(secured: Secured) -> None:
    with pytest.raises(CertificateRefused, match="mismatch"):
        async with AsyncSubscriber(secured.url("siren").replace("@localhost", "@127.0.0.1")) as subscriber:
            await subscriber.subscribe("t.#", deadline=5)


def subscribe_blocking(url: str) -> None:
    with Subscriber(url) as subscriber:
        subscriber.subscribe("t.#", deadline=5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tls_ca_file": "wrong/ca.pem"}, "the certificate was refused"),
        ({"tls_ca_file": "none.pem"}, "option tls_ca_file"),
        ({"http_cert_file": "none.pem"}, "option http_cert_file"),
        ({"management_url": "https://127.0.0.1:{https}"}, "mismatch"),
    ],
)
async def test_a_broker_says_so_and_stops(secured: Secured, changes: dict[str, str], words: str) -> None:
    given = {
        option: value.format(**secured.ports) if "//" in value else str(secured.directory / value)
        for option, value in changes.items()
    }
    process = secured.process("edge-2", **given)
    await process.start(ready=False)
    assert await process.ended() == EX_CONFIG
    assert words in process.words()
