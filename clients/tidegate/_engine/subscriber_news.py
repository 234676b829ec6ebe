"""What a subscriber tells its heads by itself: digests of what it received, for telemetry alone.

One coroutine sends them over the control connections that exist anyway.

Invariants:

- a head is told no more than it wants. It says in each answer when the next report is due, or that it wants none; in
  that case it is asked again minutes later;
- a report is repeated unchanged, under its number, until it is answered. Newer counts go into the next report, so that
  nothing is counted twice, and nothing is lost while the head is silent;
- an empty report is not sent, and a report that fails changes nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from tidegate_protocol.reports import (
    DIGESTS_PER_REPORT_MAX,
    GAPS_PER_REPORT_MAX,
    MigrationGap,
    ReportTaken,
    SubscriberReport,
    SubscriptionDigest,
)

from .._core.config import Timeouts
from .._core.digests import GAPS_MAX
from .._core.errors import Refused, TidegateError, UnexpectedReply
from .heads import Heads
from .runtime import Runtime

logger = logging.getLogger(__name__)

FIRST_S: Final = 1.0
"""Until the first report; chance makes it up to twice as long, so that no crowd reports at once."""
AGAIN_S: Final = 10.0
"""Until a report that was not answered is repeated."""
UNWANTED_S: Final = 300.0
"""Until a head that does not know reports is asked again."""
LAST_S: Final = 1.0
"""A client that closes waits so long for a report under way."""
AFTER_S_MIN: Final = 0.1
AFTER_S_MAX: Final = 3_600.0


class Reporting(Protocol):
    """A subscription, as far as it is reported."""

    @property
    def head_url(self) -> str: ...

    def take_digest(self) -> SubscriptionDigest | None: ...

    def take_gaps(self) -> list[MigrationGap]: ...


@dataclass(slots=True)
class _Head:
    """How far the reports to one head are."""

    due_s: float
    number: int = 0
    pending: SubscriberReport | None = None
    wanted: bool | None = None
    """None before the head has answered."""
    after_s: float = AGAIN_S


class SubscriberNews:
    """Reports of one subscriber to the heads that its subscriptions belong to."""

    def __init__(self, runtime: Runtime, subscriber: str, run: int, heads: Heads, timeouts: Timeouts) -> None:
        self.unreported = 0
        """Digests that no head will get: there were too many at the end of subscriptions, or their head was left."""
        self._runtime = runtime
        self._subscriber = subscriber
        self._run = run
        self._heads = heads
        self._timeouts = timeouts
        self._subscriptions: list[Reporting] = []
        self._states: dict[str, _Head] = {}
        self._left: dict[str, list[SubscriptionDigest]] = {}
        """Last digests of subscriptions that have ended, by head."""
        self._wake = runtime.signal()
        self._finished = runtime.signal()
        self._closing = False
        self._running = False

    def join(self, subscription: Reporting) -> None:
        """Report this subscription from now on."""
        self._subscriptions.append(subscription)
        if not self._running:
            self._running = True
            self._runtime.spawn(self._work(), f"tidegate subscriber {self._subscriber} reports")
        self._wake.set()

    def leave(self, subscription: Reporting) -> None:
        """It has ended; what it has seen since its last digest goes into the next report."""
        if subscription not in self._subscriptions:
            return
        self._subscriptions.remove(subscription)
        digest = subscription.take_digest()
        if digest is not None:
            left = self._left.setdefault(subscription.head_url, [])
            if len(left) < DIGESTS_PER_REPORT_MAX:
                left.append(digest)
            else:
                self.unreported += 1

    async def close(self) -> None:
        """Tell what there is to the heads that may want it, without waiting for an answer."""
        self._closing = True
        self._wake.set()
        if self._running:
            await self._finished.wait(min(LAST_S, self._timeouts.close_s))
        for url in self._urls():
            state = self._states.setdefault(url, _Head(0.0))
            last = self._compose(url, state) if state.wanted is not False else None
            for report in (state.pending, last):
                if report is not None:
                    try:
                        await self._heads.control(url).tell(report)
                    except TidegateError as error:
                        logger.debug(
                            "%s: cannot send the last report; its counts are lost: %s", self._subscriber, error
                        )
        self._subscriptions.clear()
        self._left.clear()

    async def _work(self) -> None:
        while not self._closing:
            now = self._runtime.now()
            urls = self._urls()
            for url in [url for url in self._states if url not in urls]:
                # Its connection is closed, too: no subscription of ours belongs to it any more.
                self.unreported += len(pending.digests) if (pending := self._states.pop(url).pending) else 0
            for url in urls:
                if url not in self._states:
                    self._states[url] = _Head(now + FIRST_S * (1.0 + self._runtime.chance()))
                if self._states[url].due_s <= now and not self._closing:
                    await self._report(url, self._states[url])
            due_s = [state.due_s for state in self._states.values()]
            await self._wake.wait(max(min(due_s) - self._runtime.now(), AFTER_S_MIN) if due_s else None)
        self._finished.set()

    def _urls(self) -> list[str]:
        """The heads to report to, in the order they came."""
        return list(dict.fromkeys([one.head_url for one in self._subscriptions] + list(self._left)))

    async def _report(self, url: str, state: _Head) -> None:
        if state.pending is None:
            state.pending = self._compose(url, state)
        if state.pending is None:
            state.due_s = self._runtime.now() + state.after_s
            return
        try:
            taken = await self._heads.control(url).request(state.pending, ReportTaken, self._timeouts.attempt_s)
        except (Refused, UnexpectedReply) as error:
            logger.debug("%s: the head refuses reports; asked again in minutes: %s", self._subscriber, error)
            state.pending, state.wanted, state.after_s = None, False, UNWANTED_S
        except TidegateError as error:
            logger.debug("%s: the head did not answer a report; it is repeated: %s", self._subscriber, error)
            state.due_s = self._runtime.now() + AGAIN_S
            return
        else:
            state.pending, state.wanted = None, taken.wanted
            state.after_s = min(max(taken.after_us / 1e6, AFTER_S_MIN), AFTER_S_MAX)
        state.due_s = self._runtime.now() + state.after_s

    def _compose(self, url: str, state: _Head) -> SubscriberReport | None:
        """The next report to a head; None if there is nothing to tell."""
        left = self._left.pop(url, [])
        own = [one for one in self._subscriptions if one.head_url == url]
        room = DIGESTS_PER_REPORT_MAX - len(left)
        digests = left + list(islice(_found(one.take_digest() for one in own), room))
        # The ones that had no room come first the next time.
        self._subscriptions = self._rotated(own, room)
        gaps: list[MigrationGap] = []
        for one in own:
            if len(gaps) + GAPS_MAX <= GAPS_PER_REPORT_MAX:
                gaps += one.take_gaps()
        if not digests and not gaps:
            return None
        state.number += 1
        return SubscriberReport(
            subscriber=self._subscriber,
            run=self._run,
            number=state.number,
            digests=tuple(digests),
            gaps=tuple(gaps),
        )

    def _rotated(self, own: list[Reporting], room: int) -> list[Reporting]:
        if len(own) <= room:
            return self._subscriptions
        served = set(map(id, own[:room]))
        return [one for one in self._subscriptions if id(one) not in served] + own[:room]


def _found(digests: Iterable[SubscriptionDigest | None]) -> Iterable[SubscriptionDigest]:
    return (digest for digest in digests if digest is not None)
