"""Decisions about messages that a subscription did not get: what was dropped, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from .base import Decision


class DropReason(StrEnum):
    """Why a message left an output queue without having been taken. Public: the label of a metric."""

    LIMIT = "limit"
    """The queue was full, and this was its oldest message."""
    MESSAGE_EXPIRED = "message-expired"
    """Its publisher had given it a time to live."""
    REJECTED = "rejected"
    """Its subscriber refused it: the SDK never does."""
    QUEUE_GONE = "queue-gone"
    """Its queue expired because nobody came for it, or somebody deleted it; counted by its last depth."""
    QUEUE_DELETED = "queue-deleted"
    """Its queue was deleted as its head ordered: its subscription ended, or had moved and was served elsewhere."""


@dataclass(frozen=True, slots=True)
class MessagesDropped(Decision):
    """Messages for a subscription were dropped; told at the first of them, and then once in a while."""

    kind: ClassVar[str] = "messages-dropped"
    labels: ClassVar[type[StrEnum]] = DropReason

    queue: str
    """Empty where it is not known."""
    reason: DropReason
    count: int
    """Since the last such record about this queue and reason."""
    total: int
    """Of this queue and reason, since the edge's process began."""


class ReplayOutcome(StrEnum):
    """How a replay ended."""

    DONE = "done"
    ELSEWHERE = "elsewhere"
    """The queue is not on this edge any more."""
    NOT_READING = "not-reading"
    """The subscriber does not take what was replayed; more would push out what waits for it."""
    FAILED = "failed"
    """RabbitMQ refused, or its connection was lost."""


@dataclass(frozen=True, slots=True)
class DropsReplayed(Decision):
    """Dropped messages were published again for their subscription."""

    kind: ClassVar[str] = "drops-replayed"
    labels: ClassVar[type[StrEnum]] = ReplayOutcome

    queue: str
    outcome: ReplayOutcome
    replayed: int
    left: int
    """Still kept, for another replay."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DropsPurged(Decision):
    """An operator gave up what was kept for a subscription, or for all."""

    kind: ClassVar[str] = "drops-purged"

    queue: str
    """Empty: of all."""
    count: int
