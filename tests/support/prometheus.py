"""Prometheus and its promtool for tests: the ones on PATH, or else those of the image that docker-compose.yml uses."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.containers import docker_problem

IMAGE = "prom/prometheus:v3.5.3"
ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules"

RABBITMQ = frozenset(
    {
        "rabbitmq_alarms_file_descriptor_limit",
        "rabbitmq_alarms_free_disk_space_watermark",
        "rabbitmq_alarms_memory_used_watermark",
        "rabbitmq_connections",
        "rabbitmq_connections_opened_total",
        "rabbitmq_consumers",
        "rabbitmq_disk_space_available_bytes",
        "rabbitmq_disk_space_available_limit_bytes",
        "rabbitmq_erlang_scheduler_run_queue",
        "rabbitmq_global_messages_acknowledged_total",
        "rabbitmq_global_messages_delivered_total",
        "rabbitmq_global_messages_received_total",
        "rabbitmq_global_messages_redelivered_total",
        "rabbitmq_global_messages_unroutable_dropped_total",
        "rabbitmq_process_max_fds",
        "rabbitmq_process_open_fds",
        "rabbitmq_process_resident_memory_bytes",
        "rabbitmq_queue_messages",
        "rabbitmq_queue_messages_ready",
        "rabbitmq_queue_messages_unacked",
        "rabbitmq_queues",
        "rabbitmq_resident_memory_limit_bytes",
    }
)
"""Metrics of RabbitMQ itself that alerts and dashboards use; the test on a real cluster asks for each."""
PROMETHEUS = frozenset(
    {
        "ALERTS",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "scrape_duration_seconds",
        "scrape_samples_scraped",
        "up",
    }
)
"""What Prometheus adds, and what every process exports."""


def promtool(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool in a directory; skip where there is neither promtool nor Docker."""
    if shutil.which("promtool") is not None:
        command = ["promtool", *arguments]
    else:
        problem = docker_problem()
        if problem is not None:
            pytest.skip(f"there is no promtool (Debian: package prometheus), and no Docker to run one in: {problem}")
        mount = ["--volume", f"{directory}:/work:ro", "--workdir", "/work", "--entrypoint", "promtool"]
        command = ["docker", "run", "--rm", "--network", "none", *mount, IMAGE, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)


def alerts() -> list[dict[str, Any]]:
    """Every alerting rule."""
    return [rule for file in sorted(RULES.glob("*.yml")) for rule in _rules(yaml.safe_load(file.read_text()))]


def _rules(file: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in file["groups"]:
        yield from group["rules"]


_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_LABELS = re.compile(r"\{[^}]*\}|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_NAMES = re.compile(r"\b[a-zA-Z_:][a-zA-Z0-9_:]*\b(?!\s*\()")
_WORDS = frozenset({"and", "or", "unless", "offset", "bool", "by", "without", "on", "ignoring", "group_left", "inf"})
_NUMBERS = re.compile(r"\[[^\]]*\]|\boffset\s+\S+|\b\d\S*")


def metrics_in(expression: str) -> set[str]:
    """The names of the metrics that a query uses."""
    text = _STRINGS.sub('""', expression)
    for pattern in (_LABELS, _NUMBERS):
        text = pattern.sub(" ", text)
    return {name for name in _NAMES.findall(text) if name not in _WORDS and not name.startswith("$")}
