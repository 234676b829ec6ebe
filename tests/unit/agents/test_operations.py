"""What a head answers to operators: from its own knowledge and its edges', without changing anything; and pausing."""

from __future__ import annotations

from typing import TypeVar

import pytest

from tests.support.agents_driver import replies, sent, subscription
from tests.support.decisions import rejections
from tests.support.head_cluster import Cluster, load, move
from tidegate_agents.head.inspect import EDGE_WAIT_S, QUESTIONS_MAX
from tidegate_agents.head.moving import offers
from tidegate_agents.kit.subscriptions import registry_digest
from tidegate_agents.machine import Action, TimerFired, Undeliverable
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.drains import DrainRequest
from tidegate_protocol.balancing.migrations import MigrateOrder, MigrationStage
from tidegate_protocol.messages import (
    ControlMessage,
    EdgeHello,
    EdgeWelcome,
    LoadState,
    PublisherHello,
    Refusal,
    RefusalReason,
)
from tidegate_protocol.operations import (
    BrokerState,
    Culprit,
    Explained,
    ExplainReply,
    ExplainRequest,
    InspectReply,
    InspectRequest,
    OverviewReply,
    OverviewRequest,
    PauseReply,
    PauseRequest,
    PlanReply,
    PlanRequest,
    QueueState,
    Rehearsal,
    RehearseReply,
    RehearseRequest,
    Role,
    Told,
)

M = TypeVar("M", bound=ControlMessage)


class Operated(Cluster):
    """A cluster whose edges answer about themselves what the test says."""

    def __init__(self, *edges: str) -> None:
        self.told: dict[str, tuple[Told, ...]] = {}
        self.queues: dict[str, tuple[QueueState, ...]] = {}
        self.culprits: dict[str, tuple[Culprit, ...]] = {}
        self.rehearsed: dict[str, RehearseRequest] = {}
        self.inspected: dict[str, InspectRequest] = {}
        super().__init__(*edges)

    def _edge(self, edge: str, message: ControlMessage) -> ControlMessage | None:
        if isinstance(message, InspectRequest):
            self.inspected[edge] = message
            return InspectReply(
                state=BrokerState(broker=edge, role=Role.EDGE, state=LoadState.LOW, samples=1),
                load=self.loads.get(edge, load(edge)),
                decisions=self.told.get(edge, ()),
                queues=self.queues.get(edge, ()),
                culprits=self.culprits.get(edge, ()),
            )
        if isinstance(message, RehearseRequest):
            self.rehearsed[edge] = message
            return RehearseReply(rehearsal=Rehearsal(edge=edge, state=LoadState.LOW, reason="nothing is late"))
        return super()._edge(edge, message)

    def answer_to(self, message: ControlMessage, kind: type[M]) -> M:
        self.ask(message)
        reply = self.replies[-1]
        assert isinstance(reply, kind), reply
        return reply


def session_with_one_move(cluster: Operated) -> str:
    """A session of e1 in which `s` is moved to e2; returns its id."""
    cluster.grant("s")
    cluster.balance("e1~1~1", "e2")
    cluster.plan("e1~1~1", move("s"))
    order = cluster.ordered(MigrateOrder)[0]
    cluster.report(order, MigrationStage.ATTACHED)
    cluster.report(order, MigrationStage.MOVED)
    return "e1~1~1"


# Overview


def test_an_overview_has_the_head_and_every_edge_that_answers() -> None:
    cluster = Operated("e1", "e2")
    cluster.grant("s")
    reply = cluster.answer_to(OverviewRequest(queues=7), OverviewReply)
    assert [state.broker for state in reply.brokers] == ["h", "e1", "e2"]
    assert [edge.edge for edge in reply.edges] == ["e1", "e2"]
    assert (reply.paused, reply.missing, reply.sessions) == (False, (), ())
    assert cluster.inspected["e1"].queues == 7


def test_an_edge_that_does_not_answer_is_missing_and_holds_nobody_up() -> None:
    cluster = Operated("e1", "e2")
    actions = cluster.tell(OverviewRequest())
    to_e1, to_e2 = sent(actions, InspectRequest)
    assert (to_e1.to, to_e2.to) == ("e1", "e2")
    assert not replies(cluster.answer(to_e1, cluster._edge("e1", to_e1.message)), OverviewReply)  # type: ignore[arg-type]
    cluster.now += EDGE_WAIT_S
    (reply,) = replies(cluster.give(TimerFired("operations 1")), OverviewReply)
    assert reply.missing == ("e2",)
    assert [state.broker for state in reply.brokers] == ["h", "e1"]
    late = cluster._edge("e2", to_e2.message)
    assert late is not None
    assert not replies(cluster.answer(to_e2, late), OverviewReply)


def test_an_edge_that_is_known_to_be_away_is_not_asked() -> None:
    cluster = Operated("e1", "e2")
    actions = cluster.tell(OverviewRequest())
    assert to(actions, "e2")
    (request,) = [send for send in sent(actions, InspectRequest) if send.to == "e2"]
    assert request.request_id is not None
    cluster.give(Undeliverable(request.request_id))
    cluster.now += 10.0
    cluster.greet("e1")
    cluster.fire("tick")
    assert not to(cluster.tell(OverviewRequest()), "e2")


def to(actions: list[Action], edge: str) -> bool:
    return any(send.to == edge for send in sent(actions, InspectRequest))


def test_culprits_of_all_edges_are_named() -> None:
    cluster = Operated("e1", "e2")
    slow = Culprit(what="slow-subscriber", client="chart", broker="e2", ago_us=5, text="a: too slow")
    cluster.culprits["e2"] = (slow,)
    assert cluster.answer_to(OverviewRequest(), OverviewReply).culprits == (slow,)


def test_questions_are_bounded() -> None:
    cluster = Operated("e1")
    for _ in range(QUESTIONS_MAX):
        assert sent(cluster.tell(OverviewRequest()), InspectRequest)
    (refusal,) = replies(cluster.tell(OverviewRequest()), Refusal)
    assert refusal.reason is RefusalReason.LIMIT
    assert refusal.retry_after_s is not None


# Explaining


def test_a_session_is_told_from_the_decisions_of_all_who_took_part_in_order() -> None:
    cluster = Operated("e1", "e2")
    session = session_with_one_move(cluster)
    cluster.now += 4.0
    cluster.told["e1"] = (
        Told(broker="e1", ago_us=4_500_000, decision="session-requested", subject="e1", session=session),
        Told(broker="e1", ago_us=1_000_000, decision="stabilized", subject="e1", session=session),
    )
    reply = cluster.answer_to(ExplainRequest(about=session), ExplainReply)
    assert reply.what is Explained.SESSION
    kinds = [told.decision for told in reply.decisions]
    assert kinds[0] == "session-requested"
    assert kinds[-1] == "stabilized"
    assert kinds.index("session-candidates") < kinds.index("session-plan") < kinds.index("migration-ended")
    assert cluster.inspected["e1"].session == session
    (state,) = reply.sessions
    assert (state.source, state.phase, state.moved, state.targets) == ("e1", "ended", 1, {"e2": 1})


def test_ages_told_by_an_edge_are_corrected_by_the_way_of_its_answer() -> None:
    cluster = Operated("e1")
    cluster.told["e1"] = (Told(broker="e1", ago_us=1_000_000, decision="session-failed", session="x"),)
    (request,) = sent(cluster.tell(ExplainRequest(about="x")), InspectRequest)
    answer = cluster._edge("e1", request.message)
    assert answer is not None
    cluster.now += 0.4
    (reply,) = replies(cluster.answer(request, answer), ExplainReply)
    assert [told.ago_us for told in reply.decisions] == [1_200_000]


@pytest.mark.parametrize("about", ["nobody", "e9", "e1~1~77"])
def test_what_nobody_knows_is_refused_with_what_there_is(about: str) -> None:
    cluster = Operated("e1", "e2")
    session = session_with_one_move(cluster)
    refusal = cluster.answer_to(ExplainRequest(about=about), Refusal)
    assert refusal.reason is RefusalReason.UNKNOWN
    for name in (about, session, "e1", "e2"):
        assert name in refusal.message


@pytest.mark.parametrize("about", ["s", "out.s.0"])
def test_a_subscriber_is_known_by_its_name_or_its_queue(about: str) -> None:
    cluster = Operated("e1", "e2")
    session_with_one_move(cluster)
    reply = cluster.answer_to(ExplainRequest(about=about), ExplainReply)
    assert (reply.what, reply.about) == (Explained.SUBSCRIBER, "s")
    assert {"placement", "migration-ended"} <= {told.decision for told in reply.decisions}
    assert cluster.inspected["e2"].subscriber == "s"


def test_a_broker_is_told_what_it_was_asked_and_why_it_could_not_help() -> None:
    cluster = Operated("e1", "e2", "e3")
    cluster.grant("s")
    cluster.loads["e2"] = load("e2", LoadState.HIGH)
    cluster.balance("e1~1~1", "e2", "e3")
    reply = cluster.answer_to(ExplainRequest(about="e2"), ExplainReply)
    assert reply.what is Explained.BROKER
    (asked,) = [told for told in reply.decisions if told.decision == "session-candidates"]
    assert rejections(asked.record) == {"e2": d.Rejection.STATE}
    assert [state.broker for state in reply.brokers] == ["e2"]


def test_publishers_are_known_by_their_name_without_the_incarnation() -> None:
    cluster = Operated("e1")
    cluster.ask(PublisherHello(publisher="buoy~x1"))
    reply = cluster.answer_to(ExplainRequest(about="buoy"), ExplainReply)
    assert (reply.what, reply.about) == (Explained.PUBLISHER, "buoy~x1")


def test_without_a_name_it_is_the_cluster() -> None:
    cluster = Operated("e1")
    reply = cluster.answer_to(ExplainRequest(), ExplainReply)
    assert reply.what is Explained.CLUSTER
    assert [state.broker for state in reply.brokers] == ["h", "e1"]


# Planning


def test_every_edge_rehearses_with_what_a_session_would_be_offered() -> None:
    cluster = Operated("e1", "e2", "e3")
    cluster.grant("s")
    cluster.loads["e2"] = load("e2", offered=500.0)
    cluster.ask(DrainRequest(edge="e3"))
    reply = cluster.answer_to(PlanRequest(), PlanReply)
    assert [edge.edge for edge in reply.edges] == ["e1", "e2", "e3"]
    asked = cluster.rehearsed["e1"]
    assert {candidate.load.broker: candidate.load.bytes_offered_per_s for candidate in asked.candidates} == {
        "e2": 500.0
    }
    assert {one.name for one in asked.rejected} == {"e3"}
    assert cluster.decisions(d.SessionCandidates) == []


def test_load_that_is_promised_counts_in_a_rehearsal() -> None:
    cluster = Operated("e1", "e2", "e3")
    cluster.grant("s")
    cluster.balance("e1~1~1", "e2")
    cluster.plan("e1~1~1", move("s", bytes_per_s=70.0))
    cluster.answer_to(PlanRequest(), PlanReply)
    assert d.Rejected("e2", d.Rejection.IN_SESSION, other="e1~1~1") in cluster.rehearsed["e3"].rejected


def test_as_much_is_named_in_a_rehearsal_as_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "PATTERNS_BYTES_MAX", 4)
    cluster = Operated("e1", "e2")
    for number, pattern in enumerate("ab"):
        for edge in ("e1", "e2"):
            cluster.agent._context.ledger.found(edge, subscription("s", number, pattern))
    cluster.answer_to(PlanRequest(), PlanReply)
    assert [candidate.patterns for candidate in cluster.rehearsed["e1"].candidates] == [("a",)]


# Pausing


def hello(edge: str, paused: bool, version: int) -> EdgeHello:
    return EdgeHello(
        edge=edge,
        cluster="c",
        client_url="amqp://e:1",
        link_url="amqp://e:2",
        registry_count=0,
        registry_digest=registry_digest(()),
        paused=paused,
        pause_version=version,
    )


def test_no_session_begins_while_balancing_is_paused() -> None:
    cluster = Operated("e1", "e2")
    cluster.grant("s")
    assert cluster.answer_to(PauseRequest(paused=True), PauseReply) == PauseReply(
        cluster="c", paused=True, changed=True
    )
    refusal = cluster.balance("e1~1~1", "e2")
    assert isinstance(refusal, Refusal)
    assert "paused" in refusal.message
    assert cluster.answer_to(PauseRequest(paused=False), PauseReply).changed
    assert not isinstance(cluster.balance("e1~1~2", "e2"), Refusal)


def test_a_session_under_way_ends_although_balancing_is_paused() -> None:
    cluster = Operated("e1", "e2")
    cluster.grant("s")
    cluster.balance("e1~1~1", "e2")
    assert cluster.answer_to(PauseRequest(paused=True), PauseReply).under_way == 1
    cluster.plan("e1~1~1", move("s"))
    order = cluster.ordered(MigrateOrder)[0]
    cluster.report(order, MigrationStage.ATTACHED)
    cluster.report(order, MigrationStage.MOVED)
    assert cluster.places("s") == [("e2", 1)]


def test_pausing_twice_changes_nothing() -> None:
    cluster = Operated("e1")
    cluster.ask(PauseRequest(paused=True))
    assert not cluster.answer_to(PauseRequest(paused=True), PauseReply).changed
    assert cluster.decisions(d.BalancingSwitched) == ["paused"]


def test_edges_learn_of_a_pause_and_a_restarted_head_from_them() -> None:
    cluster = Operated("e1")
    cluster.ask(PauseRequest(paused=True))
    (welcome,) = replies(cluster.tell(hello("e1", False, 0)), EdgeWelcome)
    assert welcome.paused
    successor = Operated("e1")
    (answer,) = replies(successor.tell(hello("e1", True, welcome.pause_version)), EdgeWelcome)
    assert answer.paused
    assert successor.answer_to(OverviewRequest(), OverviewReply).paused


def test_what_an_edge_remembers_from_before_a_resume_does_not_pause_again() -> None:
    cluster = Operated("e1", "e2")
    cluster.ask(PauseRequest(paused=True))
    (paused,) = replies(cluster.tell(hello("e1", False, 0)), EdgeWelcome)
    cluster.ask(PauseRequest(paused=False))
    (resumed,) = replies(cluster.tell(hello("e1", True, paused.pause_version)), EdgeWelcome)
    assert not resumed.paused
    assert resumed.pause_version > paused.pause_version
    successor = Operated("e1", "e2")
    successor.tell(hello("e1", False, resumed.pause_version))
    (late,) = replies(successor.tell(hello("e2", True, paused.pause_version)), EdgeWelcome)
    assert not late.paused
