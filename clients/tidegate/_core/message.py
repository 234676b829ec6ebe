"""A message as the application sees it.

A message is made when its delivery comes in, and completed when it is handed over: only then its age is known, and
whether it is late.

Invariant: a message knows the ledger of the channel it came by, so that its acknowledgement never goes to another
channel.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidegate_protocol.form import AttributeValue, attributes_of

from .delivery import AckLedger


class Message:
    """One delivery. `late` tells whether it was handed over after the deadline of its subscription."""

    __slots__ = (
        "_attributes",
        "_headers",
        "_settle",
        "_settled",
        "account",
        "body",
        "collected",
        "deadline_s",
        "id",
        "identity",
        "late",
        "ledgers",
        "published_us",
        "received_at",
        "redelivered",
        "replayed",
        "time_checked",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        body: bytes,
        message_id: str | None,
        headers: Mapping[str, Any] | None,
        redelivered: bool,
        deadline_s: float,
        published_us: int | None,
        account: str | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.id = message_id
        self.account = account
        """Who published it, as RabbitMQ has checked; None if its publisher did not say."""
        self.identity: str | None = None
        """What it is known by to the inbox; None for a message from a foreign client."""
        self.redelivered = redelivered
        self.deadline_s = deadline_s
        self.published_us = published_us
        self.received_at = 0.0
        """When it was handed over to the application, in seconds since 1970 by this machine's clock."""
        self.late = False
        self.time_checked = True
        """Whether `published_at` is a time that the head has checked, or that of a publisher with an id where no head
        stamps: only then it counts in statistics. By a clock that is wrong nobody should be woken up."""
        self.collected = False
        """Whether it was fetched from an edge that had been away: newer ones may have come before it."""
        self.replayed = False
        """Whether it had been dropped, because too much waited, and an operator had it sent again. Never late: it is
        older than any deadline."""
        self.ledgers: list[tuple[AckLedger, int]] = []
        """Where to settle it: more than one entry if RabbitMQ delivered it again before it was settled."""
        self._headers = headers
        self._attributes: dict[str, AttributeValue] | None = None
        self._settle: Callable[[Message], None] | None = None
        self._settled = False

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """What the publisher attached; empty if nothing."""
        if self._attributes is None:
            self._attributes = attributes_of(self._headers)
        return self._attributes

    @property
    def publisher(self) -> str | None:
        """The id of the publisher, with its incarnation; None for a message from a foreign client."""
        return self.id.partition(":")[0] if self.id else None

    @property
    def sequence(self) -> int | None:
        """The number of this message, from 0, among the messages of its publisher and topic; None if foreign."""
        return int(self.id.rpartition(":")[2]) if self.id else None

    @property
    def published_at(self) -> float | None:
        """Seconds since 1970 by the publisher's clock, never after it came to its head where that is known; None if
        nobody said."""
        return None if self.published_us is None else self.published_us / 1e6

    @property
    def age_s(self) -> float | None:
        """How old it was when it was handed over; None if the publisher did not say when it was published."""
        return None if self.published_us is None else max(0.0, self.received_at - self.published_us / 1e6)

    def ack(self) -> Awaitable[None]:
        """Acknowledge, in manual mode: the application is done with it. May be awaited, need not be.

        Acknowledging twice is allowed, and so is acknowledging what was acknowledged automatically.
        """
        if not self._settled:
            self._settled = True
            if self._settle is not None:
                self._settle(self)
        return _NOTHING

    def __repr__(self) -> str:
        return f"<Message {self.id or self.topic} {len(self.body)} bytes{' late' if self.late else ''}>"


class _Nothing:
    """What `ack()` returns: done already, so that awaiting it never waits."""

    def __await__(self) -> Any:
        return
        yield


_NOTHING = _Nothing()
