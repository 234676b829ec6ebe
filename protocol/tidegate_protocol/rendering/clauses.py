"""The parts of records in words: findings, causes, rejected alternatives, outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..decisions import (
    ENDS,
    AcceptanceEnded,
    BundleMove,
    Cause,
    Finding,
    MigrationEnded,
    MoveOutcome,
    PlanOutcome,
    PublisherMoveEnded,
    PublisherOutcome,
    Rejected,
    Rejection,
    SessionOutcome,
    SessionRefusal,
    WhyNot,
)
from ..parts import LoadState, Metric
from .words import compared, counted, listed, percent, seconds, subscription

ALREADY: Final[Mapping[LoadState, str]] = {
    LoadState.LOW: "is LOW",
    LoadState.HIGH: "was too busy itself (HIGH)",
    LoadState.OVERLOAD: "was overloaded itself",
    LoadState.NOT_AVAILABLE: "takes no load now (N/A)",
}

PLANS: Final[Mapping[PlanOutcome, str]] = {
    PlanOutcome.RELIEVED: "the source is predicted out of OVERLOAD",
    PlanOutcome.PARTLY_RELIEVED: "the source is predicted relieved, but not out of OVERLOAD",
    PlanOutcome.BALANCED: "both are predicted to be equally loaded",
    PlanOutcome.OVERLOAD_PASSED: "the source is out of OVERLOAD already",
    PlanOutcome.NO_CANDIDATE: "there is no candidate",
    PlanOutcome.NO_ROOM: "no candidate can take load",
    PlanOutcome.NO_IMPROVEMENT: "no move would be an improvement",
    PlanOutcome.NOBODY_MOVABLE: "no client can be moved without overloading a candidate or overshooting",
    PlanOutcome.POLICY_NONE: "this policy moves no client",
}

OUTCOMES: Final[Mapping[SessionOutcome, str]] = {
    SessionOutcome.MOVES_ENDED: "all migrations have ended",
    SessionOutcome.NOTHING_MOVED: "no client has moved",
    SessionOutcome.NO_MOVE_BEGUN: "no move could begin",
    SessionOutcome.TIME_OUT: "not all migrations ended in time",
    SessionOutcome.NO_PLAN: "no plan came in time",
    SessionOutcome.ASKED_ANEW: "its source asked anew",
    SessionOutcome.END_UNHEARD: "no broker said that it ended",
    SessionOutcome.HEAD_RESTARTED: "the head has begun anew",
    SessionOutcome.STOPPING: "the head is being stopped",
    SessionOutcome.REFUSED: "the head refused",
    SessionOutcome.HEAD_ABSENT: "the head is not there",
    SessionOutcome.NO_ANSWER: "the head did not answer",
    **{end: PLANS[plan] for plan, end in ENDS.items()},
}

REFUSALS: Final[Mapping[SessionRefusal, str]] = {
    SessionRefusal.SESSION_OVER: "that session has ended",
    SessionRefusal.STOPPING: "the head is being stopped",
    SessionRefusal.PAUSED: "an operator has paused balancing",
    SessionRefusal.NOT_KNOWN_YET: "it is not known well enough yet",
    SessionRefusal.DRAINING: "it is being drained",
    SessionRefusal.IN_SESSION: "it is in a session already",
    SessionRefusal.STABILIZING: "it stabilizes after a session",
}

STAYED: Final[Mapping[MoveOutcome, str]] = {
    MoveOutcome.MOVED: "it has moved",
    MoveOutcome.CLIENT_STAYED: "the client stayed",
    MoveOutcome.CLIENT_ABSENT: "the client is not there",
    MoveOutcome.CLIENT_SILENT: "the client does not answer",
    MoveOutcome.CLIENT_UNREACHABLE: "the client can't reach {who}",
    MoveOutcome.END_UNHEARD: "its old head did not say how it ended, and its client may be here",
    MoveOutcome.GONE: "the subscription is not on its source any more",
    MoveOutcome.HEAD_STOPPING: "the head is being stopped",
    MoveOutcome.NEVER_CAME: "its client has never come here",
    MoveOutcome.NEW_TERMS: "the subscription got new terms",
    MoveOutcome.JUST_CAME: "its client has only just come here",
    MoveOutcome.NO_ANSWER: "{who} does not answer",
    MoveOutcome.NO_MARKERS: "no markers from {who}",
    MoveOutcome.NO_ROUTE: "no confirmed routes at {who}",
    MoveOutcome.PLACE_NOT_READY: "the new place was not ready in time",
    MoveOutcome.PROCESS_ABSENT: "the process of {who} is not there",
    MoveOutcome.RABBITMQ_REFUSED: "RabbitMQ refused a marker or a route",
    MoveOutcome.REFUSED: "{who} refused",
    MoveOutcome.SESSION_OVER: "its session has ended",
    MoveOutcome.TIME_OUT: "the client did not move in time",
    MoveOutcome.UNDRAINED: "{who} is used again",
    MoveOutcome.UNFIT: "{who} can't take it",
    MoveOutcome.UNSUBSCRIBED: "it was unsubscribed",
}

PUBLISHER_STAYED: Final[Mapping[PublisherOutcome, str]] = {
    PublisherOutcome.MOVED: "it publishes at the new head",
    PublisherOutcome.STAYED: "it stayed",
    PublisherOutcome.ABSENT: "it is not there",
    PublisherOutcome.NO_ANSWER: "{who} does not answer",
    PublisherOutcome.NOT_PAUSED: "it did not pause in time",
    PublisherOutcome.NO_FENCE: "its fence was not seen at {who} in time",
    PublisherOutcome.NO_ROUTE: "{who} has not confirmed the routes to what is subscribed here",
    PublisherOutcome.PROCESS_ABSENT: "the process of {who} is not there",
    PublisherOutcome.RABBITMQ_REFUSED: "RabbitMQ refused the fence",
    PublisherOutcome.REFUSED: "{who} refused",
    PublisherOutcome.STOPPING: "the head is being stopped",
}


def with_detail(text: str, detail: str) -> str:
    """A clause, and the words of RabbitMQ, a client or another broker."""
    return f"{text}: {detail}" if detail else text


def why_not(why: WhyNot | MigrationEnded | AcceptanceEnded) -> str:
    """Why a client was not moved."""
    text = STAYED[why.outcome].format(who=listed(why.who) or "a broker")
    return with_detail(text, rejection(why.unfit) if why.unfit is not None else why.detail)


def why_stayed(one: MigrationEnded | PublisherMoveEnded) -> str:
    """Why a client or a publisher was not moved, and whether it is known where it is."""
    if isinstance(one, MigrationEnded):
        text = why_not(one)
    else:
        text = with_detail(PUBLISHER_STAYED[one.outcome].format(who=one.who or "a broker"), one.detail)
    return f"{text}; the client does not say where it is" if one.unheard else text


# Comparisons


def finding(found: Finding) -> str:
    """One value against its threshold."""
    wait = f" ({found.samples} of {found.samples_needed} samples)" if found.samples < found.samples_needed else ""
    if found.metric is Metric.QUEUE_DEPTH:
        return f"{depth(found.queue, found.value, found.threshold)}{wait}"
    above = found.state is LoadState.OVERLOAD or wait
    value, limit = percent(found.value), percent(found.threshold)
    return f"its {found.metric} is at {value}, {'above' if above else 'not below'} {limit}{wait}"


def cause(found: Cause) -> str:
    """Why load is to be moved."""
    if found.partner:
        value, limit = percent(found.value), percent(found.threshold)
        return f"its {found.metric} is {value} above that of {found.partner}, more than {limit}"
    if found.metric is Metric.QUEUE_DEPTH:
        return depth(found.queue, found.value, found.threshold)
    return f"its {found.metric} is at {percent(found.value)}, above {percent(found.threshold)}"


def depth(queue: str, waiting: float, threshold: float) -> str:
    waits, allowed = compared(waiting, threshold)
    may = f"more than the {allowed} that may" if threshold > 0.0 else "where none may"
    return f"{waits} messages wait for {subscription(queue)}, {may}"


# Plans


def bundles(moves: tuple[BundleMove, ...]) -> str:
    """Who goes where."""
    return listed(f"{counted(one.subscribers, 'subscriber')} of {one.pattern} to {one.target}" for one in moves)


# Rejected alternatives


def _value(one: Rejected) -> float:
    return one.value if one.value is not None else 0.0


def _limit(one: Rejected) -> float:
    return one.limit if one.limit is not None else 0.0


def _would(one: Rejected) -> tuple[str, str]:
    if one.metric is None:
        return "it", "would not stay LOW"
    return "its", f"{one.metric} would then be at {percent(_value(one))} (limit {percent(_limit(one))})"


_RELATIVE: Final = {"it": "which", "its": "whose"}


_REJECTIONS: Final[Mapping[Rejection, Callable[[Rejected], tuple[str, str]]]] = {
    Rejection.ALARM: lambda one: ("its", with_detail("RabbitMQ has an alarm", one.detail)),
    Rejection.AWAY: lambda one: ("its", "subscriber is away"),
    Rejection.BUSY: lambda one: ("it", "was in a session of its own, or had just been"),
    Rejection.CORRELATED: lambda one: ("it", f"holds {one.other}, which is correlated"),
    Rejection.DRAINING: lambda one: ("it", "is being drained"),
    Rejection.EDGE_UNREAD: lambda one: ("", f"{one.other} may hold it, and has not told yet"),
    Rejection.FLOODS: lambda one: ("it", "floods, and is contained here"),
    Rejection.FOREIGN_CLIENT: lambda one: ("it", "is a foreign client, which takes no orders"),
    Rejection.GONE: lambda one: ("it", "is not on the source"),
    Rejection.IN_SESSION: lambda one: ("it", f"is in session {one.other}"),
    Rejection.LESS_LEFT: lambda one: ("it", f"has {_value(one):.0f} B/s left against {_limit(one):.0f} B/s"),
    Rejection.LIMIT: lambda one: ("", f"there are {one.other} = {_limit(one):.0f} already"),
    Rejection.LINK_FULL: lambda one: ("its", f"link carries patterns_per_link_max = {_limit(one):.0f} patterns"),
    Rejection.METRIC_TOO_HIGH: lambda one: ("", f"one of its metrics would reach {percent(_value(one))}"),
    Rejection.METRIC_UNKNOWN: lambda one: ("its", f"{one.metric} is not known"),
    Rejection.MIGRATING: lambda one: ("", "something else is under way with it"),
    Rejection.MORE_SUBSCRIPTIONS: lambda one: ("it", f"has {counted(_value(one), 'subscription')}"),
    Rejection.MOVED_RECENTLY: lambda one: ("it", "was moved too recently"),
    Rejection.NEIGHBOUR_UNHEARD: lambda one: ("", f"{one.other} may have its client, and has not told yet"),
    Rejection.NO_ANSWER: lambda one: ("it", "did not answer in time"),
    Rejection.NO_RELIEF: lambda one: ("", f"moving it would not relieve {one.metric}"),
    Rejection.NO_ROOM: lambda one: ("it", "has no edge with room"),
    Rejection.NOT_ALIVE: lambda one: ("it", "is not alive"),
    Rejection.NOT_CANDIDATE: lambda one: ("", "that is not a candidate"),
    Rejection.NOT_ENTRY_BROKER: lambda one: ("it", "is not the entry broker"),
    Rejection.OVERSHOOTS: lambda one: ("it", "is more than the difference"),
    Rejection.PATTERN_ELSEWHERE: lambda one: ("", "another edge has this pattern already"),
    Rejection.PROCESS_ABSENT: lambda one: ("its", "process was not there"),
    Rejection.REFUSED: lambda one: ("it", with_detail("refused", one.detail)),
    Rejection.REGISTRY_UNKNOWN: lambda one: ("its", "registry is not known yet"),
    Rejection.SLOWER: lambda one: ("it", f"is nearly tied and slower ({_value(one):g}/s against {_limit(one):g}/s)"),
    Rejection.STABILIZING: lambda one: ("it", "stabilizes after a session"),
    Rejection.STATE: lambda one: ("it", ALREADY[one.state or LoadState.NOT_AVAILABLE]),
    Rejection.STOPPING: lambda one: ("its", "head is being stopped"),
    Rejection.TOO_FAR: lambda one: ("", f"the way is {seconds(_value(one))} longer: its deadline could not be met"),
    Rejection.TOO_MANY: lambda one: ("", "there are more than one session can deal with"),
    Rejection.TOO_SLOW: lambda one: ("its", "subscriber is too slow"),
    Rejection.UNCOLLECTED: lambda one: ("", f"{one.other} holds what its client has not collected"),
    Rejection.UNUSED: lambda one: ("its", "client does not use it any more"),
    Rejection.WORSE: lambda one: ("", f"{one.metric} would rise to {percent(_value(one))}"),
    Rejection.WOULD_OVERLOAD: _would,
    Rejection.WRONG_ANSWER: lambda one: ("it", f"answered with something else: {one.other}"),
}
"""A pronoun for the alternative, if the clause begins with one, and the rest of the clause."""
assert set(_REJECTIONS) == set(Rejection), "a rejection without words"


def rejection(one: Rejected) -> str:
    """Why an alternative was not taken, where it is spoken of as `it`."""
    return " ".join(_REJECTIONS[one.reason](one)).strip()


def rejected_what(one: Rejected) -> str:
    """The alternative: a name, or a name and where it was not to go."""
    name = f"part of {one.name}" if one.part else one.name
    return f"{name} to {one.target}" if one.target else name


def rejected_broker(one: Rejected) -> str:
    """A broker that could not help, and why: `b2, which was overloaded itself`."""
    pronoun, rest = _REJECTIONS[one.reason](one)
    return f"{one.name}, {_RELATIVE[pronoun]} {rest}" if pronoun else f"{one.name} ({rest})"


def rejected(one: Rejected) -> str:
    """An alternative in a clause of its own."""
    if not one.target:
        return f"{one.name}: {rejection(one)}"
    name = f"a part of {one.name}" if one.part else one.name
    if one.reason is Rejection.WOULD_OVERLOAD and one.metric is not None:
        return f"{name} could not go to {one.target}, whose {_would(one)[1]}"
    return f"{name} could not go to {one.target}: {rejection(one)}"
