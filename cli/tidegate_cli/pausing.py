"""`tidegate pause` and `tidegate resume`, which differ in one word."""

from __future__ import annotations

import click

from tidegate_protocol.operations import PauseReply, PauseRequest
from tidegate_protocol.rendering.words import counted

from .asking import answer
from .console import json_option, url_option


def pause_command(name: str, *, paused: bool, help_text: str) -> click.Command:
    """A command that switches balancing off or on."""

    @click.command(name, help=help_text)
    @url_option
    @json_option
    def command(url: str, as_json: bool) -> None:
        answer(url, PauseRequest(paused=paused), PauseReply, text, as_json)

    return command


def text(reply: PauseReply) -> str:
    """What has come of it, for a person."""
    state = "paused" if reply.paused else "on"
    if not reply.changed:
        return f"balancing in cluster {reply.cluster} was {state} already"
    said = f"balancing in cluster {reply.cluster} is {state}"
    if reply.paused and reply.under_way:
        said += f"; {counted(reply.under_way, 'session')} under way will end as usual"
    return f"{said}; `tidegate resume` switches it on again" if reply.paused else said
