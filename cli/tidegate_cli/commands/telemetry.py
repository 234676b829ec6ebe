"""`tidegate telemetry`: a head's telemetry stream, seen with one's own eyes."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

import click
from rich.markup import escape

from tidegate_brokers.errors import ConfigurationError
from tidegate_brokers.observe.telemetry.reader import EARLIEST, LATEST, Read, reading
from tidegate_brokers.settings.urls import ServerUrl
from tidegate_protocol.telemetry import KINDS

from ..console import json_option, out, run, url_option

_HEADER: Final = ("version", "kind", "time_us", "cluster", "broker")
_TEXT_MAX: Final = 400
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


class _Since(click.ParamType[str | int]):
    name = "where"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        text = str(value)
        if text in _WORDS:
            return _WORDS[text]
        if text.isascii() and text.isdigit() and int(text) < 1 << 63:
            return int(text)
        raise click.BadParameter(f"{text!r} is neither earliest, latest nor an offset", ctx, param)


@click.group("telemetry")
def command() -> None:
    """Look at the telemetry that brokers write to a stream of their head (docs/telemetry.md)."""


@command.command("tail")
@url_option
@click.option(
    "--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only records of this kind; may be repeated."
)
@click.option(
    "--from",
    "since",
    type=_Since(),
    default="latest",
    metavar="earliest|latest|OFFSET",
    help="Where to begin.",
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after that many records.")
@json_option
def tail(url: str, kinds: tuple[str, ...], since: str | int, count: int | None, as_json: bool) -> None:
    """Print the records of a head's stream, from anywhere in it, and go on until Ctrl-C.

    Reading takes nothing away. With --json one object per line: the record and its `offset`; a message that is no
    record of a known version has a `problem` instead.
    """
    try:
        address = ServerUrl.parse(url)
    except ValueError as error:
        raise ConfigurationError("--url", "command line or TIDEGATE_URL", str(error), "correct it") from None
    try:
        run(_tail(address, frozenset(kinds), since, count, as_json))
    except KeyboardInterrupt:
        return  # the way to end it


async def _tail(url: ServerUrl, kinds: frozenset[str], since: str | int, count: int | None, as_json: bool) -> None:
    shown = 0
    async with reading(url, since) as records:
        async for read in records:
            if kinds and read.kind not in kinds:
                continue
            _show(read, as_json)
            shown += 1
            if shown == count:
                return


def _show(read: Read, as_json: bool) -> None:
    problem = read.problem
    if problem is not None:
        if as_json:
            click.echo(json.dumps({"offset": read.offset, "kind": read.kind, "problem": problem}))
        else:
            out().print(f"{read.offset:>9}  [red]not a record[/red]  {escape(problem)}", soft_wrap=True)
        return
    fields = json.loads(read.body)
    if as_json:
        click.echo(json.dumps({"offset": read.offset, **fields}))
        return
    when = datetime.fromtimestamp(fields["time_us"] / 1e6).strftime("%H:%M:%S.%f")[:-3]
    rest = "  ".join(f"{name}={_short(value)}" for name, value in fields.items() if name not in _HEADER)
    if len(rest) > _TEXT_MAX:
        rest = rest[:_TEXT_MAX] + " …"
    kind, broker = escape(fields["kind"]), escape(fields["broker"])
    out().print(f"{read.offset:>9}  {when}  [bold]{kind}[/bold]  {broker}  {escape(rest)}", soft_wrap=True)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        return value if value and " " not in value else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
