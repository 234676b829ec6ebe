"""Rates, burstiness, forecasts, service rates and correlation, on arrivals that were made with known ones."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.support.telemetry_maker import (
    CLUSTER,
    HEAD,
    Floats,
    header,
    load,
    raw,
    records,
    report,
    reports_of_counts,
    topic_rate,
    window_start,
)
from tidegate_analytics import jobs
from tidegate_analytics.correlation import correlation
from tidegate_analytics.forecast import forecast
from tidegate_analytics.insight import TABLES, compose, read_tables
from tidegate_analytics.judging import judged, records_of
from tidegate_analytics.rates import coverage, moments, rates
from tidegate_analytics.runner import write_tables
from tidegate_analytics.service import service
from tidegate_protocol import telemetry as t
from tidegate_protocol.operations import Role

SEED = 20_131
BURSTY_SCV = 4.0


def poisson(random: np.random.Generator, count: int, rate: float) -> Floats:
    return np.asarray(random.exponential(1.0 / rate, count))


def clockwork(random: np.random.Generator, count: int, rate: float) -> Floats:
    return np.full(count, 1.0 / rate)


def bursty(random: np.random.Generator, count: int, rate: float) -> Floats:
    """Two exponentials with balanced means: a squared coefficient of variation of `BURSTY_SCV`, exactly."""
    share = 0.5 * (1.0 + np.sqrt((BURSTY_SCV - 1.0) / (BURSTY_SCV + 1.0)))
    fast = random.random(count) < share
    return np.asarray(random.exponential(1.0, count) / np.where(fast, 2.0 * share * rate, 2.0 * (1.0 - share) * rate))


ARRIVALS = {"poisson": (poisson, 1.0), "clock": (clockwork, 0.0), "bursty": (bursty, BURSTY_SCV)}


def reported(name: str, publisher: str, rate: float, seconds: float) -> list[t.PublisherRates]:
    """What a publisher with such arrivals reports every ten seconds."""
    random = np.random.default_rng([SEED, *publisher.encode()])
    gaps = ARRIVALS[name][0](random, round(rate * seconds * 1.3), rate)
    times = np.cumsum(gaps)
    edges = np.searchsorted(times, np.arange(0.0, seconds + 1.0, 10.0))
    return [
        report(10.0 * (at + 1), [topic_rate(f"topic.{name}", gaps[low:high])], publisher=publisher)
        for at, (low, high) in enumerate(pairwise(edges))
    ]


def test_moments_of_poisson_clockwork_and_bursty_arrivals(spark: SparkSession) -> None:
    """Within 5 %; each topic has a single publisher, so that nothing is approximated."""
    made = [one for name in ARRIVALS for one in reported(name, f"{name}~1", 400.0, 600.0)]
    found = {row["topic"]: row for row in moments(records(spark, "publisher-rates", made)).collect()}
    for name, (_, scv) in ARRIVALS.items():
        row = found[f"topic.{name}"]
        assert row["rate_per_s"] == pytest.approx(400.0, rel=0.05), f"seed {SEED}"
        assert row["scv"] == pytest.approx(scv, rel=0.05, abs=0.01), f"seed {SEED}"
        assert row["scv_asymptotic"] == row["scv"]
        assert row["covered_s"] == 600.0
        assert row["bytes_per_s"] == pytest.approx(row["rate_per_s"] * 100)


def test_publishers_of_one_topic_are_merged(spark: SparkSession) -> None:
    """Poisson streams make a Poisson stream; of bursty ones the asymptotic value is the weighted mean."""
    made = [one for number in range(4) for one in reported("poisson", f"p{number}~1", 100.0, 300.0)]
    made += reported("bursty", "b1~1", 300.0, 300.0) + reported("bursty", "b2~1", 100.0, 300.0)
    found = {row["topic"]: row for row in moments(records(spark, "publisher-rates", made)).collect()}
    calm, wild = found["topic.poisson"], found["topic.bursty"]
    assert calm["publishers"] == 4
    assert calm["rate_per_s"] == pytest.approx(400.0, rel=0.05)
    assert calm["scv"] == pytest.approx(1.0, rel=0.05)
    assert wild["scv_asymptotic"] == pytest.approx(BURSTY_SCV, rel=0.05)
    equal_publishers = 1.0 / (0.75**2 + 0.25**2)
    weight = 1.0 / (1.0 + 4.0 * 0.1**2 * (equal_publishers - 1.0))
    assert wild["scv"] == pytest.approx(weight * BURSTY_SCV + 1.0 - weight, rel=0.05)


def test_rates_by_window_share_periods_out_and_lose_nothing(spark: SparkSession) -> None:
    topics = [t.TopicRate(topic="a", messages=120, bytes=1_200)]
    made = [report(90, topics, elapsed_s=60.0), report(120, topics, elapsed_s=30.0)]
    rows = rates(records(spark, "publisher-rates", made), window_s=60).orderBy("window_start").collect()
    assert [row["window_start"].timestamp() for row in rows] == [window_start(0), window_start(60)]
    assert [row["messages"] for row in rows] == [60.0, 180.0]
    assert [row["covered_s"] for row in rows] == [30.0, 60.0]
    assert [row["rate_per_s"] for row in rows] == [2.0, 3.0]


def test_silence_of_a_living_head_counts_and_that_of_a_dead_one_does_not(spark: SparkSession) -> None:
    topics = [t.TopicRate(topic="a", messages=600, bytes=1)]
    reports = records(spark, "publisher-rates", [report(60, topics, elapsed_s=60.0)])
    alive = [load(second, HEAD, role=Role.HEAD) for second in range(120)]
    samples = records(spark, "load", [*alive, load(200, "edge-1")])
    covered = coverage(reports, samples, window_s=60).orderBy("window_start").collect()
    assert [row["covered_s"] for row in covered] == [60.0, 60.0]
    (row,) = moments(reports, samples, window_s=60).collect()
    assert row["rate_per_s"] == 5.0
    (alone,) = moments(reports, window_s=60).collect()
    assert alone["rate_per_s"] == 10.0


def test_forecasts_follow_level_and_trend(spark: SparkSession) -> None:
    windows = np.arange(40)
    counts = np.stack([600 + 0 * windows, 600 + 60 * windows, np.maximum(1_200 - 60 * windows, 0)])
    reports = records(spark, "publisher-rates", reports_of_counts(counts, ["flat", "rising", "ending"]))
    table = forecast(rates(reports), coverage(reports), 60, steps=3)
    found = {(row["topic"], row["step"]): row for row in table.collect()}
    assert len(found) == 9
    for step in (1, 2, 3):
        assert found["flat", step]["rate_per_s"] == pytest.approx(10.0)
        assert found["rising", step]["rate_per_s"] == pytest.approx(10.0 + 39 + step)
        assert 0.0 <= found["ending", step]["rate_per_s"] < 0.5
    assert found["flat", 1]["error_per_s"] == pytest.approx(0.0, abs=1e-9)
    assert found["flat", 2]["window_start"].timestamp() == window_start(41 * 60)


def test_service_rates_are_seen_while_edges_are_busy(spark: SparkSession) -> None:
    made = [
        load(
            second, "edge-1", waiting=20.0 if second < 30 else 0.0, bytes_used_per_s=1_000.0 if second < 30 else 300.0,
            uplink_bytes_per_s=1_100.0 if second > 0 else None, bytes_in_per_s=500.0, messages_in_per_s=5.0,
        )
        for second in range(60)
    ]  # fmt: skip
    made.append(load(5, "edge-2", bytes_used_per_s=100.0))
    rows = {row["broker"]: row for row in service(records(spark, "load", made)).collect()}
    busy, idle = rows["edge-1"], rows["edge-2"]
    assert (busy["samples"], busy["busy_samples"], busy["served_bytes_per_s"]) == (60, 30, 1_000.0)
    assert (busy["uplink_bytes_per_s"], busy["message_bytes"], busy["served_messages_per_s"]) == (1_100.0, 100.0, 10.0)
    assert (idle["busy_samples"], idle["served_bytes_per_s"], idle["served_messages_per_s"]) == (0, None, None)


def unrelated(random: np.random.Generator, topics: int, windows: int) -> Floats:
    """Rates of many tempers, none of which has to do with another: even, drifting, trending, rarely spiking."""
    steps = random.normal(0.0, 1.0, (topics, windows))
    means = random.uniform(50.0, 2_000.0, (topics, 1))
    shapes = np.ones((topics, windows))
    drift = steps[0::4].cumsum(axis=1)
    shapes[0::4] = 1.0 + 0.3 * np.tanh(0.2 * drift)
    shapes[1::4] *= np.linspace(0.5, 1.5, windows)
    shapes[2::4] += 5.0 * (random.random(shapes[2::4].shape) < 0.01)
    return np.asarray(random.poisson(means * np.maximum(shapes, 0.01)), dtype=np.float64)


def planted(random: np.random.Generator, counts: Floats, names: list[str], pairs: int) -> set[tuple[str, str]]:
    """Pairs of the even ones rise together: half of them now and then, half all the time."""
    even = np.arange(3, len(names), 4)[: 2 * pairs].reshape(pairs, 2)
    windows = counts.shape[1]
    for at, (first, second) in enumerate(even):
        common = random.random(windows) < 0.1 if at % 2 else random.uniform(-0.5, 0.5, windows)
        for row in (first, second):
            counts[row] = random.poisson(400.0 * (1.0 + common))
    return {(min(names[a], names[b]), max(names[a], names[b])) for a, b in even}


def test_correlation_of_500_topics_finds_what_is_there_and_invents_nothing(spark: SparkSession) -> None:
    random = np.random.default_rng(SEED)
    names = [f"topic.{number:03}" for number in range(500)]
    counts = unrelated(random, 500, 240)
    expected = planted(random, counts, names, 25)
    reports = records(spark, "publisher-rates", reports_of_counts(counts, names)).cache()
    rows = correlation(rates(reports), coverage(reports), 60).collect()
    assert {(row["topic_a"], row["topic_b"]) for row in rows} == expected, f"seed {SEED}"
    assert all(row["windows"] == 240 and row["support"] >= 10 and row["coefficient"] >= 0.5 for row in rows)
    assert [row["coefficient"] for row in rows] == sorted((row["coefficient"] for row in rows), reverse=True)


def test_an_outage_of_telemetry_correlates_nothing(spark: SparkSession) -> None:
    """While the head is down all topics are silent together; that is not the topics' doing."""
    random = np.random.default_rng(SEED)
    counts = random.poisson(600.0, (20, 100)).astype(float)
    made = [
        one for one in reports_of_counts(counts, [f"t{number}" for number in range(20)])
        if not 30 * 60 < (one.time_us - header(0)["time_us"]) / 1e6 <= 50 * 60
    ]  # fmt: skip
    reports = records_of(judged(raw(spark, map(t.encode, made))), "publisher-rates")
    tables = jobs.OVER_LAKE["correlation"].tables(
        lambda kind: reports if kind == "publisher-rates" else records(spark, kind, []), jobs.Options()
    )
    assert tables["correlation"].collect() == []
    assert coverage(reports).count() == 80


def test_what_is_written_becomes_an_insight(spark: SparkSession, tmp_path: Path) -> None:
    """From telemetry to what heads are sent, through the very files that Spark writes."""
    random = np.random.default_rng(SEED)
    windows = 120
    burst = 1.0 + 3.0 * (random.random(windows) < 0.15)
    counts = random.poisson(600.0, (4, windows)).astype(float)
    counts[:2] = random.poisson(600.0 * burst, (2, windows))
    reports = records(spark, "publisher-rates", reports_of_counts(counts, ["rain", "flood", "calm", "dry"])).cache()
    busy = [load(60.0 * n, "edge-1", waiting=50.0, bytes_used_per_s=1e6) for n in range(20)]
    loads = records(spark, "load", busy).cache()

    found = {
        name: table
        for job in ("rates", "correlation")
        for name, table in jobs.OVER_LAKE[job]
        .tables(lambda kind: reports if kind == "publisher-rates" else loads, jobs.Options())
        .items()
    }
    write_tables(spark, {name: found[name] for name in TABLES}, str(tmp_path))
    now_s = window_start(60.0 * windows)
    for file in tmp_path.glob("*/*.parquet"):
        os.utime(file, (now_s, now_s))
    made = compose(read_tables(tmp_path), CLUSTER, now_s + 5.0, 3_600.0)
    assert [(pair.topic_a, pair.topic_b) for pair in made.insight.pairs] == [("flood", "rain")], f"seed {SEED}"
    assert {one.topic for one in made.insight.forecasts} == {"rain", "flood", "calm", "dry"}
    calm = next(one for one in made.insight.forecasts if one.topic == "calm")
    assert calm.level_per_s == pytest.approx(10.0, rel=0.2)
    assert calm.horizon_us == 600_000_000
    assert [(one.edge, one.uplink_bytes_per_s) for one in made.insight.capacities] == [("edge-1", 1e6)]
    assert made.left_out == {}
