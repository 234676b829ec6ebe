"""Counts what happens in a run: messages, sessions, migrations, control messages.

A session counts when a head offers its source candidates, a migration as ordered when a client is told to move, and as
a move when it reports that it has. Repetitions of the same message count once. A placement is advised if an insight had
a bearing on it. Invariant: the totals have all of `NAMES`, zero or not.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tidegate_agents.machine import Action, Event, MessageReceived, Reply, ReplyReceived, SendClient
from tidegate_protocol.balancing.migrations import MigrateOrder, MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import CollectOrder
from tidegate_protocol.balancing.publishers import (
    PublisherMoveOrder,
    PublisherMoveReport,
    PublisherStage,
    ThrottleOrder,
)
from tidegate_protocol.balancing.sessions import BalanceCandidates
from tidegate_protocol.decisions import Decision, InsightRefused, InsightTaken, Placed

from .observer import HEARD, Observer

NAMES: Final = (
    "advised_placements",
    "collected",
    "collections",
    "control_messages",
    "deliveries",
    "insights_refused",
    "insights_taken",
    "late",
    "migrations_ordered",
    "moves",
    "published",
    "publisher_migrations_ordered",
    "publisher_moves",
    "sessions",
    "steps",
    "throttled",
)


class Counts(Observer):
    """Totals of one run, by name."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(NAMES, 0))
        self._seen: set[tuple[str, str]] = set()

    def totals(self) -> dict[str, int]:
        assert self._counts.keys() == set(NAMES), "a count without a name"
        return dict(sorted(self._counts.items()))

    def published(self, publisher: str, topic: str, message_id: str, now: float) -> None:
        self._counts["published"] += 1

    def delivered(
        self, subscriber: str, message_id: str, published_s: float, now: float, *, late: bool, collected: bool
    ) -> None:
        self._counts["deliveries"] += 1
        if late:
            self._counts["late"] += 1
        if collected:
            self._counts["collected"] += 1

    def decided(self, broker: str, decision: Decision, now: float) -> None:
        if isinstance(decision, InsightTaken):
            self._counts["insights_taken"] += 1
        elif isinstance(decision, InsightRefused):
            self._counts["insights_refused"] += 1
        elif isinstance(decision, Placed) and decision.advice is not None:
            self._counts["advised_placements"] += 1

    def control_sent(self, sender: str, receiver: str, kind: str, now: float) -> None:
        self._counts["control_messages"] += 1

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        self._counts["steps"] += 1
        if isinstance(event, HEARD):
            self._heard(event)
        for action in actions:
            if isinstance(action, Reply) and isinstance(action.message, BalanceCandidates):
                self._once("sessions", action.message.session)
            elif isinstance(action, SendClient):
                self._ordered(action)

    def _heard(self, event: MessageReceived | ReplyReceived) -> None:
        match event.message:
            case MigrationReport(stage=MigrationStage.MOVED, migration=migration):
                self._once("moves", migration)
            case PublisherMoveReport(stage=PublisherStage.MOVED, move=move):
                self._once("publisher_moves", move)

    def _ordered(self, action: SendClient) -> None:
        match action.message:
            case MigrateOrder(migration=migration):
                self._once("migrations_ordered", migration)
            case CollectOrder(migration=migration):
                self._once("collections", migration)
            case PublisherMoveOrder(move=move):
                self._once("publisher_migrations_ordered", move)
            case ThrottleOrder(publisher=publisher):
                self._once("throttled", publisher)

    def _once(self, name: str, subject: str) -> None:
        if (name, subject) not in self._seen:
            self._seen.add((name, subject))
            self._counts[name] += 1
