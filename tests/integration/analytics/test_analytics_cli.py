"""`tidegate analytics run`, as a person runs it: on a real stream where there is one, and with clear refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pika
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.support.telemetry_maker import digest
from tidegate_analytics import lake
from tidegate_analytics.runner import raw_messages, write_lake
from tidegate_cli.commands import analytics
from tidegate_cli.exit_codes import ExitCode
from tidegate_embedded.nodes import RabbitNode, amqp_url
from tidegate_protocol.names import TELEMETRY_STREAM
from tidegate_protocol.telemetry import encode

TIMEOUT_S = 60.0


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


def publish(url: str, bodies: Iterable[bytes]) -> None:
    """Have these be in the telemetry stream."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(TELEMETRY_STREAM, durable=True, arguments={"x-queue-type": "stream"})
        for body in bodies:
            channel.basic_publish("", TELEMETRY_STREAM, body)
    finally:
        connection.close()


def test_a_real_stream_becomes_a_lake_that_goes_on_where_it_was(
    spark: SparkSession, node: RabbitNode, tmp_path: Path
) -> None:
    pytest.importorskip("rabbitmq_stream_source")
    url, path = amqp_url(node), str(tmp_path / "lake")
    made = [digest(at, [1_000], number=at + 1) for at in range(30)]
    seen: list[lake.BatchCounts] = []
    for records in (made[:20], made[20:]):
        publish(url, [*map(encode, records), b"no record"])
        write_lake(raw_messages(spark, [f"head={url}"]), path, on_batch=seen.append)
    assert seen == [lake.BatchCounts(at, {"latency": 20 - 10 * at}, {"not-json": 1}) for at in (0, 1)]
    whole = lake.Lake(spark, path)
    rows = whole.read("latency").collect()
    assert sorted(row["number"] for row in rows) == [one.number for one in made]
    assert {row["stream_broker"] for row in rows} == {"head"}
    assert whole.counts() == lake.BatchCounts(1, {"latency": 30}, {"not-json": 2})


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the command in this process and on its Spark, which takes no time to start; gives back what it prints."""
    monkeypatch.setattr(analytics, "start", lambda master: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)

    def run(*arguments: str, **environment: str) -> str:
        done = CliRunner().invoke(analytics.command, ["run", *arguments], env={"TIDEGATE_URL": None, **environment})
        assert done.exit_code == ExitCode.OK, done.output + repr(done.exception)
        return done.stdout

    return run


@pytest.mark.parametrize("backend", ["native"], indirect=True)
def test_the_command_from_a_stream_to_a_table(command: Callable[..., str], node: RabbitNode, tmp_path: Path) -> None:
    pytest.importorskip("rabbitmq_stream_source")
    url, path, out = amqp_url(node), str(tmp_path / "lake"), str(tmp_path / "out")
    publish(url, [encode(digest(5, [1_000] * 9 + [2_000_000], subscriber="lamp")), b"no record"])
    told = [json.loads(line) for line in command("lake", "--url", f"head={url}", "--out", path, "--json").splitlines()]
    assert [batch["batch"] for batch in told] == [0]
    # The stream holds what other tests left there, too.
    assert told[0]["records"]["latency"] >= 1
    assert told[0]["refused"]["not-json"] >= 1
    # The variable that other commands take their address from is no second input.
    shown = command("attainment", "--lake", path, "--out", out, TIDEGATE_URL="amqp://nowhere")
    assert f"rows in {out}/attainment" in shown
    words = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert {"lamp", "–"} <= set(words["subscriber"])
    assert "0.9" in words["attainment"]
    told = [json.loads(line) for line in command("audit", "--lake", path, "--out", out, "--json").splitlines()]
    assert told == [
        {"job": "audit", "tables": {name: {"rows": 0, "path": f"{out}/{name}"} for name in ("audit", "errors")}}
    ]
