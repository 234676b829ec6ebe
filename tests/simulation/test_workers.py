"""Processes that share the work go when whoever started them goes, however that happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tidegate_simulator.workers import TASKS_PER_JOB_MAX, map_in_order

STARTED_WITHIN_S = 60.0
GONE_WITHIN_S = 30.0


def test_results_come_in_the_order_given() -> None:
    assert list(map_in_order(abs, [-3, 2, -1], jobs=2)) == [3, 2, 1]


def test_only_so_much_is_handed_out_as_keeps_everybody_busy() -> None:
    taken: list[int] = []

    def given() -> Iterator[int]:
        for number in range(10_000):
            taken.append(number)
            yield -number

    results = map_in_order(abs, given(), jobs=2, at_once=4)
    assert next(results) == 0
    assert len(taken) <= 2 * 4 * TASKS_PER_JOB_MAX
    assert [next(results) for _ in range(99)] == list(range(1, 100))
    results.close()


def test_what_is_given_up_is_not_waited_for() -> None:
    results = map_in_order(time.sleep, [0.0, 3_600.0, 3_600.0], jobs=2)
    next(results)
    began = time.monotonic()
    results.close()
    assert time.monotonic() - began < GONE_WITHIN_S


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
