"""Seals: one more change behind the changes that must outlive a `kill -9` of RabbitMQ.

A RabbitMQ that keeps its definitions in Mnesia (3.x, and 4.x unless it uses Khepri) writes each change to a log before
it answers. Killed, it repairs that log when it starts, and about once in thirty times the repair drops the last entry,
although it is on the disk: a binding that was confirmed is gone, and so is all that is published before somebody binds
again. Only the last entry was ever seen to go. So a caller that depends on a change is told of it only when another
change, which no caller depends on, has followed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aiormq.abc import AbstractChannel

from tidegate_protocol.names import SEAL_EXCHANGE


@dataclass(slots=True)
class Seal:
    """The last change in the log of one RabbitMQ. Those who wait at the same time share one."""

    pressed: int = 0
    """How often so far."""
    _pressing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _begun: int = 0

    async def press(self, channel: AbstractChannel) -> None:
        """Return when some change has followed all those that RabbitMQ has answered up to now."""
        needed = self._begun + 1
        async with self._pressing:
            if self.pressed >= needed:
                return  # one that began after we came was just done
            self._begun += 1
            number = self._begun
            # One of the two changes something, whatever was there before.
            await channel.exchange_delete(SEAL_EXCHANGE, nowait=True)
            await declare_seal(channel)
            self.pressed = number


async def declare_seal(channel: AbstractChannel) -> None:
    """Have the exchange, to which nothing is ever bound."""
    await channel.exchange_declare(SEAL_EXCHANGE, exchange_type="fanout", durable=True)
