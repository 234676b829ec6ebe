"""Sessions at a head: who may take part, what candidates look like, what becomes of a plan."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import Driver, of, sent, subscription
from tests.support.decisions import rejections
from tests.support.head_cluster import Cluster, load, move
from tidegate_agents.config import BalancingConfig
from tidegate_agents.head.abroad.candidates import Found
from tidegate_agents.head.moving import offers, sessions
from tidegate_agents.machine import Action, SetTimer, StopRequested
from tidegate_agents.policy.placement import ExpectedLoad
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.abroad import RemoteLoads, RemoteLoadsRequest
from tidegate_protocol.balancing.drains import DrainRequest
from tidegate_protocol.balancing.migrations import MigrateCancel, MigrateOrder, MigrationStage
from tidegate_protocol.balancing.sessions import (
    BalanceAccepted,
    BalanceCandidates,
    BalancePlan,
    BalanceRequest,
    Candidate,
    LoadReply,
    LoadRequest,
    SessionPhase,
)
from tidegate_protocol.messages import ControlMessage, LoadState, Refusal, RefusalReason

MOVED, STAYED = MigrationStage.MOVED, MigrationStage.STAYED


def offered(answer: ControlMessage) -> list[str]:
    assert isinstance(answer, BalanceCandidates), answer
    return [candidate.load.broker for candidate in answer.candidates]


def refused(answer: ControlMessage) -> RefusalReason:
    assert isinstance(answer, Refusal), answer
    return answer.reason


def notices(cluster: Cluster, phase: SessionPhase) -> list[tuple[str, str]]:
    return [(edge, notice.session) for edge, notice in cluster.notices if notice.phase is phase]


def test_candidates_tell_their_load_and_what_they_carry_already() -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.loads["e2"] = load("e2", offered=500.0)
    cluster.loads["e3"] = load("e3", LoadState.HIGH)
    cluster.grant("s", "b")  # on e1
    cluster.grant("s", "c")
    answer = cluster.balance("e1~1~1", "e2", "e3", "e9")
    assert offered(answer) == ["e2"]
    assert isinstance(answer, BalanceCandidates)
    assert (answer.candidates[0].cluster, answer.candidates[0].head) == ("c", "h")
    assert answer.candidates[0].load.bytes_offered_per_s == 500.0
    (decision,) = [decision for decision in cluster.agent.story if isinstance(decision, d.SessionCandidates)]
    assert rejections(decision) == {"e3": d.Rejection.STATE, "e9": d.Rejection.NOT_ALIVE}


def test_patterns_that_a_candidate_carries_are_named() -> None:
    cluster = Cluster("e1", "e2")
    cluster.grant("s", "a")
    begin_move(cluster, "s")
    cluster.report(cluster.ordered(MigrateOrder)[0], MOVED)
    cluster.now += 100.0
    cluster.period()
    answer = cluster.balance("e1~1~2", "e2")
    assert isinstance(answer, BalanceCandidates)
    assert answer.candidates[0].patterns == ("a",)


def test_what_does_not_fit_into_the_answer_is_not_named_and_the_head_minds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.grant("s", "a")
    for edge in ("e2", "e3"):
        cluster.agent._context.ledger.found(edge, subscription("other", 7, "a"))
        cluster.agent._context.ledger.found(edge, subscription("other", 8, "b"))
    cluster.agent._context.cooldowns.rest(("s", "a"), cluster.now + 60.0)
    monkeypatch.setattr(offers, "PATTERNS_BYTES_MAX", 8)  # one pattern of each candidate
    monkeypatch.setattr(sessions, "RESTING_BYTES_MAX", 8)
    answer = cluster.balance("e1~1~1", "e2", "e3")
    assert isinstance(answer, BalanceCandidates)
    assert [candidate.patterns for candidate in answer.candidates] == [("a",), ("a",)]
    assert answer.resting == ()
    assert cluster.plan("e1~1~1", move("s")) == BalanceAccepted(session="e1~1~1", moves=0)
    (decision,) = [decision for decision in cluster.agent.story if isinstance(decision, d.SessionPlan)]
    assert rejections(decision) == {"out.s.0 to e2": d.Rejection.MOVED_RECENTLY}


def begin_move(cluster: Cluster, *subscribers: str, session: str = "e1~1~1") -> BalanceAccepted:
    cluster.balance(session, "e2")
    answer = cluster.plan(session, *(move(name) for name in subscribers))
    assert isinstance(answer, BalanceAccepted)
    return answer


def test_a_candidate_that_is_busy_silent_or_away_is_left_out() -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.loads["e2"] = load("e2", busy=True)
    assert offered(cluster.balance("e1~1~1", "e2", "e3")) == ["e3"]
    cluster.mute = {LoadRequest}
    cluster.replies.clear()
    cluster.ask(BalanceRequest(session="e1~1~2", edge="e1", metric="uplink", candidates=("e2",)))
    assert cluster.replies == []
    cluster.fire("session e1~1~2", 2.0)
    assert offered(cluster.replies[-1]) == []


def test_with_nobody_to_ask_the_answer_comes_at_once() -> None:
    assert offered(Cluster("e1").balance("e1~1~1")) == []


def test_repeated_messages_get_the_same_answers() -> None:
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    first = cluster.balance("e1~1~1", "e2")
    assert cluster.balance("e1~1~1", "e2") == first
    accepted = cluster.plan("e1~1~1", move("s"))
    assert accepted == BalanceAccepted(session="e1~1~1", moves=1)
    assert cluster.plan("e1~1~1", move("s")) == accepted
    assert cluster.balance("e1~1~1", "e2") == first
    assert len(cluster.ordered(MigrateOrder)) == 1
    cluster.report(cluster.ordered(MigrateOrder)[0], MOVED)
    assert cluster.plan("e1~1~1", move("s")) == accepted, "also after the end"
    assert refused(cluster.balance("e1~1~1", "e2")) is RefusalReason.UNKNOWN
    assert refused(cluster.plan("e1~1~99", move("s"))) is RefusalReason.UNKNOWN


def test_a_broker_is_in_one_session_at_a_time() -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.grant("s")
    cluster.balance("e1~1~1", "e2")
    assert offered(cluster.balance("e3~1~1", "e1", "e2", source="e3")) == [], "both are in a session"
    assert refused(cluster.balance("e2~1~1", "e3", source="e2")) is RefusalReason.CONFLICT
    cluster.plan("e1~1~1", move("s"))
    assert refused(cluster.balance("e1~1~2", "e3")) is RefusalReason.CONFLICT
    cluster.report(cluster.ordered(MigrateOrder)[0], MOVED)
    assert refused(cluster.balance("e2~1~2", "e3", source="e2")) is RefusalReason.CONFLICT, "it stabilizes"
    cluster.now += 2.0
    cluster.period(0.0)
    assert offered(cluster.balance("e2~1~3", "e1", source="e2")) == ["e1"]


def test_candidates_that_are_no_targets_are_free_again() -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.grant("s")
    cluster.balance("e1~1~1", "e2", "e3")
    cluster.plan("e1~1~1", move("s"))
    assert notices(cluster, SessionPhase.STARTED) == [("e1", "e1~1~1"), ("e2", "e1~1~1")]
    assert offered(cluster.balance("e3~1~1", source="e3")) == []


def test_a_source_that_asks_anew_has_given_up_what_it_asked_before() -> None:
    cluster = Cluster("e1", "e2")
    cluster.balance("e1~1~1", "e2")
    assert offered(cluster.balance("e1~2~1", "e2")) == ["e2"]
    assert "e1~1~1" in {s: e for e, s in notices(cluster, SessionPhase.ENDED)}


def test_a_plan_that_never_comes_ends_the_session() -> None:
    cluster = Cluster("e1", "e2")
    cluster.balance("e1~1~1", "e2")
    cluster.fire("session e1~1~1", 5.0)
    assert cluster.decisions(d.SessionEnded) == ["no-plan"]
    assert offered(cluster.balance("e2~1~1", "e1", source="e2")) == ["e1"]


def test_an_empty_plan_ends_the_session_and_nobody_rests() -> None:
    cluster = Cluster("e1", "e2")
    cluster.balance("e1~1~1", "e2")
    assert cluster.plan("e1~1~1") == BalanceAccepted(session="e1~1~1", moves=0)
    assert notices(cluster, SessionPhase.ENDED) == [("e1", "e1~1~1")]
    assert offered(cluster.balance("e1~1~2", "e2")) == ["e2"]


def test_promises_of_running_migrations_count_as_present_and_for_a_while_after() -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.grant("s")
    begin_move(cluster, "s")
    # e2 is a target now; once it may be a candidate again, what it was promised is still not in its samples.
    cluster.report(cluster.ordered(MigrateOrder)[0], MOVED)
    context = cluster.agent._context
    assert context.promises.added_to(load("e2"), cluster.now + 1.9).bytes_offered_per_s == 10.0
    assert context.promises.added_to(load("e2"), cluster.now + 2.0).bytes_offered_per_s == 0.0


def test_a_promise_that_was_kept_does_not_count_on_top_of_itself() -> None:
    cluster = Cluster("e1", "e2")
    cluster.loads["e2"] = load("e2", offered=100.0)
    cluster.grant("s")
    begin_move(cluster, "s")
    promises = cluster.agent._context.promises

    def seen(told: float) -> float:
        return promises.added_to(load("e2", offered=told), cluster.now).bytes_offered_per_s

    assert seen(104.0) == 114.0, "as long as it is on its way, nothing of it is taken to show"
    cluster.report(cluster.ordered(MigrateOrder)[0], MOVED)
    assert [seen(told) for told in (90.0, 100.0, 104.0, 110.0, 120.0)] == [100.0, 110.0, 110.0, 110.0, 120.0]


def answered(cluster: Cluster, session: str) -> list[ControlMessage]:
    return [m for m in cluster.replies if isinstance(m, BalanceCandidates) and m.session == session]


def test_whoever_is_patient_gets_a_candidate_as_soon_as_it_has_left_another_session() -> None:
    """Two edges were overrun at the same moment and needed the same helper; the second had to wait far too long."""
    cluster = Cluster("e1", "e2", "e3", "e4")
    cluster.grant("s")
    begin_move(cluster, "s")
    cluster.loads["e4"] = load("e4", LoadState.HIGH)
    answer = cluster.balance("e3~1~1", "e2", "e4", source="e3", reach=d.Reach.LAST_RESORT)
    assert offered(answer) == ["e4"]
    assert isinstance(answer, BalanceCandidates)
    assert answer.occupied == ("e2",)
    cluster.balance("e3~1~1", "e2", "e4", source="e3", reach=d.Reach.OCCUPIED)
    assert len(answered(cluster, "e3~1~1")) == 1
    # Its target stabilizes from now on, and is taken all the same.
    cluster.loads["e2"] = load("e2").model_copy(update={"busy": True})
    cluster.report(cluster.ordered(MigrateOrder)[0], MOVED)
    answer = answered(cluster, "e3~1~1")[-1]
    assert offered(answer) == ["e2", "e4"]
    assert isinstance(answer, BalanceCandidates)
    assert not answer.occupied
    assert not any(candidate.load.busy for candidate in answer.candidates)


def test_patience_has_an_end() -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.grant("s")
    begin_move(cluster, "s")
    cluster.balance("e3~1~1", "e2", source="e3", reach=d.Reach.OCCUPIED)
    assert not answered(cluster, "e3~1~1")
    cluster.fire("session e3~1~1", 2.0)
    (answer,) = answered(cluster, "e3~1~1")
    assert offered(answer) == []


def test_who_is_not_patient_gets_nobody_that_stabilizes() -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.grant("s")
    begin_move(cluster, "s")
    cluster.report(cluster.ordered(MigrateOrder)[0], MOVED)
    answer = cluster.balance("e3~1~1", "e2", source="e3", reach=d.Reach.LAST_RESORT)
    assert offered(answer) == []
    assert isinstance(answer, BalanceCandidates)
    assert answer.occupied == ("e2",)
    assert offered(cluster.balance("e3~1~1", "e2", source="e3", reach=d.Reach.OCCUPIED)) == ["e2"]


def test_a_promise_that_comes_to_nothing_is_dropped_at_once() -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.grant("s")
    begin_move(cluster, "s")
    promised = cluster.agent._context.promises.added_to(load("e2"), cluster.now)
    assert (promised.bytes_in_per_s, promised.bytes_offered_per_s, promised.messages_in_per_s) == (10.0, 10.0, 1.0)
    cluster.report(cluster.ordered(MigrateOrder)[0], STAYED)
    assert offered_load(cluster.balance("e3~1~1", "e2", source="e3")) == 0.0


def offered_load(answer: ControlMessage) -> float:
    assert isinstance(answer, BalanceCandidates)
    return answer.candidates[0].load.bytes_offered_per_s


def test_candidates_that_are_told_again_count_what_a_drain_has_promised_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first answer was lost, and the second one was a copy of it: the source filled up an edge that others had been
    sent to since (seed 906313).
    """
    cluster = Cluster("e1", "e2", "e3")
    publishers = cluster.agent._placing._publishers
    monkeypatch.setattr(publishers, "expected", lambda: {"b": ExpectedLoad(100.0, 1.0)})
    assert [cluster.grant(name, pattern).edge for name, pattern in (("s", "a"), ("t", "b"))] == ["e1", "e2"]
    assert offered_load(cluster.balance("e1~1~1", "e3")) == 0.0
    cluster.ask(DrainRequest(edge="e2"))
    assert [order.edge for order in cluster.ordered(MigrateOrder)] == ["e3"]
    assert offered_load(cluster.balance("e1~1~1", "e3")) == 100.0


def test_a_plan_without_moves_that_says_it_helps_ends_its_session() -> None:
    cluster = Cluster("e1", "e2")
    cluster.balance("e1~1~1", "e2")
    cluster.ask(BalancePlan(session="e1~1~1", edge="e1", outcome=d.PlanOutcome.RELIEVED))
    (ended,) = [one for one in cluster.agent.story if isinstance(one, d.SessionEnded)]
    assert ended.outcome is d.SessionOutcome.NO_IMPROVEMENT


def test_a_client_that_moved_rests_and_is_not_moved_whatever_a_plan_says() -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.grant("s")
    begin_move(cluster, "s")
    cluster.report(cluster.ordered(MigrateOrder)[0], MOVED)
    cluster.period(3.0)
    answer = cluster.balance("e2~1~1", "e1", "e3", source="e2")
    assert isinstance(answer, BalanceCandidates)
    assert answer.resting == ("out.s.1",)
    plan = cluster.plan("e2~1~1", move("s", 1, "e1"), move("s", 1, "e3"), source="e2")
    assert plan == BalanceAccepted(session="e2~1~1", moves=0)
    cluster.period(58.0)
    answer = cluster.balance("e2~1~2", "e1", "e3", source="e2")
    assert isinstance(answer, BalanceCandidates)
    assert answer.resting == ()


@pytest.mark.parametrize(
    ("planned", "why"),
    [
        (move("nobody"), d.Rejection.GONE),
        (move("s", 5), d.Rejection.GONE),
        (move("s", 0, "e3"), d.Rejection.NOT_CANDIDATE),
        (move("s", 0, "e1"), d.Rejection.NOT_CANDIDATE),
    ],
)
def test_a_move_that_can_not_be_is_refused_and_the_others_go_on(planned: object, why: d.Rejection) -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.grant("s")
    cluster.grant("t")
    cluster.balance("e1~1~1", "e2")
    assert cluster.plan("e1~1~1", planned, move("t")) == BalanceAccepted(session="e1~1~1", moves=1)  # type: ignore[arg-type]
    (decision,) = [decision for decision in cluster.agent.story if isinstance(decision, d.SessionPlan)]
    assert [one.reason for one in decision.rejected] == [why]


def test_the_same_client_twice_in_a_plan_moves_once() -> None:
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    cluster.balance("e1~1~1", "e2")
    assert cluster.plan("e1~1~1", move("s"), move("s")) == BalanceAccepted(session="e1~1~1", moves=1)


def test_a_session_ends_in_time_whatever_its_migrations_do() -> None:
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    begin_move(cluster, "s")
    cluster.fire("session e1~1~1", 60.0)
    ((_, notice), _) = cluster.notices[-2:]
    assert (notice.phase, notice.moved, notice.failed) == (SessionPhase.ENDED, 0, 1)
    assert notice.duration_us == 60_000_000
    assert len(cluster.ordered(MigrateCancel)) == 1
    cluster.report(cluster.ordered(MigrateOrder)[0], MOVED)
    assert cluster.places("s") == [("e2", 1)], "a client that did move is not called back"


def timers(actions: list[Action], session: str) -> list[float]:
    return [action.after_s for action in of(actions, SetTimer) if action.name == f"session {session}"]


def test_each_phase_has_its_time_and_all_of_them_together_no_more_than_a_session_may_take() -> None:
    cluster, session, times = Cluster("e1", "e2"), "e1~1~1", BalancingConfig()
    cluster.grant("s")
    cluster.mute = {LoadRequest}
    asked = cluster.ask(BalanceRequest(session=session, edge="e1", metric="uplink", candidates=("e2",)))
    assert timers(asked, session) == [times.load_reply_timeout_s]
    (question,) = sent(asked, LoadRequest, "e2")
    cluster.now += 1.5
    told = cluster.answer(question, LoadReply(session=session, load=load("e2")))
    assert timers(told, session) == [times.plan_timeout_s]
    cluster.now += 4.5
    plan = BalancePlan(session=session, edge="e1", moves=(move("s"),), outcome=d.PlanOutcome.RELIEVED)
    assert timers(cluster.ask(plan), session) == [times.session_timeout_s - 6.0]


@pytest.mark.parametrize("how", ["fails", "takes too long"])
def test_a_client_that_does_not_move_is_no_part_of_the_time_that_is_learned(how: str) -> None:
    """One of two clients moved at once. The other one took the order and fell silent: the session was said to have
    taken half a minute, and with that t_LB all thresholds became negative.
    """
    cluster = Cluster("e1", "e2")
    for name in ("s", "t"):
        cluster.grant(name)
    begin_move(cluster, "s", "t")
    moves, silent = cluster.ordered(MigrateOrder)
    cluster.now += 0.5
    cluster.report(moves, MOVED)
    cluster.now += 30.0
    if how == "fails":
        cluster.report(silent, STAYED)
    else:
        cluster.fire("session e1~1~1")
    ((_, notice), _) = cluster.notices[-2:]
    assert (notice.phase, notice.moved, notice.failed) == (SessionPhase.ENDED, 1, 1)
    assert notice.duration_us == 500_000
    (decision,) = [decision for decision in cluster.agent.story if isinstance(decision, d.SessionEnded)]
    assert decision.duration_s == 30.5


def test_a_helper_that_needs_help_itself_need_not_wait_for_long() -> None:
    """Two edges are overrun at once. The second was asked whether it could help the first, was refused a session of its
    own for that, and asked again only five seconds later.
    """
    cluster = Cluster("e1", "e2", "e3")
    cluster.grant("s")
    cluster.balance("e1~1~1", "e2", "e3")
    refusal = cluster.balance("e2~1~1", "e3", source="e2")
    assert isinstance(refusal, Refusal)
    balancing = cluster.agent._context.config.balancing
    assert refusal.retry_after_s == balancing.period_s
    cluster.plan("e1~1~1", move("s", target="e3"))
    assert isinstance(cluster.balance("e2~1~2", "e3", source="e2"), BalanceCandidates), "it is no target"
    refusal = cluster.balance("e1~1~2", "e2")
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s == balancing.retry_s, "its own session has to end"


@pytest.mark.parametrize("state", ["stopping", "draining", "unknown"])
def test_a_source_that_can_not_have_a_session_is_told_so(state: str) -> None:
    cluster = Cluster("e1", "e2")
    if state == "stopping":
        cluster.run(StopRequested())
    elif state == "draining":
        cluster.ask(DrainRequest(edge="e1"))
    source = "e7" if state == "unknown" else "e1"
    expected = RefusalReason.CONFLICT if state == "draining" else RefusalReason.NOT_READY
    assert refused(cluster.balance("x~1~1", "e2", source=source)) is expected


class Asked:
    """Another cluster that is asked."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sessions: list[str] = []
        self.found: Found | None = None
        monkeypatch.setattr(cluster.agent._candidates, "ask", self._ask)

    def _ask(self, session: str, request: BalanceRequest, found: Found) -> None:
        self.sessions.append(session)
        self.found = found


def test_other_clusters_are_asked_where_this_one_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("e1", "e2")
    remote = Asked(cluster, monkeypatch)
    assert offered(cluster.balance("e1~1~1")) == []
    assert remote.sessions == []
    cluster.replies.clear()
    request = BalanceRequest(session="e1~1~1", edge="e1", metric="uplink", reach=d.Reach.ABROAD)
    cluster.ask(request)
    assert (remote.sessions, cluster.replies) == (["e1~1~1"], [])
    far = Candidate(cluster="d", head="g", load=load("f1"))
    assert remote.found is not None
    remote.found("e1~1~1", (far,))
    cluster.settle(cluster.agent._context.take_actions())
    assert offered(cluster.replies[-1]) == ["f1"]
    assert offered(cluster.balance("e1~1~1", reach=d.Reach.ABROAD)) == ["f1"], "asked again it is the same"


def test_other_clusters_that_do_not_answer_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("e1", "e2")
    Asked(cluster, monkeypatch)
    request = BalanceRequest(session="e1~1~1", edge="e1", metric="uplink", candidates=("e2",), reach=d.Reach.ABROAD)
    cluster.ask(request)
    cluster.fire("session e1~1~1", 4.0)
    assert offered(cluster.replies[-1]) == ["e2"]


def test_other_clusters_are_not_waited_for_when_their_session_has_ended() -> None:
    driver = Driver("n")
    driver.hello("e1")
    first, second = (
        BalanceRequest(session=name, edge="e1", metric="uplink", reach=d.Reach.ABROAD) for name in ("e1~1~1", "e1~1~2")
    )
    (question,) = sent(driver.tell(first), RemoteLoadsRequest)
    driver.tell(second)
    driver.answer(question, RemoteLoads(session=first.session))
    asked = [decision for decision in driver.agent.story if isinstance(decision, d.RemotesAsked)]
    assert asked == [], "nobody wants to know any more"


def test_fallbacks_are_asked_along_where_there_is_no_other_cluster() -> None:
    cluster = Cluster("e1", "e2", "e3")
    cluster.loads["e2"] = load("e2").model_copy(update={"state": LoadState.HIGH})
    cluster.loads["e3"] = load("e3").model_copy(update={"state": LoadState.OVERLOAD})
    answer = cluster.balance("e1~1~1", fallbacks=("e2", "e3"))
    assert isinstance(answer, BalanceCandidates)
    assert offered(answer) == ["e2"]
    assert answer.fallbacks_asked
