"""Operators in the middle of the burst: what they are told is what happened, and pausing keeps everybody in place."""

from __future__ import annotations

from dataclasses import replace

from tests.support.operators import BURST, ask
from tidegate_protocol.decisions import MigrationEnded
from tidegate_protocol.operations import (
    Activity,
    Doing,
    ExplainReply,
    ExplainRequest,
    OverviewReply,
    OverviewRequest,
    PauseReply,
    PauseRequest,
    PlanReply,
    PlanRequest,
)

SMALL = replace(BURST, scale=0.1, duration_s=53.0)


def test_paused_it_moves_nobody_but_knows_whom_and_resumed_it_does_just_that() -> None:
    answers = ask(
        SMALL,
        {
            "pause": (20.0, PauseRequest(paused=True)),
            "paused": (40.0, OverviewRequest()),
            "plan": (41.2, PlanRequest()),
            "resume": (42.0, PauseRequest(paused=False)),
            "end": (51.0, OverviewRequest()),
            "session": (51.0, ExplainRequest(about="b1~1~1")),
        },
    )
    pause, paused, plan = answers["pause"], answers["paused"], answers["plan"]
    assert isinstance(pause, PauseReply) and isinstance(paused, OverviewReply) and isinstance(plan, PlanReply)  # noqa: PT018
    assert pause.changed
    assert paused.paused
    assert paused.sessions == ()
    (due,) = [edge for edge in plan.edges if edge.due]
    assert due.edge == "b1"
    assert due.blocked == Doing(activity=Activity.PAUSED)

    end, session = answers["end"], answers["session"]
    assert isinstance(end, OverviewReply) and isinstance(session, ExplainReply)  # noqa: PT018
    assert not end.paused
    assert {one.source for one in end.sessions} == {"b1"}
    ended = [told.record for told in session.decisions if isinstance(told.record, MigrationEnded)]
    assert {one.subscriber for one in ended if one.moved} == {move.subscriber for move in due.moves}
    settled = {told.broker for told in session.decisions if told.decision == "stabilized"}
    assert settled == {"b1", *{move.target for move in due.moves}}
    ages = [told.ago_us for told in session.decisions]
    assert ages == sorted(ages, reverse=True)
