"""`tidegate quarantine`: messages that links could not carry."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tidegate_protocol.quarantine import IDS_MAX, QuarantineReply, QuarantineRequest, SetAside, Verb
from tidegate_protocol.rendering.links import entry_reason, whose
from tidegate_protocol.rendering.words import counted, sentence

from ..asking import answer
from ..console import json_option, url_option
from ..tables import NARROW, table

BODY_SHOWN_MAX: Final = 400

target_option = click.option("--link", "target", default="", help="Only those of the link to this broker.")
account_option = click.option("--account", default="", help="Only those of this account, as RabbitMQ has checked it.")
all_option = click.option("--all", "everything", is_flag=True, help="All that --link and --account leave.")


@click.group("quarantine")
def command() -> None:
    """Look after messages that the far end of a link refused: list, show, replay or purge them.

    A head sets such a message aside, so that the link goes on. What may be kept is bounded (`quarantine_bytes_max`,
    `quarantine_messages_max`, `quarantine_age_s`); of more, the oldest go.
    """


@command.command("list")
@url_option
@target_option
@account_option
@json_option
def list_command(url: str, target: str, account: str, as_json: bool) -> None:
    """List the messages, oldest first: why each was set aside, and whose it is.

    An account was checked by RabbitMQ; without one, the publisher is what the message says of itself.
    """
    request = QuarantineRequest(verb=Verb.LIST, target=target, account=account)
    answer(url, request, QuarantineReply, _listed, as_json)


@command.command("show")
@url_option
@click.argument("entry")
@json_option
def show_command(url: str, entry: str, as_json: bool) -> None:
    """Show one message: its properties, its headers and the beginning of its body."""
    answer(url, QuarantineRequest(verb=Verb.SHOW, ids=_ids((entry,))), QuarantineReply, _shown, as_json)


@command.command("replay")
@url_option
@click.argument("entries", nargs=-1)
@target_option
@account_option
@all_option
@json_option
def replay_command(
    url: str, entries: tuple[str, ...], target: str, account: str, everything: bool, as_json: bool
) -> None:
    """Send messages again, over the link they were set aside on, once what they were refused for is repaired.

    What is delivered leaves the quarantine; what is refused again stays. At most 200 at a time.
    """
    request = _chosen(Verb.REPLAY, entries, target, account, everything)
    answer(url, request, QuarantineReply, _replayed, as_json)


@command.command("purge")
@url_option
@click.argument("entries", nargs=-1)
@target_option
@account_option
@all_option
@json_option
def purge_command(
    url: str, entries: tuple[str, ...], target: str, account: str, everything: bool, as_json: bool
) -> None:
    """Remove messages for good."""
    answer(url, _chosen(Verb.PURGE, entries, target, account, everything), QuarantineReply, _purged, as_json)


def _chosen(verb: Verb, entries: tuple[str, ...], target: str, account: str, everything: bool) -> QuarantineRequest:
    if not (entries or target or account or everything):
        raise click.UsageError(f"say which: {verb} ENTRY…, --link NAME, --account NAME, or --all")
    return QuarantineRequest(verb=verb, ids=_ids(entries), target=target, account=account)


def _ids(entries: tuple[str, ...]) -> tuple[str, ...]:
    if len(entries) > IDS_MAX:
        raise click.UsageError(f"name at most {IDS_MAX} messages, or use --link, --account or --all")
    for entry in entries:
        if not entry or len(entry) > 64 or not all(c.isdigit() or "a" <= c <= "z" or c == "-" for c in entry):
            raise click.UsageError(f"{entry!r} is no id of a message; `tidegate quarantine list` shows them")
    return entries


def _listed(reply: QuarantineReply) -> RenderableType:
    if not reply.entries:
        return Text(f"nothing that you asked for; {counted(reply.total, 'message')} in quarantine")
    shown: list[RenderableType] = [_table(reply.entries)]
    if reply.chosen > len(reply.entries):
        shown.append(Text(f"the oldest {len(reply.entries)} of {reply.chosen}"))
    return Group(*shown)


def _table(entries: tuple[SetAside, ...]) -> RenderableType:
    shown = table("id", "link to", "reason", "of", "topic", ">bytes", "set aside", whole=("id",), **NARROW)
    for one in entries:
        shown.add_row(
            *(one.id, one.target, str(one.reason), whose(one.account, one.publisher), one.topic),
            *(str(one.size_bytes), _moment(one)),
        )
    return shown


def _moment(one: SetAside) -> str:
    return datetime.fromtimestamp(one.at_us / 1e6).isoformat(" ", "seconds")


def _shown(reply: QuarantineReply) -> RenderableType:
    if not reply.entries or reply.shown is None:
        return Text("there is no such message in quarantine; `tidegate quarantine list` shows those that are")
    entry, more = reply.entries[0], reply.shown
    lines = [f"{entry.id}: {entry.size_bytes} bytes on {entry.topic}, of {whose(entry.account, entry.publisher)}"]
    lines.append(sentence(f"set aside on the link to {entry.target} at {_moment(entry)}: {entry_reason(entry)}"))
    if entry.detail:
        lines.append(f"RabbitMQ said: {entry.detail}")
    lines += [f"{name} = {value}" for name, value in more.properties.items()]
    lines += [f"headers[{name!r}] = {value}" for name, value in more.headers.items()]
    if not entry.whole:
        lines.append("its properties were too large to be kept: it can't be replayed")
    lines.append(f"body: {base64.b64decode(more.body)[:BODY_SHOWN_MAX]!r}")
    return Text("\n".join(lines))


def _replayed(reply: QuarantineReply) -> RenderableType:
    said = f"{counted(reply.done, 'message')} delivered, {reply.total} left in quarantine"
    if not reply.entries:
        return Text(said)
    return Group(Text(f"{said}; refused again, or their link is gone:"), _table(reply.entries))


def _purged(reply: QuarantineReply) -> RenderableType:
    return Text(f"{counted(reply.done, 'message')} removed, {reply.total} left in quarantine")
