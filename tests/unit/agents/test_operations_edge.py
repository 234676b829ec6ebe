"""What an edge answers to operators: its load, its queues, whom it would move; and that nothing is changed by it."""

from __future__ import annotations

import pytest

from tests.support import ews
from tests.support.agents_driver import replies, sent, subscription
from tests.support.edge_driver import (
    AT_ONCE,
    EdgeDriver,
    Flow,
    capacity_of,
    ews_broker,
    ews_candidate,
    ews_subscriptions,
)
from tidegate_agents.config import BalancingConfig
from tidegate_agents.load.metrics import SubscriptionSample
from tidegate_agents.machine import Action, AlarmsSeen, ReplyReceived, TimerFired
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.sessions import BalanceCandidates, BalancePlan, BalanceRequest
from tidegate_protocol.messages import Capacity, EdgeHello, EdgeWelcome, LoadState
from tidegate_protocol.names import output_queue
from tidegate_protocol.operations import (
    Activity,
    Doing,
    InspectReply,
    InspectRequest,
    NothingDue,
    Rehearsal,
    RehearseReply,
    RehearseRequest,
    SourcePhase,
)

OTHERS = ("b0", "b2", "b3")


def samples_of_b1(at_s: float) -> list[SubscriptionSample]:
    burst = at_s > ews.BURST_S
    found = []
    for one in ews_subscriptions("b1"):
        topic = int(one.pattern[1:])
        drain = ews.drain_rate("b1", topic, burst=burst)
        found.append(
            SubscriptionSample(
                output_queue(one.subscriber, 0),
                one.pattern,
                ews.rate(topic, burst=burst),
                drain,
                ews.depth_at("b1", topic, at_s),
                drain * 2 * ews.TO_SUBSCRIBER_S,
                2 * ews.TO_SUBSCRIBER_S,
                ews.TOPICS[topic].message_bytes,
            )
        )
    return found


def b1_until(at_s: float, balancing: BalancingConfig = AT_ONCE, *, paused: bool = False) -> EdgeDriver:
    """b1 of the papers, sampled from a little before the burst on."""
    edge = EdgeDriver("b1", ews_subscriptions("b1"), capacity_of("b1"), balancing, now=ews.BURST_S - 5.0)
    if paused:
        pause(edge, True, 9)
    while edge.now < at_s:
        for name in OTHERS:
            edge.peer(name, LoadState.HIGH if name == "b3" else LoadState.LOW)
        edge.sample(samples_of_b1(edge.now + 1.0), ews_broker("b1", burst=edge.now + 1.0 > ews.BURST_S), 0.2)
    return edge


def pause(edge: EdgeDriver, paused: bool, version: int) -> None:
    (hello,) = sent(edge.give(TimerFired("hello")), EdgeHello)
    assert hello.request_id is not None
    welcome = EdgeWelcome(head="h", cluster="c", period_s=1.0, paused=paused, pause_version=version)
    edge.give(ReplyReceived(hello.request_id, welcome))


def inspect(edge: EdgeDriver, **values: object) -> InspectReply:
    (reply,) = replies(edge.tell(InspectRequest.model_validate(values)), InspectReply)
    return reply


def rehearse(edge: EdgeDriver) -> Rehearsal:
    candidates = tuple(ews_candidate(name) for name in ("b0", "b2"))
    (reply,) = replies(edge.tell(RehearseRequest(candidates=candidates)), RehearseReply)
    return reply.rehearsal


def test_metrics_come_with_their_thresholds_and_the_worst_queues_first() -> None:
    reply = inspect(b1_until(34.0, paused=True), queues=3)
    uplink = reply.state.metrics["uplink"]
    assert (uplink.low, uplink.high) == (0.9, None)
    assert uplink.value == pytest.approx(1.07, abs=0.01)
    assert reply.state.subscriptions == 19
    assert {queue.pattern for queue in reply.state.queues} == {"t8"}
    assert len(reply.state.queues) == 3
    assert reply.load.broker == "b1"


def test_a_paused_edge_starts_no_session_and_does_when_it_is_resumed() -> None:
    edge = b1_until(45.0, paused=True)
    assert edge.decisions(d.SessionRequested) == []
    assert inspect(edge).state.state is LoadState.OVERLOAD
    pause(edge, False, 10)
    actions = edge.sample(samples_of_b1(46.0), ews_broker("b1", burst=True), 0.2)
    assert sent(actions, BalanceRequest, "h")


def test_an_older_word_about_a_pause_does_not_count() -> None:
    edge = b1_until(40.0, paused=True)
    pause(edge, False, 8)
    assert edge.agent._context.paused


def planned(edge: EdgeDriver, actions: list[Action]) -> BalancePlan:
    """The plan, when b0 and b2 are all there is, and no other cluster."""
    while not (plans := sent(actions, BalancePlan)):
        request_id, request = edge.request(actions)
        here = tuple(ews_candidate(name) for name in ("b0", "b2") if request.candidates)
        actions = edge.give(ReplyReceived(request_id, BalanceCandidates(session=request.session, candidates=here)))
    assert isinstance(plans[0].message, BalancePlan)
    return plans[0].message


def test_a_rehearsal_makes_the_plan_of_a_session_and_changes_nothing() -> None:
    edge = b1_until(45.0, paused=True)
    story = list(edge.agent.story)
    rehearsal = rehearse(edge)
    assert rehearsal.due
    assert rehearsal.blocked == Doing(activity=Activity.PAUSED)
    assert (list(edge.agent.story), edge.agent.balancing.busy) == (story, False)

    pause(edge, False, 10)
    actions = edge.sample(samples_of_b1(46.0), ews_broker("b1", burst=True), 0.2)
    same = rehearse(b1_until(46.0, paused=True))
    plan = planned(edge, actions)
    assert plan.moves
    assert same.moves == plan.moves


def test_a_rehearsal_says_why_it_is_blocked_by_a_session() -> None:
    edge = b1_until(45.0)
    doing = inspect(edge).state.doing
    assert doing is not None
    assert (doing.activity, doing.phase, len(doing.sessions)) == (Activity.SOURCE, SourcePhase.REQUESTED, 1)
    assert rehearse(edge).blocked == doing


def test_at_rest_the_queue_nearest_to_its_threshold_is_named() -> None:
    edge = b1_until(29.0)
    rehearsal = rehearse(edge)
    assert not rehearsal.due
    assert rehearsal.nothing is NothingDue.NO_DANGER
    assert rehearsal.closest is not None
    assert rehearsal.closest.threshold is not None
    assert rehearsal.closest.depth < rehearsal.closest.threshold


def test_what_a_session_began_with_is_told_with_all_its_numbers() -> None:
    edge = b1_until(45.0)
    (begun,) = edge.decisions(d.SessionRequested)[:1]
    told = inspect(edge, session=begun.session)
    (requested,) = [one for one in told.decisions if one.decision == "session-requested"]
    assert requested.record == begun
    assert begun.danger is not None
    assert begun.danger.queue.startswith("out.s8-")
    assert begun.danger.depth > begun.danger.threshold
    assert begun.uplink is not None
    assert begun.queues_past >= 1
    assert {queue.pattern for queue in told.queues} == {"t8"}
    assert any(one.decision == "load-state" for one in told.decisions)


def test_an_edge_whose_rabbitmq_has_an_alarm_takes_no_load_and_says_why() -> None:
    edge = b1_until(29.0)
    assert inspect(edge).state.state is LoadState.LOW
    edge.give(AlarmsSeen(("memory",)))
    edge.give(AlarmsSeen(("memory",)))
    state = inspect(edge).state
    assert (state.state, state.alarms) == (LoadState.NOT_AVAILABLE, ("memory",))
    assert len(edge.decisions(d.AlarmsChanged)) == 1
    edge.give(AlarmsSeen(()))
    assert inspect(edge).state.state is LoadState.LOW
    assert [one.outcome for one in edge.decisions(d.AlarmsChanged)] == ["raised", "over"]


def test_a_slow_subscriber_is_named_as_culprit_and_found_by_its_name() -> None:
    wide = Capacity(uplink_bytes_per_s=1e6)
    edge = EdgeDriver("e", [subscription("slow"), subscription("well", pattern="b")], wide)
    flows = {"slow": Flow("slow", "a", 100.0), "well": Flow("well", "b", 100.0)}
    for _ in range(12):
        edge.sample([flows["slow"].sampled(50.0, 1.0), flows["well"].sampled(50.0, 1e3)])
    reply = inspect(edge, subscriber="slow", latest=10)
    (culprit,) = reply.culprits
    assert (culprit.what, culprit.client, culprit.broker) == ("slow-subscriber", "slow", "e")
    assert isinstance(culprit.record, d.SlowSubscriber)
    assert culprit.record.drain_per_s < culprit.record.enqueue_per_s
    (queue,) = reply.queues
    assert queue.slow
    assert "out.slow.0" in {t.record.queue for t in reply.decisions if isinstance(t.record, d.SlowSubscriber)}
    assert reply.state.slow == ("out.slow.0",)
