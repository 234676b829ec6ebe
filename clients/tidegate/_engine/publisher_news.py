"""What a publisher tells its head by itself: that it is there, and what it sends.

The head uses both to know its load and the ways of publications. Publishing does not depend on either: it goes on while
the head's process is down. The publisher tells the head at which it publishes now.

The head's answer may say that links pass on the account of a publisher by now: publications name it from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from tidegate_protocol.messages import (
    TOPICS_PER_PUBLISHER_MAX,
    PublisherGoodbye,
    PublisherHello,
    PublisherReport,
    PublisherWelcome,
)

from .._core.config import Timeouts
from .._core.errors import TidegateError
from .._core.publishing import PublishingMachine
from .control import Control
from .runtime import Runtime

logger = logging.getLogger(__name__)

REPORT_S: Final = 1.0
"""How often a head hears what was published; it samples its load as often."""


class PublisherNews:
    """Two coroutines, one for each kind of news. `control` gives the way to the present head."""

    def __init__(
        self,
        runtime: Runtime,
        machine: PublishingMachine,
        lock: AbstractContextManager[object],
        timeouts: Timeouts,
        control: Callable[[], Control],
        name: str,
        account: str,
        on_settled: Callable[[], None],
    ) -> None:
        """`account`: whose connection it publishes by. `on_settled` is called after publications may have failed,
        without the lock.
        """
        self._on_settled = on_settled
        self.head: str | None = None
        """The head that greeted back last."""
        self._runtime = runtime
        self._machine = machine
        self._lock = lock
        self._timeouts = timeouts
        self._control = control
        self._name = name
        self._account = account
        self._greet_now = runtime.signal()
        self._report_now = runtime.signal()
        self._greeted = runtime.signal()
        self._reported = runtime.signal()
        self._closing = False

    def start(self) -> None:
        self._runtime.spawn(self._greet(), f"{self._name} hello")
        self._runtime.spawn(self._report(), f"{self._name} reports")

    def greet(self) -> None:
        """Say hello now: the head is another one, or RabbitMQ has refused a publication and the head knows why."""
        self._greet_now.set()

    async def close(self) -> None:
        """Say goodbye, and wait for that."""
        self._closing = True
        self._greet_now.set()
        self._report_now.set()
        await self._greeted.wait(self._timeouts.close_s)
        await self._reported.wait(self._timeouts.close_s)

    async def _greet(self) -> None:
        publisher = self._machine.publisher
        period_s = self._timeouts.hello_s
        while not self._closing:
            topics = tuple(list(self._machine.topics)[-TOPICS_PER_PUBLISHER_MAX:])
            with self._lock:
                round_trip_us = self._machine.round_trip_us()
            hello = PublisherHello(publisher=publisher, topics=topics, round_trip_us=round_trip_us)
            try:
                welcome = await self._control().request(hello, PublisherWelcome, self._timeouts.attempt_s)
                period_s = min(welcome.period_s, self._timeouts.hello_s)
                self.head = welcome.head
                with self._lock:
                    if welcome.checked_accounts:
                        self._machine.sign(self._account)
                    self._machine.restrict(welcome.publish)
                self._on_settled()
            except TidegateError as error:
                logger.debug(
                    "%s: cannot greet the head; publishing goes on, the greeting is repeated: %s", self._name, error
                )
            await self._greet_now.wait(period_s)
        try:
            # The head would forget us by itself three periods from now; this is only politer.
            await self._control().tell(PublisherGoodbye(publisher=publisher))
        except TidegateError as error:
            logger.debug(
                "%s: the head did not hear the goodbye; it forgets this publisher by itself: %s", self._name, error
            )
        self._greeted.set()

    async def _report(self) -> None:
        since = self._runtime.now()
        while not self._closing:
            await self._report_now.wait(REPORT_S)
            now = self._runtime.now()
            with self._lock:
                counts = self._machine.take_counts(TOPICS_PER_PUBLISHER_MAX)
                round_trip_us = self._machine.round_trip_us()
            if counts and now > since:
                report = PublisherReport(
                    publisher=self._machine.publisher,
                    elapsed_us=max(1, round((now - since) * 1e6)),
                    topics=tuple(counts),
                    round_trip_us=round_trip_us,
                )
                try:
                    await self._control().tell(report)
                except TidegateError as error:
                    logger.debug("%s: cannot report rates to the head; the next report follows: %s", self._name, error)
            since = now
        self._reported.set()
