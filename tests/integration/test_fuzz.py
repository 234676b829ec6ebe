"""Hostile messages over a real RabbitMQ: subscribers, head, edge and readers of telemetry go on, whatever comes.

5,000 in the suite; `TIDEGATE_FUZZ_LIVE=100000` takes more, `TIDEGATE_FUZZ_SEED` others. After each thousand a good
message must arrive in time, and no process may have died, lost its connections or grown beyond bounds.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rabbitmq_stream_source.offsets import Range, StreamKey
from rabbitmq_stream_source.options import parse_options
from rabbitmq_stream_source.reading import read_range
from tests.support.backends import Launch
from tests.support.blocking import in_thread
from tests.support.fuzzing import Fuzzer, Hostile, probably_taken, send_all
from tests.support.telemetry import following
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, Message, Subscriber
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import Topology
from tidegate_protocol.names import (
    CONTROL_EXCHANGE,
    HEAD_KEY,
    HOM_KEY,
    OPERATOR_KEY,
    PUBLISH_EXCHANGE,
    TELEMETRY_EXCHANGE,
    TELEMETRY_STREAM,
    broker_key,
)

MESSAGES = int(os.environ.get("TIDEGATE_FUZZ_LIVE", "5000"))
SEED = int(os.environ.get("TIDEGATE_FUZZ_SEED", "1"))
ROUND = 1_000
CHUNK = 100
HEAD, EDGE = "alpha-head", "alpha-edge-0"
GOOD_S = 20.0
"""A good message arrives within this time on a machine that does other things, too."""
GROWTH_BYTES_MAX = 100_000_000
GOLDEN = Path(__file__).parents[1] / "golden"


class Heard:
    """The good messages that an application got."""

    def __init__(self) -> None:
        self.good: set[bytes] = set()
        self.count = 0

    def take(self, message: Message) -> None:
        self.count += 1
        _ = message.attributes, message.publisher, message.id
        if message.topic == "t.good":
            self.good.add(message.body)


def taken(fuzzer: Fuzzer, start: int, count: int, bodies: Sequence[bytes] = ()) -> list[Hostile]:
    """As many messages as were asked for of those that RabbitMQ is likely to take."""
    found: list[Hostile] = []
    for message in fuzzer.messages(start, 50 * count):
        if probably_taken(message):
            body = bodies[len(found) % len(bodies)] if bodies else message.body
            found.append(replace(message, body=body))
            if len(found) == count:
                break
    return found


async def sent(url: str, exchange: str, key: bytes | None, messages: list[Hostile]) -> int:
    count = 0
    for start in range(0, len(messages), CHUNK):
        count += await asyncio.to_thread(send_all, url, exchange, key, messages[start : start + CHUNK])
    return count


def memory(cluster: EmbeddedCluster) -> int:
    """What the processes of the brokers use. They must run."""
    pages = 0
    for broker in (HEAD, EDGE):
        pid = cluster.process(broker).pid
        assert pid is not None, f"{broker} has ended"
        pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def test_hostile_messages_by_the_thousand_stop_nobody(launch: Launch) -> None:
    control = [path.read_bytes() for path in sorted((GOLDEN / "control").glob("*.json"))]
    fuzzer = Fuzzer(SEED, control)
    async with launch(Topology.simple(clusters=1, edges=1), compact=True) as cluster:
        url = cluster.url("alpha")
        async with (
            in_thread(Subscriber(url, name="blocking")) as blocking,
            AsyncSubscriber(url, name="awaiting") as awaiting,
            AsyncPublisher(url) as bystander,
            following(url) as telemetry,
        ):
            one, other = Heard(), Heard()
            subscriptions = [
                await awaiting.subscribe("t.#", deadline=5, callback=one.take),
                await asyncio.to_thread(blocking.subscribe, "t.#", 5, callback=other.take),
            ]
            await eventually(lambda: telemetry.records, "records come")
            before = memory(cluster)
            arrived = 0
            keys = [HOM_KEY, OPERATOR_KEY, HEAD_KEY, broker_key(EDGE)]
            for number in range(0, MESSAGES, ROUND):
                texts = list(fuzzer.texts(number, ROUND))
                half, tenth = ROUND // 2, ROUND // 10
                arrived += await sent(url, PUBLISH_EXCHANGE, None, taken(fuzzer, 100 * number, half))
                for position, key in enumerate(keys):
                    share = taken(fuzzer, 100 * number, tenth, texts[position * tenth :])
                    arrived += await sent(url, CONTROL_EXCHANGE, key.encode(), share)
                share = taken(fuzzer, 100 * number, tenth, texts[half:])
                arrived += await sent(url, TELEMETRY_EXCHANGE, b"x", share)
                good, last = b"good %d" % number, max(telemetry.records)
                await bystander.publish("t.good", good)
                await bystander.flush()
                for heard in (one, other):
                    await eventually(lambda heard=heard, good=good: good in heard.good, f"{good!r} arrives", GOOD_S)
                await eventually(lambda last=last: max(telemetry.records) > last, "records go on", GOOD_S)
            assert arrived > 0.5 * MESSAGES, f"RabbitMQ took only {arrived} of {MESSAGES}"
            assert memory(cluster) - before < GROWTH_BYTES_MAX
            for subscription in subscriptions:
                assert subscription.statistics().reconnects == 0
            await eventually(lambda: one.count == other.count > 0, "both have got the same", GOOD_S)
            await asyncio.to_thread(read_stream, url, max(telemetry.records))


def read_stream(url: str, last: int) -> None:
    """The source of Spark reads the same stream to its end."""
    settings = parse_options({"url": f"b={url}", "streams": TELEMETRY_STREAM})
    rows = sum(batch.num_rows for batch in read_range(Range(StreamKey("b", TELEMETRY_STREAM), 0, last + 1), settings))
    assert rows == last + 1
