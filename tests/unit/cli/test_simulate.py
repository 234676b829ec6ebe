"""`tidegate simulate`: what it prints, what it refuses, what it exits with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidegate_cli.commands import simulate
from tidegate_cli.errors import describe
from tidegate_cli.exit_codes import ExitCode
from tidegate_simulator.checkers import Violation
from tidegate_simulator.runner import Result as RunResult
from tidegate_simulator.scenario_file import write
from tidegate_simulator.swarm import random_scenario


def run(*arguments: str) -> Result:
    return CliRunner().invoke(simulate.command, arguments)


def test_many_schedules_as_json() -> None:
    result = run("--seeds", "3", "--first-seed", "10", "--json")
    assert result.exit_code == ExitCode.OK, result.output
    answer = json.loads(result.stdout)
    assert answer["schedules"] == 3
    assert answer["failures"] == 0
    assert answer["seeds"] == []
    assert answer["wall_s"] > 0
    assert len(answer["trace_hash"]) == 64
    assert {"sessions", "migrations", "deliveries", "late", "control_messages", "commit"} <= answer.keys()


def test_many_schedules_for_a_person() -> None:
    result = run("--seeds", "2")
    assert result.exit_code == ExitCode.OK, result.output
    assert "2 schedules" in result.stdout
    assert "schedules: 2 of 2" in result.stderr
    assert "trace hash" in result.stdout


def test_a_replay_with_its_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.txt"
    to_file = run("--seed", "4", "--trace", str(file), "--json")
    assert to_file.exit_code == ExitCode.OK, to_file.output
    to_screen = run("--seed", "4", "--trace", "-")
    lines = file.read_text().splitlines()
    assert len(lines) > 100
    assert to_screen.stdout.startswith(file.read_text())


def test_a_scenario_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(write(random_scenario(7)))
    from_file = json.loads(run("--scenario", str(file), "--json").stdout)
    by_seed = json.loads(run("--seed", "7", "--json").stdout)
    assert from_file["trace_hash"] == by_seed["trace_hash"]
    other = json.loads(run("--scenario", str(file), "--seed", "8", "--json").stdout)
    assert other["trace_hash"] != by_seed["trace_hash"]


def test_a_failure_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    violation = Violation("lost", 42, 1.5, "s1 never got p1:a:7")
    failed = RunResult(42, (violation,), "cafe", {"sessions": 1})
    monkeypatch.setattr(simulate, "run_many", lambda seeds, jobs, progress: [failed])
    shown = run("--seeds", "5")
    assert shown.exit_code == ExitCode.FAILED
    assert "lost (seed 42, at 1.500 s): s1 never got p1:a:7" in shown.stdout
    assert f"failing seeds at {simulate.commit()}: 42" in shown.stdout
    assert "tidegate simulate --seed 42 --trace -" in shown.stdout
    as_json = run("--seeds", "5", "--json")
    assert as_json.exit_code == ExitCode.FAILED
    answer = json.loads(as_json.stdout)
    assert answer["failures"] == 1
    assert answer["seeds"] == [42]
    assert answer["problems"] == [str(violation)]


def test_what_raised_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = RunResult(3, error="Traceback: AssertionError: [odd]")
    monkeypatch.setattr(simulate, "run_seed", lambda seed, trace_lines_max: failed)
    shown = run("--seed", "3")
    assert shown.exit_code == ExitCode.FAILED
    assert "raised (seed 3): Traceback: AssertionError: [odd]" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seed", "seven"), "'seven' is not a valid integer"),
        (("--first-seed", "1.5"), "'1.5' is not a valid integer"),
        (("--seed", "-1"), "-1 is not in the range"),
        (("--seeds", "0"), "0 is not in the range"),
        (("--jobs", "0"), "0 is not in the range"),
        (("--trace", "-"), "--trace shows one schedule"),
        (("--seed", "1", "--trace", "-", "--json"), "--json and --trace - would mix"),
        (("--seed", "1", "--seeds", "5"), "--seeds is for many schedules"),
        (("--seed", "1", "--first-seed", "5"), "--first-seed is for many schedules"),
        (("--scenario", "x.json", "--jobs", "2"), "--jobs is for many schedules"),
    ],
)
def test_a_wrong_command_line(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == ExitCode.USAGE
    assert message in result.stderr


def test_a_trace_that_can_not_be_written(tmp_path: Path) -> None:
    result = run("--seed", "1", "--trace", str(tmp_path / "no" / "folder" / "trace.txt"))
    assert result.exit_code == ExitCode.USAGE
    assert "can't write" in result.stderr


def test_a_scenario_that_is_none(tmp_path: Path) -> None:
    result = run("--scenario", str(tmp_path / "nowhere.json"))
    assert result.exception is not None
    described = describe(result.exception)
    assert described is not None
    assert described.code == ExitCode.BAD_INPUT
    assert "can't be read" in described.text


def test_the_version_where_there_is_no_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert simulate.commit().startswith("version ")
