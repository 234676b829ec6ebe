"""Where the commands write: tables and progress for a person, one JSON object per line for a machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import click
from rich import console as rich_console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])

URL_VARIABLE = "TIDEGATE_URL"


def head_option(help_text: str, *, metavar: str = "AMQP_URL", **more: Any) -> Callable[[Command], Command]:
    """The option `--url`, which names the RabbitMQ of a head or, as `urls`, of several; TIDEGATE_URL stands for it."""
    name = "urls" if more.get("multiple") else "url"
    return click.option("--url", name, envvar=URL_VARIABLE, show_envvar=True, metavar=metavar, help=help_text, **more)


_HEAD_HELP = "Address of a head's RabbitMQ, e.g. amqp://user:password@localhost:5672/head."
url_option = head_option(f"{_HEAD_HELP} `tidegate up` prints it.", required=True)
urls_option = head_option(
    f"{_HEAD_HELP} May be given once per cluster; the variable may hold several, separated by spaces.",
    required=True,
    multiple=True,
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for machines instead of text for people."
)


_PLAIN_WIDTH = 120
"""Columns where the output is no terminal: enough for our tables."""
_LINES_PER_STEP = 10
"""How often a step tells how far it is where there is no terminal."""


class Console(rich_console.Console):
    """Rich's, but that a reader who has left is told to `main`, which knows what to exit with, and not with code 1."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise  # Rich calls this while it handles the error.


def out() -> Console:
    """Standard output."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def err() -> Console:
    """Standard error, for progress and remarks that must not mix with results."""
    return Console(stderr=True, highlight=False)


def print_json(value: Mapping[str, Any]) -> None:
    """One object on one line."""
    click.echo(json.dumps(value, sort_keys=False))


def present(value: Mapping[str, Any], show: Callable[[Any], None], as_json: bool) -> None:
    """A result: as JSON for a machine, as `show` prints it for a person."""
    if as_json:
        print_json(value)
    else:
        show(value)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a command's coroutine, on uvloop where there is one. Ctrl-C cancels it and is raised afterwards."""
    with closing(main):  # If Ctrl-C comes before it is started, Python would warn that it was never awaited.
        try:
            import uvloop
        except ImportError:  # not built for every platform
            return asyncio.run(main)
        return uvloop.run(main)


class Steps:
    """Where long work tells its progress, as a `Report`, and what is worth a line before it is done. Shows nothing."""

    def __call__(self, step: str, done: int, total: int) -> None:
        """So much of this step is done."""

    def remark(self, text: str) -> None:
        """Something a person would not want to wait for."""


@contextmanager
def progress(quiet: bool = False, *, beside_json: bool = False) -> Iterator[Steps]:
    """Show steps as bars on a terminal, as some lines each elsewhere, not at all if `quiet`.

    `beside_json`: a machine reads the results, so that only a terminal is told.
    """
    console = err()
    if quiet or (beside_json and not console.is_terminal):
        yield Steps()
    elif console.is_terminal:
        with _bars(console) as bars:
            yield _Bars(bars)
    else:
        yield _Lines(console)


def _bars(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
    )


class _Bars(Steps):
    """One bar per step, made when the step is first heard of; remarks stand above them."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        if step not in self._tasks:
            self._tasks[step] = self._bars.add_task(step, total=total)
        self._bars.update(self._tasks[step], completed=done, total=total)

    def remark(self, text: str) -> None:
        self._bars.console.print(text, markup=False, emoji=False, soft_wrap=True)


class _Lines(Steps):
    """A line per step at each tenth of it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, int] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        tenth = done * _LINES_PER_STEP // total if total else _LINES_PER_STEP
        if tenth > self._told.get(step, 0):
            self._told[step] = tenth
            self._console.print(f"{step}: {done} of {total}")

    def remark(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, soft_wrap=True)
