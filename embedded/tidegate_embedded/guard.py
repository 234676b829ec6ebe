"""The launcher's side of the guardian: a private directory and processes that can't outlive the launcher.

A `Guard` is entered before anything else of a launch and left last. Every process is started through it. Leaving it
ends all processes and removes the directory, apart from entries named with `keep`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tidegate_brokers.errors import GuardianLost

from . import guardian

ANSWER_TIMEOUT_S: Final = 30.0
END_TIMEOUT_S: Final = 60.0
TAIL_BYTES: Final = 4096
TAIL_LINES: Final = 20


class GuardedProcess:
    """A process that the guardian started and reaps."""

    def __init__(self, guard: Guard, pid: int, name: str, log: Path) -> None:
        self._guard = guard
        self.pid = pid
        self.name = name
        self.log = log
        self._ended = asyncio.Event()
        self.returncode: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has not been reaped yet."""
        return self.returncode is None

    async def send_signal(self, number: signal.Signals) -> bool:
        """Signal its process group; False if it has ended already."""
        answer = await self._guard.request({"do": "signal", "pid": self.pid, "signal": int(number)})
        return bool(answer["sent"])

    async def wait(self) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    async def end(self, number: signal.Signals, grace_s: float) -> None:
        """Signal it, wait for its end, and kill it when the grace is over."""
        await self.send_signal(number)
        try:
            await asyncio.wait_for(self.wait(), grace_s)
        except TimeoutError:
            await self.send_signal(signal.SIGKILL)
            await self.wait()

    def tail(self) -> str:
        """The last lines of its output, for error messages."""
        return tail(self.log)

    def ended(self, code: int) -> None:
        """Called by the guard."""
        self.returncode = code
        self._ended.set()


class Guard:
    """An async context manager around one guardian process."""

    def __init__(self, prefix: str = "tidegate-") -> None:
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._processes: dict[int, GuardedProcess] = {}
        self._early: dict[int, int] = {}
        self._lost = False
        self.directory = Path()

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._guardian = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", guardian.__file__, str(theirs.fileno()), str(os.getpid()), self._prefix,
                    pass_fds=[theirs.fileno()], start_new_session=True, cwd="/",
                    stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL,
                )  # fmt: skip
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()  # the guardian ends by itself
            raise
        try:
            first = await self._reader.readline()
            if not first:
                raise GuardianLost("could not start (is the directory for temporary files writable?)")
        except BaseException:
            await self._end()
            raise
        self.directory = Path(json.loads(first)["directory"])
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.cancel()
        await self._end()

    async def _end(self) -> None:
        # Closing the socket is all it takes; should we be cancelled from here on, cleaning goes on without us.
        self._writer.close()
        async with asyncio.timeout(END_TIMEOUT_S):
            await self._guardian.wait()

    @property
    def guardian_pid(self) -> int:
        """For tests: the process that owns all others."""
        return self._guardian.pid

    async def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        grace_s: float = 0.0,
    ) -> GuardedProcess:
        """Start a process. `grace_s`: how long it may take to end after SIGTERM when the launch ends; 0 kills it."""
        answer = await self.request(
            {
                "do": "spawn",
                "argv": list(argv),
                "env": dict(os.environ if env is None else env),
                "log": str(log),
                "cwd": str(cwd or self.directory),
                "grace_s": grace_s,
            }
        )
        process = GuardedProcess(self, answer["pid"], name, log)
        if process.pid in self._early:
            process.ended(self._early.pop(process.pid))
        else:
            self._processes[process.pid] = process
        return process

    async def keep(self, entry: str) -> Path:
        """Leave one entry of the directory in place when the launch ends; its path."""
        return Path((await self.request({"do": "keep", "entry": entry}))["kept"])

    async def request(self, message: dict[str, object]) -> dict[str, Any]:
        """Ask the guardian; raise `GuardianLost` when it is gone or refuses."""
        if self._lost:
            raise GuardianLost("has ended")
        number = next(self._numbers)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answered
        try:
            self._writer.write(json.dumps({"id": number, **message}).encode() + b"\n")
            answer = await asyncio.wait_for(answered, ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise GuardianLost("does not answer") from None
        finally:
            del self._answers[number]
        if "error" in answer:
            raise GuardianLost(f"could not do what it was asked: {answer['error']}")
        return answer

    async def _listen(self) -> None:
        while line := await self._reader.readline():
            message = json.loads(line)
            if "exited" not in message:
                answered = self._answers.get(message["id"])
                if answered is not None and not answered.done():
                    answered.set_result(message)
                continue
            process = self._processes.pop(message["exited"], None)
            if process is not None:
                process.ended(message["code"])
            else:  # it ended before the answer to `spawn` was read by its task
                self._early[message["exited"]] = message["code"]
        self._lost = True
        for answered in self._answers.values():
            if not answered.done():
                answered.set_exception(GuardianLost("has ended"))
        for process in self._processes.values():
            process.ended(-signal.SIGKILL)


def tail(log: Path) -> str:
    """The last lines of a log file."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(text.splitlines()[-TAIL_LINES:]) or "(it said nothing)"
