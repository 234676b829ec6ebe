"""Answers what operators ask of the quarantine: list, show, replay, purge.

One request at a time: whoever looks holds the entries for that moment. Replaying sends a message to the far end of the
link it was set aside on, and nowhere else: everybody behind the other links has had it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from typing import Any, Final

from aiormq.exceptions import AMQPError

from tidegate_agents.machine import EnsureLink, ReplyAddress
from tidegate_protocol.amqp.content import decode_properties
from tidegate_protocol.messages import ControlMessage, Refusal, RefusalReason
from tidegate_protocol.quarantine import (
    ENTRIES_TOLD_MAX,
    EXCERPT_BYTES_MAX,
    HEADERS_TOLD_MAX,
    QuarantineReply,
    QuarantineRequest,
    SetAside,
    Shown,
    Verb,
)

from ..errors import BrokerError
from ..rabbit.connection import lost_by_connection
from ..rabbit.raw import RawMessage
from ..settings.urls import ServerUrl
from .quarantine import Held, looking
from .relay import Way, deliver_one

log = logging.getLogger(__name__)

LOOKED_MAX: Final = 2_000
"""Entries looked at for one request, the oldest ones."""
REPLAYED_MAX: Final = 200
"""Messages replayed for one request: an answer is waited for."""
WAITING_MAX: Final = 16
"""Requests that wait for their turn."""
ANSWER_S_MAX: Final = 30.0
VALUE_LENGTH_MAX: Final = 200
PROPERTIES: Final = (
    "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
    "message_id", "type", "user_id",
)  # fmt: skip


class Desk:
    """Where operators' requests about the quarantine of one head are answered."""

    def __init__(
        self,
        near: ServerUrl,
        link_to: Callable[[str], EnsureLink | None],
        way: Callable[[EnsureLink], Way],
        reply: Callable[[ReplyAddress, ControlMessage], None],
    ) -> None:
        self._near = near
        self._link_to = link_to
        self._way = way
        self._reply = reply
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def asked(self, request: QuarantineRequest, address: ReplyAddress) -> None:
        """Answer one request, after those before it."""
        if len(self._tasks) >= WAITING_MAX:
            text = f"{WAITING_MAX} requests about the quarantine wait already"
            self._reply(address, Refusal(reason=RefusalReason.LIMIT, message=text))
            return
        task = asyncio.get_running_loop().create_task(self._answer(request, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: QuarantineRequest, address: ReplyAddress) -> None:
        answer: ControlMessage
        try:
            async with asyncio.timeout(ANSWER_S_MAX), self._turn:
                answer = await self._do(request)
        except BaseException as error:
            if not lost_by_connection(error) and not isinstance(error, AMQPError | BrokerError):
                raise
            log.warning("cannot %s the quarantine: %r", request.verb, error)
            text = str(error) or type(error).__name__
            answer = Refusal(reason=RefusalReason.FAILED, message=text[:VALUE_LENGTH_MAX])
        self._reply(address, answer)

    async def _do(self, request: QuarantineRequest) -> QuarantineReply:
        told: list[SetAside] = []
        seen = chosen = done = 0
        shown: Shown | None = None
        async with looking(self._near, LOOKED_MAX) as entries:
            async for held in entries:
                seen += 1
                if not wanted(request, held.entry):
                    continue
                chosen += 1
                entry: SetAside | None = held.entry
                match request.verb:
                    case Verb.SHOW:
                        shown = show(held.message) if shown is None else shown
                    case Verb.PURGE:
                        await held.remove()
                        done, entry = done + 1, None
                    case Verb.REPLAY if done < REPLAYED_MAX:
                        entry = await self._replay(held)
                        done += entry is None
                    case _:
                        pass
                if entry is not None and len(told) < ENTRIES_TOLD_MAX:
                    told.append(entry)
                if request.verb is Verb.REPLAY and done >= REPLAYED_MAX:
                    break
        return QuarantineReply(
            verb=request.verb, total=seen - done, chosen=chosen, done=done, entries=tuple(told), shown=shown
        )

    async def _replay(self, held: Held) -> SetAside | None:
        """Send it once more; None once it is delivered and out of the quarantine, else why it is not."""
        entry = held.entry
        link = self._link_to(entry.target)
        if link is None or not entry.whole:
            return entry
        refused = await deliver_one(self._way(link), held.message)
        if refused is not None:
            return entry.model_copy(update={"reason": refused.reason, "detail": refused.text})
        await held.remove()
        return None


def wanted(request: QuarantineRequest, entry: SetAside) -> bool:
    """Whether a request is about this entry."""
    if request.ids:
        return entry.id in request.ids
    return request.target in ("", entry.target) and request.account in ("", entry.account)


def show(message: RawMessage) -> Shown:
    """A message as a person reads it, as far as it can be read."""
    found = decode_properties(message.properties, 0, len(message.properties))
    headers: dict[str, Any] = found.get("headers") or {}
    return Shown(
        properties={name: _text(found[name]) for name in PROPERTIES if name in found},
        headers={name[:VALUE_LENGTH_MAX]: _text(headers[name]) for name in list(headers)[:HEADERS_TOLD_MAX]},
        body=base64.b64encode(message.body[:EXCERPT_BYTES_MAX]).decode(),
    )


def _text(value: object) -> str:
    return "…" if value is None else str(value)[:VALUE_LENGTH_MAX]
