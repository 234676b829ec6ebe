"""Telemetry of a small cluster on real RabbitMQ: all kinds arrive, and say what happened."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.support.backends import Launch
from tests.support.blocking import in_thread
from tests.support.telemetry import Seen, following
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, AsyncSubscription, Message, Subscriber, Subscription
from tidegate_cli.exit_codes import ExitCode
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import Topology
from tidegate_protocol import telemetry as t
from tidegate_protocol.latency import merged, quantile_us
from tidegate_protocol.names import PUBLISH_EXCHANGE, TELEMETRY_EXCHANGE

UPLINK_BYTES_PER_S = 60_000
BODY_BYTES = 400
RATE_PER_S = 90.0
"""Two subscribers ask for half as much again as an uplink carries; one of them alone leaves room."""
DEADLINE_S = 3.0
SUBSCRIBERS = ("siren-1", "siren-2")
TOPOLOGY = Topology.parse(
    f"""
    [[cluster]]
    name = "alpha"
    [[cluster.edge]]
    uplink_bytes_per_s = {UPLINK_BYTES_PER_S}
    [[cluster.edge]]
    uplink_bytes_per_s = {UPLINK_BYTES_PER_S}
    [balancing]
    stabilizing_min_s = 1.0
    [telemetry]
    detail_period_s = 1.0
    """
)

Subscriptions = list[AsyncSubscription | Subscription]


@dataclass
class Feed:
    """Publishes at a steady rate until it is stopped."""

    publisher: AsyncPublisher
    published: int = 0
    running: bool = True

    async def run(self) -> None:
        due_s = time.monotonic()
        while self.running:
            await self.publisher.publish("quake.alert", b"x" * BODY_BYTES)
            self.published += 1
            due_s += 1.0 / RATE_PER_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))


def ignore(message: Message) -> None:
    """An application that is done with it."""


@asynccontextmanager
async def overloaded(
    cluster: EmbeddedCluster,
) -> AsyncIterator[tuple[Feed, Subscriptions, asyncio.Task[None]]]:
    url = cluster.url("alpha")
    async with (
        AsyncSubscriber(url, name=SUBSCRIBERS[0]) as one,
        in_thread(Subscriber(url, name=SUBSCRIBERS[1])) as other,
        AsyncPublisher(url, name="buoy") as publisher,
    ):
        subscriptions: Subscriptions = [
            await one.subscribe("quake.#", deadline=DEADLINE_S, callback=ignore),
            await asyncio.to_thread(other.subscribe, "quake.#", DEADLINE_S, callback=ignore),
        ]
        feed = Feed(publisher)
        task = asyncio.create_task(feed.run())
        try:
            yield feed, subscriptions, task
        finally:
            feed.running = False
            await asyncio.gather(task, return_exceptions=True)


async def test_all_kinds_arrive_and_say_what_the_clients_counted(launch: Launch) -> None:
    async with (
        launch(TOPOLOGY, compact=True) as cluster,
        overloaded(cluster) as (feed, subscriptions, publishing),
        following(cluster.brokers["alpha-head"].url) as seen,
    ):
        await eventually(lambda: set(t.KINDS) <= seen.kinds.keys(), "records of all kinds", 120)
        feed.running = False
        await publishing
        await eventually(lambda: all(received(seen, name) == feed.published for name in SUBSCRIBERS), "all digests", 60)
        await eventually(lambda: published(seen) == feed.published, "all rates", 60)
        assert seen.problems == []
        check_latencies(seen, subscriptions)
        check_rates(seen, feed)
        check_loads(seen)
        check_session(seen)


def received(seen: Seen, subscriber: str) -> int:
    return sum(digest.received for digest in seen.of(t.LatencyDigest) if digest.subscriber == subscriber)


def published(seen: Seen) -> int:
    return sum(topic.messages for rates in seen.of(t.PublisherRates) for topic in rates.topics)


def check_latencies(seen: Seen, subscriptions: Subscriptions) -> None:
    """The digests of all periods add up to what each subscription counted itself."""
    for name, subscription in zip(SUBSCRIBERS, subscriptions, strict=True):
        counted = subscription.statistics()
        digests = [digest for digest in seen.of(t.LatencyDigest) if digest.subscriber == name]
        assert [digest.number for digest in digests] == list(range(1, len(digests) + 1)), "none lost, none twice"
        assert sum(digest.late for digest in digests) == counted.late
        assert sum(digest.duplicates for digest in digests) == counted.duplicates
        assert {digest.deadline_us for digest in digests} == {round(DEADLINE_S * 1e6)}
        counts = merged((digest.buckets, digest.counts) for digest in digests)
        assert sum(counts.values()) == counted.latency_count
        mean_s = sum(digest.latency_us_sum for digest in digests) / counted.latency_count / 1e6
        assert mean_s == pytest.approx(counted.latency_mean_s)
        for share, quantile_s in ((0.5, counted.latency_p50_s), (0.99, counted.latency_p99_s)):
            told = quantile_us(counts, share)
            assert told is not None
            # A digest knows buckets; the SDK knows the greatest latency too, which may be below the middle of the last.
            assert told / 1e6 == pytest.approx(quantile_s, rel=0.02)


def check_rates(seen: Seen, feed: Feed) -> None:
    topics = [topic for rates in seen.of(t.PublisherRates) for topic in rates.topics]
    assert {topic.topic for topic in topics} == {"quake.alert"}
    assert sum(topic.bytes for topic in topics) == BODY_BYTES * feed.published
    gaps, total_s = sum(topic.gaps for topic in topics), sum(topic.gap_s_sum for topic in topics)
    assert gaps == feed.published - 1
    assert sum(topic.gap_s2_sum for topic in topics) >= total_s**2 / gaps * (1 - 1e-9), "no variance is below 0"


def check_loads(seen: Seen) -> None:
    loads = seen.of(t.LoadSample)
    assert {load.broker for load in loads} == {"alpha-head", "alpha-edge-0", "alpha-edge-1"}
    assert {load.cluster for load in loads} == {"alpha"}
    edges = [load for load in loads if load.role == "edge"]
    assert all(load.uplink_bytes_per_s == UPLINK_BYTES_PER_S for load in edges)
    assert all(load.uplink == pytest.approx(load.bytes_offered_per_s / UPLINK_BYTES_PER_S) for load in edges)
    assert max(load.uplink or 0.0 for load in edges) > 1.0
    assert max(load.subscriptions for load in edges) == len(SUBSCRIBERS)
    queues = [queue for thresholds in seen.of(t.Thresholds) for queue in thresholds.queues]
    assert {queue.pattern for queue in queues} == {"quake.#"}
    assert any(queue.threshold is not None and queue.depth > queue.threshold for queue in queues)


def check_session(seen: Seen) -> None:
    """One who reads nothing else can tell what was predicted, what was done, and what came of it."""
    states = seen.of(t.StateChange)
    assert any(change.state == "OVERLOAD" and change.before is not None for change in states)
    predictions = {prediction.session: prediction for prediction in seen.of(t.Prediction)}
    outcomes = [outcome for outcome in seen.of(t.Outcome) if outcome.session in predictions]
    assert outcomes, "an outcome is joined with its prediction by the session"
    session = outcomes[0].session
    source = predictions[session].source
    effects = {(effect.broker, effect.metric): effect for effect in predictions[session].effects}
    of_source = [outcome for outcome in outcomes if outcome.session == session and outcome.broker == source]
    for outcome in of_source:
        measured = {one.metric: one for one in outcome.metrics}
        assert measured["uplink"].predicted == effects[source, "uplink"].after
    assert effects[source, "uplink"].after < (effects[source, "uplink"].before or 0.0)
    began = [one for one in seen.of(t.SessionBegan) if one.session == session]
    ended = [one for one in seen.of(t.SessionEnded) if one.session == session]
    assert [one.source for one in began] == [one.source for one in ended] == [source]
    assert began[0].policy == "peer-wd"
    assert ended[0].moved == predictions[session].moves - ended[0].failed
    assert ended[0].duration_us is not None
    moved = [move for move in seen.of(t.Migration) if move.session == session and move.moved]
    assert len(moved) == ended[0].moved
    gaps = {gap.migration: gap for gap in seen.of(t.MigrationGapTold)}
    joined = [(move, gaps[move.migration]) for move in moved if move.migration in gaps]
    assert joined, "a gap is joined with its migration"
    for move, gap in joined:
        assert (gap.subscriber, gap.pattern, gap.source, gap.target) == (
            move.client,
            move.pattern,
            move.source,
            move.target,
        )
    decisions = {decision.decision for decision in seen.of(t.DecisionMade) if decision.session == session}
    assert {"session-requested", "session-planned", "session-ended", "migration-ended"} <= decisions


def test_a_cluster_may_be_started_without() -> None:
    command = [sys.executable, "-m", "tidegate_cli", "up", "--compact", "--edges", "1", "--no-telemetry", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            brokers = {broker["name"]: broker for broker in json.loads(process.stdout.readline())["brokers"]}
            head = brokers["alpha-head"]
            exchanges = httpx.get(head["management_url"] + "/api/exchanges/alpha-head", trust_env=False).json()
            names = {exchange["name"] for exchange in exchanges}
            assert PUBLISH_EXCHANGE in names
            assert TELEMETRY_EXCHANGE not in names
            for broker in brokers.values():
                assert "tidegate_telemetry" not in httpx.get(broker["http_url"] + "/metrics", trust_env=False).text
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == ExitCode.OK
