"""Windows of time, the same for all jobs: they begin at whole multiples of their length since 1970, UTC."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, GroupedData, functions as F

from .errors import InvalidOption

WINDOW_S_MAX: Final = 7 * 86_400
LATENESS_S_MAX: Final = 7 * 86_400
_US_PER_DAY: Final = 86_400 * 1_000_000


def check_window(window_s: int, lateness_s: int = 0) -> None:
    """Refuse what Spark would refuse later and less clearly."""
    if not 1 <= window_s <= WINDOW_S_MAX:
        raise InvalidOption("window", f"{window_s} s is not possible", f"give 1 to {WINDOW_S_MAX} s")
    if not 0 <= lateness_s <= LATENESS_S_MAX:
        raise InvalidOption("lateness", f"{lateness_s} s is not possible", f"give 0 to {LATENESS_S_MAX} s")


def in_windows(rows: DataFrame, time: str, window_s: int, *keys: str | Column) -> GroupedData:
    """Rows grouped by window and keys. `time` may be the `window` of a grouping before, which it keeps: so a streaming
    query can group twice, and Spark knows when each window is over.
    """
    return rows.groupBy(F.window(time, f"{window_s} seconds").alias("window"), *keys)


def told_windows() -> tuple[Column, Column]:
    """The first columns of every table by window."""
    return F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end")


def day_of(time_us: Column) -> Column:
    """The day of a time in microseconds, in UTC whatever the session's time zone."""
    return F.date_from_unix_date(F.floor(time_us / _US_PER_DAY).cast("int"))
