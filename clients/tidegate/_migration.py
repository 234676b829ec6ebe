"""Which queue a subscription is served from, and its way from one to another: the client's side of a migration.

    order → attach to the new queue, hold what comes → markers through both → linger, release, detach → report moved

What always holds:

- a subscription is *served* from one place, its primary one. It changes when a migration succeeds, and when the
  head grants another place because this one can't be reached or is gone;
- until the switch everything is delivered from the old queue, and nothing of the new one is delivered or
  acknowledged; so going back costs nothing and loses nothing. Time-out, cancellation and the loss of the new
  attachment lead back; the loss of the old one does not: it is made again;
- after the switch there is no way back. The old queue is given up for removal (by the report) only after the
  client has left it and its application has settled what it brought; or else the report says that it has not;
- the markers are sent with the order: one that came through the old queue before it is remembered and counts;
- an order that comes again gets the same answer, also after its end and after the subscription's; one that comes while
  another runs is declined;
- what an edge left behind (`CollectOrder`) is fetched through a slot of its own. It is held while a migration runs,
  because it must not look as if the old queue had brought it, and while the primary place may have what comes before;
- at most three attachments: the primary one, a new one, one that collects.

The machine does not judge deliveries and does not know the deduplicator, except for the sequence it expects.
Whoever runs it does, per delivery that is no marker (`parse_marker`):

    admission = machine.admit(slot, message_id, payload)
    PASS       judge and deliver (the common case)
    WATCHED    judge and deliver, then carry out progress(now)
    COLLECTED  judge and deliver marked as collected, then carry out progress(now)
    HELD       neither deliver nor acknowledge: it comes back with Release; carry out progress(now)
    STRAY      drop, do not acknowledge: its attachment was given up

A delivery is judged (and only then may be acknowledged) when it is passed or released, never before. Time is an
argument."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from tidegate_protocol.balancing import (
    CollectOrder,
    MigrateCancel,
    MigrateOrder,
    MigrationAck,
    MigrationReport,
    MigrationStage,
    PlaceRequest,
)
from tidegate_protocol.messages import ControlMessage, Refusal, SubscribeReply, SubscribeRequest
from tidegate_protocol.parts import RefusalReason

from ._attachment import DETACH, Actions, Outcome, Slot, SlotState, Standing, SubscriptionTimes, key_of, marker_name
from ._collector import COLLECT, COLLECT_ATTACH, COLLECT_PATIENCE, Collector, place_of
from ._hold import Admission, EarlyMarkers, Expected, Hold
from ._inquiry import ASK, Inquiry
from ._moves import (
    Answer,
    Answered,
    Attached,
    AttachmentLost,
    CancelTimer,
    ChangeHead,
    Closed,
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

SLOTS_MAX: Final = 3
NO_SLOT: Final = -1
ATTACH: Final = "attach"
MIGRATION: Final = "migration"
LINGER: Final = "linger"


@dataclass(slots=True)
class Migration:
    """The one under way."""

    order: MigrateOrder
    head_url: str
    """The head that ordered it and hears how it ends."""
    slot: Slot
    hold: Hold
    marker: str
    stage: MigrationStage = MigrationStage.ORDERED
    switch_s: float | None = None
    """When it may switch, once everything is there."""


class SubscriptionMachine:
    """Places and attachments of one subscription: `handle` events, `admit` deliveries, carry out the actions.

    `prefetch` bounds what is unacknowledged on each attachment, and so what is held. `expected` is
    `Deduplicator.expected`.
    """

    def __init__(
        self,
        request: SubscribeRequest,
        prefetch: int,
        expected: Expected,
        times: SubscriptionTimes | None = None,
    ) -> None:
        self.closed = False
        self.moves = 0
        """Migrations that have succeeded."""
        self._standing = Standing(request, prefetch, times or SubscriptionTimes())
        self._expected = expected
        self._primary: Slot | None = None
        self._migration: Migration | None = None
        self._collector: Collector | None = None
        self._inquiry = Inquiry(self._standing)
        self._early = EarlyMarkers()

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
        """What happened last, and when, for whoever asks why."""
        return self._standing.story

    @property
    def migrating(self) -> bool:
        return self._migration is not None

    @property
    def collecting(self) -> bool:
        return self._collector is not None

    @property
    def attached(self) -> bool:
        """Whether the primary attachment is there."""
        return self._primary is not None and self._primary.state is SlotState.ATTACHED

    @property
    def at_rest(self) -> bool:
        """Whether it is served from its place and nothing is under way."""
        under_way = self._migration or self._collector or self._standing.leaving or self._inquiry.asking
        return self.attached and not under_way

    @property
    def plain(self) -> int:
        """The slot whose deliveries need no thought: the primary one while nothing moves and nothing waits for it."""
        primary, collector = self._primary, self._collector
        if primary is None or not primary.alive or self._migration is not None:
            return NO_SLOT
        return NO_SLOT if collector is not None and collector.holds else primary.number

    @property
    def slots(self) -> tuple[int, ...]:
        """The attachments that are there or being made."""
        return tuple(slot.number for slot in self._slots() if slot.alive)

    @property
    def held_count(self) -> int:
        held = len(self._migration.hold) if self._migration else 0
        return held + (self._collector.held_count if self._collector else 0)

    def admit(self, slot: int, message_id: str | None, payload: Any) -> Admission:
        """Say what to do with a delivery, before it is judged. For those of the slot `plain` it is always PASS."""
        if slot == self.plain:
            return Admission.PASS
        migration, collector, primary = self._migration, self._collector, self._primary
        if primary is not None and slot == primary.number and primary.alive:
            return Admission.WATCHED
        if migration is not None and slot == migration.slot.number:
            migration.hold.take(slot, message_id, payload)
            return Admission.HELD
        if collector is not None and slot == collector.slot.number and collector.slot.alive:
            if migration is None and not collector.must_wait(message_id):
                return Admission.COLLECTED
            collector.hold(message_id, payload)
            return Admission.HELD
        return Admission.STRAY

    def progress(self, now: float) -> Actions:
        """What follows from deliveries; to be called after each that was not simply passed."""
        migration = self._migration
        if migration is not None:
            collected = self._collector.held_count if self._collector else 0
            if migration.hold.overfull or collected > self._standing.prefetch:
                return self._roll_back("more came than can be held", now)
            if self._may_switch(migration):
                linger_s = self._standing.times.linger_s
                if migration.switch_s is None and linger_s:
                    migration.switch_s = now + linger_s
                    return [SetTimer(LINGER, linger_s)]
                if migration.switch_s is None or now >= migration.switch_s:
                    return self._switch(now)
        return self._end_collection(now)

    def _may_switch(self, migration: Migration) -> bool:
        """The condition of the whole protocol; a method of its own so that tests can break it."""
        return migration.hold.ready()

    # Events.

    def handle(self, event: SubscriptionEvent, now: float) -> Actions:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        match event:
            case Ordered(message, reply_to):
                return self._ordered(message, reply_to, now)
            case _ if self.closed:
                return []
            case Opened():
                return self._inquiry.ask(self._primary, now)
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
            case Closed():
                return self._close(now)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        slots, primary, migration = self._slots(), self._primary, self._migration
        assert len(slots) <= SLOTS_MAX
        assert len({slot.number for slot in slots}) == len(slots)
        assert not {slot.number for slot in slots} & self._standing.leaving.keys()
        assert self.held_count == 0 or migration is not None or self._collector is not None
        assert self.held_count <= 2 * (self._standing.prefetch + 1)
        assert self._collector is None or not self._collector.ended
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

    # Orders of the head.

    def _ordered(self, message: ControlMessage, reply_to: Any, now: float) -> Actions:
        answer: ControlMessage
        actions: Actions = []
        match message:
            case MigrateOrder() | MigrateCancel() | PlaceRequest() | CollectOrder() if self._is_ours(message):
                if self.place is None:
                    # Whatever it is about, it is not known here yet; saying so would be taken for an answer.
                    text, again_s = "the subscription has no place yet", self._standing.times.ask.first_s
                    answer = Refusal(reason=RefusalReason.NOT_READY, message=text, retry_after_s=again_s)
                elif isinstance(message, MigrateOrder):
                    answer, actions = self._order(message, self.place, now)
                elif isinstance(message, MigrateCancel):
                    answer, actions = self._cancel(message, now)
                elif isinstance(message, CollectOrder):
                    answer, actions = self._collect(message, self.place, now)
                else:
                    answer = self._standing.place_reply(self._migration.order.migration if self._migration else None)
            case MigrateOrder() | MigrateCancel() if (
                ended := self._standing.outcomes.get(message.migration)
            ) is not None:
                # Closed before its head has heard how it ended.
                answer = self._standing.outcome_report(message.migration, ended)
            case _:
                text = f"no subscription here that {message.kind} could be meant for"
                answer = Refusal(reason=RefusalReason.UNKNOWN, message=text)
        return [*actions, Answer(reply_to, answer)] if reply_to is not None else actions

    def _is_ours(self, message: MigrateOrder | MigrateCancel | PlaceRequest | CollectOrder) -> bool:
        request = self.request
        return not self.closed and (message.subscriber, message.pattern) == (request.subscriber, request.pattern)

    def _order(self, order: MigrateOrder, place: Place, now: float) -> tuple[MigrationReport, Actions]:
        standing, running = self._standing, self._migration
        known = standing.outcomes.get(order.migration)
        source, target = (order.edge_from, order.number_from), (order.edge, order.number)
        if known is not None:
            if standing.is_leaving(order.migration):  # the report, which is to come soon, is what ends it
                return standing.report(order.migration, MigrationStage.ATTACHED, known.source), []
            if known.target is None:  # it was cancelled before it came
                known = Outcome(MigrationStage.STAYED, source, target, known.reason)
            return standing.outcome_report(order.migration, known), []
        if running is not None and running.order.migration == order.migration:
            return standing.report(order.migration, running.stage, target), []
        declined = ""
        if running is not None:
            declined = f"{running.order.migration} is under way"
        elif key_of(place) not in (source, target):
            declined = "it is served from elsewhere"
        if declined or target == key_of(place):
            stage = MigrationStage.STAYED if declined else MigrationStage.MOVED
            outcome = Outcome(stage, source, target, declined)
            standing.outcomes.remember(order.migration, outcome)
            return standing.outcome_report(order.migration, outcome), []
        return self._begin(order, place, now)

    def _begin(self, order: MigrateOrder, place: Place, now: float) -> tuple[MigrationReport, Actions]:
        standing = self._standing
        target = Place(order.edge, order.url, order.queue, order.number)
        actions: Actions = []
        if self._primary is None:
            # The place was thought to be gone, but the head moves us away from it: it may be back.
            self._primary = standing.open_slot(place)
            actions.append(standing.attach(self._primary))
        if self._collector is not None and key_of(self._collector.slot.place) == key_of(target):
            actions += self._collector.abandon()
            self._collector = None
        slot = standing.open_slot(target)
        hold = Hold(order.heads, standing.prefetch, self._expected)
        marker = marker_name(order.migration)
        for head in self._early.heads(key_of(place), marker):
            hold.marker_old(head)
        self._migration = Migration(order, self.head_url, slot, hold, marker)
        standing.tell(now, f"migration {order.migration}: {place.edge} to {target.edge}")
        actions += [SetTimer(MIGRATION, order.timeout_us / 1e6), standing.attach(slot)]
        return standing.report(order.migration, MigrationStage.ORDERED, key_of(target)), actions

    def _cancel(self, cancel: MigrateCancel, now: float) -> tuple[MigrationReport, Actions]:
        standing, running, collector = self._standing, self._migration, self._collector
        actions: Actions = []
        if collector is not None and collector.order.migration == cancel.migration:
            return collector.present(), []
        if running is not None and running.order.migration == cancel.migration:
            # The answer says it all, and a cancellation is repeated until it is answered: no report of its own.
            actions = self._roll_back("cancelled", now, report=False)
        elif cancel.migration not in standing.outcomes:
            # Remembered, so that the order, should it be on its way still, starts nothing.
            unknown = Outcome(MigrationStage.UNKNOWN, None, None, "cancelled before it came")
            standing.outcomes.remember(cancel.migration, unknown)
        outcome = standing.outcomes.get(cancel.migration)
        assert outcome is not None
        return standing.outcome_report(cancel.migration, outcome), actions

    def _collect(self, order: CollectOrder, place: Place, now: float) -> tuple[ControlMessage, Actions]:
        standing, running, migration = self._standing, self._collector, self._migration
        known = standing.outcomes.get(order.migration)
        if known is not None:
            return standing.outcome_report(order.migration, known), []
        if running is not None and running.order.migration == order.migration:
            return running.present(), []
        if running is not None:
            text, again_s = f"{running.order.migration} is being collected", running.order.timeout_us / 1e6
            return Refusal(reason=RefusalReason.CONFLICT, message=text, retry_after_s=again_s), []
        in_use = [key_of(place), *([key_of(migration.slot.place)] if migration is not None else [])]
        if key_of(place_of(order)) in in_use:
            # The head takes us to be elsewhere: we have missed something, so we ask.
            report = standing.report(order.migration, MigrationStage.UNKNOWN, None, "it is served from there")
            return report, self._inquiry.ask(self._primary, now)
        self._collector = Collector(standing, order, self._expected)
        return self._collector.present(), self._collector.begin(now)

    # The course of a migration.

    def _marker(self, slot: int, key: str, now: float) -> Actions:
        parsed = parse_marker(key)
        migration, collector, primary = self._migration, self._collector, self._primary
        if parsed is None:
            return []
        name, head = parsed
        if migration is not None and name == migration.marker:
            if primary is not None and slot == primary.number and primary.alive:
                migration.hold.marker_old(head)
            elif slot == migration.slot.number:
                migration.hold.marker_new(head)
        elif collector is not None and slot == collector.slot.number and collector.slot.alive:
            collector.marker(name, head)
        elif primary is not None and slot == primary.number and primary.alive:
            self._early.remember(key_of(primary.place), name, head)
        # A marker of anything else is a leftover, or one that a broad pattern let through.
        return self.progress(now)

    def _switch(self, now: float) -> Actions:
        standing, migration, old = self._standing, self._migration, self._primary
        assert migration is not None
        assert old is not None
        order = migration.order
        items, surplus = migration.hold.release()
        self._migration = None
        self.moves += 1
        self._set_primary(migration.slot)
        outcome = Outcome(MigrationStage.MOVED, key_of(old.place), key_of(migration.slot.place))
        standing.outcomes.remember(order.migration, outcome)
        standing.tell(now, f"migration {order.migration}: moved, {len(items)} released")
        actions: Actions = [Release(items, surplus), CancelTimer(MIGRATION)]
        if self._collector is not None and self._collector.holds:
            # It may follow what is released here, so it is looked at when that has been delivered.
            actions.append(SetTimer(LINGER, 0.0))
        actions += standing.drop_report(order.migration, MigrationStage.ATTACHED)
        # The head that ordered this knows the new place once it hears the report: nothing is in doubt any more.
        actions += self._inquiry.stop()
        actions += standing.change_head(order.migration, order.head, order.head_url)
        report = standing.outcome_report(order.migration, outcome)
        actions += standing.give_up(old, ATTACH, report, migration.head_url)
        return actions + self._end_collection(now)

    def _roll_back(self, reason: str, now: float, report: bool = True) -> Actions:
        """Stay with the old queue. What was held is forgotten: it is unacknowledged, and the old queue has it."""
        standing, migration = self._standing, self._migration
        assert migration is not None
        assert self._primary is not None
        order = migration.order
        self._migration = None
        self._set_primary(self._primary)
        source, target = (order.edge_from, order.number_from), (order.edge, order.number)
        outcome = Outcome(MigrationStage.STAYED, source, target, reason)
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
        collector = self._collector
        if collector is None or self._migration is not None:
            return []
        due = collector.take_due(now)
        actions: Actions = [Release(due)] if due else []
        actions += collector.end_if_complete("", now)
        if collector.ended:
            self._collector = None
        return actions

    # Attachments.

    def _attached(self, number: int, now: float) -> Actions:
        standing, migration, collector = self._standing, self._migration, self._collector
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
        standing, migration, collector, primary = self._standing, self._migration, self._collector, self._primary
        if number in standing.leaving:
            return standing.detached(number, event.unsettled)
        if migration is not None and number == migration.slot.number:
            return self._roll_back(f"the new queue was lost: {problem}", now)
        if collector is not None and number == collector.slot.number:
            actions = collector.lost(gone, now)
            if collector.ended:
                self._collector = None
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
        if self._migration is not None:
            if self._migration.stage is MigrationStage.ATTACHED:
                # There is no way back, and nothing more to wait for: what is held is all there is.
                return self._switch(now)
            actions = self._roll_back("the old queue is gone", now)
        self._primary = None
        return actions + self._standing.go_home() + self._inquiry.ask(None, now)

    # The place.

    def _granted(self, reply: SubscribeReply, now: float) -> Actions:
        standing = self._standing
        place = Place(reply.edge, reply.url, reply.queue, reply.subscription.number)
        actions = self._inquiry.stop()
        if reply.head is not None and reply.head_url and reply.head_url != self.head_url:
            # An earlier life of this client was moved to another cluster.
            standing.head_url = reply.head_url
            actions.append(ChangeHead(reply.head, reply.head_url))
        primary, migration = self._primary, self._migration
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
            actions += self._roll_back("the head granted another place", now)
        if self._collector is not None and key_of(self._collector.slot.place) == key_of(place):
            actions += self._collector.abandon()
            self._collector = None
        if primary is not None:
            actions += standing.drop(primary, ATTACH)
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
        standing, migration, collector = self._standing, self._migration, self._collector
        if name == ASK:
            return self._inquiry.again(self._primary, now) if self._inquiry.asking else []
        if name == ATTACH and self._primary is not None:
            return standing.attach_again(self._primary)
        if name == MIGRATION and migration is not None:
            (old, new), unmet = migration.hold.missing, migration.hold.unmet
            return self._roll_back(f"time-out: markers missing {old} old, {new} new; streams behind: {unmet}", now)
        if name == LINGER:
            return self.progress(now)
        if name == COLLECT_PATIENCE and collector is not None:
            return [*self.progress(now), *collector.look_again(now)]
        if name == COLLECT and collector is not None:
            self._collector = None
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
        actions += self._inquiry.stop()
        timers = (ATTACH, MIGRATION, LINGER, COLLECT, COLLECT_ATTACH, COLLECT_PATIENCE)
        actions += [CancelTimer(timer) for timer in (*timers, *(f"{DETACH}{slot}" for slot in standing.leaving))]
        actions += standing.reports.clear()
        self._primary = self._migration = self._collector = None
        standing.leaving.clear()
        return actions

    def _slots(self) -> list[Slot]:
        others = [owner.slot for owner in (self._migration, self._collector) if owner is not None]
        return ([self._primary] if self._primary is not None else []) + others

    def _set_primary(self, slot: Slot) -> None:
        self._primary = slot
        self._standing.place = slot.place
