"""Decisions of load-balancing sessions in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..decisions import (
    Decision,
    Reach,
    RemotesAsked,
    SessionCandidates,
    SessionEnded,
    SessionFailed,
    SessionLeft,
    SessionNotStarted,
    SessionPlan,
    SessionPlanned,
    SessionRefused,
    SessionRequested,
    SessionWidened,
    Stabilized,
    StabilizedReason,
)
from .clauses import OUTCOMES, PLANS, REFUSALS, bundles, cause, finding, with_detail
from .said import Said
from .words import counted, listed, seconds

WIDENINGS: Final[Mapping[Reach, str]] = {
    Reach.HERE: "asks the edges of its cluster",
    Reach.ABROAD: "asks other clusters",
    Reach.LAST_RESORT: "asks busy brokers, as a last resort",
    Reach.OCCUPIED: "waits for brokers in other sessions",
}
ASKED: Final[Mapping[Reach, str]] = {
    Reach.HERE: "edges of the cluster were asked",
    Reach.ABROAD: "other clusters were asked",
    Reach.LAST_RESORT: "busy brokers were tried too, as a last resort",
    Reach.OCCUPIED: "brokers in other sessions were waited for",
}
SETTLED: Final[Mapping[StabilizedReason, str]] = {
    StabilizedReason.LOAD_MOVED: "the load has moved",
    StabilizedReason.NOT_AS_PREDICTED: "the load is steady, but not as predicted",
    StabilizedReason.TIME_OUT: "it took as long as it may take",
}


def not_started(one: SessionNotStarted) -> Said:
    why = f"{one.policy} sees nothing that a move would help, although {finding(one.finding)}"
    return Said(one.source, "starts no session", why)


def requested(one: SessionRequested) -> Said:
    where = "other clusters are asked" if one.remote else f"{counted(one.candidates, 'candidate')} may have room"
    return Said(one.source, "asks for help", f"{cause(one.cause)}; {where}")


def refused(one: SessionRefused) -> Said:
    text = REFUSALS[one.reason]
    return Said(one.source, "is refused a session", f"{text} ({one.other})" if one.other else text)


def candidates(one: SessionCandidates) -> Said:
    remote = f", {one.remote} of them in other clusters" if one.remote else ""
    offered = counted(one.candidates, "candidate") if one.candidates else "no candidate"
    return Said(one.source, f"is offered {offered} with room{remote}", cause(one.cause) if one.cause else "")


def remote_candidates(one: RemotesAsked) -> Said:
    found = listed(f"{each.broker} of {each.head}" for each in one.found)
    return Said(one.head, "has asked other clusters", f"{found} may have room" if found else "no cluster has room")


def widened(one: SessionWidened) -> Said:
    return Said(one.source, WIDENINGS[one.reason], PLANS[one.plan])


def planned(one: SessionPlanned) -> Said:
    if not one.moves:
        return Said(one.source, "finds nothing to move", PLANS[one.outcome])
    return Said(one.source, "has a plan", f"{bundles(one.moves)}; {PLANS[one.outcome]}")


def plan(one: SessionPlan) -> Said:
    not_begun = f", {one.refused} could not begin" if one.refused else ""
    return Said(one.source, "has its plan taken over", f"{counted(one.moves, 'move')}{not_begun}")


def failed(one: SessionFailed) -> Said:
    stayed = f" ({one.failed} stayed)" if one.failed else ""
    text = with_detail(f"{OUTCOMES[one.outcome]}{stayed}", one.detail)
    return Said(one.source, "has a session come to nothing", f"{text}; it waits {seconds(one.retry_after_s)}")


def ended(one: SessionEnded) -> Said:
    took = f" within {seconds(one.duration_s)}" if one.duration_s is not None else ""
    return Said(one.source, "is done with a session", f"{OUTCOMES[one.outcome]}; {moved(one.moved, one.failed)}{took}")


def moved(count: int, failed_count: int) -> str:
    return f"{count} moved, {failed_count} did not"


def left(one: SessionLeft) -> Said:
    return Said(one.edge, "leaves a session", OUTCOMES[one.reason])


def stabilized(one: Stabilized) -> Said:
    return Said(one.edge, "has settled after a session", f"{SETTLED[one.reason]}, {seconds(one.after_s)} after its end")


RENDERINGS: Final[Mapping[type[Decision], Callable[[Any], Said]]] = {
    SessionNotStarted: not_started,
    SessionRequested: requested,
    SessionRefused: refused,
    SessionCandidates: candidates,
    RemotesAsked: remote_candidates,
    SessionWidened: widened,
    SessionPlanned: planned,
    SessionPlan: plan,
    SessionFailed: failed,
    SessionEnded: ended,
    SessionLeft: left,
    Stabilized: stabilized,
}
