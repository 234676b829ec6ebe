"""Trying again, a bounded number of times, with growing pauses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from .errors import Transient

PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 5.0

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Retries:
    """Counts failures in a row; `progressed` begins anew."""

    def __init__(self, retries_max: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._retries_max = retries_max
        self._sleep = sleep
        self._failures = 0

    def progressed(self) -> None:
        self._failures = 0

    def failed(self, error: Transient) -> None:
        """Pause before the next try, or raise `error` when there were enough."""
        self._failures += 1
        if self._failures > self._retries_max:
            error.add_note(f"given up after {self._failures} tries (connectRetries={self._retries_max})")
            raise error
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(self._failures - 1, 10))
        logger.info("try %d failed, the next in %g s: %s", self._failures, pause_s, error)
        self._sleep(pause_s)


def with_retries(work: Callable[[], T], retries_max: int) -> T:
    """Do `work`, again and again while RabbitMQ is away."""
    retries = Retries(retries_max)
    while True:
        try:
            return work()
        except Transient as error:
            retries.failed(error)
