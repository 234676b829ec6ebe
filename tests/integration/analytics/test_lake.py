"""The lake: every record once and as it was, whatever is in the stream and whenever the writer is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from tests.support.telemetry_maker import HOUR_US, START_US, RawStream, digest, load
from tests.unit.protocol.telemetry_samples import SAMPLES
from tidegate_analytics import lake
from tidegate_analytics.errors import LakeMismatch, LakeMissing, QueryFailed
from tidegate_analytics.jobs import Options
from tidegate_analytics.runner import run_over_lake, wait
from tidegate_protocol import telemetry as t
from tidegate_protocol.decisions import PlanOutcome, Rejected, Rejection, SessionPlanned, from_plain

ROOT = Path(__file__).parents[3]
KILL_TIMEOUT_S = 120.0


def plain(value: object) -> object:
    """Rows and all in them as plain Python, without what is not known."""
    if isinstance(value, Row):
        return {name: plain(one) for name, one in value.asDict().items() if one is not None}
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def recent(record: t.TelemetryRecord) -> t.TelemetryRecord:
    return record.model_copy(update={"time_us": START_US})


def write(spark: SparkSession, stream: RawStream, path: Path) -> list[lake.BatchCounts]:
    seen: list[lake.BatchCounts] = []
    wait(lake.start(stream.read(spark), str(path), on_batch=seen.append))
    return seen


def offsets(spark: SparkSession, path: Path) -> list[int]:
    """Of everything in the lake, sorted, as often as it is there."""
    whole = lake.Lake(spark, str(path))
    tables = [whole.read(kind) for kind in t.KINDS if (path / f"kind={kind}").exists()]
    return sorted(row["stream_offset"] for table in [*tables, whole.quarantine()] for row in table.collect())


def test_every_kind_is_read_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    """Each sample has every field filled in: a column that is missing, or of a wrong type, shows."""
    stream, path = RawStream(tmp_path / "raw"), tmp_path / "lake"
    samples = [recent(sample) for sample in SAMPLES]
    stream.add(spark, map(t.encode, samples))
    (counts,) = write(spark, stream, path)
    assert counts == lake.BatchCounts(0, dict.fromkeys(t.KINDS, 1), {})
    whole = lake.Lake(spark, str(path))
    for sample in samples:
        (row,) = whole.read(sample.kind).collect()
        fields = plain(row)
        assert isinstance(fields, dict)
        if isinstance(sample, t.DecisionMade):
            fields["record"] = json.loads(fields["record"])  # the column is the decision as JSON
        assert t.decode(json.dumps({"kind": sample.kind, **fields}, default=str).encode()) == sample
        assert row["time"].replace(tzinfo=UTC) == datetime.fromtimestamp(START_US / 1e6, UTC)
        assert (row["stream_broker"], row["stream"], row["batch"]) == ("head", "tidegate.telemetry", 0)
        day = datetime.fromtimestamp(START_US / 1e6, UTC).date()
        assert row["date"] == day
        assert list((path / f"kind={sample.kind}" / f"date={day}" / "batch=0").glob("*.parquet"))
    assert whole.counts().records == dict.fromkeys(t.KINDS, 1)


def bad_bodies() -> dict[str, list[bytes]]:
    good = json.loads(t.encode(digest(0, [1_000])))
    now_us = time.time_ns() // 1_000

    def changed(**fields: object) -> bytes:
        return json.dumps({**good, **fields}).encode()

    return {
        "not-json": [b"", b"{", b"\xff\xfe\x00", b'{"kind": NaN', t.encode(digest(0, [1]))[:-1]],
        "unknown-kind": [b"{}", changed(kind="weather"), changed(kind=None)],
        "unknown-version": [changed(version=2), changed(version="one")],
        "invalid-field": [
            changed(received=-1), changed(late="many"), changed(counts=[]), changed(buckets=[5, 4], counts=[1, 1]),
            changed(pattern="a..b"), changed(time_us=-5), changed(cluster=""), b'{"kind": "latency"}', b"[]",
            changed(received=10**30), changed(received=2**63), changed(time_us=10**30),
        ],
        "impossible-value": [changed(received=2**63 - 1), changed(number=2**53 + 1)],
        "future-time": [changed(time_us=now_us + HOUR_US), changed(time_us=10**17), changed(time_us=2**63 - 1)],
        "past-time": [changed(time_us=1_000_000)],
        "too-large": [b" " * (t.RECORD_BYTES_MAX + 1)],
    }  # fmt: skip


def test_whatever_is_no_record_is_quarantined_with_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    """In any order among good ones; a clock that is a little ahead is none of it."""
    stream, path = RawStream(tmp_path / "raw"), tmp_path / "lake"
    bad = bad_bodies()
    slightly_ahead = digest(0, [1], number=2).model_copy(update={"time_us": time.time_ns() // 1_000 + 30_000_000})
    told = Rejected(
        "\u2028", Rejection.REFUSED, "\ud7ff", value=1.7e308, limit=-1.7e308, detail='\u0000"\\\n' + "☃" * 200
    )
    plan = SessionPlanned("edge-1", PlanOutcome.NO_ROOM, (), 2, drain_factor=5e-324, rejected=(told,))
    extremes = t.DecisionMade(
        time_us=START_US, cluster="north", broker="edge-1", decision=plan.kind, reason='\u0000"\\\n☃', record=plan
    )
    newer = json.dumps({**json.loads(t.encode(digest(0, [1], number=3))), "field_of_the_future": {"a": [1]}}).encode()
    # What is text in JSON and a number in the model is taken, as every reader of records takes it.
    lax = json.dumps({**json.loads(t.encode(digest(0, [1], number=4))), "received": "1", "late": 0.0}).encode()
    good = [t.encode(digest(0, [1_000])), t.encode(slightly_ahead), t.encode(extremes), newer, lax]
    bodies = [body for some in bad.values() for body in some]
    stream.add(spark, [*good[:2], *bodies, *good[2:]])
    (counts,) = write(spark, stream, path)
    assert counts.records == {"latency": 4, "decision": 1}
    assert counts.refused == {reason: len(some) for reason, some in bad.items()}
    whole = lake.Lake(spark, str(path))
    rows = whole.quarantine().collect()
    assert Counter(row["reason"] for row in rows) == counts.refused
    assert {bytes(row["body"]) for row in rows if row["reason"] != "too-large"} == {
        body for reason, some in bad.items() if reason != "too-large" for body in some
    }
    (large,) = [row for row in rows if row["reason"] == "too-large"]
    assert (large["body_bytes"], len(large["body"])) == (t.RECORD_BYTES_MAX + 1, t.RECORD_BYTES_MAX)
    assert all(row["detail"] for row in rows)
    (decision,) = whole.read("decision").collect()
    assert (decision["decision"], decision["reason"]) == (extremes.decision, extremes.reason)
    assert from_plain(json.loads(decision["record"])) == plan
    assert sorted(row["received"] for row in whole.read("latency").collect()) == [1, 1, 1, 1]
    assert offsets(spark, path) == list(range(stream.offset))


def killed_in(stream: RawStream, path: Path, batch: int) -> None:
    """Have a process write the lake and be killed in a batch, and wait until its JVM is gone too."""
    command = [sys.executable, "-m", "tests.support.lake_child", str(stream.directory), str(path), str(batch)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=KILL_TIMEOUT_S)
    assert run.returncode == -9, run.stderr[-2_000:]
    deadline_s = time.monotonic() + KILL_TIMEOUT_S
    while Path(f"/proc/{run.stdout.strip()}").exists():
        assert time.monotonic() < deadline_s, "the JVM outlives its driver"
        time.sleep(0.1)


def test_each_record_is_there_once_though_the_writer_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, path = RawStream(tmp_path / "raw"), tmp_path / "lake"
    for batch in range(4):
        loads = [t.encode(load(10 * batch + at, "edge-1", 0.5)) for at in range(5)]
        stream.add(spark, [*loads, t.encode(digest(batch, [9])), b"no record"])
    batch_rows = stream.offset // 4

    # Killed with the files of batch 1 written, and not committed.
    killed_in(stream, path, 1)
    assert list(path.glob("kind=load/date=*/batch=1/*.parquet")), "the kill came too early to show anything"
    assert offsets(spark, path) == list(range(batch_rows)), "what is not committed is seen by nobody"

    # Ended with batch 2 committed, before Spark has heard of it.
    commit = lake.LakeWriter._commit

    def ended(self: lake.LakeWriter, number: int) -> None:
        commit(self, number)
        if number == 2:
            raise OSError("the power fails")

    with monkeypatch.context() as patch:
        patch.setattr(lake.LakeWriter, "_commit", ended)
        with pytest.raises(QueryFailed, match="the power fails"):
            write(spark, stream, path)
    assert not (path / "_checkpoint" / "commits" / "2").exists(), "Spark knows, so nothing is shown"
    assert offsets(spark, path) == list(range(3 * batch_rows))

    (last,) = write(spark, stream, path)
    assert last == lake.BatchCounts(3, {"load": 5, "latency": 1}, {"not-json": 1})
    assert offsets(spark, path) == list(range(4 * batch_rows))
    assert write(spark, stream, path) == []
    assert [name for name in os.listdir(path / "_committed") if name.isdigit()] == ["3"]


def test_a_lake_without_its_checkpoint_is_not_written_to(spark: SparkSession, tmp_path: Path) -> None:
    stream, path = RawStream(tmp_path / "raw"), tmp_path / "lake"
    stream.add(spark, [t.encode(digest(0, [1]))])
    write(spark, stream, path)
    (path / "_checkpoint").rename(tmp_path / "lost")
    with pytest.raises(LakeMismatch, match=r"checkpoint is gone.*put its _checkpoint back"):
        lake.start(stream.read(spark), str(path))
    (tmp_path / "lost").rename(path / "_checkpoint")
    (path / "_committed" / "0").rename(path / "_committed" / "7")
    stream.add(spark, [t.encode(digest(1, [1]))])
    with pytest.raises(QueryFailed, match="the checkpoint is at batch 1, the last one here is 7"):
        wait(lake.start(stream.read(spark), str(path)))


def test_jobs_over_a_lake_write_whole_tables_of_chosen_days(spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "lake", tmp_path / "out"
    with pytest.raises(LakeMissing, match="tidegate analytics run lake"):
        run_over_lake(spark, "attainment", str(path), str(out), Options())
    stream = RawStream(tmp_path / "raw")
    stream.add(spark, map(t.encode, [digest(0, [1_000] * 5), digest(-86_400, [1_000] * 7, number=2)]))
    write(spark, stream, path)
    day: date = datetime.fromtimestamp(START_US / 1e6, UTC).date()

    def received(**days: date) -> list[int]:
        (table,) = run_over_lake(spark, "attainment", str(path), str(out), Options(), **days)
        rows = spark.read.parquet(table.path).where("grain = 'cluster'").orderBy("window_start").collect()
        return [row["received"] for row in rows]

    assert received() == [7, 5]
    assert received(since=day) == [5]
    assert received(until=day - timedelta(days=1)) == [7]
    assert sorted(each.name for each in out.iterdir()) == ["attainment"]
    tables = run_over_lake(spark, "balance", str(path), str(out), Options())
    assert {table.name: table.rows for table in tables} == {"imbalance": 0, "states": 0, "moves": 0}
