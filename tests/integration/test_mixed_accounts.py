"""Clusters of which not every link can pass accounts on: nothing stops, nothing is lost, and it mends itself.

Two heads and two edges of the first. The second edge is started when publishers name their accounts already, and the
account of its link lacks the tag `impersonator`, as if its RabbitMQ held definitions of an earlier version.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator

import aio_pika
import httpx
import pytest
import pytest_asyncio

from tests.support.guarded import Guarded, guarded_cluster
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, Message
from tidegate._engine.asking import Asking
from tidegate_embedded.nodes import RabbitNode, management_url
from tidegate_protocol.balancing.drains import DrainReply, DrainRequest
from tidegate_protocol.decisions import AccountsAllowed, AccountsOutcome
from tidegate_protocol.names import DELIVER_EXCHANGE, LINK_CHECK_EXCHANGE, PUBLISH_EXCHANGE
from tidegate_protocol.operations import ExplainReply, ExplainRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")

LATE = "edge-2"
READER, PUBLISHER = "siren", "buoy"
OLD_LINK, OLD_PASSWORD = "link.old", "as-long-as-it-has-to-be"
TOPIC = "t.a"
SOME = 20
LAYOUT = """
[[head]]
name = "head"
cluster = "main"
host = "{host}"
port = {port}
vhost = "head"

[[head]]
name = "north"
cluster = "north"
host = "{host}"
port = {port}
vhost = "north"

[[link]]
between = ["head", "north"]

[[edge]]
name = "edge-1"
head = "head"
host = "{host}"
port = {port}
vhost = "edge-1"

[[edge]]
name = "edge-2"
head = "head"
host = "{host}"
port = {port}
vhost = "edge-2"

[[client]]
name = "siren"
subscribe = true

[[client]]
name = "buoy"
publish = true

[[operator]]
name = "operator"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(node: RabbitNode, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    async with guarded_cluster(node, tmp_path_factory.mktemp("mixed"), LAYOUT, later=(LATE,)) as cluster:
        yield cluster


async def old_link(guarded: Guarded, tags: str) -> None:
    """Make the account of the late edge's link, with the rights of one and with these tags."""
    write = f"^({DELIVER_EXCHANGE}|{LINK_CHECK_EXCHANGE})$"
    rights = {"configure": "^$", "write": write, "read": "^$"}
    async with httpx.AsyncClient(base_url=management_url(guarded.node), timeout=60, trust_env=False) as http:
        for path, body in (
            (f"users/{OLD_LINK}", {"password": OLD_PASSWORD, "tags": tags}),
            (f"permissions/{LATE}/{OLD_LINK}", rights),
        ):
            answer = await http.put(f"/api/{path}", json=body)
            assert answer.is_success, answer.text


def use_old_link(guarded: Guarded) -> None:
    file = guarded.processes[LATE].file
    lines = file.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if line.startswith("link_url"))
    place = json.loads(lines[number].partition("=")[2]).rpartition("@")[2]
    lines[number] = f'link_url = "amqp://{OLD_LINK}:{OLD_PASSWORD}@{place}"'
    file.write_text("\n".join(lines) + "\n")


class Traffic:
    """A publisher at the other head, and what its subscriber got."""

    def __init__(self, publisher: AsyncPublisher) -> None:
        self._publisher = publisher
        self.sent: list[bytes] = []
        self.got: list[Message] = []

    async def flows(self, count: int = SOME) -> list[Message]:
        """Publish some; all of them arrive. Returns these."""
        bodies = [b"%d" % number for number in range(len(self.sent), len(self.sent) + count)]
        self.sent += bodies
        for body in bodies:
            await self._publisher.publish(TOPIC, body)
        await self._publisher.flush()
        await eventually(lambda: {message.body for message in self.got} >= set(self.sent), f"all to {bodies[-1]!r}")
        return [message for message in self.got if message.body in bodies]


async def both_allow(guarded: Guarded, allowed: bool) -> bool:
    return [await guarded.allows_accounts(head) for head in ("head", "north")] == [allowed, allowed]


async def test_an_edge_whose_link_cant_pass_accounts_on_stops_nothing(guarded: Guarded) -> None:
    await old_link(guarded, tags="")
    use_old_link(guarded)
    async with (
        AsyncSubscriber(guarded.url(READER), name=READER) as subscriber,
        AsyncPublisher(guarded.url(PUBLISHER, "north"), name=PUBLISHER) as publisher,
        Asking(guarded.url("operator")) as operator,
    ):
        traffic = Traffic(publisher)
        subscription = await subscriber.subscribe("#", deadline=60, callback=traffic.got.append)
        assert {message.account for message in await traffic.flows()} == {PUBLISHER}

        await guarded.processes[LATE].start()
        await eventually(lambda: both_allow(guarded, allowed=False), "no head lets accounts be named")
        told = await operator.ask(ExplainRequest(), ExplainReply)
        decided = [one.record for one in told.decisions if isinstance(one.record, AccountsAllowed)]
        assert (decided[-1].outcome, decided[-1].stopping) == (AccountsOutcome.WITHHELD, (LATE,))

        # The publisher goes on naming its account, the subscriber is moved behind the link that can't pass it on.
        await operator.ask(DrainRequest(edge="edge-1"), DrainReply)
        while subscription.edge != LATE:
            await traffic.flows(1)
        assert {message.account for message in await traffic.flows()} == {None}
        async with guarded.channel(PUBLISHER) as channel:
            exchange = await channel.get_exchange(PUBLISH_EXCHANGE, ensure=False)
            await exchange.publish(aio_pika.Message(b"plain", user_id=PUBLISHER), TOPIC, mandatory=False)
        await eventually(lambda: any(message.body == b"plain" for message in traffic.got), "a plain message arrives")
        async with AsyncPublisher(guarded.url(PUBLISHER), name=f"{PUBLISHER}-2") as fresh:
            assert fresh._engine is not None
            assert not fresh._engine.machine.signs
            await (await fresh.publish(TOPIC, b"fresh"))
        await eventually(lambda: any(message.body == b"fresh" for message in traffic.got), "a new publisher's arrives")

        # The tag is given, and tried out when the edge is started again.
        await old_link(guarded, tags="impersonator")
        assert await guarded.processes[LATE].terminate() == 0
        await guarded.processes[LATE].start()
        await eventually(lambda: both_allow(guarded, allowed=True), "all heads let accounts be named")

        async def arrives_named() -> bool:
            return {message.account for message in await traffic.flows()} == {PUBLISHER}

        await eventually(arrives_named, "accounts are passed on again")
        await subscription.unsubscribe()


async def test_a_publisher_that_starts_while_no_process_of_ours_runs_names_its_account(guarded: Guarded) -> None:
    """Heads that do not answer are no reason to publish without: RabbitMQ itself tells."""
    got: list[Message] = []
    stopped = [process.child for process in guarded.processes.values() if process.child is not None]
    async with AsyncSubscriber(guarded.url(READER), name=READER) as subscriber:
        subscription = await subscriber.subscribe("#", deadline=60, callback=got.append)
        assert await guarded.allows_accounts()
        for child in stopped:
            os.kill(child.pid, signal.SIGSTOP)
        try:
            async with AsyncPublisher(guarded.url(PUBLISHER), name=PUBLISHER) as publisher:
                await (await publisher.publish(TOPIC, b"first"))
                await eventually(lambda: got, "it arrives")
        finally:
            for child in stopped:
                os.kill(child.pid, signal.SIGCONT)
        assert (got[0].account, got[0].sequence) == (PUBLISHER, 0)
        await subscription.unsubscribe()
