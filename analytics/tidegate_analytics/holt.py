"""Holt's linear method for many series at once: a level and a trend, each smoothed by a factor of its own.

    level   l ← α·y + (1 − α)·(l + b)
    trend   b ← β·(l − l') + (1 − β)·b
    h steps ahead:  l + h·b

The factors are those of a grid whose one-step forecasts had the least squared error, series by series; so is the trend
to begin with, which is that of the first few values or none at all, for in noise it would never be forgotten.
Everything is a matrix of series × choices, and time is the only loop. Pure numpy: knows nothing of Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

FLOATS = NDArray[np.float64]
LEVEL_FACTORS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
TREND_FACTORS: Final = (0.0, 0.01, 0.05, 0.1, 0.3)
VALUES_MIN: Final = 4
"""With fewer there is no trend to speak of: the mean is told instead."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """One value per series."""

    level: FLOATS
    trend: FLOATS
    alpha: FLOATS
    beta: FLOATS
    """Not a number where the mean was taken."""
    error: FLOATS
    """Root mean square of the one-step forecasts' errors; not a number where there were none."""

    def ahead(self, step: int) -> FLOATS:
        """The forecast `step` windows ahead; a rate is never below 0."""
        return np.maximum(self.level + step * self.trend, 0.0)


def fit(values: FLOATS, steps: NDArray[np.int64]) -> Fitted:
    """Fit each row of `values`. `steps` says how many windows each column is after the one before; more than one where
    windows are missing: then the level has followed its trend meanwhile.
    """
    rows, columns = values.shape
    unknown = np.full(rows, np.nan)
    if columns < VALUES_MIN:
        mean = values.mean(axis=1) if columns else np.zeros(rows)
        error = values.std(axis=1) if columns > 1 else unknown
        return Fitted(mean, np.zeros(rows), unknown, unknown, error)
    choices = np.array(list(product(LEVEL_FACTORS, TREND_FACTORS, (0.0, 1.0))))
    alphas, betas = choices[:, 0][None, :], choices[:, 1][None, :]
    level = np.repeat(values[:, :1], len(choices), axis=1)
    first = (values[:, VALUES_MIN - 1] - values[:, 0]) / steps[1:VALUES_MIN].sum()
    trend = first[:, None] * choices[:, 2][None, :]
    squares = np.zeros_like(level)
    for column in range(1, columns):
        gap = int(steps[column])
        expected = level + gap * trend
        off = values[:, column : column + 1] - expected
        squares += off * off
        risen = (expected + alphas * off - level) / gap
        level = expected + alphas * off
        trend = betas * risen + (1.0 - betas) * trend
    best = squares.argmin(axis=1)
    each = np.arange(rows)
    return Fitted(
        level[each, best],
        trend[each, best],
        choices[best, 0],
        choices[best, 1],
        np.sqrt(squares[each, best] / (columns - 1)),
    )
