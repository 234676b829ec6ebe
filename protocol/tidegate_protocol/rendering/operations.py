"""Answers to operators in words: what brokers are doing, and why they would move nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..insight import Unused, UnusedReason
from ..operations import Activity, Doing, HeadPlan, NothingDue, PlanReply, Rehearsal
from ..parts import LoadState
from .clauses import finding
from .words import listed

STATES: Final[Mapping[LoadState, str]] = {
    LoadState.LOW: "LOW: it has room",
    LoadState.HIGH: "HIGH: busy, but no deadline is in danger; it is not given more",
    LoadState.OVERLOAD: "OVERLOAD: something has to move away, or a deadline will be missed",
    LoadState.NOT_AVAILABLE: "N/A: it takes no load now, or its load is not known yet",
}
ACTIVITIES: Final[Mapping[Activity, str]] = {
    Activity.SOURCE: "in session {sessions} as its source: {phase}",
    Activity.TARGET: "takes load in session {sessions}",
    Activity.STABILIZING: "stabilizing after session {sessions}",
    Activity.WAITING: "waits {left_s:.0f} s after a session that came to nothing",
    Activity.DRAINING: "being drained: takes nothing new",
    Activity.STOPPING: "its process is being stopped",
    Activity.PAUSED: "an operator has paused balancing",
    Activity.LEADING: "leads {sessions}",
    Activity.MOVING_PUBLISHERS: "moves publishers",
}
NOTHING: Final[Mapping[NothingDue, str]] = {
    NothingDue.NOT_SAMPLED: "its load has not been sampled yet",
    NothingDue.POLICY_NONE: "the policy is none: nobody is ever moved",
    NothingDue.NO_DANGER: "no subscription is predicted to miss its deadline, and no static threshold is passed",
    NothingDue.UPLINK_HAS_ROOM: "its uplink has room: nobody who leaves would make that queue drain faster",
    NothingDue.WORKED_OFF: "the backlog is being worked off in time",
}
HEAD_PLANS: Final[Mapping[HeadPlan, str]] = {
    HeadPlan.NOTHING: "no publisher would be moved",
    HeadPlan.UNDER_WAY: "it moves publishers, or waits for such a move to show",
    HeadPlan.NO_NEIGHBOUR: "it has no neighbour that could take publishers",
    HeadPlan.ASK_NEIGHBOURS: "{neighbours} would be asked to take publishers",
}
UNUSED: Final[Mapping[UnusedReason, tuple[str, str]]] = {
    UnusedReason.NO_SUCH_EDGE: ("uplink", "no such edge has been heard of"),
    UnusedReason.CONFIGURED: ("uplink", "it is configured"),
    UnusedReason.HORIZON_PASSED: ("forecast", "its horizon has passed"),
}


def doing(one: Doing | None) -> str:
    """What a broker is doing; empty if it only watches."""
    if one is None:
        return ""
    return ACTIVITIES[one.activity].format(sessions=", ".join(one.sessions), phase=one.phase, left_s=one.left_s or 0.0)


def why_nothing(edge: Rehearsal) -> str:
    """Why an edge would move nothing."""
    if edge.nothing is None:
        return "its version does not tell why"
    text = NOTHING[edge.nothing]
    past = edge.nothing in (NothingDue.UPLINK_HAS_ROOM, NothingDue.WORKED_OFF)
    return f"{finding(edge.worst)}, but {text}" if past and edge.worst is not None else text


def head_plan(reply: PlanReply) -> str:
    """What a head would do about its own load."""
    return f"it is {reply.head_state}: {HEAD_PLANS[reply.head_plan].format(neighbours=listed(reply.neighbours))}"


def unused(one: Unused) -> tuple[str, str]:
    """Which part of an insight is of no use, and why."""
    what, text = UNUSED[one.reason]
    return f"{what} of {one.name}", text
