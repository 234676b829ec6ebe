"""Rights in words: what an account may publish and subscribe, and why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..decisions import Decision, RulesTaken, SubscriptionForbidden, SubscriptionRevoked
from ..rights import RESERVED_TOPICS, Deed, Judgement, Verdict
from .said import Said
from .words import counted, listed

DEEDS: Final[Mapping[Deed, str]] = {Deed.PUBLISH: "publish", Deed.SUBSCRIBE: "subscribe to"}
VERDICTS: Final[Mapping[Verdict, str]] = {
    Verdict.UNRULED: "this cluster has no rules",
    Verdict.COVERED: "a rule of its account covers it",
    Verdict.UNKNOWN_ACCOUNT: "it belongs to no account that has rules",
    Verdict.NO_RIGHT: "its account may do nothing of the kind",
    Verdict.NOT_COVERED: "no rule of its account covers it",
    Verdict.RESERVED: f"topics that begin with {RESERVED_TOPICS} are for brokers",
}


def judged(one: Judgement) -> str:
    """A judgement in one clause: who, what, why."""
    whose = "its account" if one.account in ("", one.client) else f"the account {one.account}"
    why = {
        Verdict.COVERED: f"the rule {one.rule} of {whose} covers it",
        Verdict.NO_RIGHT: f"{whose} may {DEEDS[one.deed]} nothing",
        Verdict.NOT_COVERED: f"no rule of {whose} covers it, which may {DEEDS[one.deed]} {listed(one.rules)}",
    }.get(one.verdict, VERDICTS[one.verdict])
    return f"{one.client} may {'' if one.allowed else 'not '}{DEEDS[one.deed]} {one.pattern}: {why}"


def remedy(one: Judgement) -> str:
    """What to do about a refusal."""
    match one.verdict:
        case Verdict.RESERVED:
            return "use another first word"
        case Verdict.UNKNOWN_ACCOUNT:
            return "have an operator add the account to the layout and run tidegate access apply"
        case _:
            return (
                f"ask for less, or have an operator add a pattern that covers {one.pattern} to {one.deed} of the "
                "account in the layout and run tidegate access apply"
            )


def forbidden(one: SubscriptionForbidden) -> Said:
    return Said(one.subscriber, f"was refused a subscription to {one.pattern}", VERDICTS[one.reason])


def revoked(one: SubscriptionRevoked) -> Said:
    return Said(one.subscriber, f"lost its subscription to {one.pattern} on {one.edge}", VERDICTS[one.reason])


def taken(one: RulesTaken) -> Said:
    ended = f"; {counted(one.revoked, 'subscription')} ended" if one.revoked else ""
    return Said(one.broker, "takes new rules", f"{counted(one.accounts, 'account')}{ended}")


RENDERINGS: Final[Mapping[type[Decision], Callable[[Any], Said]]] = {
    SubscriptionForbidden: forbidden,
    SubscriptionRevoked: revoked,
    RulesTaken: taken,
}
