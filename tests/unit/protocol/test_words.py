"""Words of the renderer for what is no decision: refusals, and answers to operators."""

from __future__ import annotations

from enum import StrEnum

import pytest

from tidegate_protocol import decisions as d, operations as o
from tidegate_protocol.insight import Unused, UnusedReason
from tidegate_protocol.messages import LoadState, RefusalReason
from tidegate_protocol.rendering import operations, refusals, sessions


@pytest.mark.parametrize(
    ("table", "members"),
    [
        (operations.STATES, LoadState),
        (operations.ACTIVITIES, o.Activity),
        (operations.NOTHING, o.NothingDue),
        (operations.HEAD_PLANS, o.HeadPlan),
        (operations.UNUSED, UnusedReason),
        (sessions.ASKED, d.Reach),
        (refusals._SESSIONS, d.SessionRefusal),
        (refusals._INSIGHTS, d.InsightRefusal),
    ],
)
def test_every_member_has_words(table: dict[StrEnum, object], members: type[StrEnum]) -> None:
    assert set(table) == set(members)


@pytest.mark.parametrize("activity", o.Activity)
def test_what_a_broker_does_can_be_said(activity: o.Activity) -> None:
    assert operations.doing(o.Doing(activity=activity)), "also where the rest is not told"
    assert operations.doing(None) == ""


def test_names_and_numbers_are_in_the_words() -> None:
    source = o.Doing(activity=o.Activity.SOURCE, sessions=("e1~1~1",), phase=o.SourcePhase.PLANNED)
    assert operations.doing(source) == "in session e1~1~1 as its source: planned"
    assert operations.doing(o.Doing(activity=o.Activity.WAITING, left_s=7.6)).startswith("waits 8 s")
    unused = Unused(name="e9", reason=UnusedReason.NO_SUCH_EDGE)
    assert operations.unused(unused) == ("uplink of e9", "no such edge has been heard of")


@pytest.mark.parametrize(
    ("rejection", "reason"),
    [
        (d.Rejection.REFUSED, RefusalReason.FAILED),
        (d.Rejection.NO_ANSWER, RefusalReason.NOT_READY),
        (d.Rejection.EDGE_UNREAD, RefusalReason.NOT_READY),
        (d.Rejection.IN_SESSION, RefusalReason.CONFLICT),
    ],
)
def test_what_stands_against_a_request_says_whether_to_ask_again(rejection: d.Rejection, reason: RefusalReason) -> None:
    refusal = refusals.rejected(d.Rejected("e1", rejection, other="e2"))
    assert refusal.reason is reason
    assert refusal.message.startswith("e1: ")


def test_a_move_that_its_target_can_not_take_says_why() -> None:
    unfit = d.Rejected("e1", d.Rejection.NOT_ALIVE)
    refusal = refusals.not_moved(d.WhyNot(d.MoveOutcome.UNFIT, ("e1",), unfit=unfit))
    assert refusal.message == "e1 can't take it: it is not alive"
    several = refusals.not_moved(d.WhyNot(d.MoveOutcome.NO_ROUTE, ("a", "b")))
    assert several.message == "no confirmed routes at a and b"


def test_a_refusal_names_the_limit_and_fits_into_a_message() -> None:
    refusal = refusals.limit("edges_max", 7, "edge")
    assert (refusal.reason, refusal.field) == (RefusalReason.LIMIT, "edge")
    assert "edges_max = 7" in refusal.message
    assert len(refusals.no_such_edge("e", ["x" * 900, "y" * 900]).message) == refusals.TEXT_MAX
