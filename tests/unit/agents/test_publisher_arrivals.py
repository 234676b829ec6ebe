"""Publishers on their way from an overloaded neighbour: the new head's side."""

from __future__ import annotations

from tests.support.agents_driver import of, sent
from tests.support.overloaded_head import SAMPLES
from tests.support.parts_driver import PartsDriver, answers, decisions, messages
from tidegate_agents.config import ATTEMPTS_MAX
from tidegate_agents.machine import (
    Action,
    FenceArrived,
    SetTimer,
    UnwatchFence,
    WatchFence,
)
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.publishers import (
    FenceSeen,
    HeadLoadRequest,
    PublisherExpect,
    PublisherExpectReply,
    PublisherMoveAck,
)
from tidegate_protocol.messages import Refusal
from tidegate_protocol.names import marker_key


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
    assert answers(actions, PublisherExpectReply)
    fence = marker_key("n~1~p1-0", "n")
    assert of(actions, WatchFence) == [WatchFence("n", fence)]
    again = expecting(driver)
    assert answers(again, PublisherExpectReply)
    assert not of(again, WatchFence)
    assert driver.parts.loads.busy
    (request,) = sent(driver.give(FenceArrived(fence)), FenceSeen)
    assert not messages(driver.give(FenceArrived(fence)), FenceSeen)
    actions = driver.answer(request, PublisherMoveAck(move="n~1~p1-0"))
    assert decisions(actions, d.ExpectationEnded)
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
    assert answers(expecting(driver), PublisherExpectReply)
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
