"""A message that the far end of a link refuses is set aside, and the link goes on: others do not notice.

On both RabbitMQs: a publication that names its account over a link that may not pass it on, and a body that is larger
than the edge takes. Without the repair neither link ever delivers anything again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aio_pika
import httpx
import pytest

from tests.support.backends import one_node
from tests.support.brokers import Brokers, start_all
from tests.support.guarded import Guarded, guarded_cluster
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, Message
from tidegate._engine.asking import Asking
from tidegate_cli.explain import overview
from tidegate_embedded.nodes import RabbitNode, amqp_url, create_vhost, management_url, prometheus_url
from tidegate_protocol.decisions import LinkLimit, LinkLimitDiffers, MessageSetAside, SetAsideReason
from tidegate_protocol.form import BODY_BYTES_MAX
from tidegate_protocol.names import PUBLISH_EXCHANGE
from tidegate_protocol.operations import ExplainReply, ExplainRequest, OverviewReply, OverviewRequest
from tidegate_protocol.quarantine import QuarantineReply, QuarantineRequest, Verb

pytestmark = pytest.mark.asyncio(loop_scope="module")

LAYOUT = """
[[head]]
name = "head"
cluster = "main"
host = "{host}"
port = {port}
vhost = "head"

[[edge]]
name = "edge-1"
head = "head"
host = "{host}"
port = {port}
vhost = "edge-1"

[[client]]
name = "siren"
subscribe = true

[[client]]
name = "buoy"
publish = true

[[client]]
name = "villain"
publish = true

[[operator]]
name = "warden"
"""
MESSAGES = 200
"""What a bystander publishes around a hostile message."""
GOES_ON_S = 30.0
"""Within this time a link is past what stopped it."""
SMALL_BYTES = 100_000


class Heard:
    """What a subscriber's application got."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def take(self, message: Message) -> None:
        self.bodies.append(message.body)


async def publish_around(publisher: AsyncPublisher, number: int, count: int = MESSAGES) -> list[bytes]:
    bodies = [b"good %d" % each for each in range(number, number + count)]
    for body in bodies:
        await publisher.publish("t.good", body)
    await publisher.flush()
    return bodies


async def passed(heard: Heard, wanted: list[bytes]) -> float:
    """Wait until everything has come; in order, nothing twice. Returns how long it took."""
    began = time.monotonic()
    await eventually(lambda: len(heard.bodies) >= len(wanted), f"{len(wanted)} messages come", GOES_ON_S)
    assert heard.bodies == wanted
    return time.monotonic() - began


async def asked(url: str, request: QuarantineRequest) -> QuarantineReply:
    async with Asking(url) as head:
        return await head.ask(request, QuarantineReply)


async def send_as(cluster: Guarded, user: str, message: aio_pika.Message) -> None:
    async with cluster.channel(user) as channel:
        exchange = await channel.get_exchange(PUBLISH_EXCHANGE, ensure=False)
        await exchange.publish(message, "t.bad", mandatory=False)


async def retag(node: RabbitNode, user: str, tags: str) -> None:
    async with httpx.AsyncClient(base_url=management_url(node), timeout=60, trust_env=False) as http:
        found = (await http.get(f"/api/users/{user}")).raise_for_status().json()
        kept = {key: found[key] for key in ("password_hash", "hashing_algorithm")}
        (await http.put(f"/api/users/{user}", json={**kept, "tags": tags})).raise_for_status()


async def test_a_message_that_names_its_account_over_a_link_that_may_not_pass_it_on(
    node: RabbitNode, tmp_path: Path
) -> None:
    forgotten = ("link.head", "impersonator")
    async with (
        guarded_cluster(node, tmp_path, LAYOUT, accounts="unchecked", without_tag=forgotten) as cluster,
        AsyncSubscriber(cluster.url("siren"), name="siren") as siren,
        AsyncPublisher(cluster.url("buoy"), name="buoy") as buoy,
    ):
        heard, head, operator = Heard(), cluster.processes["head"], cluster.url("warden")
        await siren.subscribe("t.#", deadline=5, callback=heard.take)
        wanted = await publish_around(buoy, 0)
        await passed(heard, wanted)
        await send_as(cluster, "villain", aio_pika.Message(b"poison", user_id="villain"))
        wanted += await publish_around(buoy, MESSAGES)
        await send_as(cluster, "villain", aio_pika.Message(b"poison too", user_id="villain"))
        wanted += await publish_around(buoy, 2 * MESSAGES)
        await passed(heard, wanted)
        sample = 'tidegate_quarantine_set_aside_messages_total{reason="account",target="edge-1"}'
        assert await head.metric(sample) == 2

        listed = await asked(operator, QuarantineRequest(verb=Verb.LIST))
        assert [(one.account, one.topic, one.size_bytes, one.target) for one in listed.entries] == [
            ("villain", "t.bad", 6, "edge-1"),
            ("villain", "t.bad", 10, "edge-1"),
        ]
        shown = (await asked(operator, QuarantineRequest(verb=Verb.SHOW, ids=(listed.entries[0].id,)))).shown
        assert shown is not None
        assert shown.properties["user_id"] == "villain"
        async with Asking(operator) as ask:
            status = await ask.ask(OverviewRequest(), OverviewReply)
            story = await ask.ask(ExplainRequest(about="villain"), ExplainReply)
        named = [one for one in status.culprits if isinstance(one.record, MessageSetAside)]
        assert [one.client for one in named] == ["villain"]
        assert any("account villain" in line for line in overview.remarks(status, None))
        assert sum(isinstance(one.record, MessageSetAside) for one in story.decisions) == 2

        again = await asked(operator, QuarantineRequest(verb=Verb.REPLAY))
        assert (again.done, len(again.entries)) == (0, 2), "it is refused as before, and kept"
        await retag(node, "link.head", "impersonator")
        again = await asked(operator, QuarantineRequest(verb=Verb.REPLAY, ids=(listed.entries[1].id,)))
        assert (again.done, again.total) == (1, 1)
        wanted.append(b"poison too")
        await passed(heard, wanted)
        gone = await asked(operator, QuarantineRequest(verb=Verb.PURGE, account="villain"))
        assert (gone.done, gone.total) == (1, 0)
        await eventually(lambda: shovelled(node, "head"), "the shovel is back", 60)
        wanted += await publish_around(buoy, 3 * MESSAGES)
        await passed(heard, wanted)


async def shovelled(node: RabbitNode, vhost: str) -> bool:
    async with httpx.AsyncClient(base_url=management_url(node), timeout=60, trust_env=False) as http:
        found = (await http.get(f"/api/shovels/{vhost}")).raise_for_status().json()
    return [one["state"] for one in found] == ["running"]


@asynccontextmanager
async def small_edge(backend: str, node: RabbitNode, directory: Path) -> AsyncIterator[Brokers]:
    """A head, and an edge on another RabbitMQ that takes smaller messages."""
    files = directory / "small"
    files.mkdir()
    async with one_node(backend, files, {"max_message_size": SMALL_BYTES}) as small:
        brokers = Brokers(node, directory, "size")
        await create_vhost(small, brokers.vhost("one"))
        where = {
            "url": amqp_url(small, brokers.vhost("one")),
            "management_url": management_url(small),
            "prometheus_url": prometheus_url(small),
        }
        try:
            await start_all((await brokers.head("head"), await brokers.edge("one", "head", **where)))
            yield brokers
        finally:
            await brokers.close()


async def test_a_body_that_is_larger_than_the_edge_takes(backend: str, node: RabbitNode, tmp_path: Path) -> None:
    async with (
        small_edge(backend, node, tmp_path) as brokers,
        AsyncSubscriber(brokers.url("head"), name="siren") as siren,
        AsyncPublisher(brokers.url("head"), name="buoy") as buoy,
        AsyncPublisher(brokers.url("head"), name="villain") as villain,
    ):
        heard, url = Heard(), brokers.url("head")
        await siren.subscribe("t.#", deadline=5, callback=heard.take)
        wanted = await publish_around(buoy, 0)
        await passed(heard, wanted)
        for number in range(5):
            await villain.publish("t.bad", bytes(SMALL_BYTES + 1 + number))
        await villain.flush()
        wanted += await publish_around(buoy, MESSAGES)
        await passed(heard, wanted)
        listed = await asked(url, QuarantineRequest(verb=Verb.LIST))
        assert [one.size_bytes for one in listed.entries] == [SMALL_BYTES + 1 + number for number in range(5)]
        assert {one.reason for one in listed.entries} == {SetAsideReason.TOO_LARGE}
        assert {one.publisher for one in listed.entries} == {villain.id}
        assert str(SMALL_BYTES) in listed.entries[0].detail
        async with Asking(url) as ask:
            status = await ask.ask(OverviewRequest(), OverviewReply)
        assert [one.client for one in status.culprits] == [villain.id]
        await eventually(lambda: differs(url), "the limits of both ends are compared", 60)


async def differs(url: str) -> bool:
    """Whether `status` says that the edge takes less than the head, with both values."""
    async with Asking(url) as ask:
        status = await ask.ask(OverviewRequest(), OverviewReply)
    wanted = LinkLimitDiffers("head", "one", LinkLimit.MESSAGE, BODY_BYTES_MAX, SMALL_BYTES)
    return wanted in [one.record for one in status.links]
