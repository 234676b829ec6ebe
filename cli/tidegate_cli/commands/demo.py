"""`tidegate demo`: a burst, a threshold crossed, a move, deadlines kept, and what would have happened without it."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict
from typing import Any, Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tidegate import TidegateError
from tidegate_brokers.embedded.cluster import EmbeddedCluster
from tidegate_protocol.operations import ExplainReply, ExplainRequest, OverviewReply, OverviewRequest
from tidegate_simulator.world import World

from .. import story
from ..ask import Asking
from ..console import json_option, out, print_json, progress, run
from ..early_warning import EarlyWarning, Outcome, Watch
from ..exit_codes import ExitCode
from ..narration import Narrator, audience_table, edge_table, shaking

_LOOK_EVERY_S: Final = 1.0
_TABLE_EVERY: Final = 6
"""Looks between two tables where the output is no terminal and can't be redrawn."""
_QUEUES: Final = 20
_JOINING_S: Final = story.JOINING_S
_CALM_S_MIN: Final = 3.0


@click.command("demo")
@click.option(
    "--steady",
    type=click.FloatRange(_CALM_S_MIN, 300),
    default=8,
    show_default=True,
    help="Seconds of steady load before the burst.",
)
@click.option("--burst", type=click.FloatRange(5, 300), default=22, show_default=True, help="Seconds of burst.")
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
        self._steady_s = steady_s
        self._burst_s = burst_s
        self._as_json = as_json
        self._console = out()
        self._narrator = Narrator()
        self._lines: list[str] = []
        self._began = 0.0
        self._overview: OverviewReply | None = None

    async def run(self) -> Outcome:
        """Boot, tell, sum up."""
        began = time.monotonic()
        with progress(quiet=self._as_json) as report:
            cluster = EmbeddedCluster(story.topology(), compact=True, progress=report)
            await cluster.__aenter__()
        try:
            ready_s = time.monotonic() - began
            self._say(f"One head and {len(story.EDGES)} edges with narrow uplinks are ready after {ready_s:.1f} s.")
            async with EarlyWarning(cluster.url(story.CLUSTER)) as scenario, Asking(cluster.url(story.CLUSTER)) as head:
                await self._tell(scenario, head)
                outcome = scenario.outcome()
                explained = await self._explain(head)
                without = await asyncio.to_thread(_without_moving, _JOINING_S + self._steady_s, self._total_s)
                if self._as_json:
                    print_json(_describe(scenario, outcome, ready_s, self._overview, without))
                else:
                    _sum_up(self._console, outcome, explained, without)
            return outcome
        finally:
            await cluster.__aexit__(None, None, None)

    @property
    def _total_s(self) -> float:
        return _JOINING_S + self._steady_s + self._burst_s

    def _say(self, text: str) -> None:
        if self._as_json:
            return
        line = f"{time.monotonic() - self._began:3.0f} s  {text}" if self._began else text
        self._lines.append(line)
        if not self._console.is_terminal or not self._began:
            self._console.print(line)

    async def _tell(self, scenario: EarlyWarning, head: Asking) -> None:
        self._began = time.monotonic()
        subscribers = sum(audience.count for audience in story.AUDIENCES)
        self._say(f"Four kinds of sensors publish; {subscribers} subscribers register, each with a deadline.")
        task = asyncio.create_task(self._play(scenario))
        try:
            if self._console.is_terminal and not self._as_json:
                with Live(console=self._console, auto_refresh=False) as live:
                    await self._watch(scenario, head, task, live)
            else:
                await self._watch(scenario, head, task, None)
            await task
        finally:
            task.cancel()

    async def _play(self, scenario: EarlyWarning) -> None:
        await scenario.play(_JOINING_S + self._steady_s, self._total_s, lambda: self._say(shaking()))

    async def _watch(self, scenario: EarlyWarning, head: Asking, task: asyncio.Task[None], live: Live | None) -> None:
        rates = _Rates(scenario.watches)
        looks = 0
        while not (await asyncio.wait({task}, timeout=_LOOK_EVERY_S))[0]:
            try:
                self._overview = await head.ask(OverviewRequest(queues=_QUEUES), OverviewReply)
            except TidegateError:
                continue  # the next look may do better, and the story does not depend on it
            for text in self._narrator.news(self._overview):
                self._say(text)
            looks += 1
            tables = [audience_table(scenario.watches, rates.now(), self._overview), edge_table(self._overview)]
            if live is not None:
                lines: list[RenderableType] = [Text(line) for line in self._lines]
                live.update(Group(*lines, *tables), refresh=True)
            elif looks % _TABLE_EVERY == 0 and not self._as_json:
                self._console.print(*tables, sep="\n")

    async def _explain(self, head: Asking) -> str:
        """Why the last session did what it did, in the words of `tidegate explain`."""
        ended = [one for one in (self._overview.sessions if self._overview else ()) if one.ended_ago_us is not None]
        if not ended:
            return ""
        from ..explain.session import paragraph

        return paragraph(await head.ask(ExplainRequest(about=ended[0].session), ExplainReply))


class _Rates:
    """Deliveries per second of each subscriber since the last look."""

    def __init__(self, watches: list[Watch]) -> None:
        self._watches = watches
        self._last = {watch.name: (time.monotonic(), 0) for watch in watches}

    def now(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for watch in self._watches:
            then, count = self._last[watch.name]
            moment, delivered = time.monotonic(), watch.delivered
            self._last[watch.name] = (moment, delivered)
            found[watch.name] = (delivered - count) / (moment - then) if moment > then else 0.0
        return found


def _without_moving(burst_at_s: float, duration_s: float) -> dict[str, tuple[int, int]]:
    """Deliveries and late ones of each audience, had nobody been moved: the same story in the simulator."""
    world = World(story.scenario("none", burst_at_s, duration_s))
    world.run()
    found = {audience.name: (0, 0) for audience in story.AUDIENCES}
    for name, subscriber in world.subscribers.items():
        audience = name.rpartition("-")[0]
        delivered, late = found[audience]
        found[audience] = (delivered + subscriber.delivered, late + subscriber.late)
    return found


def _sum_up(console: Console, outcome: Outcome, explained: str, without: dict[str, tuple[int, int]]) -> None:
    console.print(
        f"\n[bold]{outcome.published}[/bold] messages published, [bold]{outcome.delivered}[/bold] delivered: "
        f"{outcome.lost} lost, {outcome.doubled} doubled, {outcome.out_of_order} out of order, {outcome.late} late."
    )
    if explained:
        console.print(f"\n[bold]Why:[/bold] {explained}")
    else:
        console.print("\nNobody was moved. Was the burst too short for a threshold to be passed?", style="yellow")
    late = {name: counts for name, counts in without.items() if counts[1]}
    parts = ", ".join(f"{late_count} of {all_count} to {name}s" for name, (all_count, late_count) in late.items())
    console.print(
        f"\n[bold]Without the move:[/bold] the simulator plays the same story with nobody moved, and there "
        f"{parts or 'nothing'} would have come late."
    )


def _describe(
    scenario: EarlyWarning,
    outcome: Outcome,
    ready_s: float,
    overview: OverviewReply | None,
    without: dict[str, tuple[int, int]],
) -> dict[str, Any]:
    sessions = overview.sessions if overview is not None else ()
    return {
        "ready_s": round(ready_s, 2),
        **asdict(outcome),
        "sessions": [session.model_dump(mode="json") for session in sessions],
        "late_without_moving": {name: late for name, (_, late) in without.items()},
        "subscribers": [
            {
                "subscriber": watch.name,
                "topic": watch.audience.topic,
                "edge": watch.edge,
                "deadline_s": watch.audience.deadline_s,
                "delivered": watch.delivered,
                "late": watch.late,
            }
            for watch in scenario.watches
        ],
    }
