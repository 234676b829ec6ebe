"""Dropped messages at a glance: the tables of `tidegate drops`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from tidegate_protocol.decisions import DropReason, ReplayOutcome
from tidegate_protocol.drops import DroppedMessage, DroppedOutput, DropsReply
from tidegate_protocol.rendering.drops import DROPPED, REPLAYS
from tidegate_protocol.rendering.words import counted, listed, sentence, subscription, when

from ..tables import NARROW, table

UNKNOWN: Final = "(not known)"


def render_list(reply: DropsReply, now: datetime | None = None) -> list[RenderableType]:
    """What was dropped of whom, and what is kept."""
    shown: list[RenderableType] = []
    if reply.outputs:
        headings = ("subscriber", "queue", "edge", ">dropped", "because", ">kept", ">bytes", "latest", "replay")
        lines = table(*headings, whole=("queue",), **NARROW)
        for one in reply.outputs:
            lines.add_row(*_row(one, now))
        shown.append(lines)
    else:
        shown.append(Text("Nothing was dropped."))
    return shown + _remarks(reply)


def render_messages(reply: DropsReply) -> list[RenderableType]:
    """The latest of them, one by one."""
    if not reply.messages:
        return [Text("Nothing is kept."), *_remarks(reply)]
    lines = table("subscriber", "topic", "id", "account", ">bytes", "because", "begins with", **NARROW)
    for one in reply.messages:
        lines.add_row(*_message(one))
    return [lines, *_remarks(reply)]


def _row(one: DroppedOutput, now: datetime | None) -> tuple[str, ...]:
    name = subscription(one.queue) if one.queue else UNKNOWN
    latest = "" if one.latest_ago_us is None else when(one.latest_ago_us, now)
    total = sum(one.reasons.values())
    return (
        *(name, one.queue or UNKNOWN, one.edge, str(total) if total else "", _because(one.reasons)),
        *(str(one.held), str(one.held_bytes), latest, _replay(one)),
    )


def _because(reasons: Mapping[DropReason, int]) -> str:
    return listed(DROPPED[reason] for reason in sorted(reasons))


def _replay(one: DroppedOutput) -> str:
    if one.replaying:
        return f"under way: {one.replayed} so far"
    return "" if one.outcome is None else f"{counted(one.replayed, 'message')}: {REPLAYS[one.outcome]}"


def _message(one: DroppedMessage) -> tuple[str, ...]:
    name = subscription(one.queue) if one.queue else UNKNOWN
    return name, one.topic, one.message_id, one.account, str(one.size_bytes), DROPPED[one.reason], one.preview


def unfinished(reply: DropsReply) -> list[str]:
    """Why replays did not send all there was; empty if they did."""
    return [
        f"{subscription(one.queue)} on {one.edge}: {REPLAYS[one.outcome]}"
        for one in reply.outputs
        if one.outcome not in (None, ReplayOutcome.DONE)
    ]


def _remarks(reply: DropsReply) -> list[RenderableType]:
    said = []
    if reply.without:
        said.append(
            f"nothing is kept of what {listed(reply.without)} drops: its account may not, or drops_size_bytes is 0"
        )
    if reply.missing:
        said.append(f"no answer from {listed(reply.missing)}")
    return [Text(sentence(text)) for text in said]
