"""`tidegate demo`: a burst, a threshold crossed, a move, deadlines kept, and what would have happened without it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import asdict
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from tidegate._engine.asking import Asking
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_experiments.demo import story
from tidegate_experiments.demo.early_warning import EarlyWarning
from tidegate_experiments.demo.unmoved import Unmoved, play_unmoved
from tidegate_experiments.demo.watching import DeliveryRates, DemoOutcome
from tidegate_protocol.operations import ExplainReply, ExplainRequest, OverviewReply
from tidegate_protocol.rendering.words import listed

from ..console import json_option, out, print_json, progress, run
from ..demo_narration import Narrator, audience_table, edge_table, opening, shaking
from ..exit_codes import ExitCode
from ..explain.session import paragraph

_TABLE_EVERY: Final = 6
"""Overviews between two tables where the output is no terminal and can't be redrawn."""
_CALM_S_MIN: Final = 3.0


@click.command("demo")
@click.option(
    "--steady",
    type=click.FloatRange(_CALM_S_MIN, 300),
    default=8,
    help="Seconds of steady load before the burst.",
)
@click.option("--burst", type=click.FloatRange(5, 300), default=22, help="Seconds of burst.")
@json_option
def command(steady: float, burst: float, as_json: bool) -> None:
    """Start one head and three edges on real RabbitMQ, let the ground shake, and watch every deadline.

    Sensors publish at a steady rate; then some of them send more than one edge can carry. Tidegate sees which
    subscription is about to miss its deadline and moves others out of its way. Ends by itself and leaves nothing
    behind. Exits with 1 if a message was lost, doubled or out of order.
    """
    outcome = run(_Demo(steady, burst, as_json).run())
    if not outcome.complete:
        sys.exit(ExitCode.FAILED)


class _Demo:
    """One telling of the story."""

    def __init__(self, steady_s: float, burst_s: float, as_json: bool) -> None:
        self._burst_at_s = story.JOINING_S + steady_s
        self._total_s = self._burst_at_s + burst_s
        self._as_json = as_json
        self._console = out()
        self._live: Live | None = None
        self._lines: list[str] = []
        self._began = 0.0
        self._overviews = 0
        self._overview: OverviewReply | None = None

    async def run(self) -> DemoOutcome:
        """Start the cluster, tell the story, sum up, and stop the cluster."""
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            # The bars end before anything else is printed: two writers would overwrite each other on a terminal.
            with progress(quiet=self._as_json) as report:
                cluster = EmbeddedCluster(story.topology(), compact=True, progress=report)
                await stack.enter_async_context(cluster)
            ready_s, url = time.monotonic() - began, cluster.url(story.CLUSTER)
            self._say(f"1 head and {len(story.EDGES)} edges with narrow uplinks are ready after {ready_s:.1f} s.")
            try:
                scenario = await stack.enter_async_context(EarlyWarning(url))
                await self._tell(scenario)
                outcome, explained = scenario.outcome(), await self._explain(url)
                unmoved = await asyncio.to_thread(play_unmoved, self._burst_at_s, self._total_s)
            except asyncio.CancelledError:
                self._say("Stopping …")
                raise
            if self._as_json:
                print_json(_describe(scenario, outcome, ready_s, self._overview, unmoved))
            else:
                self._sum_up(outcome, explained, unmoved)
        return outcome

    def _say(self, text: str) -> None:
        if self._as_json:
            return
        line = f"{time.monotonic() - self._began:3.0f} s  {text}" if self._began else text
        self._lines.append(line)
        if self._live is None:
            self._console.print(line)

    async def _tell(self, scenario: EarlyWarning) -> None:
        self._began = time.monotonic()
        narrator, rates = Narrator(), DeliveryRates(scenario.watches)

        def look(overview: OverviewReply) -> None:
            self._overview = overview
            for text in narrator.news(overview, scenario.watches):
                self._say(text)
            self._show([audience_table(scenario.watches, rates.now(), overview), edge_table(overview)])

        redrawn = self._console.is_terminal and not self._as_json
        with Live(console=self._console, auto_refresh=False) if redrawn else nullcontext() as self._live:
            self._say(opening())
            await scenario.play(
                self._burst_at_s, self._total_s, on_burst=lambda: self._say(shaking()), on_overview=look
            )
        self._live = None

    def _show(self, tables: Sequence[RenderableType]) -> None:
        self._overviews += 1
        if self._live is not None:
            self._live.update(Group(*map(Text, self._lines), *tables), refresh=True)
        elif self._overviews % _TABLE_EVERY == 0 and not self._as_json:
            self._console.print(*tables, sep="\n")

    async def _explain(self, url: str) -> str:
        """Why the last session did what it did, in the words of `tidegate explain`."""
        ended = [one for one in (self._overview.sessions if self._overview else ()) if one.ended_ago_us is not None]
        if not ended:
            return ""
        async with Asking(url) as head:
            return paragraph(await head.ask(ExplainRequest(about=ended[0].session), ExplainReply))

    def _sum_up(self, outcome: DemoOutcome, explained: str, unmoved: Sequence[Unmoved]) -> None:
        self._console.print(
            f"\n[bold]{outcome.published}[/bold] messages published, [bold]{outcome.delivered}[/bold] delivered: "
            f"{outcome.lost} lost, {outcome.doubled} doubled, {outcome.out_of_order} out of order, {outcome.late} late."
        )
        if explained:
            self._console.print(f"\n[bold]Why:[/bold] {escape(explained)}")
        else:
            self._console.print("\nNobody was moved. Was the burst too short to endanger a deadline?", style="yellow")
        late = listed(f"{one.late} of {one.delivered} messages to {one.audience}s" for one in unmoved if one.late)
        self._console.print(
            f"\n[bold]Without the move[/bold] {late or 'no message'} would have been late: the simulator has played "
            "the same story with balancing switched off."
        )


def _describe(
    scenario: EarlyWarning,
    outcome: DemoOutcome,
    ready_s: float,
    overview: OverviewReply | None,
    unmoved: Sequence[Unmoved],
) -> dict[str, Any]:
    sessions = overview.sessions if overview is not None else ()
    return {
        "ready_s": round(ready_s, 2),
        **asdict(outcome),
        "sessions": [session.model_dump(mode="json") for session in sessions],
        "late_without_moving": {one.audience: one.late for one in unmoved},
        "subscribers": [
            {
                "subscriber": watch.name,
                "topic": watch.audience.topic,
                "edge": watch.edge,
                "deadline_s": watch.audience.deadline_s,
                "delivered": watch.judge.deliveries,
                "late": watch.late,
            }
            for watch in scenario.watches
        ],
    }
