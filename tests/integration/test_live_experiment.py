"""`tidegate experiment ews-burst --backend rabbitmq`: a short run at a small scale, on real RabbitMQ."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tidegate_cli.exit_codes import ExitCode
from tidegate_protocol.names import TELEMETRY_FILE
from tidegate_protocol.telemetry import LatencyDigest, LoadSample, decode

RUN_TIMEOUT_S = 280


def test_a_short_run_loses_nothing_and_leaves_nothing_behind(tmp_path_factory: pytest.TempPathFactory) -> None:
    # Short names: sockets are made in there, and the path of one has at most 107 characters.
    temporary, out = tmp_path_factory.mktemp("t"), tmp_path_factory.mktemp("out")
    command = [
        *(sys.executable, "-m", "tidegate_cli", "experiment", "ews-burst", "--backend", "rabbitmq"),
        *("--policy", "none", "--scale", "0.05", "--duration", "28", "--burst-at", "26"),
        *("--sdk", "4", "--json", "--out", str(out)),
    ]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    # On a busy machine the run may not count as a measurement; it loses nothing all the same.
    assert run.returncode in (ExitCode.OK, ExitCode.INVALID_RUN), run.stdout + run.stderr
    result = json.loads(run.stdout)
    assert (result["lost"], result["duplicates"], result["out_of_order"]) == (0, 0, 0)
    assert result["deliveries"] > 1_000
    assert result["backend"] == "rabbitmq"
    assert result["valid"] is (run.returncode == ExitCode.OK)
    # The last topic registers after 15 s; where the machine kept it waiting until the burst, the run says so.
    placed = sorted(topic for held in result["placement"].values() for topic in held)
    assert placed == list(range(1, 16)) or any("no place yet" in why for why in result["invalid_because"]), placed
    assert {path.name for path in out.iterdir()} >= {"result.json", "samples.csv", "decisions.jsonl", "deliveries.csv"}
    assert list(temporary.iterdir()) == []
    # The brokers' own telemetry, and what all clients counted.
    records = [decode(line) for line in (out / TELEMETRY_FILE).read_bytes().splitlines()]
    received = sum(record.received for record in records if isinstance(record, LatencyDigest))
    assert received == result["deliveries"]
    assert {record.broker for record in records if isinstance(record, LoadSample)} >= {"b0", "b1", "b2", "b3"}
