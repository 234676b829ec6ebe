"""What an agent remembers of its decisions: bounded, sessions longer than the rest."""

from __future__ import annotations

import math

from tidegate_agents.kit.chronicle import (
    AFTER_S,
    FIRST_MAX,
    LAST_MAX,
    LATEST_MAX,
    SESSIONS_MAX,
    TOLD_BYTES_MAX,
    Chronicle,
    Dated,
    bounded,
    told,
)
from tidegate_agents.load.overview import concerns_broker, concerns_subscriber, session_states, subscriber_named
from tidegate_protocol import decisions as d
from tidegate_protocol.messages import CONTROL_BYTES_MAX, LoadState, decode, encode
from tidegate_protocol.operations import Explained, ExplainReply
from tidegate_protocol.parts import RATE_MAX, Metric


def decision(edge: str = "e", session: str = "") -> d.Drained:
    return d.Drained(edge, session=session)


REQUESTED = d.SessionRequested("e1", d.Cause(Metric.UPLINK, 1.02, 0.95), True, False, 1, 0.5, 0.2, 1.0, session="x")
MOVED = d.MigrationEnded("m", "siren-7", "a.#", "e1", "e2", d.MoveOutcome.MOVED, session="drain~e1")


def test_sessions_are_remembered_longer_than_what_comes_and_goes() -> None:
    chronicle = Chronicle()
    chronicle.add(REQUESTED, 1.0)
    for n in range(LATEST_MAX + 10):
        chronicle.add(decision(str(n)), 2.0)
    assert [dated.decision.kind for dated in chronicle.of_session("x")] == ["session-requested"]
    assert len(chronicle.matching(lambda one: True, 10 * LATEST_MAX)) == LATEST_MAX


def test_the_sessions_in_which_nothing_happened_for_longest_are_forgotten() -> None:
    chronicle = Chronicle()
    for n in range(SESSIONS_MAX):
        chronicle.add(decision(session=str(n)), float(n))
    chronicle.add(decision(session="0"), 100.0)
    chronicle.add(decision(session="new"), 101.0)
    assert "0" in chronicle
    assert "1" not in chronicle
    assert len(chronicle.sessions) == SESSIONS_MAX


def test_of_a_long_session_its_beginning_and_its_end_are_kept() -> None:
    chronicle = Chronicle()
    total = FIRST_MAX + LAST_MAX + 50
    for n in range(total):
        chronicle.add(decision(str(n), session="x"), float(n))
    kept = chronicle.of_session("x")
    assert len(kept) == FIRST_MAX + LAST_MAX
    assert (kept[0].decision, kept[-1].decision) == (decision("0", "x"), decision(str(total - 1), "x"))
    assert chronicle.dropped("x") == 50


def test_load_states_around_a_session_belong_to_its_story() -> None:
    chronicle = Chronicle()
    for at_s in (1.0, 95.0, 105.0, 101.0 + AFTER_S, 102.0 + AFTER_S):
        chronicle.add(d.LoadStateChanged("e1", LoadState.LOW), at_s)
    for at_s in (100.0, 101.0):
        chronicle.add(REQUESTED, at_s)
    assert [dated.at_s for dated in chronicle.around_session("x")] == [95.0, 100.0, 101.0, 105.0, 101.0 + AFTER_S]


def test_an_answer_fits_into_a_control_message_and_says_what_it_leaves_out() -> None:
    rejected = (d.Rejected("w" * 50, d.Rejection.REFUSED, detail="y" * 900),) * 100
    wordy = d.DrainWaits("s" * 900, "p" * 900, rejected)
    many = [told("b", Dated(wordy, float(n)), 1_000.0) for n in range(500)]
    kept, cut = bounded(many)
    assert (kept[0], kept[-1]) == (many[0], many[-1])
    assert len(kept) + cut == len(many)
    assert cut > 0
    reply = ExplainReply(
        about="x", what=Explained.SESSION, cluster="c", head="h", policy="peer-wd", decisions=kept, cut=cut
    )
    assert len(encode(reply)) < CONTROL_BYTES_MAX
    assert len(encode(reply)) < 2 * TOLD_BYTES_MAX


def test_numbers_that_json_lacks_are_cut_to_what_it_has() -> None:
    odd = d.EdgeForgotten("e1", math.inf)
    said = told("b", Dated(odd, 0.0), 2.5)
    assert said.ago_us == 2_500_000
    reply = ExplainReply(about="x", what=Explained.CLUSTER, cluster="c", head="h", policy="p", decisions=(said,))
    read = decode(encode(reply))
    assert isinstance(read, ExplainReply)
    assert read.decisions[0].record == d.EdgeForgotten("e1", RATE_MAX)


def test_who_is_meant() -> None:
    assert subscriber_named("out.siren-7.12") == "siren-7"
    assert subscriber_named("siren-7") == "siren-7"
    assert concerns_subscriber(MOVED, "siren-7")
    assert concerns_subscriber(d.OutputListed("out.siren-7.0", d.OutputOutcome.GONE), "siren-7")
    assert not concerns_subscriber(MOVED, "siren-71")
    assert not concerns_subscriber(d.OutputListed("out.siren-71.0", d.OutputOutcome.GONE), "siren-7")
    full = d.Rejected("a.#", d.Rejection.WOULD_OVERLOAD, "e3")
    assert concerns_broker(MOVED, "e2")
    assert concerns_broker(d.SessionPlanned("e1", d.PlanOutcome.NO_ROOM, (), 1, rejected=(full,)), "e3")
    placed = d.Placed("a.#", d.PlacementReason.SAME_PATTERN, "e1", rejected=(full,))
    assert concerns_broker(placed, "e1")
    assert not concerns_broker(placed, "e3")


def test_a_drain_is_a_session_that_ends_when_the_edge_is_empty_or_used_again() -> None:
    chronicle = Chronicle()
    chronicle.add(MOVED, 5.0)
    (running,) = session_states(chronicle, 6.0, ["e1"])
    assert (running.phase, running.source, running.targets, running.ended_ago_us) == ("draining", "e1", {"e2": 1}, None)
    (ended,) = session_states(chronicle, 6.0, [])
    assert (ended.phase, ended.ended_ago_us) == ("ended", 1_000_000)
