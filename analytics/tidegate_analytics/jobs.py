"""The jobs by name: which tables each makes, from which kinds of records.

A job is given a function that finds the records of a kind, from a lake or from a stream, and its options; it gives back
tables, and nothing is worked out before somebody writes or shows them. Jobs that make sense over a stream have a second
form, of those of their tables that can be told window by window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyspark.sql import DataFrame

from . import attainment as attainments, balance as balances, rates as of_topics
from .audit import audit, errors
from .correlation import CHANCE_MAX, COEFFICIENT_MIN, WINDOWS_MIN, correlation
from .forecast import STEPS, forecast
from .service import service


@dataclass(frozen=True, slots=True)
class Options:
    """Of all jobs; each uses what concerns it."""

    window_s: int | None = None
    """None: the job's own default."""
    lateness_s: int = attainments.LATENESS_S
    """Over a stream: how late a record may be."""
    steps: int = STEPS
    """Windows to forecast."""
    coefficient_min: float = COEFFICIENT_MIN
    windows_min: int = WINDOWS_MIN
    chance_max: float = CHANCE_MAX
    """Of correlated pairs."""

    def window(self, default_s: int) -> int:
        return default_s if self.window_s is None else self.window_s


Records = Callable[[str], DataFrame]
"""The records of a kind."""
Tables = Callable[[Records, Options], dict[str, DataFrame]]


@dataclass(frozen=True, slots=True)
class Job:
    """One job over the lake, and over a stream where that makes sense."""

    tables: Tables
    live: Tables | None = None


def _attainment(records: Records, options: Options) -> dict[str, DataFrame]:
    window_s = options.window(attainments.WINDOW_S)
    return {"attainment": attainments.attainment(records(attainments.KIND), window_s, options.lateness_s)}


def _imbalance(records: Records, options: Options) -> dict[str, DataFrame]:
    window_s = options.window(balances.WINDOW_S)
    return {"imbalance": balances.imbalance(records("load"), window_s, options.lateness_s)}


def _balance(records: Records, options: Options) -> dict[str, DataFrame]:
    window_s = options.window(balances.WINDOW_S)
    return {
        **_imbalance(records, options),
        "states": balances.states(records("load"), records("state"), window_s),
        "moves": balances.moves(records("session-began"), records("session-ended"), records("migration")),
    }


def _audit(records: Records, options: Options) -> dict[str, DataFrame]:
    audited = audit(records("prediction"), records("outcome"), records("session-began"))
    return {"audit": audited, "errors": errors(audited)}


def _rates(records: Records, options: Options) -> dict[str, DataFrame]:
    reports, load = records("publisher-rates"), records("load")
    window_s = options.window(of_topics.WINDOW_S)
    by_window = of_topics.rates(reports, load, window_s)
    covered = of_topics.coverage(reports, load, window_s)
    return {
        "rates": by_window.drop("window"),
        "moments": of_topics.moments(reports, load, window_s),
        "coverage": covered.drop("window"),
        "service": service(load),
        "forecast": forecast(by_window, covered, window_s, options.steps),
    }


def _correlation(records: Records, options: Options) -> dict[str, DataFrame]:
    reports, load = records("publisher-rates"), records("load")
    window_s = options.window(of_topics.WINDOW_S)
    by_window = of_topics.rates(reports, load, window_s)
    covered = of_topics.coverage(reports, load, window_s)
    found = correlation(
        by_window, covered, window_s, options.coefficient_min, options.windows_min, options.chance_max
    )  # fmt: skip
    return {"correlation": found}


OVER_LAKE: Final[Mapping[str, Job]] = MappingProxyType(
    {
        "attainment": Job(_attainment, live=_attainment),
        "balance": Job(_balance, live=_imbalance),
        "audit": Job(_audit),
        "rates": Job(_rates),
        "correlation": Job(_correlation),
    }
)
