"""`tidegate drops`: what was dropped for whom, and what becomes of it."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Final

import click
from rich.console import Group

from tidegate._engine.asking import Asking
from tidegate_protocol.drops import DropsOrder, DropsReply, DropsRequest
from tidegate_protocol.rendering.words import counted, listed

from ..asking import answer, asked, fields
from ..console import json_option, out, print_json, run, url_option
from ..exit_codes import ExitCode
from ..explain import drops

POLL_S: Final = 0.5
TIMEOUT_S: Final = 300.0

edge_option = click.option("--edge", default="", help="Only what this edge has dropped.")
number_option = click.option("--number", type=click.IntRange(min=0), help="Only this subscription of the subscriber.")


class NotAll(click.ClickException):
    """Something was not sent again."""

    exit_code = ExitCode.FAILED


class StillReplaying(click.ClickException):
    """The time is over and the replay goes on."""

    exit_code = ExitCode.NOT_YET


@click.group("drops")
def command() -> None:
    """What was dropped for whom: list it, look at it, send it to its subscriber again, or give it up.

    An output queue that is full drops its oldest messages. They are kept for a while (`drops_size_bytes`,
    `drops_age_s`) on the edge that dropped them.
    """


@command.command("list")
@click.argument("subscriber", default="")
@edge_option
@url_option
@json_option
def list_drops(subscriber: str, edge: str, url: str, as_json: bool) -> None:
    """Count what was dropped, by subscription and reason, and what is kept of it; of all, or of SUBSCRIBER."""
    request = DropsRequest(order=DropsOrder.LIST, edge=edge, subscriber=subscriber)
    answer(url, request, DropsReply, lambda reply: Group(*drops.render_list(reply, datetime.now())), as_json)


@command.command("show")
@click.argument("subscriber", default="")
@edge_option
@number_option
@url_option
@json_option
def show(subscriber: str, edge: str, number: int | None, url: str, as_json: bool) -> None:
    """Show the latest messages that were dropped and are kept: topic, id, account, size, and how each begins."""
    request = DropsRequest(order=DropsOrder.SHOW, edge=edge, subscriber=subscriber, number=number)
    answer(url, request, DropsReply, lambda reply: Group(*drops.render_messages(reply)), as_json)


@command.command("replay")
@click.argument("subscriber")
@edge_option
@number_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    help="Seconds after which to give up waiting. The replay goes on.",
)
@url_option
@json_option
def replay(subscriber: str, edge: str, number: int | None, timeout: float, url: str, as_json: bool) -> None:
    """Send SUBSCRIBER again what was dropped and is kept, and wait until that is done.

    Messages come behind those that wait, as fast as the subscriber takes them, marked as replayed; the SDK hands each
    to its application once. What was replayed is not kept any longer. Exits with 1 if something could not be sent, with
    75 if it still goes on when the time is over.
    """
    request = DropsRequest(order=DropsOrder.REPLAY, edge=edge, subscriber=subscriber, number=number)
    reply = run(_replay(url, request, timeout))
    sent = sum(one.replayed for one in reply.outputs)
    if as_json:
        print_json(fields(reply))
    else:
        out().print(f"{counted(sent, 'message was', 'messages were')} sent to {subscriber} again.")
    left = [*drops.unfinished(reply), *(f"no answer from {edge}" for edge in reply.missing)]
    if left:
        raise NotAll(f"not everything was sent again: {listed(left)}")


async def _replay(url: str, request: DropsRequest, timeout_s: float) -> DropsReply:
    async with Asking(url) as head:
        reply = await head.ask(request, DropsReply)
        look = request.model_copy(update={"order": DropsOrder.LIST})
        until = time.monotonic() + timeout_s
        while any(one.replaying for one in reply.outputs):
            if time.monotonic() >= until:
                raise StillReplaying(f"the replay goes on after {timeout_s:g} s: `tidegate drops list`")
            await asyncio.sleep(POLL_S)
            reply = await head.ask(look, DropsReply)
        return reply


@command.command("purge")
@click.argument("subscriber", default="")
@click.option("--all", "everything", is_flag=True, help="Of every subscriber.")
@edge_option
@number_option
@url_option
@json_option
def purge(subscriber: str, everything: bool, edge: str, number: int | None, url: str, as_json: bool) -> None:
    """Give up what is kept of SUBSCRIBER, or with --all of everybody: it can't be replayed any more."""
    if bool(subscriber) == everything:
        raise click.UsageError("name a subscriber, or say --all")
    request = DropsRequest(order=DropsOrder.PURGE, edge=edge, subscriber=subscriber, number=number)
    reply = run(asked(url, request, DropsReply))
    if as_json:
        print_json(fields(reply))
    else:
        out().print(f"{counted(reply.purged, 'message was', 'messages were')} given up.")
    if reply.missing:
        raise NotAll(f"no answer from {listed(reply.missing)}")
