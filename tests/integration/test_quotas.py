"""Quotas and what is measured, on a real RabbitMQ with least rights: no account can fill a head, lie it into trouble or
flood it, and whoever tries is named.

One head and two edges. `buoy` and `siren` are as everybody is; `crowd` floods without a word, `rival` lies, `sleeper`
reads slowly, `hoard` subscribes to everything, `squatter` invents names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

import aio_pika
import httpx
import pytest
import pytest_asyncio
from click.testing import CliRunner

from tests.support.guarded import Guarded, guarded_cluster
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, AsyncSubscription, Limits, Message, Subscriber
from tidegate_cli.main import cli
from tidegate_embedded.nodes import RabbitNode, management_url
from tidegate_protocol.decisions import Containment, Flood, FloodingAccount, Quota, UntrueReports
from tidegate_protocol.messages import (
    ControlMessage,
    PublisherHello,
    PublisherReport,
    PublisherWelcome,
    Refusal,
    RefusalReason,
    SubscribeReply,
    SubscribeRequest,
    TopicCount,
    decode,
    encode,
)
from tidegate_protocol.names import CONTROL_EXCHANGE, HOM_KEY, PUBLISH_EXCHANGE
from tidegate_protocol.operations import Culprit, ExplainReply, OverviewReply

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUBSCRIPTIONS, PUBLISHERS, CONNECTIONS = 8, 5, 20
SHARE_PER_S = 25.0
FLOOD_FACTOR = 20.0
USUAL_PER_S = 20.0
LATE_SHARE_MAX = 0.01
OBSERVED_S = 20.0
NAMED_TIMEOUT_S = 90.0
DEADLINE_S = 1.0
TOPIC = "quake.alert"
CALM_TOPIC = "calm.report"
LIED_S_MAX = 1.0
"""What is believed of a round trip at most, and some noise; the lie is thirty seconds one way."""
QUEUE_BYTES = 64 << 20
LARGE_BYTES = 20_000
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
name = "crowd"
publish = true
quota = {{ messages_per_s = 25.0 }}

[[client]]
name = "rival"
publish = true

[[client]]
name = "sleeper"
subscribe = true

[[client]]
name = "hoard"
subscribe = true
quota = {{ messages_per_s = 25.0, subscriptions = 4 }}

[[client]]
name = "squatter"
publish = true
subscribe = true
quota = {{ subscriptions = 8, publishers = 5, connections = 20, queue_bytes = 67_108_864 }}

[[operator]]
name = "operator"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(node: RabbitNode, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    async with guarded_cluster(node, tmp_path_factory.mktemp("quotas"), LAYOUT) as cluster:
        yield cluster


class Asker:
    """Control messages of one account, as any AMQP client could send them."""

    def __init__(self, channel: aio_pika.abc.AbstractChannel, account: str) -> None:
        self._channel = channel
        self._account = account
        self._answers: dict[str, asyncio.Future[bytes]] = {}

    async def open(self) -> None:
        queue = await self._channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await queue.consume(self._answered, no_ack=True)

    async def _answered(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        self._answers.pop(message.correlation_id or "").set_result(message.body)

    async def say(self, message: ControlMessage) -> None:
        await self._publish(aio_pika.Message(encode(message), user_id=self._account))

    async def ask(self, message: ControlMessage) -> ControlMessage:
        request = str(len(self._answers)) + str(time.monotonic_ns())
        future = self._answers[request] = asyncio.get_running_loop().create_future()
        sent = aio_pika.Message(
            encode(message), user_id=self._account, reply_to="amq.rabbitmq.reply-to", correlation_id=request
        )
        await self._publish(sent)
        return decode(await asyncio.wait_for(future, 20.0))

    async def _publish(self, message: aio_pika.Message) -> None:
        exchange = await self._channel.get_exchange(CONTROL_EXCHANGE, ensure=False)
        await exchange.publish(message, HOM_KEY, mandatory=False)


@contextlib.asynccontextmanager
async def asker(guarded: Guarded, account: str) -> AsyncIterator[Asker]:
    async with guarded.channel(account) as channel:
        found = Asker(channel, account)
        await found.open()
        yield found


async def api(node: RabbitNode, path: str) -> object:
    async with httpx.AsyncClient(base_url=management_url(node), timeout=30, trust_env=False) as http:
        answer = await http.get(f"/api/{path}")
        assert answer.is_success, answer.text
        return answer.json()


async def told(*arguments: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, cli, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


async def overview(guarded: Guarded) -> OverviewReply:
    found = json.loads(await told("status", "--url", guarded.url("operator"), "--json"))
    return OverviewReply.model_validate(found[0] if isinstance(found, list) else found)


async def culprits(guarded: Guarded) -> dict[str, Culprit]:
    return {one.client.partition("~")[0]: one for one in (await overview(guarded)).culprits}


async def test_one_account_gets_its_quota_and_no_more_under_any_name(guarded: Guarded, node: RabbitNode) -> None:
    """Reproduction 6: twenty thousand subscriptions and fifty thousand publishers under invented names."""
    granted, refusals = 0, []
    async with asker(guarded, "squatter") as ask:
        for number in range(2 * SUBSCRIPTIONS):
            request = SubscribeRequest(
                subscriber=f"squatter-{number}", pattern="#", deadline_us=1_000_000, expires_s=30 * 24 * 3600
            )
            answer = await ask.ask(request)
            granted += isinstance(answer, SubscribeReply)
            refusals += [answer] if isinstance(answer, Refusal) else []
        assert (granted, len(refusals)) == (SUBSCRIPTIONS, SUBSCRIPTIONS)
        for refusal in refusals:
            assert refusal.reason is RefusalReason.LIMIT
            assert refusal.quota is not None
            assert (refusal.quota.account, refusal.quota.quota) == ("squatter", Quota.SUBSCRIPTIONS)
            assert (refusal.quota.used, refusal.quota.limit) == (SUBSCRIPTIONS, SUBSCRIPTIONS)
            assert "squatter" in refusal.message
            assert "raise subscriptions" in refusal.message
        answers = [await ask.ask(PublisherHello(publisher=f"squatter-{n}~1")) for n in range(2 * PUBLISHERS)]
        assert [isinstance(one, PublisherWelcome) for one in answers] == [True] * PUBLISHERS + [False] * PUBLISHERS
        again = await ask.ask(PublisherHello(publisher="squatter-0~1"))
        assert isinstance(again, PublisherWelcome), "those that are here stay"
    said = await told("status", "--url", guarded.url("operator"))
    assert "Account squatter uses 8 of 8 subscriptions" in " ".join(said.split()), said
    metrics = (await guarded.processes["head"].get("metrics")).text
    assert 'tidegate_quota_used_ratio{account="squatter",quota="subscriptions",tenant=""} 1.0' in metrics
    held = []
    for edge in ("edge-1", "edge-2"):
        rows = await api(node, f"queues/{edge}?columns=name,arguments")
        assert isinstance(rows, list)
        held += [row["arguments"]["x-max-length-bytes"] for row in rows if row["name"].startswith("out.squatter")]
    assert len(held) == SUBSCRIPTIONS
    assert sum(held) <= QUEUE_BYTES, "what may wait for all of them"
    async with contextlib.AsyncExitStack() as stack:
        refused = None
        try:
            for _ in range(CONNECTIONS + 1):
                connection = await aio_pika.connect(guarded.url("squatter"), timeout=10)
                await stack.enter_async_context(connection)
        except Exception as error:  # whatever the library makes of a connection that is closed while it opens
            refused = error
        assert refused is not None, "RabbitMQ itself bounds the connections of an account"
    async with AsyncSubscriber(guarded.url("siren"), name="siren-after") as other:
        await other.subscribe(TOPIC, deadline=DEADLINE_S, callback=lambda _: None)


def lie(publisher: str, messages: int, size: int) -> PublisherReport:
    counted = TopicCount(topic=TOPIC, messages=messages, bytes=messages * size)
    return PublisherReport(publisher=publisher, elapsed_us=1_000_000, topics=(counted,), round_trip_us=60_000_000)


async def lying(guarded: Guarded, publishing: bool) -> None:
    """Report for somebody else's topic, for ever: from the end of the world, and more than any line carries."""
    async with asker(guarded, "rival") as ask, guarded.channel("rival") as channel:
        exchange = await channel.get_exchange(PUBLISH_EXCHANGE, ensure=False)
        while True:
            await ask.say(PublisherHello(publisher="rival~1", topics=(TOPIC,), round_trip_us=60_000_000))
            await ask.say(lie("rival~1", 1_000_000, 1_000_000))
            if publishing:
                await exchange.publish(aio_pika.Message(b"mine"), "rival.topic", mandatory=False)
            await asyncio.sleep(0.5)


async def flooding(guarded: Guarded, per_s: float) -> None:
    """Publish at a rate on a plain connection, without a word; again when it was closed."""
    while True:
        with contextlib.suppress(Exception):  # closed, or not let in: it tries again, as such clients do
            async with guarded.channel("crowd") as channel:
                exchange = await channel.get_exchange(PUBLISH_EXCHANGE, ensure=False)
                begun, sent = time.monotonic(), 0
                while True:
                    while sent < (time.monotonic() - begun) * per_s:
                        await exchange.publish(aio_pika.Message(bytes(1_000)), "social.report", mandatory=False)
                        sent += 1
                    await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)


async def usual(publisher: AsyncPublisher, topic: str = TOPIC) -> None:
    due_s = time.monotonic()
    while True:
        await publisher.publish(topic, bytes(200))
        due_s = max(due_s + 1.0 / USUAL_PER_S, time.monotonic() - 1.0)
        await asyncio.sleep(max(due_s - time.monotonic(), 0.0))


@contextlib.asynccontextmanager
async def tasks(*works: Callable[[], object]) -> AsyncIterator[None]:
    running = [asyncio.ensure_future(work()) for work in works]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        ended = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended


async def left_for_waiting(guarded: Guarded, subscriber: str) -> dict[str, float]:
    """What of the deadlines of a subscriber is left for waiting, by pattern."""
    said = await told("explain", subscriber, "--url", guarded.url("operator"), "--json")
    return {queue.pattern: queue.allowed_wait_s for queue in ExplainReply.model_validate_json(said).queues}


@pytest.mark.parametrize("publishing", [False, True], ids=["silent", "publishing"])
async def test_reports_about_topics_of_others_change_nothing(guarded: Guarded, publishing: bool) -> None:
    """Reproduction 7: a made-up round trip and size. Compared with a topic that nobody lies about: both have the same
    publisher and the same subscriber, so that a busy machine counts for both.
    """
    name = f"siren-lied-to-{publishing}".lower()
    async with contextlib.AsyncExitStack() as stack:
        subscriber = await stack.enter_async_context(AsyncSubscriber(guarded.url("siren"), name=name))
        subscriptions = [
            await subscriber.subscribe(topic, deadline=30.0, callback=lambda _: None) for topic in (TOPIC, CALM_TOPIC)
        ]
        publisher = await stack.enter_async_context(AsyncPublisher(guarded.url("buoy"), name="buoy"))
        await stack.enter_async_context(
            tasks(lambda: usual(publisher), lambda: usual(publisher, CALM_TOPIC), lambda: lying(guarded, publishing))
        )

        async def named() -> bool:
            return "rival" in await culprits(guarded)

        await eventually(named, "the liar is named", NAMED_TIMEOUT_S)
        record = (await culprits(guarded))["rival"].record
        assert isinstance(record, UntrueReports), record
        assert record.account == "rival"
        before = [one.statistics().received for one in subscriptions]
        await eventually(
            lambda: all(
                one.statistics().received > then + 100 for one, then in zip(subscriptions, before, strict=True)
            ),
            "messages arrive, and rates and ways are known",
        )
        left = await left_for_waiting(guarded, name)
        assert left[TOPIC] >= left[CALM_TOPIC] - LIED_S_MAX, "a lie takes nothing off a deadline"
        assert "buoy" not in await culprits(guarded), "who tells the truth is not named"


@pytest.mark.parametrize("kind", [AsyncSubscriber, Subscriber])
async def test_large_bodies_narrow_the_window_of_a_subscription(
    guarded: Guarded, node: RabbitNode, kind: type[AsyncSubscriber] | type[Subscriber]
) -> None:
    """What is under way is bounded in bytes as well; everything arrives once."""
    limits = Limits(prefetch=400, prefetch_bytes=LARGE_BYTES * 10)
    name = f"siren-{kind.__name__.lower()}"
    seen: list[bytes] = []

    def take(message: Message) -> None:
        seen.append(message.body[:8])

    async def prefetch() -> list[int]:
        rows = [row for edge in ("edge-1", "edge-2") for row in await api(node, f"consumers/{edge}")]  # type: ignore[attr-defined]
        return [row["prefetch_count"] for row in rows if row["queue"]["name"].startswith(f"out.{name}.")]

    async with contextlib.AsyncExitStack() as stack:
        if kind is AsyncSubscriber:
            opened = await stack.enter_async_context(AsyncSubscriber(guarded.url("siren"), name=name, limits=limits))
            await opened.subscribe("large.#", deadline=60.0, callback=take)
        else:
            blocking = Subscriber(guarded.url("siren"), name=name, limits=limits)
            await asyncio.to_thread(blocking.open)
            stack.push_async_callback(asyncio.to_thread, blocking.close)
            await asyncio.to_thread(blocking.subscribe, "large.#", 60.0, callback=take)
        publisher = await stack.enter_async_context(AsyncPublisher(guarded.url("buoy"), name="buoy"))
        bodies = [b"%08d" % number for number in range(100)]
        for body in bodies:
            await publisher.publish("large.topic", body.ljust(LARGE_BYTES))
        await publisher.flush()
        await eventually(lambda: len(seen) >= len(bodies), "all arrive")

        async def narrowed() -> bool:
            found = await prefetch()
            return bool(found) and max(found) <= 20

        await eventually(narrowed, "the window is narrow")
        assert sorted(seen) == bodies


async def memory_used(node: RabbitNode) -> tuple[float, float]:
    (found,) = await api(node, "nodes?columns=mem_used,mem_limit")  # type: ignore[misc]
    return found["mem_used"], found["mem_limit"]


@pytest.fixture
def slow_statistics(backend: str, request: pytest.FixtureRequest) -> None:
    """A known flaw, not a promise: RabbitMQ 3.10 on a busy machine tells no rates of accounts for minutes, and a flood
    on plain AMQP is then neither noticed nor ended.
    """
    if backend == "native":
        request.applymarker(pytest.mark.xfail(reason="RabbitMQ 3.10 tells no rates of accounts while busy"))


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("slow_statistics")
async def test_four_culprits_at_once_harm_nobody_and_are_named(guarded: Guarded, node: RabbitNode) -> None:
    """A silent flooder at twenty times its share, a liar, a slow reader, a subscriber to everything."""
    async with contextlib.AsyncExitStack() as stack:
        subscriptions: list[AsyncSubscription] = []
        for number in range(3):
            one = await stack.enter_async_context(AsyncSubscriber(guarded.url("siren"), name=f"siren-{number}"))
            subscriptions.append(await one.subscribe(TOPIC, deadline=DEADLINE_S, callback=lambda _: None))
        sleeper = await stack.enter_async_context(AsyncSubscriber(guarded.url("sleeper"), name="sleeper"))

        async def doze(_: Message) -> None:
            await asyncio.sleep(2.0)

        await sleeper.subscribe(TOPIC, deadline=DEADLINE_S, callback=doze, prefetch=5)
        hoard = await stack.enter_async_context(AsyncSubscriber(guarded.url("hoard"), name="hoard"))
        await hoard.subscribe("#", deadline=DEADLINE_S, callback=lambda _: None)
        publisher = await stack.enter_async_context(AsyncPublisher(guarded.url("buoy"), name="buoy"))
        await stack.enter_async_context(
            tasks(
                lambda: usual(publisher),
                lambda: flooding(guarded, FLOOD_FACTOR * SHARE_PER_S),
                lambda: lying(guarded, True),
            )
        )
        expected = {"crowd", "rival", "sleeper", "hoard"}
        named: set[str] = set()

        async def all_named() -> bool:
            named.update((await culprits(guarded)).keys())
            return expected <= named

        began = [one.statistics() for one in subscriptions]
        await eventually(all_named, "status names all four", NAMED_TIMEOUT_S)
        said = await told("status", "--url", guarded.url("operator"))
        assert all(name in said for name in expected), said
        flood = (await culprits(guarded))["crowd"].record
        assert isinstance(flood, FloodingAccount), flood
        assert (flood.account, flood.flood, flood.outcome) == ("crowd", Flood.MESSAGES, Containment.KEPT_OUT)
        assert flood.value_per_s > 2 * SHARE_PER_S
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the library makes of a connection not let in
            await aio_pika.connect(guarded.url("crowd"), timeout=5)
        before = await memory_used(node)
        await asyncio.sleep(OBSERVED_S)
        used, limit = await memory_used(node)
        assert used < min(limit, before[0] + (200 << 20)), "RabbitMQ's memory is bounded"
        now = [one.statistics() for one in subscriptions]
        came = sum(after.received - then.received for then, after in zip(began, now, strict=True))
        late = sum(after.late - then.late for then, after in zip(began, now, strict=True))
        assert came >= 0.8 * USUAL_PER_S * OBSERVED_S * len(subscriptions)
        assert late <= LATE_SHARE_MAX * came, f"late: {late} of {came}"
        assert "crowd" in await told("explain", "crowd", "--url", guarded.url("operator"))


@pytest.mark.usefixtures("slow_statistics")
async def test_an_account_that_was_kept_out_comes_back_with_the_limit_it_had(
    guarded: Guarded, node: RabbitNode
) -> None:
    """Also where the head ends in between: the lease is kept by RabbitMQ."""

    async def limits() -> dict[str, int]:
        rows = await api(node, f"user-limits/{quote('crowd')}")
        assert isinstance(rows, list)
        return dict(rows[0]["value"]) if rows else {}

    async def let_in() -> bool:
        return (await limits()).get("max-connections", 0) > 0

    assert (await limits())["max-connections"] == 0, "the test before has left it kept out"
    head = guarded.processes["head"]
    await head.kill()
    await head.start()
    await eventually(let_in, "the lease is over", NAMED_TIMEOUT_S)
    connection = await aio_pika.connect(guarded.url("crowd"), timeout=10)
    await connection.close()
    assert (await limits())["max-connections"] == 2_000
