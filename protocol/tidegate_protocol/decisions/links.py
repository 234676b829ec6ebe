"""Decisions about links: messages that were set aside, links that were helped, limits that do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from .base import Decision


class SetAsideReason(StrEnum):
    """What the far end of a link refuses a message for."""

    ACCOUNT = "account"
    """The account that it names, which the link may not pass on."""
    TOO_LARGE = "too-large"
    HEADERS_TOO_LARGE = "headers-too-large"
    KEY = "key"
    """A key that it is to be routed by."""
    CONTENT = "content"
    """Something else about it."""
    FAILURE = "failure"
    """RabbitMQ failed on it."""


@dataclass(frozen=True, slots=True)
class MessageSetAside(Decision):
    """A message went to the quarantine, because the far end of its link refuses it and takes others."""

    kind: ClassVar[str] = "message-set-aside"
    labels: ClassVar[type[StrEnum]] = SetAsideReason

    target: str
    reason: SetAsideReason
    entry: str
    """Its id in the quarantine."""
    account: str = ""
    """Whose it is, as RabbitMQ has checked; empty where its publisher did not say."""
    publisher: str = ""
    """Whose it is, as it says itself."""
    topic: str = ""
    size_bytes: int = 0
    detail: str = ""


class RelayOutcome(StrEnum):
    """How the time ended in which a head carried the messages of a link itself."""

    PASSED = "passed"
    """What stopped the link is behind it."""
    LINK_REFUSED = "link-refused"
    """The far end refuses whatever comes: the link's account or its exchange is wrong, not a message."""
    UNREACHABLE = "unreachable"
    STANDS_STILL = "stands-still"
    """The far end neither takes nor refuses."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LinkRelayed(Decision):
    """A link made no progress, so that its head carried its messages itself for a moment."""

    kind: ClassVar[str] = "link-relayed"
    labels: ClassVar[type[StrEnum]] = RelayOutcome

    target: str
    outcome: RelayOutcome
    carried: int = 0
    set_aside: int = 0
    duration_s: float = 0.0
    detail: str = ""


class LinkLimit(StrEnum):
    """Which limit of RabbitMQ's differs."""

    MESSAGE = "message-size"
    FRAME = "frame-size"


@dataclass(frozen=True, slots=True)
class LinkLimitDiffers(Decision):
    """The far end of a link takes less than the near one: what is in between would be set aside."""

    kind: ClassVar[str] = "link-limit-differs"
    labels: ClassVar[type[StrEnum]] = LinkLimit

    source: str
    target: str
    reason: LinkLimit
    source_bytes: int | None = None
    """None: more than was tried."""
    target_bytes: int = 0
