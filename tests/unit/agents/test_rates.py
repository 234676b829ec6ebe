"""Smoothing, prediction and learned capacities."""

from __future__ import annotations

import pytest

from tests.support.formulas import Rate, follow
from tidegate_agents.load.rates import LearnedCapacity, smooth


def followed(*samples: float) -> Rate:
    rate: Rate | None = None
    for sample in samples:
        rate = follow(rate, sample)
    assert rate is not None
    return rate


def test_smoothing_is_the_formula_of_the_design() -> None:
    assert smooth(100, None) == 100
    assert smooth(200, 100) == pytest.approx(0.75 * 200 + 0.25 * 100)
    assert followed(100, 200, 200).level == pytest.approx(smooth(200, smooth(200, smooth(100, None))))


def test_a_steady_rate_is_predicted_to_stay() -> None:
    assert followed(100, 100, 100).predicted == 100
    assert followed(100).predicted == 100


def test_a_burst_is_predicted_at_once_and_the_overshoot_is_short() -> None:
    assert followed(100, 200).predicted == pytest.approx(212.5)
    assert followed(100, 200, 200).predicted == pytest.approx(203.1, abs=0.1)
    assert followed(100, 200, 200, 200).predicted == pytest.approx(200.8, abs=0.1)


def test_a_ramp_is_predicted_ahead_of_its_smoothed_level() -> None:
    rate = followed(*range(0, 1000, 10))
    assert rate.level < 990 < rate.predicted <= 1000


def test_a_rate_that_collapses_is_not_predicted_below_zero() -> None:
    assert followed(1000, 1000, 0).predicted == 0


def test_capacity_is_learned_only_while_something_waits_and_corrected_by_whatever_was_more() -> None:
    learned = LearnedCapacity()
    assert learned.seen(500, backlog=False).per_s is None
    learned = learned.seen(500, backlog=True)
    assert learned.per_s == 500
    assert learned.seen(400, backlog=False).per_s == 500
    assert learned.seen(900, backlog=False).per_s == 900
    assert learned.seen(400, backlog=True).per_s == 500
    assert learned.seen(900, backlog=True).per_s == 900
    assert LearnedCapacity().seen(0, backlog=True).per_s is None


def test_a_capacity_falls_only_where_somebody_says_so_and_never_rises_by_it() -> None:
    assert LearnedCapacity(500).narrowed(200).per_s == 200
    assert LearnedCapacity(500).narrowed(900).per_s == 500
    assert LearnedCapacity().narrowed(200).per_s is None, "where nothing is known nothing has fallen"
    assert LearnedCapacity(500).narrowed(200).seen(300, backlog=False).per_s == 300


def test_what_is_configured_goes_before_what_was_learned() -> None:
    assert LearnedCapacity(500).or_configured(800) == 800
    assert LearnedCapacity(500).or_configured(None) == 500
    assert LearnedCapacity().or_configured(None) is None
