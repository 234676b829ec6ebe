"""Orders of the head to a subscriber, and the answers: move, give a move up, collect, say where you are.

Invariants:

- an order that is repeated gets the same answer, also after the move has ended and after the subscription is closed;
- an order to move that comes while another move runs is declined;
- before the subscription has a place, every order is answered with "no place yet".
"""

from __future__ import annotations

from typing import Any, Protocol

from tidegate_protocol.balancing.migrations import MigrateCancel, MigrateOrder, MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import CollectOrder, PlaceRequest
from tidegate_protocol.messages import ControlMessage, Refusal
from tidegate_protocol.parts import RefusalReason

from .attachment import Actions, MigrationOutcome, Standing, key_of
from .collector import Collector, place_of
from .hold import RunningMigration
from .moves import Answer, Place


class OrderedSubscription(Protocol):
    """The subscription that is ordered about."""

    closed: bool
    migration: RunningMigration | None
    collector: Collector | None

    def begin(self, order: MigrateOrder, place: Place, now: float) -> tuple[MigrationReport, Actions]: ...

    def roll_back(self, reason: str, now: float, report: bool = True) -> Actions: ...

    def collect(self, order: CollectOrder, now: float) -> tuple[MigrationReport, Actions]: ...

    def ask(self, now: float) -> Actions: ...


class Orders:
    """Answers what the head orders of one subscription, and has it moved."""

    def __init__(self, standing: Standing, subscription: OrderedSubscription) -> None:
        self._standing = standing
        self._subscription = subscription

    def ordered(self, message: ControlMessage, reply_to: Any, now: float) -> Actions:
        """What to do for an order, its answer included if the head waits for one."""
        answer: ControlMessage
        actions: Actions = []
        place, running = self._standing.place, self._subscription.migration
        match message:
            case MigrateOrder() | MigrateCancel() | PlaceRequest() | CollectOrder() if self._is_ours(message):
                if place is None:
                    # The subject of the order is not known here yet; a report would be taken for an answer.
                    text, again_s = "the subscription has no place yet", self._standing.times.ask.first_s
                    answer = Refusal(reason=RefusalReason.NOT_READY, message=text, retry_after_s=again_s)
                elif isinstance(message, MigrateOrder):
                    answer, actions = self._order(message, place, now)
                elif isinstance(message, MigrateCancel):
                    answer, actions = self._cancel(message, now)
                elif isinstance(message, CollectOrder):
                    answer, actions = self._collect(message, place, now)
                else:
                    answer = self._standing.place_reply(running.order.migration if running else None)
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
        request = self._standing.request
        ours = (request.subscriber, request.pattern)
        return not self._subscription.closed and (message.subscriber, message.pattern) == ours

    def _order(self, order: MigrateOrder, place: Place, now: float) -> tuple[MigrationReport, Actions]:
        standing, running = self._standing, self._subscription.migration
        known = standing.outcomes.get(order.migration)
        source, target = (order.edge_from, order.number_from), (order.edge, order.number)
        if known is not None:
            if standing.is_leaving(order.migration):  # the report, which is to come soon, is what ends it
                return standing.report(order.migration, MigrationStage.ATTACHED, known.source), []
            if known.target is None:  # it was cancelled before it came
                known = MigrationOutcome(MigrationStage.STAYED, source, target, known.reason)
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
            outcome = MigrationOutcome(stage, source, target, declined)
            standing.outcomes.remember(order.migration, outcome)
            return standing.outcome_report(order.migration, outcome), []
        return self._subscription.begin(order, place, now)

    def _cancel(self, cancel: MigrateCancel, now: float) -> tuple[MigrationReport, Actions]:
        standing, running, collector = self._standing, self._subscription.migration, self._subscription.collector
        actions: Actions = []
        if collector is not None and collector.order.migration == cancel.migration:
            return collector.present(), []
        if running is not None and running.order.migration == cancel.migration:
            # The answer says it all, and a cancellation is repeated until it is answered: no report of its own.
            actions = self._subscription.roll_back("cancelled", now, report=False)
        elif cancel.migration not in standing.outcomes:
            # Remembered, so that the order, should it be on its way still, starts nothing.
            unknown = MigrationOutcome(MigrationStage.UNKNOWN, None, None, "cancelled before it came")
            standing.outcomes.remember(cancel.migration, unknown)
        outcome = standing.outcomes.get(cancel.migration)
        assert outcome is not None
        return standing.outcome_report(cancel.migration, outcome), actions

    def _collect(self, order: CollectOrder, place: Place, now: float) -> tuple[ControlMessage, Actions]:
        standing, running, migration = self._standing, self._subscription.collector, self._subscription.migration
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
            return report, self._subscription.ask(now)
        return self._subscription.collect(order, now)
