"""Least rights, on a real RabbitMQ: everything works with them, and nothing else does.

One head and two edges with the accounts that `tidegate access prepare` makes; then everything that a publisher or a
subscriber must not be able to do, tried with their own credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import aio_pika
import pytest
import pytest_asyncio
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.support.brokers import RawClient
from tests.support.cells import (
    Cell,
    Tried,
    asked_cells,
    edge_cells,
    head_cells,
    kinds,
    ordered_cells,
    try_asking,
    try_cells,
    try_ordering,
)
from tests.support.guarded import Guarded, guarded_cluster
from tests.support.waiting import eventually
from tidegate import AccessRefused, AsyncPublisher, AsyncSubscriber, Refused, Subscriber, Subscription
from tidegate._engine.asking import Asking
from tidegate_brokers.access.applying import ChangeKind
from tidegate_embedded.nodes import RabbitNode
from tidegate_protocol import telemetry
from tidegate_protocol.balancing.drains import DrainReply, DrainRequest
from tidegate_protocol.balancing.loads import PieLocal
from tidegate_protocol.balancing.migrations import MigrateOrder, MigrationReport, MigrationStage
from tidegate_protocol.balancing.sessions import SessionNotice, SessionPhase
from tidegate_protocol.insight import CorrelatedPair, Insight
from tidegate_protocol.messages import (
    ControlMessage,
    PublisherGoodbye,
    Refusal,
    SubscribeReply,
    UnsubscribeRequest,
    encode,
)
from tidegate_protocol.names import (
    ANSWER_KEY,
    CONTROL_EXCHANGE,
    HOM_KEY,
    PUBLISH_EXCHANGE,
)
from tidegate_protocol.operations import ExplainReply, ExplainRequest, OverviewReply, OverviewRequest, PauseRequest
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
management_port = {management}
vhost = "head"

[[head]]
name = "north-head"
cluster = "north"
host = "{host}"
port = {port}
management_port = {management}
vhost = "north-head"

[[link]]
between = ["head", "north-head"]

[[edge]]
name = "edge-1"
head = "head"
host = "{host}"
port = {port}
management_port = {management}
vhost = "edge-1"

[[edge]]
name = "edge-2"
head = "head"
host = "{host}"
port = {port}
management_port = {management}
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

[[tenant]]
name = "north"
publish = ["north.level.*", "north.#.alarm"]
subscribe = ["north.#"]

[[client]]
name = "gauge"
tenant = "north"
publish = true

[[client]]
name = "watch"
tenant = "north"
subscribe = ["north.level.*", "north.*.alarm"]

[[client]]
name = "idle"

[[client]]
name = "odd"
publish = ["odd.{{vhost}}.*", "odd.(a|b)", "odd.ä", 'odd.\\d', "odd.$.#.[x]"]

[[operator]]
name = "operator"

[[operator]]
name = "lookout"
tenant = "north"

[[analyst]]
name = "analyst"
"""


RELAY = """
[[client]]
name = "relay"
tenant = "north"
publish = ["north.a.alarm"]
subscribe = ["north.a.*"]
"""
LAYOUT += RELAY


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


async def test_every_cell_of_the_table_is_as_the_rules_say(guarded: Guarded) -> None:
    """Account × operation × object: what is allowed works, and the rest is refused, by RabbitMQ, the head and the edge.

    The figures say how large the table is; it is made from the layout, and must not shrink unnoticed.
    """
    layout, made = guarded.layout, dict[tuple[str, str], SubscribeReply]()
    asked, ordered = asked_cells(layout), ordered_cells(layout)
    wrong = await try_asking(guarded, asked, made)
    wrong += await try_ordering(guarded, "edge-1", ordered)
    queues = {name: reply.queue for (name, _), reply in sorted(made.items()) if reply.edge == "edge-1"}
    on_rabbitmq = [*head_cells(layout), *edge_cells(layout, "edge-1", queues)]
    wrong += await try_cells(guarded, on_rabbitmq)
    assert wrong == []
    cells = [*asked, *ordered, *(one.cell for one in on_rabbitmq)]
    assert len(set(cells)) == len(cells)
    allowed = sum(cell.allowed for cell in cells)
    print(f"{len(cells)} cells, {allowed} allowed, {len({cell.account for cell in cells})} accounts")
    assert len(cells) >= 700
    assert allowed >= 100
    assert {cell.account for cell in cells} > kinds(layout, layout.head[0]).keys()


async def test_the_table_finds_a_right_that_is_too_wide(guarded: Guarded) -> None:
    """A table that can't fail proves nothing: each way of trying is shown something that is not so."""
    layout = guarded.layout
    assert len(await try_cells(guarded, [lie(one) for one in head_cells(layout) if one.cell.account == "gauge"])) > 30
    assert len(await try_ordering(guarded, "edge-2", [opposite(cell) for cell in ordered_cells(layout)[:4]])) == 4


def opposite(cell: Cell) -> Cell:
    return replace(cell, allowed=not cell.allowed)


def lie(one: Tried) -> Tried:
    return replace(one, cell=opposite(one.cell))


PIE = PieLocal(cluster="main", broker="edge-1", state=LoadState.LOW, period_s=1)
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
PAIR = CorrelatedPair(topic_a="t.a", topic_b="t.b", coefficient=0.9)
INSIGHT = Insight(cluster="main", made_at_us=1, valid_for_us=60_000_000, pairs=(PAIR,))
CLIENTS = pytest.mark.parametrize("user", ["buoy", "desk"], ids=["publisher", "subscriber"])


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


async def test_an_operator_of_a_tenant_looks_at_its_own_and_never_acts(guarded: Guarded) -> None:
    async with (
        AsyncSubscriber(guarded.url("watch"), name="watch-1") as mine,
        AsyncSubscriber(guarded.url(VICTIM), name=f"{VICTIM}-1") as other,
        Asking(guarded.url("lookout")) as lookout,
        Asking(guarded.url("operator")) as operator,
    ):
        await mine.subscribe("north.level.*", deadline=5)
        await other.subscribe("t.#", deadline=5)
        overview = await lookout.ask(OverviewRequest(queues=20), OverviewReply)
        there = {queue.subscriber for broker in overview.brokers for queue in broker.queues}
        assert all(name.partition("-")[0] in ("watch", "gauge", "relay") for name in there), there
        assert (await operator.ask(ExplainRequest(about=f"{VICTIM}-1"), ExplainReply)).queues
        assert (await lookout.ask(ExplainRequest(about="watch-1"), ExplainReply)).about == "watch-1"
        for forbidden in (ExplainRequest(about=f"{VICTIM}-1"), PauseRequest(paused=True), DrainRequest(edge="edge-1")):
            with pytest.raises(Refused):
                await lookout.ask(forbidden, ExplainReply)


WATCHED = "north.level.*"
SERVED = "north.#"


async def test_a_right_that_is_revoked_ends_at_once_and_comes_back(guarded: Guarded) -> None:
    """`watch` loses what it subscribes to, `gauge` what it publishes, `relay` its account; nobody else notices. Nothing
    is restarted. When the old layout is applied again, `watch` and `gauge` go on by themselves.
    """
    got: list[str] = []
    async with (
        AsyncSubscriber(guarded.url("watch")) as loser,
        AsyncSubscriber(guarded.url(VICTIM)) as bystander,
        AsyncPublisher(guarded.url("gauge")) as gauge,
        AsyncPublisher(guarded.url("buoy")) as buoy,
        guarded.channel("gauge") as plain,
    ):
        blocking = Subscriber(guarded.url("watch"))
        await asyncio.to_thread(blocking.open)
        waiting = await asyncio.to_thread(blocking.subscribe, WATCHED, 5.0)
        watched = await loser.subscribe(WATCHED, deadline=5)
        served = await bystander.subscribe(SERVED, deadline=5, callback=lambda message: got.append(message.topic))
        await (await gauge.publish("north.level.1", b"x"))
        assert (await anext(watched)).topic == "north.level.1"
        # RabbitMQ remembers that this channel may: only closing its connection ends it.
        await publishing(plain, "north.level.1")
        assert (await anext(watched)).topic == "north.level.1"
        changes = await guarded.applied(
            lambda text: (
                text.replace('subscribe = ["north.level.*", "north.*.alarm"]', 'subscribe = ["north.*.alarm"]')
                .replace('publish = ["north.level.*", "north.#.alarm"]', 'publish = ["north.#.alarm"]')
                .replace(RELAY, "")
            )
        )
        assert {(one.account, one.kinds) for one in changes if one.broker == "head"} == {
            ("gauge", (ChangeKind.RIGHTS,)),
            ("relay", (ChangeKind.DELETED,)),
        }
        assert sum(one.closed for one in changes) >= 3, "the two channels of gauge, and what asks its head"
        await eventually(lambda: plain.is_closed, "its connection was closed", 5)
        async with guarded.channel("gauge") as again:
            with pytest.raises(aio_pika.exceptions.ChannelClosed, match="ACCESS_REFUSED"):
                await publishing(again, "north.level.1")
        with pytest.raises(Refused, match=r"watch.* may not subscribe to north\.level\.\*.*north\.\*\.alarm"):
            await asyncio.wait_for(anext(watched), 20)
        await asyncio.to_thread(refused_after_two, waiting)
        await asyncio.to_thread(blocking.close)
        assert (watched.problem.reason if watched.problem else "") == "not-allowed"
        await eventually(lambda: refuses(gauge, "north.level.1"), "the publisher is told what it may publish")
        await (await gauge.publish("north.x.alarm", b"x"))
        await (await buoy.publish("north.level.9", b"x"))
        await eventually(lambda: got[-2:] == ["north.x.alarm", "north.level.9"], f"others are served: {got}")
        assert (served.reconnects, buoy.statistics().reconnects) == (0, 0)
        with pytest.raises(aio_pika.exceptions.AMQPError):
            await aio_pika.connect(guarded.url("relay"))
        assert await guarded.applied(lambda text: text.replace(RELAY, "")) != []
        assert await guarded.applied(lambda text: text.replace(RELAY, "")) == [], "it is all there"
        await guarded.applied(lambda text: text)
        await eventually(lambda: not refuses(gauge, "north.level.1"), "the publisher may again")
        await eventually(lambda: watched.attached, "the subscriber is served again", 60)
        assert watched.problem is None
        await (await gauge.publish("north.level.2", b"x"))
        assert (await anext(watched)).topic == "north.level.2"


def refused_after_two(subscription: Subscription) -> None:
    """The blocking client is told, too, after it has got what came before."""
    assert [message.topic for message in (subscription.get(20), subscription.get(20)) if message] == [
        "north.level.1",
        "north.level.1",
    ]
    with pytest.raises(Refused, match=r"may not subscribe to north\.level\.\*"):
        subscription.get(20)


async def publishing(channel: AbstractChannel, topic: str) -> None:
    exchange = await channel.get_exchange(PUBLISH_EXCHANGE, ensure=False)
    await exchange.publish(aio_pika.Message(b"x"), topic, mandatory=False)


def refuses(publisher: AsyncPublisher, topic: str) -> bool:
    """Whether the SDK refuses to take such a publication; nothing is published."""
    try:
        publisher._running().machine.draft(topic, b"x", None, True)
    except Refused as error:
        return topic in error.message
    return False
