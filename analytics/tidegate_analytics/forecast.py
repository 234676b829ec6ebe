"""Rates to expect: each topic's windows continued by Holt's method, block by block.

A forecast is told with the error that one-step forecasts had on the topic's past, so that its user can see what
it is worth; where there were too few windows it is their mean, and has no factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, functions as F

from . import holt
from .errors import InvalidOption
from .series import blocks, series

STEPS: Final = 10
STEPS_MAX: Final = 1_440
_COLUMNS: Final = (
    "cluster string, topic string, window long, step int, rate_per_s double, error_per_s double, level_per_s double,"
    " trend_per_s double, alpha double, beta double, windows int"
)


def forecast(rates: DataFrame, coverage: DataFrame, window_s: int, steps: int = STEPS) -> DataFrame:
    """Per cluster and topic, for each of the next `steps` windows after the last one covered: its expected rate."""
    if not 1 <= steps <= STEPS_MAX:
        raise InvalidOption("steps", f"{steps} is not possible", f"give 1 to {STEPS_MAX}")

    def continued(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for row in batch.itertuples():
                yield _block(row, steps)

    rows = blocks(series(rates, coverage, window_s)).mapInPandas(continued, _COLUMNS)
    width_us = window_s * 1_000_000
    begins_us = F.col("window") * width_us
    return rows.select(
        F.timestamp_micros(begins_us).alias("window_start"),
        F.timestamp_micros(begins_us + width_us).alias("window_end"),
        "cluster", "topic", "step", "rate_per_s", "error_per_s", "level_per_s", "trend_per_s", "alpha", "beta",
        "windows",
    )  # fmt: skip


def _block(row: Any, steps: int) -> Any:
    windows = np.asarray(row.windows, dtype=np.int64)
    gaps = np.diff(windows, prepend=windows[:1] - 1)
    fitted = holt.fit(np.vstack([np.asarray(one, dtype=np.float64) for one in row.rows]), gaps)
    names = list(row.topics)
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "cluster": row.cluster,
                    "topic": names,
                    "window": windows[-1] + step,
                    "step": step,
                    "rate_per_s": fitted.ahead(step),
                    "error_per_s": fitted.error,
                    "level_per_s": fitted.level,
                    "trend_per_s": fitted.trend,
                    "alpha": fitted.alpha,
                    "beta": fitted.beta,
                    "windows": len(windows),
                }
            )
            for step in range(1, steps + 1)
        ]
    )
