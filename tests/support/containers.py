"""RabbitMQ in a Docker container, in place of a node that the embedded cluster starts itself."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from typing import Final

from testcontainers.core.container import DockerContainer

from tidegate_brokers.embedded.nodes import wait_until_ready

IMAGE: Final = "rabbitmq:4-management"
_PLUGINS: Final = (
    "rabbitmq_management",
    "rabbitmq_prometheus",
    "rabbitmq_shovel",
    "rabbitmq_shovel_management",
    "rabbitmq_federation",
    "rabbitmq_stream",
)


def docker_problem() -> str | None:
    """Why no container can be started here, or None if one can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    answer = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    return None if answer.returncode == 0 else "no Docker engine answers"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
