"""`tidegate plan`: what would be moved now, without moving it."""

from __future__ import annotations

import click
from rich.console import Group

from tidegate_protocol.operations import PlanReply, PlanRequest

from ..asking import answer
from ..console import json_option, url_option
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
    answer(url, PlanRequest(), PlanReply, lambda reply: Group(*plan.render(reply)), as_json)
