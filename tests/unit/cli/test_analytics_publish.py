"""`tidegate analytics publish`: what it would send, and what it says to those who ask for the impossible."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from tidegate_analytics.errors import InvalidOption, TablesMissing
from tidegate_cli.errors import describe
from tidegate_cli.exit_codes import ExitCode
from tidegate_cli.main import cli

NOWHERE = "amqp://guest:guest@127.0.0.1:1/head"


def publish(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["analytics", "publish", *arguments])


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Correlated topics of two clusters."""
    (tmp_path / "correlation").mkdir()
    rows = [
        {"cluster": cluster, "topic_a": "flood", "topic_b": "rain", "coefficient": 0.9}
        for cluster in ("north", "south")
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "correlation" / "part-0.parquet")
    return tmp_path


def test_a_dry_run_tells_all_clusters_what_they_would_get_without_any_head(tables: Path) -> None:
    result = publish("--tables", str(tables), "--dry-run", "--valid-for", "7200")
    assert result.exit_code == ExitCode.OK, result.output
    for cluster in ("north", "south"):
        assert f"cluster {cluster}: would be sent: 1 correlated pair, 0 forecasts" in result.output
    assert "flood with rain: 0.90" in result.output
    lines = publish("--tables", str(tables), "--dry-run", "--json").stdout.splitlines()
    told = [json.loads(line) for line in lines]
    assert [(one["cluster"], one["taken"]) for one in told] == [("north", False), ("south", False)]
    assert told[0]["insight"]["pairs"] == [{"topic_a": "flood", "topic_b": "rain", "coefficient": 0.9}]


def test_old_tables_and_missing_ones_are_bad_input(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    hour_ago = time.time() - 3600.0
    os.utime(tables / "correlation" / "part-0.parquet", (hour_ago, hour_ago))
    old = publish("--tables", str(tables), "--dry-run", "--valid-for", "60")
    assert isinstance(old.exception, InvalidOption)
    assert "run the jobs again" in str(old.exception)
    empty = publish("--tables", str(tmp_path_factory.mktemp("empty")), "--dry-run")
    assert isinstance(empty.exception, TablesMissing)
    for error in (old.exception, empty.exception):
        described = describe(error)
        assert described is not None
        assert described.code == ExitCode.BAD_INPUT


@pytest.mark.parametrize("arguments", [(), ("--withdraw",), ("--tables", ".", "--withdraw", "--url", NOWHERE)])
def test_what_makes_no_sense_is_refused_with_a_remedy(arguments: tuple[str, ...]) -> None:
    error = publish(*arguments).exception
    assert isinstance(error, InvalidOption)
    assert error.remedy


def test_a_head_that_can_not_be_reached_is_named(tables: Path) -> None:
    result = publish("--tables", str(tables), "--url", NOWHERE)
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "127.0.0.1:1" in result.output
