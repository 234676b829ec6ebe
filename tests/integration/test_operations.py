"""The operators' commands against a real cluster: at rest, paused, drained, and asked for what there is not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any
from unittest.mock import patch

import pytest

from tidegate_cli.exit_codes import ExitCode
from tidegate_cli.main import main

TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


def tidegate(*arguments: str, url: str) -> Ended:
    """The command line as a process would run it, but in this one: starting thirty processes takes longer than all they
    are asked.
    """
    out, err = StringIO(), StringIO()
    line = ["tidegate", *arguments, "--url", url]
    with (
        patch.object(sys, "argv", line),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def up() -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "tidegate_cli", "up", "--compact", "--clusters", "2", "--edges", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def urls(up: dict[str, Any]) -> list[str]:
    return [str(url) for url in up["urls"].values()]


@pytest.fixture(scope="module")
def url(urls: list[str]) -> str:
    return urls[0]


@pytest.fixture(scope="module")
def edges(up: dict[str, Any]) -> list[str]:
    """Those of the first cluster."""
    first = up["brokers"][0]["cluster"]
    return [broker["name"] for broker in up["brokers"] if broker["kind"] == "edge" and broker["cluster"] == first]


def answer(*arguments: str, url: str) -> dict[str, Any]:
    result = tidegate(*arguments, "--json", url=url)
    assert result.returncode == ExitCode.OK, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_status_has_every_broker_and_several_clusters_at_once(urls: list[str], edges: list[str]) -> None:
    one = answer("status", url=urls[0])
    assert [edge["edge"] for edge in one["edges"]] == edges
    assert {broker["broker"] for broker in one["brokers"]} == {one["head"], *edges}
    assert (one["paused"], one["missing"], one["sessions"]) == (False, [], [])
    both = answer("status", "--url", urls[1], url=urls[0])
    assert len(both["clusters"]) == 2
    shown = tidegate("status", "--url", urls[1], url=urls[0])
    for described in both["clusters"]:
        assert described["head"] in shown.stdout


def test_a_cluster_that_can_not_be_reached_keeps_nobody_from_the_others(urls: list[str]) -> None:
    nowhere = "amqp://guest:guest@127.0.0.1:1/head"
    result = tidegate("status", "--url", nowhere, url=urls[0])
    assert result.returncode == ExitCode.UNAVAILABLE
    assert "127.0.0.1:1" in result.stderr
    assert "balancing on" in result.stdout


def test_balancing_is_paused_and_resumed_and_says_whether_that_changed_anything(url: str) -> None:
    assert answer("pause", url=url)["changed"]
    assert not answer("pause", url=url)["changed"]
    assert answer("status", url=url)["paused"]
    assert "PAUSED" in tidegate("status", url=url).stdout
    assert "paused" in tidegate("plan", url=url).stdout
    assert answer("resume", url=url)["changed"]
    assert not answer("status", url=url)["paused"]


def test_at_rest_nothing_is_planned_and_it_says_why(url: str, edges: list[str]) -> None:
    planned = answer("plan", url=url)
    assert [edge["edge"] for edge in planned["edges"]] == edges
    assert not any(edge["due"] for edge in planned["edges"])
    assert tidegate("plan", url=url).stdout.startswith("Nothing would be moved")


def test_brokers_and_the_cluster_are_explained(url: str, edges: list[str]) -> None:
    shown = tidegate("explain", edges[0], url=url)
    assert shown.returncode == ExitCode.OK, shown.stderr
    assert shown.stdout.startswith(f"Edge {edges[0]} is ")
    assert answer("explain", edges[0], url=url)["what"] == "broker"
    assert answer("explain", url=url)["what"] == "cluster"


def test_an_empty_edge_is_drained_at_once_and_used_again(url: str, edges: list[str]) -> None:
    (edge,) = edges
    drained = answer("drain", edge, "--wait", "--timeout", "60", url=url)
    assert (drained["edge"], drained["draining"], drained["left"]) == (edge, True, 0)
    assert "drained" in tidegate("status", url=url).stdout
    assert not answer("undrain", edge, url=url)["draining"]
    assert not any(one["draining"] for one in answer("status", url=url)["edges"])


@pytest.mark.parametrize(
    "arguments", [("drain", "no-such-edge"), ("undrain", "no-such-edge"), ("explain", "no-such~1~2")]
)
def test_a_name_that_nobody_knows_is_told_with_those_there_are(
    url: str, edges: list[str], arguments: tuple[str, ...]
) -> None:
    result = tidegate(*arguments, url=url)
    assert result.returncode == ExitCode.BAD_INPUT
    for word in (arguments[1], edges[0], "tidegate status"):
        assert word in result.stderr
