"""Decisions about accounts in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..decisions import (
    AccountReleased,
    Containment,
    Decision,
    Flood,
    FloodingAccount,
    GreedySubscriber,
    Quota,
    QuotaStage,
    QuotaWatched,
    UntrueReports,
    Untruth,
)
from .said import Said
from .words import amount, listed, percent, seconds

QUOTAS: Final[Mapping[Quota, str]] = {
    Quota.SUBSCRIPTIONS: "subscriptions",
    Quota.PUBLISHERS: "publishers",
    Quota.CONNECTIONS: "connections",
    Quota.MESSAGES: "messages per second",
    Quota.BYTES: "bytes per second",
}
OPTIONS: Final[Mapping[Quota, str]] = {
    Quota.SUBSCRIPTIONS: "subscriptions",
    Quota.PUBLISHERS: "publishers",
    Quota.CONNECTIONS: "connections",
    Quota.MESSAGES: "messages_per_s",
    Quota.BYTES: "bytes_per_s",
}
"""What each is called in the quota of an account."""
STAGES: Final[Mapping[QuotaStage, str]] = {
    QuotaStage.NEAR: "comes near its quota",
    QuotaStage.REACHED: "has reached its quota",
    QuotaStage.ROOM: "has room again",
}
SENT: Final[Mapping[Flood, tuple[str, str]]] = {
    Flood.MESSAGES: ("messages", "messages_per_s"),
    Flood.BYTES: ("bytes", "bytes_per_s"),
    Flood.USELESS: ("messages without a subscriber", "useless_messages_per_s"),
}
"""What is too much, and the quota that limits it."""
UNTRUTHS: Final[Mapping[Untruth, str]] = {
    Untruth.UNMEASURED: "it says that it sends {claimed} messages per second, and RabbitMQ has seen none",
    Untruth.MESSAGES: "it says that it sends {claimed} messages per second, and {believed} at most are believed",
    Untruth.BYTES: "it says that it sends {claimed} bytes per second, and {believed} at most are believed",
    Untruth.ROUND_TRIP: "it says that it is {claimed} s away, and {believed} s at most are believed",
    Untruth.TOPIC: "it may not publish on {topic}",
}


def named(account: str, tenant: str) -> str:
    """Whose quota it is."""
    return f"account {account}" if account else f"tenant {tenant}"


def used(quota: Quota, value: float, limit: float) -> str:
    """`800 of 1000 subscriptions (80 %)`."""
    return f"{amount(value)} of {amount(limit)} {QUOTAS[quota]} ({percent(value / max(limit, 1e-9))})"


def quota(one: QuotaWatched) -> Said:
    return Said(named(one.account, one.tenant), STAGES[one.outcome], used(one.quota, one.used, one.limit))


def flood(one: FloodingAccount) -> Said:
    sent, limit = SENT[one.flood]
    passed = f"it sends {amount(one.value_per_s)} {sent} per second, and its quota {limit} = {amount(one.limit_per_s)}"
    passed += f" allows less, as RabbitMQ measured {one.samples} times in a row"
    about = named(one.account, "")
    match one.outcome:
        case Containment.ASKED:
            return Said(about, f"is asked to slow down ({listed(one.publishers)})", passed)
        case Containment.KEPT_OUT:
            return Said(about, f"is kept out for {seconds(one.lease_s)}", passed)
        case Containment.POWERLESS:
            return Said(about, "floods, and this head can't keep it out (see `warden_url`)", passed)


def released(one: AccountReleased) -> Said:
    return Said(named(one.account, ""), "is let in again", f"{seconds(one.lease_s)} are over")


def untrue(one: UntrueReports) -> Said:
    text = UNTRUTHS[one.reason].format(claimed=amount(one.claimed), believed=amount(one.believed), topic=one.topic)
    return Said(one.publisher, f"(account {one.account}) is not believed", text)


def greedy(one: GreedySubscriber) -> Said:
    sent, limit = SENT[one.reason]
    asked = f"it is sent {amount(one.value_per_s)} {sent} per second, {percent(one.share)} of all that its edge sends,"
    text = f"{asked} and the quota {limit} = {amount(one.limit_per_s)} of account {one.account} allows less"
    return Said(f"{one.subscriber} (subscribed to {one.pattern})", "takes more than its share", text)


RENDERINGS: Final[Mapping[type[Decision], Callable[[Any], Said]]] = {
    QuotaWatched: quota,
    FloodingAccount: flood,
    AccountReleased: released,
    UntrueReports: untrue,
    GreedySubscriber: greedy,
}
