"""The control connection of a worker process to the head: requests and their answers, orders and ours.

One line serves all clients of a process: each is bound with the key of its name, answers come by direct reply-to.
Invariant: an answer goes to the client that asked last under its key; a message that can't be read is counted and
dropped; a lost line is opened again, and a client that waits for an answer notices the silence itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

from pamqp import base, commands

from tidegate_agents.kit.memory import Recent
from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.messages import ControlMessage, decode, encode
from tidegate_protocol.names import ANSWER_KEY, CONTROL_EXCHANGE, HOM_KEY, client_key

from .codec import Address, publication, read_properties
from .connection import LeanConnection

REPLY_QUEUE: Final = "amq.rabbitmq.reply-to"
EXPIRES_MS: Final = "10000"
RECONNECT_S: Final = 0.5
PENDING_MAX: Final = 10_000
CLIENT_PREFIX: Final = client_key("")


@dataclass(frozen=True, slots=True)
class ReplyTo:
    """Where the answer to an order goes."""

    request: str


class Client(Protocol):
    """Whoever asks the head and takes its orders."""

    name: str

    def answered(self, key: str, message: ControlMessage) -> None:
        """The head answered the request with this key."""

    def ordered(self, message: ControlMessage, reply_to: ReplyTo | None) -> None:
        """The head wants something."""


class HeadLine:
    """One connection to a head, shared by the clients of a process."""

    def __init__(self, address: Address, name: str, clients: Iterable[Client], ready: Callable[[], None]) -> None:
        self._address = address
        self._name = name
        self._clients = {client.name: client for client in clients}
        self._ready = ready
        self._numbers = count(1)
        self._pending: Recent[str, tuple[str, str]] = Recent(PENDING_MAX)
        self._connection: LeanConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._consumers = 0
        self._closed = False
        self.sent = 0
        self.malformed = 0
        self.reconnects = 0
        self.user = address.user
        """The account of the connection."""

    def open(self) -> None:
        """Connect; `ready` is called once orders and answers can come."""
        self._consumers = 0
        self._connection = LeanConnection(self._delivered, self._told, self._lost)
        methods: list[base.Frame] = [
            commands.Basic.Consume(queue=REPLY_QUEUE, consumer_tag="r", no_ack=True),
            commands.Queue.Declare(queue="", exclusive=True),
            *(
                commands.Queue.Bind(queue="", exchange=CONTROL_EXCHANGE, routing_key=client_key(name), nowait=True)
                for name in self._clients
            ),
            commands.Basic.Consume(queue="", consumer_tag="o", no_ack=True),
        ]
        self._opening = asyncio.ensure_future(self._connection.connect(self._address, self._name, *methods))

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def request(self, client: str, key: str, message: ControlMessage) -> None:
        """Ask the head; the answer comes back to `client` with `key`."""
        number = str(next(self._numbers))
        self._pending[number] = (client, key)
        self._send(CONTROL_EXCHANGE, HOM_KEY, message, number, REPLY_QUEUE)

    def tell(self, message: ControlMessage) -> None:
        """Say something that is not answered."""
        self._send(CONTROL_EXCHANGE, HOM_KEY, message, None, None)

    def reply(self, to: ReplyTo, message: ControlMessage) -> None:
        """Answer an order."""
        self._send(CONTROL_EXCHANGE, ANSWER_KEY, message, to.request, None)

    def _send(
        self, exchange: str, key: str, message: ControlMessage, correlation: str | None, reply_to: str | None
    ) -> None:
        if self._connection is None or not self._connection.is_up:
            return
        self.sent += 1
        properties = commands.Basic.Properties(
            content_type="application/json",
            correlation_id=correlation,
            reply_to=reply_to,
            expiration=EXPIRES_MS,
            user_id=self._address.user,
        )
        self._connection.write(publication(exchange, key, properties, encode(message)))

    def _told(self, one: base.Frame) -> None:
        if isinstance(one, commands.Basic.ConsumeOk):
            self._consumers += 1
            if self._consumers == 2:
                self._ready()

    def _delivered(self, tag: int, key: str, header: bytes, body: bytes) -> None:
        reply_to, correlation = read_properties(header)
        try:
            message = decode(body)
        except MalformedMessage:
            self.malformed += 1
            return
        if key.startswith(CLIENT_PREFIX):
            client = self._clients.get(key.removeprefix(CLIENT_PREFIX))
            if client is not None:
                client.ordered(message, ReplyTo(correlation) if reply_to else None)
            return
        asked = self._pending.pop(correlation, None)
        if asked is not None:
            self._clients[asked[0]].answered(asked[1], message)

    def _lost(self, gone: bool, problem: str) -> None:
        if self._closed:
            return
        self.reconnects += 1
        asyncio.get_running_loop().call_later(RECONNECT_S, self._reopen)

    def _reopen(self) -> None:
        if not self._closed:
            self.open()
