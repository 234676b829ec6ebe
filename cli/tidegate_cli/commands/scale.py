"""`tidegate experiment scale`: how the cost of balancing grows with the number of edges, in rate mode."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
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

from ..console import json_option, out, print_json
from ..exit_codes import ExitCode
from ..experiment_files import prepare, progress_besides, show_files, usage_errors, writing
from ..numbers import WholeNumbers

_DURATION_S_MAX: Final = 24 * 3600.0
_SEED_MAX: Final = (1 << 63) - 1
_HEADINGS: Final = (
    "edges",
    "subscriptions",
    "agents, per simulated second",
    "control messages/s per edge",
    "sessions",
    "moved",
    "balanced after",
    "backlog gone after",
    "late",
    "processor",
    "wall",
    "memory",
)
_FRAME: Final = 3
"""What a table adds to the width of a column."""
_FILES: Final = ("scale.json", "scale.md")


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
    help=f"How many subscriptions each edge has, on average, to its {TOPICS_PER_EDGE} topics.",
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
    """What balancing costs with thousands of edges.

    Flows are rates here, not messages. Told for each size: the time of all agents, control messages, and how long it
    takes until load is balanced and backlogs are gone. Clusters of ten edges, one burst in every tenth cluster. Exits
    with 1 if an edge that was left alone because nothing changed turns out to have had something to say.
    """
    with usage_errors():
        sizes = [
            ScaleOptions(number, subscriptions_per_edge, duration_s=duration, seed=seed)
            for number in sorted(set(edges))
        ]
    prepare(folder, _FILES)
    results: list[ScaleResult] = []
    with progress_besides(as_json) as report:
        results.extend(run_scale(options, report) for options in sizes)
    answer = _as_json(results, subscriptions_per_edge, seed)
    files = _write(folder, answer, results) if folder is not None else ()
    if as_json:
        print_json(answer)
    else:
        _show(results)
        show_files(files)
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
    return (
        f"{result.edges:,}",
        f"{result.subscriptions:,}",
        f"{result.agent_cpu_s_per_s * 1000:.1f} ms",
        f"{result.control_messages_per_edge_per_s:.2f}",
        f"{result.sessions:,}",
        f"{result.migrations:,}",
        _balanced(result),
        "-" if result.settling_s is None else f"{result.settling_s:.0f} s",
        f"{result.late:,}",
        f"{result.cpu_s:.0f} s",
        f"{result.wall_s:.0f} s",
        f"{result.peak_memory_mb / 1000:.2f} GB",
    )


def _balanced(result: ScaleResult) -> str:
    if result.balanced_s is not None:
        return f"{result.balanced_s:.0f} s"
    return "not by the end" if result.sessions_after_burst else "no session"


def _write(folder: Path, answer: dict[str, Any], results: Sequence[ScaleResult]) -> tuple[Path, ...]:
    numbers, table = (folder / name for name in _FILES)
    with writing():
        numbers.write_text(json.dumps(answer, indent=2) + "\n")
        table.write_text(markdown(results))
    return numbers, table


def markdown(results: Sequence[ScaleResult]) -> str:
    """The table for a document."""
    lines = [_HEADINGS, tuple("---:" for _ in _HEADINGS), *(_row(result) for result in results)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _show(results: Sequence[ScaleResult]) -> None:
    """One column per size: the names of what is measured are long, and its values are short."""
    console = out()
    console.print(
        f"{results[0].simulated_s:g} simulated seconds, a burst at 60 s in every tenth cluster", style="italic"
    )
    rows = [_row(result) for result in results]
    for some in _side_by_side(rows, console.width):
        table = Table(show_header=False)
        table.add_column(no_wrap=True)
        for _ in some:
            table.add_column(justify="right", overflow="fold")
        for heading, *values in zip(_HEADINGS, *some, strict=True):
            table.add_row(heading, *values, end_section=heading == _HEADINGS[1])
        console.print(table)


def _side_by_side(rows: Sequence[tuple[str, ...]], width: int) -> Iterator[Sequence[tuple[str, ...]]]:
    """As many sizes at a time as have room beside their headings."""
    headings = max(map(len, _HEADINGS)) + _FRAME + 1
    first, used = 0, headings
    for number, row in enumerate(rows):
        needed = max(map(len, row)) + _FRAME
        if used + needed > width and number > first:
            yield rows[first:number]
            first, used = number, headings
        used += needed
    yield rows[first:]
