"""When do two series rise together, and not by chance? Correlations of all pairs of two blocks, and strict tests.

Among 125,000 pairs of unrelated series some correlate well by luck, and series that drift or are mostly silent do so
often. A pair must pass three bounds:

1. its coefficient r is at least what was asked for;
2. r is significant among all pairs that were looked at (Bonferroni), by Fisher's z with the number of *independent*
   windows. Neighbouring windows of a series resemble each other; with autocorrelations ρ_a(k) and ρ_b(k) at lag k,
   n windows are worth n ÷ (1 + 2·Σ (1 − k/n)·ρ_a(k)·ρ_b(k)) (Bartlett). A common slow drift is worth few
   (and series that are alike a little less than they should: the chance in their autocorrelations is alike, too);
3. z is for bells, and rates have tails: two series with one spike each, in the same window, have r ≈ 1. So the windows
   in which both are high, their support, must be more than chance puts together, among all pairs again, by the
   hypergeometric distribution, which asks nothing of the values. High is above the mean, or above it by a standard
   deviation, whichever tells more; that are two tests, and each is asked for twice as much.

Rates are taken by their square roots: counts vary the more the larger they are, and their roots do not.
Pure numpy: knows nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import erfc, exp, floor, lgamma, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

FLOATS = NDArray[np.float64]
LAGS_MAX: Final = 60
EFFECTIVE_MIN: Final = 4.0
"""Fisher's z needs more than three independent windows."""
_CLIP: Final = 1.0 - 1e-12


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a pair must pass."""

    coefficient_min: float
    windows_min: int
    chance_max: float
    """The chance that even one pair of all is there by luck."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two series, by number, and what is known about them."""

    first: int
    second: int
    coefficient: float
    windows: int
    windows_effective: float
    support: int
    """Windows in which both are above their means by a standard deviation."""
    chance: float
    """Of so much by luck, in all pairs together: an upper bound."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A block of series, ready to be compared."""

    scores: FLOATS
    """Means 0, lengths 1: products are coefficients. Rows without any variation are all 0."""
    echoes: FLOATS
    """Weighted autocorrelations: products add up to Bartlett's sum."""
    above: FLOATS
    high: FLOATS
    """1 where a value is above the mean, and above it by a standard deviation."""


def prepare(rates: FLOATS) -> Prepared:
    """Standardise each row."""
    roots = np.sqrt(np.maximum(rates, 0.0))
    count = roots.shape[1]
    centred = roots - roots.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    varies = lengths > 1e-9 * np.maximum(np.linalg.norm(roots, axis=1, keepdims=True), 1e-300)
    scores = np.where(varies, centred / np.where(varies, lengths, 1.0), 0.0)
    lags = range(1, min(LAGS_MAX, count // 4) + 1)
    echoes = [
        (scores[:, :-lag] * scores[:, lag:]).sum(axis=1) * sqrt(1.0 - lag / count) for lag in lags
    ]  # fmt: skip
    stacked = np.stack(echoes, axis=1) if echoes else np.zeros((len(roots), 0))
    high = (scores > 1.0 / sqrt(count)).astype(np.float64)
    return Prepared(scores, stacked, (scores > 0.0).astype(np.float64), high)


def pairs(one: Prepared, other: Prepared | None, pairs_all: int, bounds: Bounds) -> Iterator[Pair]:
    """Pairs of a row of `one` and a row of `other` that pass all bounds; within `one` where there is no other."""
    windows = one.scores.shape[1]
    if windows < bounds.windows_min:
        return
    second = one if other is None else other
    coefficients = np.clip(one.scores @ second.scores.T, -_CLIP, _CLIP)
    effective = windows / np.maximum(1.0 + 2.0 * (one.echoes @ second.echoes.T), 1.0)
    z = np.arctanh(coefficients) * np.sqrt(np.maximum(effective - 3.0, 0.0))
    candidates = (coefficients >= bounds.coefficient_min) & (effective > EFFECTIVE_MIN)
    if other is None:
        candidates &= np.triu(np.ones_like(candidates), k=1)
    for a, b in np.argwhere(candidates):
        worth = float(effective[a, b])
        by_z = 0.5 * erfc(float(z[a, b]) / sqrt(2.0))
        by_luck = _coincidence(one, second, int(a), int(b), worth / windows)
        chance = pairs_all * max(by_z, by_luck)
        if chance <= bounds.chance_max:
            support = int((one.high[a] * second.high[b]).sum())
            yield Pair(int(a), int(b), float(coefficients[a, b]), windows, worth, support, chance)


def _coincidence(one: Prepared, other: Prepared, a: int, b: int, worth: float) -> float:
    """The chance that two unrelated series are high together so often; `worth` of the windows are independent."""
    chances = []
    for mine, theirs in ((one.above[a], other.above[b]), (one.high[a], other.high[b])):
        counts = (mine.size, mine.sum(), theirs.sum(), (mine * theirs).sum())
        everything, first, second, both = (floor(float(count) * worth) for count in counts)
        chances.append(tail(everything, first, second, both))
    return min(2.0 * min(chances), 1.0)


def tail(everything: int, first: int, second: int, both: int) -> float:
    """The chance that two random sets of `first` and `second` out of `everything` share at least `both`."""
    least, most = max(0, first + second - everything), min(first, second)
    if both <= least:
        return 1.0
    whole = _choices(everything, second)
    logarithms = [
        _choices(first, shared) + _choices(everything - first, second - shared) - whole
        for shared in range(both, most + 1)
    ]
    return min(1.0, sum(exp(value) for value in logarithms))


def _choices(everything: int, some: int) -> float:
    """The logarithm of the number of ways to choose."""
    return lgamma(everything + 1) - lgamma(some + 1) - lgamma(everything - some + 1)
