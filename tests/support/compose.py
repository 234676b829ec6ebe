"""docker-compose.yml as a test uses it: a project and ports of its own, so that it meets no other."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

from tests.support.waiting import eventually
from tidegate_embedded.ports import Ports

ROOT: Final = Path(__file__).parents[2]
IMAGE: Final = "tidegate:test"
EDGES: Final = ("edge-1", "edge-2", "edge-3", "edge-4")
BROKERS: Final = ("head", *EDGES)
SERVICES: Final = (*BROKERS, "prometheus")
"""All of a plain `up` but Grafana, whose image is large and not needed here; RabbitMQs come along."""
PORT_VARIABLES: Final = (
    "TIDEGATE_HEAD_PORT", *(f"TIDEGATE_EDGE_{number}_PORT" for number in range(1, 5)), "TIDEGATE_MANAGEMENT_PORT",
    "TIDEGATE_PROMETHEUS_PORT", "TIDEGATE_GRAFANA_PORT",
)  # fmt: skip


class Failed(AssertionError):
    """A docker command that did not end as it should."""


async def run(*command: str, environ: dict[str, str] | None = None, check: bool = True) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=os.environ | (environ or {}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    code = process.returncode or 0
    if check and code:
        raise Failed(f"{' '.join(command)} ended with {code}:\n{out.decode()}\n{err.decode()[-4000:]}")
    return code, out.decode(), err.decode()


async def build() -> None:
    """The image, from what is here; quick where nothing has changed."""
    await run("docker", "build", "-q", "-f", "deploy/images/Dockerfile", "--target", "tidegate", "-t", IMAGE, ".")


class Project:
    """One launch of docker-compose.yml. Its ports are reserved until it is started or left; `down` is the caller's."""

    def __init__(self, **settings: str) -> None:
        self.name = f"tidegate-test-{secrets.token_hex(3)}"
        self._ports = Ports()
        ports = {variable: str(self._ports.free()) for variable in PORT_VARIABLES}
        self.settings = {"COMPOSE_PROJECT_NAME": self.name, "TIDEGATE_IMAGE": IMAGE, **ports, **settings}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ports.close()

    async def compose(self, *arguments: str, check: bool = True) -> tuple[int, str, str]:
        return await run("docker", "compose", *arguments, environ=self.settings, check=check)

    async def up(self, *services: str) -> None:
        """Start, and return when all is healthy."""
        self._ports.close()
        try:
            await self.compose("up", "-d", "--wait", *services)
        except Failed:
            print(await self.logs())
            raise

    async def logs(self, *services: str) -> str:
        _, out, _ = await self.compose("logs", "--no-color", "--tail", "40", *services, check=False)
        return out

    async def url(self, user: str) -> str:
        """The address of the head for an account, from this machine."""
        _, out, _ = await self.compose("run", "--rm", "-T", "setup", "url", user)
        return out.strip()

    def port(self, variable: str) -> int:
        return int(self.settings[variable])

    async def kill(self, service: str) -> None:
        """`docker compose kill`: Docker takes it as a wish, and leaves the container down."""
        await self.compose("kill", service)
        assert not await self.started(service)

    async def crash(self, service: str) -> None:
        """End everything in a container from within, and wait until Docker has started it again."""
        before = await self.started(service)
        await self.compose("exec", "-T", service, "sh", "-c", "kill -9 -1", check=False)
        await self.started_again(service, before)

    async def started_again(self, service: str, before: str) -> None:
        """Wait until somebody has started it after `before`."""

        async def again() -> bool:
            return await self.started(service) not in (before, "")

        await eventually(again, f"{service} is started again")

    @asynccontextmanager
    async def keeper(self) -> AsyncIterator[None]:
        """deploy/compose/keeper.sh, running meanwhile."""
        process = await asyncio.create_subprocess_exec(
            ROOT / "deploy" / "compose" / "keeper.sh",
            env=os.environ | self.settings,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            assert f"watching over {self.name}" in (await process.stdout.readline()).decode()
            yield
        finally:
            # All that have the pipe's other end, which is read to its end, or else ours would stay open.
            os.killpg(process.pid, signal.SIGTERM)
            await process.communicate()

    async def healthy(self, *services: str) -> None:
        """Wait until containers say so."""

        async def all_are() -> bool:
            _, out, _ = await self.compose("ps", "-a", "--format", "json", check=False)
            found = {(one := json.loads(line))["Service"]: one["Health"] for line in out.splitlines() if line}
            return all(found.get(service) == "healthy" for service in services)

        await eventually(all_are, f"healthy: {services}")

    async def down(self) -> None:
        """Remove it with everything it has kept."""
        await self.compose("--profile", "*", "down", "-v", "--timeout", "5")

    async def leftovers(self) -> list[str]:
        """Containers, volumes and networks of this project."""
        label = f"label=com.docker.compose.project={self.name}"
        found: list[str] = []
        for kind in (["ps", "-aq"], ["volume", "ls", "-q"], ["network", "ls", "-q"]):
            _, out, _ = await run("docker", *kind, "--filter", label)
            found += out.split()
        return found

    async def started(self, service: str) -> str:
        """When its container was started; empty where it does not run."""
        _, container, _ = await self.compose("ps", "-aq", service, check=False)
        if not container.strip():
            return ""
        _, out, _ = await run(
            "docker", "inspect", "-f", "{{.State.Running}} {{.State.StartedAt}}", container.strip(), check=False
        )
        running, _, started = out.strip().partition(" ")
        return started if running == "true" else ""
