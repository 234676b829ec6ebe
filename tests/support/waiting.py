"""Waiting on conditions instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

POLL_S = 0.05


async def eventually(condition: Callable[[], object], what: str, timeout_s: float = 150.0) -> None:
    """Return once `condition()` is true (it may be a coroutine function); fail naming `what` otherwise."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return
        assert loop.time() < end, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(POLL_S)
