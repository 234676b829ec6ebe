"""Child processes of a test that talk to it through pipes."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager


@asynccontextmanager
async def child(*command: str, env: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
    """A process whose output is piped; killed if it has not ended by itself."""
    process = await asyncio.create_subprocess_exec(*command, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        # Its end alone closes nothing: the pipes are open until they have been read to their ends.
        await process.communicate()
