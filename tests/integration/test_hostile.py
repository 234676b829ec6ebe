"""One client that sends the worst disturbs nobody else: links and subscribers go on, whatever comes."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.support.backends import Launch
from tests.support.blocking import in_thread
from tests.support.hostile import ACCEPTED, MALFORMED, NESTED, copied_to, send, with_headers
from tests.support.telemetry import following
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, Message, Subscriber
from tidegate_embedded.topology import Topology
from tidegate_protocol.names import PUBLISH_EXCHANGE, TELEMETRY_EXCHANGE

TOPIC = "quake.alert"
MESSAGES = 50
"""What a bystander publishes before, between and after the hostile messages."""


class Seen:
    """What one application got."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def take(self, message: Message) -> None:
        self.messages.append(message)

    def of(self, publisher: str | None) -> list[bytes]:
        return [message.body for message in self.messages if message.publisher == publisher]

    def hostile(self, bystander: str) -> Counter[bytes]:
        return Counter(message.body for message in self.messages if message.publisher != bystander)


async def test_hostile_messages_reach_subscribers_and_stop_none(launch: Launch) -> None:
    async with launch(Topology.simple(clusters=1, edges=1), compact=True) as cluster:
        url = cluster.url("alpha")
        async with (
            in_thread(Subscriber(url, name="blocking")) as blocking,
            AsyncSubscriber(url, name="awaiting") as awaiting,
            AsyncPublisher(url) as bystander,
        ):
            one, other = Seen(), Seen()
            subscriptions = [
                await awaiting.subscribe("quake.#", deadline=60, callback=one.take),
                await asyncio.to_thread(blocking.subscribe, "quake.#", 60, callback=other.take),
            ]
            taken = []
            number = 0
            for name, properties in {**MALFORMED, **ACCEPTED}.items():
                for _ in range(MESSAGES):
                    await bystander.publish(TOPIC, str(number).encode())
                    number += 1
                await bystander.flush()
                if await asyncio.to_thread(send, url, PUBLISH_EXCHANGE, TOPIC.encode(), properties, name.encode()):
                    taken.append(name)
            for key in (b"quake.\xff\xfe", b"quake." + b"\xe2\x82" * 100):
                assert await asyncio.to_thread(send, url, PUBLISH_EXCHANGE, key, NESTED, key)
            await bystander.publish(TOPIC, b"last")
            await bystander.flush()
            assert set(ACCEPTED) <= set(taken)
            wanted = [str(each).encode() for each in range(number)] + [b"last"]
            hostile = Counter([*(name.encode() for name in taken), b"quake.\xff\xfe", b"quake." + b"\xe2\x82" * 100])
            for seen in (one, other):
                await eventually(lambda seen=seen: b"last" in seen.of(bystander.id), "the last message has come", 60)
                assert seen.of(bystander.id) == wanted
                assert seen.hostile(bystander.id) == hostile
            for subscription in subscriptions:
                statistics = subscription.statistics()
                assert (statistics.reconnects, statistics.duplicates, statistics.missing) == (0, 0, 0)
                assert statistics.malformed == len(taken) - len(ACCEPTED) + 1, "the crowded one can't be read"


async def test_a_hostile_record_does_not_stop_a_reader_of_telemetry(launch: Launch) -> None:
    async with launch(Topology.simple(clusters=1, edges=1), compact=True) as cluster:
        url = cluster.url("alpha")
        async with following(url) as seen:
            await eventually(lambda: seen.records, "records come")
            # A stream does not take all that a queue takes.
            for properties in ACCEPTED.values():
                await asyncio.to_thread(send, url, TELEMETRY_EXCHANGE, b"x", properties, b"no record")
            for key in (b"x", b"\xff"):
                assert await asyncio.to_thread(send, url, TELEMETRY_EXCHANGE, key, NESTED, b"no record")
            await eventually(lambda: len(seen.problems) >= 2, "what is no record is named")
            last = max(seen.records)
            await eventually(lambda: max(seen.records) > last, "records go on")


async def test_a_message_that_nobody_asked_for_is_dropped_before_the_application_sees_it(launch: Launch) -> None:
    """RabbitMQ routes by the keys in `CC`, too: a publisher may so put any topic before any subscriber."""
    async with launch(Topology.simple(clusters=1, edges=1), compact=True) as cluster:
        url = cluster.url("alpha")
        async with (
            in_thread(Subscriber(url, name="blocking")) as blocking,
            AsyncSubscriber(url, name="awaiting") as awaiting,
            AsyncPublisher(url) as bystander,
        ):
            one, other = Seen(), Seen()
            subscriptions = [
                await awaiting.subscribe("quake.*", deadline=60, callback=one.take),
                await asyncio.to_thread(blocking.subscribe, "quake.*", 60, callback=other.take),
            ]
            forged = with_headers(copied_to(TOPIC.encode()))
            assert await asyncio.to_thread(send, url, PUBLISH_EXCHANGE, b"gossip.a", forged, b"forged")
            await bystander.publish(TOPIC, b"true")
            await bystander.flush()
            for seen, subscription in zip((one, other), subscriptions, strict=True):
                await eventually(lambda seen=seen: seen.messages, "the true one comes")
                assert [message.body for message in seen.messages] == [b"true"]
                assert subscription.statistics().stray == 1
