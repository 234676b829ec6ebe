"""Imbalance, states, moves and returns, and the audit of predictions, on records whose answer is known."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.telemetry_maker import HEAD, RawStream, header, load, move, records, window_start
from tidegate_analytics.audit import OFFERED, audit, errors
from tidegate_analytics.balance import imbalance, moves, returns, states
from tidegate_analytics.jobs import Options
from tidegate_analytics.runner import run_live
from tidegate_protocol import telemetry as t
from tidegate_protocol.operations import Role
from tidegate_protocol.parts import LoadState


def test_imbalance_is_exact(spark: SparkSession) -> None:
    made = [
        # Means of 0.4, 0.8 and 0.6 in the first minute, whoever samples more often.
        *[load(second, "edge-1", 0.4) for second in range(50)],
        load(10, "edge-2", 0.7),
        load(20, "edge-2", 0.9),
        load(10, "edge-3", 0.6, waiting=12.0),
        # None of these counts: a head, an edge that takes no part, and one that does not know its uplink.
        load(10, HEAD, 0.99, role=Role.HEAD),
        load(10, "edge-4", 0.0, state=LoadState.NOT_AVAILABLE),
        load(10, "edge-5"),
        load(70, "edge-1", 0.5),
    ]
    table = imbalance(records(spark, "load", made), window_s=60).cache()
    uplink = table.where("metric = 'uplink'").orderBy("window_start").collect()
    assert [row["edges"] for row in uplink] == [3, 1]
    first = uplink[0]
    deviation = sqrt((0.2**2 + 0.2**2 + 0.0) / 3)
    assert first["mean"] == pytest.approx(0.6, rel=1e-12)
    assert first["standard_deviation"] == pytest.approx(deviation, rel=1e-12)
    assert first["coefficient_of_variation"] == pytest.approx(deviation / 0.6, rel=1e-12)
    assert first["max_to_mean"] == pytest.approx(0.8 / 0.6, rel=1e-12)
    assert (first["min"], first["max"]) == (pytest.approx(0.4), pytest.approx(0.8))
    assert uplink[1]["coefficient_of_variation"] == 0.0
    (waiting,) = table.where(f"metric = 'waiting' and window_start = timestamp_seconds({window_start(0)})").collect()
    assert (waiting["edges"], waiting["mean"], waiting["max_to_mean"]) == (4, 3.0, 4.0)
    (nothing,) = table.where(f"metric = 'waiting' and window_start = timestamp_seconds({window_start(60)})").collect()
    assert (nothing["mean"], nothing["coefficient_of_variation"], nothing["max_to_mean"]) == (0.0, None, None)


def test_imbalance_over_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    stream = RawStream(tmp_path / "raw")
    for batch in ([load(1, "edge-1", 0.2), load(2, "edge-2", 0.4)], [load(500, "edge-1", 0.5)], [load(501, "edge-1")]):
        stream.add(spark, map(t.encode, batch))
    progress = run_live(stream.read(spark), "balance", str(tmp_path / "out"), Options(60, 60), follow=False)
    assert (progress.rows, progress.late) == (4, 0)
    (row,) = spark.read.parquet(str(tmp_path / "out" / "imbalance")).where("metric = 'uplink'").collect()
    assert (row["edges"], row["mean"]) == (2, pytest.approx(0.3))


def test_states_over_time(spark: SparkSession) -> None:
    made = [load(second, "edge-1", state=LoadState.LOW if second < 45 else LoadState.OVERLOAD) for second in range(60)]
    changes = [
        t.StateChange(**header(0, "edge-1"), role=Role.EDGE, state=LoadState.LOW),
        t.StateChange(**header(45, "edge-1"), role=Role.EDGE, state=LoadState.OVERLOAD, before=LoadState.LOW),
        t.StateChange(**header(65, "edge-1"), role=Role.EDGE, state=LoadState.LOW, before=LoadState.OVERLOAD),
    ]
    table = states(records(spark, "load", made), records(spark, "state", changes), window_s=60)
    first, second = table.orderBy("window_start").collect()
    assert (first["samples"], first["share_low"], first["share_overload"], first["changes"]) == (60, 0.75, 0.25, 1)
    assert (second["samples"], second["share_low"], second["changes"]) == (0, None, 1)


def test_moves_and_returns_per_hour(spark: SparkSession) -> None:
    migrations = [
        move(100, "siren", "edge-1", "edge-2"),
        move(200, "siren", "edge-2", "edge-3"),
        move(300, "siren", "edge-3", "edge-1"),  # back on the broker it left first
        move(400, "lamp", "edge-2", "edge-1"),
        move(500, "lamp", "edge-1", "edge-2", moved=False),  # it stayed: no return
        move(600, "bell", "edge-1", "edge-2"),
        move(600 + 3_700, "bell", "edge-2", "edge-1"),  # back too, but after more than an hour
    ]
    told = returns(records(spark, "migration", migrations)).where("is_return").collect()
    assert [(row["client"], row["target"]) for row in told] == [("siren", "edge-1")]
    began = [
        t.SessionBegan(
            **header(at, "edge-1"), session=f"edge-1~1~{at}", source="edge-1", clients=t.Moved.SUBSCRIBERS,
            policy="peer-wd", necessary=necessary, remote=False,
        )
        for at, necessary in ((90, True), (190, True), (290, False), (4_000, None))
    ]  # fmt: skip
    ended = [
        t.SessionEnded(
            **header(at + 5, "edge-1"), session=f"edge-1~1~{at}", source="edge-1", clients=t.Moved.SUBSCRIBERS,
            moved=1, duration_us=duration_us,
        )
        for at, duration_us in ((90, 4_000_000), (190, 6_000_000), (290, None))
    ]  # fmt: skip
    table = moves(
        records(spark, "session-began", began),
        records(spark, "session-ended", ended),
        records(spark, "migration", migrations),
    )
    first, second = table.orderBy("window_start").collect()
    names = ("sessions", "unnecessary_sessions", "sessions_ended", "migrations", "migrations_failed", "returns")
    assert tuple(first[name] for name in names) == (3, 1, 3, 5, 1, 1)
    assert (first["session_us_mean"], first["migration_us_mean"]) == (5e6, 5e5)
    assert tuple(second[name] for name in names) == (1, 0, 0, 1, 0, 0)


def prediction(at_s: float, session: str, *effects: t.Effect) -> t.Prediction:
    return t.Prediction(
        **header(at_s, "edge-1"), session=session, source="edge-1", clients=t.Moved.SUBSCRIBERS, moves=1,
        effects=effects,
    )  # fmt: skip


def outcome(at_s: float, session: str, broker: str, *metrics: t.Measured, **fields: float) -> t.Outcome:
    return t.Outcome(
        **header(at_s, broker), session=session, after_us=2_000_000, metrics=metrics,
        bytes_offered_per_s=fields.get("offered", 0.0), bytes_offered_predicted_per_s=fields.get("predicted"),
    )  # fmt: skip


def test_predictions_against_outcomes(spark: SparkSession) -> None:
    began = [
        t.SessionBegan(
            **header(0, "edge-1"), session=name, source="edge-1", clients=t.Moved.SUBSCRIBERS, policy="peer-wd"
        )
        for name in ("one", "two", "three")
    ]
    source = t.Effect(broker="edge-1", metric="uplink", before=1.1, after=0.8)
    target = t.Effect(broker="edge-2", metric="uplink", before=0.3, after=0.5)
    predictions = [
        prediction(1, "one", t.Effect(broker="edge-1", metric="uplink", before=1.0, after=0.1)),  # planned anew:
        prediction(2, "one", source, target),
        prediction(3, "two", source, target),  # the target's outcome is never told
    ]
    outcomes = [
        outcome(
            9, "one", "edge-1", t.Measured(metric="uplink", measured=0.9, predicted=0.8), offered=9.0, predicted=8.0
        ),
        outcome(9, "one", "edge-2", t.Measured(metric="uplink", measured=0.45)),
        outcome(9, "two", "edge-1", t.Measured(metric="uplink", measured=1.2, predicted=0.8)),  # the wrong way
        outcome(9, "three", "edge-1", t.Measured(metric="uplink", measured=0.7, predicted=0.8)),  # prediction lost
        outcome(9, "one", "edge-2", t.Measured(metric="matching", measured=0.2)),  # nobody had predicted it
    ]
    audited = audit(
        records(spark, "prediction", predictions),
        records(spark, "outcome", outcomes),
        records(spark, "session-began", began),
    ).cache()
    rows = {(row["session"], row["broker"], row["metric"]): row for row in audited.collect()}
    assert set(rows) == {
        ("one", "edge-1", "uplink"), ("one", "edge-2", "uplink"), ("one", "edge-1", OFFERED),
        ("two", "edge-1", "uplink"), ("two", "edge-2", "uplink"), ("three", "edge-1", "uplink"),
    }  # fmt: skip
    assert rows["one", "edge-1", "uplink"]["error"] == pytest.approx(0.1)
    assert rows["one", "edge-2", "uplink"]["error"] == pytest.approx(-0.05)
    assert rows["two", "edge-2", "uplink"]["measured"] is None
    assert {row["side"] for row in rows.values() if row["broker"] == "edge-1"} == {"source"}
    assert {row["side"] for row in rows.values() if row["broker"] == "edge-2"} == {"target"}
    found = {(row["metric"], row["side"]): row for row in errors(audited).collect()}
    by_source = found["uplink", "source"]
    assert (by_source["policy"], by_source["sessions"], by_source["measured"]) == ("peer-wd", 3, 3)
    assert by_source["error_mean"] == pytest.approx((0.1 + 0.4 - 0.1) / 3)
    assert by_source["error_absolute_mean"] == pytest.approx((0.1 + 0.4 + 0.1) / 3)
    assert by_source["error_root_mean_square"] == pytest.approx(sqrt((0.01 + 0.16 + 0.01) / 3))
    assert by_source["direction_right_share"] == 0.5  # of the two whose beginning is known
    by_target = found["uplink", "target"]
    assert (by_target["predictions"], by_target["measured"], by_target["unmeasured"]) == (2, 1, 1)
    assert found[OFFERED, "source"]["error_mean"] == pytest.approx(1.0)
