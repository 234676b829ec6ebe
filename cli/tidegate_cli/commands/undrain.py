"""`tidegate undrain`: use an edge again."""

from __future__ import annotations

import click

from tidegate_protocol.balancing import DrainReply, DrainRequest

from ..ask import Asking
from ..console import json_option, out, print_json, run, url_option


@click.command("undrain")
@click.argument("edge")
@url_option
@json_option
def command(edge: str, url: str, as_json: bool) -> None:
    """Use EDGE again: it takes new subscriptions, and load from others.

    Nobody is moved back at once; moves of a drain that have not ended are given up. Exits with 65 if there is no such
    edge.
    """
    reply = run(_ask(edge, url))
    if as_json:
        print_json(reply.model_dump(mode="json", exclude={"v", "kind"}))
    else:
        left = "1 subscription is" if reply.left == 1 else f"{reply.left} subscriptions are"
        out().print(f"{edge} is used again; {left} on it.")


async def _ask(edge: str, url: str) -> DrainReply:
    async with Asking(url) as head:
        return await head.ask(DrainRequest(edge=edge, draining=False), DrainReply)
