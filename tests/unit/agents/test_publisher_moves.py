"""Publishers moved between heads: who, whereto, in which steps, and what happens when a step fails."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import sent
from tests.support.decisions import effect, rejections
from tests.support.overloaded_head import SAMPLES, overloaded
from tests.support.parts_driver import PartsDriver, answers, decisions, markers, messages
from tidegate_agents.config import ATTEMPTS_MAX, BalancingConfig
from tidegate_agents.head.publishers.leaving import RESUME_ATTEMPTS_MAX
from tidegate_agents.load.metrics import PublisherSample
from tidegate_agents.machine import (
    Action,
    ActionFailed,
    PublishMarker,
    Send,
    SendClient,
)
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_protocol.balancing.publishers import (
    FenceSeen,
    HeadLoad,
    HeadLoadRequest,
    PublisherExpect,
    PublisherExpectReply,
    PublisherMoveAck,
    PublisherMoveOrder,
    PublisherMoveReport,
    PublisherResume,
    PublisherStage,
)
from tidegate_protocol.messages import Capacity, ControlMessage, LoadState, Refusal, RefusalReason
from tidegate_protocol.names import marker_key


def load(broker: str, value: float = 100.0, busy: bool = False, state: LoadState = LoadState.LOW) -> HeadLoad:
    capacity = Capacity(uplink_bytes_per_s=1_000.0, downlink_bytes_per_s=1_000.0)
    part = BrokerLoad(
        broker=broker,
        state=state,
        busy=busy,
        bytes_in_per_s=value,
        bytes_offered_per_s=value,
        messages_in_per_s=1.0,
        capacity=capacity,
    )
    return HeadLoad(session="s", load=part, publisher_url=f"amqp://{broker}:1")


def asked(actions: list[Action], to: str = "n") -> Send:
    (request,) = sent(actions, HeadLoadRequest, to)
    return request


def only(actions: list[Action], kind: type[ControlMessage]) -> Send | SendClient:
    (found,) = [a for a in actions if isinstance(a, Send | SendClient) and isinstance(a.message, kind)]
    return found


def move_of(actions: list[Action]) -> PublisherExpect:
    (message,) = messages(actions, PublisherExpect)
    return message


def reported(driver: PartsDriver, move: str, stage: PublisherStage, publisher: str = "remote~1") -> list[Action]:
    return driver.tell(PublisherMoveReport(move=move, publisher=publisher, stage=stage))


def answer(move: str, stage: PublisherStage, publisher: str = "remote~1") -> PublisherMoveReport:
    return PublisherMoveReport(move=move, publisher=publisher, stage=stage)


def ordered() -> tuple[PartsDriver, str]:
    """Up to the order having been understood."""
    driver, actions = overloaded()
    actions = driver.answer(asked(actions), load("n"))
    move = move_of(actions).move
    actions = driver.answer(only(actions, PublisherExpect), PublisherExpectReply(move=move))
    driver.answer(only(actions, PublisherMoveOrder), answer(move, PublisherStage.ORDERED))
    return driver, move


def test_the_whole_course_of_a_move() -> None:
    driver, actions = overloaded()
    assert decisions(actions, d.PublisherSession)
    actions = driver.answer(asked(actions), load("n"))
    (plan,) = decisions(actions, d.PublisherPlan)
    assert plan.moves == (d.PublisherMove("remote~1", "n"),)
    assert effect(plan, "h").after == pytest.approx(0.7)
    expect = move_of(actions)
    assert (expect.publisher, expect.fence) == ("remote~1", marker_key(expect.move, "h"))
    actions = driver.answer(only(actions, PublisherExpect), PublisherExpectReply(move=expect.move))
    order = only(actions, PublisherMoveOrder)
    assert isinstance(order.message, PublisherMoveOrder)
    assert (order.message.head, order.message.url) == ("n", "amqp://n:1")
    driver.answer(order, answer(expect.move, PublisherStage.ORDERED))
    actions = reported(driver, expect.move, PublisherStage.PAUSED)
    assert answers(actions, PublisherMoveAck)
    assert markers(actions) == [PublishMarker(expect.fence, ("n",))]
    assert not messages(actions, PublisherResume)
    actions = driver.tell(FenceSeen(move=expect.move, head="n"))
    assert answers(actions, PublisherMoveAck)
    resume = only(actions, PublisherResume)
    assert isinstance(resume.message, PublisherResume)
    assert resume.message.moved
    actions = driver.answer(resume, answer(expect.move, PublisherStage.MOVED))
    assert decisions(actions, d.PublisherMoveEnded)[0].moved
    (ended,) = decisions(actions, d.PublisherSessionEnded)
    assert ended.moved == 1
    assert ended.session == plan.session
    assert "remote~1" not in driver.context.registry.publishers


def fenced_without_routes() -> tuple[PartsDriver, str, list[Action]]:
    """Something was subscribed here that `n` has not confirmed when the fence comes there."""
    driver, move = ordered()
    driver.silent.add("n")
    driver.context.routes.need("e1", "fresh")
    driver.do()
    reported(driver, move, PublisherStage.PAUSED)
    return driver, move, driver.tell(FenceSeen(move=move, head="n"))


def test_nobody_goes_on_at_a_head_without_the_routes_of_what_is_subscribed_here() -> None:
    driver, move, actions = fenced_without_routes()
    assert not messages(actions, PublisherResume)
    actions = driver.fire(f"wait publisher-routes {move}", driver.context.config.routes_wait_s)
    resume = only(actions, PublisherResume)
    assert isinstance(resume.message, PublisherResume)
    assert not resume.message.moved
    (stayed,) = decisions(driver.answer(resume, answer(move, PublisherStage.STAYED)), d.PublisherMoveEnded)
    assert (stayed.outcome, stayed.who) == (d.PublisherOutcome.NO_ROUTE, "n")


def test_it_goes_on_there_as_soon_as_the_routes_are_confirmed() -> None:
    driver, _, actions = fenced_without_routes()
    assert not messages(actions, PublisherResume)
    driver.silent.clear()
    driver.neighbours.timed_out("n")
    (resume,) = messages(driver.do(), PublisherResume)
    assert resume.moved


def test_nothing_is_asked_below_the_overload_or_by_the_policy_none() -> None:
    driver = PartsDriver("n")
    assert not messages(driver.sample(bytes_out=940.0), HeadLoadRequest)
    idle = PartsDriver("n", balancing=BalancingConfig(policy="none"))
    assert not messages(idle.sample(bytes_out=2_000.0), HeadLoadRequest)


def test_one_session_at_a_time_and_the_next_one_only_when_the_load_shows_the_move() -> None:
    driver, move = ordered()
    assert not messages(driver.sample(*SAMPLES, bytes_out=1_100.0), HeadLoadRequest)
    reported(driver, move, PublisherStage.PAUSED)
    driver.tell(FenceSeen(move=move, head="n"))
    reported(driver, move, PublisherStage.MOVED)
    # The average lags behind: still overloaded, but that is what has just been dealt with.
    for _ in range(3):
        assert not messages(driver.sample(SAMPLES[1], bytes_in=1_000.0, bytes_out=1_000.0), HeadLoadRequest)
    driver.now += driver.context.config.balancing.stabilizing_max_s
    assert messages(driver.sample(SAMPLES[1], bytes_in=1_000.0, bytes_out=1_000.0), HeadLoadRequest)


def test_a_publisher_with_local_subscribers_would_be_no_improvement() -> None:
    driver, actions = overloaded()
    driver.parts.publishers.gone("remote~1")
    actions = driver.answer(asked(actions), load("n"))
    (plan,) = decisions(actions, d.PublisherPlan)
    assert not messages(actions, PublisherExpect)
    assert rejections(plan)["local~1 to n"] is d.Rejection.NO_RELIEF
    (ended,) = decisions(actions, d.PublisherSessionEnded)
    assert ended.retry_after_s == driver.context.config.balancing.retry_s


def test_a_neighbour_that_would_leave_low_is_passed_over_and_so_are_busy_and_loaded_ones() -> None:
    driver, actions = overloaded("m", "n", "o", "p")
    driver.answer(asked(actions, "m"), load("m", busy=True))
    driver.answer(asked(actions, "o"), load("o", state=LoadState.HIGH))
    driver.lose(asked(actions, "p"))
    actions = driver.answer(asked(actions, "n"), load("n", value=890.0))
    # All of `far` goes to n as it is, so that nothing changes for its downlink; what nobody here wants leaves.
    (plan,) = decisions(actions, d.PublisherPlan)
    assert rejections(plan)["m"] is d.Rejection.BUSY
    assert rejections(plan)["o"] is d.Rejection.STATE
    assert rejections(plan)["p"] is d.Rejection.PROCESS_ABSENT
    assert move_of(actions).publisher == "remote~1"
    # A publisher nobody subscribes to would be new to it, and too much.
    driver = PartsDriver("n")
    driver.hello("useless~1", "x")
    actions = driver.sample(PublisherSample("useless~1", "x", 5.0, 100.0), bytes_in=1_100.0)
    actions = driver.answer(asked(actions), load("n", value=600.0))
    (plan,) = decisions(actions, d.PublisherPlan)
    assert rejections(plan)["useless~1 to n"] is d.Rejection.WOULD_OVERLOAD


def test_a_neighbour_that_does_not_answer_is_not_waited_for() -> None:
    driver, actions = overloaded("m", "n")
    driver.answer(asked(actions, "n"), load("n"))
    session = asked(actions, "m").message
    assert isinstance(session, HeadLoadRequest)
    actions = driver.fire(f"publisher-session {session.session}", 2.0)
    assert move_of(actions).publisher == "remote~1"
    (plan,) = decisions(actions, d.PublisherPlan)
    assert rejections(plan)["m"] is d.Rejection.NO_ANSWER


def test_failed_sessions_are_retried_ever_later_until_the_overload_is_over() -> None:
    driver, actions = overloaded()
    waits = []
    config = driver.context.config.balancing
    for _ in range(6):
        actions = driver.answer(asked(actions), Refusal(reason=RefusalReason.NOT_READY, message="no"))
        (ended,) = decisions(actions, d.PublisherSessionEnded)
        waits.append(ended.retry_after_s)
        assert not messages(driver.sample(*SAMPLES, bytes_in=1_100.0, bytes_out=1_100.0), HeadLoadRequest)
        actions = driver.sample(*SAMPLES, bytes_in=1_100.0, bytes_out=1_100.0, after_s=waits[-1])
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    actions = driver.answer(asked(actions), Refusal(reason=RefusalReason.NOT_READY, message="no"))
    for _ in range(5):
        driver.sample(bytes_out=100.0)
    for _ in range(5):
        actions = driver.sample(*SAMPLES, bytes_in=1_200.0, bytes_out=1_200.0, after_s=0.1)
        if messages(actions, HeadLoadRequest):
            break
    actions = driver.answer(asked(actions), Refusal(reason=RefusalReason.NOT_READY, message="no"))
    (ended,) = decisions(actions, d.PublisherSessionEnded)
    assert ended.retry_after_s == config.retry_s


def test_a_publisher_that_was_moved_or_came_rests() -> None:
    driver, actions = overloaded()
    driver.parts.moves.rest("remote~1")
    actions = driver.answer(asked(actions), load("n"))
    assert not messages(actions, PublisherExpect)
    (plan,) = decisions(actions, d.PublisherPlan)
    assert rejections(plan)["remote~1"] is d.Rejection.MOVED_RECENTLY


def test_a_new_head_that_refuses_or_is_silent_ends_the_move_before_the_publisher_hears_of_it() -> None:
    driver, actions = overloaded()
    actions = driver.answer(asked(actions), load("n"))
    actions = driver.answer(only(actions, PublisherExpect), Refusal(reason=RefusalReason.CONFLICT, message="busy"))
    assert decisions(actions, d.PublisherMoveEnded)
    assert not messages(actions, PublisherResume)
    driver, actions = overloaded()
    actions = driver.answer(asked(actions), load("n"))
    move, tried = move_of(actions).move, 1
    while not decisions(actions, d.PublisherMoveEnded):
        actions = driver.fire(f"publisher-move {move}", 2.0)
        tried += len(messages(actions, PublisherExpect))
        assert not messages(actions, PublisherMoveOrder)
    assert tried == ATTEMPTS_MAX


def test_a_publisher_that_does_not_answer_is_told_to_go_on_here() -> None:
    driver, actions = overloaded()
    actions = driver.answer(asked(actions), load("n"))
    move = move_of(actions).move
    actions = driver.answer(only(actions, PublisherExpect), PublisherExpectReply(move=move))
    orders, resumes = len(messages(actions, PublisherMoveOrder)), 0
    while not decisions(actions, d.PublisherMoveEnded):
        actions = driver.fire(f"publisher-move {move}", 2.0)
        orders += len(messages(actions, PublisherMoveOrder))
        resumes += len(messages(actions, PublisherResume))
        assert not any(resume.moved for resume in messages(actions, PublisherResume))
    assert (orders, resumes) == (ATTEMPTS_MAX, RESUME_ATTEMPTS_MAX)
    assert decisions(actions, d.PublisherSessionEnded)


@pytest.mark.parametrize("paused", [False, True])
def test_a_step_that_takes_too_long_ends_with_the_publisher_going_on_here(paused: bool) -> None:
    driver, move = ordered()
    if paused:
        reported(driver, move, PublisherStage.PAUSED)
    actions = driver.fire(f"publisher-move {move}", 20.0)
    (resume,) = messages(actions, PublisherResume)
    assert not resume.moved
    # The fence comes late: what it was told stays as it is.
    actions = driver.tell(FenceSeen(move=move, head="n"))
    assert answers(actions, PublisherMoveAck)
    assert not messages(actions, PublisherResume)
    actions = reported(driver, move, PublisherStage.STAYED)
    assert decisions(actions, d.PublisherSessionEnded)
    assert "remote~1" in driver.context.registry.publishers


def test_a_fence_that_can_not_be_published_ends_with_the_publisher_going_on_here() -> None:
    driver, move = ordered()
    (fence,) = markers(reported(driver, move, PublisherStage.PAUSED))
    (resume,) = messages(driver.give(ActionFailed(fence, "refused")), PublisherResume)
    assert not resume.moved


def test_a_paused_publisher_that_repeats_itself_is_told_again_but_not_without_end() -> None:
    driver, move = ordered()
    reported(driver, move, PublisherStage.PAUSED)
    assert not markers(reported(driver, move, PublisherStage.PAUSED))
    driver.tell(FenceSeen(move=move, head="n"))
    resumes = [m for _ in range(20) for m in messages(reported(driver, move, PublisherStage.PAUSED), PublisherResume)]
    assert len(resumes) == RESUME_ATTEMPTS_MAX - 1
    assert all(resume.moved for resume in resumes)


def test_reports_about_unknown_moves_are_acknowledged_and_whoever_is_paused_goes_on_here() -> None:
    driver = PartsDriver("n")
    actions = reported(driver, "h~6~p1-0", PublisherStage.PAUSED)
    assert answers(actions, PublisherMoveAck)
    assert [resume.moved for resume in messages(actions, PublisherResume)] == [False]
    actions = reported(driver, "h~6~p1-0", PublisherStage.MOVED)
    assert answers(actions, PublisherMoveAck)
    assert not messages(actions, PublisherResume)
    assert answers(driver.tell(FenceSeen(move="h~6~p1-0", head="n")), PublisherMoveAck)


def test_a_head_that_stops_lets_publishers_go_on_here() -> None:
    driver, move = ordered()
    reported(driver, move, PublisherStage.PAUSED)
    for stop in driver.dispatch.stops:
        stop()
    actions = driver.do()
    assert [resume.moved for resume in messages(actions, PublisherResume)] == [False]
    assert not driver.parts.moves.busy
