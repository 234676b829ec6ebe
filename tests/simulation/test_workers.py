"""Processes that share the work go when whoever started them goes, however that happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tidegate_simulator.workers import map_in_order

STARTED_WITHIN_S = 60.0
GONE_WITHIN_S = 30.0


def test_results_come_in_the_order_given() -> None:
    assert list(map_in_order(abs, [-3, 2, -1], jobs=2)) == [3, 2, 1]


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(") ", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def test_a_killed_command_leaves_no_process_behind() -> None:
    command = [sys.executable, "-m", "tidegate_cli", "simulate", "--seeds", "500", "--jobs", "2", "--json"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + STARTED_WITHIN_S
        while len(workers := children(run.pid)) < 2:
            assert run.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline, "no workers were started"
            time.sleep(0.1)
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := [pid for pid in workers if alive(pid)]:
        assert time.monotonic() < deadline, f"{left} are still there"
        time.sleep(0.1)
