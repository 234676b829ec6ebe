"""`tidegate experiment scale`: how the cost of balancing grows with the number of edges, in rate mode."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from tidegate_experiments.rate.scale import (
    EDGES_MAX,
    EDGES_PER_CLUSTER,
    SUBSCRIPTIONS_PER_EDGE_MAX,
    TOPICS_PER_EDGE,
    ScaleOptions,
    ScaleResult,
    run_scale,
)
from tidegate_experiments.rate.scale_files import HEADINGS, SCALE_FILES, as_json as result_json, row, write_scale
from tidegate_simulator.scenario_check import SEED_MAX

from ..console import json_option, out, print_json, progress
from ..errors import usage_errors
from ..exit_codes import ExitCode
from ..result_files import out_option, prepare, show_files, writing
from ..tables import table
from ..whole_numbers import WholeNumbers

_DURATION_S_MAX: Final = 24 * 3600.0
_FRAME: Final = 3
"""What a table adds to the width of a column."""


@click.command("scale")
@click.option(
    "--edges",
    type=WholeNumbers(EDGES_PER_CLUSTER, EDGES_MAX),
    default="10,100,1000",
    help=f"Sizes to run, smallest first; multiples of {EDGES_PER_CLUSTER}, the edges of a cluster.",
)
@click.option(
    "--subscriptions-per-edge",
    type=click.IntRange(TOPICS_PER_EDGE, SUBSCRIPTIONS_PER_EDGE_MAX),
    default=1_000,
    help=f"How many subscriptions each edge has, on average, to its {TOPICS_PER_EDGE} topics.",
)
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(60.0, _DURATION_S_MAX, min_open=True),
    default=600.0,
    metavar="SECONDS",
    help="Virtual time; the burst comes at 60 s.",
)
@click.option("--seed", type=click.IntRange(0, SEED_MAX), default=0, help="Draws the topics.")
@json_option
@out_option("Write the results as JSON and as a table into this folder.")
def scale_command(
    edges: tuple[int, ...],
    subscriptions_per_edge: int,
    duration_s: float,
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
        sizes = [ScaleOptions(number, subscriptions_per_edge, duration_s, seed=seed) for number in sorted(set(edges))]
    prepare(folder, SCALE_FILES)
    with progress(beside_json=as_json) as report:
        results = [run_scale(options, report) for options in sizes]
    answer = result_json(results, subscriptions_per_edge, seed)
    with writing():
        files = write_scale(answer, results, folder) if folder is not None else ()
    if as_json:
        print_json(answer)
    else:
        _show(results)
        show_files(files)
    if any(result.heartbeats_differing for result in results):
        sys.exit(ExitCode.FAILED)


def _show(results: Sequence[ScaleResult]) -> None:
    """One column per size: the names of what is measured are long, and its values are short."""
    console = out()
    console.print(
        f"{results[0].simulated_s:g} simulated seconds, a burst at 60 s in every tenth cluster", style="italic"
    )
    rows = [row(result) for result in results]
    for some in _side_by_side(rows, console.width):
        shown = table("what", *(">" for _ in some), whole=("what",), show_header=False)
        for heading, *values in zip(HEADINGS, *some, strict=True):
            shown.add_row(heading, *values, end_section=heading == HEADINGS[1])
        console.print(shown)


def _side_by_side(rows: Sequence[tuple[str, ...]], width: int) -> Iterator[Sequence[tuple[str, ...]]]:
    """As many sizes at a time as have room beside their headings."""
    headings = max(map(len, HEADINGS)) + _FRAME + 1
    first, used = 0, headings
    for number, cells in enumerate(rows):
        needed = max(map(len, cells)) + _FRAME
        if used + needed > width and number > first:
            yield rows[first:number]
            first, used = number, headings
        used += needed
    yield rows[first:]
