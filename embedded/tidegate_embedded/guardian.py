"""The guardian: one small process per launch that owns every other process and the directory of the launch.

Whatever happens to the launcher (return, exception, SIGKILL), nothing may stay behind. So the launcher starts no child
itself; it asks the guardian over a socket, and the guardian

- makes the private directory and forks every child, so that there is no moment in which something exists that the
  guardian does not know;
- is a *subreaper*: whatever a child leaves behind becomes a child of the guardian, even from another process group
  (RabbitMQ's own helpers have groups of their own);
- when the socket closes or the launcher's process is gone, ends everything, removes the directory and exits.

If the guardian itself is killed, the kernel kills its children (PR_SET_PDEATHSIG); only the directory then remains.

It runs as a plain script in an isolated interpreter (`python -I -S guardian.py FD LAUNCHER_PID PREFIX`), in a session
of its own, so Ctrl-C does not reach it. It must import the standard library only and know nothing of Tidegate.

Requests and answers are JSON lines: `{"id": 1, "do": "spawn", "argv": […], "env": {…}, "log": path, "grace_s": 2}` →
`{"id": 1, "pid": 42}`; `{"do": "signal", "pid": 42, "signal": 9}` → `{"sent": true}`; `{"do": "keep", "entry": "logs"}`
→ `{"kept": path}`. On its own it sends `{"directory": path}` first and `{"exited": pid, "code": -9}` later.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time

KILL_WAIT_S = 10.0
"""How long killed processes may take to vanish; a process in an uninterruptible read needs a moment."""
GRACE_S_MAX = 30.0
REMOVE_TRIES_MAX = 20
POLL_S = 0.02
READ_BYTES = 65536
REQUEST_BYTES_MAX = 4 << 20

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Ask the kernel; where it has no such thing, process groups and the socket still do most of the work."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Guardian:
    """All state of the guardian; single-threaded, so that forking is safe."""

    def __init__(self, connection: socket.socket, launcher: int, prefix: str) -> None:
        self.connection = connection
        self.launcher = launcher
        self.grace_s: dict[int, float] = {}
        self.kept: set[str] = set()
        self.ending = False
        self.directory = tempfile.mkdtemp(prefix=prefix)

    def run(self) -> None:
        """Serve until the launcher is gone, then clean up."""
        try:
            with selectors.DefaultSelector() as selector:
                self._serve(selector)
        finally:
            self._end_processes()
            self._remove_directory()

    def _serve(self, selector: selectors.BaseSelector) -> None:
        woken, wake = socket.socketpair()
        woken.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        selector.register(self.connection, selectors.EVENT_READ, "request")
        selector.register(woken, selectors.EVENT_READ, "woken")
        # The socket alone would do, had no one forked the launcher: a fork holds the socket open.
        with contextlib.suppress(OSError, AttributeError):
            selector.register(os.pidfd_open(self.launcher), selectors.EVENT_READ, "launcher gone")
        self._send({"directory": self.directory})
        received = b""
        while not self.ending:
            for key, _ in selector.select():
                if key.data == "launcher gone":
                    return
                if key.data == "woken":
                    with contextlib.suppress(BlockingIOError):
                        woken.recv(READ_BYTES)
                    self._reap()
                    continue
                data = self.connection.recv(READ_BYTES)
                received += data
                if not data or len(received) > REQUEST_BYTES_MAX:
                    return
                *lines, received = received.split(b"\n")
                for line in lines:
                    self._answer(json.loads(line))

    def _send(self, message: dict[str, object]) -> None:
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.ending = True

    def _answer(self, request: dict[str, object]) -> None:
        answer: dict[str, object] = {"id": request.get("id")}
        try:
            if request["do"] == "spawn":
                answer["pid"] = self._spawn(request)
            elif request["do"] == "signal":
                answer["sent"] = self._signal(int(str(request["pid"])), int(str(request["signal"])))
            elif request["do"] == "keep":
                self.kept.add(str(request["entry"]))
                answer["kept"] = os.path.join(self.directory, str(request["entry"]))
            else:
                answer["error"] = f"unknown request {request['do']}"
        except (OSError, KeyError, ValueError) as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        self._send(answer)

    def _spawn(self, request: dict[str, object]) -> int:
        argv, env = request["argv"], request["env"]
        assert isinstance(argv, list)
        assert isinstance(env, dict)
        log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        failed_read, failed_write = os.pipe()  # closed by a successful exec
        guardian = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != guardian:
                    os._exit(1)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a child would inherit that
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.chdir(str(request.get("cwd") or self.directory))
                os.execvpe(argv[0], argv, env)
            except BaseException as error:
                os.write(failed_write, f"{argv[0]}: {error}".encode(errors="replace"))
            finally:
                os._exit(127)
        os.close(failed_write)
        os.close(log)
        with os.fdopen(failed_read, "rb") as failed:
            problem = failed.read()
        if problem:
            os.waitpid(pid, 0)
            raise OSError(problem.decode(errors="replace"))
        self.grace_s[pid] = min(float(str(request.get("grace_s") or 0)), GRACE_S_MAX)
        return pid

    def _signal(self, pid: int, number: int) -> bool:
        """Signal a child's whole group. Only the guardian reaps, so the number can't have been given away."""
        if pid not in self.grace_s:
            return False
        os.killpg(pid, number)
        return True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.grace_s.pop(pid, None) is not None:
                self._send({"exited": pid, "code": os.waitstatus_to_exitcode(status)})

    def _end_processes(self) -> None:
        """First those that asked for a grace, so that they find their RabbitMQ alive; then everything that is left."""
        polite = {pid: grace for pid, grace in self.grace_s.items() if grace > 0}
        for pid in polite:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGTERM)
        deadline = time.monotonic() + max(polite.values(), default=0.0)
        self._reap()
        while polite.keys() & self.grace_s.keys() and time.monotonic() < deadline:
            time.sleep(POLL_S)
            self._reap()
        deadline = time.monotonic() + KILL_WAIT_S
        while time.monotonic() < deadline:
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if not descendants(os.getpid()):
                return
            time.sleep(POLL_S)

    def _remove_directory(self) -> None:
        entries = os.listdir(self.directory)
        for _ in range(REMOVE_TRIES_MAX):
            for entry in set(entries) - self.kept:
                path = os.path.join(self.directory, entry)
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
            entries = os.listdir(self.directory)
            if not set(entries) - self.kept:
                break
            time.sleep(POLL_S)
        if not entries:
            os.rmdir(self.directory)


def descendants(root: int) -> list[int]:
    """All living processes below `root`, from /proc; zombies are left to be reaped."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
        except OSError:  # it ended in between
            continue
        # A zombie has no children left, but it counts while its own parent has not reaped it: only ours matter.
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(entry))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def main() -> None:
    """Entry point of the script."""
    descriptor, launcher, prefix = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    # Handlers rather than SIG_IGN: a child would inherit the latter through exec.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    if os.getppid() != launcher:  # it died before we could watch it
        return
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    guardian = Guardian(connection, launcher, prefix)

    def end(*_: object) -> None:
        guardian.ending = True

    signal.signal(signal.SIGTERM, end)
    guardian.run()


if __name__ == "__main__":
    main()
