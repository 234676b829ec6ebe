"""`tidegate simulate`: the agents in virtual time, under random loads and faults, with all checkers on.

Many schedules, each decided by its seed; or one of them again, exactly, with a trace to read; or a scenario written
down, to be changed and run. What a failure prints is enough to repeat it: the seed and the commit, as it was before the
first schedule. A failing seed is told when it fails, and Ctrl-C loses nothing: what has run is summed up.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click

from tidegate_simulator.runner import Result, Totals, run_each, run_scenario, run_seed
from tidegate_simulator.scenario import Scenario
from tidegate_simulator.scenario_check import SEED_MAX
from tidegate_simulator.scenario_file import read_file, write
from tidegate_simulator.swarm import random_scenario

from ..console import Steps, json_option, out, print_json, progress
from ..exit_codes import ExitCode
from ..tables import listing

_SEEDS_MAX: Final = 10_000_000
_JOBS_MAX: Final = 256
_TRACE_LINES_MAX: Final = 1_000_000
_SEEDS_LISTED_MAX: Final = 20
_GIT_TIMEOUT_S: Final = 10.0
_STANDARD_OUTPUT: Final = "-"
_VERSION: Final = "version "


@dataclass(frozen=True, slots=True)
class _Run:
    """What has run, for whoever is told of it."""

    totals: Totals
    wanted: int
    wall_s: float
    commit: str
    interrupted: bool = False


@click.command("simulate")
@click.option("--seeds", type=click.IntRange(1, _SEEDS_MAX), default=100, help="How many schedules.")
@click.option("--first-seed", type=click.IntRange(0, SEED_MAX), default=1, help="The seed of the first one.")
@click.option("--jobs", type=click.IntRange(1, _JOBS_MAX), default=1, help="Processes to use.")
@click.option("--seed", type=click.IntRange(0, SEED_MAX), help="Replay the schedule of this seed alone, exactly.")
@click.option(
    "--scenario",
    type=click.Path(path_type=Path),
    help="Run the scenario in this JSON file instead of a random one; with --seed, under another seed.",
)
@click.option("--trace", metavar="FILE|-", help="With --seed or --scenario: write a readable trace. [-: to the screen]")
@click.option(
    "--write-scenario",
    metavar="FILE|-",
    help="With --seed: run nothing, write its scenario as JSON, to be changed and run with --scenario.",
)
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
    write_scenario: str | None,
    as_json: bool,
) -> None:
    """Run the agents and clients in a simulated cluster, thousands of times, while everything goes wrong.

    Every schedule draws its topology, its load and its faults from its seed, and is checked for lost, doubled and
    reordered messages, sessions that never end, moves that help nobody, and more.
    """
    single = seed is not None or scenario is not None
    _check_usage(context, single, trace, write_scenario, as_json)
    if write_scenario is not None:
        _write_scenario(write_scenario, _chosen(seed, scenario))
        return
    wanted = range(first_seed, first_seed + seeds)
    done = _replay(seed, scenario, trace) if single else _run_many(wanted, jobs, as_json)
    if as_json:
        print_json(_summary(done))
    else:
        _show(done, seed, scenario)
    if done.interrupted:
        sys.exit(ExitCode.INTERRUPTED)
    if done.totals.failing:
        sys.exit(ExitCode.FAILED)


def _check_usage(
    context: click.Context, single: bool, trace: str | None, write_scenario: str | None, as_json: bool
) -> None:
    if single:
        for name in ("seeds", "first_seed", "jobs"):
            if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(
                    f"{option} is for many schedules: leave it out, or leave out --seed and --scenario"
                )
    elif trace is not None:
        raise click.UsageError("--trace shows one schedule: say which with --seed or --scenario")
    elif write_scenario is not None:
        raise click.UsageError("--write-scenario writes one scenario: say which with --seed")
    elif context.params["first_seed"] + context.params["seeds"] - 1 > SEED_MAX:
        raise click.UsageError(f"--first-seed and --seeds go beyond the last seed, {SEED_MAX}: use smaller ones")
    if as_json and trace == _STANDARD_OUTPUT:
        raise click.UsageError("--json and --trace - would mix on the screen: give --trace a file")
    if write_scenario is not None and (as_json or trace is not None):
        raise click.UsageError("--write-scenario runs nothing: leave out --trace and --json")


def _run_many(seeds: range, jobs: int, as_json: bool) -> _Run:
    """Run the schedules of these seeds; what ran before Ctrl-C counts."""
    began, found, totals = time.monotonic(), commit(), Totals()
    interrupted = False
    try:
        with progress(beside_json=as_json) as steps, closing(run_each(seeds, jobs)) as results:
            for result in results:
                totals.add(result)
                _remark_on(result, steps)
                steps("schedules", totals.schedules, len(seeds))
    except KeyboardInterrupt:
        interrupted = True
    return _Run(totals, len(seeds), time.monotonic() - began, found, interrupted)


def _remark_on(result: Result, steps: Steps) -> None:
    """Tell of a failing seed at once, with the first line of what went wrong; the rest comes at the end."""
    if result.failed:
        first = result.problems[0].partition("\n")[0]
        more = len(result.problems) - 1
        steps.remark(f"seed {result.seed} failed: {first}{f' … and {more:,} more' if more else ''}")


def _replay(seed: int | None, file: Path | None, trace: str | None) -> _Run:
    lines_max = _TRACE_LINES_MAX if trace is not None else 0
    scenario = _chosen(seed, file) if file is not None else None
    if trace is not None:
        _check_writable(trace, "--trace")
    began, found, totals = time.monotonic(), commit(), Totals()
    if scenario is not None:
        result = run_scenario(scenario, trace_lines_max=lines_max)
    else:
        assert seed is not None
        result = run_seed(seed, trace_lines_max=lines_max)
    totals.add(result)
    wall_s = time.monotonic() - began
    if trace is not None:
        _write(trace, "".join(f"{line}\n" for line in result.trace), "--trace")
    return _Run(totals, 1, wall_s, found)


def _chosen(seed: int | None, file: Path | None) -> Scenario:
    if file is None:
        assert seed is not None
        return random_scenario(seed)
    scenario = read_file(file)
    return scenario if seed is None else replace(scenario, seed=seed)


def _check_writable(where: str, option: str) -> None:
    """Refuse, before anything runs, a file that can't be written afterwards."""
    path = Path(where)
    if where == _STANDARD_OUTPUT or (path.exists() and not path.is_file() and not path.is_dir()):
        return  # opening a pipe and closing it again would end it for its reader
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise _unwritable(where, error, option) from error


def _write(where: str, text: str, option: str) -> None:
    if where == _STANDARD_OUTPUT:
        click.echo(text, nl=False)
        return
    try:
        Path(where).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(where, error, option) from error


def _unwritable(where: str, error: OSError, option: str) -> click.BadParameter:
    return click.BadParameter(f"can't write {where}: {error.strerror or error}", param_hint=option)


def _write_scenario(where: str, scenario: Scenario) -> None:
    _write(where, f"{write(scenario)}\n", "--write-scenario")
    if where != _STANDARD_OUTPUT:
        click.echo(f"wrote {where}; run it with: tidegate simulate --scenario {shlex.quote(where)}")


def _summary(done: _Run) -> dict[str, Any]:
    totals = done.totals
    return {
        "schedules": totals.schedules,
        "failures": len(totals.failing),
        "seeds": totals.failing,
        "interrupted": done.interrupted,
        "wall_s": round(done.wall_s, 3),
        "trace_hash": totals.trace_hash,
        "commit": done.commit,
        "with_sessions": totals.with_sessions,
        "with_moves": totals.with_moves,
        **totals.counts,
        "problems": totals.problems,
        "problems_left_out": totals.problems_left_out,
    }


def _show(done: _Run, seed: int | None, scenario: Path | None) -> None:
    console, totals = out(), done.totals
    for problem in totals.problems:
        console.print(problem, markup=False, emoji=False, soft_wrap=True)
    if totals.problems_left_out:
        console.print(f"… and {totals.problems_left_out:,} more")
    of = f" of {done.wanted:,}" if done.interrupted else ""
    schedules = "1 schedule" if done.wanted == 1 else f"{totals.schedules:,}{of} schedules"
    title = f"{'interrupted: ' if done.interrupted else ''}{schedules} in {done.wall_s:.1f} s"
    console.print(title)
    figures = {
        "failures": len(totals.failing),
        "with_sessions": totals.with_sessions,
        "with_moves": totals.with_moves,
        **totals.counts,
    }
    console.print(listing((name.replace("_", " "), f"{figure:,}") for name, figure in figures.items()))
    console.print(f"trace hash {totals.trace_hash}", soft_wrap=True)
    if totals.failing:
        listed = ", ".join(map(str, totals.failing[:_SEEDS_LISTED_MAX]))
        left_out = len(totals.failing) - _SEEDS_LISTED_MAX
        more = f" … and {left_out:,} more: --json lists all" if left_out > 0 else ""
        at = done.commit if done.commit.startswith(_VERSION) else f"commit {done.commit}"
        console.print(f"failing seeds at {at}: {listed}{more}", soft_wrap=True)
        again = _replay_line(totals.failing[0] if scenario is None else seed, scenario)
        console.print(f"replay one with: {again}", markup=False, emoji=False, soft_wrap=True)


def _replay_line(seed: int | None, scenario: Path | None) -> str:
    """What to paste into a shell; a scenario has a seed of its own unless another one was given."""
    parts = ["tidegate", "simulate"]
    if scenario is not None:
        parts += ["--scenario", str(scenario)]
    if seed is not None:
        parts += ["--seed", str(seed)]
    return shlex.join([*parts, "--trace", "-"])


def commit() -> str:
    """What is run: the commit of the checkout this is part of, `-dirty` where the files differ from it, or else the
    version that is installed.
    """
    folder = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"{_VERSION}{version('tidegate')}"
    found = answer.stdout.strip()
    return found if answer.returncode == 0 and found else f"{_VERSION}{version('tidegate')}"
