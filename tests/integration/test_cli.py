"""The `tidegate` command as a person uses it: against a cluster that `tidegate up` started, in processes of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tidegate_cli.exit_codes import ExitCode
from tidegate_cli.main import cli

TIMEOUT_S = 120


def tidegate(*arguments: str, url: str | None = None, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegate_cli", *arguments, *(("--url", url) if url else ())]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, input=stdin, check=False)


@pytest.fixture(scope="module")
def up() -> Iterator[dict[str, Any]]:
    """What `tidegate up --json` printed; the cluster is there for as long as the tests of this module run."""
    command = [sys.executable, "-m", "tidegate_cli", "up", "--compact", "--edges", "2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=TIMEOUT_S) == ExitCode.OK


@pytest.fixture(scope="module")
def url(up: dict[str, Any]) -> str:
    return str(next(iter(up["urls"].values())))


def test_a_message_goes_round(url: str) -> None:
    command = ["subscribe", "quake.#", "--deadline", "30", "--count", "2", "--name", "siren", "--json", "--url", url]
    with subprocess.Popen(
        [sys.executable, "-m", "tidegate_cli", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as subscriber:
        wait_for_subscriptions(url, 1)
        arguments = ("quake.alert", "magnitude 6.1", "-a", "depth=12.5", "-a", "felt=true", "--count", "2", "--json")
        published = tidegate("publish", *arguments, url=url)
        out, err = subscriber.communicate(timeout=TIMEOUT_S)
    assert published.returncode == ExitCode.OK, published.stderr
    assert json.loads(published.stdout)["confirmed"] == 2
    assert subscriber.returncode == ExitCode.OK, err
    messages = [json.loads(line) for line in out.splitlines()]
    assert [message["body"] for message in messages] == ["magnitude 6.1"] * 2
    assert messages[0]["attributes"] == {"depth": 12.5, "felt": True}
    assert not messages[0]["late"]


def test_lines_of_standard_input_are_messages(url: str) -> None:
    published = tidegate("publish", "tide.gauge", url=url, stdin="1.2\n1.3\n1.4\n")
    assert published.returncode == ExitCode.OK, published.stderr
    assert published.stdout.startswith("3 confirmed on tide.gauge")


def test_a_line_is_sent_while_the_next_one_is_awaited(url: str) -> None:
    before = subscriptions(url)
    base = [sys.executable, "-m", "tidegate_cli"]
    watch = [*base, "subscribe", "slow.#", "--deadline", "30", "--count", "1", "--json", "--url", url]
    with (
        subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as subscriber,
        subprocess.Popen([*base, "publish", "slow.x", "--url", url], stdin=subprocess.PIPE, text=True) as publisher,
    ):
        wait_for_subscriptions(url, before + 1)
        assert publisher.stdin is not None
        publisher.stdin.write("one\n")
        publisher.stdin.flush()
        out, _ = subscriber.communicate(timeout=TIMEOUT_S)
        publisher.send_signal(signal.SIGINT)
        assert publisher.wait(timeout=TIMEOUT_S) == ExitCode.INTERRUPTED, "Ctrl-C while it waits for a line"
    assert json.loads(out)["body"] == "one"


def test_status_for_people_and_machines(up: dict[str, Any], url: str) -> None:
    shown = tidegate("status", url=url)
    assert shown.returncode == ExitCode.OK, shown.stderr
    described = json.loads(tidegate("status", "--json", url=url).stdout)
    edges = [broker["name"] for broker in up["brokers"] if broker["kind"] == "edge"]
    assert [edge["edge"] for edge in described["edges"]] == edges
    assert all(edge["alive"] for edge in described["edges"])
    assert all(edge in shown.stdout for edge in edges)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("publish", "quake..alert", "x"), ExitCode.BAD_INPUT, ["topic", "quake..alert"]),
        (("publish", "quake.*", "x"), ExitCode.BAD_INPUT, ["topic", "*"]),
        (("publish", "a" * 200, "x"), ExitCode.BAD_INPUT, ["topic", "160"]),
        (("publish", "quake", "x" * 1_100_000), ExitCode.BAD_INPUT, ["body", "1048576"]),
        (("publish", "quake", "x", "-a", "tidegate-me=1"), ExitCode.BAD_INPUT, ["tidegate-me", "reserved"]),
        (("publish", "quake", "x", "-a", "no-value"), ExitCode.USAGE, ["NAME=VALUE"]),
        (("publish", "quake", "x", "--name", "a.b"), ExitCode.BAD_INPUT, ["a.b", "letters"]),
        (("subscribe", "quake.#x", "--deadline", "1"), ExitCode.BAD_INPUT, ["quake.#x"]),
        (("subscribe", "quake.#", "--deadline", "0"), ExitCode.BAD_INPUT, ["deadline", "above 0"]),
        (("subscribe", "quake.#", "--deadline", "-1"), ExitCode.BAD_INPUT, ["deadline", "above 0"]),
        (("subscribe", "quake.#", "--deadline", "soon"), ExitCode.USAGE, ["soon"]),
    ],
)
def test_bad_input_is_named(url: str, arguments: tuple[str, ...], code: ExitCode, words: list[str]) -> None:
    if len(arguments[2]) > 100_000:
        # Too long for a command line: it goes through standard input.
        answer = tidegate(*arguments[:2], url=url, stdin=arguments[2])
    else:
        answer = tidegate(*arguments, url=url)
    assert_clear(answer, code, words)


def test_addresses_that_lead_nowhere_are_named(url: str) -> None:
    user, _, place = url.removeprefix("amqp://").partition("@")
    name, _, password = user.partition(":")
    cases = [
        (f"amqp://{name}:wrong@{place}", ExitCode.NO_PERMISSION, ["password"]),
        (f"amqp://{user}@127.0.0.1:1/head", ExitCode.UNAVAILABLE, ["127.0.0.1:1"]),
        (f"http://{user}@{place}", ExitCode.BAD_CONFIGURATION, ["amqp"]),
        (f"amqp://{user}@{place.partition('/')[0]}/nowhere", ExitCode.NO_PERMISSION, ["nowhere"]),
    ]
    for address, code, words in cases:
        for arguments in (("publish", "quake", "x"), ("subscribe", "quake", "--deadline", "1"), ("status",)):
            answer = tidegate(*arguments, url=address)
            assert_clear(answer, code, words)
            assert password not in answer.stderr + answer.stdout


def test_a_missing_url_says_how_to_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_URL", raising=False)
    answer = tidegate("status")
    assert answer.returncode == ExitCode.USAGE
    assert "TIDEGATE_URL" in answer.stderr


def test_every_command_explains_itself() -> None:
    listed = tidegate("--help").stdout
    for name in ("up", "head", "edge", "publish", "subscribe", "status", "demo", "bench", "condition"):
        assert name in listed
        answer = CliRunner().invoke(cli, [name, "--help"])
        assert answer.exit_code == ExitCode.OK
        assert "Usage:" in answer.stdout


def assert_clear(answer: subprocess.CompletedProcess[str], code: ExitCode, words: list[str]) -> None:
    assert answer.returncode == code, (answer.args, answer.stderr)
    assert "Traceback" not in answer.stderr
    for word in words:
        assert word in answer.stderr, (answer.args, answer.stderr)


def subscriptions(url: str) -> int:
    described = json.loads(tidegate("status", "--json", url=url).stdout)
    return sum(edge["subscriptions"] for edge in described["edges"])


def wait_for_subscriptions(url: str, count: int) -> None:
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        if subscriptions(url) >= count:
            return
    raise AssertionError(f"no {count} subscriptions within {TIMEOUT_S} s")
