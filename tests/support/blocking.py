"""The client without asyncio, in a test with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidegate import Subscriber


@asynccontextmanager
async def in_thread(subscriber: Subscriber) -> AsyncIterator[Subscriber]:
    """Open it and close it aside."""
    await asyncio.to_thread(subscriber.open)
    try:
        yield subscriber
    finally:
        await asyncio.to_thread(subscriber.close)
