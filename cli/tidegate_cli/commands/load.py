"""`tidegate load`: a load with a burst, on a cluster that runs already, and whether all of it arrived."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import click

from tidegate._core.config import Address
from tidegate_experiments.demo.load import CALM_SHARE, Load
from tidegate_experiments.demo.watching import DemoOutcome
from tidegate_protocol.rendering.words import percent

from ..console import json_option, out, print_json, run, url_option
from ..exit_codes import ExitCode

_LOOK_EVERY_S: Final = 5.0


@click.command("load")
@url_option
@click.option(
    "--edge-bytes-per-s",
    type=click.FloatRange(10_000, 1e9),
    required=True,
    envvar="TIDEGATE_EDGE_DOWNLINK_BYTES_PER_S",
    show_envvar=True,
    help="What one edge can take in: the load is sized for it.",
)
@click.option("--topics", type=click.IntRange(2, 100), default=8, help="Topics, with a publisher each.")
@click.option("--subscribers", type=click.IntRange(1, 20), default=2, help="Subscribers of each topic.")
@click.option("--rate", type=click.FloatRange(1, 1000), default=10, help="Messages per second of a topic.")
@click.option(
    "--deadline",
    type=click.FloatRange(0.1, 3600),
    default=3,
    help="Seconds until a message is late.",
)
@click.option("--steady", type=click.FloatRange(0, 86400), default=20, help="Seconds before the burst.")
@click.option("--burst", type=click.FloatRange(0, 86400), default=40, help="Seconds of burst.")
@json_option
def command(url: str, steady: float, burst: float, as_json: bool, **sizes: Any) -> None:
    """Publish on several topics, subscribe to all of them, then let one topic burst until its edge is full.

    The topic that bursts is one that shares its edge with others, so that room can be made by moving those. Names
    begin with the user of the address. Exits with 1 if a message was lost, doubled or out of order.
    """
    outcome = run(_load(Load(url, Address.parse(url).user, **sizes), steady, burst, as_json))
    if not outcome.complete:
        sys.exit(ExitCode.FAILED)


async def _load(load: Load, steady_s: float, burst_s: float, as_json: bool) -> DemoOutcome:
    say = _silent if as_json else _tell
    async with load:
        await load.join()
        before = load.places()
        say(f"{len(load.watches)} subscribers are placed: {_count(before)}")
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(load.publish(steady_s + burst_s))
            watching = group.create_task(_watch(load, say))
            await asyncio.sleep(steady_s)
            topic = load.shake()
            say(f"{topic} bursts to {load.burst_factor(topic):.1f} times its rate of {percent(CALM_SHARE)} of an edge")
            await publishing
            await load.settle()
            watching.cancel()
        outcome, after = load.outcome(), load.places()
        moved = sorted(name for name, edge in after.items() if edge != before[name])
        if as_json:
            print_json({**asdict(outcome), "burst_topic": topic, "moved": moved, "places": after})
        else:
            say(
                f"{outcome.published} published, {outcome.delivered} delivered: {outcome.lost} lost, "
                f"{outcome.doubled} doubled, {outcome.out_of_order} out of order, {outcome.late} late. "
                f"Moved: {', '.join(moved) or 'nobody'}."
            )
    return outcome


def _tell(text: str) -> None:
    out().print(text, soft_wrap=True)


def _silent(text: str) -> None:
    """With --json there is one object, at the end."""


async def _watch(load: Load, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        so_far, places = load.outcome(), _count(load.places())
        say(f"{so_far.published} published, {so_far.delivered} delivered, {so_far.late} late: {places}")


def _count(places: dict[str, str]) -> str:
    return ", ".join(f"{edge} {count}" for edge, count in sorted(Counter(places.values()).items()))
