"""Deadline attainment on digests whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tests.support.telemetry_maker import RawStream, digest, records, window_start
from tidegate_analytics.attainment import attainment, quantile_name
from tidegate_analytics.errors import InvalidOption
from tidegate_analytics.jobs import Options
from tidegate_analytics.runner import run_live
from tidegate_protocol.latency import bucket_middle_us, bucket_of, quantile_us
from tidegate_protocol.telemetry import encode

FAST, SLOW = [200_000] * 90, [2_000_000] * 10


def row_of(table: DataFrame, grain: str, **wanted: object) -> Row:
    rows = [row for row in table.collect() if row["grain"] == grain]
    (found,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return found


def test_attainment_is_exact_at_every_grain(spark: SparkSession) -> None:
    made = [
        digest(10, FAST + SLOW, subscriber="siren", number=1),
        digest(20, FAST, subscriber="siren", number=2),
        digest(20, [400_000] * 100, subscriber="lamp", number=1),
        digest(30, [3_000_000] * 20, subscriber="lamp", pattern="wave.*", number=2),
        digest(310, FAST, subscriber="siren", number=3),
    ]
    table = attainment(records(spark, "latency", made), window_s=300).cache()
    siren = row_of(table, "subscription", subscriber="siren", digests=2)
    assert (siren["received"], siren["late"], siren["timed"]) == (190, 10, 190)
    assert siren["attainment"] == 1 - 10 / 190
    assert siren["deadline_us_min"] == 1_500_000
    assert siren["latency_us_mean"] == (180 * 200_000 + 10 * 2_000_000) / 190
    assert siren["window_start"].timestamp() == window_start(0)
    assert siren["window_end"].timestamp() == window_start(300)
    pattern = row_of(table, "pattern", pattern="quake.#", digests=3)
    assert (pattern["subscriber"], pattern["received"], pattern["late"]) == (None, 290, 10)
    cluster = row_of(table, "cluster", digests=4)
    assert (cluster["pattern"], cluster["received"], cluster["late"]) == (None, 310, 30)
    assert row_of(table, "cluster", digests=1)["window_start"].timestamp() == window_start(300)
    assert table.count() == 3 + 1 + 2 + 1 + 1 + 1


def test_quantiles_are_those_of_all_digests_merged(spark: SparkSession) -> None:
    latencies = [[(index * 37 % 1_000 + 1) * (7 + part) for index in range(400)] for part in range(3)]
    made = [digest(10 + part, some, number=part + 1) for part, some in enumerate(latencies)]
    found = row_of(attainment(records(spark, "latency", made)), "pattern")
    merged: dict[int, int] = {}
    for latency in (each for some in latencies for each in some):
        merged[bucket_of(latency)] = merged.get(bucket_of(latency), 0) + 1
    for share in (0.5, 0.9, 0.99):
        assert found[quantile_name(share)] == quantile_us(merged, share)
    assert found["latency_us_p50"] == pytest.approx(sorted(each for some in latencies for each in some)[599], rel=0.02)


def test_a_report_taken_twice_counts_once(spark: SparkSession) -> None:
    made = [digest(10, FAST, number=1), digest(12, FAST, number=1), digest(12, FAST, number=1, pattern="wave.*")]
    assert row_of(attainment(records(spark, "latency", made)), "cluster")["received"] == 180


def test_nothing_received_has_no_attainment(spark: SparkSession) -> None:
    found = row_of(attainment(records(spark, "latency", [digest(10, [])])), "subscription")
    assert (found["received"], found["attainment"], found["latency_us_p50"]) == (0, None, None)


def test_a_window_that_makes_no_sense_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidOption, match="window: 0 s is not possible; give 1 to"):
        attainment(records(spark, "latency", []), window_s=0)


def test_a_stream_tells_each_window_once_and_counts_what_is_too_late(spark: SparkSession, tmp_path: Path) -> None:
    stream = RawStream(tmp_path / "raw")
    batches = [
        [digest(10, FAST, number=1), digest(70, FAST, number=2)],
        [digest(55, SLOW, number=3), digest(70, FAST, number=2)],  # out of order but in time; taken twice
        [digest(250, FAST, number=4)],
        [digest(252, FAST, number=10)],  # the watermark passes 250 - 60 = 190, and counts from the next batch on
        [digest(20, SLOW, number=5), digest(30, SLOW, number=6), digest(251, FAST, number=7)],  # two too late
        [digest(900, FAST, number=8)],
        [digest(901, FAST, number=9)],
    ]
    for batch in batches:
        stream.add(spark, [b"no record at all", *map(encode, batch)])
    out = tmp_path / "out"
    progress = run_live(stream.read(spark), "attainment", str(out), Options(60, 60), follow=False)
    table = spark.read.parquet(str(out / "attainment")).where("grain = 'pattern'").orderBy("window_start")
    told = [
        (row["window_start"].timestamp() - window_start(0), row["received"], row["late"]) for row in table.collect()
    ]
    assert told == [(0, 100, 10), (60, 90, 0), (240, 270, 0)]
    assert progress.late == 2
    assert progress.rows == sum(len(batch) + 1 for batch in batches)
    assert bucket_middle_us(bucket_of(200_000)) == table.collect()[0]["latency_us_p50"]
