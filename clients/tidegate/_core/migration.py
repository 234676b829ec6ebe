"""Which queue a subscription is served from, and its way to another queue: the client's side of a migration.

    order → attach to the new queue, hold what comes → markers through both → linger, release, detach → report moved

Invariants:

- a subscription is *served* from one place, its primary place. The primary place changes when a migration succeeds, and
  when the head grants another place because this one is gone or can't be reached;
- until the switch everything is delivered from the old queue, and nothing of the new queue is delivered or
  acknowledged, so that going back loses nothing. Time-out, cancellation and loss of the new attachment lead back. The
  loss of the old attachment does not: it is made again;
- after the switch there is no way back. The report gives the old queue up for removal only after the client has left it
  and the application has settled what it brought; otherwise the report says that something is unsettled;
- the markers are sent with the order: a marker that comes through the old queue before the order is remembered;
- there are at most three attachments: the primary one, the one of a migration, the one of a `collector`.

`orders` answers the head. The machine does not judge deliveries; of the deduplicator it knows only which sequence comes
next. Its driver asks `admit` about each delivery that is no marker and does what `Admission` says. Time is an argument.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from tidegate_protocol.balancing.migrations import MigrateOrder, MigrationAck, MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import CollectOrder
from tidegate_protocol.messages import ControlMessage, Refusal, SubscribeReply, SubscribeRequest

from .attachment import (
    DETACH,
    Actions,
    MigrationOutcome,
    Slot,
    SlotState,
    Standing,
    SubscriptionTimes,
    key_of,
    marker_name,
)
from .collector import COLLECT, COLLECT_ATTACH, COLLECT_PATIENCE, Collector
from .hold import Admission, EarlyMarkers, Expected, Hold, RunningMigration
from .inquiry import ASK, Inquiry
from .moves import (
    Answered,
    Attached,
    AttachmentLost,
    CancelTimer,
    ChangeHead,
    ClosedByApplication,
    Detached,
    MarkerArrived,
    Opened,
    Ordered,
    Place,
    Release,
    SetTimer,
    SubscriptionEvent,
    TimerFired,
    parse_marker,
)
from .orders import Orders
from .overlap import PlainLog
from .repetitions import OVERLAP, Repetitions

SLOTS_MAX: Final = 3
NO_SLOT: Final = -1
ATTACH: Final = "attach"
MIGRATION: Final = "migration"
LINGER: Final = "linger"


class SubscriptionMachine:
    """Places and attachments of one subscription: `handle` events, `admit` deliveries, carry out the actions.

    `prefetch` bounds what is unacknowledged on each attachment, and so what is held. `expected` is
    `Deduplicator.expected`; `log` is where plain messages that were delivered are entered.
    """

    def __init__(
        self,
        request: SubscribeRequest,
        prefetch: int,
        expected: Expected,
        times: SubscriptionTimes | None = None,
        log: PlainLog | None = None,
    ) -> None:
        self.closed = False
        self.moves = 0
        """Migrations that have succeeded."""
        self._standing = Standing(request, prefetch, times or SubscriptionTimes())
        self._expected = expected
        self._primary: Slot | None = None
        self.migration: RunningMigration | None = None
        self.collector: Collector | None = None
        self._orders = Orders(self._standing, self)
        self._inquiry = Inquiry(self._standing)
        self._early = EarlyMarkers()
        self._log = log if log is not None else PlainLog()
        self._repetitions = Repetitions()

    # What others may ask.

    @property
    def request(self) -> SubscribeRequest:
        return self._standing.request

    @property
    def place(self) -> Place | None:
        """Where it is served from, also while that can't be reached; None before the first grant."""
        return self._standing.place

    @property
    def head_url(self) -> str:
        """The head it belongs to; empty for the one the client was given at its start."""
        return self._standing.head_url

    @property
    def story(self) -> deque[tuple[float, str]]:
        """What happened last, and when: for the log and for tests."""
        return self._standing.story

    @property
    def migrating(self) -> bool:
        return self.migration is not None

    @property
    def collecting(self) -> bool:
        return self.collector is not None

    @property
    def attached(self) -> bool:
        """Whether the primary attachment is there."""
        return self._primary is not None and self._primary.state is SlotState.ATTACHED

    @property
    def at_rest(self) -> bool:
        """Whether it is served from its place and nothing is under way."""
        under_way = self.migration or self.collector or self._standing.leaving or self._inquiry.asking
        return self.attached and not under_way

    @property
    def plain(self) -> int:
        """The slot whose deliveries need no thought: the primary one while nothing moves and nothing waits for it."""
        primary, collector = self._primary, self.collector
        if primary is None or not primary.alive or self.migration is not None or self._repetitions.due:
            return NO_SLOT
        return NO_SLOT if collector is not None and collector.holds else primary.number

    @property
    def slots(self) -> tuple[int, ...]:
        """The attachments that are there or being made."""
        return tuple(slot.number for slot in self._slots() if slot.alive)

    @property
    def held_count(self) -> int:
        held = len(self.migration.hold) if self.migration else 0
        return held + (self.collector.held_count if self.collector else 0)

    def admit(self, slot: int, identity: str | None, payload: Any, content: bytes | None = None) -> Admission:
        """Say what to do with a delivery, before it is judged. For deliveries of the slot `plain` it is always PASS.

        `content` is the fingerprint of a plain message, None for a message that has an identity with an id of ours.
        """
        if slot == self.plain:
            return Admission.PASS
        migration, collector, primary = self.migration, self.collector, self._primary
        if primary is not None and slot == primary.number and primary.alive:
            return Admission.SURPLUS if self._repetitions.take(content) else Admission.WATCHED
        if migration is not None and slot == migration.slot.number:
            migration.hold.take(slot, identity, payload, content)
            return Admission.HELD
        if collector is not None and slot == collector.slot.number and collector.slot.alive:
            if migration is None and not collector.must_wait(identity):
                return Admission.COLLECTED
            collector.hold(identity, payload)
            return Admission.HELD
        return Admission.STRAY

    def progress(self, now: float) -> Actions:
        """What follows from deliveries; to be called after each that was not simply passed."""
        migration = self.migration
        ended = self._repetitions.end_if_complete()
        if migration is not None:
            migration.hold.came(now)
            collected = self.collector.held_count if self.collector else 0
            overfull = migration.hold.overfull or migration.hold.outgrown(self._log)
            if overfull or collected > self._standing.prefetch:
                return ended + self.roll_back("more came than can be held", now)
            if self._may_switch(migration):
                linger_s = self._standing.times.linger_s
                if migration.switch_s is None and linger_s:
                    migration.switch_s = now + linger_s
                    return [*ended, SetTimer(LINGER, linger_s)]
                if migration.switch_s is None or now >= migration.switch_s:
                    return ended + self._switch(now)
        return ended + self._end_collection(now)

    def _may_switch(self, migration: RunningMigration) -> bool:
        """The condition of the whole protocol; a method of its own so that tests can break it."""
        return migration.hold.ready()

    # Events.

    def handle(self, event: SubscriptionEvent, now: float) -> Actions:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        match event:
            case Ordered(message, reply_to):
                return self._orders.ordered(message, reply_to, now)
            case _ if self.closed:
                return []
            case Opened():
                return self.ask(now)
            case Answered(key, message):
                return self._answered(key, message, now)
            case TimerFired(name):
                return self._fired(name, now)
            case Attached(slot):
                return self._attached(slot, now)
            case AttachmentLost():
                return self._lost(event, now)
            case Detached(slot, unsettled):
                return self._standing.detached(slot, unsettled)
            case MarkerArrived(slot, key):
                return self._marker(slot, key, now)
            case ClosedByApplication():
                return self._close(now)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        slots, primary, migration = self._slots(), self._primary, self.migration
        assert len(slots) <= SLOTS_MAX
        assert len({slot.number for slot in slots}) == len(slots)
        assert not {slot.number for slot in slots} & self._standing.leaving.keys()
        assert self.held_count == 0 or migration is not None or self.collector is not None
        assert self.held_count <= 2 * (self._standing.prefetch + 1)
        assert self.collector is None or not self.collector.ended
        self._standing.reports.validate()
        if self.closed:
            assert not slots
            assert not self._standing.reports
            return
        # It is served, or about to be, from exactly one place, or it asks for one, or it has not begun.
        assert primary is not None or self._inquiry.asking or self._inquiry.count == 0
        assert primary is None or primary.place == self.place
        if migration is not None:
            assert primary is not None
            assert key_of(migration.slot.place) != key_of(primary.place)
            assert migration.stage in (MigrationStage.ORDERED, MigrationStage.ATTACHED)
            assert migration.slot.alive
            migration.hold.validate()

    # The course of a migration.

    def begin(self, order: MigrateOrder, place: Place, now: float) -> tuple[MigrationReport, Actions]:
        """Move away from `place`; the answer to the order, and what is to be done for it."""
        standing = self._standing
        target = Place(order.edge, order.url, order.queue, order.number)
        actions: Actions = []
        if self._primary is None:
            # The place was thought to be gone, but the head moves us away from it: it may be back.
            self._primary = standing.open_slot(place)
            actions.append(standing.attach(self._primary))
        if self.collector is not None and key_of(self.collector.slot.place) == key_of(target):
            actions += self.collector.abandon()
            self.collector = None
        slot = standing.open_slot(target)
        hold = Hold(order.heads, standing.prefetch, self._expected)
        marker = marker_name(order.migration)
        for head, mark in self._early.marks(key_of(place), marker):
            hold.marker_old(head, mark)
        self._log.keep(moving=True)
        self.migration = RunningMigration(order, self.head_url, slot, hold, marker)
        standing.tell(now, f"migration {order.migration}: {place.edge} to {target.edge}")
        actions += [SetTimer(MIGRATION, order.timeout_us / 1e6), standing.attach(slot)]
        return standing.report(order.migration, MigrationStage.ORDERED, key_of(target)), actions

    def collect(self, order: CollectOrder, now: float) -> tuple[MigrationReport, Actions]:
        """Fetch what an edge left behind; the answer, and what is to be done for it."""
        self.collector = Collector(self._standing, order, self._expected)
        return self.collector.present(), self.collector.begin(now)

    def _marker(self, slot: int, key: str, now: float) -> Actions:
        parsed = parse_marker(key)
        migration, collector, primary = self.migration, self.collector, self._primary
        if parsed is None:
            return []
        name, head = parsed
        if migration is not None and name == migration.marker:
            if primary is not None and slot == primary.number and primary.alive:
                migration.hold.marker_old(head, self._log.mark(now))
            elif slot == migration.slot.number:
                migration.hold.marker_new(head, now)
        elif collector is not None and slot == collector.slot.number and collector.slot.alive:
            collector.marker(name, head)
        elif primary is not None and slot == primary.number and primary.alive:
            self._early.remember(key_of(primary.place), name, head, self._log.mark(now))
        # A marker of anything else is a leftover, or one that a broad pattern let through.
        return self.progress(now)

    def _switch(self, now: float) -> Actions:
        standing, migration, old = self._standing, self.migration, self._primary
        assert migration is not None
        assert old is not None
        order = migration.order
        items, surplus, overlap = migration.hold.release(self._log, now)
        self._log.keep(moving=False)
        self.migration = None
        self.moves += 1
        self._set_primary(migration.slot)
        outcome = MigrationOutcome(MigrationStage.MOVED, key_of(old.place), key_of(migration.slot.place))
        standing.outcomes.remember(order.migration, outcome)
        standing.tell(now, f"migration {order.migration}: moved, {len(items)} released")
        actions: Actions = [Release(items, surplus), CancelTimer(MIGRATION)]
        actions += self._repetitions.begin(overlap)
        if self.collector is not None and self.collector.holds:
            # It may follow what is released here, so it is looked at when that has been delivered.
            actions.append(SetTimer(LINGER, 0.0))
        actions += standing.drop_report(order.migration, MigrationStage.ATTACHED)
        # The head that ordered this knows the new place once it hears the report: nothing is in doubt any more.
        actions += self._inquiry.stop()
        actions += standing.change_head(order.migration, order.head, order.head_url)
        report = standing.outcome_report(order.migration, outcome)
        actions += standing.give_up(old, ATTACH, report, migration.head_url)
        return actions + self._end_collection(now)

    def roll_back(self, reason: str, now: float, report: bool = True) -> Actions:
        """Stay with the old queue. What was held is forgotten: it is unacknowledged, and the old queue has it."""
        standing, migration = self._standing, self.migration
        assert migration is not None
        assert self._primary is not None
        order = migration.order
        self._log.keep(moving=False)
        self.migration = None
        self._set_primary(self._primary)
        source, target = (order.edge_from, order.number_from), (order.edge, order.number)
        outcome = MigrationOutcome(MigrationStage.STAYED, source, target, reason)
        standing.outcomes.remember(order.migration, outcome)
        standing.tell(now, f"migration {order.migration}: stayed, {reason}")
        actions: Actions = [CancelTimer(MIGRATION), standing.detach(migration.slot)]
        actions += standing.drop_report(order.migration, MigrationStage.ATTACHED)
        if report:
            actions += standing.start_report(standing.outcome_report(order.migration, outcome), migration.head_url)
        if self._inquiry.in_doubt:
            actions += self._inquiry.ask(self._primary, now)
        return actions + self._end_collection(now)

    def _end_collection(self, now: float) -> Actions:
        collector = self.collector
        if collector is None or self.migration is not None:
            return []
        due = collector.take_due(now)
        actions: Actions = [Release(due)] if due else []
        actions += collector.end_if_complete("", now)
        self.collector = None if collector.ended else collector
        return actions

    # Attachments.

    def _attached(self, number: int, now: float) -> Actions:
        standing, migration, collector = self._standing, self.migration, self.collector
        if self._primary is not None and number == self._primary.number:
            self._primary.attached(now)
        elif migration is not None and number == migration.slot.number:
            migration.slot.attached(now)
            migration.stage = MigrationStage.ATTACHED
            target = key_of(migration.slot.place)
            report = standing.report(migration.order.migration, MigrationStage.ATTACHED, target)
            return standing.start_report(report, migration.head_url)
        elif collector is not None and number == collector.slot.number:
            return collector.attached(now)
        return []

    def _lost(self, event: AttachmentLost, now: float) -> Actions:
        number, gone, problem = event.slot, event.gone, event.problem
        standing, migration, collector, primary = self._standing, self.migration, self.collector, self._primary
        if number in standing.leaving:
            return standing.detached(number, event.unsettled)
        if migration is not None and number == migration.slot.number:
            return self.roll_back(f"the new queue was lost: {problem}", now)
        if collector is not None and number == collector.slot.number:
            actions = collector.lost(gone, now)
            self.collector = None if collector.ended else collector
            return actions
        if primary is None or number != primary.number:
            return []
        if gone:
            return self._gone(primary, now)
        primary.in_use, primary.unsettled = event.in_use, primary.unsettled or event.unsettled
        actions = standing.lost(primary, ATTACH, now)
        if primary.failing_s(now) >= standing.times.unreachable_s:
            actions += self._inquiry.ask(primary, now)
        return actions

    def _gone(self, primary: Slot, now: float) -> Actions:
        """The queue it is served from does not exist any more."""
        self._standing.tell(now, f"the queue {primary.place.queue} on {primary.place.edge} is gone")
        primary.state = SlotState.WAITING
        actions: Actions = []
        if self.migration is not None:
            if self.migration.stage is MigrationStage.ATTACHED:
                # There is no way back, and nothing more to wait for: what is held is all there is.
                return self._switch(now)
            actions = self.roll_back("the old queue is gone", now)
        self._primary = None
        return actions + self._standing.go_home() + self._inquiry.ask(None, now)

    # The place.

    def ask(self, now: float) -> Actions:
        """Ask the head for a place."""
        return self._inquiry.ask(self._primary, now)

    def _granted(self, reply: SubscribeReply, now: float) -> Actions:
        standing = self._standing
        place = Place(reply.edge, reply.url, reply.queue, reply.subscription.number)
        actions = self._inquiry.stop()
        if reply.head is not None and reply.head_url and reply.head_url != self.head_url:
            # An earlier life of this client was moved to another cluster.
            standing.head_url = reply.head_url
            actions.append(ChangeHead(reply.head, reply.head_url))
        primary, migration = self._primary, self.migration
        if primary is not None and key_of(primary.place) == key_of(place):
            if primary.place != place and not primary.alive:
                # The same queue at another address: the next attempt goes there.
                primary.place = standing.place = place
            return actions
        if migration is not None:
            if key_of(migration.slot.place) == key_of(place):
                # The head, having forgotten that this is under way, names the new queue. Going on with the migration
                # leads there without a loss; should it fail, we ask again.
                self._inquiry.in_doubt = True
                return actions
            actions += self.roll_back("the head granted another place", now)
        if self.collector is not None and key_of(self.collector.slot.place) == key_of(place):
            actions += self.collector.abandon()
            self.collector = None
        if primary is not None:
            actions += standing.drop(primary, ATTACH)
        actions += self._repetitions.end()
        actions += standing.forget_moves(place)
        standing.tell(now, f"placed on {place.edge}")
        slot = standing.open_slot(place)
        self._set_primary(slot)
        return [*actions, standing.attach(slot)]

    def _answered(self, key: str, message: ControlMessage, now: float) -> Actions:
        if key in self._standing.reports:
            # A head that is starting refuses everything: then the report is repeated.
            return self._standing.acknowledged(key) if isinstance(message, MigrationAck) else []
        if not self._inquiry.is_about(key):
            return []
        if isinstance(message, SubscribeReply):
            return self._granted(message, now)
        return self._inquiry.refused(message) if isinstance(message, Refusal) else []

    def _fired(self, name: str, now: float) -> Actions:
        standing, migration, collector = self._standing, self.migration, self.collector
        if name == ASK:
            return self._inquiry.again(self._primary, now) if self._inquiry.asking else []
        if name == ATTACH and self._primary is not None:
            return standing.attach_again(self._primary)
        if name == MIGRATION and migration is not None:
            return self.roll_back(f"time-out: {migration.hold.lacking}", now)
        if name == LINGER:
            return self.progress(now)
        if name == OVERLAP:
            return self._repetitions.end()
        if name == COLLECT_PATIENCE and collector is not None:
            return [*self.progress(now), *collector.look_again(now)]
        if name == COLLECT and collector is not None:
            self.collector = None
            return collector.time_out(now)
        if name == COLLECT_ATTACH and collector is not None:
            return collector.attach_again()
        if name.startswith(DETACH):
            return standing.detached(int(name.removeprefix(DETACH)), unsettled=True)
        return standing.report_fired(name)

    def _close(self, now: float) -> Actions:
        """Everything unacknowledged goes back to its queue; what the head waits for, it learns by its time-outs."""
        standing = self._standing
        self.closed = True
        standing.tell(now, "closed")
        actions: Actions = [standing.detach(slot) for slot in self._slots() if slot.alive]
        actions += self._inquiry.stop() + self._repetitions.end()
        timers = (ATTACH, MIGRATION, LINGER, COLLECT, COLLECT_ATTACH, COLLECT_PATIENCE)
        actions += [CancelTimer(timer) for timer in (*timers, *(f"{DETACH}{slot}" for slot in standing.leaving))]
        actions += standing.reports.clear()
        self._primary = self.migration = self.collector = None
        standing.leaving.clear()
        return actions

    def _slots(self) -> list[Slot]:
        others = [owner.slot for owner in (self.migration, self.collector) if owner is not None]
        return ([self._primary] if self._primary is not None else []) + others

    def _set_primary(self, slot: Slot) -> None:
        self._primary = slot
        self._standing.place = slot.place
