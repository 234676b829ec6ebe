"""What the stream of drops holds for each subscription, and what replays have come to. Pure: numbers, no messages but
the latest few.

Invariants: at most `QUEUES_MAX` subscriptions are remembered, the latest ones, and of each at most `LATEST_MAX`
messages without their bodies. What is held is never told as less than it is; it may be more, because the stream drops
its oldest without a word.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from tidegate_agents.kit.memory import Recent
from tidegate_protocol.decisions import DropReason, ReplayOutcome
from tidegate_protocol.drops import (
    MESSAGES_TOLD_MAX,
    OUTPUTS_TOLD_MAX,
    DroppedMessage,
    DroppedOutput,
    DropsRequest,
)
from tidegate_protocol.names import OUTPUT_PREFIX

from .form import Dropped

QUEUES_MAX: Final = 1_000
LATEST_MAX: Final = 10


@dataclass(slots=True)
class Kept:
    """What is kept of one subscription."""

    reasons: dict[DropReason, int] = field(default_factory=dict)
    held: int = 0
    held_bytes: int = 0
    latest_us: int = 0
    latest: deque[DroppedMessage] = field(default_factory=lambda: deque(maxlen=LATEST_MAX))
    replaying: bool = False
    replayed: int = 0
    outcome: ReplayOutcome | None = None


class Ledger:
    """The subscriptions of one edge of which something was dropped."""

    def __init__(self, edge: str) -> None:
        self._edge = edge
        self.queues: Recent[str, Kept] = Recent(QUEUES_MAX)
        self.done: dict[str, int] = {}
        """By queue: up to this offset everything has been replayed, or given up."""

    def counted(self, dropped: Dropped) -> None:
        """A message was dropped just now, and is in the stream."""
        kept = self.kept(dropped)
        kept.reasons[dropped.reason] = kept.reasons.get(dropped.reason, 0) + 1

    def kept(self, dropped: Dropped) -> Kept:
        """The stream holds this message."""
        kept = self.queues.get(dropped.queue) or Kept()
        self.queues[dropped.queue] = kept
        kept.held += 1
        kept.held_bytes += len(dropped.body)
        kept.latest_us = max(kept.latest_us, dropped.time_us)
        kept.latest.append(dropped.shown(self._edge))
        return kept

    def is_done(self, dropped: Dropped) -> bool:
        """Whether it was replayed or given up before."""
        return dropped.offset <= self.done.get(dropped.queue, -1)

    def forget(self, queue: str, offset: int, count: int | None = None) -> int:
        """What the stream holds of a queue up to this offset is done with: so many messages, or all that are known.
        Returns how many that were.
        """
        self.done[queue] = offset
        kept = self.queues.get(queue)
        if kept is None or not kept.held:
            return 0
        count = kept.held if count is None else min(count, kept.held)
        kept.held_bytes -= kept.held_bytes * count // kept.held
        kept.held -= count
        if not kept.held:
            kept.latest.clear()
        return count

    def forget_all(self) -> int:
        """The stream is empty."""
        count = sum(kept.held for kept in self.queues.values())
        for kept in self.queues.values():
            kept.held = kept.held_bytes = 0
            kept.latest.clear()
        self.done.clear()
        return count

    def wanted(self, request: DropsRequest) -> list[str]:
        """The queues that a request is about, in the order of their names."""
        return sorted(queue for queue in self.queues if _meant(queue, request))

    def outputs(self, queues: list[str], now_us: int) -> tuple[DroppedOutput, ...]:
        """For an operator: those with most dropped first."""
        told = [self._output(queue, self.queues[queue], now_us) for queue in queues]
        told.sort(key=lambda one: (-sum(one.reasons.values()), -one.held, one.queue))
        return tuple(told[:OUTPUTS_TOLD_MAX])

    def messages(self, queues: list[str]) -> tuple[DroppedMessage, ...]:
        """The latest of each queue."""
        found = [message for queue in queues for message in reversed(self.queues[queue].latest)]
        return tuple(found[:MESSAGES_TOLD_MAX])

    def _output(self, queue: str, kept: Kept, now_us: int) -> DroppedOutput:
        return DroppedOutput(
            edge=self._edge,
            queue=queue,
            reasons=dict(kept.reasons),
            held=kept.held,
            held_bytes=kept.held_bytes,
            latest_ago_us=max(now_us - kept.latest_us, 0) if kept.latest_us else None,
            replaying=kept.replaying,
            replayed=kept.replayed,
            outcome=kept.outcome,
        )


def _meant(queue: str, request: DropsRequest) -> bool:
    subscriber, _, number = queue.removeprefix(OUTPUT_PREFIX).rpartition(".")
    if request.subscriber and subscriber != request.subscriber:
        return False
    return request.number is None or number == str(request.number)
