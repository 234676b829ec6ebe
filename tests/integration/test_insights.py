"""What analytics has learned, published to a running cluster: used, shown, and refused where it is not right."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aio_pika
import httpx
import pyarrow
from pyarrow import parquet

from tests.support.waiting import eventually
from tidegate import AsyncSubscriber, AsyncSubscription, Message, Refused
from tidegate._engine.asking import Asking
from tidegate_cli.exit_codes import ExitCode
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import Topology
from tidegate_protocol.insight import CorrelatedPair, Insight, InsightReply
from tidegate_protocol.names import CONTROL_EXCHANGE, OPERATOR_KEY
from tidegate_protocol.operations import OverviewReply, OverviewRequest

DEADLINE_S = 30.0
HOUR_US = 3_600_000_000


async def tidegate(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The command as an operator runs it."""
    line = [sys.executable, "-m", "tidegate_cli", *arguments, "--json"]
    process = await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE)
    written, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(written)


def write_tables(folder: Path, cluster: str, edge: str) -> None:
    """As `tidegate analytics run correlation` and `run rates` would have written them."""
    pair = {"cluster": cluster, "topic_a": "flood", "topic_b": "rain", "coefficient": 0.97}
    served = {"cluster": cluster, "broker": edge, "served_bytes_per_s": 5e6, "busy_samples": 99}
    for name, row in (("correlation", pair), ("service", served)):
        (folder / name).mkdir()
        parquet.write_table(pyarrow.Table.from_pylist([row]), folder / name / "part-00000.parquet")


def ignore(message: Message) -> None:
    """An application that is done with it."""


async def overview(url: str) -> OverviewReply:
    async with Asking(url) as head:
        return await head.ask(OverviewRequest(), OverviewReply)


async def counted(metrics_url: str, name: str, label: str) -> float:
    """What a head's process has counted so far."""
    async with httpx.AsyncClient() as http:
        lines = (await http.get(f"{metrics_url}/metrics")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and label in line)


async def place_of(url: str, subscriber: str) -> tuple[str, str]:
    """Where a subscriber is, and the rule that its pattern was placed by."""
    _, told = await tidegate("explain", subscriber, "--url", url)
    (queue,) = told["queues"]
    placed = [one["record"]["reason"] for one in told["decisions"] if one["decision"] == "placement"]
    return queue["edge"], placed[-1]


async def test_topics_that_burst_together_are_placed_apart_once_an_insight_says_so(tmp_path: Path) -> None:
    async with EmbeddedCluster(Topology.simple(clusters=1, edges=2), compact=True) as cluster:
        (name,) = {info.cluster for info in cluster.brokers.values()}
        url, head = cluster.url(name), next(info for info in cluster.brokers.values() if info.kind == "head")
        first = min(info.name for info in cluster.brokers.values() if info.kind == "edge")
        async with AsyncSubscriber(url, name="town") as town, AsyncSubscriber(url, name="dam") as dam:

            async def subscribed(to: str, subscriber: AsyncSubscriber) -> AsyncSubscription:
                return await subscriber.subscribe(to, deadline=DEADLINE_S, callback=ignore)

            await subscribed("rain", town)
            async with AsyncSubscriber(url, name="harbour") as harbour:
                await subscribed("calm", harbour)
                await _apart_only_with_the_insight(url, name, first, dam, subscribed, tmp_path)
        await _refused_and_counted(url, name, head.http_url, head.url)


async def _apart_only_with_the_insight(
    url: str, cluster: str, first: str, dam: AsyncSubscriber, subscribed: Any, folder: Path
) -> None:
    before = await subscribed("flood", dam)
    assert await place_of(url, "dam") == (first, "fewest-subscriptions")
    assert (await place_of(url, "town"))[0] == first, "nobody knows yet that they burst together"
    await before.unsubscribe()

    async def gone() -> bool:
        return sum(edge.subscriptions for edge in (await overview(url)).edges) == 2

    await eventually(gone, "the subscription is gone")
    write_tables(folder, cluster, first)
    code, taken = await tidegate("analytics", "publish", "--tables", str(folder), "--url", url)
    assert code == ExitCode.OK
    assert (taken["taken"], taken["pairs"], taken["capacities"], taken["repeated"]) == (True, 1, 1, False)
    assert taken["unused"] == []
    await subscribed("flood", dam)
    edge, rule = await place_of(url, "dam")
    assert edge != first
    assert rule == "apart-from-correlated"
    _, told = await tidegate("explain", first, "--url", url)
    assert "insight-told" in [one["decision"] for one in told["decisions"]], "its edge knows what its uplink carries"
    assert told["insight"]["placements"] == 1
    code, again = await tidegate("analytics", "publish", "--tables", str(folder), "--url", url)
    assert (code, again["repeated"]) == (ExitCode.OK, True)


async def _refused_and_counted(url: str, cluster: str, metrics_url: str, amqp_url: str) -> None:
    """A stale one, one for somebody else and one that is none at all change nothing."""
    in_force = (await overview(url)).insight
    assert in_force is not None
    forged = tuple(CorrelatedPair(topic_a="calm", topic_b=topic, coefficient=1.0) for topic in ("rain", "flood"))
    newest = Insight(cluster=cluster, made_at_us=in_force.made_at_us + 1, valid_for_us=HOUR_US, pairs=forged)
    wrong = (
        newest.model_copy(update={"age_us": 2 * HOUR_US}),
        newest.model_copy(update={"cluster": "elsewhere"}),
        newest.model_copy(update={"made_at_us": in_force.made_at_us - 1}),
    )
    refused = await counted(metrics_url, "tidegate_requests_refused_total", "")
    async with Asking(url) as head:
        for message in wrong:
            try:
                await head.ask(message, InsightReply)
            except Refused:
                continue
            raise AssertionError(f"taken: {message}")

    async def all_counted() -> bool:
        # A text of /metrics may be a moment old.
        return await counted(metrics_url, "tidegate_requests_refused_total", "") == refused + len(wrong)

    await eventually(all_counted, "each of them is counted as refused")

    body = json.loads(newest.model_dump_json()) | {"pairs": [{"topic_a": "a", "topic_b": "b", "coefficient": 99.0}]}
    malformed = await counted(metrics_url, "tidegate_control_malformed_messages_total", "invalid-field")
    connection = await aio_pika.connect(amqp_url)
    async with connection, connection.channel() as channel:
        exchange = await channel.get_exchange(CONTROL_EXCHANGE, ensure=False)
        await exchange.publish(aio_pika.Message(json.dumps(body).encode()), OPERATOR_KEY)

    async def dropped() -> bool:
        label = "invalid-field"
        return await counted(metrics_url, "tidegate_control_malformed_messages_total", label) == malformed + 1

    await eventually(dropped, "the malformed one is counted")
    now = (await overview(url)).insight
    assert now is not None
    assert (now.made_at_us, now.pairs, now.refused) == (in_force.made_at_us, in_force.pairs, len(wrong))
