"""Control messages over a connection of their own, so that they never queue behind data.

A `ControlChannel` speaks to one RabbitMQ. It sends requests and receives their answers by direct reply-to, and, with a
`ControlInbox`, receives the messages that are addressed to this process.

Invariants:

- a request that reaches no process comes back as `Undeliverable`, at once when there is no connection;
- a message that can't be read is counted by reason, answered if its sender waits for an answer, and dropped;
- answers go only to direct reply-to addresses, so that no sender can make this process write into a queue of the data
  plane. Clients answer by a key of the control exchange, and only requests they were sent;
- everybody speaks for himself only, as far as `admission` can tell by accounts, and everything sent from here names the
  account it is sent by;
- what came by a detour (dead-lettered, copied) is counted and dropped without an answer;
- messages are handed on in the order in which they came.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from aiormq.exceptions import AMQPError, ChannelLockedResource
from pamqp.commands import Basic

from tidegate_agents.kit.memory import Recent
from tidegate_agents.machine import Event, MessageReceived, ReplyAddress, ReplyReceived, Undeliverable
from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.messages import (
    ADMITTED_KINDS,
    CONTROL_BYTES_MAX,
    ControlMessage,
    Refusal,
    RefusalReason,
    decode,
    encode,
)
from tidegate_protocol.names import ANSWER_KEY, CONTROL_EXCHANGE, client_key

from ..access.admission import BROKER_USER_START, NOT_YOURS, Admission, detour
from ..errors import AlreadyRunning
from ..observe.counters import BrokerMetrics
from ..settings.urls import ServerUrl
from .connection import ConnectionKeeper, lost_by_connection

log = logging.getLogger(__name__)

REPLY_QUEUE: Final = "amq.rabbitmq.reply-to"
EXPIRATION_MS: Final = 10_000
INBOX_LENGTH_MAX: Final = 20_000
PREFETCH: Final = 500
UNDER_WAY_MAX: Final = 2_000
"""Messages handed to the connection and not yet confirmed."""
ORDERS_MAX: Final = 20_000
"""Orders to clients whose answer may still come; of more, the oldest are forgotten."""
NAMED_MAX: Final = 1_000
CLIENT_KEY_START: Final = client_key("")
CORRELATION_LENGTH_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class ControlInbox:
    """The queue this process takes control messages from, and the keys it is bound to."""

    role: str
    broker: str
    queue: str
    keys: tuple[str, ...]


class ControlChannel:
    """Requests, answers and, with an inbox, incoming control messages on one RabbitMQ."""

    def __init__(
        self,
        label: str,
        url: ServerUrl,
        post: Callable[[Event], None],
        metrics: BrokerMetrics,
        inbox: ControlInbox | None = None,
        admission: Admission | None = None,
    ) -> None:
        """`admission`: what is taken from whom; everything from everybody if it is left out."""
        self.label = label
        self.keeper = ConnectionKeeper(
            label, url, self._setup, self._lost, lambda: metrics.reconnects.labels(label).inc()
        )
        self._url = url
        self._post = post
        self._metrics = metrics
        self._inbox = inbox
        self._admission = admission or Admission(head=True)
        self._user = url.credentials[0]
        self._ordered: Recent[str, str] = Recent(ORDERS_MAX)
        """By id of a request to a client: which client."""
        self._named: Recent[str, bool] = Recent(NAMED_MAX)
        """The accounts that brokers have named here."""
        self._taking = False
        self._channel: AbstractChannel | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        metrics.connected.labels(label).set(0)

    # The connection

    async def _setup(self, connection: AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=False)
        await channel.basic_qos(prefetch_count=PREFETCH)
        await channel.exchange_declare(CONTROL_EXCHANGE, exchange_type="topic", durable=True)
        await channel.basic_consume(REPLY_QUEUE, self._on_reply, no_ack=True)
        if self._inbox is not None:
            try:
                await channel.queue_declare(
                    self._inbox.queue, exclusive=True, arguments={"x-max-length": INBOX_LENGTH_MAX}
                )
            except ChannelLockedResource:
                raise AlreadyRunning(self._inbox.role, self._inbox.broker, str(self._url)) from None
            await channel.basic_consume(self._inbox.queue, self._on_message)
            if self._taking:
                await _bind(channel, self._inbox)
        self._channel = channel
        self._metrics.connected.labels(self.label).set(1)
        # A channel can be closed on its own; without it the connection is of no use.
        channel.closing.add_done_callback(lambda _: connection.create_task(connection.close()))

    def _lost(self) -> None:
        self._channel = None
        self._metrics.connected.labels(self.label).set(0)

    @property
    def is_up(self) -> bool:
        """Whether messages can be sent now."""
        return self._channel is not None

    async def start_taking(self) -> None:
        """Take messages from now on. Before, the inbox is ours, which keeps others out, but unbound."""
        self._taking = True
        await self._on_inbox(_bind)

    async def stop_taking(self) -> None:
        """Take no more messages: what is sent from now on comes back to its sender as undeliverable."""
        self._taking = False
        await self._on_inbox(_unbind)

    async def _on_inbox(self, change: Callable[[AbstractChannel, ControlInbox], Awaitable[None]]) -> None:
        if self._channel is None or self._inbox is None:
            return
        try:
            await change(self._channel, self._inbox)
        except BaseException as error:
            if not lost_by_connection(error) and not isinstance(error, AMQPError):
                raise
            log.info("the connection %s was lost; its inbox is set up again on the next one", self.label)

    async def flush(self) -> None:
        """Wait until what was sent is confirmed."""
        while self._under_way:
            await asyncio.wait(tuple(self._under_way))

    # Sending

    def send(self, key: str, message: ControlMessage, request_id: str | None) -> None:
        """Send to a routing key of the control exchange; with an id, an answer is expected."""
        properties = Basic.Properties(
            content_type="application/json",
            correlation_id=request_id,
            reply_to=REPLY_QUEUE if request_id is not None else None,
            expiration=str(EXPIRATION_MS),
            user_id=self._user,
        )
        if request_id is not None and key.startswith(CLIENT_KEY_START):
            self._ordered[request_id] = key.removeprefix(CLIENT_KEY_START)
        self._publish(CONTROL_EXCHANGE, key, message, properties, request_id)

    def reply(self, address: ReplyAddress, message: ControlMessage) -> None:
        """Answer a request that came in here."""
        if isinstance(message, Refusal):
            self._metrics.refused.labels(message.reason.value).inc()
        properties = Basic.Properties(
            content_type="application/json", correlation_id=address.request, user_id=self._user
        )
        self._publish("", address.token, message, properties, None)

    def _publish(
        self,
        exchange: str,
        key: str,
        message: ControlMessage,
        properties: Basic.Properties,
        request_id: str | None,
    ) -> None:
        channel = self._channel
        if channel is None or len(self._under_way) >= UNDER_WAY_MAX:
            self._not_sent("no-connection" if channel is None else "too-many", message, request_id)
            return
        task = asyncio.get_running_loop().create_task(
            self._publish_one(channel, exchange, key, message, properties, request_id)
        )
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _publish_one(
        self,
        channel: AbstractChannel,
        exchange: str,
        key: str,
        message: ControlMessage,
        properties: Basic.Properties,
        request_id: str | None,
    ) -> None:
        body = encode(message)
        if len(body) > CONTROL_BYTES_MAX:
            log.error("a %s of %d bytes is over the limit and was not sent", message.kind, len(body))
            self._not_sent("too-large", message, request_id)
            return
        mandatory = request_id is not None
        try:
            # On a returned message aiormq gives the message, whatever its annotation says.
            outcome: object = await channel.basic_publish(
                body, exchange=exchange, routing_key=key, properties=properties, mandatory=mandatory
            )
        except BaseException as error:
            if not lost_by_connection(error) and not isinstance(error, AMQPError):
                raise
            self._not_sent("no-connection", message, request_id)
            return
        if isinstance(outcome, DeliveredMessage):
            self._not_sent("nobody-there", message, request_id)
        else:
            self._metrics.sent.labels(message.kind).inc()

    def _not_sent(self, reason: str, message: ControlMessage, request_id: str | None) -> None:
        self._metrics.unsent.labels(reason).inc()
        log.debug("%s not sent over %s: %s", message.kind, self.label, reason)
        if request_id is not None:
            self._ordered.pop(request_id, None)
            self._post(Undeliverable(request_id))

    # Receiving

    async def _on_reply(self, delivered: DeliveredMessage) -> None:
        request_id = delivered.header.properties.correlation_id
        try:
            _check_way(delivered)
            message = decode(delivered.body)
            if not request_id:
                raise MalformedMessage("no-request", "an answer without the id of its request")
        except MalformedMessage as error:
            self._count_malformed(error)
            return
        self._metrics.received.labels(message.kind).inc()
        self._post(ReplyReceived(request_id, message))

    async def _on_message(self, delivered: DeliveredMessage) -> None:
        address = _reply_address(delivered)
        try:
            message = self._admit(delivered)
            if delivered.header.properties.reply_to and address is None:
                raise MalformedMessage("bad-reply-to", "answers go to direct reply-to addresses only")
        except MalformedMessage as error:
            self._count_malformed(error)
            # Whoever sent by a detour is not spoken to: the address may be another's.
            if address is not None and detour(delivered.header.properties.headers) is None:
                self.reply(address, Refusal(reason=RefusalReason.INVALID, message=str(error)))
        else:
            self._metrics.received.labels(message.kind).inc()
            if delivered.routing_key == ANSWER_KEY:
                self._post(ReplyReceived(delivered.header.properties.correlation_id or "", message))
            else:
                self._post(MessageReceived(message, address, delivered.header.properties.user_id or ""))
        tag = delivered.delivery_tag
        if tag is not None and not delivered.channel.is_closed:
            await delivered.channel.basic_ack(tag, wait=False)

    def _admit(self, delivered: DeliveredMessage) -> ControlMessage:
        """The message, if its sender may send it by this key; raise `MalformedMessage` otherwise."""
        _check_way(delivered)
        key = delivered.routing_key or ""
        if self._inbox is not None and key not in self._inbox.keys:
            # `BCC` leaves no trace but this one.
            raise MalformedMessage("wrong-key", f"nothing is taken by {key} here")
        message = decode(delivered.body)
        if message.kind not in ADMITTED_KINDS.get(key, (message.kind,)):
            raise MalformedMessage("kind-not-allowed", f"{message.kind} may not be sent to {key}")
        user = delivered.header.properties.user_id or ""
        if key == ANSWER_KEY:
            asked = self._ordered.get(delivered.header.properties.correlation_id or "")
            if asked is None:
                raise MalformedMessage("no-request", "an answer to an order that was not given, or long ago")
            if not self._admission.may_answer(user, asked):
                raise MalformedMessage(NOT_YOURS, f"{user or 'nobody'} may not answer for {asked}")
            del self._ordered[delivered.header.properties.correlation_id or ""]
        objection = self._admission.objection(user, key, message, self._named)
        if objection is not None:
            raise MalformedMessage(NOT_YOURS, objection)
        if user.startswith(BROKER_USER_START):
            self._named[self._admission.claimed(key, message)] = True
        return message

    def _count_malformed(self, error: MalformedMessage) -> None:
        self._metrics.malformed.labels(error.reason).inc()
        log.debug("dropped a control message: %s", error)


async def _bind(channel: AbstractChannel, inbox: ControlInbox) -> None:
    for key in inbox.keys:
        await channel.queue_bind(inbox.queue, CONTROL_EXCHANGE, key)


async def _unbind(channel: AbstractChannel, inbox: ControlInbox) -> None:
    for key in inbox.keys:
        await channel.queue_unbind(inbox.queue, CONTROL_EXCHANGE, key)


def _check_way(delivered: DeliveredMessage) -> None:
    reason = detour(delivered.header.properties.headers)
    if reason is not None:
        raise MalformedMessage(reason, "control messages come the direct way, without CC or BCC")


def _reply_address(delivered: DeliveredMessage) -> ReplyAddress | None:
    properties = delivered.header.properties
    reply_to, request = properties.reply_to, properties.correlation_id or ""
    if not reply_to or not reply_to.startswith(REPLY_QUEUE + ".") or len(request) > CORRELATION_LENGTH_MAX:
        return None
    return ReplyAddress(reply_to, request)
