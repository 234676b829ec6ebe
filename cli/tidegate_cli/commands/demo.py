"""`tidegate demo`: one head, four edges, an early-warning network in miniature, a table that moves, a summary."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tidegate_brokers.embedded.cluster import EmbeddedCluster
from tidegate_brokers.topology import Topology

from ..console import json_option, out, print_json, progress, run
from ..depths import output_depths
from ..early_warning import EarlyWarning, Outcome, Watch
from ..exit_codes import ExitCode

_EDGES: Final = 4
_REFRESH_S: Final = 1.0
_LINES_EVERY_S: Final = 5.0
"""How often a table is printed where the output is no terminal and can't be redrawn."""


@click.command("demo")
@click.option("--seconds", type=click.FloatRange(1, 600), default=25, show_default=True, help="How long messages flow.")
@json_option
def command(seconds: float, as_json: bool) -> None:
    """Start one head and four edges on real RabbitMQ, let sensors publish, and watch every deadline.

    Ends by itself and leaves nothing behind. Exits with 1 if a message was lost or doubled.
    """
    outcome = run(_demo(seconds, as_json))
    if not outcome.complete:
        sys.exit(ExitCode.FAILED)


async def _demo(seconds: float, as_json: bool) -> Outcome:
    began = time.monotonic()
    with progress(quiet=as_json) as report:
        cluster = EmbeddedCluster(Topology.simple(clusters=1, edges=_EDGES), compact=True, progress=report)
        await cluster.__aenter__()
    try:
        ready_s = time.monotonic() - began
        if not as_json:
            out().print(f"One head and {_EDGES} edges ready after {ready_s:.1f} s. Messages flow for {seconds:g} s.\n")
        url = cluster.url(next(iter(cluster.clusters)))
        async with EarlyWarning(url) as scenario:
            await _watch(cluster, scenario, seconds, as_json)
            outcome = scenario.outcome()
            if as_json:
                print_json(_describe(scenario, outcome, ready_s))
            else:
                _sum_up(scenario, outcome)
        return outcome
    finally:
        await cluster.__aexit__(None, None, None)


async def _watch(cluster: EmbeddedCluster, scenario: EarlyWarning, seconds: float, quiet: bool) -> None:
    """Publish while a table shows what happens; on a terminal it is redrawn in place."""
    console = out()
    rates = _Rates(scenario)

    async def publish() -> None:
        await scenario.publish(seconds)
        await scenario.settle()

    task = asyncio.create_task(publish())
    try:
        if quiet:
            await task
        elif console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                while not task.done():
                    await asyncio.wait({task}, timeout=_REFRESH_S)
                    live.update(_table(rates, await output_depths(cluster)), refresh=True)
        else:
            while not (await asyncio.wait({task}, timeout=_LINES_EVERY_S))[0]:
                console.print(_table(rates, await output_depths(cluster)))
        await task
    finally:
        task.cancel()


class _Rates:
    """Deliveries per second of each watch since the last look."""

    def __init__(self, scenario: EarlyWarning) -> None:
        self.scenario = scenario
        self._began = time.monotonic()
        self._last: dict[str, tuple[float, int]] = {}

    def of(self, watch: Watch) -> float:
        now = time.monotonic()
        name = watch.interest.subscriber
        then, count = self._last.get(name, (self._began, 0))
        self._last[name] = (now, watch.delivered)
        return (watch.delivered - count) / (now - then) if now > then else 0.0


def _table(rates: _Rates, depths: Mapping[str, int]) -> RenderableType:
    table = Table()
    for heading in ("subscriber", "topics", "edge"):
        table.add_column(heading, no_wrap=True)
    for heading in ("deadline", "rate", "queue", "p50", "p99", "late"):
        table.add_column(heading, justify="right")
    for watch in rates.scenario.watches:
        statistics = watch.subscription.statistics()
        late = Text(str(statistics.late), style="red" if statistics.late else "green")
        table.add_row(
            watch.interest.subscriber,
            watch.interest.pattern,
            watch.subscription.edge,
            f"{watch.interest.deadline_s:g} s",
            f"{rates.of(watch):.0f}/s",
            str(depths.get(watch.subscription.queue or "", 0)),
            f"{statistics.latency_p50_s * 1000:.1f} ms",
            f"{statistics.latency_p99_s * 1000:.1f} ms",
            late,
        )
    published = sum(rates.scenario.published.values())
    return Group(table, Text(f"{published} published so far", style="dim"))


def _sum_up(scenario: EarlyWarning, outcome: Outcome) -> None:
    console = out()
    console.print(
        f"\n[bold]{outcome.published}[/bold] messages published, [bold]{outcome.delivered}[/bold] deliveries to "
        f"{len(scenario.watches)} subscriptions: {outcome.lost} lost, {outcome.doubled} doubled, {outcome.late} late."
    )
    if outcome.late:
        console.print("Late at such low rates: this machine was busy with something else.", style="yellow")
    tightest = min(scenario.watches, key=lambda watch: watch.interest.deadline_s)
    statistics = tightest.subscription.statistics()
    console.print(
        f"The tightest deadline, {tightest.interest.deadline_s:g} s for {tightest.interest.subscriber}: "
        f"99 % arrived within {statistics.latency_p99_s * 1000:.1f} ms."
    )


def _describe(scenario: EarlyWarning, outcome: Outcome, ready_s: float) -> dict[str, Any]:
    return {
        "ready_s": round(ready_s, 2),
        **asdict(outcome),
        "subscriptions": [
            {
                "subscriber": watch.interest.subscriber,
                "pattern": watch.interest.pattern,
                "edge": watch.subscription.edge,
                "deadline_s": watch.interest.deadline_s,
                "delivered": watch.delivered,
                "expected": scenario.expected(watch),
                "late": watch.subscription.statistics().late,
                "p50_s": watch.subscription.statistics().latency_p50_s,
                "p99_s": watch.subscription.statistics().latency_p99_s,
            }
            for watch in scenario.watches
        ],
    }
