"""`tidegate experiment scale`: how the cost of balancing grows with the number of edges, in rate mode."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from tidegate_simulator.flows.scale import (
    EDGES_MAX,
    EDGES_PER_CLUSTER,
    SUBSCRIPTIONS_PER_EDGE_MAX,
    TOPICS_PER_EDGE,
    ScaleOptions,
    ScaleResult,
    run_scale,
)

from ..console import err, json_option, out, print_json, progress
from ..exit_codes import ExitCode
from ..numbers import WholeNumbers

_DURATION_S_MAX: Final = 24 * 3600.0
_SEED_MAX: Final = (1 << 63) - 1
_HEADINGS: Final = (
    "edges",
    "subscriptions",
    "agents per s",
    "control/s per edge",
    "sessions",
    "moved",
    "balanced",
    "drained",
    "late",
    "CPU",
    "wall",
    "memory",
)


@click.command("scale")
@click.option(
    "--edges",
    type=WholeNumbers(EDGES_PER_CLUSTER, EDGES_MAX),
    default="10,100,1000",
    show_default=True,
    help=f"Sizes to run, smallest first; multiples of {EDGES_PER_CLUSTER}, the edges of a cluster.",
)
@click.option(
    "--subscriptions-per-edge",
    type=click.IntRange(TOPICS_PER_EDGE, SUBSCRIPTIONS_PER_EDGE_MAX),
    default=1_000,
    show_default=True,
)
@click.option(
    "--duration",
    type=click.FloatRange(60.0, _DURATION_S_MAX, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Virtual time; the burst comes at 60 s.",
)
@click.option("--seed", type=click.IntRange(0, _SEED_MAX), default=0, show_default=True, help="Draws the topics.")
@json_option
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the results as JSON and as a table into this folder.",
)
def scale_command(
    edges: tuple[int, ...],
    subscriptions_per_edge: int,
    duration: float,
    seed: int,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Thousands of edges with flows as rates: agent time, control messages and settling time against the size.

    Clusters of ten edges, one burst in every tenth cluster. Exits with 1 if an edge that was left alone because nothing
    changed turns out to have had something to say.
    """
    sizes = [
        ScaleOptions(number, subscriptions_per_edge, duration_s=duration, seed=seed) for number in sorted(set(edges))
    ]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    results: list[ScaleResult] = []
    with progress(quiet=as_json) as report:
        results.extend(run_scale(options, report) for options in sizes)
    answer = _as_json(results, subscriptions_per_edge, seed)
    if folder is not None:
        (folder / "scale.json").write_text(json.dumps(answer, indent=2) + "\n")
        (folder / "scale.md").write_text(markdown(results))
    if as_json:
        print_json(answer)
    else:
        _show(results)
        if folder is not None:
            err().print(f"wrote {folder / 'scale.json'} and {folder / 'scale.md'}")
    if any(result.heartbeats_differing for result in results):
        sys.exit(ExitCode.FAILED)


def _as_json(results: Sequence[ScaleResult], subscriptions_per_edge: int, seed: int) -> dict[str, Any]:
    return {
        "experiment": "scale",
        "seed": seed,
        "subscriptions_per_edge": subscriptions_per_edge,
        "wall_s": round(sum(result.wall_s for result in results), 1),
        "sizes": [result.as_dict() for result in results],
    }


def _row(result: ScaleResult) -> tuple[str, ...]:
    balanced = "-" if result.balanced_s is None else f"{result.balanced_s:.0f} s"
    settled = "-" if result.settling_s is None else f"{result.settling_s:.0f} s"
    return (
        f"{result.edges:,}",
        f"{result.subscriptions:,}",
        f"{result.agent_cpu_s_per_s * 1000:.1f} ms",
        f"{result.control_messages_per_edge_per_s:.2f}",
        f"{result.sessions:,}",
        f"{result.migrations:,}",
        balanced,
        settled,
        f"{result.late:,}",
        f"{result.cpu_s:.0f} s",
        f"{result.wall_s:.0f} s",
        f"{result.peak_memory_mb / 1000:.2f} GB",
    )


def markdown(results: Sequence[ScaleResult]) -> str:
    """The table for a document."""
    lines = [_HEADINGS, tuple("---:" for _ in _HEADINGS), *(_row(result) for result in results)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _show(results: Sequence[ScaleResult]) -> None:
    simulated_s = results[0].simulated_s
    title = f"{simulated_s:g} simulated seconds, a burst in every tenth cluster"
    table = Table(title=title, title_justify="left")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(*_row(result))
    out().print(table)
