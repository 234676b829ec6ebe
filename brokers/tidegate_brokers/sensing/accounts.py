"""What each account sends, as RabbitMQ counts it: bytes of its connections, messages of its channels, and how many of
these no queue took. From the management API, because Prometheus' metrics name no users.

Invariants:

- two requests per `ACCOUNTS_EVERY_S`, or up to `ACCOUNTS_SELDOM_S` where they take long, and at most `ROWS_MAX` rows
  each, those with the highest rates first: what is cut off sends less than what is not;
- rates are RabbitMQ's own, over its last two samples. A connection that is younger has none yet: its bytes count from
  its beginning;
- RabbitMQ does not tell to which exchange a channel publishes. Publishers of ours use a channel without consumers, and
  control messages go over channels with some: only the former can confirm what a publisher reports;
- a period in which they can't be read gives nothing, never zeros; what is older than `MEASURED_AGE_MAX_S` is forgotten.

Connections that live for less than RabbitMQ's sample of five seconds are not seen.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tidegate_agents.load.metrics import AccountSample

from ..errors import RabbitError
from ..rabbit.management import Json, Senders

log = logging.getLogger(__name__)

ACCOUNTS_EVERY_S: Final = 5.0
MEASURED_AGE_MAX_S: Final = 30.0
ROWS_MAX: Final = 500
ACCOUNTS_MAX: Final = 1_000
YOUNG_S: Final = 10.0
"""A connection has no rate before the second sample of RabbitMQ."""

PERIOD_FACTOR: Final = 20.0
"""The next question waits so many times as long as the last one took, …"""
ACCOUNTS_SELDOM_S: Final = 15.0
"""… but no longer than this: one slow answer must not blind a head to a flood."""

Ask = Callable[[int], Awaitable[Senders]]
"""The connections and the channels that send most, so many at most."""


class AccountWatch:
    """Keeps what was last measured of each account."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._measured: dict[str, AccountSample] | None = None
        self._moment_s = float("-inf")
        self._news = False
        self.complete = True
        """Whether everybody who sends is among what was measured."""
        self._problem: str | None = None

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                found = await self._ask(ROWS_MAX)
            except RabbitError as error:
                if self._problem is None:
                    log.warning("cannot read what accounts send; floods of plain clients are not noticed: %s", error)
                self._problem = str(error)
            else:
                self._problem = None
                self.taken(found, loop.time(), time.time())
            took_s = loop.time() - began_s
            await asyncio.sleep(min(max(ACCOUNTS_EVERY_S, PERIOD_FACTOR * took_s), ACCOUNTS_SELDOM_S))

    def taken(self, found: Senders, now_s: float, wall_s: float) -> None:
        """Take over what RabbitMQ has answered."""
        self._measured = {sample.account: sample for sample in account_samples(found, wall_s)}
        self._moment_s, self._news, self.complete = now_s, True, found.complete

    def measured(self, now_s: float) -> dict[str, AccountSample] | None:
        """What is known of each account; None while nothing is."""
        return self._measured if now_s - self._moment_s <= MEASURED_AGE_MAX_S else None

    def take_news(self) -> tuple[AccountSample, ...] | None:
        """What was measured since this was last asked; None if nothing was."""
        news, self._news = self._news, False
        return tuple(self._measured.values()) if news and self._measured is not None else None


def account_samples(found: Senders, wall_s: float) -> list[AccountSample]:
    """Rows of RabbitMQ, put together by account. Rows that can't be read are left out."""
    messages: dict[str, float] = {}
    published: dict[str, float] = {}
    useless: dict[str, float] = {}
    sizes: dict[str, float] = {}
    counts: dict[str, int] = {}
    for row in found.connections:
        user = row.get("user")
        if isinstance(user, str):
            counts[user] = counts.get(user, 0) + 1
            sizes[user] = sizes.get(user, 0.0) + _bytes_per_s(row, wall_s)
    for row in found.channels:
        user, statistics = row.get("user"), row.get("message_stats")
        if isinstance(user, str):
            rate = _rate(statistics, "publish")
            messages[user] = messages.get(user, 0.0) + rate
            published[user] = published.get(user, 0.0) + (0.0 if row.get("consumer_count") else rate)
            lost = _rate(statistics, "drop_unroutable") + _rate(statistics, "return_unroutable")
            useless[user] = useless.get(user, 0.0) + lost
    users = sorted({*messages, *sizes}, key=lambda user: (-sizes.get(user, 0.0), user))[:ACCOUNTS_MAX]
    return [
        AccountSample(
            user,
            messages.get(user, 0.0),
            sizes.get(user, 0.0),
            useless.get(user, 0.0),
            counts.get(user, 0),
            published.get(user, 0.0),
        )
        for user in users
    ]


def _bytes_per_s(row: Json, wall_s: float) -> float:
    rate = _rate(row, "recv_oct")
    connected_ms, received = row.get("connected_at"), row.get("recv_oct")
    if rate <= 0.0 and isinstance(connected_ms, int | float) and isinstance(received, int | float):
        age_s = max(wall_s - connected_ms / 1000.0, 1.0)
        return received / age_s if age_s < YOUNG_S else 0.0
    return rate


def _rate(statistics: Any, name: str) -> float:
    details = statistics.get(f"{name}_details") if isinstance(statistics, dict) else None
    rate = details.get("rate") if isinstance(details, dict) else None
    return max(float(rate), 0.0) if isinstance(rate, int | float) else 0.0
