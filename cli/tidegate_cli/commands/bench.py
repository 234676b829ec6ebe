"""`tidegate bench`: measurements side by side, as ratios."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
from rich.table import Table

from ..benchmarks.dataplane import Size, run_dataplane
from ..console import json_option, out, print_json, progress, run


@click.group("bench")
def command() -> None:
    """Measure side by side, in one run: ratios that hold on a noisy machine."""


@command.command("dataplane")
@click.option("--rounds", type=click.IntRange(3, 50), default=7, show_default=True, help="Interleaved rounds.")
@click.option("--messages", type=click.IntRange(1_000, 1_000_000), help="Messages per path and round. [default: 20000]")
@json_option
def dataplane(rounds: int, messages: int | None, as_json: bool) -> None:
    """The path publisher → head → edge against a bare shovel and federation; the SDK against bare clients."""
    size = replace(Size(), rounds=rounds)
    if messages is not None:
        size = replace(size, path_messages=messages, federation_messages=max(1_000, messages // 4))
    with progress(quiet=as_json) as report:
        figures = run(run_dataplane(size, report))
    if as_json:
        print_json(figures)
    else:
        _show(figures)


def _show(figures: dict[str, Any]) -> None:
    rates = figures["messages_per_s"]
    table = Table(title=f"Medians of {figures['rounds']} interleaved rounds", title_justify="left")
    for heading, right in (("what", False), ("msg/s", True), ("against", False), ("msg/s", True), ("ratio", True)):
        table.add_column(heading, justify="right" if right else "left")
    rows = [
        ("head → edge", "tidegate", "bare shovel", "shovel", figures["ratio_to_shovel"]),
        ("head → edge", "tidegate", "federation", "federation", figures["ratio_to_federation"]),
    ]
    for ours, theirs in (("async", "aio_pika"), ("sync", "pika")):
        for verb in ("publish", "consume"):
            label = (
                f"{'AsyncP' if ours == 'async' else 'P'}ublisher"
                if verb == "publish"
                else (f"{'AsyncS' if ours == 'async' else 'S'}ubscriber")
            )
            other = "aio-pika" if theirs == "aio_pika" else "pika"
            rows.append(
                (label, f"{ours}_{verb}", f"bare {other}", f"{theirs}_{verb}", figures["sdk_ratios"][f"{ours}_{verb}"])
            )
    for label, ours, other, theirs, ratio in rows:
        table.add_row(label, f"{rates[ours]:,}", other, f"{rates[theirs]:,}", f"{ratio:.2f}")
    console = out()
    console.print(table)
    console.print(
        f"Latency added to a direct publish ({figures['direct_latency_p50_ms']:.1f} ms p50): "
        f"{figures['added_latency_p50_ms']:.1f} ms p50, {figures['added_latency_p99_ms']:.1f} ms p99."
    )
