"""Helps links that make no progress: for a moment a relay takes the place of a shovel.

Runs as long as the head. Every period it looks at the shovels and, less often, at the link queues (`watching`). A link
that stands still loses its shovel, a `Relay` carries its messages until what stopped it is past, and then the shovel
comes back. A head that dies in between leaves a link without a shovel; the next one sets it at its start, as it does
for every link.

Invariants: at most one relay per link and `RELAYS_MAX` in all; a link gets its shovel back however its relay ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Final

from tidegate_agents.machine import EnsureLink, Event, LinkObserved
from tidegate_protocol.decisions import LinkRelayed, MessageSetAside, RelayOutcome
from tidegate_protocol.names import LINK_PREFIX, QUARANTINE_QUEUE, link_queue
from tidegate_protocol.quarantine import SetAside

from ..errors import BrokerError
from ..plane.head import HeadPlane
from ..rabbit.management import Management
from ..settings.urls import ServerUrl
from .gauges import QuarantineMetrics
from .relay import Relay, Way
from .watching import LinkWatch

log = logging.getLogger(__name__)

RELAYS_MAX: Final = 4
"""Links helped at the same time; others wait for their turn."""
LOOKS_PER_QUEUES: Final = 5
"""Looks at the shovels for one at the queues."""
GIVE_BACK_ATTEMPTS: Final = 5
GIVE_BACK_DELAY_S: Final = 1.0


@dataclass(slots=True)
class Rescue:
    """Watches and helps the links of one head."""

    plane: HeadPlane
    management: Management
    post: Callable[[Event], None]
    metrics: QuarantineMetrics
    incarnation: int
    period_s: float
    watch: LinkWatch = field(default_factory=LinkWatch)
    _relays: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    async def run(self) -> None:
        """Look and help until cancelled; then every link has its shovel back."""
        looks = 0
        try:
            while True:
                await asyncio.sleep(self.period_s)
                try:
                    await self._look(queues=looks % LOOKS_PER_QUEUES == 0)
                except BrokerError as error:
                    log.debug("cannot look at the links: %s", error)
                looks += 1
        finally:
            for task in self._relays.values():
                task.cancel()
            await asyncio.gather(*self._relays.values(), return_exceptions=True)

    async def _look(self, *, queues: bool) -> None:
        now = asyncio.get_running_loop().time()
        self.watch.keep_only(set(self.plane.links))
        for name, (state, reason) in (await self.management.shovel_reasons()).items():
            self.watch.saw_shovel(name.removeprefix(LINK_PREFIX), state, reason, now)
        if queues:
            async for queue in self.management.queues(LINK_PREFIX):
                statistics = queue.get("message_stats")
                forwarded = statistics.get("ack", 0) if isinstance(statistics, dict) else 0
                target = str(queue["name"]).removeprefix(LINK_PREFIX)
                self.watch.saw_queue(target, int(queue.get("messages") or 0), int(forwarded), now)
            async for queue in self.management.queues(QUARANTINE_QUEUE):
                self.metrics.waiting.set(int(queue.get("messages") or 0))
        for target in sorted(self.plane.links):
            self.metrics.expect(target)
            if target not in self._relays and len(self._relays) < RELAYS_MAX and self.watch.stuck(target, now):
                task = self._relays[target] = asyncio.create_task(self._help(self.plane.links[target]))
                task.add_done_callback(lambda done, target=target: self._helped(target, done))  # type: ignore[misc]

    def way(self, link: EnsureLink) -> Way:
        """From the queue of a link to its far end."""
        far = replace(ServerUrl.parse(link.url.partition("?")[0]), tls=self.plane.url.tls)
        return Way(self.plane.name, link.target, self.plane.url, far, self.plane.exchange_of(link))

    async def _help(self, link: EnsureLink) -> None:
        target, loop = link.target, asyncio.get_running_loop()
        began_s = loop.time()
        log.warning("the link to %s makes no progress; its messages are carried by hand for a moment", target)
        begin = partial(self.plane.relay_begins, self.management, target)
        relay = Relay(self.way(link), begin, self._new_id, self._set_aside)
        try:
            carried = await relay.run()
        finally:
            await self._give_back(target)
        self.metrics.relayed.labels(carried.outcome.value).inc()
        duration_s = loop.time() - began_s
        self.post(
            LinkObserved(
                LinkRelayed(
                    target, carried.outcome, carried.carried, carried.set_aside, duration_s, detail=carried.text
                )
            )
        )
        self.watch.helped(target, carried.outcome is RelayOutcome.PASSED, loop.time())

    async def _give_back(self, target: str) -> None:
        if target not in self.plane.relayed:
            return  # it never lost its shovel
        for attempt in range(1, GIVE_BACK_ATTEMPTS + 1):
            try:
                await self.plane.relay_ends(self.management, target)
                return
            except BrokerError as error:
                # Should all attempts fail, the plane's worker finds the shovel missing at its next look.
                log.warning("cannot give %s its shovel back (attempt %d): %s", link_queue(target), attempt, error)
                await asyncio.sleep(GIVE_BACK_DELAY_S)

    def _helped(self, target: str, task: asyncio.Task[None]) -> None:
        del self._relays[target]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.watch.helped(target, False, asyncio.get_running_loop().time())
            log.error("helping the link to %s failed", target, exc_info=error)

    def _new_id(self) -> str:
        return f"q-{self.incarnation:x}-{next(self._numbers)}"

    def _set_aside(self, entry: SetAside) -> None:
        self.metrics.set_aside.labels(entry.target, entry.reason.value).inc()
        self.metrics.set_aside_bytes.labels(entry.target).inc(entry.size_bytes)
        self.metrics.waiting.inc()
        self.post(
            LinkObserved(
                MessageSetAside(
                    entry.target,
                    entry.reason,
                    entry.id,
                    entry.account,
                    entry.publisher,
                    entry.topic,
                    entry.size_bytes,
                    entry.detail,
                )
            )
        )
