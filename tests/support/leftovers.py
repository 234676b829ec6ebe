"""Finding everything that belongs to one launch of an embedded cluster.

A launch that is given a directory for temporary files of its own (`TMPDIR`) makes its private directory there, and
every process of it has that path in its environment or its command line: it can be found without knowing any name.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.waiting import eventually


def processes_of(directory: Path) -> dict[int, str]:
    """Living processes that mention `directory`, with their command lines."""
    mark = os.fsencode(directory)
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
        except OSError:  # it ended in between, or is not ours to look into
            continue
        if mark in command or mark in environment:
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def listening(*urls: str) -> list[int]:
    """Those ports of `urls` on which somebody listens."""
    found = []
    for url in urls:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        with socket.socket() as trial:
            if trial.connect_ex((parts.hostname, parts.port)) == 0:
                found.append(parts.port)
    return found


async def nothing_left(directory: Path, *urls: str) -> None:
    """Wait until no process, no file and no listener of the launch is left."""
    await eventually(lambda: not processes_of(directory), f"the processes end: {processes_of(directory)}")
    await eventually(lambda: not os.listdir(directory), f"the files are removed: {os.listdir(directory)}")
    assert listening(*urls) == []
