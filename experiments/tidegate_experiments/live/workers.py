"""The conductor's side of a worker process: starts it, asks it, ends it.

A worker's input is a pipe of ours: should we be killed, it ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

from tidegate_brokers.errors import EmbeddedError

from .serving import Assignment

READY_TIMEOUT_S: Final = 30.0
ANSWER_TIMEOUT_S: Final = 30.0
END_TIMEOUT_S: Final = 5.0
LINE_BYTES_MAX: Final = 16 << 20
ERROR_BYTES_MAX: Final = 4096
LIVE_WORKER: Final = "tidegate_experiments.live.worker"


class WorkerFailed(EmbeddedError):
    """A process of the load generator ended or does not answer."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"the {name} of the load generator {problem}", "this is a bug: report it with this text")


class WorkerProcess:
    """One worker, as an async context manager."""

    def __init__(self, task: Assignment, module: str = LIVE_WORKER, own_session: bool = False) -> None:
        """`module`: what the process runs. `own_session`: Linux shares out processors by session, where it groups
        processes at all, so that in ours all workers together get as much as one process of a broker does.
        """
        self._task = task
        self._module = module
        self._own_session = own_session
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening: asyncio.Task[None] | None = None
        self._errors = b""
        self._process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def name(self) -> str:
        return self._task.name

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", self._module,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            start_new_session=self._own_session,
        )  # fmt: skip
        self._listening = asyncio.create_task(self._listen())
        self._write(self._task.to_json())
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._ready
        except TimeoutError:
            await self._end()
            raise WorkerFailed(self.name, "could not connect to the cluster") from None
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def ask(self, do: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        number = next(self._numbers)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answered
        if self._process.returncode is not None:
            raise self._ended()
        self._write(json.dumps({"id": number, "do": do, **fields}))
        try:
            async with asyncio.timeout(timeout_s):
                return await answered
        except TimeoutError:
            raise WorkerFailed(self.name, f"does not answer to {do!r}") from None
        finally:
            self._answers.pop(number, None)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        errors = asyncio.create_task(self._process.stderr.read())
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            if "ready" in said:
                self._ready.set_result(None)
                continue
            answered = self._answers.get(said["id"])
            if answered is None or answered.done():
                continue
            if "error" in said:
                answered.set_exception(WorkerFailed(self.name, f"failed: {said['error']}"))
            else:
                answered.set_result(said["answer"])
        self._errors = (await errors)[-ERROR_BYTES_MAX:]
        if not self._ready.done():
            self._ready.set_exception(self._ended())
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(self._ended())

    def _ended(self) -> WorkerFailed:
        return WorkerFailed(self.name, f"ended: {self._errors.decode(errors='replace') or 'without a word'}")

    async def _end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._listening is not None:
            # What it said last is read: pipes that are not read to their ends stay open.
            await asyncio.wait({self._listening}, timeout=END_TIMEOUT_S)
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # looked at, so that nobody complains about it
