"""Allowed waits and thresholds: the papers' numbers, and the burst of seed 000 §V worked out second by second."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import ews
from tidegate_agents.rates import Rate, follow
from tidegate_agents.threshold import (
    AllowedWait,
    EdgeTimes,
    PublisherPath,
    SessionTime,
    Threshold,
    ThresholdReason,
    allowed_wait,
    edge_times,
    paper_threshold,
    projected_threshold,
)
from tidegate_protocol.messages import Capacity

BESIDE_THE_HEAD = PublisherPath("p")
END_S = 60


def wait_of(topic: int, edge: EdgeTimes | None = None) -> AllowedWait:
    """With the delays of seed 000 §V."""
    return allowed_wait(
        ews.TOPICS[topic].deadline_s,
        [BESIDE_THE_HEAD],
        head_to_edge_s=ews.BROKER_TO_BROKER_S,
        edge_to_subscriber_s=ews.TO_SUBSCRIBER_S,
        edge=edge,
    )


def test_topic_1_may_wait_a_second_and_a_half() -> None:
    wait = wait_of(1)
    assert wait.seconds == pytest.approx(1.5)
    assert wait.feasible
    decision = wait.decision("s1.0")
    assert decision.numbers["deadline_s"] == 1.8
    assert decision.numbers["allowed_wait_s"] == pytest.approx(1.5)


def test_everything_that_takes_time_is_taken_off() -> None:
    capacity = Capacity(uplink_bytes_per_s=1e6, downlink_bytes_per_s=5e5, matching_per_s=100)
    times = edge_times(1000, capacity)
    assert times == EdgeTimes(arrival_s=0.002, matching_s=0.01, departure_s=0.001)
    path = PublisherPath("p", to_head_s=0.03, between_heads_s=0.1, in_heads_s=0.02)
    wait = allowed_wait(1.0, [path], head_to_edge_s=0.1, edge_to_subscriber_s=0.2, edge=times)
    assert wait.seconds == pytest.approx(1.0 - 0.03 - 0.1 - 0.02 - 0.1 - 0.2 - 0.002 - 0.01 - 0.001)
    assert edge_times(1000, Capacity()) == EdgeTimes()


def test_the_worst_publisher_counts() -> None:
    near = PublisherPath("near", to_head_s=0.01)
    far = PublisherPath("far", to_head_s=0.01, between_heads_s=0.3)
    # The longest way through the air is not the longest way if a head is slow.
    slow = PublisherPath("slow", to_head_s=0.2, in_heads_s=0.2)
    wait = allowed_wait(1.0, [near, far, slow])
    assert wait.worst == slow
    assert wait.seconds == pytest.approx(0.6)
    assert "worst publisher slow" in wait.decision("s.0").reason
    assert allowed_wait(1.0, [slow, near, far]) == wait
    assert allowed_wait(1.0, []).seconds == 1.0


@pytest.mark.parametrize("formula", [paper_threshold, projected_threshold])
def test_a_deadline_that_no_broker_can_meet_has_no_threshold(formula: Callable[..., Threshold]) -> None:
    wait = allowed_wait(0.25, [BESIDE_THE_HEAD], head_to_edge_s=0.1, edge_to_subscriber_s=0.2)
    assert not wait.feasible
    assert "infeasible" in wait.decision("s.0").reason
    threshold = formula(wait.seconds, 100, 100, 0.5)
    assert threshold.depth is None
    assert threshold.reason is ThresholdReason.INFEASIBLE
    assert threshold.at_drain(2).depth is None


@pytest.mark.parametrize("depth", [0, 40, 42.9, 43.1, 100])
def test_equation_2_is_equation_1_solved_for_the_depth(depth: float) -> None:
    t_e, t_lb, arriving, draining = 0.8, 0.5, 200.0, 200 / 1.07
    threshold = paper_threshold(t_e, arriving, draining, t_lb)
    assert threshold.depth is not None
    equation_1 = (depth + (arriving - draining)) / draining <= t_e - t_lb
    assert (depth <= threshold.depth) is equation_1


def test_the_paper_fires_on_an_empty_queue_where_sessions_are_long_and_the_projection_does_not() -> None:
    paper = paper_threshold(0.8, 100, 100, session_s=3.6)
    projected = projected_threshold(0.8, 100, 100, session_s=3.6)
    assert paper.depth is not None
    assert projected.depth is not None
    assert paper.depth < 0 < projected.depth
    assert paper.reason is ThresholdReason.SESSION_TOO_LONG
    assert projected.reason is ThresholdReason.ALLOWED_WAIT


def test_the_projection_by_hand() -> None:
    # 0.8 · 1 s · 100/s − 20/s · 3 s, and without growth nothing is taken off, nor given for shrinking.
    assert projected_threshold(1, 120, 100, session_s=3, margin=0.2).depth == pytest.approx(20)
    assert projected_threshold(1, 120, 100, session_s=0.5, margin=0.2).depth == pytest.approx(60)
    assert projected_threshold(1, 50, 100, session_s=3, margin=0.2).depth == pytest.approx(80)
    hopeless = projected_threshold(1, 220, 100, session_s=3, margin=0.2)
    assert hopeless.reason is ThresholdReason.GROWTH_TOO_FAST


def test_a_decision_names_every_number_of_the_formula() -> None:
    decision = paper_threshold(0.8, 200, 187, 0.5).decision("s8.0")
    assert decision.subject == "s8.0"
    assert decision.reason == "paper: allowed-wait"
    assert decision.numbers == {
        "allowed_wait_s": 0.8,
        "enqueue_per_s": 200,
        "drain_per_s": 187,
        "session_s": 0.5,
        "period_s": 1.0,
        "margin": 0.0,
        "threshold": pytest.approx(0.3 * 187 - 13),
    }


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


def first_crossing(formula: str, edge: EdgeTimes | None = None, *, link_delay_s: float = 0.0) -> int:
    """The first sample, one each second, in which topic 8 on b1 is past its threshold. Rates are smoothed and
    predicted, as an agent would.
    """
    wait = wait_of(8, edge)
    arriving: Rate | None = None
    draining: Rate | None = None
    for second in range(20, END_S):
        burst = second - link_delay_s > ews.BURST_S
        arriving = follow(arriving, ews.rate(8, burst=burst))
        draining = follow(draining, ews.drain_rate("b1", 8, burst=burst))
        rates = arriving.predicted, draining.predicted
        if formula == "paper":
            threshold = paper_threshold(wait.seconds, *rates, SessionTime().average_s)
        else:
            threshold = projected_threshold(wait.seconds, *rates, SessionTime().average_s)
        assert threshold.depth is not None
        if ews.depth_at("b1", 8, second - link_delay_s) > threshold.depth:
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
    threshold = paper_threshold(wait_of(8).seconds, 200, 200 / 1.07, 0.5)
    assert threshold.depth == pytest.approx(42.99, abs=0.01)
    assert ews.depth_at("b1", 8, 33) < 42.99 < ews.depth_at("b1", 8, 34)
    assert first_crossing("paper") == 34


def test_34_s_holds_also_with_times_at_the_edge_and_the_burst_delayed_by_the_link() -> None:
    capacity = Capacity(
        uplink_bytes_per_s=ews.bandwidth("b1"), downlink_bytes_per_s=ews.bandwidth("b1"), matching_per_s=1500
    )
    times = edge_times(400, capacity)
    assert first_crossing("paper", times) == 34
    assert first_crossing("paper", times, link_delay_s=ews.BROKER_TO_BROKER_S) == 34


def test_without_balancing_topic_8_is_late_from_41_s_on() -> None:
    assert first_late_published_s() == pytest.approx(41.4, abs=0.1)


def test_the_projection_leaves_time_to_confirm_and_to_move_before_anything_is_late() -> None:
    crossing = first_crossing("projected")
    assert crossing == 39
    assert crossing + 1 + SessionTime().average_s < first_late_published_s()


def test_moving_topic_1_away_lifts_the_threshold_over_the_depth_at_once() -> None:
    threshold = paper_threshold(wait_of(8).seconds, 200, 200 / 1.07, 0.5)
    relieved = threshold.at_drain(1.07 / 0.99)
    assert relieved.drain_per_s == pytest.approx(202.02, abs=0.01)
    assert relieved.depth is not None
    assert relieved.depth > ews.depth_at("b1", 8, 34)
