"""Subscribers that follow the rules of migrations and nothing else, for `migration_world`.

Invariant: a client takes from the queue of its place, holds back what comes by the queue of its next place until both
markers have come, and reports each outcome until its head has acknowledged it. It knows no head and no edges: its
surroundings say what it reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tidegate_protocol.balancing.migrations import (
    MigrateCancel,
    MigrateOrder,
    MigrationAck,
    MigrationReport,
    MigrationStage,
)
from tidegate_protocol.balancing.places import CollectOrder, PlaceReply, PlaceRequest
from tidegate_protocol.messages import (
    ControlMessage,
    Refusal,
    RefusalReason,
    SubscribeReply,
    SubscribeRequest,
    Subscription,
)

PATTERN = "a"
Place = tuple[str, int]


@dataclass
class Queue:
    subscription: Subscription
    items: list[int | str] = field(default_factory=list)
    markers: set[str] = field(default_factory=set)


class Surroundings(Protocol):
    """What a client has to do with."""

    sequence: int
    """Of the message that was published last."""

    def after(self, delay_s: float, step: Callable[[], None]) -> None: ...

    def tell(self, sender: str, message: ControlMessage) -> None: ...

    def is_reachable(self, edge: str) -> bool: ...

    def queue_at(self, subscriber: str, place: Place) -> Queue | None: ...


@dataclass
class Client:
    """A subscriber of `PATTERN` that follows the rules."""

    name: str
    _world: Surroundings
    place: Place | None = None
    seen: set[int] = field(default_factory=set)
    first: int | None = None
    last: int = -1
    up: bool = True
    doubles: int = 0
    disorder: int = 0
    order: MigrateOrder | None = None
    attached: bool = False
    marked: set[str] = field(default_factory=set)
    collecting: CollectOrder | None = None
    outcomes: dict[str, MigrationReport] = field(default_factory=dict)
    reports: dict[str, MigrationReport] = field(default_factory=dict)
    life: int = 0
    moves: int = 0

    def crash(self) -> None:
        """Forget everything but what was received."""
        self.up, self.place = False, None
        self.order, self.attached, self.collecting = None, False, None
        self.outcomes, self.reports = {}, {}
        self.life += 1

    def _tell(self, message: ControlMessage) -> None:
        self._world.tell(self.name, message)

    def _queue_at(self, place: Place | None) -> Queue | None:
        return None if place is None else self._world.queue_at(self.name, place)

    def remind(self) -> None:
        """Ask for a place as long as there is none, and repeat what was not acknowledged."""
        if not self.up:
            return
        place = self.place
        if self._queue_at(place) is None:
            unreachable = place[0] if place is not None and not self._world.is_reachable(place[0]) else None
            self._tell(
                SubscribeRequest(subscriber=self.name, pattern=PATTERN, deadline_us=1_000_000, unreachable=unreachable),
            )
        for report in self.reports.values():
            self._tell(report)

    def answered(self, message: ControlMessage, life: int) -> None:
        if not self.up or life != self.life:
            return
        match message:
            case SubscribeReply(edge=edge, subscription=subscription):
                if self.order is None and self._queue_at(self.place) is None:
                    self.place = (edge, subscription.number)
                    if self.first is None:
                        self.first = self._world.sequence + 2
            case MigrationAck(migration=migration):
                self.reports.pop(migration, None)
            case _:
                pass

    def _report(self, migration: str, stage: MigrationStage, other: Place | None) -> MigrationReport:
        assert self.place is not None
        return MigrationReport(
            migration=migration,
            subscriber=self.name,
            stage=stage,
            pattern=PATTERN,
            edge=self.place[0],
            number=self.place[1],
            other_edge=other[0] if other else None,
            other_number=other[1] if other else None,
        )

    def receive(self, message: ControlMessage) -> ControlMessage | None:
        if not self.up:
            return None
        if self.place is None:
            return Refusal(reason=RefusalReason.NOT_READY, message="no place yet")
        match message:
            case MigrateOrder():
                return self._ordered(message)
            case MigrateCancel(migration=migration):
                if self.order is not None and self.order.migration == migration:
                    self._stay(told=False)
                unknown = self._report(migration, MigrationStage.UNKNOWN, None)
                return self.outcomes.setdefault(migration, unknown)
            case PlaceRequest():
                under_way = self.order.migration if self.order else None
                return PlaceReply(
                    subscriber=self.name,
                    pattern=PATTERN,
                    edge=self.place[0],
                    number=self.place[1],
                    migration=under_way,
                )
            case CollectOrder():
                if message.migration in self.outcomes:
                    return self.outcomes[message.migration]
                if (message.edge, message.number) == self.place or self.order is not None:
                    return self._report(message.migration, MigrationStage.UNKNOWN, None)
                self.collecting = message
                return self._report(message.migration, MigrationStage.ORDERED, None)
            case _:
                return None

    def _ordered(self, order: MigrateOrder) -> MigrationReport:
        target = (order.edge, order.number)
        if order.migration in self.outcomes:
            return self.outcomes[order.migration]
        if self.order is not None and self.order.migration == order.migration:
            stage = MigrationStage.ATTACHED if self.attached else MigrationStage.ORDERED
            return self._report(order.migration, stage, target)
        if self.order is not None or self.place != (order.edge_from, order.number_from):
            report = self._report(order.migration, MigrationStage.STAYED, target)
            self.outcomes[order.migration] = report
            return report
        self.order, self.attached, self.marked = order, False, set()
        life = self.life
        self._world.after(0.1, lambda: self._attach(order, life))
        self._world.after(order.timeout_us / 1e6, lambda: self._out_of_time(order, life))
        return self._report(order.migration, MigrationStage.ORDERED, target)

    def _attach(self, order: MigrateOrder, life: int) -> None:
        if self.life == life and self.order is order:
            self.attached = True
            target = (order.edge, order.number)
            self.reports[order.migration] = self._report(order.migration, MigrationStage.ATTACHED, target)
            self._tell(self.reports[order.migration])

    def _out_of_time(self, order: MigrateOrder, life: int) -> None:
        if self.life == life and self.order is order:
            self._stay(told=True)

    def _stay(self, told: bool) -> None:
        order = self.order
        assert order is not None
        self.order = None
        self.reports.pop(order.migration, None)
        report = self._report(order.migration, MigrationStage.STAYED, (order.edge, order.number))
        self.outcomes[order.migration] = report
        if told:
            self.reports[order.migration] = report
            self._tell(report)

    def serve(self) -> None:
        """Take what waits: from the old queue first, from the new one when it is complete."""
        if not self.up or self.place is None:
            return
        old = self._queue_at(self.place)
        while old is not None and old.items:
            item = old.items.pop(0)
            if isinstance(item, int):
                self._take(item)
            elif self.order is not None and self.order.migration in item:
                self.marked.add("old")
        order = self.order
        if order is not None and self.attached:
            self._hold(order)
        if self.collecting is not None:
            self._collect(self.collecting)

    def _hold(self, order: MigrateOrder) -> None:
        new = self._queue_at((order.edge, order.number))
        if new is None:
            self._stay(told=True)
            return
        if any(isinstance(item, str) and order.migration in item for item in new.items):
            self.marked.add("new")
        held = [item for item in new.items if isinstance(item, int)]
        if self.marked != {"old", "new"} or (held and held[0] > self.last + 1 and self.last >= 0):
            return
        self.order, left = None, self.place
        self.place = (order.edge, order.number)
        self.reports.pop(order.migration, None)
        report = self._report(order.migration, MigrationStage.MOVED, left)
        self.outcomes[order.migration] = self.reports[order.migration] = report
        self.moves += 1
        self._tell(report)

    def _collect(self, order: CollectOrder) -> None:
        queue = self._queue_at((order.edge, order.number))
        while queue is not None and queue.items:
            item = queue.items.pop(0)
            if isinstance(item, int):
                self._take(item, collected=True)
            elif order.migration in item:
                self.collecting = None
                report = self._report(order.migration, MigrationStage.STAYED, (order.edge, order.number))
                self.outcomes[order.migration] = self.reports[order.migration] = report
                self._tell(report)
                return

    def _take(self, item: int, collected: bool = False) -> None:
        if item in self.seen:
            self.doubles += 1
            return
        self.seen.add(item)
        if not collected:
            self.disorder += item < self.last
            self.last = max(self.last, item)
