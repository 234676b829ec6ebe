"""The telemetry writer: bounded, counted, and never in anybody's way, whatever the server does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest
from aiormq.abc import AbstractChannel, AbstractConnection
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry

from tidegate_brokers.observe.telemetry.buffer import Encoded, RecordBuffer
from tidegate_brokers.observe.telemetry.gauges import DropReason, TelemetryMetrics
from tidegate_brokers.observe.telemetry.stream import StreamLimits
from tidegate_brokers.observe.telemetry.writer import TelemetryWriter, outcome_of
from tidegate_brokers.settings.urls import ServerUrl
from tidegate_protocol.decisions import ITEMS_MAX, TEXT_MAX, Placed, PlacementReason, Rejected, Rejection
from tidegate_protocol.telemetry import DecisionMade, WriterStatus

RECORDS_MAX = 50


def status(number: int) -> WriterStatus:
    return WriterStatus(time_us=number, cluster="north", broker="edge-1", run=1, written=number, dropped=0)


async def never(connection: AbstractConnection) -> AbstractChannel:
    raise AssertionError("nobody is there to be prepared")


def make(url: str) -> tuple[TelemetryWriter, CollectorRegistry]:
    registry = CollectorRegistry()
    metrics = TelemetryMetrics(registry)
    return TelemetryWriter(ServerUrl.parse(url), never, metrics, RecordBuffer(RECORDS_MAX, 1 << 20)), registry


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Takes connections and what is sent over them, and never says a word."""
    said: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1024):
                said.append(data)
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"amqp://guest:guest@127.0.0.1:{port}/", said
    finally:
        server.close()


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 10), st.integers(1, 100))
def test_a_buffer_keeps_the_newest_within_both_bounds(sizes: list[int], records_max: int, bytes_max: int) -> None:
    buffer, dropped = RecordBuffer(records_max, bytes_max), 0
    put = [Encoded(str(number), b"x" * size) for number, size in enumerate(sizes)]
    for record in put:
        dropped += buffer.put(record)
        assert len(buffer) <= records_max
        assert buffer.length_bytes <= bytes_max
    kept = buffer.take(len(put))
    assert kept == put[dropped:], "the oldest go first, and each is kept or counted"
    assert (len(buffer), buffer.length_bytes) == (0, 0)


async def test_writing_never_waits_for_a_server_that_says_nothing() -> None:
    async with silent_server() as (url, said):
        writer, registry = make(url)
        running = [asyncio.create_task(writer.keeper.run()), asyncio.create_task(writer.run())]
        while not said:
            await asyncio.sleep(0.01)
        # Without a single await in between: nothing else runs, so nothing can be waited for.
        for number in range(10 * RECORDS_MAX):
            writer.write(status(number))
        assert writer.dropped == 9 * RECORDS_MAX
        assert registry.get_sample_value("tidegate_telemetry_buffered_records") == RECORDS_MAX
        labels = {"reason": DropReason.BUFFER_FULL.value}
        assert registry.get_sample_value("tidegate_telemetry_dropped_records_total", labels) == 9 * RECORDS_MAX
        assert writer.written == 0
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_a_clean_stop_waits_within_bounds_and_counts_what_is_left() -> None:
    writer, registry = make("amqp://guest:guest@127.0.0.1:1/")
    for number in range(3):
        writer.write(status(number))
    async with asyncio.timeout(5):
        await writer.flush(0.05)
    labels = {"reason": DropReason.STOPPED.value}
    assert registry.get_sample_value("tidegate_telemetry_dropped_records_total", labels) == 3
    async with asyncio.timeout(5):
        await make("amqp://guest:guest@127.0.0.1:1/")[0].flush(3600)  # nothing waits: nothing is waited for


async def test_drops_are_told_once_a_minute_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    writer, _ = make("amqp://guest:guest@127.0.0.1:1/")
    with caplog.at_level(logging.WARNING):
        for number in range(3 * RECORDS_MAX):
            writer.write(status(number))
    told = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert len(told) == 1
    assert "1 buffer-full" in told[0]


async def test_a_record_that_is_too_large_is_counted_and_hurts_nobody() -> None:
    writer, registry = make("amqp://guest:guest@127.0.0.1:1/")
    # Texts are bounded in characters, and so are lists: together they may be more bytes than a record may have.
    text = "\N{WATER WAVE}" * TEXT_MAX
    rejected = tuple(Rejected(text, Rejection.REFUSED, detail=text) for _ in range(ITEMS_MAX))
    placed = Placed("a", PlacementReason.NO_EDGE, rejected=rejected)
    writer.write(DecisionMade(time_us=1, cluster="c", broker="b", decision=placed.kind, record=placed))
    writer.write(status(1))
    labels = {"reason": DropReason.TOO_LARGE.value}
    assert registry.get_sample_value("tidegate_telemetry_dropped_records_total", labels) == 1
    assert registry.get_sample_value("tidegate_telemetry_buffered_records") == 1


async def test_only_a_record_that_rabbitmq_has_confirmed_counts_as_written() -> None:
    outcomes: list[asyncio.Future[bool]] = [asyncio.get_running_loop().create_future() for _ in range(5)]
    confirmed, returned, silent, cut, cancelled = outcomes
    confirmed.set_result(True)
    returned.set_result(False)
    cut.set_exception(ConnectionError("gone"))
    cancelled.cancel()
    assert outcome_of(confirmed) is None
    assert outcome_of(returned) is DropReason.REFUSED
    assert {outcome_of(each) for each in (silent, cut, cancelled)} == {DropReason.UNCONFIRMED}


def test_limits_are_those_that_rabbitmq_understands() -> None:
    assert StreamLimits(3600, 10, 5).arguments == {
        "x-queue-type": "stream",
        "x-max-age": "3600s",
        "x-max-length-bytes": 10,
        "x-stream-max-segment-size-bytes": 5,
    }
