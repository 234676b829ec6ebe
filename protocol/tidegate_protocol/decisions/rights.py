"""Decisions about rights: which subscriptions rules do not allow, and which they ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ..rights import Verdict
from .base import Decision


@dataclass(frozen=True, slots=True)
class SubscriptionForbidden(Decision):
    """A client asked for a subscription that the rules do not allow. Recorded once for each, until rules change."""

    kind: ClassVar[str] = "subscription-forbidden"
    labels: ClassVar[type[StrEnum]] = Verdict

    subscriber: str
    pattern: str
    reason: Verdict


@dataclass(frozen=True, slots=True)
class SubscriptionRevoked(Decision):
    """A subscription is ended, because the rules do not allow it any more."""

    kind: ClassVar[str] = "subscription-revoked"
    labels: ClassVar[type[StrEnum]] = Verdict

    subscriber: str
    pattern: str
    edge: str
    reason: Verdict


@dataclass(frozen=True, slots=True)
class RulesTaken(Decision):
    """A broker goes by other rules from now on."""

    kind: ClassVar[str] = "rules-taken"

    broker: str
    accounts: int
    revoked: int = 0
    """How many subscriptions that ends."""
