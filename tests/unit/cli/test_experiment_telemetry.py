"""The telemetry that an experiment leaves: all that was published and delivered, in records that every reader takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tidegate_experiments.burst.run import run_ews
from tidegate_experiments.burst.scenario import EwsOptions, scenario
from tidegate_experiments.telemetry import (
    DETAIL_PERIOD_S,
    PERIODS_MAX,
    ClientBook,
    SimulatedTelemetry,
    detail_period_s,
    write_telemetry,
)
from tidegate_protocol.latency import merged, quantile_us
from tidegate_protocol.telemetry import LatencyDigest, LoadSample, PublisherRates, TelemetryRecord, decode

ENDED_US = 1_770_000_000_000_000
OPTIONS = EwsOptions(policy="peer", scale=0.05, duration_s=24.0, burst_at_s=16.0)


def test_a_digest_is_what_was_delivered_in_its_period() -> None:
    wanted = scenario(OPTIONS)
    subscriber = wanted.subscribers[0]
    book = ClientBook(wanted, "north", "head", began_us=1_000_000)
    for latency_s in (0.1, 0.1, 0.1, 5.0):
        book.delivered(subscriber.name, 1.0, 1.0 + latency_s, late=latency_s > 1)
    first, second = sorted(book.records(), key=lambda record: record.time_us)
    assert isinstance(first, LatencyDigest)
    assert isinstance(second, LatencyDigest)
    assert (first.received, first.late, first.latency_us_sum) == (3, 0, 300_000)
    assert (first.time_us, second.time_us) == (3_000_000, 9_000_000), "the ends of their periods"
    assert (second.received, second.late) == (1, 1)
    assert (first.pattern, first.deadline_us) == (subscriber.pattern, round(subscriber.deadline_s * 1e6))
    assert quantile_us(merged([(second.buckets, second.counts)]), 0.5) == pytest.approx(5e6, rel=0.02)


def test_gaps_between_publications_are_summed() -> None:
    wanted = scenario(OPTIONS)
    topic = wanted.publishers[0].topic
    book = ClientBook(wanted, "north", "head", began_us=0)
    for at_s in (0.0, 0.5, 1.5):
        book.published("sensor~1", topic, at_s)
    (record,) = book.records()
    assert isinstance(record, PublisherRates)
    (rate,) = record.topics
    assert (rate.messages, rate.gaps, rate.gap_s_sum, rate.gap_s2_sum) == (3, 2, 1.5, 1.25)
    assert rate.bytes == 3 * round(wanted.publishers[0].message_bytes)


def test_long_runs_tell_less_often() -> None:
    assert detail_period_s(90) == DETAIL_PERIOD_S
    assert 3_600 / detail_period_s(3_600) <= PERIODS_MAX


def test_a_simulated_run_in_records(tmp_path: Path) -> None:
    telemetry = SimulatedTelemetry(ENDED_US)
    run = run_ews(OPTIONS, besides=(telemetry,))
    assert run_ews(OPTIONS).result.trace_hash == run.result.trace_hash, "looking on changes nothing"
    lines = write_telemetry(telemetry.records(), tmp_path).read_bytes().splitlines()
    records: list[TelemetryRecord] = [decode(line) for line in lines]
    times = [record.time_us for record in records]
    assert times == sorted(times)
    assert times[-1] <= ENDED_US
    kinds = Counter(record.kind for record in records)
    assert sum(record.received for record in records if isinstance(record, LatencyDigest)) == run.result.deliveries
    assert sum(record.late for record in records if isinstance(record, LatencyDigest)) == run.result.late
    assert kinds["migration"] >= run.result.migrations > 0
    assert kinds["session-began"] == run.result.sessions + run.result.sessions_in_vain
    loads = Counter(record.broker for record in records if isinstance(record, LoadSample))
    assert set(loads) == {"b0", "b1", "b2", "b3", telemetry_head(records)}
    assert all(22 <= count <= 25 for count in loads.values()), loads
    assert kinds["thresholds"] > 30


def telemetry_head(records: list[TelemetryRecord]) -> str:
    return next(record.broker for record in records if isinstance(record, PublisherRates))
