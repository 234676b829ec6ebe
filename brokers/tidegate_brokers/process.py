"""A broker process from start to end, the same for heads and edges.

Start: HTTP first (so that /healthz answers while RabbitMQ is awaited), then RabbitMQ's version and plugins, then the
control channel (no other process of the same name may run), then the data plane; the agent begins when all that stands.
End: take no more requests, finish those in progress within bounds, say goodbye, close. What differs is in `Parts`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, disable_created_metrics

from tidegate_agents.machine import StopRequested

from .errors import EX_SOFTWARE, BrokerError, RabbitUnreachable
from .observe.counters import BrokerMetrics
from .observe.http import HttpServer
from .observe.logs import set_up_logging
from .observe.telemetry.parts import Telemetry
from .plane.worker import PlaneWorker
from .rabbit.connection import ConnectionKeeper
from .rabbit.control import ControlChannel
from .rabbit.management import Management
from .rabbit.preflight import check_rabbitmq
from .runtime import Runtime, measure_lag
from .settings.options import BrokerConfig
from .settings.reading import load_config

log = logging.getLogger(__name__)

GOODBYE_TIMEOUT_S: Final = 2.0
C = TypeVar("C", bound=BrokerConfig)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a head or an edge is made of."""

    runtime: Runtime
    worker: PlaneWorker
    control: ControlChannel
    shovels: bool
    lacking: Callable[[], list[str]]
    """What readiness lacks besides connections and data plane."""
    control_required: bool
    """Whether the process can't begin without its control channel. An edge can: RabbitMQ delivers anyway."""
    telemetry: Telemetry
    others: tuple[ControlChannel, ...] = ()
    senses: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
    """What runs besides, once the agent works: sensing, probes, the watch for alarms."""


def new_metrics(role: str, config: BrokerConfig) -> BrokerMetrics:
    """Metrics on a registry of their own, with those of the process and the platform."""
    # A series more for each counter, which nobody asks for.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return BrokerMetrics(registry, role, config.name, config.cluster)


class BrokerProcess:
    """Runs the parts until told to stop."""

    def __init__(self, config: BrokerConfig, management: Management, parts: Parts, metrics: BrokerMetrics) -> None:
        self._config = config
        self._management = management
        self._parts = parts
        self._metrics = metrics
        self._stopping = False
        self._preflight_done = False
        self._takes_requests = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.http = HttpServer(metrics.registry, self.reasons)

    def reasons(self) -> list[str]:
        """What keeps this broker from being ready; nothing when it is."""
        parts = self._parts
        if self._stopping:
            return ["stopping"]
        if not self._preflight_done:
            return ["RabbitMQ has not been looked at yet"]
        found = [
            str(keeper.problem or f"{keeper.label}: not connected")
            for keeper in self._keepers()
            if not keeper.up.is_set()
        ]
        if not parts.worker.asserted.is_set():
            found.append(parts.worker.problem or "the data plane is being set up")
        if not self._takes_requests:
            found.append("requests are not taken yet")
        return found + parts.lacking()

    def _keepers(self) -> tuple[ConnectionKeeper, ...]:
        return self._parts.worker.keeper, self._parts.control.keeper

    async def run(self, stop: asyncio.Event) -> None:
        """Start, work until `stop` is set, end in order."""
        await self.http.start(self._config.http_host, self._config.http_port, self._config.http_tls)
        try:
            if await _unless_stopped(self._start(), stop):
                log.info("%s is working", self._config.name)
                waiter: asyncio.Future[Any] = asyncio.create_task(stop.wait())
                await asyncio.wait({waiter, self._failed}, return_when=asyncio.FIRST_COMPLETED)
                waiter.cancel()
                await self._finish()
        finally:
            await self._close()
        if self._failed.done():
            self._failed.result()

    async def _start(self) -> None:
        timeout_s = self._config.startup_timeout_s
        parts = self._parts
        await check_rabbitmq(self._management, timeout_s, shovels=parts.shovels)
        self._preflight_done = True
        self._spawn(measure_lag(self._metrics))
        for keeper in self._keepers():
            self._spawn(keeper.run())
        await parts.worker.keeper.wait_up(timeout_s)
        try:
            await parts.control.keeper.wait_up(timeout_s)
        except RabbitUnreachable as error:
            if parts.control_required:
                raise
            log.warning("cannot reach the head; working without it and trying on: %s", error)
        for other in parts.others:
            self._spawn(other.keeper.run())
        self._spawn(parts.worker.run())
        self._spawn(parts.telemetry.run())
        await parts.worker.wait_asserted(timeout_s)
        # Only now: the agent must know what its predecessor left before anybody asks it for anything.
        await parts.control.start_taking()
        self._takes_requests = True
        for sense in parts.senses:
            self._spawn(sense())

    async def _finish(self) -> None:
        """Stop taking requests, finish what is in progress, say goodbye."""
        parts = self._parts
        self._stopping = True
        log.info("stopping")
        try:
            async with asyncio.timeout(self._config.shutdown_timeout_s):
                await parts.control.stop_taking()
                await parts.runtime.finish()
        except TimeoutError:
            log.warning(
                "work is still in progress after %g s; stopping without waiting for it", self._config.shutdown_timeout_s
            )
        parts.runtime.post(StopRequested())
        try:
            async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                for channel in (parts.control, *parts.others):
                    await channel.flush()
        except TimeoutError:
            log.warning("the last control messages were not confirmed; they may be lost")
        await parts.telemetry.finish()

    async def _close(self) -> None:
        self._stopping = True
        self._parts.runtime.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._management.close()
        await self.http.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """These tasks run as long as the process: one that ends by itself is a bug and ends the process."""
        if task.cancelled() or self._failed.done():
            return
        error = task.exception()
        if error is not None:
            self._failed.set_exception(error)


async def _unless_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Do the work, or leave it when told to stop; say whether it was done."""
    task, waiter = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return False
    task.result()
    return True


# The command line of a process


def main(model: type[C], run: Callable[[C, asyncio.Event], Coroutine[Any, Any, None]], role: str) -> int:
    """Read the configuration, run, and return the exit code; one line on stderr says why it is not 0.

    For launchers, which write a file. People use `tidegate head` and `tidegate edge`, with a flag for every option.
    """
    parser = argparse.ArgumentParser(prog=f"tidegate_brokers.{role}", description=model.__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with options")
    try:
        config = load_config(model, parser.parse_args().config, os.environ)
        set_up_logging(config.log_level, config.log_format)
        return run_until_signalled(run, config)
    except BrokerError as error:
        sys.stderr.write(f"tidegate {role}: {error}\n")
        return error.exit_code


def run_until_signalled(run: Callable[[C, asyncio.Event], Coroutine[Any, Any, None]], config: C) -> int:
    """Run on uvloop where there is one; SIGTERM and SIGINT set the event that ends it."""

    async def signalled() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await run(config, stop)

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(signalled())
    except BrokerError:
        raise
    except Exception:
        log.critical("a bug of ours ended this process", exc_info=True)
        return EX_SOFTWARE
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
