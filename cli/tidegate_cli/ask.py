"""One question to a head, over the SDK's control connection."""

from __future__ import annotations

from typing import Final

from tidegate._aio import AioRuntime
from tidegate._config import Address, Backoff, Timeouts
from tidegate._control import Control
from tidegate_protocol.messages import StatusReply, StatusRequest

_TIMEOUT_S: Final = 10.0


async def ask_status(url: str) -> StatusReply:
    """What the head at `url` knows of its cluster."""
    runtime = AioRuntime()
    control = Control(runtime, Address.parse(url), "tidegate-status", Timeouts(), Backoff())
    try:
        await control.open()
        return await control.request(StatusRequest(), StatusReply, _TIMEOUT_S)
    finally:
        await control.close()
        await runtime.close()
