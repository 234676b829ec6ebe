"""Migration of one subscription: the head's orders to the client, and the client's reports."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from ..parts import Id, Message, Micros, Name, Number, Pattern, Text, Url
from .markers import HEADS_MAX


class MigrateOrder(Message):
    """Move a subscription from the queue `number` to another edge.

    Attach to `queue` and hold what comes; report `attached`; go on with the old queue until the markers of all
    `heads` have come through both; then switch. After `timeout_us` go back on your own.
    """

    kind: Literal["migrate-order"] = "migrate-order"
    migration: Id
    subscriber: Name
    pattern: Pattern
    edge_from: Name
    number_from: Number
    edge: Name
    number: Number
    url: Url
    queue: Text
    head: Name
    head_url: Annotated[str, Field(max_length=500)] = ""
    """The head to talk to afterwards; empty where it stays the same."""
    heads: Annotated[tuple[Name, ...], Field(min_length=1, max_length=HEADS_MAX)]
    timeout_us: Micros


class MigrationStage(StrEnum):
    """Where a client is with a migration. The last three are final."""

    ORDERED = "ordered"
    ATTACHED = "attached"
    MOVED = "moved"
    STAYED = "stayed"
    UNKNOWN = "unknown"


class MigrationReport(Message):
    """A client says where it is: unasked (the head answers with migration-ack), or as the answer to an order or a
    cancellation. `edge` and `number` name the queue it delivers from.
    """

    kind: Literal["migration-report"] = "migration-report"
    migration: Id
    subscriber: Name
    stage: MigrationStage
    pattern: Pattern
    edge: Name
    number: Number
    other_edge: Name | None = None
    """The edge it left, if it moved, or did not go to, if it stayed; with `other_number` the queue there."""
    other_number: Number | None = None
    reason: Text = ""
    unsettled: bool = False
    """Whether the application has still to take what the other queue brought: removed now, a crash would lose it."""


class MigrationAck(Message):
    kind: Literal["migration-ack"] = "migration-ack"
    migration: Id


class MigrateCancel(Message):
    """Give the migration up unless you have moved already; the answer is a migration-report that says which."""

    kind: Literal["migrate-cancel"] = "migrate-cancel"
    migration: Id
    subscriber: Name
    pattern: Pattern


MigrationMessage = MigrateOrder | MigrationReport | MigrationAck | MigrateCancel
"""The part of the union `messages.ControlMessage` that this module defines."""
