"""Prometheus and its promtool for tests: the ones on PATH, or else those of the image that docker-compose.yml uses."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.containers import docker_problem
from tests.support.waiting import eventually
from tidegate_embedded.ports import Ports

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
        mount = ["--volume", f"{directory}:/settings:ro", "--workdir", "/settings", "--entrypoint", "promtool"]
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


def selected(expression: str, label: str) -> list[str]:
    """What an expression compares a label with: patterns, for `=` and for `=~`."""
    found = re.findall(rf'\b{label}=(~?)"([^"]*)"', expression)
    return [value if matched else re.escape(value) for matched, value in found]


def alternatives(pattern: str) -> list[str]:
    """The patterns that `a|b-(c|d)` consists of: `a`, `b-c` and `b-d`."""
    group = re.search(r"\(([^()]*)\)", pattern)
    if group is None:
        return pattern.split("|")
    before, after = pattern[: group.start()], pattern[group.end() :]
    whole, _, before = before.rpartition("|")
    after, _, rest = after.partition("|")
    inner = [f"{before}{each}{after}" for each in group[1].split("|")]
    return [*(whole.split("|") if whole else []), *inner, *(alternatives(rest) if rest else [])]


def metrics_in(expression: str) -> set[str]:
    """The names of the metrics that a query uses."""
    text = _STRINGS.sub('""', expression)
    for pattern in (_LABELS, _NUMBERS):
        text = pattern.sub(" ", text)
    return {name for name in _NAMES.findall(text) if name not in _WORDS and not name.startswith("$")}


# A running Prometheus


@dataclass(frozen=True, slots=True)
class Scraped:
    """One target."""

    job: str
    address: str
    cluster: str
    broker: str
    role: str


class Prometheus:
    """Asks a running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)

    async def ask(self, path: str, **parameters: str | float) -> Any:
        """The data of an answer; an error of Prometheus is one of ours."""
        answer = await self._http.get(f"/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, f"{parameters}: {answer.text}"
        return answer.json()["data"]

    async def ready(self) -> bool:
        """Whether it answers."""
        try:
            return (await self._http.get("/-/ready")).status_code == 200
        except httpx.TransportError:
            return False

    async def value(self, query: str, time_s: float | None = None) -> float:
        """The first value of a query, now or then; 0 where there is none."""
        when = {} if time_s is None else {"time": time_s}
        found = (await self.ask("query", query=query, **when))["result"]
        return float(found[0]["value"][1]) if found else 0.0

    async def close(self) -> None:
        await self._http.aclose()


@asynccontextmanager
async def prometheus(targets: Iterable[Scraped], directory: Path) -> AsyncIterator[Prometheus]:
    """A Prometheus that scrapes these targets every second, with the rules of `deploy`; gone afterwards."""
    native = shutil.which("prometheus")
    problem = docker_problem() if native is None else None
    if problem is not None:
        pytest.skip(f"there is no prometheus (Debian: package prometheus), and no Docker to run one in: {problem}")
    home = directory / "prometheus"
    shutil.copytree(RULES, home / "rules")
    (home / "prometheus.yml").write_text(yaml.safe_dump(_configuration(targets)))
    with closing(Ports()) as ports:
        port = ports.free()
    options = [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    if native is not None:
        command = [native, f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data", *options]
    else:
        options += ["--config.file=/settings/prometheus.yml", "--storage.tsdb.path=/tmp/data"]
        user = ["--user", f"{os.getuid()}:{os.getgid()}", "--workdir", "/tmp"]
        mount = ["--network", "host", "--volume", f"{home}:/settings:ro"]
        command = ["docker", "run", "--rm", "--init", *user, *mount, IMAGE, *options]
    with (home / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    made = Prometheus(f"http://127.0.0.1:{port}")
    try:
        await eventually(made.ready, f"Prometheus answers; see {home / 'log'}", 60)
        yield made
    finally:
        await made.close()
        process.terminate()
        await process.wait()


def _configuration(targets: Iterable[Scraped]) -> dict[str, Any]:
    jobs: dict[str, list[dict[str, Any]]] = {}
    for one in targets:
        labels = {"cluster": one.cluster, "broker": one.broker, "role": one.role}
        jobs.setdefault(one.job, []).append({"targets": [one.address], "labels": labels})
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules/*.yml"],
        "scrape_configs": [{"job_name": job, "static_configs": static} for job, static in jobs.items()],
    }
