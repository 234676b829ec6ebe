"""Publishers: moving them to another head, and limiting publishers that flood."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from ..decisions import AnyDecision, UnknownDecision
from ..parts import Id, Message, Micros, Name, PublisherId, Text, Topic, Url
from .loads import BrokerLoad


class HeadLoadRequest(Message):
    """An overloaded head asks its neighbours whether they could take publishers."""

    kind: Literal["head-load-request"] = "head-load-request"
    session: Id
    head: Name


class HeadLoad(Message):
    kind: Literal["head-load"] = "head-load"
    session: Id
    load: BrokerLoad
    publisher_url: Url


class PublisherExpect(Message):
    """A publisher is about to come to you: watch for the fence that follows its last message."""

    kind: Literal["publisher-expect"] = "publisher-expect"
    move: Id
    head: Name
    publisher: PublisherId
    fence: Topic


class PublisherExpectReply(Message):
    kind: Literal["publisher-expected"] = "publisher-expected"
    move: Id


class PublisherMoveOrder(Message):
    """Publish through another head: connect to it, pause, wait for all confirms, report `paused`."""

    kind: Literal["publisher-move-order"] = "publisher-move-order"
    move: Id
    publisher: PublisherId
    head: Name
    url: Url
    timeout_us: Micros


class PublisherStage(StrEnum):
    ORDERED = "ordered"
    PAUSED = "paused"
    MOVED = "moved"
    STAYED = "stayed"


class PublisherMoveReport(Message):
    """Where a publisher is with its move: unasked (answered with publisher-move-ack), or as an answer."""

    kind: Literal["publisher-move-report"] = "publisher-move-report"
    move: Id
    publisher: PublisherId
    stage: PublisherStage
    reason: Text = ""


class PublisherMoveAck(Message):
    kind: Literal["publisher-move-ack"] = "publisher-move-ack"
    move: Id


class FenceSeen(Message):
    """Everything published before the fence has passed here; answered with publisher-move-ack."""

    kind: Literal["fence-seen"] = "fence-seen"
    move: Id
    head: Name


class PublisherResume(Message):
    """Go on: at the new head, or back at the old one. Answered with publisher-move-report."""

    kind: Literal["publisher-resume"] = "publisher-resume"
    move: Id
    publisher: PublisherId
    moved: bool


class ThrottleOrder(Message):
    """A publisher that floods is asked to keep to these limits for a while."""

    kind: Literal["throttle-order"] = "throttle-order"
    publisher: PublisherId
    messages_per_s: Annotated[float, Field(gt=0)]
    for_us: Micros
    found: AnyDecision = UnknownDecision()
    """Which limit it passes; unknown where its head is of another version."""


PublisherMessage = (
    HeadLoadRequest
    | HeadLoad
    | PublisherExpect
    | PublisherExpectReply
    | PublisherMoveOrder
    | PublisherMoveReport
    | PublisherMoveAck
    | FenceSeen
    | PublisherResume
    | ThrottleOrder
)
"""The part of the union `messages.ControlMessage` that this module defines."""
