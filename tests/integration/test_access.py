"""Least rights, on a real RabbitMQ: everything works with them, and nothing else does.

One head and two edges with the accounts that `tidegate access prepare` makes; then everything that a publisher or a
subscriber must not be able to do, tried with their own credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import aio_pika
import pytest
import pytest_asyncio
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.support.brokers import RawClient
from tests.support.guarded import Guarded, guarded_cluster
from tests.support.waiting import eventually
from tidegate import AccessRefused, AsyncPublisher, AsyncSubscriber, Subscriber
from tidegate._engine.asking import Asking
from tidegate_embedded.nodes import RabbitNode
from tidegate_protocol import telemetry
from tidegate_protocol.balancing.drains import DrainReply, DrainRequest
from tidegate_protocol.balancing.loads import PieGlobal, PieLocal
from tidegate_protocol.balancing.migrations import MigrateOrder, MigrationReport, MigrationStage
from tidegate_protocol.balancing.publishers import PublisherMoveOrder
from tidegate_protocol.balancing.sessions import SessionNotice, SessionPhase
from tidegate_protocol.insight import CorrelatedPair, EdgeInsight, Insight
from tidegate_protocol.messages import (
    ControlMessage,
    EdgeGoodbye,
    OutputRemove,
    PublisherGoodbye,
    Refusal,
    UnsubscribeRequest,
    encode,
)
from tidegate_protocol.names import (
    ANSWER_KEY,
    CONTROL_EXCHANGE,
    DELIVER_EXCHANGE,
    HOM_KEY,
    OPERATOR_KEY,
    PUBLISH_EXCHANGE,
    broker_key,
    client_key,
    control_queue,
    ingress_exchange,
    link_queue,
    marker_key,
    output_queue,
    pie_global_key,
    pie_local_key,
)
from tidegate_protocol.operations import PauseRequest
from tidegate_protocol.parts import LoadState

pytestmark = pytest.mark.asyncio(loop_scope="module")

EDGES = ("edge-1", "edge-2")
VICTIM = "siren"
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
name = "desk"
subscribe = true

[[client]]
name = "buoy"
publish = true

[[operator]]
name = "operator"

[[analyst]]
name = "analyst"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(node: RabbitNode, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    async with guarded_cluster(node, tmp_path_factory.mktemp("access"), LAYOUT) as cluster:
        yield cluster


async def test_everything_works_with_them(guarded: Guarded) -> None:
    """Publish, subscribe, be moved and lose nothing; ask as an operator; read telemetry as an analyst."""
    got: list[int] = []
    async with (
        AsyncSubscriber(guarded.url(VICTIM), name=f"{VICTIM}-1") as subscriber,
        AsyncPublisher(guarded.url("buoy")) as publisher,
        Asking(guarded.url("operator")) as operator,
    ):
        subscription = await subscriber.subscribe(
            "t.#", deadline=5, callback=lambda message: got.append(message.sequence)
        )
        before = subscription.edge
        assert before in EDGES
        for _ in range(20):
            await publisher.publish("t.a", b"x")
        await operator.ask(DrainRequest(edge=str(before)), DrainReply)
        await eventually(lambda: subscription.edge not in (before, None), "it was moved")
        for _ in range(20):
            await publisher.publish("t.a", b"x")
        await publisher.flush()
        await eventually(lambda: len(got) >= 40, f"all arrive: {got}")
        assert got == list(range(40))
        await operator.ask(DrainRequest(edge=str(before), draining=False), DrainReply)
        await subscription.unsubscribe()
    await asyncio.to_thread(blocking_client_works, guarded.url(VICTIM))
    async with guarded.channel("analyst") as channel:
        await channel.set_qos(10)
        queue = await channel.get_queue("tidegate.telemetry", ensure=False)
        writers: set[str] = set()

        async def record(message: AbstractIncomingMessage) -> None:
            writers.add(telemetry.decode(message.body).broker)
            await message.ack()

        await queue.consume(record, arguments={"x-stream-offset": "first"})
        await eventually(lambda: writers == {"head", *EDGES}, "head and edges write telemetry", 60)


def blocking_client_works(url: str) -> None:
    with Subscriber(url) as subscriber:
        assert subscriber.subscribe("t.#", deadline=5).edge in EDGES


PIE = PieLocal(cluster="main", broker="edge-1", state=LoadState.LOW, period_s=1)
GLOBAL_PIE = PieGlobal(cluster="main", head="head", state=LoadState.LOW, period_s=1)
SESSION = SessionNotice(session="s~1~1", phase=SessionPhase.ENDED, source="edge-1")
MOVE = MigrateOrder(
    migration="m~1",
    subscriber=f"{VICTIM}-1",
    pattern="t.#",
    edge_from="edge-1",
    number_from=0,
    edge="edge-2",
    number=9,
    url="amqp://127.0.0.1:1/x",
    queue="out.x.9",
    head="head",
    heads=("head",),
    timeout_us=1_000_000,
)
PUBLISHER_MOVE = PublisherMoveOrder(
    move="p~1", publisher="buoy~1", head="head", url="amqp://127.0.0.1:1/x", timeout_us=1_000_000
)
PAIR = CorrelatedPair(topic_a="t.a", topic_b="t.b", coefficient=0.9)
INSIGHT = Insight(cluster="main", made_at_us=1, valid_for_us=60_000_000, pairs=(PAIR,))
EDGE_INSIGHT = EdgeInsight(head="head", incarnation=9, number=9, made_at_us=1, left_us=1, uplink_bytes_per_s=1.0)
FORGED: dict[str, tuple[str, str, ControlMessage]] = {
    "pie, of an edge": (CONTROL_EXCHANGE, pie_local_key("main"), PIE),
    "pie, of a cluster": (CONTROL_EXCHANGE, pie_global_key("main"), GLOBAL_PIE),
    "session, to an edge": (CONTROL_EXCHANGE, broker_key("edge-1"), SESSION),
    "session, to the head": (CONTROL_EXCHANGE, broker_key("head"), SESSION),
    "session, straight into an edge's queue": ("", control_queue("edge-1"), SESSION),
    "migrate, to a subscriber": (CONTROL_EXCHANGE, client_key(f"{VICTIM}-1"), MOVE),
    "migrate, to a publisher": (CONTROL_EXCHANGE, client_key("buoy~1"), PUBLISHER_MOVE),
    "insight, to the head": (CONTROL_EXCHANGE, OPERATOR_KEY, INSIGHT),
    "insight, straight into the head's queue": ("", control_queue("head"), INSIGHT),
    "insight, to an edge": (CONTROL_EXCHANGE, broker_key("edge-1"), EDGE_INSIGHT),
    "an edge's goodbye": (CONTROL_EXCHANGE, "head", EdgeGoodbye(edge="edge-1")),
    "a queue's removal": (CONTROL_EXCHANGE, broker_key("edge-1"), OutputRemove(subscriber=VICTIM, number=0)),
    "an operator's pause": (CONTROL_EXCHANGE, OPERATOR_KEY, PauseRequest(paused=True)),
    "a pause, straight into the head's queue": ("", control_queue("head"), PauseRequest(paused=True)),
}
CLIENTS = pytest.mark.parametrize("user", ["buoy", "desk"], ids=["publisher", "subscriber"])


@CLIENTS
@pytest.mark.parametrize("what", FORGED)
async def test_forged_control_messages_are_refused(guarded: Guarded, user: str, what: str) -> None:
    exchange_name, key, message = FORGED[what]

    async def forge(channel: AbstractChannel) -> None:
        exchange = await channel.get_exchange(exchange_name, ensure=False)
        await exchange.publish(aio_pika.Message(encode(message)), key, mandatory=False)

    await refused(guarded, user, "head", forge)


@CLIENTS
@pytest.mark.parametrize("message", [PIE, SESSION, MOVE, INSIGHT], ids=lambda message: message.kind)
async def test_forged_control_messages_are_refused_by_the_keys_of_clients(
    guarded: Guarded, user: str, message: ControlMessage
) -> None:
    """RabbitMQ lets a client write to the head, and does not read what; the head does."""
    async with guarded.channel(user) as channel:
        client = RawClient(channel)
        await client.open()
        for key in (HOM_KEY, ANSWER_KEY):
            answer = await client.ask_raw(encode(message), key)
            assert isinstance(answer, Refusal), answer
            assert f"{message.kind} may not be sent" in answer.message


Deed = Callable[[AbstractChannel], Awaitable[object]]


async def refused(guarded: Guarded, user: str, vhost: str, deed: Deed) -> None:
    async with guarded.channel(user, vhost) as channel:
        with pytest.raises(aio_pika.exceptions.ChannelClosed, match="ACCESS_REFUSED"):
            await deed(channel)


def publishing(exchange_name: str, key: str) -> Deed:
    async def deed(channel: AbstractChannel) -> None:
        exchange = await channel.get_exchange(exchange_name, ensure=False)
        await exchange.publish(aio_pika.Message(b"x"), key, mandatory=False)

    return deed


def taking(queue: str) -> Deed:
    async def deed(channel: AbstractChannel) -> None:
        await (await channel.get_queue(queue, ensure=False)).get(fail=False)

    return deed


def binding(exchange: str, key: str) -> Deed:
    async def deed(channel: AbstractChannel) -> None:
        await (await channel.declare_queue(exclusive=True)).bind(exchange, key)

    return deed


DEEDS: dict[str, tuple[str, str, Deed]] = {
    "publish as a subscriber": ("desk", "head", publishing(PUBLISH_EXCHANGE, "t.a")),
    "publish a marker": ("buoy", "head", publishing(PUBLISH_EXCHANGE, marker_key("m~1", "head"))),
    "write into a link": ("buoy", "head", publishing("", link_queue("edge-1"))),
    "write into a link, as a subscriber": ("desk", "head", publishing("", link_queue("edge-1"))),
    "write as a neighbouring head": ("buoy", "head", publishing(ingress_exchange("north-head"), "t.a")),
    "write telemetry": ("buoy", "head", publishing("tidegate.telemetry", "load")),
    "deliver on an edge": ("desk", "edge-1", publishing(DELIVER_EXCHANGE, "t.a")),
    "deliver into a queue": ("desk", "edge-1", publishing("", output_queue(VICTIM, 0))),
    "read another's queue": ("desk", "edge-1", taking(output_queue(VICTIM, 0))),
    "read a queue of a longer name": ("desk", "edge-1", taking(output_queue("desktop", 0))),
    "read a link": ("desk", "head", taking(link_queue("edge-1"))),
    "read the head's requests": ("desk", "head", taking(control_queue("head"))),
    "read telemetry": ("buoy", "head", taking("tidegate.telemetry")),
    "listen to what is published": ("buoy", "head", binding(PUBLISH_EXCHANGE, "#")),
    "listen to another's orders": ("desk", "head", binding(CONTROL_EXCHANGE, client_key(VICTIM))),
    "listen to all control messages": ("desk", "head", binding(CONTROL_EXCHANGE, "#")),
    "listen to requests of clients": ("desk", "head", binding(CONTROL_EXCHANGE, HOM_KEY)),
    "delete a queue": ("desk", "edge-1", lambda channel: channel.queue_delete(output_queue(VICTIM, 0))),
    "delete an exchange": ("buoy", "head", lambda channel: channel.exchange_delete(CONTROL_EXCHANGE)),
    "declare a queue": ("buoy", "head", lambda channel: channel.declare_queue("link.mine", durable=True)),
    "write as an analyst": ("analyst", "head", publishing(CONTROL_EXCHANGE, OPERATOR_KEY)),
    "ask as a client, being an operator": ("operator", "head", publishing(CONTROL_EXCHANGE, HOM_KEY)),
}


@pytest.mark.parametrize("what", DEEDS)
async def test_what_is_not_theirs_to_do_is_refused(guarded: Guarded, what: str) -> None:
    user, vhost, deed = DEEDS[what]
    await refused(guarded, user, vhost, deed)


async def test_publishers_have_no_business_on_an_edge(guarded: Guarded) -> None:
    """So that a publisher writes to no `tidegate.deliver` and reads nobody's queue: it does not get in."""
    with pytest.raises(aio_pika.exceptions.AMQPError, match=r"Connection\.Close"):
        await aio_pika.connect(guarded.url("buoy", "edge-1"))


def moved(subscriber: str) -> MigrationReport:
    return MigrationReport(
        migration="m", subscriber=subscriber, stage=MigrationStage.MOVED, pattern="u.#", edge="edge-1", number=7
    )


async def test_nobody_speaks_for_another_client(guarded: Guarded) -> None:
    """The SDK does not get as far as asking: orders for that name are not its to hear. Other programs ask; RabbitMQ
    lets that through, being a request to the head like any other, and the head refuses it.
    """
    async with (
        AsyncSubscriber(guarded.url(VICTIM), name=VICTIM) as subscriber,
        AsyncSubscriber(guarded.url("desk"), name=f"{VICTIM}-2") as pretender,
    ):
        subscription = await subscriber.subscribe("u.#", deadline=5)
        with pytest.raises(AccessRefused, match=r"client\.siren-2"):
            await pretender.subscribe("u.#", deadline=5)
        assert subscription.queue is not None
        number = int(subscription.queue.rpartition(".")[2])
        requests = (
            UnsubscribeRequest(subscriber=VICTIM, number=number),
            PublisherGoodbye(publisher="buoy~1"),
            moved(VICTIM),
        )
        for request in requests:
            async with guarded.channel("desk") as channel:
                client = RawClient(channel)
                await client.open()
                answer = await client.ask_raw(encode(request))
                assert isinstance(answer, Refusal), answer
                assert "may not speak for" in answer.message
        await subscription.unsubscribe()


async def test_nobody_pretends_to_be_another_account(guarded: Guarded) -> None:
    async with guarded.channel("desk") as channel:
        exchange = await channel.get_exchange(CONTROL_EXCHANGE, ensure=False)
        request = aio_pika.Message(encode(UnsubscribeRequest(subscriber=VICTIM, number=0)), user_id=VICTIM)
        with pytest.raises(aio_pika.exceptions.ChannelClosed, match="user_id property"):
            await exchange.publish(request, HOM_KEY)


async def test_an_answer_that_was_not_asked_for_is_dropped(guarded: Guarded) -> None:
    sample = 'tidegate_control_malformed_messages_total{reason="no-request"}'
    before = await guarded.processes["head"].metric(sample)
    async with guarded.channel("desk") as channel:
        exchange = await channel.get_exchange(CONTROL_EXCHANGE, ensure=False)
        await exchange.publish(aio_pika.Message(encode(moved("desk")), correlation_id="7", user_id="desk"), ANSWER_KEY)

    async def counted() -> bool:
        return await guarded.processes["head"].metric(sample) == before + 1

    await eventually(counted, "it is counted")
