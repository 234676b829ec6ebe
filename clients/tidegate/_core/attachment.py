"""What the parts of a subscription's machine share: its place, its attachments, and the reports it owes its head.

It belongs to `SubscriptionMachine`, and no other object changes it.

Invariants:

- a report names the present place as the place in use, and never as the other place, because the head may remove the
  other place;
- a queue is given up for removal only after the client has left it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from tidegate_protocol.balancing.migrations import MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import PlaceReply
from tidegate_protocol.messages import ControlMessage, SubscribeRequest
from tidegate_protocol.names import marker_prefix

from .config import Backoff
from .moves import (
    MARKER_START,
    Attach,
    CancelTimer,
    ChangeHead,
    Detach,
    LeaveHead,
    Place,
    SetTimer,
    SubscriptionAction,
)
from .reports import Outcomes, Reports, pause_s

STORY_MAX: Final = 64
REASON_LENGTH_MAX: Final = 200
REPORT: Final = "report:"
DETACH: Final = "detach:"

Actions = list[SubscriptionAction]
PlaceKey = tuple[str, int]
"""Edge and number: what names a place. The address of an edge may change."""


@dataclass(frozen=True, slots=True)
class SubscriptionTimes:
    """How patient a subscription is."""

    attach: Backoff = field(default_factory=lambda: Backoff(first_s=0.1, limit_s=5.0))
    """Between attempts to attach to a place that can't be reached."""
    ask: Backoff = field(default_factory=lambda: Backoff(first_s=1.0, limit_s=5.0))
    """Between requests to a head that does not answer. They never end: without a place there is nothing else to do."""
    unreachable_s: float = 5.0
    """A place that could not be reached for this long is reported to the head, which may grant another one."""
    settled_s: float = 5.0
    """An attachment that lived this long was a success: the next failure starts again with the shortest pause."""
    linger_s: float = 0.1
    """How long the old queue goes on once all is there: what was enqueued behind the marker comes right behind it."""
    detach_s: float = 10.0
    """How long the old queue is kept for messages that the application has not settled."""


class SlotState(Enum):
    ATTACHING = "attaching"
    ATTACHED = "attached"
    WAITING = "waiting"
    """Lost; a timer is set to try again."""


@dataclass(slots=True)
class Slot:
    """One attachment and its repetitions; each attempt has a number of its own."""

    number: int
    place: Place
    state: SlotState = SlotState.ATTACHING
    attempts: int = 0
    failing_since: float | None = None
    attached_at: float = 0.0
    in_use: bool = False
    """Whether another consumer was found on the queue: that the edge can't be reached would be untrue then."""
    unsettled: bool = False
    """Whether it was lost with deliveries that the application has still to settle."""

    @property
    def alive(self) -> bool:
        return self.state is not SlotState.WAITING

    def attached(self, now: float) -> None:
        self.state = SlotState.ATTACHED
        self.unsettled = False
        self.attached_at = now
        self.failing_since = None

    def failing_s(self, now: float) -> float:
        """For how long it could not be had."""
        return 0.0 if self.failing_since is None else now - self.failing_since


@dataclass(frozen=True, slots=True)
class MigrationOutcome:
    """How a migration ended. Answers are made from it and from the place of the moment, which may be another one by
    then. `source` is None for what was only collected.
    """

    stage: MigrationStage
    source: PlaceKey | None
    target: PlaceKey | None
    reason: str = ""
    unsettled: bool = False
    """Whether the queue was left before the application had settled what it brought."""


class Standing:
    """Where a subscription stands with its queues and its head."""

    def __init__(self, request: SubscribeRequest, prefetch: int, times: SubscriptionTimes) -> None:
        self.request = request
        self.prefetch = prefetch
        self.times = times
        self.place: Place | None = None
        self.head_url = ""
        self.story: deque[tuple[float, str]] = deque(maxlen=STORY_MAX)
        self.reports = Reports()
        self.outcomes: Outcomes[MigrationOutcome] = Outcomes()
        self.leaving: dict[int, tuple[MigrationReport, str]] = {}
        """Slots given up whose `Detached` is awaited, with the report to make then and the head to make it to."""
        self.unconfirmed: tuple[str, str] | None = None
        """The migration that led to another head, and the head before, until that one has confirmed it."""
        self.collecting_at: str | None = None
        """The head that a running collection will be reported to."""
        self._last_slot = 0

    def tell(self, now: float, text: str) -> None:
        self.story.append((now, text))

    # Attachments.

    def open_slot(self, place: Place) -> Slot:
        return Slot(self._next_number(), place)

    def attach(self, slot: Slot) -> Attach:
        return Attach(slot.number, slot.place, self.prefetch)

    def lost(self, slot: Slot, timer: str, now: float) -> Actions:
        """It is to be tried again, after a pause that grows."""
        if slot.state is SlotState.ATTACHED and now - slot.attached_at >= self.times.settled_s:
            slot.attempts = 0
        slot.state = SlotState.WAITING
        slot.failing_since = now if slot.failing_since is None else slot.failing_since
        slot.attempts += 1
        return [SetTimer(timer, pause_s(self.times.attach, slot.attempts - 1))]

    def attach_again(self, slot: Slot) -> Actions:
        if slot.alive:
            return []
        slot.number = self._next_number()
        slot.state = SlotState.ATTACHING
        return [self.attach(slot)]

    def drop(self, slot: Slot, timer: str) -> Actions:
        """Leave an attachment, or end the attempts to make it."""
        return [self.detach(slot)] if slot.alive else [CancelTimer(timer)]

    def detach(self, slot: Slot) -> Detach:
        return Detach(slot.number, self.times.detach_s)

    def give_up(
        self, slot: Slot, timer: str, report: MigrationReport, head_url: str, patience_s: float = 0.0
    ) -> Actions:
        """Leave a queue that is not needed any more, and say so to the head when that is done. The application is
        given `patience_s` to take what it brought, if that is more than usual.
        """
        if not slot.alive:
            return [CancelTimer(timer), *self._report_left(report, head_url, slot.unsettled)]
        self.leaving[slot.number] = (report, head_url)
        patience_s = max(self.times.detach_s, patience_s)
        return [Detach(slot.number, patience_s, hurry=True), SetTimer(f"{DETACH}{slot.number}", patience_s)]

    def detached(self, number: int, unsettled: bool) -> Actions:
        left = self.leaving.pop(number, None)
        if left is None:
            return []
        report, head_url = left
        return [CancelTimer(f"{DETACH}{number}"), *self._report_left(report, head_url, unsettled)]

    def _report_left(self, report: MigrationReport, head_url: str, unsettled: bool) -> Actions:
        outcome = self.outcomes.get(report.migration)
        if unsettled and outcome is not None:
            self.outcomes.remember(report.migration, replace(outcome, unsettled=True))
        return self.start_report(report.model_copy(update={"unsettled": unsettled}), head_url)

    # What the head is told.

    def start_report(self, report: MigrationReport, head_url: str) -> Actions:
        return [*self.reports.start(report_key(report.migration, report.stage), report, head_url)]

    def drop_report(self, migration: str, stage: MigrationStage) -> Actions:
        return [*self.reports.drop(report_key(migration, stage))]

    def forget_moves(self, place: Place) -> Actions:
        """The head has granted this place since: reports that would take it away again are out of date."""
        self.unconfirmed = None
        stale = [key for key, message in self.reports.messages() if self._is_stale(message, place)]
        self.leaving = {slot: left for slot, left in self.leaving.items() if not self._is_stale(left[0], place)}
        return [action for key in stale for action in self.reports.drop(key)]

    def _is_stale(self, report: ControlMessage, place: Place) -> bool:
        assert isinstance(report, MigrationReport)
        return report.stage is MigrationStage.MOVED or (report.other_edge, report.other_number) == key_of(place)

    def change_head(self, migration: str, head: str, head_url: str) -> Actions:
        """A migration has led to another cluster."""
        if not head_url or head_url == self.head_url:
            return []
        self.unconfirmed = (migration, self.head_url)
        self.head_url = head_url
        return [ChangeHead(head, head_url)]

    def go_home(self) -> Actions:
        """The queue is gone. If the head before has not confirmed the move, it has given it up: it has kept the old
        queue, with everything in it, and must not hear of the move any more.
        """
        if self.unconfirmed is None:
            return []
        (migration, before), left = self.unconfirmed, self.head_url
        self.unconfirmed, self.head_url = None, before
        self.outcomes.remember(
            migration, MigrationOutcome(MigrationStage.UNKNOWN, None, None, "the new queue was gone")
        )
        self.leaving = {slot: owed for slot, owed in self.leaving.items() if owed[0].migration != migration}
        return [*self.drop_report(migration, MigrationStage.MOVED), *self.leave_head(left)]

    def place_reply(self, migration: str | None) -> PlaceReply:
        """Which place it uses; `migration` is the one under way."""
        assert self.place is not None
        return PlaceReply(
            subscriber=self.request.subscriber,
            pattern=self.request.pattern,
            edge=self.place.edge,
            number=self.place.number,
            migration=migration,
        )

    def report_fired(self, key: str) -> Actions:
        if key not in self.reports:
            return []
        head_url = self.reports.head_url(key)
        actions: Actions = [*self.reports.fired(key)]
        return actions if key in self.reports else actions + self.leave_head(head_url)

    def acknowledged(self, key: str) -> Actions:
        head_url = self.reports.head_url(key)
        if self.unconfirmed is not None and key == report_key(self.unconfirmed[0], MigrationStage.MOVED):
            self.unconfirmed = None
        return [*self.reports.drop(key), *self.leave_head(head_url)]

    def leave_head(self, head_url: str) -> Actions:
        """Nothing more to say there; if it is not our head any more, nothing to hear either."""
        owed = any(url == head_url for _, url in self.leaving.values()) or self.reports.owes(head_url)
        return [] if owed or head_url in (self.head_url, self.collecting_at) else [LeaveHead(head_url)]

    def is_leaving(self, migration: str) -> bool:
        """Whether the queue that this migration or collection gave up is still to be left."""
        return any(report.migration == migration for report, _ in self.leaving.values())

    def _is_unsettled(self, migration: str) -> bool:
        outcome = self.outcomes.get(migration)
        return self.is_leaving(migration) or (outcome is not None and outcome.unsettled)

    def report(
        self, migration: str, stage: MigrationStage, other: PlaceKey | None, reason: str = ""
    ) -> MigrationReport:
        assert self.place is not None
        assert other != key_of(self.place)
        return MigrationReport(
            migration=migration,
            subscriber=self.request.subscriber,
            stage=stage,
            pattern=self.request.pattern,
            edge=self.place.edge,
            number=self.place.number,
            other_edge=other[0] if other else None,
            other_number=other[1] if other else None,
            reason=reason[:REASON_LENGTH_MAX],
            unsettled=self._is_unsettled(migration),
        )

    def outcome_report(self, migration: str, outcome: MigrationOutcome) -> MigrationReport:
        """What became of a migration, as it stands now: the place may have changed once more since."""
        assert self.place is not None
        here = key_of(self.place)
        stage, other = outcome.stage, outcome.target
        if outcome.source is None:
            if other == here:
                stage, other = MigrationStage.UNKNOWN, None
        elif here == outcome.target:
            stage, other = MigrationStage.MOVED, outcome.source
        elif here == outcome.source:
            stage = MigrationStage.STAYED
        elif stage is MigrationStage.MOVED:
            other = outcome.source
        return self.report(migration, stage, other, outcome.reason)

    def _next_number(self) -> int:
        self._last_slot += 1
        return self._last_slot


def key_of(place: Place) -> PlaceKey:
    return place.edge, place.number


def marker_name(migration: str) -> str:
    """A migration as its markers spell it."""
    return marker_prefix(migration).removeprefix(MARKER_START)


def report_key(migration: str, stage: MigrationStage) -> str:
    return f"{REPORT}{migration}:{stage}"
