"""What `tidegate explain`, `plan` and `status` make of real answers: those of the burst experiment, in golden files.

The numbers below are of that run; each is what somebody without the source has to learn from the text.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from io import StringIO

import pytest
from rich.console import Console, Group, RenderableType

from tests.support.operators import recorded
from tidegate_cli.explain import overview, plan, session, subjects
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.loads import MetricReport
from tidegate_protocol.insight import InsightState
from tidegate_protocol.messages import LoadState
from tidegate_protocol.operations import (
    BrokerState,
    Culprit,
    Explained,
    ExplainReply,
    OverviewReply,
    PlanReply,
    QueueState,
    Role,
    Told,
)
from tidegate_protocol.parts import Metric
from tidegate_protocol.rendering import clauses, words

NOW = datetime(2026, 5, 4, 14, 3, 44)


def shown(renderables: list[RenderableType], width: int = 160) -> str:
    written = StringIO()
    Console(width=width, highlight=False, file=written).print(Group(*renderables))
    return written.getvalue()


def assert_said(text: str, *wanted: str) -> None:
    """All of these, in this order."""
    at = 0
    for part in wanted:
        found = text.find(part, at)
        assert found >= 0, f"{part!r} is missing, or too early, in: {text}"
        at = found + len(part)


def reply_about(session_id: str, *decisions: Told, what: Explained = Explained.SESSION) -> ExplainReply:
    return ExplainReply(
        about=session_id, what=what, cluster="c", head="h", policy="peer-wd", decisions=tuple(decisions)
    )


def told(record: d.Decision, broker: str = "e1", session: str = "e1~1~1") -> Told:
    return Told(broker=broker, ago_us=5_000_000, decision=record.kind, session=session, record=record)


REQUESTED = d.SessionRequested("e1", d.Cause(Metric.UPLINK, 1.02, 0.95), True, False, 1, 0.5, 0.2, 1.0)


def migrated(subscriber: str, outcome: d.MoveOutcome = d.MoveOutcome.MOVED) -> d.MigrationEnded:
    return d.MigrationEnded("m", subscriber, "a", "e1", "e2", outcome)


# Sessions


def test_a_finished_session_reads_from_the_danger_to_what_came_of_it() -> None:
    text = session.paragraph(recorded("session", ExplainReply), NOW)
    assert_said(
        text,
        "edge b1 asked for help",
        "22 messages were waiting for t8-s7 (subscribed to t8), more than the 17 that may wait",
        "deadline of 1.1 s",
        "0.8 s is left for waiting",
        "40 messages per second were coming in for it and 37 going out",
        "107 % of what its uplink carries",
        "moving somebody takes about 2.5 s",
        "3 brokers that had room were found",
        "b3, which was too busy itself",
        "move 8 subscribers of t1 to b0",
        "its own uplink would go from 107 % to 99 %, that of b0 from 78 % to 87 %",
        "t14 could not go to b0, whose uplink would then be at 100 % (limit 90 %)",
        "All 8 moved within 2.5 s",
        "the uplink of b1 was at 98 % (predicted: 99 %), that of b0 at 88 % (predicted: 87 %)",
        "On b1 no queue was past its threshold any more",
    )
    assert re.match(r"At 14:03:\d\d \(22 s ago\)", text)


def test_the_tables_hold_the_numbers_behind_the_sentences() -> None:
    text = shown(session.render(recorded("session", ExplainReply), NOW))
    assert_said(text, "why it began", "out.t8-s7.0", "λ", "40/s", "μ", "37/s", "t_e", "0.796 s", "t_LB", "2.5 s")
    assert_said(text, "what was predicted, and what came of it", "b1", "uplink", "107 %", "99 %", "98 %")
    assert_said(text, "what was rejected", "b3", "too busy itself (HIGH)", "t14 to b2")
    assert_said(text, "course", "asks for help", "has a plan", "(and 7 more)", "has settled after a session")


def test_a_last_resort_is_told_as_such_and_what_became_of_the_danger() -> None:
    danger = d.Danger("out.s.0", 30.0, 25.0, 80.0, 50.0, 1.0, 0.8)
    again = told(REQUESTED, session="e1~1~2").model_copy(update={"ago_us": 1_000_000})
    reply = reply_about(
        "e1~1~1",
        told(replace(REQUESTED, danger=danger)),
        told(d.SessionWidened("e1", d.Reach.ABROAD, d.PlanOutcome.NO_ROOM, 0)),
        told(d.SessionWidened("e1", d.Reach.LAST_RESORT, d.PlanOutcome.NO_ROOM, 0)),
        told(d.SessionPlanned("e1", d.PlanOutcome.RELIEVED, (d.BundleMove("a", "e2", 1),), 1)),
        told(migrated("s1"), broker="h"),
        told(d.SessionEnded("e1", d.SessionOutcome.MOVES_ENDED, 1, 0, 2.0)),
        told(d.Stabilized("e1", d.StabilizedReason.NOT_AS_PREDICTED, 2.0, 1e5, queues_past=2)),
        again,
    )
    text = session.paragraph(reply)
    assert_said(text, "no candidate can take load, other clusters were asked", "as a last resort")
    assert_said(text, "move 1 subscriber of a to e2", "It moved within 2 s", "2 queues on e1 were still past")
    assert_said(text, "asked again (e1~1~2)")


def test_a_session_under_way_says_so() -> None:
    assert session.paragraph(recorded("session-running", ExplainReply)).endswith("It has not ended yet.")


def test_a_refused_session_names_the_reason_and_the_next_attempt() -> None:
    reply = reply_about(
        "e1~1~1",
        told(REQUESTED),
        told(d.SessionRefused("e1", d.SessionRefusal.STABILIZING), broker="h"),
        told(d.SessionFailed("e1", d.SessionOutcome.REFUSED, 5.0)),
    )
    text = session.paragraph(reply)
    assert_said(text, "its uplink is at 102 %, above 95 %", "The head refused: it stabilizes after a session")
    assert_said(text, "put off by 5 s")


def test_a_session_that_found_nothing_to_move_says_what_was_tried() -> None:
    full = d.Rejected("a", d.Rejection.WOULD_OVERLOAD, "e2", metric=Metric.UPLINK, value=1.2, limit=0.9)
    reply = reply_about(
        "e1~1~1",
        told(REQUESTED),
        told(d.SessionCandidates("e1", Metric.UPLINK, 1, 0), broker="h"),
        told(d.SessionPlanned("e1", d.PlanOutcome.NO_IMPROVEMENT, (), 1, rejected=(full,))),
    )
    text = session.paragraph(reply)
    assert_said(text, "1 broker that had room was found", "Nothing was moved: no move would be an improvement")
    assert "a could not go to e2, whose uplink would then be at 120 % (limit 90 %)" in text


def test_clients_that_stayed_are_told_with_the_reason() -> None:
    reply = reply_about(
        "e1~1~1",
        told(d.SessionPlanned("e1", d.PlanOutcome.RELIEVED, (d.BundleMove("a", "e2", 2),), 1)),
        told(migrated("s1"), broker="h"),
        told(migrated("s2", d.MoveOutcome.CLIENT_SILENT), broker="h"),
        told(d.SessionEnded("e1", d.SessionOutcome.MOVES_ENDED, 1, 1, 4.2), broker="h"),
    )
    assert (
        "1 moved within 4.2 s, 1 stayed where it was and lost nothing (the client does not answer)"
        in session.paragraph(reply)
    )


def test_an_edge_that_did_not_answer_is_named() -> None:
    reply = recorded("session", ExplainReply).model_copy(update={"missing": ("b2", "b3")})
    assert "No answer came from b2 and b3" in session.paragraph(reply)


def test_a_drain_and_a_publisher_session_are_told_too() -> None:
    drained = reply_about("drain~e1", told(migrated("s"), session="drain~e1"))
    assert_said(session.paragraph(drained), "An operator had e1 drained", "1 subscription moved away: 1 to e2")
    moved = reply_about(
        "h~1~p1",
        *(
            told(record, "h", "h~1~p1")
            for record in (
                d.PublisherSession("h", (d.Cause(Metric.UPLINK, 0.97, 0.95),)),
                d.PublisherPlan("h", d.PlanOutcome.RELIEVED, (d.PublisherMove("buoy~x", "h2"),)),
                d.PublisherMoveEnded("buoy~x", "h", "h2", d.PublisherOutcome.MOVED),
                d.PublisherSessionEnded("h", d.SessionOutcome.MOVES_ENDED, 1, 0, 1.5),
            )
        ),
    )
    assert_said(session.paragraph(moved), "head h was overloaded", "97 %", "Moved: buoy~x to h2", "It ended: 1 moved")


# Others


def test_an_edge_is_explained_against_its_thresholds() -> None:
    text = subjects.paragraph(recorded("edge", ExplainReply), NOW)
    assert_said(text, "Edge b1 is HIGH", "uplink 99 % (thresholds: 90 %)", "11 subscriptions are all in time", "t8-s")
    assert "`tidegate explain b1~1~1` tells why" in text


def test_a_broker_is_told_why_it_could_not_help() -> None:
    assert "it could not help b1: it was too busy itself (HIGH)" in subjects.paragraph(
        recorded("helper", ExplainReply), NOW
    )


def test_a_subscriber_is_explained_by_its_place_its_deadline_and_its_moves() -> None:
    text = subjects.paragraph(recorded("subscriber", ExplainReply), NOW)
    assert_said(text, "t1-s1 is on b0", "subscribed to t1", "deadline of 1.8 s", "13 may wait", "moved from b1 to b0")
    assert "b1~1~1" in text


def queue(**values: object) -> QueueState:
    known = {"edge": "e1", "queue": "out.s.0", "subscriber": "s", "number": 0, "pattern": "a", "deadline_s": 1.0}
    return QueueState.model_validate(known | {"allowed_wait_s": 0.5, "depth": 3.0, "threshold": 9.0} | values)


def test_a_subscriber_whose_deadline_no_broker_can_meet_is_told_so() -> None:
    hopeless = queue(allowed_wait_s=-0.1, threshold=None, infeasible=True)
    reply = reply_about("s", what=Explained.SUBSCRIBER).model_copy(update={"queues": (hopeless,)})
    assert "can't be met by any broker" in subjects.paragraph(reply)


def test_a_slow_subscriber_is_named_with_what_it_takes_and_what_is_done_about_it() -> None:
    found = d.SlowSubscriber("out.s.0", "s", "a", d.SlownessOutcome.SLOW, 50.0, 1.0, 900.0, messages_max=10_000)
    slow = Culprit(what=found.kind, client="s", broker="e1", ago_us=9_000_000, record=found)
    reply = reply_about("s", what=Explained.SUBSCRIBER)
    reply = reply.model_copy(update={"queues": (queue(slow=True),), "culprits": (slow,)})
    text = subjects.paragraph(reply)
    assert_said(text, "too slow", "takes 1 messages per second of a where 50 come in", "10000 the oldest are dropped")


def test_a_flooding_publisher_is_named_with_its_limit() -> None:
    found = d.FloodingPublisher("buoy~x", d.Flood.MESSAGES, False, 4000.0, 200.0, 200.0, 60.0, 3, ("a",))
    flood = Culprit(what=found.kind, client="buoy~x", broker="h", ago_us=9_000_000, record=found)
    reply = reply_about("buoy~x", what=Explained.PUBLISHER).model_copy(update={"culprits": (flood,)})
    text = subjects.paragraph(reply)
    assert_said(
        text,
        "buoy~x is asked to slow down",
        "4000 messages per second, most of it on a, and publisher_messages_per_s_max = 200",
    )


def test_a_cluster_without_sessions_says_how_near_to_a_deadline_it_is() -> None:
    text = subjects.paragraph(recorded("cluster", ExplainReply))
    assert_said(text, "bh, b0 and b2 are LOW", "No subscription is about to miss its deadline; nearest to it is t8-s")


# Plan and status


def test_a_plan_at_rest_says_why_nothing_is_to_be_done_and_what_is_nearest() -> None:
    text = plan.paragraph(recorded("plan-at-rest", PlanReply))
    assert_said(
        text, "Nothing would be moved", "predicted to miss its deadline", "The closest is t10-s4", "4.9 % of it"
    )


def test_a_plan_while_paused_says_what_would_be_moved_and_that_it_is_not() -> None:
    reply = recorded("plan-paused", PlanReply)
    text = plan.paragraph(reply)
    assert_said(text, "Edge b1 is OVERLOAD", "It would move 8 subscribers of t1 to b0", "paused", "tidegate resume")
    assert_said(shown(plan.render(reply)), "what b1 would move", "t1-s8", "what it would not do", "t14 to b0")


def test_status_shows_load_against_thresholds_and_the_session_under_way() -> None:
    text = shown(overview.render(recorded("overview-in-session", OverviewReply), NOW), width=200)
    assert_said(text, "policy peer-wd", "balancing on", "uplink", "90 %", "b1", "OVERLOAD", "107 %", "t8-s7 t8:")
    assert_said(text, "as its source", "sessions", "b1~1~1", "moving")


def test_status_shows_a_pause_missing_edges_alarms_and_infeasible_deadlines() -> None:
    reply = recorded("overview-paused", OverviewReply)
    troubled = BrokerState(
        broker="b9",
        role=Role.EDGE,
        state=LoadState.LOW,
        metrics={"uplink": MetricReport(value=0.1, low=0.9)},
        infeasible=("out.far.0",),
        alarms=("memory",),
    )
    reply = reply.model_copy(update={"missing": ("b3",), "brokers": (*reply.brokers, troubled)})
    text = shown(overview.render(reply, NOW), width=200)
    assert_said(text, "PAUSED", "can't be met", "far", "alarm: memory", "No answer from b3", "tidegate resume")


# Words


def past(depth: float, threshold: float) -> d.Finding:
    return d.Finding(Metric.QUEUE_DEPTH, "out.s-1.0", depth, threshold, LoadState.OVERLOAD)


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (d.Finding(Metric.UPLINK, "", 0.9497, 0.9, LoadState.HIGH), "its uplink is at 95 %, not below 90 %"),
        (past(52.0, 42.98), "52 messages wait for s-1, more than the 43 that may"),
        (past(27.0, 26.97), "27 messages wait for s-1, more than the 26.97 that may"),
        (past(4.0, -2.0), "4 messages wait for s-1, where none may"),
    ],
)
def test_findings_in_words(finding: d.Finding, text: str) -> None:
    assert clauses.finding(finding) == text


def test_lists_are_bounded() -> None:
    assert words.listed(["a", "b", "c"]) == "a, b and c"
    assert words.listed(f"n{i}" for i in range(100)) == "n0, n1, n2, n3, n4 and 95 more"


# Insights

INSIGHT = InsightState(
    made_at_us=1,
    age_us=720_000_000,
    left_us=82_800_000_000,
    pairs=3,
    forecasts=1,
    placements=2,
    refused=1,
    last_refusal=d.InsightRefused("north", d.InsightRefusal.EXPIRED, 0, 0, 0, by_s=12.0),
)


def test_the_insight_in_force_is_shown_with_its_age_and_expiry() -> None:
    wanted = (
        "An insight that was made 12 minutes ago is in force for another 23 hours: 3 correlated pairs and 1 forecast",
        "2 placements would have been others without it",
        "1 insight was refused, the last one because it expired 12 s ago",
    )
    status = recorded("overview", OverviewReply).model_copy(update={"insight": INSIGHT})
    cluster = recorded("cluster", ExplainReply).model_copy(update={"insight": INSIGHT})
    assert_said(" ".join(shown(overview.render(status, NOW), 400).split()), *wanted)
    assert_said(subjects.paragraph(cluster, NOW), *wanted)
    assert "insight" not in shown(overview.render(recorded("overview", OverviewReply), NOW))


def test_a_placement_and_a_session_say_that_an_insight_had_a_bearing_on_them() -> None:
    queue = QueueState(
        edge="e1", queue="out.s.0", subscriber="s", number=0, pattern="flood", deadline_s=1, allowed_wait_s=1, depth=0
    )
    placed = told(d.Placed("flood", d.PlacementReason.APART_FROM_CORRELATED, "e1"), session="")
    where = reply_about("s", placed, what=Explained.SUBSCRIBER).model_copy(update={"queues": (queue,)})
    assert_said(subjects.paragraph(where, NOW), "placed on e1", "topics that rise together with it, by an insight")
    record = replace(
        REQUESTED,
        danger=d.Danger("out.s.0", 30.0, 25.0, 80.0, 50.0, 1.0, 0.8),
        hints=d.Hints(forecasts=(d.QueueForecast("out.s.0", 90.0, 40.0),)),
    )
    asked = told(record)
    assert_said(
        session.paragraph(reply_about("e1~1~1", asked), NOW),
        "30 messages were waiting for s, more than the 25",
        "An insight expected 90 messages per second",
        "without that 40 might have waited",
    )
