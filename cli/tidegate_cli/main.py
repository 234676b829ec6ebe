"""Entry point: finds the subcommand, runs it, and turns any error into one clear line and a named exit code."""

from __future__ import annotations

import importlib
import logging
import os
import select
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import click

from . import exit_codes
from .errors import describe

URL_VARIABLE: Final = "TIDEGATE_URL"
URL_FILE_VARIABLE: Final = "TIDEGATE_URL_FILE"

_COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "access": "Make accounts of RabbitMQ with the least rights that work, and print addresses for them.",
        "analytics": "Run Spark over telemetry: a lake, jobs over it, and a report to look at.",
        "bench": "Measure the data plane against plain RabbitMQ, agents' decisions, moves, and the Spark source.",
        "condition": "Shape, stall, cut or reset a broker's links, live.",
        "demo": "Start a small cluster on real RabbitMQ, let a burst come, and show who is moved and why.",
        "drain": "Empty an edge for maintenance: its subscribers are moved, nothing is lost.",
        "drops": "List what was dropped for whom, look at it, send it to its subscriber again, or give it up.",
        "edge": "Run the process of an edge broker.",
        "experiment": "Run an experiment of the papers, or all policies on it side by side.",
        "explain": "Say why: a session, a broker, a subscriber, a publisher, or the whole cluster.",
        "head": "Run the process of a head broker.",
        "load": "Publish and subscribe with a burst that an edge can't carry, and count what arrived.",
        "pause": "Switch load balancing off in a cluster.",
        "plan": "Show what would be moved now, without moving it.",
        "publish": "Publish messages on a topic.",
        "quarantine": "List, show, replay or purge messages that links could not carry.",
        "resume": "Switch load balancing on again.",
        "simulate": "Run the agents in virtual time under random loads and faults, by seed.",
        "status": "Show clusters: states, load against thresholds, sessions, clients that harm others.",
        "subscribe": "Receive messages, each with its age against the deadline.",
        "telemetry": "Print the records of brokers (load, decisions, latencies), as they come or from any point.",
        "undrain": "Use a drained edge again.",
        "up": "Start a whole cluster on this machine, on real RabbitMQ.",
    }
)


class _LazyGroup(click.Group):
    """Lists subcommands without importing them; importing happens when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"tidegate_cli.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))

    # Click would exit with 1 where a pipe breaks, which means that what was checked did not hold. These two are all
    # that it does before it looks for that: reading the command line, which may print help, and running the command.

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _out_of_reach():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _out_of_reach():
            return super().invoke(ctx)


class _PipeBroken(Exception):
    """A `BrokenPipeError` that is out of click's reach."""


@contextmanager
def _out_of_reach() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _PipeBroken from error


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(package_name="tidegate", prog_name="tidegate")
def cli() -> None:
    """Publish/subscribe on RabbitMQ in which every subscription has a deadline.

    Start with `tidegate demo`, or `tidegate up` and then `tidegate publish` and `tidegate subscribe` beside it.
    """


def _read_url_file() -> None:
    """TIDEGATE_URL_FILE names a file that holds the address: it has a password, which not every environment hides."""
    from tidegate_brokers.settings.reading import secret_from

    text = secret_from(os.environ, URL_VARIABLE, "--url")
    if text is not None:
        os.environ[URL_VARIABLE] = text


def main() -> None:
    """Run the command line and exit."""
    # A lost connection is ours to tell about, and not with a traceback of the library that noticed it.
    logging.getLogger("aiormq").addHandler(logging.NullHandler())
    try:
        if URL_FILE_VARIABLE in os.environ:
            _read_url_file()
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        code = exit_codes.ExitCode.INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except KeyboardInterrupt:
        code = exit_codes.ExitCode.INTERRUPTED
    except Exception as error:
        code = _code_of(error)
    sys.exit(int(code or 0))


def _code_of(error: Exception) -> int:
    """Tell of an error in one line, and say what to exit with. Raises it again if it is a bug of ours."""
    if isinstance(error, _PipeBroken):
        assert isinstance(error.__cause__, BrokenPipeError)
        error = error.__cause__
    pipe_broken = isinstance(error, BrokenPipeError) or (
        isinstance(error, BaseExceptionGroup) and error.subgroup(BrokenPipeError) is not None
    )
    if pipe_broken and _reader_left():
        # The reader of our output has seen enough (`tidegate subscribe … | head`): there is no reader to tell, and
        # nothing went wrong. So it ends without a word and with 0, as a command does that SIGPIPE ends in the middle
        # of a pipeline; 1 would say that what was checked did not hold. What is still buffered goes nowhere.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return exit_codes.ExitCode.OK
    described = describe(error)
    if described is None:
        raise error
    click.echo(f"error: {described.text}", err=True)
    return described.code


def _reader_left() -> bool:
    """Whether our output leads nowhere; else what broke is a connection, and that is an error like any other."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        poll.register(stream.fileno(), 0)
    return any(state & select.POLLERR for _, state in poll.poll(0))
