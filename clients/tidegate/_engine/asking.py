"""Questions of operators to a head, over the SDK's control connection.

async with Asking(url) as head:
    overview = await head.ask(OverviewRequest(), OverviewReply)
"""

from __future__ import annotations

from typing import Final, Self, TypeVar

from tidegate._core.config import Address, Backoff, Timeouts
from tidegate._engine.control import Control
from tidegate._io.aio import AioRuntime
from tidegate._io.tokens import authenticated
from tidegate_protocol.messages import ControlMessage

ANSWER_S: Final = 10.0

ReplyType = TypeVar("ReplyType", bound=ControlMessage)


class Asking:
    """A connection to the head at `url` for as long as the context lasts."""

    def __init__(self, url: str) -> None:
        self._runtime = AioRuntime()
        address = authenticated(Address.parse(url), None)
        self._control = Control(self._runtime, address, "tidegate-operator", Timeouts(), Backoff())

    async def __aenter__(self) -> Self:
        try:
            await self._control.open()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._control.close()
        await self._runtime.close()

    async def ask(self, message: ControlMessage, expect: type[ReplyType], timeout_s: float = ANSWER_S) -> ReplyType:
        """The answer; raises `Refused`, or what kept it from coming."""
        return await self._control.request(message, expect, timeout_s)
