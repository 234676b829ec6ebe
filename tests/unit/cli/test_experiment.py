"""`tidegate experiment`: options, errors, exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click import unstyle
from click.testing import CliRunner, Result

from tidegate_cli import burst_results
from tidegate_cli.commands import experiment as commands
from tidegate_cli.exit_codes import ExitCode
from tidegate_cli.main import cli
from tidegate_experiments.burst.compare import BURST_FACTORS, CONTESTANTS, Comparison, Row
from tidegate_experiments.burst.files import write_run
from tidegate_experiments.burst.recorder import MigrationRow, Recorder, SampleRow, TopicRow
from tidegate_experiments.burst.result import EwsResult, sum_up
from tidegate_experiments.burst.run import EwsRun
from tidegate_experiments.burst.scenario import EwsOptions

QUICK = ["--duration", "4", "--burst-at", "2", "--scale", "0.1"]
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
    "asked",
    "published",
    "backlogged",
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
        (["ews-burst", "--duration", "30"], "the burst would come at 30 s"),
        (["ews-burst", "--burst-at", "90"], "the burst would come at 90 s"),
        (["compare", "ews-burst", "--duration", "20"], "use a duration above 30"),
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


def test_a_file_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    result = experiment("ews-burst", "--out", str(tmp_path))
    assert result.exit_code == ExitCode.USAGE, result.output
    assert "result.json is a folder" in result.stderr
    (tmp_path / "comparison.png").mkdir()
    assert "comparison.png is a folder" in experiment("compare", "ews-burst", "--out", str(tmp_path)).stderr


@pytest.mark.parametrize("name", ["run[/x]", "br[red]a]ck :smile:"])
def test_paths_are_shown_letter_by_letter(name: str, tmp_path: Path) -> None:
    result = experiment("ews-burst", "--out", str(tmp_path / name), *QUICK)
    assert result.exit_code == ExitCode.OK, result.output
    assert f"wrote {tmp_path / name}/result.json" in result.stdout


def test_an_older_figure_does_not_stay_beside_a_new_result(tmp_path: Path) -> None:
    for name in ("queue-depth.png", "mine.png"):
        (tmp_path / name).write_text("of another run")
    nothing_seen = Recorder()
    files = write_run(EwsRun(EwsOptions(), result_of(nothing_seen), nothing_seen), tmp_path)
    assert "queue-depth.png" not in {file.name for file in files}
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in files} | {"mine.png"}


def test_a_burst_that_could_not_be_published_is_not_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_of_which_nothing_came(options: EwsOptions, **besides: object) -> EwsRun:
        return EwsRun(options, sum_up(options, Recorder(), trace_hash="", wall_s=1.0), Recorder())

    monkeypatch.setattr(commands, "run_ews", run_of_which_nothing_came)
    result = experiment("ews-burst", "--json")
    plain = json.loads(result.stdout)
    assert plain["published"] < plain["asked"]
    assert plain["valid"] is False
    assert "head's link was full" in plain["invalid_because"][0]
    assert "not valid" in result.stderr
    assert result.exit_code == ExitCode.INVALID_RUN


def result_of(recorder: Recorder | None = None, **changed: object) -> EwsResult:
    found = sum_up(EwsOptions(), recorder or Recorder(), trace_hash="", wall_s=1.0)
    return replace(found, published=found.asked, **changed)  # type: ignore[arg-type]


def shown(capsys: pytest.CaptureFixture[str], result: EwsResult) -> str:
    burst_results.show_run(result)
    return unstyle(capsys.readouterr().out)


def test_a_person_is_told_which_run_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    result = result_of(random=True, seed=5, scale=0.2, correlated_burst=True, insight=True, control="realistic")
    title = shown(capsys, result).partition("┌")[0].replace("\n", " ").replace("  ", " ")
    told = ["policy peer-wd", "paper threshold", "realistic control", "random workload 5", "scale 0.2"]
    assert all(part in title for part in (*told, "correlated burst", "with insight", "burst × 2 at 30 s"))


def test_no_backlog_and_one_that_stays_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there was none" in shown(capsys, result_of())
    waiting = Recorder()
    waiting.samples.append(SampleRow(80.0, "b1", 1.1, {"t8": TopicRow(50.0, 40.0, 7)}))
    result = result_of(waiting)
    assert (result.backlogged, result.backlog_cleared_s) == (True, None)
    assert "not by the end" in shown(capsys, result)


def test_what_was_late_and_the_moves_after_the_burst_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    for number in range(20):
        recorder.moved_one(MigrationRow(number / 2, f"t{number}-s1", f"t{number}", "b0", "b1", "s"))
    recorder.moved_one(MigrationRow(31.0, "t3-s1", "t3", "b1", "b2", "t"))
    recorder.late["t8"], recorder.first_late_s["t8"] = 1234, 41.4
    lines = shown(capsys, result_of(recorder)).splitlines()
    assert "topic 8: 1,234 late, published from 41.4 s on" in lines
    moves = [line for line in lines if "moved from" in line]
    assert moves[0] == "at 31.0 s topic 3 (1 subscriber) moved from b1 to b2"
    assert moves[1].endswith(", before the burst")
    assert lines[-1] == "… and 9 more moves, before the burst"


def test_less_published_than_asked_for_is_remarked(capsys: pytest.CaptureFixture[str]) -> None:
    result = result_of()
    assert "Remark" not in shown(capsys, result)
    text = shown(capsys, replace(result, published=round(0.995 * result.asked)))
    assert "99.5% of the messages asked for were published" in text


@pytest.mark.parametrize("runs", [1, 12, 101])
def test_a_comparison_fits_into_eighty_columns(runs: int, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple(
        Row(contestant.label, number, factor, 1000, 300, 0.3, 12, 12, 11, 140, 62.5, 0, 0, 0, 1000, 1000)
        for number in range(runs)
        for factor in BURST_FACTORS
        for contestant in CONTESTANTS
    )
    burst_results.show_comparison(Comparison(rows, "instant", 90.0, 1.0))
    table = [line.rstrip() for line in unstyle(capsys.readouterr().out).splitlines() if line.startswith("peer-wd (")]
    assert len(table) == 2 * len(BURST_FACTORS)
    assert all(len(line) <= 80 and line.endswith("32.5 s") for line in table)


def test_summaries_are_not_cut_at_eighty_columns() -> None:
    text = CliRunner().invoke(cli, ["experiment", "--help"], terminal_width=80).output
    assert "..." not in text.partition("Commands:")[2]
    described = " ".join(experiment("compare", "--help").output.split())
    assert "120 runs" in described
    assert "lost, doubled or delivered out of order" in described
    assert "comparison.json, comparison.md and comparison.png" in described
