"""Telemetry where something is in its way: RabbitMQ stops, the stream is another one, it is switched off."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aio_pika
import pytest
import pytest_asyncio

from tests.support.brokers import Brokers, Process, start_all
from tests.support.telemetry import Seen, following
from tests.support.waiting import eventually
from tidegate_brokers.observe.telemetry.gauges import DropReason
from tidegate_cli.exit_codes import ExitCode
from tidegate_embedded.nodes import RabbitNode
from tidegate_protocol import telemetry as t
from tidegate_protocol.messages import PublisherReport, TopicCount, encode
from tidegate_protocol.names import CONTROL_EXCHANGE, HOM_KEY, TELEMETRY_EXCHANGE, TELEMETRY_STREAM
from tidegate_protocol.reports import ReportTaken, SubscriberReport, SubscriptionDigest

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRITTEN = "tidegate_telemetry_written_records_total"
REPORT = SubscriberReport(
    subscriber="siren", run=1, number=1, digests=(SubscriptionDigest(pattern="#", deadline_us=1, elapsed_us=1),)
)


@pytest_asyncio.fixture(loop_scope="module")
async def brokers(node: RabbitNode, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Brokers]:
    found = Brokers(node, tmp_path, request.node.originalname.removeprefix("test_")[:40])
    try:
        yield found
    finally:
        await found.close()


async def started(brokers: Brokers, **options: object) -> tuple[Process, Process]:
    """A head and an edge."""
    options = {"telemetry_period_s": 0.2, "sample_period_s": 0.2, **options}
    head, edge = await brokers.head("head", **options), await brokers.edge("edge", "head", **options)
    await start_all((head, edge))
    return head, edge


def loads(seen: Seen) -> set[str]:
    return {load.broker for load in seen.of(t.LoadSample)}


async def queue_of(brokers: Brokers) -> dict[str, Any]:
    """What RabbitMQ says about the stream."""
    answer: dict[str, Any] = await brokers.api(f"queues/{brokers.vhost('head')}/{TELEMETRY_STREAM}")
    return answer


async def dropped(process: Process, reason: DropReason) -> float:
    return await process.metric(f'tidegate_telemetry_dropped_records_total{{reason="{reason.value}"}}')


async def test_the_stream_is_declared_as_configured(brokers: Brokers) -> None:
    limits = {"telemetry_age_s": 7200, "telemetry_size_bytes": 5_000_000, "telemetry_segment_bytes": 500_000}
    head = await brokers.head("head", **limits)
    await head.start()

    await eventually(lambda: declared(brokers), "the stream is declared")
    queue = await queue_of(brokers)
    assert (queue["type"], queue["durable"]) == ("stream", True)
    assert queue["arguments"] == {
        "x-queue-type": "stream",
        "x-max-age": "7200s",
        "x-max-length-bytes": 5_000_000,
        "x-stream-max-segment-size-bytes": 500_000,
    }


async def test_telemetry_survives_a_restart_of_rabbitmq_and_counts_what_it_lost(
    brokers: Brokers, node: RabbitNode
) -> None:
    processes = dict(zip(("head", "edge"), await started(brokers), strict=True))
    async with following(brokers.url("head")) as seen:
        await eventually(lambda: loads(seen) == {"head", "edge"}, "the loads of both")
    before = max(seen.records)
    await node.kill()
    written = {name: await process.metric(WRITTEN) for name, process in processes.items()}
    await node.start()
    for name, process in processes.items():
        await eventually(lambda p=process, least=written[name] + 1: counts(p, least), f"{name} writes again")
        await eventually(process.is_ready, f"{name} is ready again")
    async with following(brokers.url("head")) as seen:
        for name, process in processes.items():
            await eventually(lambda name=name: goes_on(seen, name, before), f"what {name} writes is read")
            least = await process.metric(WRITTEN)
            await eventually(lambda name=name, least=least: seen.by(name) >= least, f"all records of {name}")
            told = seen.by(name)
            # What was under way when RabbitMQ was killed may be in the stream or not, but it is counted.
            unsure = await dropped(process, DropReason.UNCONFIRMED)
            await eventually(lambda p=process, least=told - unsure: counts(p, least), f"all of {name} are counted")
            assert await dropped(process, DropReason.BUFFER_FULL) == 0.0, "it was not away for long"
            moments = [load.time_us for load in seen.of(t.LoadSample) if load.broker == name]
            assert len(set(moments)) == len(moments), "no sample is there twice"
        assert seen.problems == []


def goes_on(seen: Seen, broker: str, before: int) -> bool:
    return any(offset > before and record.broker == broker for offset, record in seen.records.items())


async def counts(process: Process, least: float) -> bool:
    return await process.metric(WRITTEN) >= least


async def test_switched_off_nothing_is_declared_and_nothing_sent(brokers: Brokers) -> None:
    head = await brokers.head("head", telemetry=False, delivery_metrics=False)
    edge = await brokers.edge("edge", "head", telemetry=False)
    hopeful = await brokers.edge("hopeful", "head")
    await start_all((head, edge, hopeful))
    async with brokers.client("head") as client:
        answer = await client.ask(REPORT)
    assert isinstance(answer, ReportTaken)
    assert not answer.wanted
    await eventually(lambda: "its head writes no telemetry" in hopeful.words(), "an edge that would says so", 60)
    assert await hopeful.is_ready(), "and works as ever"
    vhost = brokers.vhost("head")
    assert not await declared(brokers)
    assert TELEMETRY_EXCHANGE not in {exchange["name"] for exchange in await brokers.api(f"exchanges/{vhost}")}
    for process in (head, edge):
        assert "tidegate_telemetry" not in (await process.get("metrics")).text
        assert '"connection": "telemetry"' not in process.words()


async def test_without_a_stream_reports_are_counted_all_the_same(brokers: Brokers) -> None:
    head = await brokers.head("head", telemetry=False)
    await head.start()
    digest = SubscriptionDigest(pattern="#", deadline_us=1_000, elapsed_us=1, received=3, late=2)
    async with brokers.client("head") as client:
        answer = await client.ask(REPORT.model_copy(update={"digests": (digest,)}))
    assert isinstance(answer, ReportTaken)
    assert answer.wanted
    assert await head.metric('tidegate_delivery_late_messages_total{topic="#"}') == 2.0
    assert "tidegate_telemetry" not in (await head.get("metrics")).text


async def test_a_report_that_comes_twice_is_written_once(brokers: Brokers) -> None:
    head = await brokers.head("head", telemetry_detail_period_s=2.0)
    await head.start()
    second = REPORT.model_copy(update={"number": 2})
    async with brokers.client("head") as client:
        for report in (REPORT, REPORT, second):
            answer = await client.ask(report)
            assert isinstance(answer, ReportTaken)
            assert (answer.wanted, answer.after_us) == (True, 2_000_000)
    await eventually(lambda: declared(brokers), "the stream is declared")
    async with following(brokers.url("head")) as seen:
        await eventually(lambda: seen.kinds["latency"] >= 2, "two digests")
        assert [digest.number for digest in seen.of(t.LatencyDigest)] == [1, 2]


async def declared(brokers: Brokers) -> bool:
    found = await brokers.api(f"queues/{brokers.vhost('head')}")
    return any(queue["name"] == TELEMETRY_STREAM for queue in found)


async def declare_before(brokers: Brokers, arguments: dict[str, Any]) -> None:
    """Have a queue of that name be there before the head."""
    await brokers.head("head")
    connection = await aio_pika.connect(brokers.url("head"))
    try:
        channel = await connection.channel()
        await channel.declare_queue(TELEMETRY_STREAM, durable=True, arguments=arguments)
    finally:
        await connection.close()


async def test_a_stream_with_other_limits_is_used_and_that_is_said(brokers: Brokers) -> None:
    await declare_before(brokers, {"x-queue-type": "stream", "x-max-age": "1h"})
    head, _ = await started(brokers)
    async with following(brokers.url("head")) as seen:
        await eventually(lambda: loads(seen) == {"head", "edge"}, "the loads of both")
    (line,) = [line for line in head.words().splitlines() if "other limits than configured" in line]
    assert "x-max-age is 1h instead of 604800s, x-max-length-bytes is not set instead of 1000000000" in line
    assert f"delete the queue {TELEMETRY_STREAM}" in line


async def test_without_a_usable_stream_brokers_work_as_ever(brokers: Brokers) -> None:
    await declare_before(brokers, {"x-queue-type": "classic"})
    head, edge = await started(brokers)
    await eventually(lambda: "is there, and is no stream" in head.words(), "the head says so", 60)
    for process in (head, edge):
        assert await process.is_ready()
    assert await head.metric(WRITTEN) == 0.0
    assert (await queue_of(brokers))["type"] == "classic", "nobody touched it"


async def test_a_clean_stop_writes_what_there_is(brokers: Brokers) -> None:
    head = await brokers.head("head", telemetry_detail_period_s=3600)
    await head.start()
    counts = (TopicCount(topic="quake.alert", messages=7, bytes=70),)
    report = PublisherReport(publisher="buoy~1", elapsed_us=1, topics=counts)
    async with brokers.client("head") as client:
        exchange = await client.channel.get_exchange(CONTROL_EXCHANGE, ensure=False)
        await exchange.publish(aio_pika.Message(encode(report)), HOM_KEY)
    taken = 'tidegate_control_received_messages_total{kind="publisher-report"}'
    await eventually(lambda: has_metric(head, taken), "the report is taken")
    await eventually(lambda: has_metric(head, WRITTEN), "something is written")
    assert await head.terminate() == ExitCode.OK
    async with following(brokers.url("head")) as seen:
        await eventually(lambda: seen.kinds["publisher-rates"] > 0, "what was added up for an hour to come")
        (rates,) = seen.of(t.PublisherRates)
    assert [(topic.topic, topic.messages) for topic in rates.topics] == [("quake.alert", 7)]


async def has_metric(process: Process, sample: str) -> bool:
    return await process.metric(sample) > 0.0


def tail(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegate_cli", "telemetry", "tail", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def test_an_operator_reads_the_stream(brokers: Brokers) -> None:
    await started(brokers)
    async with following(brokers.url("head")) as seen:
        await eventually(lambda: seen.kinds["load"] >= 6, "some loads")
    url = brokers.url("head")
    answer = tail("--url", url, "--from", "earliest", "--kind", "load", "--count", "3", "--json")
    assert answer.returncode == ExitCode.OK, answer.stderr
    records = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [record["kind"] for record in records] == ["load"] * 3
    offset = records[1]["offset"]
    assert seen.records[offset].time_us == records[1]["time_us"]
    again = tail("--url", url, "--from", str(offset), "--count", "1", "--json")
    assert json.loads(again.stdout)["offset"] == offset, "it begins at the offset, not at its chunk"
    for_people = tail("--url", url, "--from", "latest", "--kind", "load", "--count", "1")
    assert "messages_in_per_s=" in for_people.stdout
    none = tail("--url", brokers.url("edge"), "--count", "1")
    assert none.returncode == ExitCode.UNAVAILABLE
    assert "there is no stream tidegate.telemetry here; name a head" in none.stderr
    assert tail("--url", url, "--from", "yesterday").returncode == ExitCode.USAGE
