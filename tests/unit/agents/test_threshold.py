"""Allowed waits and thresholds: the papers' numbers, and the burst of seed 000 §V worked out second by second."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import ews
from tests.support.formulas import Rate, allowed_wait_s, edge_time_s, follow
from tidegate_agents.load.threshold import SessionTime, paper_depth, projected_depth
from tidegate_protocol.messages import Capacity

END_S = 60


def wait_of(topic: int, edge_s: float = 0.0) -> float:
    """With the delays of seed 000 §V."""
    return allowed_wait_s(ews.TOPICS[topic].deadline_s, (), ews.BROKER_TO_BROKER_S, ews.TO_SUBSCRIBER_S, edge_s)


def test_topic_1_may_wait_a_second_and_a_half() -> None:
    assert wait_of(1) == pytest.approx(1.5)


@pytest.mark.parametrize("formula", [paper_depth, projected_depth])
def test_a_deadline_that_no_broker_can_meet_has_no_threshold(formula: Callable[..., float | None]) -> None:
    assert formula(allowed_wait_s(0.25, (), 0.1, 0.2), 100, 100, 0.5) is None


@pytest.mark.parametrize("depth", [0, 40, 42.9, 43.1, 100])
def test_equation_2_is_equation_1_solved_for_the_depth(depth: float) -> None:
    t_e, t_lb, arriving, draining = 0.8, 0.5, 200.0, 200 / 1.07
    threshold = paper_depth(t_e, arriving, draining, t_lb)
    assert threshold is not None
    equation_1 = (depth + (arriving - draining)) / draining <= t_e - t_lb
    assert (depth <= threshold) is equation_1


def test_the_paper_fires_on_an_empty_queue_where_sessions_are_long_and_the_projection_does_not() -> None:
    paper = paper_depth(0.8, 100, 100, session_s=3.6)
    projected = projected_depth(0.8, 100, 100, session_s=3.6)
    assert paper is not None
    assert projected is not None
    assert paper < 0 < projected


def test_the_projection_by_hand() -> None:
    # 0.8 · 1 s · 100/s − 20/s · 3 s, and without growth nothing is taken off, nor given for shrinking.
    assert projected_depth(1, 120, 100, session_s=3, margin=0.2) == pytest.approx(20)
    assert projected_depth(1, 120, 100, session_s=0.5, margin=0.2) == pytest.approx(60)
    assert projected_depth(1, 50, 100, session_s=3, margin=0.2) == pytest.approx(80)
    assert projected_depth(1, 220, 100, session_s=3, margin=0.2) == pytest.approx(-280)


def test_session_time_is_a_running_average_that_starts_at_half_a_second() -> None:
    time = SessionTime()
    assert time.average_s == 0.5
    assert time.learned(1.5).average_s == pytest.approx(1.0)
    assert time.learned(1.5).learned(4.0).average_s == pytest.approx(2.0)
    for _ in range(200):
        time = time.learned(3.0)
    assert time.average_s == pytest.approx(3.0, abs=0.01)
    for _ in range(200):
        time = time.learned(1.0)
    assert time.average_s == pytest.approx(1.0, abs=0.01)


# The burst: b1 is offered 107 % from 30 s on, and every flow gets the same share of what it offers.


def first_crossing(formula: str, edge_s: float = 0.0, *, link_delay_s: float = 0.0) -> int:
    """The first sample, one each second, in which topic 8 on b1 is past its threshold. Rates are smoothed and
    predicted, as an agent would.
    """
    wait_s = wait_of(8, edge_s)
    arriving: Rate | None = None
    draining: Rate | None = None
    for second in range(20, END_S):
        burst = second - link_delay_s > ews.BURST_S
        arriving = follow(arriving, ews.rate(8, burst=burst))
        draining = follow(draining, ews.drain_rate("b1", 8, burst=burst))
        rates = arriving.predicted, draining.predicted
        depth = paper_depth if formula == "paper" else projected_depth
        threshold = depth(wait_s, *rates, SessionTime().average_s)
        assert threshold is not None
        if ews.depth_at("b1", 8, second - link_delay_s) > threshold:
            return second
    raise AssertionError("never crossed")


def first_late_published_s() -> float:
    """When the first message that comes too late is published, in steps of 10 ms: FIFO, so that a message waits
    as long as it takes to send all that is before it.
    """
    backlog_bytes = 0.0
    excess = ews.offered_on("b1", burst=True) - ews.bandwidth("b1")
    for step in range((END_S - ews.BURST_S) * 100):
        wait_s = backlog_bytes / ews.bandwidth("b1")
        if wait_s + ews.BROKER_TO_BROKER_S + ews.TO_SUBSCRIBER_S > ews.TOPICS[8].deadline_s:
            return ews.BURST_S + step / 100
        backlog_bytes += excess / 100
    raise AssertionError("never late")


def test_rates_of_topic_8_after_the_burst() -> None:
    assert ews.offered_on("b1", burst=True) / ews.bandwidth("b1") == pytest.approx(1.07)
    assert ews.rate(8, burst=True) == 200
    assert ews.drain_rate("b1", 8, burst=True) == pytest.approx(186.92, abs=0.01)
    assert ews.depth_at("b1", 8, 31) == pytest.approx(13.08, abs=0.01)


def test_topic_8_passes_the_papers_threshold_at_34_s() -> None:
    assert paper_depth(wait_of(8), 200, 200 / 1.07, 0.5) == pytest.approx(42.99, abs=0.01)
    assert ews.depth_at("b1", 8, 33) < 42.99 < ews.depth_at("b1", 8, 34)
    assert first_crossing("paper") == 34


def test_34_s_holds_also_with_times_at_the_edge_and_the_burst_delayed_by_the_link() -> None:
    capacity = Capacity(
        uplink_bytes_per_s=ews.bandwidth("b1"), downlink_bytes_per_s=ews.bandwidth("b1"), matching_per_s=1500
    )
    times = edge_time_s(400, capacity)
    assert first_crossing("paper", times) == 34
    assert first_crossing("paper", times, link_delay_s=ews.BROKER_TO_BROKER_S) == 34


def test_without_balancing_topic_8_is_late_from_41_s_on() -> None:
    assert first_late_published_s() == pytest.approx(41.4, abs=0.1)


def test_the_projection_leaves_time_to_confirm_and_to_move_before_anything_is_late() -> None:
    crossing = first_crossing("projected")
    assert crossing == 39
    assert crossing + 1 + SessionTime().average_s < first_late_published_s()


def test_moving_topic_1_away_lifts_the_threshold_over_the_depth_at_once() -> None:
    relieved = paper_depth(wait_of(8), 200, 200 / 1.07 * (1.07 / 0.99), 0.5)
    assert relieved is not None
    assert relieved > ews.depth_at("b1", 8, 34)
