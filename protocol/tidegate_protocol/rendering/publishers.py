"""Decisions about publishers in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..decisions import (
    ENDS,
    Decision,
    ExpectationEnded,
    ExpectationOutcome,
    Flood,
    FloodingPublisher,
    PlanOutcome,
    PublisherBehaves,
    PublisherExpected,
    PublisherMoveEnded,
    PublisherPlan,
    PublisherSession,
    PublisherSessionEnded,
    PublishersFull,
    SessionOutcome,
)
from .clauses import OUTCOMES, PLANS, cause, why_stayed
from .said import Said
from .sessions import moved
from .words import amount, listed, seconds

NOBODY: Final[Mapping[PlanOutcome, str]] = {
    **PLANS,
    PlanOutcome.NO_ROOM: "no neighbour has room",
    PlanOutcome.NOBODY_MOVABLE: "no publisher can be moved",
}
ENDED: Final[Mapping[SessionOutcome, str]] = {**OUTCOMES, **{end: NOBODY[plan] for plan, end in ENDS.items()}}
EXPECTATIONS: Final[Mapping[ExpectationOutcome, str]] = {
    ExpectationOutcome.FENCE_SEEN: "its fence was seen, and {head} knows",
    ExpectationOutcome.HEAD_ABSENT: "{head} is not there",
    ExpectationOutcome.NO_ANSWER: "{head} does not answer",
    ExpectationOutcome.NO_FENCE: "its fence did not come in time",
}
FLOODS: Final[Mapping[Flood, tuple[str, str]]] = {
    Flood.MESSAGES: ("messages", "publisher_messages_per_s_max"),
    Flood.BYTES: ("bytes", "publisher_bytes_per_s_max"),
    Flood.USELESS: ("messages without a subscriber", "useless_messages_per_s_max"),
}
"""What is too much, and the setting that limits it."""


def session(one: PublisherSession) -> Said:
    return Said(one.head, "asks its neighbours to take publishers", "; ".join(map(cause, one.causes)))


def plan(one: PublisherPlan) -> Said:
    if not one.moves:
        return Said(one.head, "finds no publisher to move", NOBODY[one.outcome])
    moves = listed(f"{each.publisher} to {each.target}" for each in one.moves)
    return Said(one.head, "has a plan", f"{moves}; {PLANS[one.outcome]}")


def move(one: PublisherMoveEnded) -> Said:
    what = f"{'was moved' if one.moved else 'was not moved'} from {one.source} to {one.target}"
    why = "" if one.moved else why_stayed(one)
    return Said(one.publisher, what, why)


def session_ended(one: PublisherSessionEnded) -> Said:
    text = moved(one.moved, one.failed) if one.outcome is SessionOutcome.MOVES_ENDED else ENDED[one.outcome]
    return Said(one.head, "is done with moving publishers", text)


def expected(one: PublisherExpected) -> Said:
    return Said(one.publisher, "is expected", f"{one.head} is overloaded and sends it")


def expectation(one: ExpectationEnded) -> Said:
    return Said(one.publisher, "is expected no more", EXPECTATIONS[one.outcome].format(head=one.head))


def flood(one: FloodingPublisher) -> Said:
    sent, limit = FLOODS[one.reason]
    on = f", most of it on {listed(one.topics)}" if one.topics else ""
    allowed = f"{limit} = {amount(one.limit_per_s)} allows less"
    passed = f"it sends {amount(one.value_per_s)} {sent} per second{on}, and {allowed}"
    if one.disconnected:
        return Said(one.publisher, "is disconnected", f"{passed}, and did not slow down in {one.samples} samples")
    return Said(one.publisher, f"is asked to slow down to {amount(one.allowed_messages_per_s)}/s", passed)


def behaves(one: PublisherBehaves) -> Said:
    return Said(one.publisher, "behaves again", f"it has kept to the limits for {seconds(one.containment_s)}")


def full(one: PublishersFull) -> Said:
    return Said(one.publisher, "is not followed on new topics", f"there are STREAMS_MAX = {one.streams_max} streams")


RENDERINGS: Final[Mapping[type[Decision], Callable[[Any], Said]]] = {
    PublisherSession: session,
    PublisherPlan: plan,
    PublisherMoveEnded: move,
    PublisherSessionEnded: session_ended,
    PublisherExpected: expected,
    ExpectationEnded: expectation,
    FloodingPublisher: flood,
    PublisherBehaves: behaves,
    PublishersFull: full,
}
