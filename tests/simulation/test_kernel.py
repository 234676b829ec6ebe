"""Virtual time and randomness: order, bounds, and streams that don't shift each other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tidegate_simulator import kernel as kernel_module
from tidegate_simulator.errors import RunawayError
from tidegate_simulator.kernel import Kernel, stream_seed
from tidegate_simulator.trace import Trace


def test_what_is_due_happens_in_order_and_ties_in_the_order_of_asking() -> None:
    kernel, seen = Kernel(1), []
    for name, at_s in (("c", 2.0), ("a", 1.0), ("b", 1.0), ("late", 3.5)):
        kernel.at(at_s, lambda one: seen.append((kernel.now, one)), name)
    kernel.run(3.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert kernel.now == 3.0
    kernel.run(4.0)
    assert seen[-1] == (3.5, "late")


def test_the_last_moment_belongs_to_the_run() -> None:
    kernel, seen = Kernel(1), []
    kernel.at(2.0, lambda _: kernel.at(2.0, seen.append, "asked for at the last moment"))
    kernel.run(2.0)
    assert seen == ["asked for at the last moment"]


def test_the_past_is_now() -> None:
    kernel, seen = Kernel(1), []
    kernel.at(1.0, lambda _: kernel.at(0.5, lambda _: seen.append(kernel.now)))
    kernel.run(2.0)
    assert seen == [1.0]


def test_a_new_consumer_of_randomness_shifts_nobody() -> None:
    alone = Kernel(7)
    numbers = [alone.stream("edge").random() for _ in range(5)]
    shared = Kernel(7)
    mixed = []
    for _ in range(5):
        shared.stream("newcomer").random()
        mixed.append(shared.stream("edge").random())
    assert mixed == numbers
    assert numbers != [Kernel(8).stream("edge").random() for _ in range(5)]


def test_streams_do_not_hang_on_the_hash_seed() -> None:
    code = "from tidegate_simulator.kernel import stream_seed; print(stream_seed(3, 'edge b1'))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "42")
    }
    assert found == {str(stream_seed(3, "edge b1"))}


def test_what_feeds_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_module, "STEPS_MAX", 1_000)
    kernel = Kernel(1)

    def again(_: None) -> None:
        kernel.at(kernel.now, again)

    kernel.at(0.0, again)
    with pytest.raises(RunawayError, match="more than 1000 steps"):
        kernel.run(1.0)


def test_the_trace_tells_runs_apart() -> None:
    def trace(*, at_s: float = 1.0, message: int = 5, text: str = "step", content: bytes = b"x") -> str:
        record = Trace()
        record.data(b"p", at_s, 3, message)
        record.event(at_s, text, content)
        return record.digest

    assert trace() == trace()
    others = {trace(at_s=1.0 + 1e-15 * 4), trace(message=6), trace(text="stop"), trace(content=b"y")}
    assert len(others) == 4
    assert trace() not in others


def test_lines_are_bounded_and_do_not_change_the_hash() -> None:
    quiet, read = Trace(), Trace(lines_max=2)
    for record in (quiet, read):
        for number in range(5):
            record.event(float(number), f"event {number}")
    assert [line.split(maxsplit=1)[1] for line in read.lines] == ["event 3", "event 4"]
    assert not quiet.lines
    assert read.digest == quiet.digest
