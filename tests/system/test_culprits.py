"""One subscriber that reads too slowly, one publisher that sends twenty times its rate: nobody else is to feel it.

Both are named, by `tidegate status` and by `tidegate explain`, with the decision that found them; what waits for the
slow one is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, AsyncSubscription, Message
from tidegate_brokers.settings.balancing import BalancingOptions
from tidegate_cli.main import cli
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import BrokerSpec, ClusterSpec, Topology
from tidegate_protocol.decisions import Decision, Flood, FloodingPublisher, SlownessOutcome, SlowSubscriber
from tidegate_protocol.operations import ExplainReply

from .arena import Launch, api

CLUSTER = "coast"
USUAL_PER_S = 10.0
LIMIT_PER_S = 30.0
BACKLOG_MAX = 200
OTHERS = 4
LATE_SHARE_MAX = 0.01
NAMED_TIMEOUT_S = 120.0
OBSERVED_S = {"native": 40.0, "container": 15.0}
"""Once longer than a publisher is contained: each such observation has a flood in it that begins anew."""
OBSERVATIONS_MAX = 3
"""A machine that stands still for seconds makes everybody late, once; culprits would do it every time."""


def topology() -> Topology:
    edges = tuple(BrokerSpec(name=name, uplink_bytes_per_s=400_000.0) for name in ("north", "south"))
    limits = BalancingOptions(publisher_messages_per_s_max=LIMIT_PER_S, slow_subscriber_messages_max=BACKLOG_MAX)
    return Topology(cluster=(ClusterSpec(name=CLUSTER, head=BrokerSpec(name="harbour"), edge=edges),), balancing=limits)


class Feed:
    """A publisher whose rate can be changed while it publishes."""

    def __init__(self, publisher: AsyncPublisher, topic: str) -> None:
        self._publisher = publisher
        self._topic = topic
        self.rate_per_s = USUAL_PER_S

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            await self._publisher.publish(self._topic, bytes(200))
            # One that was held back does not catch up afterwards.
            due_s = max(due_s + 1.0 / self.rate_per_s, loop.time() - 1.0)
            await asyncio.sleep(max(due_s - loop.time(), 0.0))


@contextlib.asynccontextmanager
async def publishing(*feeds: Feed) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(feed.run()) for feed in feeds]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended


async def told(*arguments: str) -> str:
    """What the command prints."""
    result = await asyncio.to_thread(CliRunner().invoke, cli, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


async def blamed(client: str, url: str) -> Decision:
    """What `tidegate explain` blames a client for, as a record, because its sentences are free to change."""
    reply = ExplainReply.model_validate_json(await told("explain", client, "--url", url, "--json"))
    (culprit,) = [one for one in reply.culprits if one.client == reply.about]
    return culprit.record


async def waiting_for(cluster: EmbeddedCluster, subscriber: str) -> int:
    """How many messages are ready for a subscriber, wherever its queue is."""
    found = 0
    for edge, broker in cluster.brokers.items():
        if broker.kind == "edge":
            queues = await api(broker, f"queues/{quote(edge)}?columns=name,messages_ready")
            found += sum(item["messages_ready"] for item in queues if item["name"].startswith(f"out.{subscriber}."))
    return found


@pytest.mark.timeout(400)
async def test_a_slow_subscriber_and_a_flooding_publisher_harm_nobody_else(backend: str, launch: Launch) -> None:
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(launch(topology(), compact=True))
        url = cluster.url(CLUSTER)
        subscriptions: list[AsyncSubscription] = []
        for number in range(OTHERS):
            subscriber = await stack.enter_async_context(AsyncSubscriber(url, name=f"siren-{number}"))
            subscriptions.append(await subscriber.subscribe("quake.alert", deadline=1.0, callback=lambda _: None))
        desk = await stack.enter_async_context(AsyncSubscriber(url, name="desk"))
        await desk.subscribe("social.report", deadline=10.0, callback=lambda _: None)
        sleeper = await stack.enter_async_context(AsyncSubscriber(url, name="sleeper"))

        async def doze(_: Message) -> None:
            await asyncio.sleep(1.0)

        await sleeper.subscribe("quake.alert", deadline=1.0, callback=doze, prefetch=10)
        usual = Feed(await stack.enter_async_context(AsyncPublisher(url, name="seismometer")), "quake.alert")
        flooding = Feed(await stack.enter_async_context(AsyncPublisher(url, name="crowd")), "social.report")
        await stack.enter_async_context(publishing(usual, flooding))
        usually = 3.0 * USUAL_PER_S
        await eventually(lambda: all(one.statistics().received > usually for one in subscriptions), "all are served")
        flooding.rate_per_s *= 20.0

        async def both_named() -> bool:
            said = await told("status", "--url", url)
            return "sleeper" in said and "crowd" in said

        await eventually(both_named, "status names both", NAMED_TIMEOUT_S)
        slow, flood = await blamed("sleeper", url), await blamed("crowd", url)
        assert isinstance(slow, SlowSubscriber), slow
        assert (slow.subscriber, slow.pattern, slow.outcome) == ("sleeper", "quake.alert", SlownessOutcome.SLOW)
        assert isinstance(flood, FloodingPublisher), flood
        assert (flood.reason, flood.limit_per_s, flood.topics) == (Flood.MESSAGES, LIMIT_PER_S, ("social.report",))
        assert flood.value_per_s > LIMIT_PER_S
        for client in ("sleeper", "crowd"):
            assert client in await told("explain", client, "--url", url)
        for observation in range(1, OBSERVATIONS_MAX + 1):
            before = [one.statistics() for one in subscriptions]
            await asyncio.sleep(OBSERVED_S[backend])
            assert await waiting_for(cluster, "sleeper") <= BACKLOG_MAX
            now = [one.statistics() for one in subscriptions]
            came = [after.received - then.received for then, after in zip(before, now, strict=True)]
            late = [after.late - then.late for then, after in zip(before, now, strict=True)]
            assert min(came) >= 0.8 * USUAL_PER_S * OBSERVED_S[backend], "the others are served as before"
            kept = all(few <= LATE_SHARE_MAX * many for few, many in zip(late, came, strict=True))
            assert kept or observation < OBSERVATIONS_MAX, f"late: {late} of {came}"
            if kept:
                break
