"""Collecting: fetching what an edge kept while it was away, for a subscription that lives elsewhere by now.

The collector attaches to the old queue and delivers what is new there, marked as collected, until the head's marker has
come through. Then it leaves the queue and gives it up for removal. It holds deliveries back, unacknowledged, in two
cases:

- while a migration runs: a collected message must not look as if the queue in use had brought it;
- when a message is ahead of what was delivered of its publisher and topic. The queue may be one that a migration had
  prepared when its head was killed. Such a queue holds only newer messages, and older ones may wait in a backlog of the
  place in use. The collector waits for them while they come nearer, and after that for `PATIENCE_SHARE` of the time it
  has: they may never come.

Invariant: a queue that was not emptied is never given up. When the time is over, the report says `unknown`, the machine
remembers no outcome, and the head may order the collection again.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from tidegate_protocol.balancing.migrations import MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import CollectOrder

from .attachment import Actions, MigrationOutcome, Slot, SlotState, Standing, key_of, marker_name
from .hold import Expected
from .identity import parse_identity, stream_of
from .moves import CancelTimer, HeldDelivery, Place, SetTimer

COLLECT: Final = "collect"
COLLECT_ATTACH: Final = "collect-attach"
COLLECT_PATIENCE: Final = "collect-patience"
PATIENCE_SHARE: Final = 0.5


class Collector:
    """One collection, from its order to its end. `ended` says that nothing more comes of it."""

    def __init__(self, standing: Standing, order: CollectOrder, expected: Expected) -> None:
        self.order = order
        self.slot: Slot = standing.open_slot(place_of(order))
        self.stage = MigrationStage.ORDERED
        self.ended = False
        self._standing = standing
        self._expected = expected
        # Per stream, each with its sequence.
        self._held: dict[str, deque[tuple[int, HeldDelivery]]] = {}
        self._came_to: dict[str, int | None] = {}
        """What followed what was delivered of each stream that is held, when last looked at."""
        self._head_url = standing.head_url
        self._marker = marker_name(order.migration)
        self._missing = set(order.heads)
        self._patient_until_s = 0.0
        self._until_s = 0.0

    def begin(self, now: float) -> Actions:
        timeout_s = self.order.timeout_us / 1e6
        patience_s = self._patience_s
        self._until_s, self._patient_until_s = now + timeout_s, now + patience_s
        self._standing.collecting_at = self._head_url
        self._standing.tell(now, f"collection {self.order.migration}: from {self.order.edge}")
        timers = (SetTimer(COLLECT, timeout_s), SetTimer(COLLECT_PATIENCE, patience_s))
        return [*timers, self._standing.attach(self.slot)]

    def present(self) -> MigrationReport:
        """The answer to an order that comes again."""
        return self._standing.report(self.order.migration, self.stage, key_of(self.slot.place))

    @property
    def holds(self) -> bool:
        return bool(self._held)

    @property
    def held_count(self) -> int:
        return sum(len(items) for items in self._held.values())

    def must_wait(self, identity: str | None) -> bool:
        """Whether something before this message may still come from the place in use."""
        stream, sequence = _place_in_stream(identity)
        return _is_ahead(sequence, self._expected(stream))

    def hold(self, identity: str | None, payload: Any) -> None:
        stream, sequence = _place_in_stream(identity)
        item = HeldDelivery(self.slot.number, identity, payload, collected=True)
        self._held.setdefault(stream, deque()).append((sequence, item))
        self._came_to.setdefault(stream, self._expected(stream))

    def look_again(self, now: float) -> Actions:
        """The time to be patient was over, but may have been prolonged since it was set."""
        left_s = self._patient_until_s - now
        return [SetTimer(COLLECT_PATIENCE, left_s)] if self._held and left_s > 0.0 else []

    def take_due(self, now: float) -> tuple[HeldDelivery, ...]:
        """What need not be held any longer. Cheap enough to be asked after every delivery."""
        due: list[HeldDelivery] = []
        for stream, items in list(self._held.items()):
            following = self._expected(stream)
            if following != self._came_to[stream]:
                self._came_to[stream] = following
                self._patient_until_s = now + self._patience_s
            while items and (now >= self._patient_until_s or not _is_ahead(items[0][0], following)):
                sequence, item = items.popleft()
                following = max(following or 0, sequence + 1)
                due.append(item)
            if not items:
                del self._held[stream], self._came_to[stream]
        return tuple(due)

    def attached(self, now: float) -> Actions:
        self.slot.attached(now)
        self.stage = MigrationStage.ATTACHED
        return self._standing.start_report(self.present(), self._head_url)

    def lost(self, gone: bool, now: float) -> Actions:
        # What was held of the lost attachment comes again with the next one.
        self._forget_held()
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
        if self._missing or self._held or self.ended:
            return []
        standing, migration = self._standing, self.order.migration
        outcome = MigrationOutcome(MigrationStage.STAYED, None, key_of(self.slot.place), reason)
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
        self._forget_held()
        return [*self._end(), *self._standing.drop(self.slot, COLLECT_ATTACH)]

    @property
    def _patience_s(self) -> float:
        return PATIENCE_SHARE * self.order.timeout_us / 1e6

    def _forget_held(self) -> None:
        self._held.clear()
        self._came_to.clear()

    def _end(self) -> Actions:
        self.ended = True
        self._standing.collecting_at = None
        timers = (CancelTimer(COLLECT), CancelTimer(COLLECT_PATIENCE))
        return [*timers, *self._standing.drop_report(self.order.migration, MigrationStage.ATTACHED)]


def _place_in_stream(identity: str | None) -> tuple[str, int]:
    """The stream and the sequence; what has none waits for nothing but the end of a migration."""
    parsed = parse_identity(identity)
    return ("", 0) if identity is None or parsed is None else (stream_of(identity), parsed.sequence)


def _is_ahead(sequence: int, following: int | None) -> bool:
    """Whether something is missing between what was delivered of a stream and this. Nothing comes before 0."""
    return sequence > (following or 0)


def place_of(order: CollectOrder) -> Place:
    return Place(order.edge, order.url, order.queue, order.number)
