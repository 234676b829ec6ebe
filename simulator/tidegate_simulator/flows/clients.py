"""Subscribers in rate mode: they ask for their place, and play their part when they are to be moved.

The machine of the SDK works on single messages, of which there are none here, so this is the least that answers the
protocol in its stead: an order is answered at once; after the round trips that attaching takes the client reports
`attached`; when the markers of all heads have come through both queues, each after the wait that its uplink has at
that moment, it reports `moved`. It gives up at the order's own time-out or when it is told to, unless it has moved.
What it leaves out: what a message held back costs, lost connections, and repeating a report (nothing is lost here).

A subscriber that is not moved costs an entry in two tables and no object of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.balancing import (
    MigrateCancel,
    MigrateOrder,
    MigrationReport,
    MigrationStage,
    PlaceReply,
    PlaceRequest,
)
from tidegate_protocol.messages import ControlMessage, Refusal, SubscribeReply, SubscribeRequest
from tidegate_protocol.names import marker_pattern

from ..kernel import Kernel
from ..scenario import SubscriberSpec

JOIN_ATTEMPTS_MAX: Final = 30
"""How often a client that is put off asks again."""

Place = tuple[str, int]
"""The edge and the number of the queue that a subscriber delivers from."""


@dataclass(slots=True)
class Migration:
    """One client's part of a migration under way."""

    order: MigrateOrder
    ordered_by: str
    """The head that counts the migrations of the session: reports go there, wherever the client goes."""
    missing: set[tuple[str, str]] = field(default_factory=set)
    """Edges and heads whose marker has not come through that edge's queue."""
    attached: bool = False


@dataclass(frozen=True, slots=True)
class Ways:
    """What clients need of the world: to send to a head, and how long things take."""

    kernel: Kernel
    send: Callable[[str, str, ControlMessage], None]
    """From a subscriber to a head, which will answer."""
    attach_s: Callable[[str], float]
    """How long attaching to a queue of this edge takes."""


class Clients:
    """All subscribers of a scenario."""

    def __init__(self, ways: Ways, subscribers: tuple[SubscriberSpec, ...]) -> None:
        self._ways = ways
        self.specs = {spec.name: spec for spec in subscribers}
        self.places: dict[str, Place] = {}
        self.refused = 0
        self.moved = 0
        self.stayed = 0
        self._head: dict[str, str] = {}
        """The heads of those that have come to another cluster."""
        self._asked: dict[str, int] = {}
        self._migrations: dict[str, Migration] = {}
        self._by_marker: dict[str, str] = {}

    def head_of(self, subscriber: str) -> str:
        return self._head.get(subscriber) or self.specs[subscriber].head

    # Joining

    def join(self, subscriber: str) -> None:
        """Ask the head for a place."""
        spec = self.specs[subscriber]
        request = SubscribeRequest(
            subscriber=subscriber, pattern=spec.pattern, deadline_us=round(spec.deadline_s * 1e6)
        )
        self._asked[subscriber] = self._asked.get(subscriber, 0) + 1
        self._ways.send(subscriber, self.head_of(subscriber), request)

    def answered(self, subscriber: str, message: ControlMessage) -> None:
        """The answer to a request of ours: a place, a refusal, or that a report was heard."""
        if isinstance(message, SubscribeReply):
            self._asked.pop(subscriber, None)
            self.places[subscriber] = (message.edge, message.subscription.number)
        elif isinstance(message, Refusal) and subscriber in self._asked:
            if self._asked[subscriber] >= JOIN_ATTEMPTS_MAX:
                self.refused += 1
                del self._asked[subscriber]
            else:
                self._ways.kernel.after(message.retry_after_s or 1.0, self.join, subscriber)

    # Moving

    def receive(self, subscriber: str, head: str, message: ControlMessage) -> ControlMessage | None:
        """What a head asks of a client, and the answer; None for what a client of rate mode does not do."""
        if subscriber not in self.places:
            return None
        match message:
            case MigrateOrder():
                return self._ordered(subscriber, head, message)
            case MigrateCancel(migration=migration):
                return self._cancelled(subscriber, migration, message.pattern)
            case PlaceRequest():
                edge, number = self.places[subscriber]
                running = self._migrations.get(subscriber)
                return PlaceReply(
                    subscriber=subscriber,
                    pattern=message.pattern,
                    edge=edge,
                    number=number,
                    migration=running.order.migration if running is not None else None,
                )
            case _:
                return None

    def _ordered(self, subscriber: str, head: str, order: MigrateOrder) -> MigrationReport:
        running = self._migrations.get(subscriber)
        if running is None and self.places[subscriber] == (order.edge_from, order.number_from):
            missing = {(edge, name) for edge in (order.edge_from, order.edge) for name in order.heads}
            running = Migration(order, head, missing)
            self._migrations[subscriber] = running
            self._by_marker[marker_pattern(order.migration)] = subscriber
            kernel = self._ways.kernel
            kernel.after(self._ways.attach_s(order.edge), self._attached, running)
            kernel.after(order.timeout_us / 1e6, self._timed_out, running)
        if running is None or running.order.migration != order.migration:
            return self._report(subscriber, order, MigrationStage.STAYED, "not where the order says, or busy")
        stage = MigrationStage.ATTACHED if running.attached else MigrationStage.ORDERED
        return self._report(subscriber, order, stage)

    def _attached(self, running: Migration) -> None:
        order = running.order
        if self._migrations.get(order.subscriber) is running:
            running.attached = True
            self._send(running, self._report(order.subscriber, order, MigrationStage.ATTACHED))
            self._move_if_complete(running)

    def marker(self, key: str, edge: str, head: str) -> None:
        """A marker has come through the queue on `edge`."""
        running = self._migrations.get(self._by_marker.get(key, ""))
        if running is not None:
            running.missing.discard((edge, head))
            self._move_if_complete(running)

    def _move_if_complete(self, running: Migration) -> None:
        order = running.order
        if running.attached and not running.missing:
            self._end(running)
            self.moved += 1
            self.places[order.subscriber] = (order.edge, order.number)
            if order.head_url:
                self._head[order.subscriber] = order.head
            self._send(running, self._report(order.subscriber, order, MigrationStage.MOVED))

    def _timed_out(self, running: Migration) -> None:
        if self._migrations.get(running.order.subscriber) is running:
            self._send(running, self._stay(running, "the markers did not come in time"))

    def _cancelled(self, subscriber: str, migration: str, pattern: str) -> MigrationReport:
        running = self._migrations.get(subscriber)
        if running is not None and running.order.migration == migration:
            return self._stay(running, "cancelled")
        edge, number = self.places[subscriber]
        return MigrationReport(
            migration=migration,
            subscriber=subscriber,
            stage=MigrationStage.UNKNOWN,
            pattern=pattern,
            edge=edge,
            number=number,
        )

    def _stay(self, running: Migration, reason: str) -> MigrationReport:
        self._end(running)
        self.stayed += 1
        return self._report(running.order.subscriber, running.order, MigrationStage.STAYED, reason)

    def _end(self, running: Migration) -> None:
        del self._migrations[running.order.subscriber]
        del self._by_marker[marker_pattern(running.order.migration)]

    def _send(self, running: Migration, report: MigrationReport) -> None:
        self._ways.send(report.subscriber, running.ordered_by, report)

    def _report(self, subscriber: str, order: MigrateOrder, stage: MigrationStage, reason: str = "") -> MigrationReport:
        edge, number = self.places[subscriber]
        new = (order.edge, order.number)
        other = (order.edge_from, order.number_from) if (edge, number) == new else new
        return MigrationReport(
            migration=order.migration,
            subscriber=subscriber,
            stage=stage,
            pattern=order.pattern,
            edge=edge,
            number=number,
            other_edge=other[0],
            other_number=other[1],
            reason=reason,
        )
