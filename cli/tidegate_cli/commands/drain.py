"""`tidegate drain`: empty an edge for maintenance."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import click

from tidegate import Refused
from tidegate._engine.asking import Asking
from tidegate_experiments.progress import Report
from tidegate_protocol.balancing.drains import DrainReply, DrainRequest
from tidegate_protocol.decisions import Decision, DrainWaits, EdgePresence, MigrationEnded
from tidegate_protocol.messages import EdgeStatus, RefusalReason, StatusReply, StatusRequest
from tidegate_protocol.operations import ExplainReply, ExplainRequest
from tidegate_protocol.rendering import why
from tidegate_protocol.rendering.words import counted

from ..asking import fields
from ..console import json_option, out, print_json, progress, run, url_option
from ..exit_codes import ExitCode

POLL_S: Final = 0.5
TIMEOUT_S: Final = 600.0


class Undrained(click.ClickException):
    """Somebody uses the edge again while we wait for it to be empty."""

    exit_code = ExitCode.FAILED


class StillThere(click.ClickException):
    """The time is over and not everybody has left."""

    exit_code = ExitCode.NOT_YET


@click.command("drain")
@click.argument("edge")
@url_option
@click.option("--wait", is_flag=True, help="Return when nobody is left on it, and show the progress.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_S,
    help="With --wait: seconds after which to give up waiting. The drain goes on.",
)
@json_option
def command(edge: str, url: str, wait: bool, timeout: float, as_json: bool) -> None:
    """Empty EDGE for maintenance: its subscribers are moved to other edges, with nothing lost, and no new one comes.

    Asking again does no harm and tells how many are left. It stays drained, over restarts too, until `tidegate
    undrain`. Ctrl-C ends only the waiting. Exits with 65 if there is no such edge, with 75 if somebody is left when the
    time is over, with 1 if somebody else undrains it meanwhile.
    """
    began = time.monotonic()
    with progress(quiet=as_json or not wait) as report:
        reply = run(_drain(edge, url, timeout if wait else None, report))
    if as_json:
        print_json(fields(reply) | {"seconds": round(time.monotonic() - began, 3)})
    elif reply.left:
        left = counted(reply.left, "subscription is", "subscriptions are")
        out().print(f"{edge} is being drained; {left} left. `tidegate drain {edge} --wait` waits for it.")
    else:
        out().print(f"{edge} is drained: nothing is left on it. `tidegate undrain {edge}` uses it again.")


async def _drain(edge: str, url: str, timeout_s: float | None, report: Report) -> DrainReply:
    async with Asking(url) as head:
        reply = await head.ask(DrainRequest(edge=edge), DrainReply)
        if timeout_s is None:
            return reply
        return await _wait(head, edge, timeout_s, report, reply.left)


async def _wait(head: Asking, edge: str, timeout_s: float, report: Report, first: int) -> DrainReply:
    """Look until nobody is left. Looks only: asking again would drain an edge that somebody else undrained."""
    until, total = time.monotonic() + timeout_s, max(first, 1)
    while True:
        status = _find(await head.ask(StatusRequest(), StatusReply), edge)
        left = status.subscriptions
        total = max(total, left)
        report(f"draining {edge}", total - left, total)
        if not left:
            return DrainReply(edge=edge, draining=True, left=0)
        if not status.draining:
            raise Undrained(f"{edge} is used again: somebody undrained it while {left} were left")
        if time.monotonic() >= until:
            raise StillThere(
                f"{left} are still on {edge} after {timeout_s:g} s{await _why(head, edge)}; the drain goes on"
            )
        await asyncio.sleep(POLL_S)


def _find(status: StatusReply, edge: str) -> EdgeStatus:
    found = next((one for one in status.edges if one.edge == edge), None)
    if found is None:
        raise Refused(RefusalReason.UNKNOWN, f"{edge} is not known any more", "edge")
    return found


async def _why(head: Asking, edge: str) -> str:
    """What the head says about who is left."""
    reply = await head.ask(ExplainRequest(about=edge), ExplainReply)
    waits = [told.record for told in reply.decisions if _holds_up(told.record)]
    return f" ({why(waits[-1])})" if waits else ""


def _holds_up(decision: Decision) -> bool:
    stays = isinstance(decision, MigrationEnded) and not decision.moved
    away = isinstance(decision, EdgePresence) and not decision.alive
    return isinstance(decision, DrainWaits) or stays or away
