"""`tidegate experiment`: the papers' experiments, one run or all policies side by side."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from tidegate_agents.load.threshold import ThresholdKind
from tidegate_agents.policy import POLICIES
from tidegate_experiments.burst import scenario as ews
from tidegate_experiments.burst.compare import (
    BURST_FACTORS,
    CONTESTANTS,
    JOBS_MAX,
    SEEDS_MAX,
    as_json as comparison_json,
    cases,
    compare as run_comparison,
)
from tidegate_experiments.burst.figures import check_available
from tidegate_experiments.burst.files import COMPARISON_FILES, RUN_FILES, write_comparison, write_run
from tidegate_experiments.burst.run import EwsRun, run_ews
from tidegate_experiments.progress import Report
from tidegate_protocol.names import TELEMETRY_FILE
from tidegate_simulator.scenario_check import SEED_MAX

from ..burst_results import show_comparison, show_run
from ..console import err, json_option, print_json, progress, run as run_async
from ..errors import usage_errors
from ..exit_codes import ExitCode
from ..result_files import out_option, prepare, show_files, writing
from .scale import scale_command

LIVE_SCALE: Final = 0.25
"""What two cores can do."""
_SCALES: Final = {"sim": 1.0, "rabbitmq": LIVE_SCALE}
_THRESHOLDS: Final = {"sim": ThresholdKind.PAPER, "rabbitmq": ThresholdKind.PROJECTED}
_CLIENTS_MAX: Final = 10_000
_LIVE_FILES: Final = ("deliveries.csv", "sessions.jsonl", "harness.json")
"""What `live.files` writes; named here because that is loaded only when it is used."""
_SEEDS: Final = 5
_RUNS: Final = (_SEEDS + 1) * len(BURST_FACTORS) * len(CONTESTANTS)
_SCALE_HELP: Final = (
    "Rates and bandwidths together times this. From 0.2 on the same course with fewer messages; at 0.1 sessions begin "
    "and the backlog goes sooner, at 0.05 topics are placed elsewhere."
)
_CONTROLS: Final = ("instant", "realistic")
_control_option = click.option(
    "--control",
    type=click.Choice(_CONTROLS),
    default="instant",
    help="Whether control messages and attaching take no time, as the papers assume, or travel over the links.",
)
_duration_option = click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(1.0, ews.DURATION_S_MAX),
    default=ews.DURATION_S,
    metavar="SECONDS",
    help="How long publishers publish, in virtual time where it is simulated. More than when the burst comes, at "
    f"{ews.BURST_S:g} s unless told otherwise.",
)
_scale_option = click.option(
    "--scale",
    type=click.FloatRange(ews.SCALE_MIN, ews.SCALE_MAX),
    default=1.0,
    help=_SCALE_HELP,
)


@click.group("experiment")
def command() -> None:
    """Run an experiment of the papers this project builds on."""


command.add_command(scale_command)


@command.command("ews-burst")
@click.option(
    "--backend",
    type=click.Choice(["sim", "rabbitmq"]),
    default="sim",
    help="Simulated, or on real RabbitMQ with conditioned links on this machine, in real time.",
)
@click.option(
    "--policy",
    type=click.Choice(sorted(POLICIES)),
    default="peer-wd",
    help="How subscribers are placed and moved.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, SEED_MAX),
    default=0,
    help="Decides what is random: the workload with --random, what --policy random does, and what happens a "
    "little sooner or later with --control realistic. Without any of these every seed gives the same run.",
)
@click.option("--random", is_flag=True, help="Draw the workload from the papers' ranges, by seed.")
@click.option(
    "--burst-factor",
    type=click.FloatRange(1.0, ews.BURST_FACTOR_MAX),
    default=ews.BURST_FACTOR,
    help="What the bursting topics multiply their rate by.",
)
@click.option(
    "--threshold",
    type=click.Choice([str(kind) for kind in ThresholdKind]),
    help="How many messages may wait: the papers' formula (default on sim) or ours (default on rabbitmq).",
)
@click.option(
    "--control",
    type=click.Choice(_CONTROLS),
    help="Whether control messages and attaching take no time, as the papers assume (default on sim), or travel over "
    "the links (always on rabbitmq).",
)
@_duration_option
@click.option(
    "--burst-at",
    "burst_at_s",
    type=click.FloatRange(1.0, ews.DURATION_S_MAX),
    default=ews.BURST_S,
    metavar="SECONDS",
    help="When the burst begins. The last topic registers at 15 s.",
)
@click.option(
    "--scale",
    type=click.FloatRange(ews.SCALE_MIN, ews.SCALE_MAX),
    help=f"{_SCALE_HELP} Default: 1 on sim, {LIVE_SCALE:g} on rabbitmq.",
)
@click.option(
    "--sdk",
    default="0",
    metavar="COUNT|all",
    help="How many publishers and how many subscribers are those of the SDK, one topic after another (rabbitmq). The "
    "others are lean clients, which cost a fraction; all of them need a lower scale.",
)
@click.option(
    "--correlated-burst",
    "correlated",
    is_flag=True,
    help="Instead of every other topic, four of about the same size burst: apart they fit, together they overrun an "
    "edge.",
)
@click.option(
    "--insight",
    is_flag=True,
    help="Tell the head beforehand which topics burst together, as analytics would have learned (`tidegate analytics "
    "publish`).",
)
@click.option("--persistent", is_flag=True, help="Publish messages that outlive a restart of RabbitMQ (rabbitmq).")
@json_option
@out_option("Write result, samples, decisions, telemetry and figures into this folder.")
def ews_burst(
    backend: str,
    threshold: str | None,
    control: str | None,
    scale: float | None,
    sdk: str,
    persistent: bool,
    as_json: bool,
    folder: Path | None,
    **as_they_are: Any,
) -> None:
    """A burst in an early-warning network.

    One head, four edges, fifteen topics, seven of which double at 30 s.

    Exits with 1 if a message was lost, doubled or delivered out of order; lateness is what is measured. Exits with 75
    if the numbers are not those of what was asked for: simulated, if less than 99 % of the messages could be published
    because the head's link was full; on rabbitmq, if the machine or the load generator was the bottleneck.
    """
    live = backend == "rabbitmq"
    if live and control == "instant":
        raise click.UsageError("--control instant needs --backend sim: real control messages take time")
    if not live and (persistent or sdk != "0"):
        raise click.UsageError(
            "--sdk and --persistent need --backend rabbitmq: the simulator has neither the SDK nor restarts"
        )
    with usage_errors():
        options = ews.EwsOptions(
            threshold=ThresholdKind(threshold) if threshold else _THRESHOLDS[backend],
            instant=not live and control != "realistic",
            scale=scale or _SCALES[backend],
            **as_they_are,
        )
    _prepare(folder, (*RUN_FILES, *_LIVE_FILES, TELEMETRY_FILE) if live else (*RUN_FILES, TELEMETRY_FILE))
    with progress(beside_json=as_json) as report:
        if live:
            run, files = _run_live(options, folder, report, persistent=persistent, sdk=_sdk_count(sdk))
        else:
            run, files = _run_simulated(options, folder, report)
    if as_json:
        print_json(run.result.as_json())
    else:
        show_run(run.result)
        show_files(files)
    _exit_unless_sound(run)


@command.command(
    "compare",
    help=f"""All policies on the same input.

    On the papers' workload and random ones, at burst factors {", ".join(f"{factor:g}" for factor in BURST_FACTORS)}:
    by default {_RUNS} runs, which take about half an hour of one core (with --scale 0.2 a fifth of it).

    Exits with 1 if the deadline-aware policy was late where another was not, or moved what it need not have moved, or
    if a message was lost, doubled or delivered out of order.
    """,
)
@click.argument("name", type=click.Choice([ews.NAME]))
@click.option(
    "--seeds",
    type=click.IntRange(0, SEEDS_MAX),
    default=_SEEDS,
    help="How many random workloads, besides the papers' own. Each takes "
    f"{len(BURST_FACTORS) * len(CONTESTANTS)} runs.",
)
@click.option("--jobs", type=click.IntRange(1, JOBS_MAX), default=1, help="Processes to use.")
@_control_option
@_duration_option
@_scale_option
@json_option
@out_option("Write comparison.json, comparison.md and comparison.png into this folder.")
def compare(
    name: str,
    jobs: int,
    control: str,
    as_json: bool,
    folder: Path | None,
    **as_they_are: Any,
) -> None:
    """What it says of itself is above, with its numbers."""
    with usage_errors():
        wanted = cases(instant=control == "instant", **as_they_are)
    _prepare(folder, COMPARISON_FILES)
    with progress(beside_json=as_json) as report:
        report("runs", 0, len(wanted))
        comparison = run_comparison(wanted, jobs=jobs, progress=lambda done, total: report("runs", done, total))
    with writing():
        files = write_comparison(comparison, folder) if folder is not None else ()
    if as_json:
        print_json(comparison_json(comparison))
    else:
        show_comparison(comparison)
        show_files(files)
    if comparison.claims_broken:
        sys.exit(ExitCode.FAILED)


def _exit_unless_sound(run: EwsRun) -> None:
    result = run.result
    for reason in result.invalid_because:
        err().print(f"not valid: {reason}", style="red", markup=False)
    if result.lost or result.duplicates or result.out_of_order:
        sys.exit(ExitCode.FAILED)
    if not result.valid:
        sys.exit(ExitCode.INVALID_RUN)


def _run_simulated(options: ews.EwsOptions, folder: Path | None, report: Report) -> tuple[EwsRun, tuple[Path, ...]]:
    def progress_of(done: int, total: int) -> None:
        report("virtual seconds, draining included", done, total)

    if folder is None:
        return run_ews(options, progress=progress_of), ()
    from tidegate_experiments.telemetry import SimulatedTelemetry, write_telemetry

    telemetry = SimulatedTelemetry(ended_us=time.time_ns() // 1_000)
    run = run_ews(options, progress=progress_of, besides=(telemetry,))
    with writing():
        return run, (*write_run(run, folder), write_telemetry(telemetry.records(), folder))


def _run_live(
    options: ews.EwsOptions, folder: Path | None, report: Report, *, persistent: bool, sdk: int
) -> tuple[EwsRun, tuple[Path, ...]]:
    """On real RabbitMQ; what was asked for to be written is written."""
    from tidegate_experiments.live.files import write_live
    from tidegate_experiments.live.run import run_live
    from tidegate_experiments.telemetry import live_records, write_telemetry

    wanted = folder is not None
    live = run_async(run_live(options, progress=report, persistent=persistent, sdk=sdk, telemetry=wanted))
    if folder is None:
        return live.run, ()
    with writing():
        files = write_run(live.run, folder)
        files += write_live(live.course, live.run.recorder, live.run.result, folder)
        return live.run, (*files, write_telemetry(live_records(live.course, live.telemetry), folder))


def _prepare(folder: Path | None, names: tuple[str, ...]) -> None:
    if folder is not None:
        check_available()
    prepare(folder, names)


def _sdk_count(text: str) -> int:
    if text == "all":
        return _CLIENTS_MAX
    if not text.isdecimal():
        raise click.BadParameter("is neither a number nor 'all'", param_hint="--sdk")
    return min(int(text), _CLIENTS_MAX)
