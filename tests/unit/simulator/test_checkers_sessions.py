"""Each checker of sessions, moves and promises finds what it is for, and lets pass what it says it lets pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.fake_world import ADDRESS, FakeWorld, scenario, subscription
from tidegate_agents.config import BalancingConfig
from tidegate_agents.load.metrics import BrokerSample, PublisherSample, Role
from tidegate_agents.machine import (
    Action,
    Announce,
    HeadSampled,
    MessageReceived,
    Reply,
    ReplyReceived,
    Send,
    SendClient,
)
from tidegate_protocol.balancing.loads import BrokerLoad, PieLocal
from tidegate_protocol.balancing.migrations import MigrateOrder, MigrationReport, MigrationStage
from tidegate_protocol.balancing.sessions import (
    BalanceCandidates,
    BalancePlan,
    BalanceRequest,
    Candidate,
    LoadReply,
    PlannedMove,
    SessionNotice,
    SessionPhase,
)
from tidegate_protocol.decisions import (
    AcceptanceEnded,
    Cause,
    Decision,
    DrainOrder,
    DrainOrdered,
    MigrationEnded,
    MoveOutcome,
    PlanOutcome,
)
from tidegate_protocol.messages import OutputPrepare, Refusal
from tidegate_protocol.parts import Capacity, LoadState, Metric, RefusalReason
from tidegate_simulator.checkers.promises import PredictionsKept, PromisesCounted
from tidegate_simulator.checkers.sessions import NoOscillation, SessionsEnd
from tidegate_simulator.scenario import Fault, FaultKind

SESSION = "e0~1~1"
CONFIG = BalancingConfig(session_timeout_s=20.0, stabilizing_max_s=5.0, cooldown_s=30.0)


# Sessions end


def sessions(*faults: Fault) -> FakeWorld:
    return FakeWorld(scenario(*faults, balancing=CONFIG), SessionsEnd())


REQUEST = BalanceRequest(session=SESSION, edge="e0", metric=Metric.UPLINK, cause=Cause(Metric.UPLINK, 1.1, 0.95))


def begin(run: FakeWorld, now: float, *actions: Action) -> None:
    run.step("h0", now, *actions, event=MessageReceived(REQUEST, ADDRESS))


def end(run: FakeWorld, now: float) -> None:
    run.step("h0", now, Send("e0", SessionNotice(session=SESSION, phase=SessionPhase.ENDED, source="e0")))


def pie(run: FakeWorld, now: float, *, busy: bool) -> None:
    report = PieLocal(broker="e0", cluster="h0", state=LoadState.LOW, busy=busy, period_s=1.0)
    run.step("e0", now, Announce(report))


def test_a_session_that_ends() -> None:
    run = sessions()
    begin(run, 10.0)
    end(run, 29.0)
    assert run.end() == []


@pytest.mark.parametrize("ended_s", [None, 40.0])
def test_a_session_that_ends_too_late_or_never(ended_s: float | None) -> None:
    run = sessions()
    begin(run, 10.0)
    if ended_s is not None:
        end(run, ended_s)
    assert run.end() == ["session-without-end"]


def test_a_session_that_had_no_time_to_end() -> None:
    run = sessions()
    begin(run, 149.0)
    assert run.end() == []


def test_a_session_that_was_refused() -> None:
    run = sessions()
    begin(run, 10.0, Reply(ADDRESS, Refusal(reason=RefusalReason.CONFLICT, message="not now")))
    assert run.end() == []


def test_a_head_that_crashed_has_forgotten_it() -> None:
    run = sessions(Fault(15.0, FaultKind.CRASH, "h0", 16.0))
    begin(run, 10.0)
    assert run.end() == []


def test_a_head_that_was_frozen_gets_the_time_back() -> None:
    freeze = Fault(12.0, FaultKind.FREEZE, "h0", 32.0)
    run = sessions(freeze)
    begin(run, 10.0)
    end(run, 45.0)
    assert run.end() == []


def test_a_broker_that_is_busy_for_ever() -> None:
    run = sessions()
    for now in range(10, 60):
        pie(run, float(now), busy=True)
    assert run.end()[0] == "session-without-end"


def test_a_broker_that_is_busy_with_one_session_after_another() -> None:
    run = sessions()
    for now in range(10, 60):
        pie(run, float(now), busy=True)
        if now % 10 == 0:
            run.step("e0", float(now), Send("h0", REQUEST))
    pie(run, 60.0, busy=False)
    assert run.end() == []


def test_a_broker_that_is_busy_at_rest() -> None:
    run = sessions()
    pie(run, 148.0, busy=True)
    assert run.end() == ["session-without-end"]


# Oscillation


def moves(*faults: Fault) -> FakeWorld:
    return FakeWorld(scenario(*faults, edges=3, balancing=CONFIG), NoOscillation())


def move(run: FakeWorld, number: int, edge_from: str, edge: str, now: float, head: str = "h0") -> None:
    order = MigrateOrder(
        migration=f"{head}~1~m{number}",
        subscriber="s",
        pattern="t",
        edge_from=edge_from,
        number_from=number,
        edge=edge,
        number=number + 1,
        url=f"amqp://{edge}",
        queue="q",
        head=head,
        heads=(head,),
        timeout_us=1_000_000,
    )
    report = MigrationReport(
        migration=order.migration,
        subscriber="s",
        stage=MigrationStage.MOVED,
        pattern="t",
        edge=edge,
        number=number + 1,
        other_edge=edge_from,
        other_number=number,
    )
    for _ in range(2):  # everything may be repeated
        run.step(head, now, SendClient("s", order, "1"))
        run.step(head, now + 1.0, event=MessageReceived(report, ADDRESS))
        run.step(head, now + 1.0, event=ReplyReceived("1", report))


def test_a_second_move_after_the_cool_down() -> None:
    run = moves()
    move(run, 1, "e0", "e1", 10.0)
    move(run, 2, "e1", "e0", 42.0)
    assert run.end() == []


@pytest.mark.parametrize("target", ["e0", "e2"])
def test_a_second_move_within_the_cool_down(target: str) -> None:
    run = moves()
    move(run, 1, "e0", "e1", 10.0)
    move(run, 2, "e1", target, 25.0)
    assert run.end() == ["oscillation"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(15.0, FaultKind.CRASH, "h0", 16.0),
        Fault(5.0, FaultKind.CRASH, "h0", 20.0),
        Fault(20.0, FaultKind.CLOCK, "h0", amount=20.0),
    ],
    ids=lambda fault: str(fault.kind),
)
def test_a_second_move_that_nobody_is_to_blame_for(fault: Fault) -> None:
    run = moves(fault)
    move(run, 1, "e0", "e1", 10.0)
    move(run, 2, "e1", "e0", 25.0)
    assert run.end() == []


@pytest.mark.parametrize(("undrained", "found"), [(False, []), (True, ["oscillation"])])
def test_a_second_move_off_an_edge_that_is_drained_until_its_head_knows_better(
    undrained: bool, found: list[str]
) -> None:
    run = moves()
    move(run, 1, "e0", "e1", 10.0)
    run.decide("h0", DrainOrdered("e1", DrainOrder.DRAIN), 20.0)
    if undrained:
        run.decide("h0", DrainOrdered("e1", DrainOrder.UNDRAIN), 24.0)
    move(run, 2, "e1", "e0", 25.0)
    assert run.end() == found


@pytest.mark.parametrize(
    "fault",
    [
        Fault(15.0, FaultKind.CRASH, "e1", 16.0),
        Fault(20.0, FaultKind.DRAIN, "e0", 60.0),
        Fault(20.0, FaultKind.CLOCK, "h0", amount=-20.0),
    ],
    ids=lambda fault: str(fault.kind),
)
def test_a_second_move_with_a_fault_that_has_nothing_to_do_with_it(fault: Fault) -> None:
    run = moves(fault)
    move(run, 1, "e0", "e1", 10.0)
    move(run, 2, "e1", "e0", 25.0)
    assert run.end() == ["oscillation"]


# Predictions and promises


def load(broker: str, uplink_share: float) -> BrokerLoad:
    return BrokerLoad(
        broker=broker,
        state=LoadState.LOW,
        bytes_in_per_s=uplink_share * 500.0,
        bytes_offered_per_s=uplink_share * 1_000.0,
        messages_in_per_s=uplink_share * 5.0,
        capacity=Capacity(uplink_bytes_per_s=1_000.0, downlink_bytes_per_s=1_000.0, matching_per_s=10.0),
    )


def offer(run: FakeWorld, share: float, session: str = SESSION) -> None:
    candidate = Candidate(cluster="h0", head="h0", load=load("e1", share))
    run.step("h0", 10.0, Reply(ADDRESS, BalanceCandidates(session=session, candidates=(candidate,))))


def planned(target: str, out: float = 0.0, coming_in: float = 0.0, messages: float = 0.0) -> PlannedMove:
    return PlannedMove(
        subscriber="s",
        number=0,
        target=target,
        bytes_out_per_s=out,
        bytes_in_per_s=coming_in,
        messages_in_per_s=messages,
    )


@pytest.mark.parametrize(
    ("two_moves", "found"),
    [
        ((planned("e1", 200.0), planned("e1", 150.0)), []),
        ((planned("e1", 200.0), planned("e1", 250.0)), ["predicted-overload"]),
        ((planned("e1", coming_in=300.0), planned("e1", coming_in=400.0)), ["predicted-overload"]),
        ((planned("e1", messages=3.0), planned("e1", messages=4.0)), ["predicted-overload"]),
        ((planned("e1", 200.0), planned("e2", 1.0)), ["predicted-overload"]),
        ((planned("e0", 1.0), planned("e1", 450.0)), ["predicted-overload"] * 2),
        ((), []),
    ],
)
def test_a_plan_is_held_against_what_was_offered(two_moves: tuple[PlannedMove, ...], found: list[str]) -> None:
    run = FakeWorld(scenario(edges=3), PredictionsKept())
    offer(run, 0.5)
    for _ in range(2):
        run.step(
            "e0",
            11.0,
            Send("h0", BalancePlan(session=SESSION, edge="e0", moves=two_moves, outcome=PlanOutcome.RELIEVED)),
        )
    assert run.end() == found


def promise(run: FakeWorld) -> None:
    """A migration of some session to e1 is under way."""
    plan = BalancePlan(session="e2~1~1", edge="e2", moves=(planned("e1", 300.0),), outcome=PlanOutcome.RELIEVED)
    prepare = OutputPrepare(subscription=subscription(), marker="tidegate.marker.m.*")
    run.step("h0", 5.0, Send("e1", prepare), event=MessageReceived(plan, ADDRESS))


def promises(*faults: Fault) -> tuple[FakeWorld, PromisesCounted]:
    checker = PromisesCounted()
    return FakeWorld(scenario(*faults, edges=3), checker), checker


def tell(run: FakeWorld, share: float) -> None:
    run.step("h0", 9.0, event=ReplyReceived("1", LoadReply(session=SESSION, load=load("e1", share))))


@pytest.mark.parametrize(("share", "found"), [(0.3, ["promise-ignored"]), (0.6, []), (0.7, [])])
def test_what_was_promised_is_there(share: float, found: list[str]) -> None:
    run, _ = promises()
    promise(run)
    tell(run, 0.3)
    offer(run, share)
    assert run.end() == found


def test_a_candidate_without_promises_hides_no_other() -> None:
    run, _ = promises()
    promise(run)
    tell(run, 0.3)
    both = tuple(Candidate(cluster="h0", head="h0", load=load(name, 0.3)) for name in ("e0", "e1"))
    run.step("h0", 10.0, Reply(ADDRESS, BalanceCandidates(session=SESSION, candidates=both)))
    assert run.end() == ["promise-ignored"]


def test_whoever_asks_again_after_its_plan_gets_the_answer_of_before() -> None:
    """A doubled question, answered when the session's own moves were under way, was taken for a promise ignored."""
    run, _ = promises()
    tell(run, 0.3)
    offer(run, 0.3)
    plan = BalancePlan(session=SESSION, edge="e0", moves=(planned("e1", 300.0),), outcome=PlanOutcome.RELIEVED)
    prepare = OutputPrepare(subscription=subscription(), marker="tidegate.marker.m.*")
    run.step("h0", 11.0, Send("e1", prepare), event=MessageReceived(plan, ADDRESS))
    offer(run, 0.3)
    assert run.end() == []


@pytest.mark.parametrize(("share", "found"), [(0.3, ["promise-ignored"]), (0.31, [])])
def test_what_leaves_an_edge_that_is_drained_is_promised_too(share: float, found: list[str]) -> None:
    run, checker = promises()
    publisher = PublisherSample("p~1", "t", 2.0, 100.0)
    checker.head_sampled("h0", HeadSampled(BrokerSample("h0", Role.HEAD), (publisher,)), 4.0)
    run.step("h0", 5.0, Send("e1", OutputPrepare(subscription=subscription(), marker="tidegate.marker.m.*")))
    tell(run, 0.3)
    offer(run, share)
    assert run.end() == found


def test_but_nothing_is_expected_of_a_publisher_that_has_stopped() -> None:
    plan = scenario()
    stopped = replace(plan.publishers[0], stops_s=4.5)
    checker = PromisesCounted()
    run = FakeWorld(replace(plan, publishers=(stopped,)), checker)
    publisher = PublisherSample("p~1", "t", 2.0, 100.0)
    checker.head_sampled("h0", HeadSampled(BrokerSample("h0", Role.HEAD), (publisher,)), 4.0)
    run.step("h0", 5.0, Send("e1", OutputPrepare(subscription=subscription(), marker="tidegate.marker.m.*")))
    tell(run, 0.3)
    offer(run, 0.3)
    assert run.end() == []


@pytest.mark.parametrize("outcome", [MoveOutcome.MOVED, MoveOutcome.TIME_OUT])
@pytest.mark.parametrize(("kind", "found"), [("migration", []), ("acceptance", []), ("other", ["promise-ignored"])])
def test_a_promise_ends_with_its_migration(kind: str, outcome: MoveOutcome, found: list[str]) -> None:
    run, checker = promises()
    promise(run)
    decisions: dict[str, Decision] = {
        "migration": MigrationEnded("h0~1~m1", "s", "t", "e2", "e1", outcome),
        "acceptance": AcceptanceEnded("s", "t", "h1", "e1", outcome),
        "other": MigrationEnded("h0~1~m1", "s", "t", "e1", "e2", outcome),
    }
    checker.decided("h0", decisions[kind], 8.0)
    tell(run, 0.3)
    offer(run, 0.3)
    assert run.end() == found


def test_a_head_that_crashed_has_forgotten_its_promises() -> None:
    run, _ = promises(Fault(6.0, FaultKind.CRASH, "h0", 7.0))
    promise(run)
    tell(run, 0.3)
    offer(run, 0.3)
    assert run.end() == []
