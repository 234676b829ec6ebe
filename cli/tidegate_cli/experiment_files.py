"""What the experiments' commands share: a folder that is fit to be written to, mistakes of whoever called, progress.

What always holds: that nothing can be written is known before a long run; and paths are shown as they are, whatever
brackets and colons are in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import click

from tidegate_simulator.errors import ScenarioError

from .console import Report, err, out, progress
from .errors import CommandFailed

_HINT = "--out"


def prepare(folder: Path | None, names: Iterable[str]) -> None:
    """Find out before a long run, not after it, that the files of these names can't be written."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"can't make the folder {folder}: {error.strerror}", param_hint=_HINT) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{folder} is not writable", param_hint=_HINT)
    for path in (folder / name for name in names):
        if path.is_dir():
            raise click.BadParameter(f"{path} is a folder, and a file is to be written there", param_hint=_HINT)
        if path.exists() and not os.access(path, os.W_OK):
            raise click.BadParameter(f"{path} is not writable", param_hint=_HINT)


@contextmanager
def writing() -> Iterator[None]:
    """What could not be known before: a disk that is full, a folder that has gone."""
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"can't write {error.filename or 'the files'}: {error.strerror}") from error


@contextmanager
def usage_errors() -> Iterator[None]:
    """What an experiment refuses to be was asked for on the command line (`nan` passes every range)."""
    try:
        yield
    except (ValueError, ScenarioError) as error:
        raise click.UsageError(str(error)) from error


def progress_besides(as_json: bool) -> AbstractContextManager[Report]:
    """Progress goes to standard error. A machine that reads JSON has no use for it; a person at a terminal has."""
    return progress(quiet=as_json and not err().is_terminal)


def show_files(files: Iterable[Path]) -> None:
    """Where the files are, letter by letter."""
    for file in files:
        out().print(f"wrote {file}", soft_wrap=True, markup=False, emoji=False)
