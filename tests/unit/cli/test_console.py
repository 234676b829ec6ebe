"""How commands tell their progress, and how they end when nobody reads what they print."""

from __future__ import annotations

import asyncio
import gc
import io
import subprocess
import sys
from importlib.abc import MetaPathFinder
from typing import Any

import pytest

from tidegate_cli import console
from tidegate_cli.console import progress
from tidegate_cli.exit_codes import ExitCode

TIMEOUT_S = 120.0


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    screen = io.StringIO()
    made = console.Console(file=screen, force_terminal=True, width=120, highlight=False)
    monkeypatch.setattr(console, "err", lambda: made)
    return screen


def test_without_a_terminal_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as steps:
        for done in range(1001):
            steps("schedules", done, 1000)
        steps.remark("seed 7 failed [why]")
        for done in (1, 2, 3):
            steps("few", done, 3)
        steps("none", 0, 0)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert lines[:10] == [f"schedules: {done} of 1000" for done in range(100, 1001, 100)]
    assert lines[10:] == ["seed 7 failed [why]", "few: 1 of 3", "few: 2 of 3", "few: 3 of 3", "none: 0 of 0"]


def test_bars_have_the_time_left_and_remarks_above(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_terminal(monkeypatch)
    with progress() as steps:
        steps("schedules", 1, 2)
        steps.remark("seed 7 failed [why]")
        steps("schedules", 2, 2)
    assert "2/2" in screen.getvalue()
    assert "left" in screen.getvalue()
    assert "seed 7 failed [why]" in screen.getvalue()


def test_beside_json_only_a_terminal_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress(beside_json=True) as steps:
        steps("schedules", 2, 2)
        steps.remark("seed 7 failed")
    assert capsys.readouterr() == ("", "")
    screen = on_terminal(monkeypatch)
    with progress(beside_json=True) as steps:
        steps("schedules", 2, 2)
    assert "2/2" in screen.getvalue()
    assert capsys.readouterr().out == ""
    before = screen.getvalue()
    with progress(quiet=True, beside_json=True) as steps:
        steps("schedules", 2, 2)
    assert screen.getvalue() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", "--seed", "7", "--trace", "-"),
        ("simulate", "--seeds", "1"),
        ("simulate", "--seeds", "1", "--json"),
        ("simulate", "--help"),
        ("--help",),
    ],
)
def test_a_reader_who_leaves_is_no_failure(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tidegate_cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        told = child.stderr.read().decode()
        assert child.wait(TIMEOUT_S) == ExitCode.OK, told
    assert "Error" not in told
    assert "Traceback" not in told


class Interrupting(MetaPathFinder):
    """Ctrl-C while uvloop is imported."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "uvloop":
            raise KeyboardInterrupt


def test_interrupted_before_it_starts_a_command_leaves_no_coroutine_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "uvloop", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(KeyboardInterrupt):
        console.run(asyncio.sleep(0))
    gc.collect()  # A coroutine that was never awaited says so when it goes, and warnings are errors here.
