"""Data connections, and the consumers on them.

Connections are shared: one per edge, closed with the last consumer there. A `SlotConsumer` is one attempt of a
subscription to be served from one queue, with a channel and a ledger of its own.

Invariant: a consumer ends once, as lost or, if it was told to leave, as left. When it says so, the acknowledgements of
everything settled are written, as far as the channel lived, and its ledger is dead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from .._core.config import Address, Timeouts
from .._core.errors import TidegateError
from .._core.inbox import Inbox
from .._core.moves import Place
from .runtime import Channel, ChannelLost, Connection, Consumer, Gate, Runtime


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
        self._closing = 0
        self._closed = runtime.signal()

    @asynccontextmanager
    async def attach(
        self, address: Address, consumer: Consumer, on_lost: Callable[[], None], in_hurry: Callable[[], bool]
    ) -> AsyncIterator[Channel]:
        """A consumer at `address` for as long as the context lasts.

        `in_hurry` is asked at its end: if the consumer was the last one there, the connection goes without waiting for
        what is still under way.
        """
        key = str(address)
        channel: Channel | None = None
        async with self._gates.setdefault(key, Gate(self._runtime)):
            connection = self._open.get(key)
            if connection is None or not connection.usable:
                connection, channel = await self._runtime.attach(
                    address, f"{self._name} data", self._timeouts, consumer, on_lost
                )
                self._open[key] = connection
            self._users[connection] = self._users.get(connection, 0) + 1
        try:
            if channel is None:
                channel = await connection.attach(consumer, on_lost)
            yield channel
        finally:
            self._users[connection] -= 1
            if not self._users[connection]:
                del self._users[connection]
                if self._open.get(key) is connection:
                    del self._open[key]
                self._closing += 1
                await connection.close(hurry=in_hurry())
                self._closing -= 1
                self._closed.set()

    def is_alone(self, address: Address) -> bool:
        """Whether the connection to `address` has no other consumer."""
        connection = self._open.get(str(address))
        return connection is not None and self._users.get(connection) == 1

    async def close(self) -> None:
        """Wait for the connections that are being closed. Their consumers have been told to leave before."""
        until = self._runtime.now() + self._timeouts.close_s
        while (self._users or self._closing) and (left_s := until - self._runtime.now()) > 0:
            await self._closed.wait(left_s)


class SlotConsumer:
    """One attachment of a subscription."""

    def __init__(
        self,
        runtime: Runtime,
        number: int,
        place: Place,
        inbox: Inbox,
        on_attached: Callable[[], None],
        on_end: Callable[[SlotConsumer, TidegateError | None], None],
    ) -> None:
        """`on_end` gets what it was lost by, or None when it has left."""
        self.number = number
        self.place = place
        self.ledger = inbox.open_ledger()
        self._inbox = inbox
        self._runtime = runtime
        self._on_attached = on_attached
        self._on_end = on_end
        self._channel: Channel | None = None
        self._changed = runtime.signal()
        self._leave_by: float | None = None
        """When it is to be gone at the latest; None while it is to stay."""
        self._hurry = False
        self._ended = False
        self._prefetch = 0
        self._too_wide = False
        """Whether its window holds far more bytes than it may, so that it is to begin anew with a smaller one."""

    async def run(self, data: DataConnections, address: Address, consumer: Consumer) -> None:
        """Attach and stay until the channel is lost or `leave` was called."""
        lost: TidegateError | None = None
        self._prefetch = consumer.prefetch
        try:
            async with data.attach(address, consumer, self._changed.set, lambda: self._hurry) as channel:
                self._channel = channel
                if self._leave_by is None:
                    self._on_attached()
                await self._stay(channel)
                lost = channel.lost
                if lost is None:
                    acks = self._inbox.acknowledgements(self.ledger, final=True)
                    # From here on no other coroutine writes to a channel that is about to be closed.
                    self.ledger.alive = False
                    await channel.acknowledge(acks)
                if lost is None and self._too_wide and self._leave_by is None:
                    # Closed first: RabbitMQ lets nobody else consume meanwhile, and takes back what is unsettled.
                    await channel.close()
                    self._end(ChannelLost(str(address), "what is under way takes too many bytes; its window shrinks"))
                    return
                # Everything is settled, and RabbitMQ reads the acknowledgements before the close. Its answer to the
                # close is not waited for: it comes late from an edge whose uplink is full.
                self._end(lost)
                if lost is None and not (self._hurry and data.is_alone(address)):
                    await channel.close()
        except TidegateError as error:
            self._end(error)

    def leave(self, patience_s: float, *, hurry: bool = False) -> None:
        """Have it end once everything it brought is settled, or after `patience_s`. `hurry` is that of `Detach`."""
        self._hurry = hurry
        by = self._runtime.now() + patience_s
        self._leave_by = by if self._leave_by is None else min(by, self._leave_by)
        if self._channel is None and not self.ledger.last:
            # A consumer still connecting to an edge that does not answer is not waited for; one that has brought
            # something has an edge that answers.
            self._end(None)
        self._changed.set()

    async def acknowledge(self) -> None:
        """Send what is settled of it."""
        channel = self._channel
        if channel is not None and channel.lost is None and self.ledger.alive:
            await channel.acknowledge(self._inbox.acknowledgements(self.ledger))
            self._too_wide = self._inbox.window.is_too_wide(self._prefetch)
        if self._leave_by is not None or self._too_wide:
            self._changed.set()

    async def _stay(self, channel: Channel) -> None:
        while channel.lost is None and (self._leave_by is not None or not self._too_wide):
            wait_s = None
            if self._leave_by is not None:
                wait_s = self._leave_by - self._runtime.now()
                if wait_s <= 0 or not self.ledger.outstanding:
                    return
            await self._changed.wait(wait_s)

    def _end(self, lost: TidegateError | None) -> None:
        self.ledger.alive = False
        if not self._ended:
            self._ended = True
            self._on_end(self, None if self._leave_by is not None else lost)
