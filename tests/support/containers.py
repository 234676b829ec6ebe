"""RabbitMQ in a Docker container, in place of a node that the embedded cluster starts itself.

A container uses the host's network, so that its ports, and the addresses that one RabbitMQ knows of another, are the
same inside and outside.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from testcontainers.core.container import DockerContainer

from tidegate_embedded.installation import PLUGINS
from tidegate_embedded.nodes import BOOT_TIMEOUT_S, NodePorts, answers
from tidegate_protocol.form import BODY_BYTES_MAX

IMAGE: Final = "rabbitmq:4-management"
USER: Final = "tidegate"
_PID_FILE: Final = "/var/lib/rabbitmq/tidegate.pid"


def docker_problem() -> str | None:
    """Why no container can be started here, or None if one can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    answer = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    return None if answer.returncode == 0 else "no Docker engine answers"


class ContainerNode:
    """A `RabbitNode` that runs in a container; stopped and started again, it keeps its data and ports."""

    def __init__(
        self, name: str, ports: NodePorts, password: str, directory: Path,
        options: Mapping[str, object] | None = None, folder: Path | None = None, plugins: Sequence[str] = PLUGINS,
    ) -> None:  # fmt: skip
        """`options` of RabbitMQ, beside ours; `folder` is seen inside by the same path, for files that they name."""
        self.name = name
        self.host = "127.0.0.1"
        self.amqp_port = ports.amqp
        self.management_port = ports.management
        self.prometheus_port = ports.prometheus
        self.user = USER
        self.password = password
        self.configuration = directory / name / "rabbitmq.conf"
        self._plugins = plugins
        self._container = self._describe(ports, directory, options or {})
        if folder is not None:
            self._container.with_volume_mapping(str(folder), str(folder), "ro")
        self._created = False

    async def start(self) -> None:
        """Start, the first time by creating the container; return when AMQP and the management API answer."""
        if self._created:
            await asyncio.to_thread(self._container.get_wrapped_container().start)
        else:
            await asyncio.to_thread(self._container.start)
            self._created = True
        async with asyncio.timeout(BOOT_TIMEOUT_S):
            await answers(self)

    async def stop(self) -> None:
        """Stop RabbitMQ in good order. An image's first process need not pass signals on, so tell RabbitMQ itself."""
        container = self._container.get_wrapped_container()
        await asyncio.to_thread(container.exec_run, ["sh", "-c", f"kill -TERM $(cat {_PID_FILE})"])
        await asyncio.to_thread(container.wait, timeout=60)

    async def kill(self) -> None:
        container = self._container.get_wrapped_container()
        await asyncio.to_thread(container.kill)
        await asyncio.to_thread(container.wait)

    async def remove(self) -> None:
        """Stop for good, and remove the container with its data."""
        if self._created:
            await asyncio.to_thread(self._container.stop, force=True, delete_volume=True)

    def logs(self) -> str:
        out, err = self._container.get_logs()
        return (out + err).decode(errors="replace")

    def _describe(self, ports: NodePorts, directory: Path, more: Mapping[str, object]) -> DockerContainer:
        files = directory / self.name
        files.mkdir(parents=True)
        options: dict[str, object] = {
            "listeners.tcp.1": f"{self.host}:{ports.amqp}",
            "management.tcp.ip": self.host,
            "management.tcp.port": ports.management,
            "prometheus.tcp.ip": self.host,
            "prometheus.tcp.port": ports.prometheus,
            "stream.listeners.tcp.1": f"{self.host}:{ports.stream}",
            "default_user": self.user,
            "default_pass": self.password,
            "default_user_tags.administrator": "true",
            "default_user_tags.impersonator": "true",
            "max_message_size": BODY_BYTES_MAX,
            "collect_statistics_interval": 1000,
            "disk_free_limit.absolute": "50MB",
        }
        lines = (options | dict(more)).items()
        self.configuration.write_text("".join(f"{key} = {value}\n" for key, value in lines))
        (files / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")
        node = f"{self.name}@localhost"
        erlang = f"-sname {node} -start_epmd false -erl_epmd_port {ports.distribution}"
        return (
            DockerContainer(IMAGE)
            .with_kwargs(network_mode="host")
            .with_volume_mapping(str(self.configuration), "/etc/rabbitmq/conf.d/90-tidegate.conf", "ro")
            .with_volume_mapping(str(files / "enabled_plugins"), "/etc/rabbitmq/enabled_plugins", "ro")
            .with_env("RABBITMQ_NODENAME", node)
            .with_env("RABBITMQ_DIST_PORT", str(ports.distribution))
            .with_env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", erlang)
            .with_env("RABBITMQ_PID_FILE", _PID_FILE)
            .with_env("ERL_EPMD_PORT", "1")
        )
