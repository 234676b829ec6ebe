"""A Spark driver in a process of its own, to be killed like a machine that loses its power."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.leftovers import processes_of
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


class Driver:
    """A module that runs Spark, and everything it starts; all of it knows the directory for its temporary files."""

    def __init__(self, directory: Path, checkpoint: Path, module: str, *arguments: str) -> None:
        self.directory = directory
        self._checkpoint = checkpoint
        self._command = (sys.executable, "-m", module, *arguments)
        self._temporary = directory / "tmp"
        self._temporary.mkdir(exist_ok=True)

    @asynccontextmanager
    async def started(self) -> AsyncIterator[asyncio.subprocess.Process]:
        with (self.directory / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
                env={**os.environ, "TMPDIR": str(self._temporary)}, start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            await self.kill(process)

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        """SIGKILL for driver and JVM at once, as when a machine dies; Spark's Python workers end by themselves."""
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        await eventually(lambda: not processes_of(self._temporary), "the driver's processes end")

    async def finish(self, process: asyncio.subprocess.Process, within_s: float) -> None:
        async with asyncio.timeout(within_s):
            assert await process.wait() == 0, self.said()

    def said(self) -> str:
        """The end of its log."""
        return (self.directory / "log").read_text()[-3_000:]

    def _batches(self, log: str) -> int:
        folder = self._checkpoint / log
        return sum(1 for path in folder.iterdir() if path.name.isdigit()) if folder.exists() else 0

    @property
    def committed(self) -> int:
        """Batches that Spark knows to be done."""
        return self._batches("commits")

    @property
    def under_way(self) -> bool:
        """Whether a batch was begun and is not known to be done."""
        return self._batches("offsets") > self.committed
