"""A worker process's side of its conversation with the conductor.

The worker is told what to do by JSON lines on its standard input, answers with JSON lines on its standard output, and
ends when its input does: it can't outlive the conductor. The first line is its `Assignment`; every line after it is a
command with a number, which comes back with the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, Self

LINE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is told first; each kind of worker adds fields that JSON takes."""

    name: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**{name: _tuples(value) for name, value in json.loads(text).items()})


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


def run_worker(make: Callable[[str], Awaitable[Commanded]]) -> None:
    """What the module of a worker does when it is run: serve, on uvloop where it is installed."""
    with contextlib.suppress(KeyboardInterrupt):
        try:
            import uvloop
        except ImportError:
            asyncio.run(serve(make))
        else:
            uvloop.run(serve(make))


def _tuples(value: Any) -> Any:
    """JSON has lists where our records have tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
