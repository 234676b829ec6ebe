"""Decisions about dropped messages in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..decisions import Decision, DropReason, DropsPurged, DropsReplayed, MessagesDropped, ReplayOutcome
from .clauses import with_detail
from .said import Said
from .words import counted, subscription

DROPPED: Final[Mapping[DropReason, str]] = {
    DropReason.LIMIT: "its queue was full",
    DropReason.MESSAGE_EXPIRED: "their time to live was over",
    DropReason.REJECTED: "its subscriber refused them",
    DropReason.QUEUE_GONE: "its queue expired, or was deleted by somebody",
    DropReason.QUEUE_DELETED: "its queue was deleted by order",
}
REPLAYS: Final[Mapping[ReplayOutcome, str]] = {
    ReplayOutcome.DONE: "all that was kept",
    ReplayOutcome.ELSEWHERE: "its queue is not on this edge any more",
    ReplayOutcome.NOT_READING: "its subscriber does not take them",
    ReplayOutcome.FAILED: "RabbitMQ refused, or its connection was lost",
}


def _about(queue: str) -> str:
    return subscription(queue) if queue else "a subscription that is not known"


def dropped(one: MessagesDropped) -> Said:
    lost = counted(one.count, "message was", "messages were")
    total = f" ({one.total} so far)" if one.total > one.count else ""
    return Said(_about(one.queue), "loses messages", f"{lost} dropped{total}, because {DROPPED[one.reason]}")


def replayed(one: DropsReplayed) -> Said:
    what = f"was sent {counted(one.replayed, 'dropped message')} again"
    left = f", {one.left} are still kept" if one.left else ""
    return Said(_about(one.queue), what, with_detail(REPLAYS[one.outcome] + left, one.detail))


def purged(one: DropsPurged) -> Said:
    about = subscription(one.queue) if one.queue else "every subscription"
    return Said(about, "is sent nothing of what was dropped", f"an operator gave up {counted(one.count, 'message')}")


RENDERINGS: Final[Mapping[type[Decision], Callable[[Any], Said]]] = {
    MessagesDropped: dropped,
    DropsReplayed: replayed,
    DropsPurged: purged,
}
