"""Refusals in words: one function for each case in which an agent does not grant a request.

A refusal says why (`reason`, which programs read), which field of the request is meant, and one sentence for people.
Names, numbers and records come in; the message goes out as it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..decisions import (
    InsightRefusal,
    InsightRefused,
    Rejected,
    Rejection,
    SessionOutcome,
    SessionRefusal,
    SessionRefused,
    WhyNot,
)
from ..messages import Refusal
from ..operations import QuotaUse
from ..parts import RefusalReason
from ..rights import Judgement
from . import why
from .accounts import OPTIONS, named, used
from .clauses import OUTCOMES, rejected as rejected_clause, why_not
from .rights import judged, remedy

TEXT_MAX: Final = 1_000
"""Characters of a refusal's text; a message holds no more."""

_CONFLICT, _FAILED, _INVALID = RefusalReason.CONFLICT, RefusalReason.FAILED, RefusalReason.INVALID
_NOT_READY, _UNKNOWN = RefusalReason.NOT_READY, RefusalReason.UNKNOWN

_REJECTIONS: Final[Mapping[Rejection, RefusalReason]] = {
    Rejection.BUSY: _CONFLICT,
    Rejection.IN_SESSION: _CONFLICT,
    Rejection.STABILIZING: _CONFLICT,
    Rejection.STATE: _CONFLICT,
    Rejection.REFUSED: _FAILED,
}
"""Any other rejection may be over soon."""
_SESSIONS: Final[Mapping[SessionRefusal, RefusalReason]] = {
    SessionRefusal.SESSION_OVER: _UNKNOWN,
    SessionRefusal.STOPPING: _NOT_READY,
    SessionRefusal.PAUSED: _NOT_READY,
    SessionRefusal.NOT_KNOWN_YET: _NOT_READY,
    SessionRefusal.DRAINING: _CONFLICT,
    SessionRefusal.IN_SESSION: _CONFLICT,
    SessionRefusal.STABILIZING: _CONFLICT,
}
_INSIGHTS: Final[Mapping[InsightRefusal, tuple[RefusalReason, str]]] = {
    InsightRefusal.OTHER_CLUSTER: (_INVALID, "cluster"),
    InsightRefusal.EXPIRED: (_INVALID, "valid_for_us"),
    InsightRefusal.OLDER: (_CONFLICT, "made_at_us"),
}


def _refusal(reason: RefusalReason, text: str, field: str | None = None) -> Refusal:
    return Refusal(reason=reason, message=text[:TEXT_MAX], field=field)


# Of records


def rejected(one: Rejected) -> Refusal:
    """A broker, or what is known of a client, stands against it."""
    return _refusal(_REJECTIONS.get(one.reason, _NOT_READY), rejected_clause(one))


def not_moved(why_stayed: WhyNot) -> Refusal:
    return _refusal(_NOT_READY, why_not(why_stayed))


def session(one: SessionRefused) -> Refusal:
    return _refusal(_SESSIONS[one.reason], why(one))


def session_over(outcome: SessionOutcome) -> Refusal:
    return _refusal(_CONFLICT, OUTCOMES[outcome])


def insight(one: InsightRefused) -> Refusal:
    reason, field = _INSIGHTS[one.reason]
    return _refusal(reason, why(one), field)


def no_edge(others: tuple[Rejected, ...]) -> Refusal:
    """No edge can take a subscription."""
    if not others:
        return _refusal(RefusalReason.NO_EDGE, "no edge has been heard of yet; start one, or ask again")
    return _refusal(RefusalReason.NO_EDGE, f"no edge can take it: {'; '.join(map(rejected_clause, others))}")


# Of limits and of brokers


def limit(name: str, value: int, field: str | None = None) -> Refusal:
    return _refusal(RefusalReason.LIMIT, f"{name} = {value} is reached", field)


def over_quota(use: QuotaUse, field: str) -> Refusal:
    """An account, or its tenant, has used up a quota: which, how much of it, and what helps."""
    whose = named(use.account, use.tenant)
    text = f"the quota of {whose} is used up: {used(use.quota, use.used, use.limit)}; end some that are not needed, "
    text += f"or have an operator raise {OPTIONS[use.quota]} in its quota"
    return _refusal(RefusalReason.LIMIT, text, field).model_copy(update={"quota": use})


def misdirected(broker: str, kind: str) -> Refusal:
    return _refusal(_INVALID, f"{broker} takes no {kind}", "kind")


def stopping(broker: str) -> Refusal:
    return _refusal(_NOT_READY, f"{broker} is being stopped; ask again")


def paused(cluster: str) -> Refusal:
    return _refusal(_NOT_READY, f"an operator has paused balancing in {cluster}")


def not_configured(option: str) -> Refusal:
    return _refusal(_NOT_READY, f"{option} is not configured: clients could not be told where to connect")


def load_unknown(broker: str) -> Refusal:
    return _refusal(_NOT_READY, f"the load of {broker} is not known")


def takes_nothing_new(broker: str) -> Refusal:
    return _refusal(_NOT_READY, f"{broker} takes no new subscriptions")


def stranger(head: str, here: str) -> Refusal:
    return _refusal(_UNKNOWN, f"{head} is not a neighbour of {here}; add it to the configuration", "head")


def other_cluster(edge: str, cluster: str, here: str) -> Refusal:
    return _refusal(_INVALID, f"{edge} belongs to cluster {cluster}, this head to {here}", "cluster")


def name_of_a_head(edge: str) -> Refusal:
    return _refusal(_CONFLICT, f"{edge} is the name of a head; give the edge another one", "edge")


def no_such_edge(edge: str, known: Sequence[str]) -> Refusal:
    return _refusal(_UNKNOWN, f"no edge {edge} has been heard of; known: {', '.join(known) or 'none'}", "edge")


def unread(edge: str) -> Refusal:
    return _refusal(_NOT_READY, f"the registry of {edge} is not known yet")


def no_address(edge: str) -> Refusal:
    return _refusal(_NOT_READY, f"the address of {edge} is not known yet")


def nothing_of_that_name(about: str, sessions: Sequence[str], brokers: Sequence[str]) -> Refusal:
    """An operator asks for something that no agent knows."""
    latest = f"the latest sessions are {', '.join(sessions)}" if sessions else "no session is remembered"
    there = f"; brokers are {', '.join(brokers)}" if brokers else ""
    text = f"{about!r} is no session, broker, subscriber or publisher known here; {latest}{there}"
    return _refusal(_UNKNOWN, text, "about")


def not_allowed(judgement: Judgement) -> Refusal:
    """No rule of the client's account allows it."""
    return _refusal(RefusalReason.NOT_ALLOWED, f"{judged(judgement)}; {remedy(judgement)}", "pattern")


def only_looks(account: str, tenant: str, kind: str) -> Refusal:
    """An operator of a tenant wants more than to look."""
    text = (
        f"{account} is an operator of the tenant {tenant} and may only look: status and explain; {kind} is for others"
    )
    return _refusal(RefusalReason.NOT_ALLOWED, text, "kind")


def unnamed_operator(kind: str) -> Refusal:
    text = f"{kind} has to name the account of its sender (user_id): what operators may see depends on it"
    return _refusal(RefusalReason.NOT_ALLOWED, text, "kind")


# Of queues and routes


def no_output(queue: str) -> Refusal:
    return _refusal(_UNKNOWN, f"there is no output queue {queue}")


def other_pattern(queue: str, pattern: str) -> Refusal:
    return _refusal(_CONFLICT, f"{queue} is bound to {pattern}")


def not_declared(queue: str, problem: str) -> Refusal:
    return _refusal(_FAILED, f"{queue} could not be declared: {problem}")


def not_deleted(queue: str, problem: str) -> Refusal:
    return _refusal(_FAILED, f"{queue} could not be deleted: {problem}")


def not_bound(key: str, queue: str, problem: str) -> Refusal:
    return _refusal(_FAILED, f"{key} could not be bound to {queue}: {problem}")


def not_bound_in_time(key: str, queue: str) -> Refusal:
    return _refusal(_FAILED, f"{key} was not bound to {queue} in time")


def no_route(problem: str) -> Refusal:
    return _refusal(_FAILED, f"the route could not be bound: {problem}")


# Of subscriptions and moves


def being_made() -> Refusal:
    return _refusal(_CONFLICT, "this subscription is just being made")


def being_moved() -> Refusal:
    return _refusal(_CONFLICT, "this subscription is just being moved")


def being_removed() -> Refusal:
    return _refusal(_CONFLICT, "this subscription is just being removed")


def moved_unheard() -> Refusal:
    return _refusal(_NOT_READY, "its old head has not heard yet that it has moved here")


def moves_on(subscriber: str) -> Refusal:
    return _refusal(_NOT_READY, f"{subscriber} is just being moved on from here")


def not_removed_yet(edge: str) -> Refusal:
    return _refusal(_NOT_READY, f"the place on {edge} is not removed yet")


def has_it_already(subscriber: str) -> Refusal:
    return _refusal(_CONFLICT, f"{subscriber} has this subscription in this cluster already")


def client_absent() -> Refusal:
    return _refusal(_UNKNOWN, "this client is not there")


def no_session(name: str) -> Refusal:
    return _refusal(_UNKNOWN, f"there is no session {name}, or it has no candidates yet", "session")


def move_over(migration: str) -> Refusal:
    return _refusal(_CONFLICT, f"{migration} has ended")


def wrong_key(key: str, move: str, field: str) -> Refusal:
    """A marker or a fence does not have the name that follows from its move."""
    return _refusal(_INVALID, f"{key} does not belong to {move}", field)


def no_tree(migration: str) -> Refusal:
    return _refusal(_CONFLICT, f"the flood of {migration} came from elsewhere; heads form no tree")


def expected_from(head: str) -> Refusal:
    return _refusal(_CONFLICT, f"publishers are expected from {head} already")


def replay_of_all() -> Refusal:
    return _refusal(RefusalReason.INVALID, "a replay is for one subscriber: name it", "subscriber")
