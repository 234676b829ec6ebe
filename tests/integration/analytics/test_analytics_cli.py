"""`tidegate analytics run`, as a person runs it: on a real stream where there is one, and with clear refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.support.telemetry_maker import digest, load
from tidegate_brokers.embedded.nodes import RabbitNode
from tidegate_cli.exit_codes import ExitCode
from tidegate_protocol.names import TELEMETRY_STREAM
from tidegate_protocol.telemetry import encode

TIMEOUT_S = 240.0
JOB = ("--master", "local[1]", "--json")


def tidegate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegate_cli", "analytics", "run", *arguments]
    values = {name: value for name, value in os.environ.items() if name != "TIDEGATE_URL"}
    return subprocess.run(command, env={**values, **environment}, capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("attainment", "--out", "o"), "--lake: missing; give the lake's directory"),
        (("lake", "--out", "o"), "--url: missing; give --url AMQP_URL"),
        (("lake", "--lake", "l", "--out", "o"), "--lake: it is what this job writes; give --url and --out"),
        (("audit", "--lake", "l", "--url", "u", "--out", "o"), "--url: --lake is given too; give one of them"),
        (("audit", "--lake", "l", "--out", "o", "--follow"), "--follow: a lake is read as it is now"),
        (("lake", "--url", "u", "--out", "o", "--since", "2026-01-01"), "--since: days are chosen from a lake"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: tuple[str, ...], told: str) -> None:
    run = tidegate(*arguments)
    assert run.returncode == ExitCode.BAD_INPUT, run.stderr
    assert told in run.stderr


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    run = tidegate("audit", "--lake", "l", "--out", "o", JAVA_HOME=str(tmp_path))
    assert run.returncode == ExitCode.BAD_CONFIGURATION
    assert run.stderr.startswith("error: analytics needs Spark: JAVA_HOME")
    assert "install openjdk-17-jre-headless" in run.stderr


@pytest.fixture
def stream_url(node: RabbitNode) -> Iterator[str]:
    """A head's RabbitMQ with telemetry in its stream, some of it no records."""
    pytest.importorskip("rabbitmq_stream_source")
    url = str(node.url("/"))
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(TELEMETRY_STREAM, durable=True, arguments={"x-queue-type": "stream"})
        records = [*[digest(at, [1_000] * 9 + [2_000_000], number=at + 1) for at in range(30)], load(5, "edge-1", 0.5)]
        for body in (*map(encode, records), b"no record"):
            channel.basic_publish("", TELEMETRY_STREAM, body)
        yield url
    finally:
        connection.close()


def test_from_a_real_stream_to_a_lake_to_attainment(stream_url: str, tmp_path: Path) -> None:
    lake, out = str(tmp_path / "lake"), str(tmp_path / "out")
    made = tidegate("lake", "--url", f"head={stream_url}", "--out", lake, *JOB)
    assert made.returncode == ExitCode.OK, made.stderr
    (batch,) = [json.loads(line) for line in made.stdout.splitlines()]
    assert batch == {"batch": 0, "records": {"latency": 30, "load": 1}, "refused": {"not-json": 1}}
    again = tidegate("lake", "--url", f"head={stream_url}", "--out", lake, *JOB)
    assert (again.returncode, again.stdout) == (ExitCode.OK, ""), "all was there already"
    # The variable of other commands is no second input.
    run = tidegate("attainment", "--lake", lake, "--out", out, "--master", "local[1]", TIDEGATE_URL=stream_url)
    assert run.returncode == ExitCode.OK, run.stderr
    assert "attainment  3 rows" in run.stdout
    assert "300 " in run.stdout
