"""Watching for fences: messages of ours that follow the last one of a publisher on its way to another head.

Per watch a durable queue, bound to the neighbour's ingress exchange for exactly one key, and consumed. The queue
outlives a lost connection, so that a fence that comes meanwhile is found afterwards; it expires by itself should this
process never come back. It decides nothing and knows no publisher.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.common import FieldValue

from tidegate_protocol.names import ingress_exchange

log = logging.getLogger(__name__)

FENCE_PREFIX: Final = "fence."
EXPIRES_MS: Final = 120_000
"""Longer than a publisher's move may take."""
ARGUMENTS: Final[dict[str, FieldValue]] = {"x-queue-type": "classic", "x-expires": EXPIRES_MS, "x-max-length": 100}

Watched = tuple[str, str]
"""Neighbour and key."""


def fence_queue(key: str) -> str:
    """The queue that waits for the fence with this key. pamqp lets no queue's name have a tilde, which moves have."""
    return FENCE_PREFIX + key.replace("~", ":")


@dataclass(slots=True)
class FenceWatch:
    """All fences that are watched for."""

    arrived: Callable[[str], None]
    watched: dict[Watched, AbstractChannel | None] = field(default_factory=dict)

    async def watch(self, channel: AbstractChannel, neighbour: str, key: str) -> None:
        """From now on, until it came, tell when a message with this key comes in from the neighbour."""
        self.watched.setdefault((neighbour, key), None)
        await self._consume(channel, (neighbour, key))

    async def unwatch(self, channel: AbstractChannel, neighbour: str, key: str) -> None:
        """End a watch; one that is over is fine."""
        self.watched.pop((neighbour, key), None)
        await channel.queue_delete(fence_queue(key))

    async def assert_all(self, channel: AbstractChannel) -> None:
        """Consume again what a lost connection has ended."""
        for watched in sorted(self.watched):
            await self._consume(channel, watched)

    async def _consume(self, channel: AbstractChannel, watched: Watched) -> None:
        consuming = self.watched.get(watched)
        if consuming is not None and not consuming.is_closed:
            return
        neighbour, key = watched
        queue = fence_queue(key)
        own = await channel.connection.channel(publisher_confirms=False)
        await own.queue_declare(queue, durable=True, arguments=ARGUMENTS)
        await own.queue_bind(queue, ingress_exchange(neighbour), key)
        self.watched[watched] = own
        await own.basic_consume(queue, partial(self._came, watched, own), no_ack=True)

    async def _came(self, watched: Watched, own: AbstractChannel, delivered: DeliveredMessage) -> None:
        if watched not in self.watched:
            return  # it comes twice when a shovel sends again
        if delivered.routing_key != watched[1]:
            return  # a publisher's message with the fence's key in its header CC: the key of its own is not reserved
        del self.watched[watched]
        self.arrived(watched[1])
        await own.queue_delete(fence_queue(watched[1]), nowait=True)
        await own.close()
