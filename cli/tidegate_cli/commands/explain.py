"""`tidegate explain`: why it did what it did, in sentences and numbers."""

from __future__ import annotations

from datetime import datetime

import click
from rich.console import Group

from tidegate import Refused
from tidegate._engine.asking import Asking
from tidegate_protocol.messages import RefusalReason
from tidegate_protocol.operations import Explained, ExplainReply, ExplainRequest

from ..asking import fields
from ..console import json_option, out, print_json, run, urls_option
from ..explain import subjects


@click.command("explain")
@click.argument("about", default="", metavar="[SESSION|BROKER|SUBSCRIBER|PUBLISHER]")
@urls_option
@json_option
def command(about: str, urls: tuple[str, ...], as_json: bool) -> None:
    """Say why: what was decided, the numbers compared, what was rejected, what was predicted and what came of it.

    \b
    SESSION     e.g. edge-1~1763290000000~4, as `tidegate status` lists them; drain~EDGE for a drain
    BROKER      a head or an edge: its load, its thresholds, what it was asked and why it refused
    SUBSCRIBER  where it is and why, its moves, its deadline and what waits for it; out.NAME.0, its queue, will do too
    PUBLISHER   whether it keeps to its limits

    Without a name: the cluster, and its latest session. Agents remember their latest sessions; what is older, or from
    before a restart, is in the logs. With several --url the first head that knows the name answers. Exits with 65 if
    nobody knows it.
    """
    reply, latest = run(_ask(urls, about))
    if as_json:
        print_json(fields(reply) | ({"latest": fields(latest)} if latest is not None else {}))
        return
    now = datetime.now()
    shown = subjects.render(reply, now)
    if latest is not None:
        shown = [*shown[:1], "", f"[bold]session {latest.about}[/bold]", *subjects.render(latest, now)]
    out().print(Group(*shown))


async def _ask(urls: tuple[str, ...], about: str) -> tuple[ExplainReply, ExplainReply | None]:
    """The answer and, about a cluster, that about its latest session."""
    unknown: Refused | None = None
    for url in urls:
        try:
            async with Asking(url) as head:
                reply = await head.ask(ExplainRequest(about=about), ExplainReply)
                if reply.what is not Explained.CLUSTER or not reply.sessions:
                    return reply, None
                return reply, await head.ask(ExplainRequest(about=reply.sessions[0].session), ExplainReply)
        except Refused as error:
            if error.reason != RefusalReason.UNKNOWN:
                raise
            unknown = error
    assert unknown is not None, "the command line asks for at least one URL"
    raise unknown
