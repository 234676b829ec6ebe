"""The rules that a broker goes by, read from a file and read again when it changes.

Invariants:

- a process does not start with a file that it can't read: nobody who wrote rules gets a broker without them;
- later on, the last rules that could be read hold. A file that is gone, or is none, is logged once and shown by a
  metric until it is in order;
- a change is seen within `LOOK_PERIOD_S`, or at once on SIGHUP. Files are looked at and not watched: they may be on a
  volume of a container or a mounted secret, where the system tells of no change.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from typing import Final

from tidegate_agents.machine import RulesSeen
from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.rights import RULES_BYTES_MAX, Rules, read_rules

from ..errors import ConfigurationError
from ..observe.counters import BrokerMetrics

log = logging.getLogger(__name__)

LOOK_PERIOD_S: Final = 1.0
OPTION: Final = "rules_file"

Stamp = tuple[int, int, int]
"""Which file it is, when it was written, and its size."""


class RulesFile:
    """The rules of one broker; none and nothing to look at where there is no file."""

    def __init__(self, path: str | None, metrics: BrokerMetrics) -> None:
        """Read the file; raise `ConfigurationError` if that fails."""
        self._path = path
        self._metrics = metrics
        self._stamp: Stamp | None = None
        self._problem: str | None = None
        self.rules: Rules | None = None
        if path is not None:
            self._stamp = _stamp(path)
            self.rules = _read(path)
            metrics.ruled_accounts.set(len(self.rules))

    async def watch(self, post: Callable[[RulesSeen], None]) -> None:
        """Tell of other rules as soon as the file holds some, until cancelled."""
        if self._path is None:
            return
        loop, wanted = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_signal_handler(signal.SIGHUP, wanted.set)
        except (RuntimeError, ValueError):
            log.debug("not in the main thread: rules are read again without a signal only")
        while True:
            try:
                async with asyncio.timeout(LOOK_PERIOD_S):
                    await wanted.wait()
            except TimeoutError:
                pass
            if await self._look(self._path, anyway=wanted.is_set()):
                assert self.rules is not None
                post(RulesSeen(self.rules))
            wanted.clear()

    async def _look(self, path: str, anyway: bool) -> bool:
        """Whether the file holds other rules than before, which are ours now."""
        try:
            stamp = _stamp(path)
            if stamp == self._stamp and not anyway:
                return False
            rules = await asyncio.to_thread(_read, path)
        except ConfigurationError as error:
            self._troubled(error)
            return False
        self._stamp, self._problem = stamp, None
        self._metrics.rules_up.set(1)
        changed, self.rules = rules != self.rules, rules
        self._metrics.ruled_accounts.set(len(rules))
        return changed

    def _troubled(self, error: ConfigurationError) -> None:
        self._metrics.rules_up.set(0)
        if self._problem != error.problem:
            log.error("the rules can't be read again; those from before hold: %s", error)
        self._problem = error.problem


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: str) -> Rules:
    try:
        with open(path, "rb") as stream:
            content = stream.read(RULES_BYTES_MAX + 1)
        return read_rules(content)
    except OSError as error:
        raise _unreadable(path, error) from None
    except MalformedMessage as error:
        raise ConfigurationError(OPTION, path, str(error), "have tidegate access prepare write it anew") from None


def _unreadable(path: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(OPTION, path, f"can't be read: {error.strerror}", "have tidegate access prepare write it")
