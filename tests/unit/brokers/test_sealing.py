"""Who may share a seal: those who had their answers before it began, and nobody else."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aiormq.abc import AbstractChannel

from tidegate_brokers.plane.sealing import Seal


class SlowChannel:
    """Declares an exchange when the test lets it."""

    def __init__(self) -> None:
        self.begun = 0
        self._answers = asyncio.Semaphore(0)

    async def exchange_delete(self, name: str, **options: Any) -> None:
        self.begun += 1

    async def exchange_declare(self, name: str, **options: Any) -> None:
        await self._answers.acquire()

    async def answer(self) -> None:
        self._answers.release()
        for _ in range(10):
            await asyncio.sleep(0)


async def test_a_seal_that_is_being_pressed_does_not_count_for_those_who_come_meanwhile() -> None:
    """It may stand in the log before their changes, which would be the last ones then."""
    channel, seal = SlowChannel(), Seal()

    def press() -> asyncio.Task[None]:
        return asyncio.create_task(seal.press(cast(AbstractChannel, channel)))

    first = press()
    await asyncio.sleep(0)
    assert channel.begun == 1
    meanwhile = [press() for _ in range(5)]
    await channel.answer()
    assert first.done()
    assert not any(one.done() for one in meanwhile)
    assert channel.begun == 2
    await channel.answer()
    assert all(one.done() for one in meanwhile), "they share one"
    assert (channel.begun, seal.pressed) == (2, 2)
