"""`tidegate status`: clusters at a glance, once or live."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tidegate import TidegateError
from tidegate_protocol.operations import QUEUES_TOLD_MAX, OverviewReply, OverviewRequest

from ..asking import asked, fields
from ..console import json_option, out, print_json, run, urls_option
from ..explain import overview

INTERVAL_S: Final = 2.0


@click.command("status")
@urls_option
@click.option("--watch", is_flag=True, help="Go on, and show what changes, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600.0),
    default=INTERVAL_S,
    help="With --watch: seconds between two looks.",
)
@click.option(
    "--queues",
    type=click.IntRange(0, QUEUES_TOLD_MAX),
    default=3,
    help="With --json: how many of the worst queues of each edge.",
)
@json_option
def command(urls: tuple[str, ...], watch: bool, interval: float, queues: int, as_json: bool) -> None:
    """Show clusters: brokers with their load against the thresholds, sessions, and who does harm.

    LOW: has room, and takes load from others. HIGH: busy, but no deadline is in danger. OVERLOAD: a deadline is in
    danger, or a static threshold is passed; load is moved away. Each head asks its edges; one that does not answer
    within a second is marked, and holds nobody up.

    With --json one object: that of the cluster, or, with several --url, {"clusters": [...]}. With --watch one per line
    and look. Exits with 69 if a head can't be reached.
    """
    request = OverviewRequest(queues=queues)
    if not watch:
        answers = run(_ask_all(urls, request))
        failed = [answer for answer in answers if isinstance(answer, TidegateError)]
        if len(answers) > len(failed):
            _show(answers, as_json)
        if failed:
            # The last one is told and turned into an exit code as any error is.
            for error in failed[:-1]:
                click.echo(f"error: {error}", err=True)
            raise failed[-1]
        return
    try:
        run(_watch(urls, request, interval, as_json))
    except KeyboardInterrupt:
        return  # the way to end it


Answer = OverviewReply | TidegateError


async def _ask_all(urls: Sequence[str], request: OverviewRequest) -> list[Answer]:
    """Every cluster's answer, or why there is none; one that can't be reached keeps nobody from the others."""
    return list(await asyncio.gather(*(_ask(url, request) for url in urls)))


async def _ask(url: str, request: OverviewRequest) -> Answer:
    try:
        return await asked(url, request, OverviewReply)
    except TidegateError as error:
        return error


async def _watch(urls: Sequence[str], request: OverviewRequest, interval_s: float, as_json: bool) -> None:
    console = out()
    if as_json or not console.is_terminal:
        while True:
            _show(await _ask_all(urls, request), as_json)
            await asyncio.sleep(interval_s)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            answers = await _ask_all(urls, request)
            live.update(Group(*_rendered(answers)), refresh=True)
            await asyncio.sleep(interval_s)


def _show(answers: Sequence[Answer], as_json: bool) -> None:
    if as_json:
        described = [{"error": str(one)} if isinstance(one, TidegateError) else fields(one) for one in answers]
        print_json(described[0] if len(described) == 1 else {"clusters": described})
    else:
        out().print(Group(*_rendered(answers)))


def _rendered(answers: Sequence[Answer]) -> list[RenderableType]:
    shown: list[RenderableType] = []
    for answer in answers:
        if isinstance(answer, TidegateError):
            shown.append(Text(f"error: {answer}", style="red"))
        else:
            shown += overview.render(answer, datetime.now())
    return shown
