"""Fetching what an edge that was away has kept for a subscription that lives elsewhere by now.

The attachment only drains: what is new of it is delivered, marked as collected, until the head's marker has come
through; then the queue is left and given up for removal. While a migration runs, what comes is held: it must not
look as if the old queue had brought it.

A queue that was not emptied is never given up: when the time is over, the report says `unknown`, nothing is
remembered, and the order may come again."""

from __future__ import annotations

from typing import Any, Final

from tidegate_protocol.balancing import CollectOrder, MigrationReport, MigrationStage

from ._attachment import Actions, Outcome, Slot, SlotState, Standing, key_of, marker_name
from ._moves import CancelTimer, Held, Place, SetTimer

COLLECT: Final = "collect"
COLLECT_ATTACH: Final = "collect-attach"


class Collector:
    """One collection, from its order to its end. `ended` says that nothing more comes of it."""

    def __init__(self, standing: Standing, order: CollectOrder) -> None:
        self.order = order
        self.slot: Slot = standing.open_slot(place_of(order))
        self.stage = MigrationStage.ORDERED
        self.ended = False
        self.held: list[Held] = []
        self._standing = standing
        self._head_url = standing.head_url
        self._marker = marker_name(order.migration)
        self._missing = set(order.heads)
        self._until_s = 0.0

    def begin(self, now: float) -> Actions:
        self._until_s = now + self.order.timeout_us / 1e6
        self._standing.collecting_at = self._head_url
        self._standing.tell(now, f"collection {self.order.migration}: from {self.order.edge}")
        return [SetTimer(COLLECT, self.order.timeout_us / 1e6), self._standing.attach(self.slot)]

    def present(self) -> MigrationReport:
        """The answer to an order that comes again."""
        return self._standing.report(self.order.migration, self.stage, key_of(self.slot.place))

    def hold(self, message_id: str | None, payload: Any) -> None:
        self.held.append(Held(self.slot.number, message_id, payload, collected=True))

    def take_held(self) -> list[Held]:
        held, self.held = self.held, []
        return held

    def attached(self, now: float) -> Actions:
        self.slot.attached(now)
        self.stage = MigrationStage.ATTACHED
        return self._standing.start_report(self.present(), self._head_url)

    def lost(self, gone: bool, now: float) -> Actions:
        # What was held of the lost attachment comes again with the next one.
        self.held.clear()
        if gone:
            self._missing.clear()
            self.slot.state = SlotState.WAITING
            return self.end_if_complete("the queue is gone", now)
        return self._standing.lost(self.slot, COLLECT_ATTACH, now)

    def marker(self, name: str, head: str) -> None:
        if name == self._marker:
            self._missing.discard(head)

    def attach_again(self) -> Actions:
        return self._standing.attach_again(self.slot)

    def end_if_complete(self, reason: str, now: float) -> Actions:
        """Leave the queue if everything has come that waited there before the marker."""
        if self._missing or self.held or self.ended:
            return []
        standing, migration = self._standing, self.order.migration
        outcome = Outcome(MigrationStage.STAYED, None, key_of(self.slot.place), reason)
        standing.outcomes.remember(migration, outcome)
        standing.tell(now, f"collection {migration}: done {reason}".rstrip())
        report = standing.outcome_report(migration, outcome)
        left_s = self._until_s - now
        return [*self._end(), *standing.give_up(self.slot, COLLECT_ATTACH, report, self._head_url, left_s)]

    def time_out(self, now: float) -> Actions:
        standing, migration = self._standing, self.order.migration
        standing.tell(now, f"collection {migration}: not collected in time")
        report = standing.report(migration, MigrationStage.UNKNOWN, None, "not collected in time")
        return [*self.abandon(), *standing.start_report(report, self._head_url)]

    def abandon(self) -> Actions:
        """Leave the queue as it is, without a word."""
        self.held.clear()
        return [*self._end(), *self._standing.drop(self.slot, COLLECT_ATTACH)]

    def _end(self) -> Actions:
        self.ended = True
        self._standing.collecting_at = None
        return [CancelTimer(COLLECT), *self._standing.drop_report(self.order.migration, MigrationStage.ATTACHED)]


def place_of(order: CollectOrder) -> Place:
    return Place(order.edge, order.url, order.queue, order.number)
