"""`tidegate plan`: what would be moved now, without moving it."""

from __future__ import annotations

import click
from rich.console import Group

from tidegate_protocol.operations import PlanReply, PlanRequest

from ..ask import Asking
from ..console import json_option, out, print_json, run, url_option
from ..explain import plan


@click.command("plan")
@url_option
@json_option
def command(url: str, as_json: bool) -> None:
    """Show what would be moved now, and why, without moving it.

    Each edge goes the way of a session with the load of this moment: is a deadline in danger, who could take load, who
    would go where. Nothing is changed. If nothing would be moved it says why, and which subscription is nearest to its
    limit. Works while balancing is paused, too.
    """
    reply = run(_ask(url))
    if as_json:
        print_json(reply.model_dump(mode="json", exclude={"v", "kind"}))
    else:
        out().print(Group(*plan.render(reply)))


async def _ask(url: str) -> PlanReply:
    async with Asking(url) as head:
        return await head.ask(PlanRequest(), PlanReply)
