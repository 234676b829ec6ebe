"""`tidegate simulate`: the agents in virtual time, under random loads and faults, with all checkers on.

Many schedules, each decided by its seed; or one of them again, exactly, with a trace to read. What a failure prints
is enough to repeat it: the seed and the commit.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from tidegate_simulator.runner import Result, combined_counts, combined_hash, run_many, run_scenario, run_seed
from tidegate_simulator.scenario_file import read_file

from ..console import json_option, out, print_json, progress
from ..exit_codes import ExitCode

_SEEDS_MAX: Final = 10_000_000
_JOBS_MAX: Final = 256
_SEED_MAX: Final = (1 << 63) - 1
_TRACE_LINES_MAX: Final = 1_000_000
_PROBLEMS_SHOWN_MAX: Final = 20
_GIT_TIMEOUT_S: Final = 10.0
_STANDARD_OUTPUT: Final = "-"


@click.command("simulate")
@click.option("--seeds", type=click.IntRange(1, _SEEDS_MAX), default=100, show_default=True, help="How many schedules.")
@click.option(
    "--first-seed", type=click.IntRange(0, _SEED_MAX), default=1, show_default=True, help="The seed of the first one."
)
@click.option("--jobs", type=click.IntRange(1, _JOBS_MAX), default=1, show_default=True, help="Processes to use.")
@click.option("--seed", type=click.IntRange(0, _SEED_MAX), help="Replay the schedule of this seed alone, exactly.")
@click.option(
    "--scenario",
    type=click.Path(path_type=Path),
    help="Run the scenario in this JSON file instead of a random one; with --seed, under another seed.",
)
@click.option("--trace", metavar="FILE|-", help="With --seed or --scenario: write a readable trace. [-: to the screen]")
@json_option
@click.pass_context
def command(
    context: click.Context,
    seeds: int,
    first_seed: int,
    jobs: int,
    seed: int | None,
    scenario: Path | None,
    trace: str | None,
    as_json: bool,
) -> None:
    """Run the agents and clients in a simulated cluster, thousands of times, while everything goes wrong.

    Every schedule draws its topology, its load and its faults from its seed, and is checked for lost, doubled and
    reordered messages, sessions that never end, moves that help nobody, and more.
    """
    single = seed is not None or scenario is not None
    _check_usage(context, single, trace, as_json)
    began = time.monotonic()
    if single:
        results = [_replay(seed, scenario, trace)]
    else:
        with progress(quiet=as_json) as report:
            wanted = range(first_seed, first_seed + seeds)
            results = run_many(wanted, jobs, lambda done, total: report("schedules", done, total))
    wall_s = time.monotonic() - began
    replay = _replay_line(scenario)
    if as_json:
        print_json(_summary(results, wall_s))
    else:
        _show(results, wall_s, replay)
    if any(result.failed for result in results):
        sys.exit(ExitCode.FAILED)


def _check_usage(context: click.Context, single: bool, trace: str | None, as_json: bool) -> None:
    if single:
        for name in ("seeds", "first_seed", "jobs"):
            if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(
                    f"{option} is for many schedules: leave it out, or leave out --seed and --scenario"
                )
    elif trace is not None:
        raise click.UsageError("--trace shows one schedule: say which with --seed or --scenario")
    if as_json and trace == _STANDARD_OUTPUT:
        raise click.UsageError("--json and --trace - would mix on the screen: give --trace a file")


def _replay(seed: int | None, file: Path | None, trace: str | None) -> Result:
    lines_max = _TRACE_LINES_MAX if trace is not None else 0
    if file is not None:
        scenario = read_file(file)
        if seed is not None:
            scenario = replace(scenario, seed=seed)
        result = run_scenario(scenario, trace_lines_max=lines_max)
    else:
        assert seed is not None
        result = run_seed(seed, trace_lines_max=lines_max)
    if trace is not None:
        _write_trace(trace, result)
    return result


def _write_trace(where: str, result: Result) -> None:
    text = "".join(f"{line}\n" for line in result.trace)
    if where == _STANDARD_OUTPUT:
        click.echo(text, nl=False)
        return
    try:
        Path(where).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"can't write {where}: {error.strerror or error}", param_hint="--trace") from error


def _summary(results: list[Result], wall_s: float) -> dict[str, Any]:
    failing = [result for result in results if result.failed]
    summary: dict[str, Any] = {
        "schedules": len(results),
        "failures": len(failing),
        "seeds": [result.seed for result in failing],
        "wall_s": round(wall_s, 3),
        "trace_hash": combined_hash(results),
        "commit": commit(),
        "with_sessions": sum(result.counts.get("sessions", 0) > 0 for result in results),
        "with_moves": sum(result.counts.get("moves", 0) > 0 for result in results),
        "sessions": 0,
        "migrations": 0,
    }
    summary |= combined_counts(results)
    summary["problems"] = [problem for result in failing for problem in result.problems][:_PROBLEMS_SHOWN_MAX]
    return summary


def _show(results: list[Result], wall_s: float, replay: str) -> None:
    console = out()
    summary = _summary(results, wall_s)
    failing = [result for result in results if result.failed]
    problems = [problem for result in failing for problem in result.problems]
    for problem in problems[:_PROBLEMS_SHOWN_MAX]:
        console.print(problem, markup=False, emoji=False, soft_wrap=True)
    if len(problems) > _PROBLEMS_SHOWN_MAX:
        console.print(f"… and {len(problems) - _PROBLEMS_SHOWN_MAX} more")
    schedules = "1 schedule" if len(results) == 1 else f"{len(results):,} schedules"
    table = Table(title=f"{schedules} in {wall_s:.1f} s", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("how many", justify="right")
    for name in ("failures", "with_sessions", "with_moves", *combined_counts(results)):
        table.add_row(name.replace("_", " "), f"{summary[name]:,}")
    console.print(table)
    console.print(f"trace hash {summary['trace_hash']}", soft_wrap=True)
    if failing:
        listed = ", ".join(str(result.seed) for result in failing[:_PROBLEMS_SHOWN_MAX])
        console.print(f"failing seeds at {summary['commit']}: {listed}", soft_wrap=True)
        console.print(
            f"replay one with: {replay.format(seed=failing[0].seed)}", markup=False, emoji=False, soft_wrap=True
        )


def _replay_line(scenario: Path | None) -> str:
    file = "" if scenario is None else f" --scenario {scenario}".replace("{", "{{").replace("}", "}}")
    return f"tidegate simulate{file} --seed {{seed}} --trace -"


def commit() -> str:
    """What was run: the commit of the checkout this is part of, or else the version that is installed."""
    folder = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"version {version('tidegate')}"
    found = answer.stdout.strip()
    return f"commit {found}" if answer.returncode == 0 and found else f"version {version('tidegate')}"
