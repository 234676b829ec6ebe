"""What RabbitMQ drops from an output queue, on a real cluster with least rights: counted, kept, told, and replayed.

One head and one edge whose output queues hold little. `siren` subscribes and goes away; what is published meanwhile
does not fit.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import httpx
import pytest
import pytest_asyncio

from tests.integration.test_operations import tidegate
from tests.support.guarded import Guarded, guarded_cluster
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, Message, Subscriber
from tidegate_brokers.access.roles import broker_user
from tidegate_brokers.plane.drops import DROPPED_QUEUE
from tidegate_brokers.plane.edge import POLICY
from tidegate_cli.exit_codes import ExitCode
from tidegate_embedded.nodes import RabbitNode, management_url
from tidegate_protocol.names import DELIVER_EXCHANGE, DROPPED_EXCHANGE, PUBLISH_EXCHANGE

pytestmark = pytest.mark.asyncio(loop_scope="module")

EDGE = "edge-1"
LIMIT_BYTES = 4_000
BODY_BYTES = 200
MESSAGES = 60
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

[[operator]]
name = "operator"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(node: RabbitNode, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    folder = tmp_path_factory.mktemp("drops")
    async with guarded_cluster(node, folder, LAYOUT, changes={EDGE: {"output_limit_bytes": LIMIT_BYTES}}) as cluster:
        yield cluster


async def asked(guarded: Guarded, *arguments: str) -> dict[str, Any]:
    """What an operator's command answers."""
    url = guarded.url("operator")
    ended = await asyncio.to_thread(lambda: tidegate("drops", *arguments, "--json", url=url))
    assert ended.returncode == ExitCode.OK, ended.stderr
    found = json.loads(ended.stdout)
    assert isinstance(found, dict)
    return found


async def published(guarded: Guarded, topic: str, first: int = 0) -> None:
    async with AsyncPublisher(guarded.url("buoy"), name=f"buoy-{topic.replace('.', '-')}") as publisher:
        for number in range(first, first + MESSAGES):
            await publisher.publish(topic, b"%d" % number + b" " * BODY_BYTES, attributes={"height": 1.5, "n": number})
        await publisher.flush()


async def held(guarded: Guarded, subscriber: str) -> int:
    listed = await asked(guarded, "list", subscriber)
    return sum(int(one["held"]) for one in listed["outputs"])


async def away(guarded: Guarded, name: str, topic: str) -> int:
    """Subscribe, leave, and have more published than fits; returns how many messages were dropped."""
    async with AsyncSubscriber(guarded.url("siren"), name=name) as subscriber:
        await subscriber.subscribe(topic, deadline=60)
    await published(guarded, topic)
    fit = LIMIT_BYTES // (BODY_BYTES + 1)
    await eventually(lambda: at_least(guarded, name, MESSAGES - fit - 1), f"what does not fit is kept for {name}")
    return await held(guarded, name)


async def at_least(guarded: Guarded, name: str, messages: int) -> bool:
    return await held(guarded, name) >= messages


async def api(node: RabbitNode, path: str) -> Any:
    async with httpx.AsyncClient(base_url=management_url(node), timeout=60, trust_env=False) as http:
        answer = await http.get(f"/api/{path}")
        answer.raise_for_status()
        return answer.json()


def numbers(messages: list[Message]) -> Counter[int]:
    return Counter(int(message.body) for message in messages)


async def test_what_a_limit_drops_is_counted_and_comes_once_when_it_is_replayed(guarded: Guarded) -> None:
    name, topic = "siren-1", "t.one"
    dropped = await away(guarded, name, topic)
    edge = guarded.processes[EDGE]
    assert await edge.metric('tidegate_dropped_messages_total{reason="limit"}') >= dropped
    single = f'tidegate_output_dropped_messages_total{{queue="out.{name}.0",reason="limit"}}'
    assert await edge.metric(single) == dropped
    shown = await asked(guarded, "show", name)
    assert {(one["topic"], one["account"]) for one in shown["messages"]} == {(topic, "buoy")}
    status = await asyncio.to_thread(lambda: tidegate("status", url=guarded.url("operator")))
    assert f"{dropped} messages were dropped" in status.stdout

    seen: list[Message] = []
    async with AsyncSubscriber(guarded.url("siren"), name=name) as subscriber:
        subscription = await subscriber.subscribe(topic, deadline=60, callback=seen.append)
        await eventually(lambda: len(seen) == MESSAGES - dropped, "what was not dropped arrives")
        replayed = await asked(guarded, "replay", name)
        assert [(one["replayed"], one["held"], one["outcome"]) for one in replayed["outputs"]] == [(dropped, 0, "done")]
        await eventually(lambda: len(seen) >= MESSAGES, "what was dropped arrives")
        assert numbers(seen) == Counter(range(MESSAGES))
        again = [message for message in seen if message.replayed]
        assert len(again) == dropped
        assert {(message.account, message.late, message.topic) for message in again} == {("buoy", False, topic)}
        assert all(message.attributes == {"height": 1.5, "n": int(message.body)} for message in seen)
        assert subscription.statistics().replayed == dropped
        assert subscription.statistics().missing == 0
        # A second replay finds nothing; and the SDK would not be fooled by one.
        assert (await asked(guarded, "replay", name))["begun"] == 0


async def test_a_restarted_edge_knows_what_is_kept_and_what_was_replayed(guarded: Guarded) -> None:
    name, other = "siren-2", "siren-3"
    await away(guarded, name, "t.two")
    kept = await away(guarded, other, "t.three")
    assert (await asked(guarded, "purge", name))["purged"] > 0
    edge = guarded.processes[EDGE]
    await edge.kill()
    # What is dropped while nobody reads waits for the next process.
    await published(guarded, "t.three", first=MESSAGES)
    await edge.start()
    await eventually(lambda: at_least(guarded, other, kept + MESSAGES), "everything is kept")
    assert await held(guarded, name) == 0
    counted = f'tidegate_output_dropped_messages_total{{queue="out.{other}.0",reason="limit"}}'
    assert await edge.metric(counted) == MESSAGES
    got: list[Message] = []
    blocking = Subscriber(guarded.url("siren"), name=other)
    await asyncio.to_thread(blocking.open)
    try:
        await asyncio.to_thread(blocking.subscribe, "t.three", 60, callback=got.append)
        await asked(guarded, "replay", other)
        await eventually(lambda: len(got) >= 2 * MESSAGES, "all that was published arrives")
        assert numbers(got) == Counter(range(2 * MESSAGES))
    finally:
        await asyncio.to_thread(blocking.close)
    assert (await asked(guarded, "purge", "--all"))["purged"] >= 0
    assert not any(one["held"] for one in (await asked(guarded, "list"))["outputs"])


async def test_queues_of_an_earlier_version_are_reached_and_nobody_is_named_falsely(
    guarded: Guarded, node: RabbitNode
) -> None:
    """A queue from before has no dead-letter exchange of its own. A publisher says that its message was dropped from
    another's queue, and replayed."""
    async with AsyncSubscriber(guarded.url("siren"), name="siren-4") as subscriber:
        await subscriber.subscribe("t.four", deadline=60)
    policy = await api(node, f"policies/{EDGE}/{POLICY}")
    assert policy["definition"]["dead-letter-exchange"] == DROPPED_EXCHANGE
    lies: dict[str, Any] = {
        "x-first-death-queue": "out.siren-1.0",
        "x-death": [{"queue": "out.siren-1.0", "reason": "maxlen", "count": 1, "exchange": DELIVER_EXCHANGE}],
        "tidegate-replayed": "out.siren-1.0",
        "tidegate-account": "siren",
    }
    before = await held(guarded, "siren-1")
    async with guarded.channel("buoy") as channel:
        exchange = await channel.get_exchange(PUBLISH_EXCHANGE, ensure=False)
        for _ in range(MESSAGES):
            await exchange.publish(
                aio_pika.Message(b"x" * BODY_BYTES, headers=lies, user_id="buoy"), "t.four", mandatory=False
            )
    await eventually(lambda: at_least(guarded, "siren-4", MESSAGES // 2), "the liar's own drops are counted")
    assert await held(guarded, "siren-1") == before
    assert {one["account"] for one in (await asked(guarded, "show", "siren-4"))["messages"]} == {"buoy"}
    assert await api(node, f"queues/{EDGE}/{DROPPED_QUEUE}")


async def test_a_subscriber_that_does_not_read_loses_nothing_by_a_replay(guarded: Guarded) -> None:
    name = "siren-5"
    dropped = await away(guarded, name, "t.five")
    edge = guarded.processes[EDGE]
    count = 'tidegate_dropped_messages_total{reason="limit"}'
    before = await edge.metric(count)
    url = guarded.url("operator")
    ended = await asyncio.to_thread(lambda: tidegate("drops", "replay", name, url=url))
    assert ended.returncode == ExitCode.FAILED
    assert "does not take them" in ended.stderr
    assert await edge.metric(count) == before
    assert await held(guarded, name) == dropped


async def test_an_edge_with_the_rights_of_an_earlier_version_works_and_says_what_it_lacks(
    guarded: Guarded, node: RabbitNode
) -> None:
    rights = await api(node, f"permissions/{EDGE}/{broker_user(EDGE)}")
    earlier = "^(tidegate\\.deliver|tidegate\\.seal|out\\..*)$"
    edge = guarded.processes[EDGE]
    async with httpx.AsyncClient(base_url=management_url(node), timeout=60, trust_env=False) as http:
        path = f"/api/permissions/{EDGE}/{broker_user(EDGE)}"
        (await http.put(path, json=dict.fromkeys(("configure", "write", "read"), earlier))).raise_for_status()
        try:
            await edge.terminate()
            await edge.start()
            assert (await asked(guarded, "list"))["without"] == [EDGE]
            policy = await api(node, f"policies/{EDGE}/{POLICY}")
            assert "dead-letter-exchange" not in policy["definition"]
            assert "Make its rights anew" in edge.words()
        finally:
            names = ("configure", "write", "read")
            (await http.put(path, json={name: rights[name] for name in names})).raise_for_status()
