"""`tidegate experiment`: the papers' experiments, one run or all policies side by side."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from rich.table import Table

from tidegate_agents.policies import POLICIES
from tidegate_agents.threshold import ThresholdKind
from tidegate_simulator.experiments import ews
from tidegate_simulator.experiments.compare import CONTESTANTS, JOBS_MAX, SEEDS_MAX, Comparison, cases, cells
from tidegate_simulator.experiments.compare import as_json as comparison_json
from tidegate_simulator.experiments.compare import compare as run_comparison
from tidegate_simulator.experiments.figures import check_available
from tidegate_simulator.experiments.files import write_comparison, write_run
from tidegate_simulator.experiments.result import EwsResult
from tidegate_simulator.experiments.run import EwsRun, run_ews

from ..console import Report, err, json_option, out, print_json, progress
from ..console import run as run_async
from ..exit_codes import ExitCode
from .scale import scale_command

LIVE_SCALE: Final = 0.25
"""What two cores can do."""
_SCALES: Final = {"sim": 1.0, "rabbitmq": LIVE_SCALE}
_THRESHOLDS: Final = {"sim": ThresholdKind.PAPER, "rabbitmq": ThresholdKind.PROJECTED}
_SEED_MAX: Final = (1 << 63) - 1
_CLIENTS_MAX: Final = 10_000
_MOVES_SHOWN_MAX: Final = 12

_out_option = click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write samples, decisions, telemetry and figures into this folder.",
)
_CONTROLS: Final = ("instant", "realistic")
_control_option = click.option(
    "--control",
    type=click.Choice(_CONTROLS),
    default="instant",
    show_default=True,
    help="Whether control messages and attaching take no time, as the papers assume, or travel over the links.",
)
_duration_option = click.option(
    "--duration",
    type=click.FloatRange(1.0, ews.DURATION_S_MAX),
    default=ews.DURATION_S,
    show_default=True,
    metavar="SECONDS",
    help="How long publishers publish, in virtual time where it is simulated.",
)
_scale_option = click.option(
    "--scale",
    type=click.FloatRange(ews.SCALE_MIN, ews.SCALE_MAX),
    default=1.0,
    show_default=True,
    help="Rates and bandwidths together times this: the same course with fewer messages.",
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
    show_default=True,
    help="Simulated, or on real RabbitMQ with conditioned links on this machine, in real time.",
)
@click.option(
    "--policy",
    type=click.Choice(sorted(POLICIES)),
    default="peer-wd",
    show_default=True,
    help="How subscribers are placed and moved.",
)
@click.option("--seed", type=click.IntRange(0, _SEED_MAX), default=0, show_default=True, help="Decides what is random.")
@click.option("--random", is_flag=True, help="Draw the workload from the papers' ranges, by seed.")
@click.option(
    "--burst-factor",
    type=click.FloatRange(1.0, ews.BURST_FACTOR_MAX),
    default=ews.BURST_FACTOR,
    show_default=True,
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
    type=click.FloatRange(1.0, ews.DURATION_S_MAX),
    default=ews.BURST_S,
    show_default=True,
    metavar="SECONDS",
    help="When the burst begins. The last topic registers at 15 s.",
)
@click.option(
    "--scale",
    type=click.FloatRange(ews.SCALE_MIN, ews.SCALE_MAX),
    help="Rates and bandwidths together times this: the same course with fewer messages. Default: 1 on sim, "
    f"{LIVE_SCALE:g} on rabbitmq.",
)
@click.option(
    "--sdk",
    default="0",
    show_default=True,
    metavar="COUNT|all",
    help="How many publishers and how many subscribers are those of the SDK, one topic after another (rabbitmq). The "
    "others are lean clients, which cost a fraction; all of them need a lower scale.",
)
@click.option(
    "--correlated-burst",
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
@_out_option
def ews_burst(
    backend: str,
    policy: str,
    seed: int,
    random: bool,
    burst_factor: float,
    threshold: str | None,
    control: str | None,
    duration: float,
    burst_at: float,
    scale: float | None,
    sdk: str,
    correlated_burst: bool,
    insight: bool,
    persistent: bool,
    as_json: bool,
    folder: Path | None,
) -> None:
    """A burst in an early-warning network: one head, four edges, fifteen topics, seven of which double at 30 s.

    Exits with 1 if a message was lost, doubled or delivered out of order; lateness is what is measured. On rabbitmq it
    exits with 75 if the machine or the load generator was the bottleneck, so that the numbers say nothing.
    """
    live = backend == "rabbitmq"
    if live and control == "instant":
        raise click.UsageError("--control instant needs --backend sim: real control messages take time")
    if not live and (persistent or sdk != "0"):
        raise click.UsageError("--sdk and --persistent need --backend rabbitmq: nobody is simulated twice")
    with _usage_errors():
        options = ews.EwsOptions(
            policy=policy,
            seed=seed,
            random=random,
            burst_factor=burst_factor,
            threshold=ThresholdKind(threshold) if threshold else _THRESHOLDS[backend],
            instant=not live and control != "realistic",
            duration_s=duration,
            burst_at_s=burst_at,
            scale=scale or _SCALES[backend],
            correlated=correlated_burst,
            insight=insight,
        )
    _prepare(folder)
    with progress(quiet=as_json) as report:
        if live:
            run, files = _run_live(options, folder, report, persistent=persistent, sdk=_sdk_count(sdk))
        else:
            run, files = _run_simulated(options, folder, report)
    if as_json:
        print_json(run.result.as_json())
    else:
        _show_run(run)
        _show_files(files)
    for reason in run.result.invalid_because:
        err().print(f"not valid: {reason}", style="red")
    if run.result.lost or run.result.duplicates or run.result.out_of_order:
        sys.exit(ExitCode.FAILED)
    if not run.result.valid:
        sys.exit(ExitCode.INVALID_RUN)


@command.command("compare")
@click.argument("name", type=click.Choice([ews.NAME]))
@click.option(
    "--seeds",
    type=click.IntRange(0, SEEDS_MAX),
    default=5,
    show_default=True,
    help="How many random workloads, besides the papers' own.",
)
@click.option("--jobs", type=click.IntRange(1, JOBS_MAX), default=1, show_default=True, help="Processes to use.")
@_control_option
@_duration_option
@_scale_option
@json_option
@_out_option
def compare(
    name: str,
    seeds: int,
    jobs: int,
    control: str,
    duration: float,
    scale: float,
    as_json: bool,
    folder: Path | None,
) -> None:
    """All policies on the same input, at several burst factors, on the papers' workload and random ones.

    Exits with 1 if the deadline-aware policy was late where another was not, or moved what it need not have moved.
    """
    with _usage_errors():
        wanted = cases(seeds, instant=control == "instant", duration_s=duration, scale=scale)
    _prepare(folder)
    with progress(quiet=as_json) as report:
        comparison = run_comparison(wanted, jobs=jobs, progress=lambda done, total: report("runs", done, total))
    files = write_comparison(comparison, folder) if folder is not None else ()
    if as_json:
        print_json(comparison_json(comparison))
    else:
        _show_comparison(comparison)
        _show_files(files)
    if comparison.claims_broken:
        sys.exit(ExitCode.FAILED)


def _run_simulated(options: ews.EwsOptions, folder: Path | None, report: Report) -> tuple[EwsRun, tuple[Path, ...]]:
    def progress_of(done: int, total: int) -> None:
        report("virtual seconds", done, total)

    if folder is None:
        return run_ews(options, progress=progress_of), ()
    from ..experiment_telemetry import SimulatedTelemetry, write_telemetry

    telemetry = SimulatedTelemetry(ended_us=time.time_ns() // 1_000)
    run = run_ews(options, progress=progress_of, besides=(telemetry,))
    return run, (*write_run(run, folder), write_telemetry(telemetry.records(), folder))


def _run_live(
    options: ews.EwsOptions, folder: Path | None, report: Report, *, persistent: bool, sdk: int
) -> tuple[EwsRun, tuple[Path, ...]]:
    """On real RabbitMQ; what was asked for to be written is written."""
    from ..experiment_telemetry import live_records, write_telemetry
    from ..live.files import write_live
    from ..live.run import run_live

    wanted = folder is not None
    live = run_async(run_live(options, progress=report, persistent=persistent, sdk=sdk, telemetry=wanted))
    if folder is None:
        return live.run, ()
    files = write_run(live.run, folder)
    files += write_live(live.course, live.run.recorder, live.run.result, folder)
    return live.run, (*files, write_telemetry(live_records(live.course, live.telemetry), folder))


def _sdk_count(text: str) -> int:
    if text == "all":
        return _CLIENTS_MAX
    if not text.isdecimal():
        raise click.BadParameter("is neither a number nor 'all'", param_hint="--sdk")
    return min(int(text), _CLIENTS_MAX)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """What an experiment refuses to be was asked for on the command line (`nan` passes every range)."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _prepare(folder: Path | None) -> None:
    """Find out before a long run, not after it, that nothing can be written."""
    if folder is None:
        return
    check_available()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"can't make the folder: {error.strerror}", param_hint="--out") from error
    if not os.access(folder, os.W_OK):
        raise click.BadParameter(f"{folder} is not writable", param_hint="--out")


def _show_run(run: EwsRun) -> None:
    result = run.result
    console = out()
    table = Table(title=f"{ews.NAME}, policy {result.policy}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for label, value in _lines(result):
        table.add_row(label, value)
    console.print(table)
    for edge, topics in result.placement.items():
        console.print(f"{edge} held topics {', '.join(map(str, topics)) or 'none'} before the burst")
    for move in result.moves[:_MOVES_SHOWN_MAX]:
        console.print(
            f"at {move.at_s:.1f} s topic {move.topic} ({move.subscribers} subscribers) "
            f"moved from {move.source} to {move.target}"
        )
    if len(result.moves) > _MOVES_SHOWN_MAX:
        console.print(f"… and {len(result.moves) - _MOVES_SHOWN_MAX} more moves")


def _lines(result: EwsResult) -> list[tuple[str, str]]:
    def at(seconds: float | None) -> str:
        return "never" if seconds is None else f"at {seconds:.1f} s"

    return [
        ("deliveries", f"{result.deliveries:,}"),
        ("late", f"{result.late:,} ({result.late_fraction:.2%})"),
        ("first late", at(result.first_late_s)),
        ("lost, doubled, out of order", f"{result.lost}, {result.duplicates}, {result.out_of_order}"),
        ("sessions (after the burst)", f"{result.sessions} ({result.sessions_after_burst})"),
        ("of these unnecessary", f"{result.unnecessary_sessions} ({result.unnecessary_after_burst})"),
        ("first session", at(result.first_session_s)),
        ("subscriptions moved", str(result.migrations)),
        ("backlog cleared", at(result.backlog_cleared_s)),
        ("control messages", f"{result.control_messages:,} ({result.control_overhead:.2%} of all)"),
        ("wall time", f"{result.wall_s:.1f} s"),
        *[(name.replace("_", " "), f"{value:g}") for name, value in result.harness.items()],
    ]


def _show_comparison(comparison: Comparison) -> None:
    console = out()
    table = Table(title=f"{ews.NAME}, {comparison.control} control", title_justify="left")
    for heading in ("burst", "policy"):
        table.add_column(heading, no_wrap=True)
    for heading in ("late", "deadlines kept", "sessions", "unnecessary", "migrations", "settled after"):
        table.add_column(heading, justify="right")
    for position, summary in enumerate(comparison.summaries, start=1):
        table.add_row(*cells(summary), end_section=position % len(CONTESTANTS) == 0)
    console.print(table)
    for problem in comparison.claims_broken:
        err().print(problem, style="red")
    if not comparison.claims_broken:
        console.print("Wherever some policy kept all deadlines, peer-wd did, and it started no session without need.")


def _show_files(files: tuple[Path, ...]) -> None:
    for file in files:
        out().print(f"wrote {file}", soft_wrap=True)
