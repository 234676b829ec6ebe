"""Where the commands write: tables and progress for a person, one JSON object per line for a machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Result = TypeVar("Result")
Report = Callable[[str, int, int], None]
"""How long work tells its progress: the step's name, how much of it is done, and of how much."""

URL_VARIABLE = "TIDEGATE_URL"

url_option = click.option(
    "--url",
    envvar=URL_VARIABLE,
    required=True,
    show_envvar=True,
    metavar="AMQP_URL",
    help="Address of a head's RabbitMQ, e.g. amqp://user:password@localhost:5672/head. `tidegate up` prints it.",
)
urls_option = click.option(
    "--url",
    "urls",
    envvar=URL_VARIABLE,
    required=True,
    multiple=True,
    show_envvar=True,
    metavar="AMQP_URL",
    help="Address of a head's RabbitMQ, e.g. amqp://user:password@localhost:5672/head. May be given once per cluster; "
    "the variable may hold several, separated by spaces.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for machines instead of text for people."
)


_PLAIN_WIDTH = 120
"""Columns where the output is no terminal: enough for our tables."""


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


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a command's coroutine, on uvloop where there is one. Ctrl-C cancels it and is raised afterwards."""
    try:
        import uvloop
    except ImportError:  # not built for every platform
        return asyncio.run(main)
    return uvloop.run(main)


@contextmanager
def progress(quiet: bool = False) -> Iterator[Report]:
    """Show steps as bars on a terminal, as one line each elsewhere, not at all if `quiet`."""
    if quiet:
        yield lambda step, done, total: None
    elif err().is_terminal:
        with _bars() as bars:
            yield _BarReport(bars)
    else:
        yield _line_report()


def _bars() -> Progress:
    return Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err(),
    )


class _BarReport:
    """One bar per step, made when the step is first heard of."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        if step not in self._tasks:
            self._tasks[step] = self._bars.add_task(step, total=total)
        self._bars.update(self._tasks[step], completed=done, total=total)


def _line_report() -> Report:
    def report(step: str, done: int, total: int) -> None:
        if done == total:
            err().print(f"{step}: {done} of {total}")

    return report
