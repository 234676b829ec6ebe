"""OAuth 2 on a real RabbitMQ (4.x, its own plugin): clients enter with tokens and renew them; nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.backends import one_node
from tests.support.brokers import Brokers, start_all
from tests.support.containers import docker_problem
from tests.support.waiting import eventually
from tests.support.web_tokens import RESOURCE, Issuer
from tidegate import AccessRefused, AsyncPublisher, AsyncSubscriber, Message, Publisher, Subscriber

pytestmark = pytest.mark.docker

LIFE_S = 4.0
RUN_S = 10.0
"""Longer than two lives of a token."""


class Clients:
    """A cluster whose clients have tokens."""

    def __init__(self, brokers: Brokers, issuer: Issuer) -> None:
        self.brokers = brokers
        self.issuer = issuer
        self.given = 0

    def url(self, user: str) -> str:
        return f"amqp://{user}@{self.brokers.node.host}:{self.brokers.node.amqp_port}/{self.brokers.vhost('h')}"

    def token(self, user: str, life_s: float = LIFE_S) -> str:
        """With the scopes that docs/operations.md names."""
        self.given += 1
        head, edge = self.brokers.vhost("h"), self.brokers.vhost("e")
        scopes = [
            *(f"{right}:{head}/amq.gen-*" for right in ("configure", "write", "read")),
            *(f"write:{head}/tidegate.control/{key}" for key in ("hom", "answer")),
            f"read:{head}/tidegate.control/client.{user}*",
        ]
        if user == "buoy":
            scopes += [f"write:{head}/tidegate.publish/{topics}" for topics in ("t.*", "u.*")]
        else:
            scopes += [f"read:{edge}/out.{user}.*", f"read:{edge}/out.{user}-*"]
        return self.issuer.token(user, life_s, tuple(scopes))


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncIterator[Clients]:
    problem = docker_problem()
    if problem is not None:
        pytest.skip(f"RabbitMQ in a container is not tested: {problem}")
    issuer = Issuer(tmp_path / "issuer")
    issuer.make()
    options = {
        "auth_backends.1": "rabbit_auth_backend_oauth2",
        "auth_backends.2": "rabbit_auth_backend_internal",
        "auth_oauth2.resource_server_id": RESOURCE,
        "auth_oauth2.signing_keys.key-1": issuer.public,
        "auth_oauth2.default_key": "key-1",
        "auth_oauth2.algorithms.1": "RS256",
        "auth_oauth2.preferred_username_claims.1": "sub",
    }
    plugins = ("rabbitmq_auth_backend_oauth2",)
    async with one_node("container", tmp_path / "node", options, issuer.directory, plugins) as node:
        brokers = Brokers(node, tmp_path, "oauth")
        try:
            await start_all([await brokers.head("h", client_names="own"), await brokers.edge("e", "h")])
            yield Clients(brokers, issuer)
        finally:
            await brokers.close()


async def test_tokens_are_renewed_on_open_connections_and_nothing_is_lost(clients: Clients) -> None:
    got: list[Message] = []
    blocking: list[Message] = []
    async with (
        AsyncSubscriber(clients.url("siren"), token=lambda: clients.token("siren")) as subscriber,
        AsyncPublisher(clients.url("buoy"), token=lambda: clients.token("buoy")) as publisher,
    ):
        subscription = await subscriber.subscribe("t.#", deadline=5, callback=got.append)
        thread = asyncio.create_task(asyncio.to_thread(blocking_clients, clients, blocking))
        until, sent = time.monotonic() + RUN_S, 0
        while time.monotonic() < until:
            await publisher.publish("t.a", b"%d" % sent)
            sent += 1
            await asyncio.sleep(0.02)
        await publisher.flush()
        await eventually(lambda: len(got) >= sent, f"all {sent} arrive")
        assert [int(message.body) for message in got] == list(range(sent))
        statistics = subscription.statistics()
        assert (statistics.reconnects, statistics.duplicates, statistics.missing) == (0, 0, 0)
        assert await thread == 0
    assert len({message.body for message in blocking}) == len(blocking) > 0
    assert clients.given > 8


def blocking_clients(clients: Clients, got: list[Message]) -> int:
    """The same with the other clients; returns how often the subscription was lost."""
    with (
        Subscriber(clients.url("siren"), token=lambda: clients.token("siren")) as subscriber,
        Publisher(clients.url("buoy"), token=lambda: clients.token("buoy")) as publisher,
    ):
        subscription = subscriber.subscribe("u.#", deadline=5, callback=got.append)
        until, sent = time.monotonic() + RUN_S, 0
        while time.monotonic() < until:
            publisher.publish("u.a", b"%d" % sent)
            sent += 1
            time.sleep(0.05)
        publisher.flush()
        deadline = time.monotonic() + 30
        while len(got) < sent and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [int(message.body) for message in got] == list(range(sent))
        return subscription.statistics().reconnects


async def test_a_token_that_is_no_good_is_refused(clients: Clients, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(clients.token("siren", life_s=-60))
    with pytest.raises(AccessRefused):
        async with AsyncSubscriber(f"{clients.url('siren')}?tokenfile={file}") as subscriber:
            await subscriber.subscribe("t.#", deadline=5)
    file.write_text(clients.token("siren", life_s=60))
    async with AsyncSubscriber(f"{clients.url('siren')}?tokenfile={file}") as subscriber:
        assert (await subscriber.subscribe("t.#", deadline=5)).attached
