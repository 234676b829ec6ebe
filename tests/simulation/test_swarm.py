"""Five hundred schedules of random loads and faults, with every checker on. A failure names its seed."""

from __future__ import annotations

from functools import cache

import pytest

from tidegate_simulator.runner import Result, combined, run_many

CHUNK = 100
SCHEDULES = 500
JOBS = 2
STARTS = range(1, SCHEDULES + 1, CHUNK)


@cache
def chunk(first: int) -> list[Result]:
    return run_many(range(first, first + CHUNK), jobs=JOBS)


@pytest.mark.parametrize("first", STARTS)
def test_nothing_goes_wrong(first: int) -> None:
    results = chunk(first)
    assert [result.seed for result in results] == list(range(first, first + CHUNK))
    problems = [problem for result in results for problem in result.problems]
    failing = [result.seed for result in results if result.failed]
    assert not failing, f"seeds {failing}:\n" + "\n".join(problems)
    # A swarm in which nothing happens would pass as well.
    assert sum(result.counts.get("sessions", 0) > 0 for result in results) >= CHUNK // 2
    assert sum(result.counts.get("moves", 0) > 0 for result in results) >= CHUNK // 2


def test_the_rare_things_happen_too() -> None:
    totals = combined(result for first in STARTS for result in chunk(first)).counts
    rare = ("collected", "publisher_moves", "throttled", "late", "insights_taken", "insights_refused")
    for name in (*rare, "advised_placements"):
        assert totals.get(name, 0) > 0, f"no {name} in seeds 1 to {SCHEDULES}"
