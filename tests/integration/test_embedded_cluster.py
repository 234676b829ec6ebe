"""Whole embedded clusters from inside a program: leaving them, several at once, parts that end, shaped links."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from tests.support.leftovers import listening, nothing_left, processes_of
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber, Message
from tidegate_brokers.errors import ChildDied, ConfigurationError
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import BrokerSpec, ClusterSpec, Topology

DEADLINE_S = 600.0
SMALL = Topology.simple(clusters=1, edges=1)
in_module = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where clusters of this test keep their files. Short, because the path of a control socket must be."""
    with tempfile.TemporaryDirectory(prefix="embedded-") as made:
        monkeypatch.setenv("TMPDIR", made)
        yield Path(made)


def words_in(logs: Path) -> str:
    return "".join(file.read_text() for file in logs.iterdir())


def urls_of(cluster: EmbeddedCluster) -> list[str]:
    heads = [cluster.url(name) for name in cluster.clusters]
    brokers = cluster.brokers.values()
    return heads + [url for broker in brokers for url in (broker.url, broker.management_url, broker.http_url)]


async def goes_through(cluster: EmbeddedCluster, count: int = 3) -> float:
    """Publish and receive `count` messages in the first cluster; how long the first was under way, in seconds."""
    received: list[tuple[float, Message]] = []
    url = cluster.url(cluster.clusters[0])
    async with AsyncSubscriber(url, name="siren") as subscriber, AsyncPublisher(url, name="seismometer") as publisher:
        await subscriber.subscribe(
            "quake.#", deadline=DEADLINE_S, callback=lambda message: received.append((time.monotonic(), message))
        )
        began_s = time.monotonic()
        for number in range(count):
            await publisher.publish("quake.alert", str(number).encode())
        await publisher.flush(timeout_s=60)
        await eventually(lambda: len(received) >= count, f"{count} messages arrive")
    assert [message.body for _, message in received] == [str(number).encode() for number in range(count)]
    return received[0][0] - began_s


async def test_a_directory_too_long_for_sockets_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = directory / ("a-long-name" * 6)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    shaped = ClusterSpec(
        name="alpha", head=BrokerSpec(name="head"), edge=(BrokerSpec(name="edge", uplink_bytes_per_s=1e6),)
    )
    with pytest.raises(ConfigurationError, match=r"TMPDIR.*choose a shorter directory"):
        async with EmbeddedCluster(Topology(cluster=(shaped,)), compact=True):
            raise AssertionError("a cluster without sockets has started")
    assert processes_of(long) == {}
    await nothing_left(long)


async def test_an_exception_inside_leaves_nothing_behind(directory: Path) -> None:
    urls: list[str] = []

    async def stumble() -> None:
        async with EmbeddedCluster(SMALL, compact=True, processes=False, conditioned="all") as cluster:
            urls.extend(urls_of(cluster))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await stumble()
    assert urls
    assert processes_of(directory) == {}
    await nothing_left(directory, *urls)


async def test_being_cancelled_while_booting_leaves_nothing_behind(directory: Path) -> None:
    async def boot() -> None:
        async with EmbeddedCluster(SMALL, compact=True):
            pytest.fail("it was not cancelled")

    booting = asyncio.create_task(boot())
    await eventually(lambda: len(processes_of(directory)) >= 2, "the guardian and RabbitMQ are started")
    booting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await booting
    assert processes_of(directory) == {}
    await nothing_left(directory)


async def test_two_clusters_at_the_same_time_leave_nothing_behind(directory: Path) -> None:
    async with EmbeddedCluster(SMALL, compact=True) as one, EmbeddedCluster(SMALL, compact=True) as other:
        assert one.directory != other.directory
        assert not {urlsplit(url).port for url in urls_of(one)} & {urlsplit(url).port for url in urls_of(other)}
        await asyncio.gather(goes_through(one), goes_through(other))
        urls = urls_of(one) + urls_of(other)
        # Of each the guardian, one RabbitMQ, two broker processes.
        assert len(processes_of(directory)) >= 8
        assert len(listening(*urls)) == len(urls)
    assert processes_of(directory) == {}
    await nothing_left(directory, *urls)


async def test_a_broker_process_that_dies_at_start_is_reported_with_its_last_words(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every Python reads this file first; only the process of an edge stumbles over it.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'tidegate_brokers.edge' in sys.orig_argv:\n"
        "    print('no more tea', flush=True)\n"
        "    os._exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ChildDied) as caught:
        async with EmbeddedCluster(SMALL, compact=True):
            pytest.fail("it can't have started")
    assert "alpha-edge-0 ended with code 3 while starting" in str(caught.value)
    assert "no more tea" in caught.value.tail
    assert caught.value.logs is not None
    logs = Path(caught.value.logs)
    assert str(logs) in str(caught.value)
    assert "no more tea" in words_in(logs)
    assert os.listdir(logs.parent) == ["logs"], "no data and no passwords are kept"
    shutil.rmtree(logs.parent)
    await nothing_left(directory)


async def test_processes_and_nodes_come_back_where_they_were(directory: Path) -> None:
    """One head and one edge with a node each."""
    async with EmbeddedCluster(SMALL) as cluster:
        before = urls_of(cluster)
        assert cluster.node("alpha-head") is not cluster.node("alpha-edge-0")
        for name in cluster.brokers:
            process = cluster.process(name)
            pid = process.pid
            await process.kill()
            assert process.pid is None
            assert listening(cluster.brokers[name].http_url) == []
            await process.start()
            assert process.pid not in (None, pid)
        await goes_through(cluster)

        for name, broker in cluster.brokers.items():
            await cluster.node(name).stop()
            assert listening(broker.url, broker.management_url) == []
            await cluster.node(name).start()
        assert urls_of(cluster) == before
        assert len(listening(*before)) == len(before)
        await goes_through(cluster)
    await nothing_left(directory, *before)


SHAPED = Topology.parse(
    """
    [[cluster]]
    name = "coast"
    [cluster.head]
    uplink_bytes_per_s = 500_000
    link_delay_s = 0.05
    client_delay_s = 0.1
    [[cluster.edge]]
    name = "pier"
    uplink_bytes_per_s = 100_000
    link_delay_s = 0.15
    client_delay_s = 0.2
    """
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shaped() -> AsyncIterator[EmbeddedCluster]:
    """For all tests of links; afterwards its conditioners are gone like everything else."""
    with tempfile.TemporaryDirectory(prefix="embedded-") as made:
        async with AsyncExitStack() as stack:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TMPDIR", made)
                cluster = await stack.enter_async_context(EmbeddedCluster(SHAPED, compact=True))
            yield cluster
        await nothing_left(Path(made))


@in_module
async def test_a_message_takes_at_least_the_sum_of_the_delays(shaped: EmbeddedCluster) -> None:
    assert set(shaped.conditioners) == {"coast-head", "pier"}
    # To the head, between the two brokers (both ends count), to the subscriber.
    assert await goes_through(shaped) >= 0.1 + (0.05 + 0.15) + 0.2
    await shaped.conditioners["pier"].set_delay(1.0, "client")
    assert await goes_through(shaped) >= 1.0
    await shaped.conditioners["pier"].set_delay(0.2, "client")


@in_module
async def test_a_bandwidth_holds_for_what_subscribers_get(shaped: EmbeddedCluster) -> None:
    url = shaped.url("coast")
    received: list[bytes] = []
    before = (await shaped.conditioners["pier"].stats()).uplink.bytes_total
    async with AsyncSubscriber(url, name="one") as one, AsyncPublisher(url, name="camera") as publisher:
        await one.subscribe("photo", deadline=DEADLINE_S, callback=lambda message: received.append(message.body))
        began_s = time.monotonic()
        for _ in range(30):
            await publisher.publish("photo", bytes(10_000))
        await publisher.flush(timeout_s=120)
        await eventually(lambda: len(received) >= 30, "all photos arrive")
        assert time.monotonic() - began_s >= 2.9, "300 kB at 100 kB/s"
    assert (await shaped.conditioners["pier"].stats()).uplink.bytes_total - before >= 300_000


@in_module
async def test_what_is_published_while_a_link_is_cut_arrives_afterwards(shaped: EmbeddedCluster) -> None:
    url = shaped.url("coast")
    received: list[bytes] = []
    conditioner = shaped.conditioners["pier"]
    async with AsyncSubscriber(url, name="siren") as subscriber, AsyncPublisher(url, name="gauge") as publisher:
        await subscriber.subscribe("tide", deadline=DEADLINE_S, callback=lambda message: received.append(message.body))
        sent = [str(number).encode() for number in range(150)]
        for body in sent[:50]:
            await publisher.publish("tide", body)
        await conditioner.cut("link")
        for body in sent[50:]:
            await publisher.publish("tide", body)
        await publisher.flush(timeout_s=60)  # the head has them all, and says so
        assert len(received) <= 50
        assert not (await conditioner.stats()).listeners["link"].is_open
        await conditioner.restore("link")
        await eventually(lambda: len(received) >= len(sent), "everything arrives")
    assert received == sent, "none lost, doubled or out of order"
