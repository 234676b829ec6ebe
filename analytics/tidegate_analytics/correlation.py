"""Topics whose rates rise together: subscribers of such topics had better be on different edges.

The rates of all topics of a cluster are cut into blocks, and each pair of blocks is a task: one product of two matrices
gives all their coefficients, and only the pairs that pass every test (`significance`) leave it. 500 topics are 125,000
pairs and a moment; 10,000 topics are 50 million pairs in 820 tasks, for as many cores as there are.

Pairs are looked for within a cluster. Across clusters windows would be compared by the clocks of two machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, Window, functions as F

from .errors import InvalidOption
from .series import blocks, series
from .significance import Bounds, Prepared, pairs, prepare

COEFFICIENT_MIN: Final = 0.5
WINDOWS_MIN: Final = 30
CHANCE_MAX: Final = 0.01
PAIRS_MAX: Final = 10_000
"""The strongest pairs of each cluster that are told."""
_COLUMNS: Final = (
    "cluster string, topic_a string, topic_b string, coefficient double, windows int, windows_effective double,"
    " support int, chance double"
)
_NAMES: Final = tuple(each.split()[0] for each in _COLUMNS.split(", "))


def correlation(
    rates: DataFrame,
    coverage: DataFrame,
    window_s: int,
    coefficient_min: float = COEFFICIENT_MIN,
    windows_min: int = WINDOWS_MIN,
    chance_max: float = CHANCE_MAX,
    pairs_max: int = PAIRS_MAX,
) -> DataFrame:
    """Pairs of topics, `topic_a` before `topic_b`, strongest first."""
    bounds = _bounds(coefficient_min, windows_min, chance_max)

    def compared(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for row in batch.itertuples():
                yield _compare(row, bounds)

    some = blocks(series(rates, coverage, window_s))
    one = some.select("cluster", "block", "topics", "rows", "topics_all")
    other = some.select("cluster", *[F.col(name).alias(f"{name}_b") for name in ("block", "topics", "rows")])
    tasks = one.join(other, "cluster").where(F.col("block") <= F.col("block_b"))
    found = tasks.mapInPandas(compared, _COLUMNS)
    order = (F.desc("coefficient"), "topic_a", "topic_b")
    ranked = found.withColumn("rank", F.row_number().over(Window.partitionBy("cluster").orderBy(*order)))
    return ranked.where(F.col("rank") <= pairs_max).drop("rank").orderBy("cluster", *order)


def _bounds(coefficient_min: float, windows_min: int, chance_max: float) -> Bounds:
    if not 0.0 < coefficient_min <= 1.0:
        raise InvalidOption("coefficient", f"{coefficient_min} is not possible", "give more than 0 and at most 1")
    if windows_min < 5:
        raise InvalidOption("windows", f"{windows_min} are too few to tell anything", "give 5 or more")
    if not 0.0 < chance_max < 1.0:
        raise InvalidOption("chance", f"{chance_max} is not possible", "give more than 0 and less than 1")
    return Bounds(coefficient_min, windows_min, chance_max)


def _compare(row: Any, bounds: Bounds) -> Any:
    same = row.block == row.block_b
    one, other = _prepared(row.rows), None if same else _prepared(row.rows_b)
    names, others = list(row.topics), list(row.topics if same else row.topics_b)
    pairs_all = int(row.topics_all) * (int(row.topics_all) - 1) // 2
    found = [
        (row.cluster, names[pair.first], others[pair.second], pair.coefficient, pair.windows, pair.windows_effective,
         pair.support, pair.chance)
        for pair in pairs(one, other, pairs_all, bounds)
    ]  # fmt: skip
    return pd.DataFrame(found, columns=_NAMES)


def _prepared(rows: Any) -> Prepared:
    return prepare(np.vstack([np.asarray(one, dtype=np.float64) for one in rows]))
