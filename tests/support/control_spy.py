"""Sees every control message that passes a head's RabbitMQ, answers included, in the order in which they were sent.

It listens to RabbitMQ's own tracer (the "firehose") rather than binding a queue to the control exchange: such a queue
would make every request deliverable, and what nobody is there to take would not come back to its sender any more.
The tracer is off after a restart of RabbitMQ; the spy connects again by itself and turns it on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import aio_pika
import httpx
from aio_pika.abc import AbstractIncomingMessage

from tidegate_embedded.cluster import BrokerInfo
from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.messages import ControlMessage, decode
from tidegate_protocol.names import CONTROL_EXCHANGE, MARKER_EXCHANGE, MARKER_PREFIX, PUBLISH_EXCHANGE

TRACE_EXCHANGE: Final = "amq.rabbitmq.trace"
SEEN_MAX: Final = 50_000
RECONNECT_S: Final = 0.3
CONNECT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One message: when, the key it was sent with, and what it says; of a marker only the key."""

    at_s: float
    key: str
    message: ControlMessage | None = None

    @property
    def kind(self) -> str:
        return self.message.kind if self.message is not None else "marker"

    @property
    def broker(self) -> str:
        """The broker it was addressed to."""
        return self.key.removeprefix("broker.")

    def __str__(self) -> str:
        text = str(self.message) if self.message is not None else ""
        return f"{self.kind} to {self.key}: {text[:300]}"


Matches = Callable[[Seen], bool]


@dataclass
class ControlSpy:
    """The spy of one head."""

    head: BrokerInfo
    seen: deque[Seen] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))
    _waiting: list[tuple[Matches, asyncio.Future[Seen]]] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None
    _listening: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Return when it listens."""
        self._task = asyncio.create_task(self._run(), name="control spy")
        await self.listening()

    async def listening(self) -> None:
        """Wait until it listens (again)."""
        async with asyncio.timeout(60):
            await self._listening.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def first(self, matches: Matches) -> asyncio.Future[Seen]:
        """The next message of this kind; what came before doesn't count."""
        future: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()
        self._waiting.append((matches, future))
        return future

    def since(self, at_s: float, kind: str) -> list[Seen]:
        """All messages of a kind since a moment of the monotonic clock, oldest first."""
        return [seen for seen in self.seen if seen.at_s >= at_s and seen.kind == kind]

    async def _run(self) -> None:
        while True:
            # Otherwise its RabbitMQ is being restarted.
            with contextlib.suppress(OSError, TimeoutError, httpx.HTTPError, aio_pika.exceptions.AMQPError):
                await self._listen()
            self._listening.clear()
            await asyncio.sleep(RECONNECT_S)

    async def _listen(self) -> None:
        connection = await aio_pika.connect(self.head.url, timeout=CONNECT_TIMEOUT_S)
        async with connection:
            vhost = quote(self.head.vhost, safe="")
            async with httpx.AsyncClient(base_url=self.head.management_url, timeout=CONNECT_TIMEOUT_S) as http:
                (await http.put(f"/api/vhosts/{vhost}", json={"tracing": True})).raise_for_status()
            channel = await connection.channel()
            queue = await channel.declare_queue(exclusive=True)
            for exchange in (CONTROL_EXCHANGE, MARKER_EXCHANGE, ""):
                await queue.bind(TRACE_EXCHANGE, f"publish.{exchange}")
            await channel.declare_exchange(PUBLISH_EXCHANGE, "topic", durable=True)
            await queue.bind(PUBLISH_EXCHANGE, f"{MARKER_PREFIX}#")
            await queue.consume(self._came, no_ack=True)
            self._listening.set()
            closed = asyncio.Event()
            connection.close_callbacks.add(lambda *_: closed.set())
            channel.close_callbacks.add(lambda *_: closed.set())
            await closed.wait()

    async def _came(self, incoming: AbstractIncomingMessage) -> None:
        seen = _read(incoming)
        if seen is None:
            return
        self.seen.append(seen)
        waiting, self._waiting = self._waiting, []
        for matches, future in waiting:
            if future.done():
                continue
            if matches(seen):
                future.set_result(seen)
            else:
                self._waiting.append((matches, future))


def _read(incoming: AbstractIncomingMessage) -> Seen | None:
    if incoming.exchange == PUBLISH_EXCHANGE:
        return Seen(time.monotonic(), incoming.routing_key or "")
    keys = incoming.headers.get("routing_keys")
    key = str(keys[0]) if isinstance(keys, list) and keys else ""
    if incoming.headers.get("exchange_name") == MARKER_EXCHANGE:
        return Seen(time.monotonic(), key)
    try:
        return Seen(time.monotonic(), key, decode(incoming.body))
    except MalformedMessage:
        return None
