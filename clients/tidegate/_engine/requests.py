"""Requests that a machine orders: each is sent to its head, and its answer comes back with the key of the request.

Invariant: of one key at most one request waits for a connection. Its repetitions say the same, so that they are dropped
meanwhile; the machine repeats a request until it is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tidegate_protocol.errors import InvalidValue
from tidegate_protocol.messages import ControlMessage

from .._core.errors import TidegateError, UnexpectedReply
from .heads import Heads
from .runtime import Runtime


class Requests:
    """The requests of one machine that are on their way."""

    def __init__(
        self,
        runtime: Runtime,
        heads: Heads,
        name: str,
        answered: Callable[[str, ControlMessage | UnexpectedReply], None],
        failed: Callable[[ControlMessage, InvalidValue | TidegateError], None],
    ) -> None:
        """`answered` gets the key and the answer; `failed` gets a request that could not be sent, and why."""
        self._runtime = runtime
        self._heads = heads
        self._name = name
        self._answered = answered
        self._failed = failed
        self._sending: set[str] = set()

    def send(self, key: str, message: ControlMessage, head_url: str) -> None:
        if key not in self._sending:
            self._sending.add(key)
            self._runtime.spawn(self._send(key, message, head_url), f"{self._name} {message.kind}")

    async def _send(self, key: str, message: ControlMessage, head_url: str) -> None:
        try:
            await self._heads.control(head_url).ask(message, partial(self._answered, key))
        except (InvalidValue, TidegateError) as error:
            self._failed(message, error)
        finally:
            self._sending.discard(key)
