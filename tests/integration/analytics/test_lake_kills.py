"""Every record of the stream once in the lake, though the Spark driver and RabbitMQ are killed at random.

LAKE_RECORDS=200000 LAKE_KILLS=6 runs it with more than the suite does, LAKE_SEED=N as it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.drivers import Driver
from tests.support.spark import java_problem
from tests.support.streams import contents, declare, publish
from tests.support.telemetry_maker import digest, load
from tests.support.waiting import eventually
from tidegate_embedded.nodes import amqp_url, rabbit_nodes
from tidegate_protocol.names import TELEMETRY_STREAM
from tidegate_protocol.telemetry import encode

RECORDS = int(os.environ.get("LAKE_RECORDS", "3000"))
KILLS = int(os.environ.get("LAKE_KILLS", "2"))
SEED = int(os.environ.get("LAKE_SEED", str(time.time_ns() % 1_000_000)))
BATCHES = 3
"""Of each portion."""
BATCH_S = 300.0
DRIVER_S = 300.0 + RECORDS / 200
PAUSE_S_MAX = 2.0
"""From the beginning of a batch to the kill."""
BAD_EVERY = 97


def bodies(first: int, count: int) -> list[bytes]:
    """Records of two kinds, told apart by their numbers, and now and then something that is none."""
    made = []
    for number in range(first, first + count):
        if number % BAD_EVERY == 0:
            made.append(b"no record %d" % number)
        elif number % 2:
            made.append(encode(digest(number / 100, [1_000], number=number)))
        else:
            made.append(encode(load(number / 100, "edge-1", waiting=float(number))))
    return made


def in_lake(path: Path) -> list[tuple[int, bytes]]:
    """Offset and what tells the record, of everything that readers of the lake see."""
    committed = max(int(name) for name in os.listdir(path / "_committed") if name.isdigit())
    found: list[tuple[int, bytes]] = []
    for table, column in (("kind=latency", "number"), ("kind=load", "waiting"), ("quarantine", "body")):
        for file in sorted((path / table).glob("date=*/batch=*/*.parquet")):
            if int(file.parent.name.partition("=")[2]) <= committed:
                rows = pq.ParquetFile(file).read(["stream_offset", column])
                offsets, values = (rows[name].to_pylist() for name in ("stream_offset", column))
                found += [(offset, told(value)) for offset, value in zip(offsets, values, strict=True)]
    return found


def told(value: object) -> bytes:
    return value if isinstance(value, bytes) else b"%d" % int(float(str(value)))


def identity(body: bytes) -> bytes:
    if not body.startswith(b"{"):
        return body
    record = json.loads(body)
    return told(record["number"] if record["kind"] == "latency" else record["waiting"])


@pytest.mark.timeout(900 + RECORDS / 20)
async def test_every_record_is_in_the_lake_once_through_kills_at_random(tmp_path: Path) -> None:
    problem = java_problem()
    if problem is not None:
        pytest.skip(f"Spark is not tested: {problem}")
    print(f"LAKE_SEED={SEED}")
    rng = random.Random(SEED)
    # Half of them are RabbitMQ's, in any order.
    victims = ["driver"] * (KILLS - KILLS // 2) + ["rabbitmq"] * (KILLS // 2)
    rng.shuffle(victims)
    killed: Counter[str] = Counter()
    async with rabbit_nodes(["rabbit"]) as nodes:
        node = nodes["rabbit"]
        url, path = amqp_url(node), tmp_path / "lake"
        portion = RECORDS // KILLS
        options = {"connectRetries": "60", "maxRowsPerBatch": str(max(1, portion // BATCHES))}
        module = "tests.support.stream_to_lake"
        driver = Driver(tmp_path, path / "_checkpoint", module, str(path), url, json.dumps(options))
        await asyncio.to_thread(declare, url, TELEMETRY_STREAM)
        written, ended = 0, False
        while not ended:
            # More comes between two runs: a batch that was interrupted keeps its end all the same.
            count = portion if len(victims) > 1 else RECORDS - written
            if count:
                await asyncio.to_thread(publish, url, TELEMETRY_STREAM, bodies(written, count))
            written += count
            async with driver.started() as process:
                victim = victims.pop() if victims else "nobody"
                if victim != "nobody":
                    await middle_of_a_batch(driver, process, rng.uniform(0.0, PAUSE_S_MAX))
                    killed[victim] += 1
                if victim == "driver":
                    await driver.kill(process)
                    continue
                if victim == "rabbitmq":
                    await node.kill()
                    await node.start()
                await driver.finish(process, DRIVER_S)
                ended = not victims
        truth = await asyncio.to_thread(contents, url, TELEMETRY_STREAM)
    assert len(truth) == RECORDS, f"RabbitMQ lost messages, seed {SEED}"
    rows = await asyncio.to_thread(in_lake, path)
    print(f"killed {dict(killed)}; {len(rows)} records in {driver.committed} batches")
    assert len(rows) == len(truth), f"seed {SEED}"
    assert dict(rows) == {offset: identity(body) for offset, body in truth.items()}, f"seed {SEED}"


async def middle_of_a_batch(driver: Driver, process: asyncio.subprocess.Process, pause_s: float) -> None:
    """Wait until a batch is under way, and some time more."""

    def begun() -> bool:
        assert process.returncode is None, driver.said()
        return driver.under_way

    await eventually(begun, "a batch is under way", BATCH_S)
    await asyncio.sleep(pause_s)
    assert process.returncode is None, "the run was over before the kill"
