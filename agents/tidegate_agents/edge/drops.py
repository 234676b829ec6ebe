"""What subscriptions of an edge did not get: counted by queue and reason, decided once in a while, told to operators.

The messages themselves are kept, listed and replayed by whoever runs the agent (`TendDrops`); here they are numbers.

Invariants:

- every drop that is told is in `totals`; the queues remembered one by one are at most `QUEUES_MAX`, the latest ones;
- a queue that loses messages all the time is a decision at the first and then every `REMIND_S`, not every second;
- what a head has deleted by order is counted and is no decision: its subscriber left, or is served elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tidegate_protocol.decisions import DropReason, MessagesDropped
from tidegate_protocol.drops import DropsRequest
from tidegate_protocol.operations import DROPS_TOLD_S, NAMES_TOLD_MAX

from ..kit.dispatch import Dispatch
from ..kit.memory import Recent
from ..machine import DropsCounted, DropsTended, DropsTold, ReplyAddress, TendDrops
from .context import EdgeContext

QUEUES_MAX: Final = 2_000
"""Pairs of queue and reason that are remembered."""
REMIND_S: Final = 300.0


@dataclass(slots=True)
class _Dropped:
    """Of one queue, for one reason."""

    total: int = 0
    told: int = 0
    told_s: float | None = None
    latest_s: float = 0.0
    lately: int = 0
    """Since the last pause of `DROPS_TOLD_S`."""


class EdgeDrops:
    """The drops of one edge."""

    def __init__(self, context: EdgeContext) -> None:
        self._context = context
        self.totals: dict[DropReason, int] = dict.fromkeys(DropReason, 0)
        self._queues: Recent[tuple[str, DropReason], _Dropped] = Recent(QUEUES_MAX)

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(DropsCounted, self._counted)
        dispatch.on_event(DropsTended, self._tended)
        dispatch.on_event(DropsTold, self._told)
        dispatch.on_message(DropsRequest, self._wanted)
        dispatch.checks.append(self.validate)

    # Counting

    def lost(self, queue: str, reason: DropReason, messages: int) -> None:
        """Messages for a subscription will not come."""
        if messages <= 0:
            return
        now = self._context.now
        self.totals[reason] += messages
        dropped = self._queues.get((queue, reason)) or _Dropped()
        self._queues[queue, reason] = dropped
        dropped.lately = messages + (dropped.lately if now - dropped.latest_s < DROPS_TOLD_S else 0)
        dropped.total += messages
        dropped.latest_s = now
        due = dropped.told_s is None or now - dropped.told_s >= REMIND_S
        if due and reason is not DropReason.QUEUE_DELETED:
            count, dropped.told, dropped.told_s = dropped.total - dropped.told, dropped.total, now
            self._context.decide(MessagesDropped(queue, reason, count, dropped.total))

    def by_queue(self) -> dict[tuple[str, DropReason], int]:
        """How many messages each queue lost for which reason, as far as that is remembered."""
        return {key: dropped.total for key, dropped in self._queues.items()}

    def told(self) -> dict[str, Any]:
        """What the state of this edge says about drops."""
        since = self._context.now - DROPS_TOLD_S
        lately = {
            key: dropped.lately
            for key, dropped in self._queues.items()
            if dropped.latest_s > since and key[1] is not DropReason.QUEUE_DELETED
        }
        by_queue: dict[str, int] = {}
        for (queue, _), count in lately.items():
            by_queue[queue] = by_queue.get(queue, 0) + count
        worst = sorted(by_queue, key=lambda queue: (-by_queue[queue], queue))
        return {"dropped": sum(by_queue.values()), "dropping": tuple(worst[:NAMES_TOLD_MAX])}

    # Events and messages

    def _counted(self, event: DropsCounted) -> None:
        for one in event.counts:
            self.lost(one.queue, one.reason, one.messages)

    def _wanted(self, message: DropsRequest, reply_to: ReplyAddress | None) -> None:
        if reply_to is not None:
            self._context.do(TendDrops(message, reply_to))

    def _tended(self, event: DropsTended) -> None:
        self._context.reply(event.reply_to, event.reply)

    def _told(self, event: DropsTold) -> None:
        self._context.decide(event.decision)

    def validate(self) -> None:
        """Raise AssertionError if more is remembered than may be, or than was counted."""
        self._queues.validate()
        for (_, reason), dropped in self._queues.items():
            assert dropped.told <= dropped.total <= self.totals[reason]
