"""From tables to an insight: what is taken over, what is left out and named, and when nothing is made at all."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tidegate_analytics.errors import InvalidOption, TablesMissing
from tidegate_analytics.insight import BYTES_MAX, Table, clusters_in, compose, read_tables, withdrawal
from tidegate_protocol.insight import FORECASTS_MAX, PAIRS_MAX
from tidegate_protocol.messages import decode, encode

NOW_S = 1_770_000_000.0
DAY_S = 86_400.0


def pair(one: str, other: str, coefficient: float = 0.9, cluster: str = "north") -> dict[str, Any]:
    return {"cluster": cluster, "topic_a": one, "topic_b": other, "coefficient": coefficient}


def forecast(topic: str, *, level: float = 10.0, trend: float = 6.0, begins_s: float = -60.0) -> list[dict[str, Any]]:
    """Ten windows of a minute, the first of which began a minute ago."""
    begins = datetime.fromtimestamp(NOW_S + begins_s, UTC)
    return [
        {
            "cluster": "north",
            "topic": topic,
            "step": step,
            "window_start": begins + timedelta(minutes=step - 1),
            "window_end": begins + timedelta(minutes=step),
            "level_per_s": level,
            "trend_per_s": trend,
            "error_per_s": 1.5,
        }
        for step in range(10, 0, -1)
    ]


def service(edge: str, served: float | None = 1e6, busy: int = 50) -> dict[str, Any]:
    return {"cluster": "north", "broker": edge, "served_bytes_per_s": served, "busy_samples": busy}


def tables(age_s: float = 30.0, **rows: list[dict[str, Any]]) -> dict[str, Table]:
    return {name: Table(found, NOW_S - age_s) for name, found in rows.items()}


def test_an_insight_says_what_the_tables_say_of_one_cluster() -> None:
    made = compose(
        tables(
            correlation=[pair("rain", "flood", 1.0000001), pair("a", "b", cluster="south")],
            forecast=forecast("rain"),
            service=[service("edge-1")],
        ),
        "north",
        NOW_S,
        DAY_S,
    )
    insight = made.insight
    assert [(one.topic_a, one.topic_b, one.coefficient) for one in insight.pairs] == [("rain", "flood", 1.0)]
    (rain,) = insight.forecasts
    assert rain.trend_per_s == pytest.approx(0.1), "per second, and not per window"
    assert rain.level_per_s == pytest.approx(10.0 + 0.1 * 30.0), "brought from the last window to when it was made"
    assert rain.horizon_us == 570_000_000
    assert [(one.edge, one.uplink_bytes_per_s) for one in insight.capacities] == [("edge-1", 1e6)]
    assert (insight.age_us, insight.valid_for_us) == (30_000_000, 86_400_000_000)
    assert made.left_out == {}
    assert decode(encode(insight)) == insight


def test_what_heads_would_not_take_is_left_out_and_named() -> None:
    made = compose(
        tables(
            correlation=[pair("rain", "flood"), pair("not a topic", "flood"), pair("a", "b", float("nan"))],
            forecast=[*forecast("over", begins_s=-600.0), *[row | {"error_per_s": None} for row in forecast("new")]],
            service=[service("idle", None, 0), service("hardly", 5.0, 3), service("two words")],
        ),
        "north",
        NOW_S,
        DAY_S,
    )
    assert len(made.insight.pairs) == 1
    assert made.insight.forecasts == made.insight.capacities == ()
    named = {"not a topic with flood", "a with b", "forecast of over", "forecast of new"}
    assert made.left_out.keys() == named | {f"uplink of {edge}" for edge in ("idle", "hardly", "two words")}


@pytest.mark.parametrize(
    ("age_s", "valid_for_s", "problem"),
    [(DAY_S, DAY_S, "longer than"), (-3_600.0, DAY_S, "a clock is wrong"), (0.0, 1e9, "not possible")],
)
def test_stale_and_future_tables_make_no_insight(age_s: float, valid_for_s: float, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        compose(tables(age_s, correlation=[pair("a", "b")]), "north", NOW_S, valid_for_s)


def test_a_table_that_is_too_old_is_left_out_beside_a_newer_one() -> None:
    old, new = tables(2 * DAY_S, service=[service("edge-1")]), tables(0.0, correlation=[pair("a", "b")])
    made = compose(old | new, "north", NOW_S, DAY_S)
    assert made.insight.capacities == ()
    assert made.insight.pairs
    assert set(made.left_out) == {"table service"}


def test_a_cluster_that_no_table_tells_of_gets_nothing() -> None:
    with pytest.raises(InvalidOption, match="nothing in them is of use to cluster south"):
        compose(tables(correlation=[pair("a", "b")]), "south", NOW_S, DAY_S)


def test_of_too_much_the_strongest_pairs_and_the_fastest_topics_fit_into_one_message() -> None:
    tail = "x" * 150
    pairs = [pair(f"{number:04}.{tail}", f"y.{tail}", 0.5 + number / 1e4) for number in range(PAIRS_MAX + 500)]
    rates = [row for number in range(FORECASTS_MAX) for row in forecast(f"{number:04}.{tail}", level=float(number))]
    made = compose(tables(correlation=pairs, forecast=rates), "north", NOW_S, DAY_S)
    insight = made.insight
    assert BYTES_MAX / 4 < len(encode(insight)) <= BYTES_MAX
    assert insight.pairs[0].coefficient == max(row["coefficient"] for row in pairs)
    assert insight.forecasts[0].topic == f"{FORECASTS_MAX - 1:04}.{tail}"
    assert made.left_out["500 pairs"] == f"an insight holds {PAIRS_MAX}"
    assert "they would not fit into one message" in made.left_out.values()


def test_tables_are_read_as_spark_writes_them(tmp_path: Path) -> None:
    folder = tmp_path / "correlation"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    parquet.write_table(pyarrow.Table.from_pylist([pair("a", "b")]), folder / "part-00000-x.snappy.parquet")
    os.utime(folder / "part-00000-x.snappy.parquet", (NOW_S, NOW_S))
    found = read_tables(tmp_path)
    assert found["correlation"].written_s == NOW_S
    assert clusters_in(found) == ["north"]
    assert compose(found, "north", NOW_S + 5.0, DAY_S).insight.age_us == 5_000_000


def test_a_folder_without_tables_and_one_that_can_not_be_read_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(TablesMissing, match="tidegate analytics run"):
        read_tables(tmp_path)
    (tmp_path / "forecast").mkdir()
    (tmp_path / "forecast" / "part-0.parquet").write_bytes(b"not parquet")
    with pytest.raises(InvalidOption, match="can't be read"):
        read_tables(tmp_path)


def test_a_withdrawal_holds_nothing() -> None:
    message = withdrawal("north", NOW_S)
    assert message.withdraws
    assert message.pairs == message.forecasts == message.capacities == ()
