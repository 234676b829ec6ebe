"""Sessions as an edge sees them: the burst of seed 000 §V driven through its agent, and what may go wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import ews
from tests.support.agents_driver import of, replies, sent, subscription
from tests.support.decisions import effect, rejections
from tests.support.edge_driver import (
    AT_ONCE,
    EdgeDriver,
    capacity_of,
    ews_broker,
    ews_candidate,
    ews_subscriptions,
)
from tidegate_agents.config import ATTEMPTS_MAX, BalancingConfig
from tidegate_agents.edge.agent import SOON_MESSAGES, SOON_SHARE_MAX, SOON_SHARE_MIN
from tidegate_agents.edge.session import PART, SourcePhase
from tidegate_agents.load.metrics import SubscriptionSample
from tidegate_agents.load.threshold import ThresholdKind
from tidegate_agents.machine import (
    Action,
    Announce,
    OutputDeleted,
    ReplyReceived,
    SampleSoon,
    TimerFired,
    Undeliverable,
)
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.drains import DrainNotice, DrainReply
from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_protocol.balancing.sessions import (
    BalanceCandidates,
    BalancePlan,
    BalanceRequest,
    Candidate,
    SessionPhase,
)
from tidegate_protocol.messages import (
    LoadState,
    Refusal,
    RefusalReason,
)
from tidegate_protocol.names import output_queue
from tidegate_protocol.parts import Capacity

PAPER = replace(AT_ONCE, threshold=ThresholdKind.PAPER)
OTHERS = ("b0", "b2", "b3")


def session_timer(driver: EdgeDriver) -> str:
    """Of the first session of its own."""
    config = driver.agent.config
    return f"{PART} {config.edge}~{config.incarnation}~1"


def samples_of_b1(at_s: float) -> list[SubscriptionSample]:
    burst = at_s > ews.BURST_S
    return [
        SubscriptionSample(
            output_queue(s.subscriber, 0),
            s.pattern,
            ews.rate(topic, burst=burst),
            ews.drain_rate("b1", topic, burst=burst),
            ews.depth_at("b1", topic, at_s),
            ews.drain_rate("b1", topic, burst=burst) * 2 * ews.TO_SUBSCRIBER_S,
            2 * ews.TO_SUBSCRIBER_S,
            ews.TOPICS[topic].message_bytes,
        )
        for s in ews_subscriptions("b1")
        for topic in (int(s.pattern[1:]),)
    ]


def sample_b1(driver: EdgeDriver) -> list[Action]:
    """The sample of the next second, with the peers' reports of it."""
    for name in OTHERS:
        uplink = ews.offered_on(name, burst=driver.now > ews.BURST_S) / ews.bandwidth(name)
        driver.peer(name, LoadState.LOW if uplink < 0.9 else LoadState.HIGH, uplink)
    burst = driver.now + 1 > ews.BURST_S
    return driver.sample(samples_of_b1(driver.now + 1), ews_broker("b1", burst=burst), 2 * ews.BROKER_TO_BROKER_S)


def until_requested(config: BalancingConfig = PAPER, until_s: float = 60.0) -> tuple[EdgeDriver, list[Action]]:
    driver = EdgeDriver("b1", ews_subscriptions("b1"), capacity_of("b1"), config, now=20.0)
    while driver.now < until_s:
        actions = sample_b1(driver)
        if sent(actions, BalanceRequest):
            return driver, actions
    raise AssertionError("no session was requested")


def test_the_burst_of_the_paper_moves_exactly_topic_1_from_b1_to_b0() -> None:
    driver, actions = until_requested()
    assert driver.now == 34
    request = driver.request(actions)
    assert request[1].session == "b1~3~1"
    assert request[1].metric == "queue-depth"
    assert sorted(request[1].patterns) == ["t1", "t14", "t3", "t8"]
    # b3 is at 95 %.
    assert request[1].candidates == ("b0", "b2")
    assert rejections(driver.decisions(d.SessionRequested)[0]) == {"b3": d.Rejection.STATE}
    assert request[1].reach is d.Reach.HERE
    (requested,) = driver.decisions(d.SessionRequested)
    assert requested.necessary
    assert requested.session == "b1~3~1"
    assert requested.cause.queue == "out.s8-0.0"

    plan = driver.candidates(request, *(ews_candidate(name) for name in OTHERS))
    assert {(move.subscriber, move.target) for move in plan[1].moves} == {(f"s1-{n}", "b0") for n in range(8)}
    assert sum(move.bytes_out_per_s for move in plan[1].moves) == pytest.approx(80_000, rel=0.01)
    assert sum(move.bytes_in_per_s for move in plan[1].moves) == pytest.approx(10_000, rel=0.01)
    (planned,) = driver.decisions(d.SessionPlanned)
    assert set(rejections(planned)) >= {f"t14 to {name}" for name in OTHERS}
    assert "t1 to b0" not in rejections(planned)
    assert effect(planned, "b1").after == pytest.approx(0.99, abs=0.005)
    assert effect(planned, "b0").after < 0.9
    assert planned.outcome is d.PlanOutcome.RELIEVED


def test_the_first_sample_of_a_change_begins_no_session() -> None:
    def requested(seconds: int, *, calm: bool) -> bool:
        """Whether a session has begun so many samples after everything became deep at once."""
        driver = EdgeDriver("b1", ews_subscriptions("b1"), capacity_of("b1"), PAPER, now=20.0)
        for name in OTHERS:
            driver.peer(name, LoadState.LOW, 0.5)
        for _ in range(4):
            driver.sample(samples_of_b1(25.0), ews_broker("b1", burst=calm), 0.2)
        deep = [replace(s, ready=s.ready + 500.0) for s in samples_of_b1(31.0)]
        done = [action for _ in range(seconds) for action in driver.sample(deep, ews_broker("b1", burst=True), 0.2)]
        return bool(sent(done, BalanceRequest))

    assert requested(1, calm=True), "one sample is enough where nothing has changed"
    assert not requested(1, calm=False), "it has seen a part of the change only"
    assert requested(2, calm=False)


@pytest.mark.parametrize(("needed", "closer"), [(2, [False, False, True, False, False, True]), (1, [False] * 6)])
def test_a_change_is_looked_at_again_before_a_period_is_over_but_once(needed: int, closer: list[bool]) -> None:
    driver = EdgeDriver(capacity=capacity_of("b1"), balancing=replace(AT_ONCE, queue_samples_needed=needed))
    width = capacity_of("b1").uplink_bytes_per_s
    assert width is not None
    found = []
    for share in (0.5, 0.5, 0.8, 0.9, 0.9, 0.5):
        sample = SubscriptionSample("out.s.0", "a", share * width / 1e3, share * width / 1e3, 0, 0.0, 0.4, 1e3)
        found.append(bool(of(driver.sample([sample]), SampleSoon)))
    assert found == closer


@pytest.mark.parametrize(
    ("rates", "wait_s"),
    [
        ((1_000.0,), SOON_SHARE_MIN),
        ((SOON_MESSAGES / 0.5,), 0.5),
        ((SOON_MESSAGES / 0.5, 0.01), 0.5),
        ((1.0, 1.0), SOON_SHARE_MAX),
    ],
)
def test_it_is_looked_at_again_when_there_is_something_to_count(rates: tuple[float, ...], wait_s: float) -> None:
    subscriptions = [subscription(number=number) for number in range(len(rates))]
    driver = EdgeDriver("e", subscriptions, balancing=replace(AT_ONCE, queue_samples_needed=2))
    for share in (0.5, 1.0):
        samples = [
            SubscriptionSample(f"out.s.{number}", "a", share * rate, share * rate, 0, 0, 0.4, 1e3)
            for number, rate in enumerate(rates)
        ]
        soon = of(driver.sample(samples), SampleSoon)
    assert [action.after_s for action in soon] == [pytest.approx(wait_s, rel=1e-2)]


def test_a_head_that_begins_anew_leads_no_session_any_more() -> None:
    driver, actions = until_requested()
    balancing = driver.agent.balancing
    balancing.welcomed(100)
    driver.accept(driver.candidates(driver.request(actions), ews_candidate("b0")))
    for incarnation in (100, 99):
        balancing.welcomed(incarnation)
        assert balancing.phase is SourcePhase.MOVING, "it is the same head, or its words came late"
    balancing.welcomed(101)
    assert balancing.phase is None
    assert balancing.stabilizing, "some of the clients may have moved"
    balancing.validate()


def test_a_target_leaves_the_sessions_of_a_head_that_begins_anew() -> None:
    driver = EdgeDriver("b1", ews_subscriptions("b1"), capacity_of("b1"), PAPER, now=20.0)
    balancing = driver.agent.balancing
    balancing.welcomed(100)
    driver.notice("b0~3~1", SessionPhase.STARTED, "b0")
    assert balancing.busy
    balancing.welcomed(101)
    assert not balancing.busy


def test_after_the_session_lagging_averages_cause_no_second_one() -> None:
    driver, actions = until_requested()
    plan = driver.candidates(driver.request(actions), ews_candidate("b0"))
    driver.accept(plan)
    assert driver.agent.balancing.phase is SourcePhase.MOVING
    for move in plan[1].moves:
        driver.give(OutputDeleted(move.subscriber, move.number))
    driver.notice("b1~3~1", SessionPhase.ENDED, "b1", moved=8, took_s=0.5)
    assert driver.agent.balancing.stabilizing
    assert driver.agent.detector.session_time.average_s == 0.5
    # All flows are drained at 1.0 / 0.99 of what they offer from now on; the samples still show the old rates once.
    for second in range(35, 62):
        mixed = 0.5 if second == 35 else 0.0
        staying = [s for s in samples_of_b1(34) if s.pattern != "t1"]
        found = []
        for s in staying:
            drain = s.enqueue_per_s * (mixed / 1.07 + (1 - mixed) / 0.99)
            depth = max(s.ready - (second - 34) * s.enqueue_per_s * (1 / 0.99 - 1), 0.0)
            found.append(
                SubscriptionSample(s.name, s.pattern, s.enqueue_per_s, drain, depth, drain * 0.4, 0.4, s.message_bytes)
            )
        for name in OTHERS:
            driver.peer(name)
        driver.sample(found, head_round_trip_s=0.2)
    assert len(driver.decisions(d.SessionRequested)) == 1
    (stabilized,) = driver.decisions(d.Stabilized)
    assert stabilized.after_s <= 4
    assert stabilized.session == "b1~3~1"


def test_a_load_that_is_steady_elsewhere_than_predicted_is_not_waited_for() -> None:
    driver, actions = until_requested()
    driver.accept(driver.candidates(driver.request(actions), ews_candidate("b0")))
    driver.notice("b1~3~1", SessionPhase.ENDED, "b1", moved=1, took_s=0.5)
    samples = [replace(s, ready=0.0, enqueue_per_s=0.7 * s.enqueue_per_s) for s in samples_of_b1(34)]
    for _ in range(5):
        driver.sample(samples, head_round_trip_s=0.2)
    (stabilized,) = driver.decisions(d.Stabilized)
    assert stabilized.reason is d.StabilizedReason.NOT_AS_PREDICTED
    assert stabilized.after_s < BalancingConfig().stabilizing_max_s


def test_the_projected_threshold_asks_later_and_still_in_time() -> None:
    driver, _ = until_requested(AT_ONCE)
    assert 36 <= driver.now <= 40


def test_one_sample_above_is_not_enough_where_two_are_asked_for() -> None:
    driver, _ = until_requested(replace(PAPER, queue_samples_needed=2))
    assert driver.now == 35


def test_resting_queues_stay_and_a_bundle_without_them_is_moved_all_the_same() -> None:
    driver, actions = until_requested()
    resting = (output_queue("s1-0", 0), output_queue("s1-1", 0))
    plan = driver.candidates(driver.request(actions), ews_candidate("b0"), resting=resting)
    assert "s1-0" not in {move.subscriber for move in plan[1].moves}
    (planned,) = driver.decisions(d.SessionPlanned)
    assert rejections(planned)[resting[0]] is d.Rejection.MOVED_RECENTLY


def test_where_nothing_fits_other_clusters_are_asked_once_and_then_it_waits_longer_and_longer() -> None:
    driver, actions = until_requested()
    first = driver.request(actions)
    answer = BalanceCandidates(session=first[1].session, candidates=(ews_candidate("b2"),))
    remote = driver.request(driver.give(ReplyReceived(first[0], answer)))
    assert remote[1].reach is d.Reach.ABROAD
    assert remote[1].session == first[1].session
    assert driver.decisions(d.SessionWidened)[0].rejected
    last = no_candidates(driver, remote)
    assert last[1].reach is d.Reach.LAST_RESORT
    assert set(last[1].candidates) >= {"b0", "b2"}
    plan = driver.candidates(last)
    assert plan[1].moves == ()
    assert plan[1].outcome is not None
    driver.accept(plan)
    assert len(driver.decisions(d.SessionRequested)) == 1
    waits = []
    for _ in range(6):
        began = driver.now
        for _ in range(100):
            actions = sample_b1(driver)
            if sent(actions, BalanceRequest):
                break
        waits.append(driver.now - began)
        driver.give(Undeliverable(driver.request(actions)[0]))
    assert waits == [5, 10, 20, 40, 60, 60]
    assert all(d.session for d in driver.decisions(d.SessionFailed))


def no_candidates(
    driver: EdgeDriver, request: tuple[str, BalanceRequest], *candidates: Candidate, resting: tuple[str, ...] = ()
) -> tuple[str, BalanceRequest]:
    """Answer a request with nobody who could help; returns the wider request that follows."""
    answer = BalanceCandidates(session=request[1].session, candidates=candidates, resting=resting)
    return driver.request(driver.give(ReplyReceived(request[0], answer)))


def test_as_a_last_resort_a_busy_edge_is_filled_up_but_not_overloaded() -> None:
    driver, actions = until_requested()
    last = no_candidates(driver, no_candidates(driver, driver.request(actions)))
    uplink = 1_000_000.0
    capacity = Capacity(uplink_bytes_per_s=uplink)

    def candidate(name: str, used: float) -> Candidate:
        load = BrokerLoad(
            broker=name,
            state=LoadState.HIGH,
            bytes_in_per_s=0,
            bytes_offered_per_s=used * uplink,
            messages_in_per_s=0,
            capacity=capacity,
        )
        return Candidate(cluster="c", head="h", load=load)

    # Topic 1 makes 80,000 B/s, and so do the other topics together at least.
    plan = driver.candidates(last, candidate("full", 0.985), candidate("room", 0.905))
    assert {move.target for move in plan[1].moves} == {"room"}
    planned = driver.decisions(d.SessionPlanned)[0]
    assert 0.90 < effect(planned, "room").after <= 0.99
    assert any(one.reason is d.Rejection.WOULD_OVERLOAD for one in planned.rejected if one.target == "full")


def test_fallbacks_that_were_asked_along_are_used_without_another_question() -> None:
    driver, actions = until_requested(AT_ONCE)
    request = driver.request(actions)
    assert set(request[1].fallbacks) >= {"b0", "b2"}
    capacity = Capacity(uplink_bytes_per_s=1_000_000.0)
    load = BrokerLoad(
        broker="b0",
        state=LoadState.HIGH,
        bytes_in_per_s=0,
        bytes_offered_per_s=905_000.0,
        messages_in_per_s=0,
        capacity=capacity,
    )
    offered = (Candidate(cluster="c", head="h", load=load),)
    answer = BalanceCandidates(session=request[1].session, candidates=offered, fallbacks_asked=True)
    plan = sent(driver.give(ReplyReceived(request[0], answer)), BalancePlan)[0].message
    assert plan.reach is d.Reach.LAST_RESORT
    assert {move.target for move in plan.moves} == {"b0"}
    assert driver.decisions(d.SessionWidened)


@pytest.mark.parametrize("kind", list(ThresholdKind))
def test_brokers_that_are_in_another_session_are_waited_for_once_if_it_is_urgent(kind: ThresholdKind) -> None:
    driver, actions = until_requested(replace(AT_ONCE, threshold=kind))
    last = no_candidates(driver, no_candidates(driver, driver.request(actions)))
    assert last[1].reach is d.Reach.LAST_RESORT
    occupied = BalanceCandidates(session=last[1].session, occupied=("b0",))
    actions = driver.give(ReplyReceived(last[0], occupied))
    if kind is ThresholdKind.PAPER:
        # The paper's threshold is passed long before a deadline is in danger.
        assert not sent(actions, BalanceRequest)
        assert driver.decisions(d.SessionPlanned)
        return
    patient = driver.request(actions)
    assert patient[1] == last[1].model_copy(update={"reach": d.Reach.OCCUPIED})
    actions = driver.give(ReplyReceived(patient[0], occupied))
    assert not sent(actions, BalanceRequest)
    assert sent(actions, BalancePlan)


def remote_plan(
    driver: EdgeDriver, actions: list[Action], far: Candidate, resting: tuple[str, ...] = ()
) -> tuple[str, BalancePlan]:
    """The plan, where the cluster has nobody and another one has `far`."""
    first = driver.request(actions)
    actions = driver.give(ReplyReceived(first[0], BalanceCandidates(session=first[1].session)))
    return driver.candidates(driver.request(actions), far, resting=resting)


def test_a_far_candidate_gets_only_what_can_still_be_in_time_there() -> None:
    driver, actions = until_requested()
    idle = BrokerLoad(broker="x", state=LoadState.LOW, bytes_in_per_s=0, bytes_offered_per_s=0, messages_in_per_s=0)
    far = Candidate(cluster="d", head="h2", load=idle, extra_path_us=1_200_000)
    plan = remote_plan(driver, actions, far)
    # Topic 14 has 50 s.
    assert {move.subscriber.split("-")[0] for move in plan[1].moves} == {"s14"}
    driver, actions = until_requested()
    resting = tuple(output_queue(f"s14-{n}", 0) for n in range(3))
    no_candidates(driver, no_candidates(driver, driver.request(actions)), far, resting=resting)
    # Topic 1 may wait for 1.5 s, of which a session takes 0.5 s and the way 1.2 s.
    (wider,) = [one for one in driver.decisions(d.SessionWidened) if one.reason is d.Reach.LAST_RESORT]
    assert rejections(wider)["t1 to x"] is d.Rejection.TOO_FAR


def test_a_request_without_an_answer_is_repeated_and_given_up() -> None:
    driver, actions = until_requested()
    first = driver.request(actions)
    for _ in range(ATTEMPTS_MAX - 1):
        again = driver.request(driver.give(TimerFired(session_timer(driver))))
        assert again[1] == first[1]
        assert again[0] != first[0]
    assert not sent(driver.give(TimerFired(session_timer(driver))), BalanceRequest)
    assert driver.agent.balancing.phase is None
    assert driver.decisions(d.SessionFailed)[0].outcome is d.SessionOutcome.NO_ANSWER
    # What comes after all is of no interest.
    late = BalanceCandidates(session=first[1].session, candidates=(ews_candidate("b0"),))
    assert driver.give(ReplyReceived(first[0], late)) == []


def test_a_plan_without_an_answer_is_repeated_and_given_up() -> None:
    driver, actions = until_requested()
    plan = driver.candidates(driver.request(actions), ews_candidate("b0"))
    for _ in range(ATTEMPTS_MAX - 1):
        (again,) = sent(driver.give(TimerFired(session_timer(driver))), BalancePlan)
        assert again.message == plan[1]
    driver.give(TimerFired(session_timer(driver)))
    assert driver.agent.balancing.phase is None
    # If the head took the plan nevertheless, its notices keep us from starting anything meanwhile.
    driver.notice("b1~3~9", SessionPhase.STARTED, "b1")
    assert driver.agent.balancing.busy


def test_a_session_that_nobody_ends_is_left() -> None:
    driver, actions = until_requested()
    driver.accept(driver.candidates(driver.request(actions), ews_candidate("b0")))
    driver.give(TimerFired(session_timer(driver)))
    assert driver.agent.balancing.phase is None
    assert driver.agent.balancing.stabilizing
    # A notice that comes too late does no harm.
    driver.notice("b1~3~1", SessionPhase.STARTED, "b1")
    driver.notice("b1~3~1", SessionPhase.ENDED, "b1", moved=8)
    assert len(driver.decisions(d.SessionEnded)) == 1


def test_a_refusal_is_recorded_and_its_wait_kept() -> None:
    driver, actions = until_requested()
    refusal = Refusal(reason=RefusalReason.CONFLICT, message="b1 is in a session", retry_after_s=3.0)
    driver.give(ReplyReceived(driver.request(actions)[0], refusal))
    assert "b1 is in a session" in driver.decisions(d.SessionFailed)[0].detail
    began = driver.now
    while not sent(sample_b1(driver), BalanceRequest):
        pass
    assert driver.now - began == 3


def test_a_session_in_which_nobody_moved_is_a_failed_one() -> None:
    driver, actions = until_requested()
    driver.accept(driver.candidates(driver.request(actions), ews_candidate("b0")))
    driver.notice("b1~3~1", SessionPhase.ENDED, "b1", moved=0)
    assert driver.decisions(d.SessionFailed)
    assert not driver.agent.balancing.busy
    assert driver.agent.detector.session_time.average_s == 0.5


def test_the_time_of_a_session_is_learned() -> None:
    driver, actions = until_requested()
    driver.accept(driver.candidates(driver.request(actions), ews_candidate("b0")))
    driver.now += 30.0  # others were waited for in vain
    driver.notice("b1~3~1", SessionPhase.ENDED, "b1", moved=8, took_s=2.5)
    assert driver.agent.detector.session_time.average_s == 1.5
    ended = driver.decisions(d.SessionEnded)[-1]
    assert (ended.duration_s, ended.moved_after_s, ended.session_s) == (30.0, 2.5, 1.5)


def test_a_draining_edge_starts_no_session_and_reports_that_it_takes_none() -> None:
    driver = EdgeDriver("b1", ews_subscriptions("b1"), capacity_of("b1"), PAPER, now=20.0)
    (reply,) = replies(driver.tell(DrainNotice(draining=True)), DrainReply)
    assert (reply.draining, reply.left) == (True, 19)
    while driver.now < 50:
        sample_b1(driver)
    assert not driver.decisions(d.SessionRequested)
    assert of(driver.done, Announce)[-1].message.state is LoadState.NOT_AVAILABLE
