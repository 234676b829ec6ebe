"""`tidegate simulate`: what it prints, what it refuses, what it exits with."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidegate_cli.commands import simulate
from tidegate_cli.errors import describe
from tidegate_cli.exit_codes import ExitCode
from tidegate_simulator.checkers import Violation
from tidegate_simulator.counts import NAMES
from tidegate_simulator.runner import PROBLEMS_KEPT_MAX, Result as RunResult
from tidegate_simulator.scenario_file import read_file, write
from tidegate_simulator.swarm import random_scenario

TIMEOUT_S = 60.0


def run(*arguments: str) -> Result:
    return CliRunner().invoke(simulate.command, arguments)


def results(*made: RunResult) -> Iterator[RunResult]:
    yield from made


def test_many_schedules_as_json() -> None:
    result = run("--seeds", "3", "--first-seed", "10", "--json")
    assert result.exit_code == ExitCode.OK, result.output
    answer = json.loads(result.stdout)
    assert answer["schedules"] == 3
    assert answer["failures"] == 0
    assert answer["seeds"] == []
    assert answer["wall_s"] > 0
    assert len(answer["trace_hash"]) == 64
    assert {"wall_s", "commit", "with_sessions", "with_moves", "problems"} <= answer.keys()
    assert set(NAMES) <= answer.keys()
    assert answer["problems_left_out"] == 0
    assert answer["interrupted"] is False
    assert result.stderr == ""


def test_many_schedules_for_a_person() -> None:
    result = run("--seeds", "2")
    assert result.exit_code == ExitCode.OK, result.output
    assert "2 schedules" in result.stdout
    assert result.stderr == "schedules: 1 of 2\nschedules: 2 of 2\n"
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
    monkeypatch.setattr(simulate, "run_each", lambda seeds, jobs: results(failed))
    shown = run("--seeds", "5")
    assert shown.exit_code == ExitCode.FAILED
    assert "lost (seed 42, at 1.500 s): s1 never got p1:a:7" in shown.stdout
    assert f"failing seeds at commit {simulate.commit()}: 42" in shown.stdout
    assert "seed 42 failed: lost (seed 42, at 1.500 s): s1 never got p1:a:7" in shown.stderr
    assert "tidegate simulate --seed 42 --trace -" in shown.stdout
    as_json = run("--seeds", "5", "--json")
    assert as_json.exit_code == ExitCode.FAILED
    answer = json.loads(as_json.stdout)
    assert answer["failures"] == 1
    assert answer["seeds"] == [42]
    assert answer["problems"] == [str(violation)]


def test_many_failures_are_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    violations = tuple(Violation("lost", 42, float(at_s), "s1 never got p1:a:7") for at_s in range(15))
    failed = [RunResult(seed, violations, "cafe") for seed in (42, 43)]
    monkeypatch.setattr(simulate, "run_each", lambda seeds, jobs: results(*failed))
    answer = json.loads(run("--json").stdout)
    assert answer["seeds"] == [42, 43]
    assert len(answer["problems"]) == PROBLEMS_KEPT_MAX
    assert answer["problems_left_out"] == 30 - PROBLEMS_KEPT_MAX
    shown = run()
    assert "… and 10 more" in shown.stdout
    assert "seed 43 failed: lost" in shown.stderr
    assert "… and 14 more" in shown.stderr


def test_an_interruption_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seeds: range, jobs: int) -> Iterator[RunResult]:
        yield RunResult(1, trace_hash="cafe")
        yield RunResult(2, error="Traceback: AssertionError")
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate, "run_each", interrupted)
    shown = run("--seeds", "2000")
    assert shown.exit_code == ExitCode.INTERRUPTED
    assert "interrupted: 2 of 2,000 schedules" in shown.stdout
    assert "failing seeds at" in shown.stdout
    assert "tidegate simulate --seed 2 --trace -" in shown.stdout
    assert "seed 2 failed: raised" in shown.stderr
    as_json = run("--seeds", "2000", "--json")
    assert as_json.exit_code == ExitCode.INTERRUPTED
    answer = json.loads(as_json.stdout)
    assert answer["interrupted"] is True
    assert (answer["schedules"], answer["failures"], answer["seeds"]) == (2, 1, [2])


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_sums_up_what_has_run(jobs: str) -> None:
    command = [sys.executable, "-m", "tidegate_cli", "simulate", "--seeds", "20", "--jobs", jobs]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            assert child.stderr is not None
            assert child.stderr.readline() == "schedules: 2 of 20\n"
            os.killpg(child.pid, signal.SIGINT)  # a terminal interrupts workers, too
            shown, remarks = child.communicate(timeout=TIMEOUT_S)
        finally:
            child.kill()
    assert child.returncode == ExitCode.INTERRUPTED, remarks
    assert re.search(r"interrupted: \d+ of 20 schedules in ", shown)
    assert "Traceback" not in remarks


def test_the_commit_is_that_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def commit() -> str:
        order.append("commit")
        return "cafecafecafe-dirty"

    def ran(seeds: range, jobs: int) -> Iterator[RunResult]:
        order.append("run")
        yield RunResult(1, error="Traceback: AssertionError")

    monkeypatch.setattr(simulate, "commit", commit)
    monkeypatch.setattr(simulate, "run_each", ran)
    assert "failing seeds at commit cafecafecafe-dirty: 1" in run().stdout
    assert order == ["commit", "run"]
    assert json.loads(run("--json").stdout)["commit"] == "cafecafecafe-dirty"


def test_a_changed_checkout_is_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    file = tmp_path / "file.py"
    file.write_text("one\n")
    git("init")
    git("add", "file.py")
    git("commit", "--message", "one")
    git("tag", "v1")
    monkeypatch.setattr(simulate, "__file__", str(file))
    clean = simulate.commit()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    file.write_text("two\n")
    assert simulate.commit() == f"{clean}-dirty"


def test_the_replay_of_a_scenario_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my {odd} scenario.json"
    file.write_text(write(random_scenario(7)))
    monkeypatch.setattr(simulate, "run_scenario", lambda scenario, trace_lines_max: RunResult(7, error="Traceback"))
    assert f"replay one with: tidegate simulate --scenario '{file}' --trace -\n" in run("--scenario", str(file)).stdout
    shown = run("--scenario", str(file), "--seed", "9").stdout
    assert f"--scenario '{file}' --seed 9 --trace -" in shown


def test_a_scenario_is_written_and_run(tmp_path: Path) -> None:
    file = tmp_path / "seven.json"
    written = run("--seed", "7", "--write-scenario", str(file))
    assert written.exit_code == ExitCode.OK, written.output
    assert f"tidegate simulate --scenario {file}" in written.stdout
    assert read_file(file) == random_scenario(7)
    assert run("--seed", "7", "--write-scenario", "-").stdout == file.read_text()
    assert run("--seed", "7", "--write-scenario", str(tmp_path)).exit_code == ExitCode.USAGE


def test_an_impossible_scenario_ends_with_its_code(tmp_path: Path) -> None:
    file = tmp_path / "impossible.json"
    file.write_text(write(random_scenario(7)).replace('"period_s": 1.0', '"period_s": -1.0'))
    child = subprocess.run(
        [sys.executable, "-m", "tidegate_cli", "simulate", "--scenario", str(file)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert child.returncode == ExitCode.BAD_INPUT
    assert "period_s of balancing is -1.0, below 0: use 0.01" in child.stderr


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
        (("--first-seed", "9223372036854775807", "--seeds", "2"), "go beyond the last seed"),
        (("--write-scenario", "x.json"), "say which with --seed"),
        (("--seed", "1", "--write-scenario", "x.json", "--json"), "--write-scenario runs nothing"),
    ],
)
def test_a_wrong_command_line(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == ExitCode.USAGE
    assert message in result.stderr


@pytest.mark.parametrize("where", ["", "no/folder/trace.txt"])
def test_a_trace_that_can_not_be_written(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "run_seed", lambda seed, trace_lines_max: pytest.fail("it ran first"))
    result = run("--seed", "1", "--trace", str(tmp_path / where))
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
