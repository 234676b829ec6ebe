"""A worker process's side of its conversation with the conductor.

It is told what to do by JSON lines on its standard input, answers with JSON lines on its standard output, and ends when
its input does: it can't outlive the conductor. The first line says who it is; everything after it is a command with a
number, which comes back with the answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

LINE_BYTES_MAX: Final = 1 << 20


class Commanded(Protocol):
    """What carries out commands."""

    async def command(self, line: dict[str, Any]) -> dict[str, Any]: ...


async def serve(make: Callable[[str], Awaitable[Commanded]]) -> None:
    """Make a worker of the first line, and serve the conductor until its input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    first = await reader.readline()
    if not first:
        return
    worker = await make(first.decode())
    _say({"ready": True})
    running: set[asyncio.Task[None]] = set()

    async def answer(line: dict[str, Any]) -> None:
        try:
            _say({"id": line["id"], "answer": await worker.command(line)})
        except Exception as error:
            logging.getLogger(__name__).exception("the command %s failed", line["do"])
            _say({"id": line["id"], "error": repr(error)})

    while text := await reader.readline():
        # Commands that wait must not keep others from being heard.
        task = loop.create_task(answer(json.loads(text)))
        running.add(task)
        task.add_done_callback(running.discard)


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
