"""The folder of `--out`, into which experiments write their results.

Invariants: a command finds out before a long run that it can't write its files. Paths are shown letter by letter,
whatever brackets and colons are in them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from .console import Command, out
from .errors import CommandFailed

_HINT = "--out"


def out_option(help_text: str, **more: Any) -> Callable[[Command], Command]:
    """The option `--out`, which names the folder."""
    path = click.Path(file_okay=False, path_type=Path)
    return click.option(_HINT, "folder", type=path, help=help_text, **more)


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


def show_files(files: Iterable[Path]) -> None:
    """Where the files are, letter by letter."""
    for file in files:
        out().print(f"wrote {file}", soft_wrap=True, markup=False, emoji=False)
