"""Subscribers in rate mode: they ask for their place, and play their part when they are to be moved.

The machine of the SDK works on single messages, of which there are none here, so this is the least that answers the
protocol in its stead: an order is answered at once; after the round trips that attaching takes the client reports
`attached`; when the markers of all heads have come through both queues, each after the wait that its uplink has at
that moment, it reports `moved`. It gives up at the order's own time-out or when it is told to, unless it has moved.
What it leaves out: what a message held back costs, lost connections, and repeating a report (nothing is lost here).

A subscriber that is not moved costs an entry in two tables and no object of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate_agents.machine import ReplyAddress
from tidegate_protocol.balancing.migrations import MigrateCancel, MigrateOrder, MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import PlaceReply, PlaceRequest
from tidegate_protocol.messages import ControlMessage, Refusal, SubscribeReply
from tidegate_protocol.names import marker_pattern
from tidegate_simulator.configs import subscribe_request
from tidegate_simulator.control import ControlNetwork
from tidegate_simulator.kernel import Kernel
from tidegate_simulator.scenario import Scenario

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


class OneClient:
    """One subscriber, as the control network sees it; made when it is asked for."""

    __slots__ = ("_clients", "_name", "incarnation")

    def __init__(self, clients: Clients, name: str) -> None:
        self._clients = clients
        self._name = name
        self.incarnation = 1

    def listens_at(self, head: str) -> bool:
        return self._name in self._clients.places

    def ordered(self, message: ControlMessage, reply_to: ReplyAddress | None) -> None:
        if reply_to is not None:
            self._clients.ordered(self._name, message, reply_to)

    def answered(self, request: str, message: ControlMessage) -> None:
        self._clients.answered(self._name, message)


class Clients:
    """All subscribers of a scenario."""

    def __init__(self, kernel: Kernel, network: ControlNetwork, scenario: Scenario) -> None:
        self._kernel = kernel
        self._network = network
        round_trips = 0.0 if scenario.control.instant else scenario.control.attach_round_trips
        self._attach_s = {spec.name: round_trips * 2.0 * spec.client_delay_s for spec in scenario.edges}
        """How long attaching to a queue of an edge takes."""
        self.specs = {spec.name: spec for spec in scenario.subscribers}
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
        self._asked[subscriber] = self._asked.get(subscriber, 0) + 1
        self._request(subscriber, self.head_of(subscriber), subscribe_request(self.specs[subscriber]))

    def _request(self, subscriber: str, head: str, message: ControlMessage) -> None:
        self._network.request(subscriber, head, message, "client")

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
                self._kernel.after(message.retry_after_s or 1.0, self.join, subscriber)

    # Moving

    def ordered(self, subscriber: str, message: ControlMessage, reply_to: ReplyAddress) -> None:
        """A head asks something of a client; what a client of rate mode does not do is not answered."""
        answer = self._answer(subscriber, message, reply_to.token.rpartition(" ")[0])
        if answer is not None:
            self._network.reply(subscriber, reply_to, answer)

    def _answer(self, subscriber: str, message: ControlMessage, head: str) -> ControlMessage | None:
        match message:
            case MigrateOrder():
                return self._begun(subscriber, head, message)
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

    def _begun(self, subscriber: str, head: str, order: MigrateOrder) -> MigrationReport:
        running = self._migrations.get(subscriber)
        if running is None and self.places[subscriber] == (order.edge_from, order.number_from):
            missing = {(edge, name) for edge in (order.edge_from, order.edge) for name in order.heads}
            running = Migration(order, head, missing)
            self._migrations[subscriber] = running
            self._by_marker[marker_pattern(order.migration)] = subscriber
            self._kernel.after(self._attach_s[order.edge], self._attached, running)
            self._kernel.after(order.timeout_us / 1e6, self._timed_out, running)
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
        self._request(report.subscriber, running.ordered_by, report)

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
