"""`tidegate bench`: measurements side by side, as ratios."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Final

import click

from tidegate_experiments.benchmarks import (
    agents as agent_benchmark,
    migration as migration_benchmark,
    sensing as sensing_benchmark,
)
from tidegate_experiments.benchmarks.dataplane import Size, run_dataplane

from ..console import head_option, json_option, out, present, progress, run
from ..exit_codes import ExitCode
from ..tables import table
from ..whole_numbers import WholeNumbers


@click.group("bench")
def command() -> None:
    """Measure side by side, in one run: ratios that hold on a noisy machine."""


@command.command("dataplane")
@click.option("--rounds", type=click.IntRange(3, 50), default=7, help="Interleaved rounds.")
@click.option("--messages", type=click.IntRange(1_000, 1_000_000), help="Messages per path and round. [default: 20000]")
@json_option
def dataplane(rounds: int, messages: int | None, as_json: bool) -> None:
    """The path publisher → head → edge against a bare shovel and federation; the SDK against bare clients."""
    size = replace(Size(), rounds=rounds)
    if messages is not None:
        size = replace(size, path_messages=messages, federation_messages=max(1_000, messages // 4))
    with progress(quiet=as_json) as report:
        figures = run(run_dataplane(size, report))
    present(figures, _show_dataplane, as_json)


_AGAINST: Final = (
    ("head → edge", "tidegate", "bare shovel", "shovel"),
    ("head → edge", "tidegate", "federation", "federation"),
    ("AsyncPublisher", "async_publish", "bare aio-pika", "aio_pika_publish"),
    ("AsyncSubscriber", "async_consume", "bare aio-pika", "aio_pika_consume"),
    ("Publisher", "sync_publish", "bare pika", "pika_publish"),
    ("Subscriber", "sync_consume", "bare pika", "pika_consume"),
)
"""Of the data plane: what is measured, under which name, and what beside it."""


def _show_dataplane(figures: dict[str, Any]) -> None:
    rates, ratios = figures["messages_per_s"], figures["sdk_ratios"]
    rows = [
        (
            label,
            f"{rates[ours]:,}",
            other,
            f"{rates[theirs]:,}",
            f"{ratios[ours] if ours in ratios else figures[f'ratio_to_{theirs}']:.2f}",
        )
        for label, ours, other, theirs in _AGAINST
    ]
    console = out()
    headings = ("what", ">msg/s", "against", ">msg/s", ">ratio")
    console.print(table(*headings, title=f"Medians of {figures['rounds']} interleaved rounds", rows=rows))
    console.print(
        f"Latency added to a direct publish ({figures['direct_latency_p50_ms']:.1f} ms p50): "
        f"{figures['added_latency_p50_ms']:.1f} ms p50, {figures['added_latency_p99_ms']:.1f} ms p99."
    )


@command.command("agents")
@click.option("--rounds", type=click.IntRange(3, 1_000), default=11, help="Measurements per size.")
@click.option(
    "--sizes",
    type=WholeNumbers(agent_benchmark.TOPICS_MIN, agent_benchmark.SIZE_MAX),
    default=",".join(str(size) for size in agent_benchmark.SIZES),
    help="Subscriptions on the edge.",
)
@json_option
def agents(rounds: int, sizes: tuple[int, ...], as_json: bool) -> None:
    """One decision of an edge's agent, from an overload to the plan, against the number of its subscriptions."""
    with progress(quiet=as_json) as report:
        figures = agent_benchmark.run_agents(sizes, rounds, report)
    present(figures, _show_agents, as_json)


def _show_agents(figures: dict[str, Any]) -> None:
    headings = (">subscriptions", ">sample", ">detect", ">plan", ">decision", ">moves", ">bytes each", ">÷ n·log n")
    shown = table(*headings, title=f"Medians of {figures['rounds']} rounds, in milliseconds")
    for size in figures["sizes"]:
        ratio = size["ratio_to_n_log_n"]
        shown.add_row(
            f"{size['subscriptions']:,}",
            f"{size['sample_ms']:.2f}",
            f"{size['detect_ms']:.2f}",
            f"{size['plan_ms']:.2f}",
            f"{size['decision_ms']:.2f}",
            f"{size['moves']:,}",
            f"{size['bytes_per_subscription']:,}",
            "" if ratio is None else f"{ratio:.2f}",
        )
    console = out()
    console.print(shown)
    control = figures["control_messages_per_s"]
    exponent = figures["growth_exponent"]
    growth = "" if exponent is None else f"A decision grows with n to the power of {exponent:.2f}. "
    console.print(f"{growth}Control messages of an edge: {control['idle']:.1f}/s idle, {control['busy']:.1f}/s busy.")


@command.command("migration")
@click.option("--subscribers", type=click.IntRange(1, 1_000), default=100, help="Moved each round.")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, help="From edge to edge and back.")
@head_option("A head with two edges that serve nobody else. Default: a cluster started for this.")
@click.option("--persistent", is_flag=True, help="Persistent messages: what waiting for a disk adds shows, too.")
@json_option
def migration(subscribers: int, rounds: int, url: str | None, persistent: bool, as_json: bool) -> None:
    """Subscribers moved from edge to edge under load: how long each goes without a message, and what is lost."""
    size = migration_benchmark.Size(subscribers=subscribers, rounds=rounds, persistent=persistent)
    with progress(quiet=as_json) as report:
        figures = run(migration_benchmark.run_migration(url, size, report))
    present(figures, _show_migration, as_json)
    if figures["lost"] or figures["duplicates"] or figures["out_of_order"]:
        sys.exit(ExitCode.FAILED)


def _show_migration(figures: dict[str, Any]) -> None:
    console = out()
    console.print(
        f"{figures['moves']} moves of {figures['subscribers']} subscribers at {figures['messages_per_s']:,.0f} "
        f"deliveries/s: {figures['duration_s']:.1f} s for all of them, {figures['move_p50_s']:.2f} s for each."
    )
    shown = table("noticed", ">p50", ">p99", ">longest", title="Added latency or pause, in milliseconds")
    rows = (
        ("by a subscriber of its own move", "gap"),
        ("by others, meanwhile, in as long a time", "bystanders"),
        ("while nobody moved, in as long a time", "calm"),
        ("by each in a whole drain", "drain"),
    )
    for what, name in rows:
        shown.add_row(what, *(f"{figures[f'{name}_{share}_ms']:.0f}" for share in ("p50", "p99", "max")))
    console.print(shown)
    console.print(
        f"Processors busy: {figures['busy_share_calm']:.0%}, {figures['busy_share_moving']:.0%} during drains. "
        f"No process with subscribers stood still for more than {figures['stall_max_ms']:.0f} ms.\n"
        f"{figures['deliveries']:,} deliveries: {figures['lost']} lost, {figures['duplicates']} doubled "
        f"({figures['duplicates_removed']} removed), {figures['out_of_order']} out of order."
    )
    for reason in figures["invalid_because"]:
        console.print(f"The machine was the bottleneck: {reason}.")


@command.command("sensing")
@click.option("--queues", type=click.IntRange(1, 20_000), default=1_000, help="Output queues.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=20, help="How long to watch.")
@json_option
def sensing(queues: int, seconds: float, as_json: bool) -> None:
    """What watching costs: CPU of a head, an edge and their RabbitMQ at rest, without and with many queues."""
    with progress(quiet=as_json) as report:
        figures = run(sensing_benchmark.run_sensing(sensing_benchmark.Size(queues, seconds), report))
    present(figures, _show_sensing, as_json)


def _show_sensing(figures: dict[str, Any]) -> None:
    rows = [
        (name, f"{figures[f'{name}_share_without_queues']:.1%}", f"{figures[f'{name}_share']:.1%}")
        for name in ("head", "edge", "rabbitmq")
    ]
    headings = ("process", ">no queue", f">{figures['queues']:,} queues")
    out().print(table(*headings, title=f"Share of one core over {figures['seconds']:g} s", rows=rows))


@command.command("analytics")
@click.option("--rounds", type=click.IntRange(3, 50), default=5, help="Interleaved rounds.")
@click.option("--records", type=click.IntRange(10_000, 5_000_000), default=200_000, help="Read in each round.")
@click.option(
    "--seconds",
    type=click.FloatRange(10, 86_400),
    default=60,
    help="How long a query follows a stream at 1,000 records/s, for its delay and its memory.",
)
@json_option
def analytics(rounds: int, records: int, seconds: float, as_json: bool) -> None:
    """The Spark source beside a bare consumer and beside JSON files, its memory, and the delay of a query."""
    from tidegate_experiments.benchmarks import analytics as analytics_benchmark

    size = analytics_benchmark.Size(rounds=rounds, records=records, seconds=seconds)
    with progress(quiet=as_json) as report:
        figures = run(analytics_benchmark.run_analytics(size, report))
    present(figures, _show_analytics, as_json)


def _show_analytics(figures: dict[str, Any]) -> None:
    console = out()
    rates = figures["records_per_s"]
    one, two = figures["ratio_to_bare_consumer"], figures["ratio_to_bare_consumer_2_partitions"]
    rows = [
        ("bare pika consumer", f"{rates['bare']:,}", "1", ""),
        ("source, one partition", f"{rates['source_1']:,}", f"{one:.2f}", ""),
        ("source, two partitions", f"{rates['source_2']:,}", f"{two:.2f}", f"{figures['ratio_to_files']:.2f}"),
        ("Spark's JSON files", f"{rates['files']:,}", "", "1"),
    ]
    headings = ("what", ">records/s", ">to bare", ">to files")
    console.print(table(*headings, title=f"Medians of {figures['rounds']} interleaved rounds", rows=rows))
    if figures["lag_p95_s"] is not None:
        console.print(
            f"From a record's time to its updated window at {figures['lag_records_per_s']:,} records/s: "
            f"{figures['lag_p50_s']:.2f} s p50, {figures['lag_p95_s']:.2f} s p95, {figures['lag_max_s']:.2f} s at most."
        )
    memory = table("after", ">records", ">Python workers", ">driver", ">JVM heap", title="Memory, MB")
    for point in figures["memory"]:
        numbers = [f"{point[name]:,.0f}" for name in ("records", "workers_mb", "driver_mb", "jvm_heap_mb")]
        memory.add_row(point["after"], *numbers)
    console.print(memory)
