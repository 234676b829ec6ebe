"""Commands to a running link conditioner, for fault tests and experiments.

Every command takes an optional `listener` (`"client"`, `"link"`, `"control"`, `"to:<broker>"`, `"control:<head>"`);
without one it holds for all of them. A command has taken effect when the call returns.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate_brokers.errors import ConditionerRefused, EmbeddedError

ANSWER_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class LaneStats:
    """One lane: its bandwidth (None: unlimited), what has passed, what waits."""

    bytes_per_s: float | None
    bytes_total: int
    queued_bytes: int


@dataclass(frozen=True, slots=True)
class ListenerStats:
    """One listener."""

    is_open: bool
    is_stalled: bool
    delay_s: float
    connections: int
    accepted_total: int


@dataclass(frozen=True, slots=True)
class ConditionerStats:
    """What a conditioner has done so far."""

    uplink: LaneStats
    downlink: LaneStats
    listeners: dict[str, ListenerStats]

    @property
    def connections(self) -> int:
        """Over all listeners."""
        return sum(listener.connections for listener in self.listeners.values())


class ConditionerClient:
    """Talks to the conditioner of one broker; each command is a connection of its own, so nothing needs closing."""

    def __init__(self, broker: str, control: Path) -> None:
        self.broker = broker
        self.control = control

    async def set_uplink(self, bytes_per_s: float | None) -> None:
        """Bandwidth of what leaves the broker; None lifts the limit."""
        await self._ask({"do": "set_bandwidth", "lane": "uplink", "bytes_per_s": bytes_per_s})

    async def set_downlink(self, bytes_per_s: float | None) -> None:
        """Bandwidth of what arrives at the broker; None lifts the limit."""
        await self._ask({"do": "set_bandwidth", "lane": "downlink", "bytes_per_s": bytes_per_s})

    async def set_delay(self, delay_s: float, listener: str | None = None) -> None:
        """One-way delay, from the next byte on; order is kept."""
        await self._ask({"do": "set_delay", "delay_s": delay_s, "listener": listener})

    async def stall(self, listener: str | None = None) -> None:
        """Keep connections and accept new ones, but move nothing."""
        await self._ask({"do": "stall", "listener": listener})

    async def resume(self, listener: str | None = None) -> None:
        """End a stall; nothing that was held is lost."""
        await self._ask({"do": "resume", "listener": listener})

    async def cut(self, listener: str | None = None) -> None:
        """Close all connections and refuse new ones."""
        await self._ask({"do": "cut", "listener": listener})

    async def restore(self, listener: str | None = None) -> None:
        """Accept connections again after a cut."""
        await self._ask({"do": "restore", "listener": listener})

    async def reset(self, listener: str | None = None) -> None:
        """Reset (RST) all current connections; new ones are accepted."""
        await self._ask({"do": "reset", "listener": listener})

    async def stats(self) -> ConditionerStats:
        """Bytes, queues and connections."""
        answer = await self._ask({"do": "stats"})
        return ConditionerStats(
            uplink=LaneStats(**answer["uplink"]),
            downlink=LaneStats(**answer["downlink"]),
            listeners={name: ListenerStats(**fields) for name, fields in answer["listeners"].items()},
        )

    async def _ask(self, command: dict[str, object]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self.control)
                try:
                    writer.write(json.dumps(command).encode() + b"\n")
                    line = await reader.readline()
                finally:
                    writer.close()
            answer = json.loads(line)
        except (OSError, TimeoutError, ValueError) as error:
            problem = f"the link conditioner of {self.broker} does not answer ({error!r})"
            raise EmbeddedError(problem, "read its log") from None
        if "error" in answer:
            raise ConditionerRefused(self.broker, answer["error"]["problem"])
        result: dict[str, Any] = answer["ok"]
        return result
