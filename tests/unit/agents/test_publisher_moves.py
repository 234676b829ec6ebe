"""Publishers moved between heads: who, whereto, in which steps, and what happens when a step fails."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.agents_driver import of, sent
from tests.support.parts_driver import PartsDriver, answers, decisions, markers, messages
from tidegate_agents.config import ATTEMPTS_MAX, BalancingConfig
from tidegate_agents.machine import (
    Action,
    ActionFailed,
    CancelTimer,
    FenceArrived,
    MessageReceived,
    PublishMarker,
    Reply,
    Send,
    SendClient,
    SetTimer,
    UnwatchFence,
    WatchFence,
)
from tidegate_agents.metrics import PublisherSample
from tidegate_agents.publisher_moves import RESUME_ATTEMPTS_MAX
from tidegate_protocol.balancing import (
    BrokerLoad,
    FenceSeen,
    HeadLoad,
    HeadLoadRequest,
    PublisherExpect,
    PublisherExpected,
    PublisherMoveAck,
    PublisherMoveOrder,
    PublisherMoveReport,
    PublisherResume,
    PublisherStage,
)
from tidegate_protocol.messages import Capacity, ControlMessage, LoadState, Refusal, RefusalReason
from tidegate_protocol.names import marker_key

SAMPLES = (PublisherSample("remote~1", "far", 4.0, 100.0), PublisherSample("local~1", "near", 7.0, 100.0))


def overloaded(*neighbours: str) -> tuple[PartsDriver, list[Action]]:
    """A head with one publisher whose subscribers are behind `n`, and one whose subscribers are here."""
    driver = PartsDriver(*(neighbours or ("n",)))
    driver.edge("e1")
    driver.context.routes.need("e1", "near")
    driver.context.routes.need("n", "far")
    driver.hello("remote~1", "far")
    driver.hello("local~1", "near")
    actions = driver.sample(*SAMPLES, bytes_in=1_100.0, bytes_out=1_100.0)
    return driver, actions


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
    actions = driver.answer(only(actions, PublisherExpect), PublisherExpected(move=move))
    driver.answer(only(actions, PublisherMoveOrder), answer(move, PublisherStage.ORDERED))
    return driver, move


def test_the_whole_course_of_a_move() -> None:
    driver, actions = overloaded()
    assert decisions(actions, "publisher-session")
    actions = driver.answer(asked(actions), load("n"))
    (plan,) = decisions(actions, "publisher-plan")
    assert plan.reason == "remote~1>n"
    assert plan.numbers["uplink.after"] == pytest.approx(0.7)
    expect = move_of(actions)
    assert (expect.publisher, expect.fence) == ("remote~1", marker_key(expect.move, "h"))
    actions = driver.answer(only(actions, PublisherExpect), PublisherExpected(move=expect.move))
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
    assert decisions(actions, "publisher-moved")
    (ended,) = decisions(actions, "publisher-session-ended")
    assert ended.numbers["moved"] == 1.0
    assert all(d.session == plan.session for d in (ended, plan))
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
    (stayed,) = decisions(driver.answer(resume, answer(move, PublisherStage.STAYED)), "publisher-stayed")
    assert stayed.reason == "n has not confirmed the routes to what is subscribed here"


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
    driver.parts.publisher_gone("remote~1")
    actions = driver.answer(asked(actions), load("n"))
    (plan,) = decisions(actions, "publisher-plan")
    assert not messages(actions, PublisherExpect)
    assert "no improvement" in plan.rejected["local~1 to n"]
    (ended,) = decisions(actions, "publisher-session-ended")
    assert ended.numbers["retry_s"] == driver.context.config.balancing.retry_s


def test_a_neighbour_that_would_leave_low_is_passed_over_and_so_are_busy_and_loaded_ones() -> None:
    driver, actions = overloaded("m", "n", "o", "p")
    driver.answer(asked(actions, "m"), load("m", busy=True))
    driver.answer(asked(actions, "o"), load("o", state=LoadState.HIGH))
    driver.lose(asked(actions, "p"))
    actions = driver.answer(asked(actions, "n"), load("n", value=890.0))
    # All of `far` goes to n as it is, so that nothing changes for its downlink; what nobody here wants leaves.
    (plan,) = decisions(actions, "publisher-plan")
    assert plan.rejected["m"] == "busy with another session"
    assert plan.rejected["o"] == "is HIGH"
    assert plan.rejected["p"] == "its process is not there"
    assert move_of(actions).publisher == "remote~1"
    # A publisher nobody subscribes to would be new to it, and too much.
    driver = PartsDriver("n")
    driver.hello("useless~1", "x")
    actions = driver.sample(PublisherSample("useless~1", "x", 5.0, 100.0), bytes_in=1_100.0)
    actions = driver.answer(asked(actions), load("n", value=600.0))
    (plan,) = decisions(actions, "publisher-plan")
    assert plan.rejected["useless~1 to n"].startswith("n would be OVERLOAD")


def test_a_neighbour_that_does_not_answer_is_not_waited_for() -> None:
    driver, actions = overloaded("m", "n")
    driver.answer(asked(actions, "n"), load("n"))
    session = asked(actions, "m").message
    assert isinstance(session, HeadLoadRequest)
    actions = driver.fire(f"publisher-session {session.session}", 2.0)
    assert move_of(actions).publisher == "remote~1"
    (plan,) = decisions(actions, "publisher-plan")
    assert plan.rejected["m"] == "did not tell its load in time"


def test_failed_sessions_are_retried_ever_later_until_the_overload_is_over() -> None:
    driver, actions = overloaded()
    waits = []
    config = driver.context.config.balancing
    for _ in range(6):
        actions = driver.answer(asked(actions), Refusal(reason=RefusalReason.NOT_READY, message="no"))
        (ended,) = decisions(actions, "publisher-session-ended")
        waits.append(ended.numbers["retry_s"])
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
    (ended,) = decisions(actions, "publisher-session-ended")
    assert ended.numbers["retry_s"] == config.retry_s


def test_a_publisher_that_was_moved_or_came_rests() -> None:
    driver, actions = overloaded()
    driver.parts.moves.rest("remote~1")
    actions = driver.answer(asked(actions), load("n"))
    assert not messages(actions, PublisherExpect)
    (plan,) = decisions(actions, "publisher-plan")
    assert plan.rejected["remote~1"] == "was moved too recently"


def test_a_new_head_that_refuses_or_is_silent_ends_the_move_before_the_publisher_hears_of_it() -> None:
    driver, actions = overloaded()
    actions = driver.answer(asked(actions), load("n"))
    actions = driver.answer(only(actions, PublisherExpect), Refusal(reason=RefusalReason.CONFLICT, message="busy"))
    assert decisions(actions, "publisher-stayed")
    assert not messages(actions, PublisherResume)
    driver, actions = overloaded()
    actions = driver.answer(asked(actions), load("n"))
    move, tried = move_of(actions).move, 1
    while not decisions(actions, "publisher-stayed"):
        actions = driver.fire(f"publisher-move {move}", 2.0)
        tried += len(messages(actions, PublisherExpect))
        assert not messages(actions, PublisherMoveOrder)
    assert tried == ATTEMPTS_MAX


def test_a_publisher_that_does_not_answer_is_told_to_go_on_here() -> None:
    driver, actions = overloaded()
    actions = driver.answer(asked(actions), load("n"))
    move = move_of(actions).move
    actions = driver.answer(only(actions, PublisherExpect), PublisherExpected(move=move))
    orders, resumes = len(messages(actions, PublisherMoveOrder)), 0
    while not decisions(actions, "publisher-stayed"):
        actions = driver.fire(f"publisher-move {move}", 2.0)
        orders += len(messages(actions, PublisherMoveOrder))
        resumes += len(messages(actions, PublisherResume))
        assert not any(resume.moved for resume in messages(actions, PublisherResume))
    assert (orders, resumes) == (ATTEMPTS_MAX, RESUME_ATTEMPTS_MAX)
    assert decisions(actions, "publisher-session-ended")


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
    assert decisions(actions, "publisher-session-ended")
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


# The new head's side


def expecting(driver: PartsDriver, head: str = "n", move: str = "n~1~p1-0") -> list[Action]:
    fence = marker_key(move, head)
    return driver.tell(PublisherExpect(move=move, head=head, publisher="p~1", fence=fence))


def ready() -> PartsDriver:
    driver = PartsDriver("m", "n")
    driver.sample(bytes_out=100.0)
    return driver


def test_the_new_head_watches_for_the_fence_and_tells_when_it_came() -> None:
    driver = ready()
    actions = expecting(driver)
    assert answers(actions, PublisherExpected)
    fence = marker_key("n~1~p1-0", "n")
    assert of(actions, WatchFence) == [WatchFence("n", fence)]
    again = expecting(driver)
    assert answers(again, PublisherExpected)
    assert not of(again, WatchFence)
    assert driver.parts.loads.busy
    request = only(driver.give(FenceArrived(fence)), FenceSeen)
    assert not messages(driver.give(FenceArrived(fence)), FenceSeen)
    actions = driver.answer(request, PublisherMoveAck(move="n~1~p1-0"))
    assert decisions(actions, "publisher-expectation-ended")
    assert driver.parts.loads.busy  # until its load shows
    driver.now += driver.context.config.balancing.stabilizing_min_s
    driver.sample(bytes_out=100.0)
    assert not driver.parts.loads.busy


def test_fence_seen_is_repeated_but_not_without_end() -> None:
    driver = ready()
    expecting(driver)
    count = len(messages(driver.give(FenceArrived(marker_key("n~1~p1-0", "n"))), FenceSeen))
    for _ in range(10):
        count += len(messages(driver.fire("arrival n~1~p1-0", 2.0), FenceSeen))
    assert count == ATTEMPTS_MAX


def test_publishers_are_expected_from_one_side_only_while_low_and_with_a_proper_fence() -> None:
    driver = ready()
    assert answers(expecting(driver, head="stranger"), Refusal)
    wrong = PublisherExpect(move="n~1~p1-0", head="n", publisher="p~1", fence="a.b")
    assert answers(driver.tell(wrong), Refusal)
    assert answers(expecting(driver), PublisherExpected)
    (refusal,) = answers(expecting(driver, head="m", move="m~1~p1-0"), Refusal)
    assert "from n already" in refusal.message
    high = PartsDriver("n")
    high.sample(bytes_out=920.0)
    (refusal,) = answers(expecting(high), Refusal)
    assert "HIGH" in refusal.message


def test_a_fence_that_never_comes_is_not_watched_for_ever() -> None:
    driver = ready()
    (timer,) = [a for a in of(expecting(driver), SetTimer) if a.name.startswith("arrival")]
    actions = driver.fire(timer.name, timer.after_s)
    assert of(actions, UnwatchFence) == [UnwatchFence("n", marker_key("n~1~p1-0", "n"))]
    assert not driver.parts.loads.busy


def test_a_head_that_expects_publishers_does_not_give_any_away() -> None:
    driver = ready()
    expecting(driver)
    assert not messages(driver.sample(*SAMPLES, bytes_out=3_000.0), HeadLoadRequest)


# Both sides and a publisher, with messages lost, doubled and late.


class _Publisher:
    """Publishes at one head at a time; pauses and resumes as told, and counts where it may publish."""

    def __init__(self) -> None:
        self.stage: PublisherStage | None = None
        self.move = ""
        self.resumed_after_fence: list[bool] = []

    def told(self, message: ControlMessage, fence_seen: bool) -> PublisherMoveReport | None:
        if isinstance(message, PublisherMoveOrder):
            if self.move != message.move:
                self.move, self.stage = message.move, PublisherStage.PAUSED
        elif isinstance(message, PublisherResume):
            if self.move == message.move and self.stage is PublisherStage.PAUSED:
                self.stage = PublisherStage.MOVED if message.moved else PublisherStage.STAYED
                self.resumed_after_fence.append(fence_seen or not message.moved)
            elif self.move != message.move:
                return PublisherMoveReport(move=message.move, publisher="remote~1", stage=PublisherStage.STAYED)
        if self.stage is None:
            return None
        return PublisherMoveReport(move=self.move, publisher="remote~1", stage=self.stage)


@pytest.mark.parametrize("seed", range(60))
def test_under_lost_doubled_and_late_messages_the_order_is_kept_and_the_session_ends(seed: int) -> None:
    print(f"seed {seed}")
    random = Random(seed)
    old, actions = overloaded()
    new = PartsDriver("h", head="n")
    new.sample(bytes_out=100.0)
    publisher = _Publisher()
    loss = random.choice([0.0, 0.1, 0.3, 0.6])
    queue: list[tuple[float, int, str, Action]] = []
    timers: dict[tuple[str, str], float] = {}
    drivers = {"h": old, "n": new}
    now, count, fence_seen = old.now, 0, False

    def carry(name: str, actions: list[Action]) -> None:
        nonlocal count
        for action in actions:
            count += 1
            if isinstance(action, SetTimer):
                timers[name, action.name] = now + action.after_s
            elif isinstance(action, CancelTimer):
                timers.pop((name, action.name), None)
            elif isinstance(action, Send | SendClient | PublishMarker):
                copies = 0 if random.random() < loss else 1 + (random.random() < loss / 2)
                if isinstance(action, PublishMarker):
                    copies = 1  # the data plane loses nothing
                delay_s = 3.0 if loss else 1.0
                queue.extend((now + random.uniform(0.0, delay_s), count, name, action) for _ in range(copies))

    def deliver(name: str, action: Action) -> None:
        nonlocal fence_seen
        if isinstance(action, PublishMarker):
            if ("watch", action.key) in watched:
                fence_seen = True
                carry("n", new.give(FenceArrived(action.key)))
            return
        assert isinstance(action, Send | SendClient)
        if isinstance(action, SendClient):
            reply: ControlMessage | None = publisher.told(action.message, fence_seen)
        else:
            if action.to not in drivers:
                return
            result = drivers[action.to].tell(action.message) if takes(action) else []
            watched.update(("watch", a.key) for a in result if isinstance(a, WatchFence))
            carry(action.to, result)
            reply = next((a.message for a in result if isinstance(a, Reply)), None)
        if reply is not None and action.request_id is not None and random.random() >= loss:
            carry(name, drivers[name].answer(action, reply))

    def takes(action: Send) -> bool:
        return isinstance(action.message, HeadLoadRequest | PublisherExpect | FenceSeen)

    watched: set[tuple[str, str]] = set()
    carry("h", actions)
    for _ in range(400):
        now += 0.5
        old.now = new.now = now
        due = sorted((item for item in queue if item[0] <= now), key=lambda item: item[:2])
        queue[:] = [item for item in queue if item[0] > now]
        for _, _, name, action in due:
            deliver(name, action)
        for (name, timer), at in sorted(timers.items()):
            if at <= now and timer.split()[0] in {"publisher-move", "publisher-session", "arrival"}:
                del timers[name, timer]
                carry(name, drivers[name].fire(timer))
        if publisher.stage is not None and random.random() < 0.2 and random.random() >= loss:
            stage = PublisherMoveReport(move=publisher.move, publisher="remote~1", stage=publisher.stage)
            carry("h", old.give(MessageReceived(stage)))
    assert all(publisher.resumed_after_fence)
    assert old.parts.moves._session is None
    assert not new.parts.arrivals._arrivals
    if publisher.stage is PublisherStage.MOVED:
        assert fence_seen
    if loss == 0.0:
        assert publisher.stage is PublisherStage.MOVED
