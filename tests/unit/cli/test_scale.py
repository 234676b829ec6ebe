"""`tidegate experiment scale` and `tidegate bench agents`: options, output, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidegate_cli.commands.scale import _side_by_side
from tidegate_cli.exit_codes import ExitCode
from tidegate_cli.main import cli
from tidegate_experiments.benchmarks.agents import Measured, figures, measure
from tidegate_experiments.rate.scale_files import HEADINGS

QUICK = ["--subscriptions-per-edge", "20", "--duration", "90"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_sizes_side_by_side_as_json(tmp_path: Path) -> None:
    result = run("experiment", "scale", "--edges", "20,10", *QUICK, "--json", "--out", str(tmp_path / "new"))
    assert result.exit_code == ExitCode.OK, result.output
    answer = json.loads(result.stdout)
    assert [size["edges"] for size in answer["sizes"]] == [10, 20]
    assert answer["sizes"][1]["subscriptions"] == 400
    assert all(size["heartbeats_differing"] == 0 for size in answer["sizes"])
    assert {"agent_cpu_s_per_s", "control_messages_per_edge_per_s", "settling_s", "wall_s", "peak_memory_mb"} <= (
        answer["sizes"][0].keys()
    )
    assert json.loads((tmp_path / "new" / "scale.json").read_text()) == answer
    rows = (tmp_path / "new" / "scale.md").read_text().splitlines()
    assert len(rows) == 4
    assert rows[2].startswith("| 10 | 200 |")


def test_a_table_for_a_person() -> None:
    result = run("experiment", "scale", "--edges", "10", *QUICK)
    assert result.exit_code == ExitCode.OK, result.output
    assert "10 edges: 90 of 90" in result.stderr
    assert "90 simulated seconds" in result.stdout
    assert "balanced after" in result.stdout
    assert "agents, per simulated second" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--edges", "ten"], "no list of whole numbers"),
        (["--edges", "10,"], "no list of whole numbers"),
        (["--edges", "1000000"], "not in the range"),
        (["--subscriptions-per-edge", "1"], "not in the range"),
        (["--duration", "30"], "not in the range"),
        (["--duration", "nan"], "duration_s is nan"),
        (["--edges", "15"], "multiple of 10"),
        (["--seed", "-1"], "not in the range"),
    ],
)
def test_bad_sizes_are_usage_errors(arguments: list[str], problem: str) -> None:
    result = run("experiment", "scale", *arguments)
    assert result.exit_code == ExitCode.USAGE
    assert problem in result.stderr


def test_a_folder_that_cannot_be_made_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "scale.md").mkdir()
    for folder, problem in ((tmp_path / "file" / "x", "can't make the folder"), (tmp_path, "scale.md is a folder")):
        result = run("experiment", "scale", "--out", str(folder))
        assert result.exit_code == ExitCode.USAGE, result.output
        assert problem in result.stderr


def test_no_value_is_cut_however_many_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [tuple(f"{number:,} {'x' * 9}" for _ in HEADINGS) for number in range(7)]
    some = list(_side_by_side(rows, 80))
    assert [row for part in some for row in part] == rows
    assert all(len(part) <= 3 for part in some)
    assert [len(part) for part in _side_by_side(rows, 10)] == [1] * 7, "one at a time, where there is no room at all"


def test_a_burst_without_a_session_is_told() -> None:
    result = run("experiment", "scale", "--edges", "10", "--subscriptions-per-edge", "20", "--duration", "62")
    assert result.exit_code == ExitCode.OK, result.output
    assert "no session" in result.stdout


def test_decisions_are_measured() -> None:
    result = run("bench", "agents", "--sizes", "200,100", "--rounds", "3", "--json")
    assert result.exit_code == ExitCode.OK, result.output
    answer = json.loads(result.stdout)
    assert [size["subscriptions"] for size in answer["sizes"]] == [100, 200]
    for size in answer["sizes"]:
        assert size["moves"] > 0
        assert size["decision_ms"] > 0
        assert size["bytes_per_subscription"] > 0
    assert answer["decision_ms_at_10000"] is None
    # A hello, its answer and half a report every second; in a session more.
    assert answer["control_messages_per_s"]["idle"] == pytest.approx(2.5, abs=0.2)
    assert answer["control_messages_per_s"]["busy"] > answer["control_messages_per_s"]["idle"]


def test_growth_is_told_against_n_log_n() -> None:
    def measured(size: int, ms: float) -> Measured:
        return Measured(size, 10, 1.0, ms / 2, ms / 2, ms, 1, 500)

    answer = figures([measured(1_000, 1.0), measured(10_000, 40.0 / 3)], 3, {"idle": 2.5, "busy": 9.0})
    assert answer["sizes"][1]["ratio_to_n_log_n"] == pytest.approx(1.0, abs=0.001)
    assert answer["n_log_n_ratio_max"] == pytest.approx(1.0, abs=0.001)
    assert answer["decision_ms_at_10000"] == pytest.approx(13.333)
    assert answer["growth_exponent"] == pytest.approx(1.125, abs=0.001)
    assert figures([measured(100, 1.0)], 3, {})["growth_exponent"] is None


@pytest.mark.parametrize("sizes", ["1", "100;200", "", "100,10000000"])
def test_bad_sizes_of_an_edge_are_usage_errors(sizes: str) -> None:
    assert run("bench", "agents", "--sizes", sizes).exit_code == ExitCode.USAGE


def test_a_decision_is_measured_where_one_plan_does_not_suffice() -> None:
    """At this size the first plan leaves something late: the agent asks on, and the bench has to answer."""
    measured = measure(10_000, 1, lambda step, done, total: None)
    assert measured.moves > 0
