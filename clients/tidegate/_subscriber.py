"""The subscriber's engine: finds each subscription's edge and queue, keeps a consumer there, sends
acknowledgements.

Per subscription one coroutine: ask the head for the place, attach, acknowledge until the channel is lost or
the queue goes, and start over. What was seen (the inbox) outlives every attachment. If the head can't be
reached, the place known from before is used again, so a subscription survives the loss of its connection
while the head's process is down.

Data connections are shared: one per edge, closed with its last subscription. It runs on any runtime; the two
clients are thin layers over it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from tidegate_protocol.messages import SubscribeReply, SubscribeRequest, UnsubscribeReply, UnsubscribeRequest

from ._config import Address, Backoff, Limits, Timeouts
from ._control import Control
from ._errors import (
    AccessRefused,
    Closed,
    ConnectionFailed,
    HeadSilent,
    InvalidValue,
    Refused,
    TidegateError,
    UnexpectedReply,
)
from ._inbox import ACK_DELAY_S, Inbox
from ._moves import Place
from ._runtime import Channel, ChannelLost, Connection, Gate, Runtime

logger = logging.getLogger(__name__)

SETTLED_S: Final = 5.0
"""An attachment that lived this long was a success: the next failure starts again with the shortest delay."""
ACCESS_REFUSED: Final = 403
"""RabbitMQ's answer to a consumer on a queue that has an exclusive one already."""
NOT_FOUND: Final = 404
FATAL_AT_FIRST: Final = (AccessRefused, Refused, UnexpectedReply)
"""What the first subscribe() reports at once. Later, when it worked before, even these are retried."""


class SubscriptionEngine:
    """Runs one subscription."""

    def __init__(
        self, owner: SubscriberEngine, request: SubscribeRequest, inbox: Inbox, on_change: Callable[[], None]
    ) -> None:
        self.request = request
        self.inbox = inbox
        self.place: Place | None = None
        self.attached = False
        self.ended = False
        """Whether nothing will ever be delivered again."""
        self.reconnects = 0
        self._owner = owner
        self._runtime = owner.runtime
        self._on_change = on_change
        """Called when something was put into the inbox, and when the subscription ends."""
        self._wake = owner.runtime.signal()
        self._batch = owner.runtime.signal()
        self._attached = owner.runtime.signal()
        self._finished = owner.runtime.signal()
        self._failure: TidegateError | None = None
        self._acks_coming = False
        self._stopping = False
        self._awaited = False
        """Whether somebody waits, or has waited, for the end."""
        self._ever_attached = False

    def __str__(self) -> str:
        return f"subscription {self.request.subscriber}/{self.request.pattern}"

    async def start(self) -> None:
        """Subscribe and attach for the first time; raise what went wrong."""
        timeout_s = self._owner.timeouts.request_s
        self._runtime.spawn(self._run(self._runtime.now() + timeout_s), str(self))
        # The coroutine ends by itself within the time; the extra is for a connection that is being opened.
        if not await self._attached.wait(timeout_s + self._owner.timeouts.connect_s):
            await self.stop()
            raise HeadSilent(str(self._owner.address), timeout_s, "the edge could not be reached")
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Acknowledge what is settled and detach. RabbitMQ keeps the rest."""
        self.give_up()
        if not self._awaited and not self.ended:
            self._awaited = True
            timeouts = self._owner.timeouts
            # What never attached has nothing to acknowledge; it may be asking a head that does not answer.
            await self._finished.wait(timeouts.close_s if self._ever_attached else timeouts.attempt_s)
        self.ended = True
        self._on_change()

    def give_up(self) -> None:
        """Have it end by itself, without waiting for that."""
        self._stopping = True
        self._wake.set()
        self._batch.set()

    def settled(self) -> None:
        """Something was put among the settled.

        Cheap, because it is called for every message, from any thread.
        """
        if not self._acks_coming:
            self._acks_coming = True
            self._wake.set()
        elif self.inbox.settled_count % self.inbox.ack_batch == 0:
            self._batch.set()

    async def _run(self, first_deadline: float) -> None:
        attempt = 0
        while True:
            since = self._runtime.now()
            error = await self._attach_and_serve()
            if self._stopping:
                break
            if not self._ever_attached and (isinstance(error, FATAL_AT_FIRST) or since >= first_deadline):
                self._failure = self._explain(error)
                break
            attempt = 0 if self._runtime.now() - since > SETTLED_S else attempt + 1
            await self._pause(attempt, error)
        if not self._ever_attached and self._failure is None:
            self._failure = Closed(str(self))
        self.ended = True
        self._attached.set()
        self._finished.set()
        self._on_change()

    def _explain(self, error: TidegateError) -> TidegateError:
        """Say what a refusal by RabbitMQ means here."""
        if isinstance(error, ChannelLost) and error.code == ACCESS_REFUSED:
            name = self.request.subscriber
            return Refused("conflict", f"{error.problem}. Another subscriber named {name!r}? Give each its own name")
        return error

    async def _attach_and_serve(self) -> TidegateError:
        """One life of an attachment. Returns why it ended."""
        try:
            place = await self._locate()
            address = self._owner.address.at(place.url)
            async with self._owner.data.use(address) as connection:
                channel = await connection.open_channel(self._wake.set)
                try:
                    await self._consume(channel, place)
                    await self._serve(channel)
                    await channel.acknowledge(self.inbox.acknowledgements(final=True))
                finally:
                    self.inbox.attach()
                    self.attached = False
                    if channel.lost is None:
                        await channel.close()
        except ChannelLost as error:
            if error.code == NOT_FOUND:
                # The queue has expired or was deleted: only the head can say where to go.
                self.place = None
            return error
        except TidegateError as error:
            return error
        return channel.lost or Closed(str(self))

    async def _locate(self) -> Place:
        """Ask the head where the queue is.

        The same subscriber and pattern get the same queue while it exists.
        """
        timeouts = self._owner.timeouts
        timeout_s = timeouts.request_s if self.place is None else timeouts.attempt_s
        try:
            reply = await self._owner.control.request(self.request, SubscribeReply, timeout_s)
        except (ConnectionFailed, HeadSilent) as error:
            if self.place is None:
                raise
            logger.info("%s: %s; going back to %s", self, error, self.place.edge)
            return self.place
        if reply.awaiting:
            logger.warning("%s: not yet known to the heads %s", self, ", ".join(reply.awaiting))
        self.place = Place(reply.edge, reply.url, reply.queue, reply.subscription.number)
        return self.place

    async def _consume(self, channel: Channel, place: Place) -> None:
        inbox, ledger, now = self.inbox, self.inbox.attach(), self._runtime.now

        def deliver(
            tag: int,
            topic: str,
            body: bytes,
            message_id: str | None,
            headers: Mapping[str, Any] | None,
            redelivered: bool,
        ) -> None:
            if inbox.receive(ledger, tag, topic, body, message_id, headers, redelivered, now()):
                self._on_change()
            else:
                self.settled()

        # A predecessor whose connection lingers holds the queue; the refusal closes the channel and we come
        # back.
        await channel.consume(place.queue, inbox.prefetch, deliver)
        self.attached = True
        if self._ever_attached:
            self.reconnects += 1
        self._ever_attached = True
        self._attached.set()

    async def _serve(self, channel: Channel) -> None:
        """Send acknowledgements in bulk until the channel is lost, the consumer is cancelled or we are told
        to stop.
        """
        while channel.lost is None and not self._stopping:
            await self._wake.wait()
            if self.inbox.settled_count < self.inbox.ack_batch and not self._stopping:
                await self._batch.wait(ACK_DELAY_S)
            # Before looking, so that whatever is settled from here on wakes us again.
            self._acks_coming = False
            if channel.lost is None:
                await channel.acknowledge(self.inbox.acknowledgements())

    async def _pause(self, attempt: int, error: TidegateError) -> None:
        delay_s = self._owner.backoff.delay_s(attempt, self._runtime.chance())
        level = logging.WARNING if attempt == 0 else logging.DEBUG
        logger.log(level, "%s: %s (next attempt in %.1f s)", self, error, delay_s)
        until = self._runtime.now() + delay_s
        while not self._stopping and (left_s := until - self._runtime.now()) > 0:
            await self._wake.wait(left_s)


class DataConnections:
    """One connection per edge, shared by the subscriptions there and closed after the last of them."""

    def __init__(self, runtime: Runtime, name: str, timeouts: Timeouts) -> None:
        self._runtime = runtime
        self._name = name
        self._timeouts = timeouts
        self._gates: dict[str, Gate] = {}
        """One per edge ever used, so that an edge which does not answer delays no other."""
        self._open: dict[str, Connection] = {}
        self._users: dict[Connection, int] = {}

    @asynccontextmanager
    async def use(self, address: Address) -> AsyncIterator[Connection]:
        """A connection to `address` for as long as the context lasts."""
        key = str(address)
        async with self._gates.setdefault(key, Gate(self._runtime)):
            connection = self._open.get(key)
            if connection is None or not connection.usable:
                connection = await self._runtime.connect(address, f"{self._name} data", self._timeouts)
                self._open[key] = connection
            self._users[connection] = self._users.get(connection, 0) + 1
        try:
            yield connection
        finally:
            self._users[connection] -= 1
            if not self._users[connection]:
                del self._users[connection]
                if self._open.get(key) is connection:
                    del self._open[key]
                await connection.close()


class SubscriberEngine:
    """Runs one subscriber: a control connection, data connections, and any number of subscriptions."""

    def __init__(
        self,
        runtime: Runtime,
        address: Address,
        name: str,
        limits: Limits,
        timeouts: Timeouts,
        backoff: Backoff,
    ) -> None:
        self.runtime = runtime
        self.address = address
        self.name = name
        self.limits = limits
        self.timeouts = timeouts
        self.backoff = backoff
        connection_name = f"tidegate subscriber {name}"
        self.control = Control(runtime, address, connection_name, timeouts, backoff)
        self.data = DataConnections(runtime, connection_name, timeouts)
        self._subscriptions: list[SubscriptionEngine] = []

    async def start(self) -> None:
        """Connect to the head, so that a wrong address or password shows now and not at the first
        subscription.
        """
        await self.control.open()

    async def subscribe(
        self, request: SubscribeRequest, inbox: Inbox, on_change: Callable[[], None]
    ) -> SubscriptionEngine:
        same = [other for other in self._subscriptions if other.request.pattern == request.pattern]
        if any(not other.ended for other in same):
            problem = "is subscribed to by this subscriber already"
            raise InvalidValue("pattern", request.pattern, problem, "use that subscription, or end it first")
        subscription = SubscriptionEngine(self, request, inbox, on_change)
        # Before it starts, so that close() ends it even if nobody waits for its start any more.
        self._subscriptions = [other for other in self._subscriptions if other not in same] + [subscription]
        try:
            await subscription.start()
        except BaseException:
            # It stays among the subscriptions: a queue may have been made, and close() removes it.
            subscription.give_up()
            raise
        return subscription

    async def unsubscribe(self, subscription: SubscriptionEngine) -> None:
        """Stop, and have the queue removed. If that fails it may be tried again, and close() does."""
        await subscription.stop()
        if subscription.place is not None:
            await self.control.request(
                UnsubscribeRequest(subscriber=self.name, number=subscription.place.number),
                UnsubscribeReply,
                self.timeouts.attempt_s,
            )
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    async def close(self, unsubscribe: bool) -> None:
        """Stop everything; an anonymous subscriber leaves nothing behind."""
        for subscription in list(self._subscriptions):
            try:
                if unsubscribe:
                    await self.unsubscribe(subscription)
                else:
                    await subscription.stop()
            except TidegateError as error:
                # The queue expires by itself; a client that wants to go must not be kept.
                logger.warning("%s: left behind: %s", subscription, error)
        self._subscriptions.clear()
        await self.control.close()
