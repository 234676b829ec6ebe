"""The link conditioner of one broker: a TCP proxy that makes loopback behave like that broker's network.

All connections of the broker go through it: clients (`client`), other brokers (`link`), what the broker itself sends to
others (`to:<broker>`), and, beside the lanes, control messages (`control`, `control:<head>`). The rest shares the
broker's two lanes, uplink and downlink (`shaping.py`), and each listener has a delay of its own. It can be changed,
stalled, cut and reset while it runs, by commands on a Unix socket (`conditioner_client.py`).

It moves bytes, knows no AMQP, and never drops, doubles or reorders a byte of a connection that lives. Memory per
connection is bounded: a flow whose bytes do not get out stops reading, so the sender feels it as it would a full
network.

Run as `python -m tidegate_embedded.conditioner FILE.json…` (see `ConditionerConfig`). One process can be the
conditioner of several brokers, each with doors, lanes and a control socket of its own: it wakes up once for what is due
on any of them, which on few processors is most of what a conditioner costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from .proxy import Listener, ListenerConfig, Pump

COMMAND_BYTES_MAX: Final = 64 * 1024
VERBS: Final = ("set_delay", "stall", "resume", "cut", "restore", "reset")
"""Commands that hold for one listener, or for all."""
COMMANDS: Final = ("set_bandwidth", *VERBS, "stats")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConditionerConfig:
    """Everything a conditioner is told at its start."""

    broker: str
    host: str
    control: str
    uplink_bytes_per_s: float | None
    downlink_bytes_per_s: float | None
    listeners: tuple[ListenerConfig, ...]

    def to_json(self) -> str:
        """The form of the file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ConditionerConfig:
        """Read the form of the file."""
        fields = json.loads(text)
        return cls(**fields | {"listeners": tuple(ListenerConfig(**listener) for listener in fields["listeners"])})


class Conditioner:
    """All listeners and both lanes of one broker, and the commands on them."""

    def __init__(self, config: ConditionerConfig) -> None:
        self._uplink = Pump(config.uplink_bytes_per_s)
        self._downlink = Pump(config.downlink_bytes_per_s)
        # Control messages have lanes of their own, without a limit, beside those that data shares.
        lanes = {True: (self._uplink, self._downlink), False: (Pump(None), Pump(None))}
        self._listeners = {
            listener.name: Listener(listener, config.host, *lanes[listener.shaped]) for listener in config.listeners
        }

    async def open(self) -> None:
        """Open all doors."""
        for listener in self._listeners.values():
            await listener.open()

    def close(self) -> None:
        """Close all doors."""
        for listener in self._listeners.values():
            listener.close()

    async def command(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do one command; raise `ValueError` or `TypeError` for one that makes no sense."""
        do = _field(command, "do")
        if do == "set_bandwidth":
            lanes = {"uplink": self._uplink, "downlink": self._downlink}
            pump = _known("lane", _field(command, "lane"), lanes)
            pump.lane.set_rate(_positive_or_none(_field(command, "bytes_per_s")), time.monotonic())
            pump.run()
            return {}
        if do == "stats":
            return self._stats()
        if do not in VERBS:
            raise ValueError(f"unknown command {do!r}: use one of {', '.join(COMMANDS)}")
        for listener in self._chosen(command.get("listener")):
            if do == "set_delay":
                listener.delay_s = _not_negative(_field(command, "delay_s"))
            elif do in ("stall", "resume"):
                listener.is_stalled = do == "stall"
                listener.steer()
            elif do == "cut":
                listener.close()
            elif do == "restore":
                await listener.open()
            else:
                listener.end_connections(reset=True)
        return {}

    def _chosen(self, name: str | None) -> Iterator[Listener]:
        if name is None:
            yield from self._listeners.values()
        else:
            yield _known("listener", name, self._listeners)

    def _stats(self) -> dict[str, Any]:
        lanes = {"uplink": self._uplink.lane, "downlink": self._downlink.lane}
        return {
            name: {"bytes_per_s": lane.bytes_per_s, "bytes_total": lane.passed_bytes, "queued_bytes": lane.queued_bytes}
            for name, lane in lanes.items()
        } | {
            "listeners": {
                listener.name: {
                    "is_open": listener.is_open,
                    "is_stalled": listener.is_stalled,
                    "delay_s": listener.delay_s,
                    "connections": listener.connections,
                    "accepted_total": listener.accepted_total,
                }
                for listener in self._listeners.values()
            }
        }


def _field(command: dict[str, Any], name: str) -> Any:
    if not isinstance(command, dict) or name not in command:
        raise ValueError(f"a command is an object with {name!r}")
    return command[name]


def _known(what: str, name: object, things: Mapping[str, T]) -> T:
    if not isinstance(name, str) or name not in things:
        raise ValueError(f"there is no {what} {name!r}: use one of {', '.join(things)}")
    return things[name]


def _positive_or_none(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"bytes_per_s must be above 0, or null for no limit, not {value!r}")
    return float(value)


def _not_negative(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"delay_s must be 0 or more, not {value!r}")
    return float(value)


async def _serve_commands(conditioner: Conditioner, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError), contextlib.closing(writer):
        while line := await reader.readline():
            try:
                answer = {"ok": await conditioner.command(json.loads(line))}
            except (ValueError, TypeError, OSError) as error:
                answer = {"error": {"problem": str(error)}}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()


@asynccontextmanager
async def conditioning(config: ConditionerConfig) -> AsyncIterator[None]:
    """Serve one broker. The control socket appears last: a client that can connect to it finds everything open."""
    conditioner = Conditioner(config)
    with contextlib.closing(conditioner):
        await conditioner.open()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(config.control)
        control = await asyncio.start_unix_server(
            lambda reader, writer: _serve_commands(conditioner, reader, writer), config.control, limit=COMMAND_BYTES_MAX
        )
        with contextlib.closing(control):
            yield


async def run(configs: Sequence[ConditionerConfig]) -> None:
    """Serve all of these brokers until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with AsyncExitStack() as stack:
        for config in configs:
            await stack.enter_async_context(conditioning(config))
        await ended.wait()


def main() -> None:
    """Entry point of the process; uvloop halves its CPU, and is used where it is installed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    configs = [ConditionerConfig.from_json(Path(file).read_text()) for file in sys.argv[1:]]
    try:
        import uvloop
    except ImportError:
        asyncio.run(run(configs))
    else:
        uvloop.run(run(configs))


if __name__ == "__main__":
    main()
