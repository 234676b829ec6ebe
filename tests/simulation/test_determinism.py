"""One seed, one course: whatever the hash seed of the interpreter, and however many processes share the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from tidegate_simulator.runner import Result, combined, run_many, run_seed

SEEDS = range(1, 9)
TIMEOUT_S = 240


@pytest.mark.parametrize("seed", [1, 2, 3, 77])
def test_the_same_seed_takes_the_same_course(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert first.trace_hash
    assert first == second


@cache
def in_this_process() -> list[Result]:
    return run_many(SEEDS)


def test_other_seeds_take_other_courses() -> None:
    assert len({result.trace_hash for result in in_this_process()}) == len(SEEDS)


def test_the_number_of_processes_does_not_matter() -> None:
    assert in_this_process() == run_many(SEEDS, jobs=2)


def test_a_trace_changes_nothing() -> None:
    plain, traced = run_seed(5), run_seed(5, trace_lines_max=100_000)
    assert plain.trace_hash == traced.trace_hash
    assert traced.trace
    assert not plain.trace


def simulate(hash_seed: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tidegate_cli", "simulate", "--json", "--first-seed", "1", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert run.stdout, run.stderr
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def test_the_hash_seed_does_not_matter() -> None:
    expected = combined(in_this_process()).trace_hash
    for hash_seed, jobs in (("0", "1"), ("4711", "2")):
        assert simulate(hash_seed, "--seeds", str(len(SEEDS)), "--jobs", jobs)["trace_hash"] == expected, hash_seed
