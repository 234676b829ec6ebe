"""Holt's method and the tests of significance, without Spark."""

from __future__ import annotations

from math import comb
from pathlib import Path

import numpy as np
import pytest

from tidegate_analytics import JOBS, LAKE, holt, session
from tidegate_analytics.correlation import _bounds
from tidegate_analytics.errors import InvalidOption, SparkMissing
from tidegate_analytics.jobs import OVER_LAKE
from tidegate_analytics.significance import Bounds, Pair, pairs, prepare, tail
from tidegate_analytics.windows import check_window

BOUNDS = Bounds(coefficient_min=0.5, windows_min=30, chance_max=0.01)
SEED = 7


def steps(count: int) -> np.ndarray:
    return np.ones(count, dtype=np.int64)


# Holt


def test_a_line_is_continued() -> None:
    fitted = holt.fit(np.asarray([3.0 + 2.0 * np.arange(20), np.full(20, 5.0)]), steps(20))
    assert fitted.ahead(1) == pytest.approx([43.0, 5.0])
    assert fitted.ahead(10) == pytest.approx([61.0, 5.0])
    assert fitted.error == pytest.approx([0.0, 0.0], abs=1e-9)


def test_windows_that_are_missing_are_stepped_over() -> None:
    at = np.asarray([0, 1, 2, 3, 4, 10, 11, 20, 21])
    fitted = holt.fit(np.asarray([7.0 + 3.0 * at]), np.diff(at, prepend=-1))
    assert fitted.ahead(1) == pytest.approx([7.0 + 3.0 * 22])


def test_noise_is_smoothed_and_jumps_are_followed() -> None:
    random = np.random.default_rng(SEED)
    noise = 100.0 + random.normal(0.0, 10.0, 400)
    jump = np.concatenate([np.full(200, 10.0), np.full(200, 90.0)])
    fitted = holt.fit(np.stack([noise, jump]), steps(400))
    assert fitted.alpha[0] <= 0.1 < fitted.alpha[1], f"seed {SEED}"
    assert fitted.ahead(1) == pytest.approx([100.0, 90.0], abs=5.0)
    assert fitted.error[0] == pytest.approx(10.0, rel=0.1)


def test_a_rate_is_never_forecast_below_nothing() -> None:
    fitted = holt.fit(np.asarray([np.arange(10.0)[::-1]]), steps(10))
    assert fitted.ahead(50) == [0.0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_windows_have_a_mean_and_no_factors(count: int) -> None:
    fitted = holt.fit(np.asarray([[4.0, 8.0, 6.0][:count]]), steps(count))
    assert fitted.ahead(1) == pytest.approx([np.mean([4.0, 8.0, 6.0][:count])])
    assert np.isnan(fitted.alpha).all()


# Significance


def found(rates: np.ndarray, bounds: Bounds = BOUNDS, pairs_all: int = 1) -> list[Pair]:
    return list(pairs(prepare(rates), None, pairs_all, bounds))


def together(random: np.random.Generator, windows: int) -> np.ndarray:
    common = random.uniform(0.5, 1.5, windows)
    return np.asarray(random.poisson(900.0 * np.stack([common, common])), dtype=np.float64)


def test_what_rises_together_is_found_with_its_support() -> None:
    (pair,) = found(together(np.random.default_rng(SEED), 200))
    assert (pair.first, pair.second, pair.windows) == (0, 1, 200)
    assert pair.coefficient > 0.95
    assert 120 < pair.windows_effective <= 200
    assert 20 <= pair.support <= 80
    assert pair.chance < 1e-20


def test_two_blocks_are_compared_like_one() -> None:
    random = np.random.default_rng(SEED)
    rates = np.vstack([together(random, 120), together(random, 120)])[[0, 2, 1, 3]]
    whole = {(pair.first, pair.second) for pair in found(rates)}
    across = {(pair.first, pair.second + 2) for pair in pairs(prepare(rates[:2]), prepare(rates[2:]), 6, BOUNDS)}
    assert whole == across == {(0, 2), (1, 3)}


@pytest.mark.parametrize("change", [{"windows_min": 201}, {"coefficient_min": 0.9999}])
def test_bounds_hold(change: dict[str, float]) -> None:
    rates = together(np.random.default_rng(SEED), 200)
    values = {"coefficient_min": 0.5, "windows_min": 30, "chance_max": 0.01, **change}
    assert found(rates, Bounds(**values)) == []  # type: ignore[arg-type]


def test_more_pairs_ask_for_more() -> None:
    rates = together(np.random.default_rng(SEED), 32)
    assert found(rates, pairs_all=1)
    assert not found(rates, pairs_all=10**12)


def test_a_single_spike_in_common_is_chance() -> None:
    rates = np.random.default_rng(SEED).poisson(100.0, (2, 200)).astype(float)
    rates[:, 77] = 100_000.0
    assert prepare(rates).scores[0] @ prepare(rates).scores[1] > 0.9, "the coefficient alone would be taken in"
    assert found(rates, pairs_all=1_000) == []


def test_a_common_trend_and_constants_are_worth_nothing() -> None:
    random = np.random.default_rng(SEED)
    trend = np.linspace(100.0, 1_000.0, 200)
    rates = np.vstack([random.poisson(trend), random.poisson(trend), np.full((2, 200), 50.0), np.zeros((1, 200))])
    assert found(rates.astype(float)) == []


def test_the_tail_is_exact() -> None:
    for everything, first, second, both in ((10, 4, 5, 3), (20, 7, 7, 0), (6, 3, 3, 3), (5, 5, 2, 2)):
        ways = sum(comb(first, k) * comb(everything - first, second - k) for k in range(both, min(first, second) + 1))
        assert tail(everything, first, second, both) == pytest.approx(ways / comb(everything, second))


# Options and what Spark needs


def test_options_that_make_no_sense_are_refused_with_a_remedy() -> None:
    with pytest.raises(InvalidOption, match="coefficient: 2 is not possible; give more than 0 and at most 1"):
        _bounds(2, 30, 0.01)
    with pytest.raises(InvalidOption, match="windows: 3 are too few"):
        _bounds(0.5, 3, 0.01)
    with pytest.raises(InvalidOption, match="chance: 1 is not possible"):
        _bounds(0.5, 30, 1)
    with pytest.raises(InvalidOption, match="lateness: -1 s is not possible"):
        check_window(60, -1)


def test_every_job_is_known_by_name() -> None:
    assert [LAKE, *OVER_LAKE] == list(JOBS)


def test_missing_java_is_told_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissing, match=r"JAVA_HOME .* holds no Java; install openjdk-17"):
        session.check_prerequisites()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissing, match="Java is not there; install openjdk-17"):
        session.check_prerequisites()
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_412\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(SparkMissing, match="is Java 8, and must be 17 or newer"):
        session.check_prerequisites()


def test_missing_pyspark_is_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PACKAGES", ("pyspark", "no_such_package"))
    with pytest.raises(SparkMissing, match=r"no_such_package is not installed; pip install '.\[analytics\]'"):
        session.check_prerequisites()
