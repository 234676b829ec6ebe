"""The Spark source's way of finding and reading offsets, on a real RabbitMQ and without Spark.

A range comes out exactly, whatever chunks, holes, retention and the network do; the ends of a stream are found without
guessing; and each thing that can be wrong has an error of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pika
import pytest
import pytest_asyncio

from rabbitmq_stream_source.errors import (
    AccessRefused,
    ConnectionFailed,
    DataLoss,
    InvalidOption,
    NotAStream,
    Silent,
    SourceError,
    StreamMissing,
    Unreadable,
)
from rabbitmq_stream_source.offsets import Range, StreamKey
from rabbitmq_stream_source.options import Settings, parse_options
from rabbitmq_stream_source.points import parse_points
from rabbitmq_stream_source.reading import read_range
from rabbitmq_stream_source.survey import Survey
from tests.support.hostile import ACCEPTED, send
from tests.support.streams import StreamClient, contents, declare, delete, publish, stream_port
from tests.support.turns import turns_proxy
from tidegate_embedded.nodes import RabbitNode, amqp_url, management_url
from tidegate_embedded.ports import Ports

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLENTY = "plenty"
PLENTY_COUNT = 3_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(node: RabbitNode) -> AsyncIterator[str]:
    """A RabbitMQ with a stream of 3,000 messages on it."""
    address = amqp_url(node)
    await asyncio.to_thread(declare, address, PLENTY)
    await asyncio.to_thread(publish, address, PLENTY, (b"%d" % n for n in range(PLENTY_COUNT)))
    yield address


def settings(url: str, streams: str = PLENTY, **options: str) -> Settings:
    return parse_options({"url": f"b={url}", "streams": streams, **options})


def read(chosen: Settings, start: int, end: int, stream: str = PLENTY) -> dict[int, bytes]:
    """A range as the source reads it; offsets must come once and in order."""
    found: dict[int, bytes] = {}
    for batch in read_range(Range(StreamKey("b", stream), start, end), chosen):
        for offset, body in zip(batch["offset"].to_pylist(), batch["body"].to_pylist(), strict=True):
            assert not found or offset > max(found)
            found[offset] = body
    return found


def ends(chosen: Settings) -> dict[str, int]:
    with closing(Survey(chosen)) as survey:
        return {key.stream: end for key, end in survey.ends(survey.streams()).items()}


@pytest.mark.parametrize(("start", "end"), [(0, 3_000), (1, 2), (1_234, 2_999), (2_999, 3_000), (5, 5)])
@pytest.mark.parametrize("prefetch", ["1", "100", "65535"])
async def test_exactly_the_offsets_that_were_asked_for(url: str, start: int, end: int, prefetch: str) -> None:
    if prefetch == "1" and end - start > 2_000:
        end = start + 200  # one message at a time is slow, and no different
    found = await asyncio.to_thread(read, settings(url, prefetch=prefetch), start, end)
    assert found == {offset: b"%d" % offset for offset in range(start, end)}


async def test_the_ends_of_streams_are_found(url: str) -> None:
    await asyncio.to_thread(declare, url, "empty", "one")
    await asyncio.to_thread(publish, url, "one", [b"x"])
    with closing(Survey(settings(url, f"{PLENTY},empty,one"))) as survey:
        keys = survey.streams()
        for _ in range(3):  # first without knowledge, then from what is known
            found = await asyncio.to_thread(survey.ends, keys)
            assert {key.stream: end for key, end in found.items()} == {PLENTY: PLENTY_COUNT, "empty": 0, "one": 1}
        await asyncio.to_thread(publish, url, "one", (b"%d" % n for n in range(500)))
        await asyncio.to_thread(publish, url, "empty", [b"first"])
        found = await asyncio.to_thread(survey.ends, keys)
        assert {key.stream: end for key, end in found.items()} == {PLENTY: PLENTY_COUNT, "empty": 1, "one": 501}
        beginnings = await asyncio.to_thread(survey.beginnings, keys, found)
        assert set(beginnings.values()) == {0}


async def test_a_point_in_time(url: str) -> None:
    def resolve(moment: datetime) -> int:
        with closing(Survey(settings(url))) as survey:
            keys = survey.streams()
            points = parse_points("startingOffsets", moment.isoformat(), "earliest")
            return survey.resolve(points, keys, survey.ends(keys))[keys[0]]

    now = datetime.now(UTC)
    assert await asyncio.to_thread(resolve, now - timedelta(days=1)) == 0
    assert await asyncio.to_thread(resolve, now + timedelta(days=1)) == PLENTY_COUNT
    assert await asyncio.to_thread(resolve, now + timedelta(seconds=2)) == PLENTY_COUNT


async def test_holes_that_rabbitmq_made_are_not_losses(url: str, node: RabbitNode) -> None:
    """Offsets stored by consumers of the stream protocol take up offsets of the stream."""

    def make_holes() -> dict[int, bytes]:
        declare(url, "holes")
        port = stream_port(management_url(node))
        with closing(StreamClient(node.host, port, node.user, node.password)) as client:
            for number in range(4):
                publish(url, "holes", (b"%d-%d" % (number, n) for n in range(10)))
                client.store_offset("holes", "somebody", number)
        return contents(url, "holes")

    truth = await asyncio.to_thread(make_holes)
    end = max(truth) + 1
    assert len(truth) == 40
    assert len(truth) < end, "RabbitMQ stored no offset in the stream"
    chosen = settings(url, "holes")
    assert await asyncio.to_thread(ends, chosen) == {"holes": end}
    # Also when a range begins or ends within a hole.
    for start in range(0, end, 3):
        for stop in range(start + 1, end + 1, 7):
            expected = {offset: body for offset, body in truth.items() if start <= offset < stop}
            assert await asyncio.to_thread(read, chosen, start, stop, "holes") == expected


async def test_what_retention_removed(url: str, caplog: pytest.LogCaptureFixture) -> None:
    def fill() -> dict[int, bytes]:
        declare(url, "short", max_length_bytes=60_000, stream_max_segment_size_bytes=20_000)
        for number in range(12):
            publish(url, "short", (b"%d-%d-" % (number, n) + bytes(500) for n in range(40)))
        return contents(url, "short")

    left = await asyncio.to_thread(fill)
    earliest, end = min(left), max(left) + 1
    assert earliest > 1
    # A new segment takes an offset for itself: a hole that is no loss either.
    assert len(left) < end - earliest
    assert await asyncio.to_thread(read, settings(url, "short"), earliest, end, "short") == left
    with pytest.raises(DataLoss, match=rf"'short': offsets from 1 up to {earliest - 1} are gone.*onDataLoss=skip"):
        await asyncio.to_thread(read, settings(url, "short"), 1, end, "short")
    chosen = settings(url, "short", onDataLoss="skip")
    with caplog.at_level(logging.WARNING):
        assert await asyncio.to_thread(read, chosen, 1, end, "short") == left
        assert await asyncio.to_thread(read, chosen, 1, earliest, "short") == {}
    assert f"offsets from 1 up to {earliest - 1} are gone" in caplog.text


async def test_each_mistake_has_its_error(url: str) -> None:
    def declare_others() -> None:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            connection.channel().queue_declare("classic", durable=True)
            connection.channel().queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum"})

    await asyncio.to_thread(declare_others)
    with closing(Ports()) as ports:
        nobody = f"amqp://127.0.0.1:{ports.free()}"
        cases: list[tuple[Settings, type[SourceError | InvalidOption], str]] = [
            (settings(url, "nowhere"), StreamMissing, "there is no stream 'nowhere'; declare it"),
            (settings(url, "classic"), NotAStream, "'classic' is not a stream .*classic.*x-queue-type=stream"),
            (settings(url, "quorum"), NotAStream, "'quorum' is not a stream .*quorum"),
            (settings(url.replace("://tidegate:", "://tidegate:not")), AccessRefused, "check user, password"),
            (settings(url.rsplit("/", 1)[0] + "/elsewhere"), AccessRefused, "elsewhere.*virtual host"),
            (settings(nobody, connectRetries="1"), ConnectionFailed, f"{nobody}/.*check host and port"),
        ]
        for chosen, error, says in cases:
            with pytest.raises(error, match=says):
                await asyncio.to_thread(ends, chosen)
            with pytest.raises(error, match=says):
                await asyncio.to_thread(read, chosen, 0, 1, chosen.streams[0])


async def test_nothing_is_left_on_rabbitmq(url: str, node: RabbitNode) -> None:
    """A queue of another type that was named by mistake still has its messages; no consumer is left."""

    def look() -> tuple[int, int]:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.queue_declare("work", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "work", b"job")
            with pytest.raises(NotAStream):
                read(settings(url, "work"), 0, 1, "work")
            method, _, _ = channel.basic_get("work", auto_ack=True)
            return method.redelivered, channel.queue_declare(PLENTY, passive=True).method.consumer_count

    assert await asyncio.to_thread(look) == (False, 0)


async def test_offsets_that_never_come_end_in_an_error(url: str) -> None:
    with pytest.raises(Silent, match=r"'plenty' delivered nothing for 0.5 s while offsets 3000 to 3000 .*readTimeoutS"):
        await asyncio.to_thread(read, settings(url, readTimeoutS="0.5"), PLENTY_COUNT - 1, PLENTY_COUNT + 1)


async def test_a_lost_connection_is_taken_up_where_it_was(url: str, node: RabbitNode) -> None:
    async with turns_proxy(node.host, node.amqp_port) as proxy:
        acks = 0

        # On a busy machine several go together: with a prefetch of 100 there are about ten lots at least.
        def cut_at_every_fourth_ack(data: bytes) -> bool:
            nonlocal acks
            acked = b"\0\x3c\0\x50" in data  # basic.ack
            acks += acked
            return not acked or acks % 4 != 0

        proxy.tolerates = cut_at_every_fourth_ack
        through = url.replace(f":{node.amqp_port}/", f":{proxy.port}/")
        chosen = settings(through, prefetch="100", connectRetries="3")
        found = await asyncio.to_thread(read, chosen, 10, 1_000)
        assert found == {offset: b"%d" % offset for offset in range(10, 1_000)}
        assert len(proxy.turns) > 2, "the connection was never cut"

        proxy.tolerates = lambda _: False
        with pytest.raises(ConnectionFailed) as caught:
            await asyncio.to_thread(read, settings(through, connectRetries="1"), 0, 10)
        assert "given up after 2 tries (connectRetries=1)" in caught.value.__notes__


async def test_a_stalled_connection_ends_in_an_error(url: str, node: RabbitNode) -> None:
    async with turns_proxy(node.host, node.amqp_port) as proxy:
        # Whatever carries a message vanishes; the rest of the conversation goes on.
        proxy.alter = lambda data: b"" if b"x-stream-offset" in data else data
        through = url.replace(f":{node.amqp_port}/", f":{proxy.port}/")
        with pytest.raises(Silent, match="offsets 0 to 9 were awaited"):
            await asyncio.to_thread(read, settings(through, readTimeoutS="0.5"), 0, 10)


async def test_messages_that_pika_can_not_decode_come_without_headers(url: str) -> None:
    await asyncio.to_thread(declare, url, "hostile")
    await asyncio.to_thread(publish, url, "hostile", [b"first"])
    taken = [
        name.encode()
        for name, properties in ACCEPTED.items()
        if await asyncio.to_thread(send, url, "", b"hostile", properties, name.encode())
    ]
    assert b"tables in tables" in taken
    await asyncio.to_thread(publish, url, "hostile", [b"last"])
    found = await asyncio.to_thread(read, settings(url, "hostile"), 0, len(taken) + 2, "hostile")
    assert list(found.values()) == [b"first", *taken, b"last"]


async def test_a_message_that_can_not_be_decoded_is_named(url: str, node: RabbitNode) -> None:
    await asyncio.to_thread(declare, url, "odd")
    await asyncio.to_thread(publish, url, "odd", [b"odd"])
    async with turns_proxy(node.host, node.amqp_port) as proxy:
        # The type of the header's value becomes one that AMQP does not have.
        proxy.alter = lambda data: data.replace(b"x-stream-offsetl", b"x-stream-offset?")
        through = url.replace(f":{node.amqp_port}/", f":{proxy.port}/")
        with pytest.raises(Unreadable, match="'odd': a message at or after offset 0 can't be decoded"):
            await asyncio.to_thread(read, settings(through, "odd"), 0, 1, "odd")


async def test_a_deleted_stream_ends_in_an_error(url: str) -> None:
    def delete_while_reading() -> None:
        declare(url, "doomed")
        publish(url, "doomed", [b"x"])
        wanted = Range(StreamKey("b", "doomed"), 0, 2)
        pieces = read_range(wanted, settings(url, "doomed", readTimeoutS="30"))
        delete(url, "doomed")
        list(pieces)

    with pytest.raises(StreamMissing, match="'doomed'"):
        await asyncio.to_thread(delete_while_reading)


async def test_streams_are_listed_by_pattern(url: str, node: RabbitNode) -> None:
    await asyncio.to_thread(declare, url, "listed.a", "listed.b", "not.listed.a")
    options = {"url": f"b={url}", "managementUrl": management_url(node)}
    with closing(Survey(parse_options({**options, "streamsPattern": r"listed\..*"}))) as survey:
        assert [key.stream for key in await asyncio.to_thread(survey.streams)] == ["listed.a", "listed.b"]
    wrong = {"managementUrl": management_url(node).replace("://tidegate:", "://tidegate:not")}
    with (
        closing(Survey(parse_options({**options, **wrong, "streamsPattern": "x"}))) as survey,
        pytest.raises(AccessRefused, match="management API answers 401"),
    ):
        await asyncio.to_thread(survey.streams)


async def test_over_tls(url: str, node: RabbitNode, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("TLS is not tested: there is no openssl command")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    async with turns_proxy(node.host, node.amqp_port, tls=server) as proxy:
        secure = f"amqps://{node.user}:{node.password}@localhost:{proxy.port}"
        found = await asyncio.to_thread(read, settings(secure, caFile=str(certificate)), 0, 10)
        assert len(found) == 10
        with pytest.raises(ConnectionFailed, match=r"(?i)certificate"):
            await asyncio.to_thread(read, settings(secure, connectRetries="0"), 0, 10)


async def test_an_abandoned_read_closes_its_connection(url: str) -> None:
    def abandon() -> None:
        pieces = read_range(Range(StreamKey("b", PLENTY), 0, PLENTY_COUNT), settings(url, prefetch="10"))
        # Nothing is open before the first batch is asked for.
        before = len(os.listdir("/proc/self/fd"))
        next(pieces)
        pieces.close()
        assert len(os.listdir("/proc/self/fd")) == before

    await asyncio.to_thread(abandon)
