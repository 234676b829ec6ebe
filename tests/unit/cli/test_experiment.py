"""`tidegate experiment`: options, errors, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidegate_cli.exit_codes import ExitCode
from tidegate_cli.main import cli

QUICK = ["--duration", "4", "--scale", "0.1"]
KEYS = {
    "deliveries",
    "late",
    "late_fraction",
    "lost",
    "duplicates",
    "out_of_order",
    "sessions",
    "unnecessary_sessions",
    "migrations",
    "control_overhead",
    "wall_s",
    "seed",
    "placement",
    "first_session_s",
    "moves",
    "backlog_cleared_s",
    "late_by_topic",
    "first_late_s",
    "trace_hash",
    "policy",
    "threshold",
    "control",
    "burst_factor",
}


def experiment(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["experiment", *arguments])


def test_one_json_object_with_all_keys() -> None:
    result = experiment("ews-burst", "--json", "--seed", "7", "--policy", "none", *QUICK)
    assert result.exit_code == ExitCode.OK, result.output
    plain = json.loads(result.stdout)
    assert plain.keys() >= KEYS
    assert (plain["seed"], plain["policy"], plain["control"]) == (7, "none", "instant")


def test_options_reach_the_run() -> None:
    arguments = ["--random", "--burst-factor", "3", "--threshold", "projected", "--control", "realistic"]
    plain = json.loads(experiment("ews-burst", "--json", *arguments, *QUICK).stdout)
    assert plain["random"] is True
    assert (plain["burst_factor"], plain["threshold"], plain["control"]) == (3.0, "projected", "realistic")


def test_text_for_people_and_files(tmp_path: Path) -> None:
    result = experiment("ews-burst", "--out", str(tmp_path / "results"), *QUICK)
    assert result.exit_code == ExitCode.OK, result.output
    assert "deliveries" in result.stdout
    assert "held topics" in result.stdout
    assert (tmp_path / "results" / "samples.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ews-burst", "--policy", "best"], "'none', 'peer', 'peer-wd', 'random'"),
        (["ews-burst", "--seed", "seven"], "'seven' is not a valid int"),
        (["ews-burst", "--seed", "-1"], "0<=x"),
        (["ews-burst", "--burst-factor", "0.5"], "1.0<=x"),
        (["ews-burst", "--burst-factor", "nan"], "burst"),
        (["ews-burst", "--duration", "inf"], "duration"),
        (["ews-burst", "--threshold", "guess"], "'projected', 'paper'"),
        (["ews-burst", "--control", "slow"], "'instant', 'realistic'"),
        (["ews-burst", "--backend", "rabbitmq", "--control", "instant"], "needs --backend sim"),
        (["ews-burst", "--backend", "rabbitmq", "--sdk", "many"], "neither a number nor 'all'"),
        (["ews-burst", "--sdk", "3"], "need --backend rabbitmq"),
        (["ews-burst", "--persistent"], "need --backend rabbitmq"),
        (["ews-burst", "--backend", "kafka"], "'sim', 'rabbitmq'"),
        (["compare", "stock-local"], "'ews-burst'"),
        (["compare", "ews-burst", "--seeds", "many"], "'many' is not a valid int"),
        (["compare", "ews-burst", "--jobs", "0"], "1<=x"),
        (["stock-local"], "No such command"),
    ],
)
def test_bad_input_is_a_clear_error(arguments: list[str], told: str) -> None:
    result = experiment(*arguments)
    assert result.exit_code == ExitCode.USAGE, result.output
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_that_cannot_be_made_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = experiment("ews-burst", "--out", str(tmp_path / "file" / "folder"))
    assert result.exit_code == ExitCode.USAGE, result.output
    assert "--out" in result.stderr
