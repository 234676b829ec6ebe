"""`tidegate pause` and `tidegate resume`, which differ in one word."""

from __future__ import annotations

import click

from tidegate_protocol.operations import PauseReply, PauseRequest

from .ask import Asking
from .console import json_option, out, print_json, run, url_option


def pause_command(name: str, *, paused: bool, help_text: str) -> click.Command:
    """A command that switches balancing off or on."""

    @click.command(name, help=help_text)
    @url_option
    @json_option
    def command(url: str, as_json: bool) -> None:
        reply = run(_ask(url, paused))
        if as_json:
            print_json(reply.model_dump(mode="json", exclude={"v", "kind"}))
        else:
            out().print(text(reply))

    return command


async def _ask(url: str, paused: bool) -> PauseReply:
    async with Asking(url) as head:
        return await head.ask(PauseRequest(paused=paused), PauseReply)


def text(reply: PauseReply) -> str:
    """What has come of it, for a person."""
    state = "paused" if reply.paused else "on"
    if not reply.changed:
        return f"balancing in cluster {reply.cluster} was {state} already"
    said = f"balancing in cluster {reply.cluster} is {state}"
    if reply.paused and reply.under_way:
        sessions = "1 session" if reply.under_way == 1 else f"{reply.under_way} sessions"
        said += f"; {sessions} under way will end as usual"
    return f"{said}; `tidegate resume` switches it on again" if reply.paused else said
