"""Finding RabbitMQ on this machine: the server's own script, its version, its plugins.

The `rabbitmq-server` on PATH is a wrapper that switches to the user rabbitmq, which can't write into our private
directory; so we look for the script that the wrapper calls.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate_brokers.errors import RabbitNotInstalled, RabbitTooOld

OLDEST: Final = (3, 10)
PLUGINS: Final = (
    "rabbitmq_management",
    "rabbitmq_prometheus",
    "rabbitmq_shovel",
    "rabbitmq_shovel_management",
    "rabbitmq_federation",
    "rabbitmq_stream",
)
CANDIDATES: Final = (
    "/usr/lib/rabbitmq/bin/rabbitmq-server",
    "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server",
    "/opt/rabbitmq/sbin/rabbitmq-server",
    "/opt/homebrew/opt/rabbitmq/sbin/rabbitmq-server",
    "/usr/local/opt/rabbitmq/sbin/rabbitmq-server",
)


@dataclass(frozen=True, slots=True)
class Installation:
    """A RabbitMQ that can be started."""

    server: Path
    version: str


def find_installation(
    candidates: Iterable[str] = CANDIDATES, plugins: Iterable[str] = PLUGINS, erlang: str = "erl"
) -> Installation:
    """The first usable RabbitMQ among `candidates` (paths, with wildcards); raise what is wrong otherwise."""
    server = next((path for candidate in candidates for path in _expand(candidate) if path.is_file()), None)
    if server is None:
        raise RabbitNotInstalled("RabbitMQ is not installed on this machine")
    if shutil.which(erlang) is None:
        raise RabbitNotInstalled(f"RabbitMQ is at {server}, but Erlang ('{erlang}') is not on PATH")
    directory = server.resolve().parent.parent / "plugins"
    version = _version_of("rabbit", directory)
    if version is None:
        raise RabbitNotInstalled(f"RabbitMQ at {server} has no plugins directory beside it")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        raise RabbitTooOld(str(server), version, ".".join(map(str, OLDEST)))
    for plugin in plugins:
        if _version_of(plugin, directory) is None:
            raise RabbitNotInstalled(f"RabbitMQ at {server} comes without the plugin {plugin}")
    return Installation(server, version)


def _expand(candidate: str) -> list[Path]:
    if "*" not in candidate:
        return [Path(candidate)]
    return sorted(Path("/").glob(candidate.lstrip("/")), reverse=True)


def _version_of(application: str, directory: Path) -> str | None:
    """Plugins are directories or .ez archives named `<application>-<version>`."""
    for path in sorted(directory.glob(f"{application}-*"), reverse=True):
        found = re.fullmatch(re.escape(application) + r"-(\d+\.\d+[^/]*?)(\.ez)?", path.name)
        if found:
            return found[1]
    return None
