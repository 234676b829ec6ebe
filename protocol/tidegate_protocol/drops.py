"""Messages about what was dropped from output queues, kept in a stream, and can be replayed.

    operator → head   drops-request     list, show, replay or purge
    head     → edge   drops-request     the same, of one edge
    edge     → head → operator          drops-reply

An edge answers from memory and at once: a replay is only begun, and later answers tell how far it is.
Everything in an answer is bounded: the subscriptions with most dropped, the latest messages.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from .decisions import DropReason, ReplayOutcome
from .parts import INTEGER_MAX, Message, Micros, Name, Number, Part, Text

OUTPUTS_TOLD_MAX: Final = 200
"""Subscriptions in one answer."""
MESSAGES_TOLD_MAX: Final = 50
"""Dropped messages shown in one answer."""
PREVIEW_LENGTH_MAX: Final = 200

Count = Annotated[int, Field(ge=0, le=INTEGER_MAX)]


class DropsOrder(StrEnum):
    """What an operator wants."""

    LIST = "list"
    SHOW = "show"
    REPLAY = "replay"
    PURGE = "purge"


class DroppedOutput(Part):
    """What was dropped of one subscription, on one edge."""

    edge: Name
    queue: Text
    reasons: dict[DropReason, Count] = Field(default_factory=dict)
    """Messages by why they were dropped, since the edge's process began."""
    held: Count = 0
    """Messages kept for a replay, at most: the stream drops its oldest without a word."""
    held_bytes: Count = 0
    latest_ago_us: Micros | None = None
    """None if it was before the edge's process began."""
    replaying: bool = False
    replayed: Count = 0
    """By the replay that runs, or by the last one."""
    outcome: ReplayOutcome | None = None
    """Of the last replay."""


class DroppedMessage(Part):
    """One message that was dropped and is kept."""

    edge: Name
    queue: Text
    topic: Text
    reason: DropReason
    message_id: Text = ""
    account: Text = ""
    size_bytes: Count = 0
    preview: Annotated[str, Field(max_length=PREVIEW_LENGTH_MAX)] = ""
    """How its body begins; what is no text is replaced."""


class DropsRequest(Message):
    kind: Literal["drops-request"] = "drops-request"
    order: DropsOrder = DropsOrder.LIST
    edge: Text = ""
    """Only of this edge."""
    subscriber: Text = ""
    """Only of this subscriber; a replay needs one."""
    number: Number | None = None
    """Only of this subscription of the subscriber."""


class DropsReply(Message):
    kind: Literal["drops-reply"] = "drops-reply"
    outputs: Annotated[tuple[DroppedOutput, ...], Field(max_length=OUTPUTS_TOLD_MAX)] = ()
    """Those with most dropped first."""
    messages: Annotated[tuple[DroppedMessage, ...], Field(max_length=MESSAGES_TOLD_MAX)] = ()
    """The latest first."""
    begun: Count = 0
    """Replays that were begun."""
    purged: Count = 0
    """Messages that were given up."""
    missing: tuple[Name, ...] = ()
    """Edges that did not answer."""
    without: tuple[Name, ...] = ()
    """Edges that keep nothing of what they drop: their account may not declare the stream."""


DropsMessage = DropsRequest | DropsReply
"""The part of the union `messages.ControlMessage` that this module defines."""
