"""The demo as a newcomer runs it: the story goes as told, and nothing is left behind."""

from __future__ import annotations

import json
import subprocess
import sys

TIMEOUT_S = 300


def test_the_story_goes_as_told() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "default", "-m", "tidegate_cli", "demo", "--json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr, done.stderr
    told = json.loads(done.stdout)
    assert told["delivered"] > 0
    assert (told["lost"], told["doubled"], told["out_of_order"]) == (0, 0, 0)
    moved = [session for session in told["sessions"] if session["moved"]]
    assert moved, told["sessions"]
    assert len(moved) == 1
    assert moved[0]["source"] == "north"
    assert moved[0]["targets"] == {"south": 3}
    assert {one["edge"] for one in told["subscribers"] if one["topic"] == "social.report"} == {"south"}
    # Without the move the sirens would have been late; with it they are not, or hardly.
    sirens = [one for one in told["subscribers"] if one["topic"] == "quake.alert"]
    assert told["late_without_moving"]["siren"] > 500
    assert sum(one["late"] for one in sirens) < told["late_without_moving"]["siren"] / 10
