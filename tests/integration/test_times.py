"""Times that a head has checked: its RabbitMQ (from 3.12 on) stamps publications, so that no wrong clock pages anybody.

The head's RabbitMQ is the newest, in a container; its edge's is the one of this machine, which knows no stamps.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import aio_pika
import pytest

from tests.support.backends import one_node
from tests.support.brokers import Brokers, start_all
from tests.support.containers import docker_problem
from tests.support.node_pool import NodePool
from tests.support.waiting import eventually
from tidegate import AsyncSubscriber, Message
from tidegate_brokers.access.preparing import STAMPING
from tidegate_embedded.nodes import amqp_url
from tidegate_protocol.form import PUBLISHED_HEADER, STAMPED_HEADER
from tidegate_protocol.names import PUBLISH_EXCHANGE

pytestmark = pytest.mark.docker

HOUR_S = 3600.0
USER, PASSWORD = "anybody", "the-same-on-both"


@pytest.fixture
async def head(pool: NodePool, tmp_path: Path) -> AsyncIterator[Brokers]:
    """A head that stamps, with one edge."""
    problem = docker_problem()
    if problem is not None:
        pytest.skip(f"RabbitMQ in a container is not tested: {problem}")
    option, value = STAMPING
    async with one_node("container", tmp_path / "node", {option: value}) as stamping, pool.lend("native") as plain:
        found, edge = Brokers(stamping, tmp_path, "times"), Brokers(plain, tmp_path, "times")
        try:
            processes = [
                await found.head("h", times="checked"),
                await edge._new("edge", "e", "c-h", f'head_url = "{found.url("h")}"', {}),
            ]
            await start_all(processes)
            for brokers, name in ((found, "h"), (edge, "e")):
                await brokers.add_user(USER, PASSWORD, "", (name,))
            yield found
        finally:
            await found.close()
            await edge.close()


async def test_lateness_goes_by_a_clock_only_as_far_as_the_head_agrees(head: Brokers) -> None:
    seen: dict[str, Message] = {}
    now_us = time.time_ns() // 1_000
    hour_us = round(HOUR_S * 1e6)
    sent = {
        "right": {PUBLISHED_HEADER: now_us},
        "none": {},
        "ahead": {PUBLISHED_HEADER: now_us + hour_us},
        "behind": {PUBLISHED_HEADER: now_us - hour_us},
        "forged": {PUBLISHED_HEADER: now_us - hour_us, STAMPED_HEADER: (now_us - hour_us) // 1_000},
    }
    url = amqp_url(head.node, head.vhost("h")).replace(f"{head.node.user}:{head.node.password}", f"{USER}:{PASSWORD}")
    async with AsyncSubscriber(url, name="siren") as subscriber:
        subscription = await subscriber.subscribe(
            "t.#", deadline=60, callback=lambda message: seen.__setitem__(message.body.decode(), message)
        )
        connection = await aio_pika.connect(url)
        async with connection:
            exchange = await (await connection.channel()).get_exchange(PUBLISH_EXCHANGE, ensure=False)
            for number, (name, headers) in enumerate(sent.items()):
                message = aio_pika.Message(name.encode(), headers=dict(headers), message_id=f"buoy~1:t.a:{number}")
                await exchange.publish(message, "t.a", mandatory=False)
        await eventually(lambda: len(seen) == len(sent), f"all arrive: {sorted(seen)}")
        statistics = subscription.statistics()
    told = {name: (message.time_checked, message.late) for name, message in seen.items()}
    assert told == {
        "right": (True, False),
        "none": (True, False),
        "ahead": (True, False),
        "behind": (False, True),
        "forged": (False, True),
    }
    assert all(abs(time.time() - (seen[name].published_at or 0.0)) < 30 for name in ("right", "none", "ahead"))
    assert (statistics.late, statistics.late_unchecked, statistics.latency_count) == (0, 2, 3)
    assert all(not message.attributes for message in seen.values())
