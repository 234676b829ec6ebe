"""A publisher's way to another head: nothing there before it may, everything else leads back; and its rate limits."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from hypothesis import given, strategies as st

from tidegate._core.config import Limits
from tidegate._core.moves import (
    Answer,
    Answered,
    CancelTimer,
    ChangeHead,
    ClosedByApplication,
    ConnectNewHead,
    DropNewHead,
    HeadLost,
    LeaveHead,
    NewHeadConnected,
    NewHeadLost,
    Ordered,
    PausePublishing,
    PublisherAction,
    PublisherEvent,
    Request,
    ResumePublishing,
    SetTimer,
    TimerFired,
    WindowEmptied,
)
from tidegate._core.publisher_move import PublisherMoveMachine, Throttle
from tidegate._core.publishing import PublishingMachine
from tidegate_protocol.balancing.publishers import (
    PublisherMoveAck,
    PublisherMoveOrder,
    PublisherMoveReport,
    PublisherResume,
    PublisherStage,
    ThrottleOrder,
)
from tidegate_protocol.messages import ControlMessage, Refusal

ME = "p1~1"
MOVE = "h0~1~p1"
Kind = TypeVar("Kind")


def only(actions: list[PublisherAction], kind: type[Kind]) -> Kind:
    found = [action for action in actions if isinstance(action, kind)]
    assert len(found) == 1, actions
    return found[0]


def order(move: str = MOVE, url: str = "amqp://h1", publisher: str = ME) -> PublisherMoveOrder:
    return PublisherMoveOrder(move=move, publisher=publisher, head="h1", url=url, timeout_us=4_000_000)


def resume(moved: bool, move: str = MOVE) -> PublisherResume:
    return PublisherResume(move=move, publisher=ME, moved=moved)


class Mover:
    def __init__(self) -> None:
        self.machine = PublisherMoveMachine(ME)

    def do(self, event: PublisherEvent, now: float = 0.0) -> list[PublisherAction]:
        actions = self.machine.handle(event, now)
        self.machine.validate()
        return actions

    def ask(self, message: ControlMessage) -> tuple[Any, list[PublisherAction]]:
        actions = self.do(Ordered(message, "head"))
        return only(actions, Answer).message, actions

    def pause(self) -> list[PublisherAction]:
        answer, actions = self.ask(order())
        assert answer.stage is PublisherStage.ORDERED
        assert only(actions, ConnectNewHead).url == "amqp://h1"
        assert only(self.do(NewHeadConnected(MOVE)), PausePublishing) == PausePublishing()
        return self.do(WindowEmptied())


def report_of(actions: list[PublisherAction]) -> PublisherMoveReport:
    message = only(actions, Request).message
    assert isinstance(message, PublisherMoveReport)
    return message


def test_a_publisher_moves_when_it_is_told_to_and_says_so() -> None:
    mover = Mover()
    paused = mover.pause()
    assert report_of(paused).stage is PublisherStage.PAUSED
    was_paused = mover.machine.paused
    assert was_paused
    assert report_of(mover.do(TimerFired(only(paused, SetTimer).name))).stage is PublisherStage.PAUSED
    answer, actions = mover.ask(resume(moved=True))
    assert answer.stage is PublisherStage.MOVED
    assert only(actions, ResumePublishing).moved
    assert only(actions, ChangeHead).url == mover.machine.head_url == "amqp://h1"
    assert CancelTimer("move") in actions
    assert not mover.machine.paused
    # The old head hears it; then there is nothing more to say there.
    moved = only(actions, Request)
    assert moved.head_url == ""
    assert mover.do(Answered(only(paused, Request).key, PublisherMoveAck(move=MOVE))) == []
    assert only(mover.do(Answered(moved.key, PublisherMoveAck(move=MOVE))), LeaveHead).url == ""
    assert mover.ask(resume(moved=True))[0].stage is PublisherStage.MOVED
    assert mover.ask(order())[0].stage is PublisherStage.MOVED
    assert mover.ask(order("other"))[0].stage is PublisherStage.MOVED


@pytest.mark.parametrize("step", ["connecting", "pausing", "paused"])
@pytest.mark.parametrize("why", ["time-out", "told", "new head lost", "head lost", "resumed too early"])
def test_whatever_fails_lets_it_go_on_where_it_was(step: str, why: str) -> None:
    mover = Mover()
    if step == "paused":
        mover.pause()
    else:
        mover.ask(order())
    if step == "pausing":
        mover.do(NewHeadConnected(MOVE))
    was_paused = mover.machine.paused
    match why:
        case "time-out":
            actions = mover.do(TimerFired("move"))
        case "told":
            answer, actions = mover.ask(resume(moved=False))
            assert answer.stage is PublisherStage.STAYED
        case "new head lost":
            actions = mover.do(NewHeadLost(MOVE, "refused"))
        case "head lost":
            actions = mover.do(HeadLost())
        case _:
            if step == "paused":
                return
            answer, actions = mover.ask(resume(moved=True))
            assert answer.stage is PublisherStage.STAYED
    if why == "head lost" and step == "paused":
        # Everything is confirmed: the old connection is not needed any more.
        assert actions == []
        assert mover.ask(resume(moved=True))[0].stage is PublisherStage.MOVED
        return
    assert report_of(actions).stage is PublisherStage.STAYED
    assert only(actions, DropNewHead).move == MOVE
    resumed = [action for action in actions if isinstance(action, ResumePublishing)]
    assert resumed == ([ResumePublishing(moved=False)] if was_paused else [])
    assert not mover.machine.paused
    assert mover.machine.head_url == ""
    # A resume that comes after its own time-out changes nothing.
    answer, actions = mover.ask(resume(moved=True))
    assert answer.stage is PublisherStage.STAYED
    assert not any(isinstance(action, ResumePublishing) for action in actions)


def test_orders_that_can_not_be_followed() -> None:
    mover = Mover()
    mover.ask(order())
    assert mover.ask(order())[0].stage is PublisherStage.ORDERED
    assert mover.ask(order("other"))[0].stage is PublisherStage.STAYED
    assert isinstance(mover.ask(order(publisher="p2~1"))[0], Refusal)
    assert mover.ask(resume(moved=True, move="unheard"))[0].stage is PublisherStage.STAYED
    mover.do(TimerFired("move"))
    # The resume came before its order: that starts nothing any more.
    answer, actions = mover.ask(order("unheard"))
    assert answer.stage is PublisherStage.STAYED
    assert not any(isinstance(action, ConnectNewHead) for action in actions)
    assert mover.do(NewHeadConnected(MOVE)) == []
    assert mover.do(WindowEmptied()) == []


def test_closing_in_the_middle() -> None:
    mover = Mover()
    mover.pause()
    actions = mover.do(ClosedByApplication())
    assert only(actions, DropNewHead).move == MOVE
    assert mover.do(TimerFired("move")) == []
    assert isinstance(mover.ask(order())[0], Refusal)


EVENTS = st.sampled_from(
    ["publish", "write", "confirm", "order", "connected", "failed", "lost", "timer", "resume", "stay", "report"]
)


@given(st.lists(EVENTS, max_size=60))
def test_each_head_gets_a_piece_of_every_topic_in_order_and_without_gaps(events: list[str]) -> None:
    """The publishing machine as it is, run with this one: what is written at a head, in which order."""
    mover, window = Mover(), PublishingMachine(ME, Limits(window=500))
    written: list[tuple[str, str]] = []
    unconfirmed: list[int] = []
    tag = 0
    head = ""
    number = 0

    def carry_out(actions: list[PublisherAction]) -> None:
        nonlocal head, tag
        for action in actions:
            if isinstance(action, ResumePublishing) and action.moved:
                assert not unconfirmed
                head = mover.machine.head_url or "new"
                window.opened()
                tag = 0

    for event in events:
        match event:
            case "publish":
                window.admit(window.draft("t.x", b"", None, True), 0)
            case "write" if not mover.machine.paused:
                for publication in window.take(0.0):
                    tag += 1
                    unconfirmed.append(tag)
                    written.append((head, publication.id))
            case "confirm" if unconfirmed:
                window.acked(unconfirmed.pop(0), multiple=False)
            case "order":
                number += 1
                carry_out(mover.do(Ordered(order(f"m{number}", f"amqp://h{number}"), "head")))
            case "connected":
                carry_out(mover.do(NewHeadConnected(f"m{number}")))
            case "failed":
                carry_out(mover.do(NewHeadLost(f"m{number}")))
            case "lost":
                window.opened()
                tag = 0
                unconfirmed.clear()
                carry_out(mover.do(HeadLost()))
            case "timer":
                carry_out(mover.do(TimerFired("move")))
            case "resume" | "stay":
                carry_out(mover.do(Ordered(resume(event == "resume", f"m{number}"), "head")))
        if mover.machine.paused and not unconfirmed:
            carry_out(mover.do(WindowEmptied()))
        window.validate()
    sequences = [int(name.rpartition(":")[2]) for _, name in written]
    firsts = [n for place, n in enumerate(sequences) if n not in sequences[:place]]
    assert firsts == list(range(len(firsts)))
    # What one head got and another one got too would be out of order: only what was never confirmed is repeated, and
    # that stays where it was.
    for n in set(sequences):
        assert len({where for where, name in written if name.endswith(f":{n}")}) == 1


@given(st.floats(0.5, 500), st.lists(st.floats(0, 0.3), min_size=1, max_size=200))
def test_a_throttled_publisher_keeps_to_its_rate(messages_per_s: float, pauses_s: list[float]) -> None:
    throttle = Throttle()
    throttle.limit(messages_per_s, 1e6, 0.0)
    now, sent = 0.0, 0
    for pause_s in pauses_s:
        now += pause_s
        while throttle.take(now) == 0.0:
            sent += 1
        assert sent <= (now + 0.1) * messages_per_s + 1 + 1e-6
    # Whoever waits as long as it is told may send.
    wait_s = throttle.take(now)
    assert 0 < wait_s <= 1 / messages_per_s + 1e-9
    assert throttle.take(now + wait_s + 1e-9) == 0.0


def test_a_throttle_ends_and_concerns_nobody_else() -> None:
    mover = Mover()
    slow = ThrottleOrder(publisher=ME, messages_per_s=1.0, for_us=2_000_000)
    mover.do(Ordered(slow.model_copy(update={"publisher": "p2~1"})), 10.0)
    assert not mover.machine.throttle.active(10.0)
    assert mover.do(Ordered(slow), 10.0) == []
    assert mover.machine.throttle.active(11.0)
    assert mover.machine.throttle.take(11.0) == 0.0
    assert mover.machine.throttle.take(11.0) > 0.0
    assert not mover.machine.throttle.active(12.0)
    assert mover.machine.throttle.take(12.0) == 0.0
