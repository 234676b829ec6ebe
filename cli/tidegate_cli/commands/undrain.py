"""`tidegate undrain`: use an edge again."""

from __future__ import annotations

import click

from tidegate_protocol.balancing.drains import DrainReply, DrainRequest
from tidegate_protocol.rendering.words import counted

from ..asking import answer
from ..console import json_option, url_option


@click.command("undrain")
@click.argument("edge")
@url_option
@json_option
def command(edge: str, url: str, as_json: bool) -> None:
    """Use EDGE again: it takes new subscriptions, and load from others.

    Nobody is moved back at once; moves of a drain that have not ended are given up. Exits with 65 if there is no such
    edge.
    """
    answer(url, DrainRequest(edge=edge, draining=False), DrainReply, _text, as_json)


def _text(reply: DrainReply) -> str:
    return f"{reply.edge} is used again; {counted(reply.left, 'subscription is', 'subscriptions are')} on it."
