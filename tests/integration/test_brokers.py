"""Head and edge processes on a real RabbitMQ: allocation, adoption, repair, routes, bad starts."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import aio_pika
import pytest
import pytest_asyncio
from aiormq.abc import AbstractChannel

from tests.support.brokers import Brokers, Process, RawClient, bodies, start_all
from tests.support.hostile import ACCEPTED, LEVELS, copied_to, header, nested, send, with_headers
from tests.support.waiting import eventually
from tidegate_agents.machine import (
    ActionFailed,
    BindMarker,
    ChangeRoutes,
    DeclareOutput,
    DeleteOutput,
    DropLink,
    EnsureLink,
    LinkKind,
    UnbindMarker,
)
from tidegate_brokers.access.admission import DETOURS
from tidegate_brokers.plane.edge import EdgePlane
from tidegate_brokers.plane.fences import FenceWatch
from tidegate_brokers.plane.head import EMPTY_CHECKS, HeadPlane
from tidegate_brokers.rabbit.connection import open_connection
from tidegate_brokers.rabbit.management import Management, management
from tidegate_brokers.settings.urls import ServerUrl
from tidegate_embedded.nodes import (
    RabbitNode,
    create_vhost,
    management_url,
    rabbit_nodes,
)
from tidegate_protocol.messages import (
    EdgeGoodbye,
    Refusal,
    RefusalReason,
    SubscribeReply,
    SubscribeRequest,
    Subscription,
    UnsubscribeReply,
    UnsubscribeRequest,
    encode,
)
from tidegate_protocol.names import CONTROL_EXCHANGE, HOM_KEY, PUBLISH_EXCHANGE, ingress_exchange

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONCE = pytest.mark.parametrize("backend", ["native"], indirect=True)
"""For what a process does by itself, whichever RabbitMQ it has."""


@pytest_asyncio.fixture(loop_scope="module")
async def brokers(node: RabbitNode, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Brokers]:
    found = Brokers(node, tmp_path, request.node.originalname.removeprefix("test_")[:40])
    try:
        yield found
    finally:
        await found.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def standing(node: RabbitNode, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Brokers]:
    """A head and the edge `one`, which run as long as there are tests that use them."""
    found = Brokers(node, tmp_path_factory.mktemp("standing"), "standing")
    try:
        await cluster(found, edges=("one",))
        yield found
    finally:
        await found.close()


@pytest_asyncio.fixture(loop_scope="module")
async def small(standing: Brokers) -> AsyncIterator[Brokers]:
    """The standing cluster; whoever a test has subscribed leaves it afterwards."""
    yield standing
    async with standing.client("head") as client:

        async def empty() -> bool:
            for queue in await outputs(standing, "one"):
                _, subscriber, number = queue.split(".")
                await client.ask(UnsubscribeRequest(subscriber=subscriber, number=int(number)))
            return await known(client, 0) and not await outputs(standing, "one")

        await eventually(empty, "nobody is subscribed")


async def outputs(brokers: Brokers, edge: str) -> set[str]:
    """The queues of subscriptions on an edge."""
    queues = {queue["name"] for queue in await brokers.api(f"queues/{brokers.vhost(edge)}")}
    return {name for name in queues if name.startswith("out.")}


async def cluster(brokers: Brokers, head: str = "head", edges: tuple[str, ...] = ("one", "two")) -> None:
    processes = [await brokers.head(head), *[await brokers.edge(name, head) for name in edges]]
    await start_all(processes)


async def subscribe(client: RawClient, subscriber: str, pattern: str) -> SubscribeReply:
    request = SubscribeRequest(subscriber=subscriber, pattern=pattern, deadline_us=500_000)
    replies: list[object] = []

    async def granted() -> bool:
        replies.append(await client.ask(request))
        return isinstance(replies[-1], SubscribeReply) or not _worth_asking_again(replies[-1])

    await eventually(granted, f"{subscriber} is granted {pattern}; so far {replies}")
    reply = replies[-1]
    assert isinstance(reply, SubscribeReply), reply
    return reply


def _worth_asking_again(reply: object) -> bool:
    return isinstance(reply, Refusal) and reply.retry_after_s is not None


async def test_a_subscription_gets_exactly_what_it_asked_for(brokers: Brokers) -> None:
    await cluster(brokers)
    async with brokers.client("head") as client:
        reply = await subscribe(client, "siren", "quake.*")
        assert reply.queue == "out.siren.0"
        assert "@" not in reply.url
        assert await subscribe(client, "siren", "quake.*") == reply, "asking again gives the same answer"
        async with brokers.client(reply.edge) as edge:
            queue = await edge.channel.get_queue(reply.queue)
            for number in range(20):
                await client.publish("quake.alert", f"quake {number}")
                await client.publish("tide.gauge", f"tide {number}")
            await client.publish("quake.last", "last")
            assert await bodies(queue, "last") == [f"quake {n}" for n in range(20)] + ["last"]


async def test_the_last_unsubscription_removes_queue_and_route(small: Brokers) -> None:
    async with small.client("head") as client:
        await subscribe(client, "a", "x.#")
        await subscribe(client, "b", "x.#")
        assert await small.routes("head", "one") == {(PUBLISH_EXCHANGE, "x.#")}
        for subscriber in ("a", "b"):
            reply = await client.ask(UnsubscribeRequest(subscriber=subscriber, number=0))
            assert isinstance(reply, UnsubscribeReply), reply
        await eventually(lambda: no_routes(small, "head", "one"), "the route is gone")
        assert not await outputs(small, "one")


async def no_routes(brokers: Brokers, head: str, target: str) -> bool:
    return not await brokers.routes(head, target)


async def test_malformed_control_messages_are_counted_answered_and_harm_nobody(small: Brokers) -> None:
    head = small.processes["head"]
    async with small.client("head") as client:
        before = {reason: await malformed(head, reason) for reason in ("not-json", "unknown-kind", "invalid-field")}
        for body in (
            b"\xff\x00 no json",
            b'{"v":1,"kind":"no-such-kind"}',
            b'{"v":1,"kind":"subscribe-request"}',
        ):
            answer = await client.ask_raw(body)
            assert isinstance(answer, Refusal)
            assert answer.reason is RefusalReason.INVALID
        for reason, count in before.items():
            await eventually(partial(has_counted, head, reason, count + 1), f"{reason} is counted once")
        refusal = await client.ask_raw(encode(EdgeGoodbye(edge="one")))
        assert isinstance(refusal, Refusal), "what is not for clients to send is not taken from them"
        await eventually(partial(has_counted, head, "kind-not-allowed", 1), "it is counted")
        victim = await client.channel.declare_queue("victim", durable=True)
        exchange = await client.channel.get_exchange(CONTROL_EXCHANGE, ensure=False)
        request = SubscribeRequest(subscriber="a", pattern="x", deadline_us=1)
        await exchange.publish(aio_pika.Message(encode(request), reply_to="victim"), HOM_KEY)
        await eventually(lambda: malformed(head, "bad-reply-to"), "a reply address that is no direct reply-to counts")
        assert await victim.get(fail=False) is None
        assert (await client.status()).edges[0].alive


async def test_a_control_message_with_unreadable_properties_is_counted_and_cuts_nothing(small: Brokers) -> None:
    head = small.processes["head"]
    reconnects = 'tidegate_connection_reopened_total{connection="control"}'
    before = await head.metric(reconnects)

    async def all_malformed() -> float:
        """By whatever reason: what has come by a detour, or may have, is dropped before its body is read."""
        return sum([await malformed(head, reason) for reason in ("not-json", *sorted(set(DETOURS.values())))])

    counted = await all_malformed()
    url, key = small.url("head"), HOM_KEY.encode()
    for properties in ACCEPTED.values():
        assert await asyncio.to_thread(send, url, CONTROL_EXCHANGE, key, properties, b"no json")
    # The key that such a message is delivered with is the one it was published with.
    copied = with_headers(copied_to(key), header(b"a", nested(LEVELS)))
    assert await asyncio.to_thread(send, url, CONTROL_EXCHANGE, b"\xff\xfe", copied, b"no json")

    async def seen() -> bool:
        return await all_malformed() == counted + len(ACCEPTED) + 1

    await eventually(seen, "every message is counted", 30)
    assert await head.metric(reconnects) == before
    async with small.client("head") as client:
        assert (await client.status()).edges[0].alive


async def has_counted(process: Process, reason: str, count: float) -> bool:
    """A text of /metrics may be a moment old."""
    return await malformed(process, reason) == count


async def malformed(process: Process, reason: str) -> float:
    return await process.metric(f'tidegate_control_malformed_messages_total{{reason="{reason}"}}')


@ONCE
async def test_a_head_that_is_ready_takes_requests(brokers: Brokers) -> None:
    head = await brokers.head("head")
    async with brokers.client("head") as client:
        for _ in range(3):
            await head.start(ready=False)
            await eventually(lambda: '"port"' in head.words(), "it answers HTTP")
            while not await head.is_ready():
                pass  # without a pause: between being set up and taking requests there are only milliseconds
            assert (await client.status()).head == "head"
            await head.kill()


async def test_a_killed_head_adopts_its_routes(brokers: Brokers) -> None:
    await cluster(brokers)
    head = brokers.processes["head"]
    async with brokers.client("head") as client:
        reply = await subscribe(client, "siren", "quake.*")
        async with brokers.client(reply.edge) as edge:
            queue = await edge.channel.get_queue(reply.queue)
            await head.kill()
            await client.publish("quake.alert", "without a head")
            assert await bodies(queue, "without a head") == ["without a head"]
            await head.start()
            assert await subscribe(client, "siren", "quake.*") == reply
            await client.publish("quake.alert", "with it again")
            assert await bodies(queue, "with it again") == ["with it again"]
        await eventually(lambda: known(client, 1), "the head has read its edges' registries")
        assert (PUBLISH_EXCHANGE, "quake.*") in await brokers.routes("head", reply.edge)
        assert isinstance(await client.ask(UnsubscribeRequest(subscriber="siren", number=0)), UnsubscribeReply)
        await eventually(lambda: no_routes(brokers, "head", reply.edge), "an adopted route can be removed")


async def known(client: RawClient, subscriptions: int) -> bool:
    return sum(edge.subscriptions for edge in (await client.status()).edges) == subscriptions


async def test_a_killed_edge_adopts_its_subscriptions(small: Brokers) -> None:
    edge = small.processes["one"]
    async with small.client("head") as client:
        reply = await subscribe(client, "siren", "quake.*")
        await edge.kill()
        await edge.start()
        assert await edge.metric("tidegate_subscriptions_count") == 1
        assert await subscribe(client, "siren", "quake.*") == reply


async def test_an_output_queue_deleted_by_somebody_is_given_up(small: Brokers) -> None:
    async with small.client("head") as client, small.client("one") as edge:
        reply = await subscribe(client, "siren", "quake.*")
        await edge.channel.queue_delete(reply.queue)
        await eventually(lambda: known(client, 0), "the head knows")
        await eventually(lambda: no_routes(small, "head", "one"), "nothing is forwarded for it")


@pytest.mark.parametrize("wiped", ["head", "one"])
async def test_a_wiped_rabbitmq_is_rebuilt(brokers: Brokers, wiped: str) -> None:
    brokers.prefix = f"wiped-{wiped}"
    await cluster(brokers, edges=("one",))
    async with brokers.client("head") as client:
        reply = await subscribe(client, "siren", "quake.*")
    await brokers.wipe(wiped)
    await delivers_again(brokers, reply)


async def test_a_restarted_rabbitmq_is_taken_up_again(brokers: Brokers, node: RabbitNode) -> None:
    await cluster(brokers)
    async with brokers.client("head") as client:
        reply = await subscribe(client, "siren", "quake.*")
    await node.kill()
    await node.start()
    await delivers_again(brokers, reply)
    assert await brokers.processes["head"].metric('tidegate_connection_reopened_total{connection="data-plane"}') == 1


async def delivers_again(brokers: Brokers, reply: SubscribeReply) -> None:
    """All are ready and a publication comes through. It is repeated: a RabbitMQ that is being set up drops some."""
    for name, process in brokers.processes.items():
        await eventually(process.is_ready, f"{name} is ready again:\n{process.words()}", 120)
    async with brokers.client("head") as client:

        async def arrives() -> bool:
            await client.publish("quake.alert", "again")
            with suppress(aio_pika.exceptions.ChannelNotFoundEntity):  # its process may not have noticed yet
                async with brokers.client(reply.edge) as edge:
                    return await (await edge.channel.get_queue(reply.queue)).get(fail=False, no_ack=True) is not None
            return False

        await eventually(arrives, "messages flow again", 120)
        assert await subscribe(client, "siren", "quake.*") == reply


async def test_between_heads_only_what_is_wanted_crosses_and_nothing_echoes(brokers: Brokers) -> None:
    west, east = await brokers.head("west", ("east",)), await brokers.head("east", ("west",))
    await start_all((west, east, await brokers.edge("we", "west"), await brokers.edge("ee", "east")))
    async with brokers.client("west") as in_west, brokers.client("east") as in_east:
        seen_by_east = await in_east.tap(ingress_exchange("west"))
        seen_by_west = await in_west.tap(ingress_exchange("east"))
        reply = await subscribe(in_east, "siren", "quake.#")
        assert reply.awaiting == ()
        await subscribe(in_west, "log", "quake.#")
        async with brokers.client("ee") as edge:
            queue = await edge.channel.get_queue(reply.queue)
            for number in range(10):
                await in_west.publish("tide.gauge", "in vain")
                await in_west.publish("quake.alert", f"{number}")
            await in_west.publish("quake.alert", "last")
            wanted = [str(number) for number in range(10)] + ["last"]
            assert await bodies(queue, "last") == wanted
        assert await bodies(seen_by_east, "last") == wanted
        await in_east.publish("tide.gauge", "in vain")
        await in_east.publish("quake.alert", "from the east")
        assert await bodies(seen_by_west, "from the east") == ["from the east"], "nothing came back"


async def test_a_changed_deadline_replaces_the_old_one_in_rabbitmq(small: Brokers) -> None:
    async with small.client("head") as client:
        before = await subscribe(client, "siren", "quake.*")
        request = SubscribeRequest(subscriber="siren", pattern="quake.*", deadline_us=7, expires_s=90)
        after = await client.ask(request)
        assert isinstance(after, SubscribeReply), after
        assert (after.queue, after.subscription.deadline_us) == (before.queue, 7)
        found = await small.api(f"exchanges/{small.vhost('one')}/tidegate.deliver/bindings/source")
        assert [b["arguments"] for b in found] == [{"tidegate-deadline-us": 7, "tidegate-expires-s": 90}]


async def test_a_marker_for_a_queue_that_was_removed_disturbs_nothing_else(brokers: Brokers) -> None:
    await create_vhost(brokers.node, brokers.vhost("edge"))
    url = ServerUrl.parse(brokers.url("edge"))
    plane = EdgePlane(1 << 20)
    connection = await open_connection(url, "test")
    async with management(management_address(brokers), url.vhost) as api:
        channel = await connection.channel(publisher_confirms=False)
        await plane.assert_all(channel, api)
        subscription = Subscription(subscriber="siren", number=0, pattern="quake.*", deadline_us=1, expires_s=60)
        for action in (DeclareOutput(subscription), BindMarker("siren", 0, "tidegate.marker.m1.*")):
            assert not isinstance(await plane.perform(channel, api, action), ActionFailed)
        await plane.perform(channel, api, DeleteOutput(subscription))
        late = await plane.perform(channel, api, BindMarker("siren", 0, "tidegate.marker.m2.*"))
        assert isinstance(late, ActionFailed), late
        await plane.perform(channel, api, UnbindMarker("siren", 0, "tidegate.marker.m1.*"))
        assert not channel.is_closed
    await connection.close()


async def test_a_dropped_link_goes_once_it_is_empty(brokers: Brokers) -> None:
    await create_vhost(brokers.node, brokers.vhost("head"))
    url = ServerUrl.parse(brokers.url("head"))
    plane = HeadPlane("head", url, frozenset({"south"}), 1 << 20, 10, FenceWatch(lambda key: None))
    connection = await open_connection(url, "test")
    async with brokers.client("head") as client, management(management_address(brokers), url.vhost) as api:
        channel = await connection.channel(publisher_confirms=False)
        await plane.assert_all(channel, api)
        for action in (
            EnsureLink("edge", LinkKind.EDGE, "amqp://127.0.0.1:1"),
            ChangeRoutes(1, "edge", add=("a.#", "b")),
            ChangeRoutes(2, "edge", remove=("b",)),
        ):
            await plane.perform(channel, api, action)
        assert await brokers.routes("head", "edge") == {
            (PUBLISH_EXCHANGE, "a.#"),
            (ingress_exchange("south"), "a.#"),
        }
        await client.publish("a.b", "still to be forwarded")
        await eventually(lambda: waiting(plane, channel, api), "RabbitMQ's statistics show the message")
        await plane.perform(channel, api, DropLink("edge"))
        assert await no_routes(brokers, "head", "edge")
        for _ in range(EMPTY_CHECKS + 1):
            await plane.watch(channel, api)
        queue = await client.channel.get_queue("link.edge")
        assert "link.edge" in await api.shovels(), "what waits on a link is not thrown away"
        await api.delete_shovel("link.edge")
        await queue.purge()

        async def gone() -> bool:
            await plane.watch(channel, api)
            return not [name async for name in api.queues("link.")]

        await eventually(gone, "the empty link is removed")
        assert await api.shovels() == {}
    await connection.close()


async def waiting(plane: HeadPlane, channel: AbstractChannel, api: Management) -> bool:
    return (await plane.watch(channel, api))["edge"].waiting == 1


def management_address(brokers: Brokers) -> ServerUrl:
    return ServerUrl.parse(management_url(brokers.node))


async def test_a_user_needs_no_more_rights_than_documented(brokers: Brokers) -> None:
    head, edge = await brokers.head("head"), await brokers.edge("one", "head")
    await brokers.add_user("modest", "pass-word", tags="monitoring,policymaker", vhosts=("head", "one"))
    for process in (head, edge):
        text = process.file.read_text()
        credentials = f"{brokers.node.user}:{brokers.node.password}@"
        process.file.write_text(text.replace(credentials, "modest:pass-word@"))
    await start_all((head, edge))
    async with brokers.client("head") as client:
        reply = await subscribe(client, "siren", "quake.*")
        async with brokers.client("one") as subscriber:
            queue = await subscriber.channel.get_queue(reply.queue)
            await client.publish("quake.alert", "hello")
            assert await bodies(queue, "hello") == ["hello"]


@ONCE
async def test_sigterm_says_goodbye_and_exits_zero(brokers: Brokers) -> None:
    await cluster(brokers, edges=("one",))
    head, edge = brokers.processes["head"], brokers.processes["one"]
    async with brokers.client("head") as client:
        assert (await client.status()).edges[0].alive
        assert await edge.terminate() == 0, edge.words()
        assert not (await client.status()).edges[0].alive
    assert await head.terminate() == 0, head.words()
    assert "Traceback" not in head.words() + edge.words()


# Starts that fail: one clear line, a named exit code, no traceback


async def fails(process: Process, code: int, *words: str) -> None:
    await process.start(ready=False)
    assert await process.ended() == code, process.words()
    last = process.words().strip().splitlines()[-1]
    assert last.startswith(f"tidegate {process.role}: "), process.words()
    for word in words:
        assert word in last
    assert "Traceback" not in process.words()


async def test_a_second_head_of_the_same_name_does_not_start(brokers: Brokers) -> None:
    await cluster(brokers, edges=())
    second = await brokers.head("head", startup_timeout_s=2)
    await fails(second, os.EX_UNAVAILABLE, "another head process named head runs", "stop it")


async def test_a_wrong_password_is_named(brokers: Brokers) -> None:
    node = brokers.node
    url = f"amqp://{node.user}:not-it@{node.host}:{node.amqp_port}/{brokers.vhost('head')}"
    await fails(await brokers.head("head", url=url), os.EX_NOPERM, "password is wrong")
    wrong = f"http://{node.user}:not-it@{node.host}:{node.management_port}"
    process = await brokers.head("head", management_url=wrong)
    await fails(process, os.EX_NOPERM, "password is wrong")
    assert "not-it" not in process.words()


@ONCE
async def test_a_refused_connection_is_named(brokers: Brokers) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        head = await brokers.head("head", management_url=f"http://127.0.0.1:{port}", startup_timeout_s=1)
        await fails(head, os.EX_UNAVAILABLE, "can't be reached", "check management_url")
        head = await brokers.head("head", url=f"amqp://127.0.0.1:{port}/{brokers.vhost('head')}", startup_timeout_s=1)
        await fails(head, os.EX_UNAVAILABLE, "check host and port")


async def test_a_missing_virtual_host_is_named(brokers: Brokers) -> None:
    url = brokers.url("nowhere")
    await fails(await brokers.head("head", url=url), os.EX_NOPERM, "no virtual host", "rabbitmqctl add_vhost")


@ONCE
async def test_a_taken_port_is_named(brokers: Brokers) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        await fails(await brokers.head("head", http_port=port), os.EX_CONFIG, f"127.0.0.1:{port}", "http_port")


async def test_a_missing_plugin_is_named(tmp_path: Path) -> None:
    async with rabbit_nodes(["bare"], plugins=("rabbitmq_management", "rabbitmq_prometheus")) as nodes:
        brokers = Brokers(nodes["bare"], tmp_path, "plugin")
        try:
            await fails(await brokers.head("head"), os.EX_CONFIG, "rabbitmq-plugins enable rabbitmq_shovel")
        finally:
            await brokers.close()
