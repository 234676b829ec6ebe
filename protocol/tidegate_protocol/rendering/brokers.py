"""Decisions about brokers and insights in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..decisions import (
    AccountRefused,
    AccountsAllowed,
    AccountsOutcome,
    ActionRefused,
    BalancingSwitch,
    BalancingSwitched,
    ControlRefusal,
    Decision,
    Drained,
    DrainOrder,
    DrainOrdered,
    DrainWaits,
    EdgeForgotten,
    EdgePresence,
    HelloRefused,
    InsightEnd,
    InsightOver,
    InsightRefusal,
    InsightRefused,
    InsightTaken,
    InsightTold,
    NeighbourPresence,
    Presence,
    RegistryOutcome,
    RegistryRead,
    RoutesRefused,
)
from .clauses import rejected
from .said import Said
from .words import counted, listed, seconds

PRESENCE: Final[Mapping[Presence, str]] = {
    Presence.HEARD: "it was heard",
    Presence.GOODBYE: "it said goodbye",
    Presence.NO_ANSWER: "it does not answer",
    Presence.PROCESS_ABSENT: "its process is not there",
    Presence.SILENT: "it has been silent for too long",
}
UNREAD: Final[Mapping[RegistryOutcome, str]] = {
    RegistryOutcome.TOO_MANY: "it holds more than subscriptions_max",
    RegistryOutcome.WRONG_ANSWER: "its pages do not follow each other",
    RegistryOutcome.NO_ANSWER: "it does not answer",
    RegistryOutcome.PROCESS_ABSENT: "its process is not there",
}
REFUSED: Final[Mapping[ControlRefusal, str]] = {
    ControlRefusal.NOT_YOURS: "sent what is another's to say",
    ControlRefusal.DEAD_LETTERED: "had a queue dead-letter into the control exchange",
    ControlRefusal.COPIED: "copied messages into the control exchange by CC or BCC",
    ControlRefusal.UNREADABLE_HEADERS: "sent control messages with headers that can't be read",
    ControlRefusal.WRONG_KEY: "had messages copied to a key that is not listened to",
    ControlRefusal.KIND_NOT_ALLOWED: "sent a kind of message that is not its to send",
    ControlRefusal.OTHER: "sent control messages that are none",
}


def edge(one: EdgePresence) -> Said:
    return Said(one.edge, "is there" if one.alive else "is not there", PRESENCE[one.reason])


def neighbour(one: NeighbourPresence) -> Said:
    return Said(one.head, "is there" if one.alive else "is not there", PRESENCE[one.reason])


def forgotten(one: EdgeForgotten) -> Said:
    return Said(one.edge, "is forgotten", f"it has been silent for {seconds(one.silent_s)}")


def registry(one: RegistryRead) -> Said:
    if one.outcome is not RegistryOutcome.READ:
        return Said(one.edge, "does not tell its subscriptions", UNREAD[one.outcome])
    counts = f"{one.listed} listed, {one.added} new, {one.removed} gone, {one.orphans} without an owner"
    return Said(one.edge, "had its subscriptions read anew", counts)


def hello(one: HelloRefused) -> Said:
    return Said(one.edge, "is not taken by its head", one.detail)


def routes(one: RoutesRefused) -> Said:
    return Said(one.head, f"refuses {counted(one.offered, 'pattern')} that are needed here", one.detail)


def action(one: ActionRefused) -> Said:
    return Said(one.action, "was refused by RabbitMQ", one.detail)


def drain(one: DrainOrdered) -> Said:
    what = "is being drained" if one.reason is DrainOrder.DRAIN else "is used again"
    return Said(one.edge, what, "an operator said so")


def drained(one: Drained) -> Said:
    return Said(one.edge, "is empty", "nothing is left on it")


def drain_waits(one: DrainWaits) -> Said:
    others = listed(map(rejected, one.rejected))
    why = f"no edge can take {one.pattern}" + (f": {others}" if others else "")
    return Said(one.edge, "can't be emptied further now", why)


def switched(one: BalancingSwitched) -> Said:
    what = "has balancing switched " + ("off" if one.outcome is BalancingSwitch.PAUSED else "on")
    return Said(one.cluster, what, "an operator said so")


def accounts(one: AccountsAllowed) -> Said:
    if one.outcome is AccountsOutcome.ALLOWED:
        return Said(one.head, "lets publishers name their accounts", "every link passes accounts on")
    why = f"the way to {listed(one.stopping)} does not pass accounts on" if one.stopping else "they are not checked"
    return Said(one.head, "does not let publishers name their accounts", why)


def account_refused(one: AccountRefused) -> Said:
    who = f"account {one.account}" if one.account else "somebody who names no account"
    what = f"{REFUSED[one.reason]}, and was not obeyed"
    return Said(who, what, f"{counted(one.messages, 'message')}, the last one: {one.detail}")


def taken(one: InsightTaken) -> Said:
    why = f"{_counts(one.pairs, one.forecasts, one.capacities)}; it is in force for {seconds(one.left_s)}"
    return Said(one.cluster, "takes an insight", why)


def _counts(pairs: int, forecasts: int, capacities: int) -> str:
    parts = ((pairs, "correlated pair"), (forecasts, "forecast"), (capacities, "uplink"))
    return listed(counted(count, what) for count, what in parts)


def insight_refused(one: InsightRefused) -> Said:
    by_s = one.by_s or 0.0
    why = {
        InsightRefusal.OTHER_CLUSTER: f"it is about cluster {one.other}, and this is {one.cluster}",
        InsightRefusal.EXPIRED: f"it expired {by_s:.0f} s ago",
        InsightRefusal.OLDER: f"it is {by_s:.0f} s older than the one in force",
    }[one.reason]
    return Said(one.cluster, "refuses an insight", why)


def over(one: InsightOver) -> Said:
    return Said(
        one.broker, "has no insight any more", "it expired" if one.reason is InsightEnd.EXPIRED else "it was taken back"
    )


def told(one: InsightTold) -> Said:
    uplink = ", and what its uplink carries" if one.uplink_bytes_per_s is not None else ""
    return Said(one.edge, "is told of an insight", f"{counted(one.forecasts, 'forecast')}{uplink}")


RENDERINGS: Final[Mapping[type[Decision], Callable[[Any], Said]]] = {
    EdgePresence: edge,
    NeighbourPresence: neighbour,
    EdgeForgotten: forgotten,
    RegistryRead: registry,
    HelloRefused: hello,
    RoutesRefused: routes,
    ActionRefused: action,
    DrainOrdered: drain,
    Drained: drained,
    DrainWaits: drain_waits,
    BalancingSwitched: switched,
    AccountsAllowed: accounts,
    AccountRefused: account_refused,
    InsightTaken: taken,
    InsightRefused: insight_refused,
    InsightOver: over,
    InsightTold: told,
}
