"""Decisions about accounts: quotas, floods as RabbitMQ measures them, and reports that contradict what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from .base import Decision
from .publishers import Flood


class Quota(StrEnum):
    """What an account, or all accounts of a tenant together, may use."""

    SUBSCRIPTIONS = "subscriptions"
    PUBLISHERS = "publishers"
    CONNECTIONS = "connections"
    MESSAGES = "messages-per-s"
    BYTES = "bytes-per-s"


class QuotaStage(StrEnum):
    """How much of a quota is used."""

    NEAR = "quota-near"
    REACHED = "quota-reached"
    ROOM = "quota-room"


@dataclass(frozen=True, slots=True)
class QuotaWatched(Decision):
    """An account or a tenant comes near one of its quotas, has reached it, or has room again."""

    kind: ClassVar[str] = "quota"
    labels: ClassVar[type[StrEnum]] = QuotaStage

    account: str
    """Empty where it is the quota of a tenant."""
    tenant: str
    quota: Quota
    outcome: QuotaStage
    used: float
    limit: float


class Containment(StrEnum):
    """What is done about an account that floods."""

    ASKED = "asked"
    KEPT_OUT = "kept-out"
    POWERLESS = "powerless"


@dataclass(frozen=True, slots=True)
class FloodingAccount(Decision):
    """RabbitMQ measures that an account sends more than it may. Its publishers are asked to slow down, or its
    connections are closed and refused for a while, or nobody here has the right to do that.
    """

    kind: ClassVar[str] = "flooding-account"
    labels: ClassVar[type[StrEnum]] = Containment

    account: str
    flood: Flood
    outcome: Containment
    value_per_s: float
    limit_per_s: float
    lease_s: float
    """For how long it is slowed down or kept out."""
    samples: int
    """How many measurements above the limit led to this."""
    connections: int = 0
    publishers: tuple[str, ...] = ()
    """Those that are asked."""


@dataclass(frozen=True, slots=True)
class AccountReleased(Decision):
    """The time is over for which an account was slowed down or kept out."""

    kind: ClassVar[str] = "account-released"

    account: str
    lease_s: float


class Untruth(StrEnum):
    """How a report contradicts what was measured, or what its account may do."""

    UNMEASURED = "unmeasured"
    """RabbitMQ has seen no publication of this account."""
    MESSAGES = "too-many-messages"
    BYTES = "too-many-bytes"
    ROUND_TRIP = "round-trip"
    TOPIC = "topic"
    """The account may not publish there."""


@dataclass(frozen=True, slots=True)
class UntrueReports(Decision):
    """A publisher reports what can't be so: only what was measured of its account counts."""

    kind: ClassVar[str] = "untrue-reports"
    labels: ClassVar[type[StrEnum]] = Untruth

    account: str
    publisher: str
    reason: Untruth
    claimed: float
    """Messages or bytes per second, or seconds."""
    believed: float
    topic: str = ""


@dataclass(frozen=True, slots=True)
class GreedySubscriber(Decision):
    """What one subscription is sent is more than its account may be sent; what waits for it is bounded."""

    kind: ClassVar[str] = "greedy-subscriber"
    labels: ClassVar[type[StrEnum]] = Flood

    queue: str
    subscriber: str
    pattern: str
    account: str
    reason: Flood
    value_per_s: float
    limit_per_s: float
    share: float
    """Of all that its edge is asked to send."""
    messages_max: int
    """What may wait for it from now on."""
