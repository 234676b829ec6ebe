"""Whose a message is, on a real RabbitMQ with least rights: no account's ids or keys touch what is another's.

One head and two edges with the accounts that `tidegate access prepare` makes. `rival` may publish like `buoy` and reads
all that `siren` reads; that is all it needs to know the ids of the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import aio_pika
import pytest
import pytest_asyncio
from pamqp.common import FieldArray, FieldTable

from tests.support.guarded import Guarded, guarded_cluster
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, Message, Publisher, Subscriber
from tidegate._engine.asking import Asking
from tidegate_brokers.access.admission import NOT_YOURS
from tidegate_brokers.access.roles import broker_user
from tidegate_cli.explain.overview import remarks
from tidegate_cli.explain.subjects import paragraph
from tidegate_embedded.nodes import RabbitNode, amqp_url, create_vhost
from tidegate_protocol.balancing.drains import DrainReply, DrainRequest
from tidegate_protocol.decisions import AccountRefused, ControlRefusal
from tidegate_protocol.messages import ControlMessage, EdgeGoodbye, OutputRemove, encode
from tidegate_protocol.names import (
    CONTROL_EXCHANGE,
    HEAD_KEY,
    HOM_KEY,
    OPERATOR_KEY,
    PUBLISH_EXCHANGE,
    broker_key,
    client_key,
)
from tidegate_protocol.operations import (
    Explained,
    ExplainReply,
    ExplainRequest,
    OverviewReply,
    OverviewRequest,
    PauseRequest,
    PlanReply,
    PlanRequest,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEAD, EDGES = "head", ("edge-1", "edge-2")
READER, VICTIM, RIVAL = "siren", "buoy", "rival"
TOPIC = "t.a"
MESSAGES = 40
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
name = "buoy"
publish = true

[[client]]
name = "rival"
publish = true

[[operator]]
name = "operator"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(node: RabbitNode, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    async with guarded_cluster(node, tmp_path_factory.mktemp("identity"), LAYOUT) as cluster:
        yield cluster


class Seen:
    """What one application got."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def take(self, message: Message) -> None:
        self.messages.append(message)

    def of(self, account: str | None) -> list[bytes]:
        return [message.body for message in self.messages if message.account == account]


async def claim(guarded: Guarded, publisher: str, sequences: list[int], account: str | None) -> list[bytes]:
    """Publish as the rival, with ids of `publisher`'s."""
    bodies = [b"rival %d" % sequence for sequence in sequences]
    async with guarded.channel(RIVAL) as channel:
        exchange = await channel.get_exchange(PUBLISH_EXCHANGE, ensure=False)
        for sequence, body in zip(sequences, bodies, strict=True):
            claimed = f"{publisher}:{TOPIC}:{sequence}"
            message = aio_pika.Message(body, message_id=claimed, user_id=account)
            await exchange.publish(message, TOPIC, mandatory=False)
    return bodies


@pytest.mark.parametrize("account", [RIVAL, None], ids=["named", "unnamed"])
async def test_ids_of_others_drop_nothing(guarded: Guarded, account: str | None) -> None:
    """The rival uses the victim's ids ahead of it, and once more far ahead; everybody's messages arrive, once."""
    one, other = Seen(), Seen()
    blocking = Subscriber(guarded.url(READER), name=f"{READER}-blocking")
    await asyncio.to_thread(blocking.open)
    async with (
        AsyncSubscriber(guarded.url(READER), name=f"{READER}-1") as subscriber,
        AsyncPublisher(guarded.url(VICTIM), name=VICTIM) as publisher,
    ):
        awaiting = await subscriber.subscribe("t.#", deadline=60, callback=one.take)
        waiting = await asyncio.to_thread(blocking.subscribe, "t.#", 60, callback=other.take)
        await (await publisher.publish(TOPIC, b"0"))
        await eventually(lambda: one.messages and other.messages, "the id of the first is known")
        claimed = await claim(guarded, publisher.id, [*range(1, MESSAGES), 10**9], account)
        await eventually(lambda: len(one.of(account)) == len(other.of(account)) == len(claimed), "these arrive")
        for number in range(1, MESSAGES):
            await publisher.publish(TOPIC, b"%d" % number)
        await publisher.flush()
        wanted = [b"%d" % number for number in range(MESSAGES)]
        await eventually(
            lambda: min(len(one.of(VICTIM)), len(other.of(VICTIM))) >= MESSAGES, "the victim's messages arrive"
        )
        for seen, found in ((one, awaiting.statistics()), (other, waiting.statistics())):
            assert seen.of(VICTIM) == wanted
            assert Counter(seen.of(account)) == Counter(claimed)
            assert {message.publisher for message in seen.messages if message.account == VICTIM} == {publisher.id}
            assert (found.duplicates, found.reordered, found.received) == (0, 0, MESSAGES + len(claimed))
            assert found.unchecked == found.foreign == (len(claimed) if account is None else 0)
        await awaiting.unsubscribe()
        await asyncio.to_thread(waiting.unsubscribe)
    await asyncio.to_thread(blocking.close)


async def test_ids_of_others_drop_nothing_in_a_move(guarded: Guarded) -> None:
    """The same while the subscriber is moved there and back, with the rival publishing all the time."""
    seen = Seen()
    async with (
        AsyncSubscriber(guarded.url(READER), name=f"{READER}-2") as subscriber,
        AsyncPublisher(guarded.url(VICTIM), name=VICTIM) as publisher,
        Asking(guarded.url("operator")) as operator,
    ):
        subscription = await subscriber.subscribe("t.#", deadline=60, callback=seen.take)
        stop, claimed, number = asyncio.Event(), list[bytes](), 0

        async def rival() -> None:
            first = 0
            while not stop.is_set():
                for account in (RIVAL, None):
                    claimed.extend(await claim(guarded, publisher.id, list(range(first, first + 20)), account))
                first += 20

        task = asyncio.create_task(rival())
        for _ in range(2):
            before = subscription.edge
            await operator.ask(DrainRequest(edge=str(before)), DrainReply)
            while subscription.edge == before:
                await (await publisher.publish(TOPIC, b"%d" % number))
                number += 1
            for _ in range(MESSAGES):
                await (await publisher.publish(TOPIC, b"%d" % number))
                number += 1
            await operator.ask(DrainRequest(edge=str(before), draining=False), DrainReply)
        stop.set()
        await task
        total = number + len(claimed)
        await eventually(lambda: len(seen.messages) >= total, f"{total} messages arrive")
        assert seen.of(VICTIM) == [b"%d" % each for each in range(number)]
        assert Counter(seen.of(RIVAL) + seen.of(None)) == Counter(claimed)
        assert subscription.statistics().migrations >= 2
        await subscription.unsubscribe()


async def test_a_blocking_publisher_says_who_it_is(guarded: Guarded) -> None:
    seen = Seen()

    def publish() -> None:
        with Publisher(guarded.url(VICTIM)) as publisher:
            publisher.publish(TOPIC, b"first", attributes={"height": 1.5})
            publisher.flush()

    async with AsyncSubscriber(guarded.url(READER), name=f"{READER}-3") as subscriber:
        subscription = await subscriber.subscribe("t.#", deadline=60, callback=seen.take)
        await asyncio.to_thread(publish)
        await eventually(lambda: seen.messages, "it arrives")
        assert seen.messages[0].account == VICTIM
        assert seen.messages[0].sequence == 0
        await subscription.unsubscribe()


# Control: keys that RabbitMQ would refuse, reached by a detour


DETOURS: list[tuple[str, ControlMessage, str]] = [
    (OPERATOR_KEY, PauseRequest(paused=True), HEAD),
    (HEAD_KEY, EdgeGoodbye(edge="edge-1"), HEAD),
    (broker_key(HEAD), EdgeGoodbye(edge="edge-1"), HEAD),
    (broker_key("edge-1"), OutputRemove(subscriber=READER, number=0), "edge-1"),
]


async def dropped(guarded: Guarded, process: str, reason: str) -> float:
    return await guarded.processes[process].metric(f'tidegate_control_malformed_messages_total{{reason="{reason}"}}')


async def received(guarded: Guarded, process: str, kind: str) -> float:
    return await guarded.processes[process].metric(f'tidegate_control_received_messages_total{{kind="{kind}"}}')


async def copies_are_refused(guarded: Guarded) -> bool:
    """Whether RabbitMQ checks the keys in `CC` against rights, as 4.1 and later do."""
    async with guarded.channel(RIVAL) as channel:
        exchange = await channel.get_exchange(CONTROL_EXCHANGE, ensure=False)
        try:
            copies: FieldArray = [client_key(RIVAL)]
            message = aio_pika.Message(b"{}", headers={"CC": copies}, user_id=RIVAL)
            await exchange.publish(message, HOM_KEY)
        except aio_pika.exceptions.ChannelClosed:
            return True
    return False


async def test_what_is_dead_lettered_into_control_is_dropped(guarded: Guarded) -> None:
    """A queue of the rival's own dead-letters into the control exchange with a key that the rival may not write.

    RabbitMQ checks no such key on any version. The rival gets messages into the queue by `CC`, which 3.10 does not
    check; newer ones do, so that the owner of RabbitMQ stands in for whatever other way there may be.
    """
    refused = await copies_are_refused(guarded)
    for key, order, process in DETOURS:
        before = await dropped(guarded, process, "dead-lettered"), await received(guarded, process, order.kind)
        async with guarded.channel(RIVAL) as channel:
            arguments: FieldTable = {
                "x-message-ttl": 0,
                "x-dead-letter-exchange": CONTROL_EXCHANGE,
                "x-dead-letter-routing-key": key,
            }
            queue = await channel.declare_queue(exclusive=True, arguments=arguments)
            await queue.bind(CONTROL_EXCHANGE, client_key(RIVAL))
            if refused:
                await publish_as_owner(guarded, queue.name, encode(order))
            else:
                exchange = await channel.get_exchange(CONTROL_EXCHANGE, ensure=False)
                copies: FieldArray = [client_key(RIVAL)]
                message = aio_pika.Message(encode(order), headers={"CC": copies}, user_id=RIVAL)
                await exchange.publish(message, HOM_KEY)

            async def counted(process: str = process, wanted: float = before[0] + 1) -> bool:
                return await dropped(guarded, process, "dead-lettered") == wanted

            await eventually(counted, f"what came to {key} is counted at {process}")
        assert await received(guarded, process, order.kind) == before[1]
    await nothing_happened(guarded)
    culprit = "" if refused else RIVAL
    for broker in (HEAD, "edge-1"):
        await named_by_status(guarded, culprit, ControlRefusal.DEAD_LETTERED, broker)


async def publish_as_owner(guarded: Guarded, queue: str, body: bytes) -> None:
    await create_vhost(guarded.node, HEAD)
    async with await aio_pika.connect(amqp_url(guarded.node, HEAD)) as connection:
        channel = await connection.channel()
        await channel.default_exchange.publish(aio_pika.Message(body), queue)


async def named_by_status(guarded: Guarded, account: str, reason: ControlRefusal, broker: str) -> None:
    """`status` and `explain` say whose messages were not taken, where, and why."""
    async with Asking(guarded.url("operator")) as operator:
        overview = await operator.ask(OverviewRequest(), OverviewReply)
        explained = await operator.ask(ExplainRequest(about=account), ExplainReply)
    assert explained.what is (Explained.ACCOUNT if account else Explained.CLUSTER)
    for culprits in (overview.culprits, explained.culprits):
        found = {
            (one.client, one.record.reason, one.broker) for one in culprits if isinstance(one.record, AccountRefused)
        }
        assert (account, reason, broker) in found
    name = f"account {account}" if account else "names no account"
    assert name in " ".join(remarks(overview, None))
    assert name in paragraph(explained)


async def test_what_is_copied_into_control_is_dropped(guarded: Guarded) -> None:
    if await copies_are_refused(guarded):
        await nothing_happened(guarded)
        return

    async def counted(process: str, reason: str, wanted: float) -> bool:
        return await dropped(guarded, process, reason) == wanted

    before_head = await dropped(guarded, HEAD, "copied")
    before, before_hidden = [await dropped(guarded, "edge-1", reason) for reason in ("copied", "wrong-key")]
    for header in ("CC", "BCC"):
        async with guarded.channel(RIVAL) as channel:
            exchange = await channel.get_exchange(CONTROL_EXCHANGE, ensure=False)
            copies: FieldArray = [OPERATOR_KEY, broker_key("edge-1")]
            message = aio_pika.Message(encode(PauseRequest(paused=True)), headers={header: copies}, user_id=RIVAL)
            await exchange.publish(message, HOM_KEY)
    # RabbitMQ removes BCC: a receiver sees by the key that the message was not for it.
    await eventually(lambda: counted("edge-1", "copied", before + 1), "the edge counts the first")
    await eventually(lambda: counted("edge-1", "wrong-key", before_hidden + 1), "the edge counts the second")
    await eventually(lambda: counted(HEAD, "copied", before_head + 1), "the head counts the first")
    await nothing_happened(guarded)


async def nothing_happened(guarded: Guarded) -> None:
    for edge in EDGES:
        assert not await dropped(guarded, edge, NOT_YOURS), "nobody of ours is refused"
    async with Asking(guarded.url("operator")) as operator:
        plan = await operator.ask(PlanRequest(), PlanReply)
        assert not plan.paused
        assert {edge.edge for edge in plan.edges} == set(EDGES)


@pytest.mark.parametrize("account", [broker_user("edge-2"), None], ids=["named", "unnamed"])
async def test_an_edge_speaks_for_no_other_edge(guarded: Guarded, account: str | None) -> None:
    before = await dropped(guarded, HEAD, NOT_YOURS), await received(guarded, HEAD, "edge-goodbye")
    async with guarded.channel(broker_user("edge-2")) as channel:
        exchange = await channel.get_exchange(CONTROL_EXCHANGE, ensure=False)
        await exchange.publish(aio_pika.Message(encode(EdgeGoodbye(edge="edge-1")), user_id=account), HEAD_KEY)

    async def counted() -> bool:
        return await dropped(guarded, HEAD, NOT_YOURS) == before[0] + 1

    await eventually(counted, "it is counted")
    assert await received(guarded, HEAD, "edge-goodbye") == before[1]
    await nothing_happened(guarded)
    await named_by_status(guarded, account or "", ControlRefusal.NOT_YOURS, HEAD)
