"""One question to a head's process, and its answer for a person or for a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rich.console import RenderableType

from tidegate._engine.asking import Asking
from tidegate_protocol.messages import ControlMessage

from .console import out, print_json, run

Reply = TypeVar("Reply", bound=ControlMessage)


async def asked(url: str, request: ControlMessage, expect: type[Reply]) -> Reply:
    """The answer of the head at `url`; raises `Refused`, or what kept it from coming."""
    async with Asking(url) as head:
        return await head.ask(request, expect)


def answer(
    url: str, request: ControlMessage, expect: type[Reply], render: Callable[[Reply], RenderableType], as_json: bool
) -> None:
    """Ask, and print the answer."""
    reply = run(asked(url, request, expect))
    if as_json:
        print_json(fields(reply))
    else:
        out().print(render(reply))


def fields(reply: ControlMessage) -> dict[str, Any]:
    """An answer as a machine gets it, without what only the wire needs."""
    return reply.model_dump(mode="json", exclude={"v", "kind"})
