"""From tables to an insight: what `rates` and `correlation` have found, as heads take it.

Reads the Parquet of those two jobs with pyarrow, so that no Spark has to run to publish what Spark has learned.
Invariants:

- an insight is dated by its tables: it was made when the newest of them was written, and a table that is older than the
  insight may become is left out, as is a forecast whose last window is over;
- a topic, an edge or a number that a head would not take is left out and named, and does not keep the rest from it;
- what does not fit into one message is left out: forecasts of the slowest topics, the weakest pairs.

Time is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from tidegate_protocol.insight import (
    CAPACITIES_MAX,
    FORECASTS_MAX,
    PAIRS_MAX,
    VALID_US_MAX,
    CorrelatedPair,
    EdgeUplink,
    Insight,
    RateForecast,
)
from tidegate_protocol.messages import CONTROL_BYTES_MAX, encode

from .errors import InvalidOption, SparkMissing, TablesMissing

PAIRS: Final = "correlation"
FORECASTS: Final = "forecast"
CAPACITIES: Final = "service"
TABLES: Final = (PAIRS, FORECASTS, CAPACITIES)
AHEAD_S_MAX: Final = 300.0
"""A table from further in the future was written by a clock that is wrong."""
BUSY_SAMPLES_MIN: Final = 10
"""Fewer samples with a backlog say little about what an uplink carries."""
BYTES_MAX: Final = CONTROL_BYTES_MAX - 10_000
LEFT_OUT_MAX: Final = 100
REMEDY: Final = "read more telemetry and run the jobs again; --withdraw takes back what is in force"

T = TypeVar("T")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a job, as it was read."""

    rows: Sequence[Row]
    written_s: float
    """When, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Composed:
    """An insight for one cluster, and what was left out of it and why."""

    insight: Insight
    left_out: dict[str, str] = field(default_factory=dict)


def read_tables(folder: Path) -> dict[str, Table]:
    """The tables there are, of those that an insight is made of. Raises `TablesMissing` if there is none."""
    try:
        from pyarrow import ArrowException, parquet as parquets
    except ImportError as error:
        raise SparkMissing(
            "pyarrow, which reads its tables, is not installed", "install tidegate[analytics]"
        ) from error
    read: Any = parquets.read_table  # untyped
    found: dict[str, Table] = {}
    for name in TABLES:
        files = sorted(file for file in (folder / name).glob("*.parquet") if not file.name.startswith(("_", ".")))
        if not files:
            continue
        try:
            rows = [row for file in files for row in read(file).to_pylist()]
        except (OSError, ArrowException) as error:
            raise InvalidOption("--tables", f"{folder / name} can't be read: {error}", "run its job again") from error
        found[name] = Table(rows, max(file.stat().st_mtime for file in files))
    if not found:
        raise TablesMissing(str(folder))
    return found


def clusters_in(tables: dict[str, Table]) -> list[str]:
    """The clusters that the tables tell of."""
    return sorted({str(row["cluster"]) for table in tables.values() for row in table.rows})


def compose(tables: dict[str, Table], cluster: str, now_s: float, valid_for_s: float) -> Composed:
    """The insight of one cluster, as of now."""
    made_s = max(table.written_s for table in tables.values())
    if made_s > now_s + AHEAD_S_MAX:
        ahead = f"they were written {made_s - now_s:.0f} s from now: a clock is wrong"
        raise InvalidOption("--tables", ahead, "set the clocks, and run the jobs again")
    if not 0.0 < valid_for_s <= VALID_US_MAX / 1e6:
        raise InvalidOption("--valid-for", f"{valid_for_s:g} s is not possible", f"give up to {VALID_US_MAX / 1e6:g}")
    made_s = min(made_s, now_s)
    if now_s - made_s >= valid_for_s:
        old = f"they were written {now_s - made_s:.0f} s ago, which is longer than {valid_for_s:g} s"
        raise InvalidOption("--tables", old, "run the jobs again, or give a longer --valid-for")
    left_out: dict[str, str] = {}
    rows: dict[str, list[Row]] = {}
    for name, table in tables.items():
        rows[name] = [row for row in table.rows if row["cluster"] == cluster]
        if now_s - table.written_s >= valid_for_s:
            left_out[f"table {name}"] = f"written {now_s - table.written_s:.0f} s ago"
            rows[name] = []
    pairs = _each(rows.get(PAIRS, ()), _pair, left_out)
    forecasts = _each(_by_topic(rows.get(FORECASTS, ())), lambda found: _forecast(found, made_s, now_s), left_out)
    capacities = _each(rows.get(CAPACITIES, ()), _capacity, left_out)
    if not (pairs or forecasts or capacities):
        raise InvalidOption("--tables", f"nothing in them is of use to cluster {cluster}{_why(left_out)}", REMEDY)
    insight = Insight(
        cluster=cluster,
        made_at_us=round(made_s * 1e6),
        age_us=round((now_s - made_s) * 1e6),
        valid_for_us=round(valid_for_s * 1e6),
        pairs=_most(pairs, PAIRS_MAX, "pairs", left_out, lambda one: (-one.coefficient, one.topic_a, one.topic_b)),
        forecasts=_most(forecasts, FORECASTS_MAX, "forecasts", left_out, lambda one: (-one.level_per_s, one.topic)),
        capacities=_most(capacities, CAPACITIES_MAX, "capacities", left_out, lambda one: (one.edge,)),
    )
    return Composed(_fitting(insight, left_out), dict(list(left_out.items())[:LEFT_OUT_MAX]))


def withdrawal(cluster: str, now_s: float) -> Insight:
    """What takes back whatever insight is in force."""
    return Insight(cluster=cluster, made_at_us=round(now_s * 1e6), valid_for_us=1, withdraws=True)


def _why(left_out: dict[str, str]) -> str:
    first = next(iter(left_out.items()), None)
    return "" if first is None else f" ({first[0]}: {first[1]})"


class _LeftOut(Exception):
    """A row that makes no part of an insight."""

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        self.why = why
        super().__init__(what, why)


def _each(rows: Iterable[Any], made: Callable[[Any], T], left_out: dict[str, str]) -> list[T]:
    found: list[T] = []
    for row in rows:
        try:
            found.append(made(row))
        except _LeftOut as error:
            left_out[error.what] = error.why
    return found


def _pair(row: Row) -> CorrelatedPair:
    what = f"{row['topic_a']} with {row['topic_b']}"
    # A coefficient is worked out in floating point and may be a hair's breadth above 1.
    coefficient = min(float(row["coefficient"]), 1.0)
    return _checked(
        what, lambda: CorrelatedPair(topic_a=row["topic_a"], topic_b=row["topic_b"], coefficient=coefficient)
    )


def _by_topic(rows: Iterable[Row]) -> list[list[Row]]:
    """The forecasts of each topic, the next window first."""
    topics: dict[str, list[Row]] = {}
    for row in rows:
        topics.setdefault(row["topic"], []).append(row)
    return [sorted(topics[topic], key=lambda row: int(row["step"])) for topic in sorted(topics)]


def _forecast(rows: list[Row], made_s: float, now_s: float) -> RateForecast:
    """A forecast is worked out for the end of its topic's last window; here it is brought to `made_s`."""
    first, last = rows[0], rows[-1]
    what = f"forecast of {first['topic']}"
    if first["error_per_s"] is None or not math.isfinite(first["error_per_s"]):
        raise _LeftOut(what, "there were too few windows to say what it is worth")
    begins_s, ends_s = _seconds(first["window_start"]), _seconds(last["window_end"])
    if ends_s <= now_s:
        raise _LeftOut(what, "its last window is over")
    trend = float(first["trend_per_s"]) / max(_seconds(first["window_end"]) - begins_s, 1e-6)
    level = max(float(first["level_per_s"]) + trend * (made_s - begins_s), 0.0)
    return _checked(
        what,
        lambda: RateForecast(
            topic=first["topic"],
            level_per_s=level,
            trend_per_s=trend,
            error_per_s=float(first["error_per_s"]),
            horizon_us=min(round((ends_s - made_s) * 1e6), VALID_US_MAX),
        ),
    )


def _capacity(row: Row) -> EdgeUplink:
    what = f"uplink of {row['broker']}"
    served = row["served_bytes_per_s"]
    if served is None or row["busy_samples"] < BUSY_SAMPLES_MIN:
        raise _LeftOut(what, f"it was busy in {row['busy_samples']} samples, and {BUSY_SAMPLES_MIN} are needed")
    return _checked(what, lambda: EdgeUplink(edge=row["broker"], uplink_bytes_per_s=float(served)))


def _checked(what: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise _LeftOut(what, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _most(
    parts: list[T], limit: int, what: str, left_out: dict[str, str], order: Callable[[T], tuple[Any, ...]]
) -> tuple[T, ...]:
    if len(parts) > limit:
        left_out[f"{len(parts) - limit} {what}"] = f"an insight holds {limit}"
    return tuple(sorted(parts, key=order)[:limit])


def _fitting(insight: Insight, left_out: dict[str, str]) -> Insight:
    """Half of the longest list goes until the rest fits into a message."""
    while len(encode(insight)) > BYTES_MAX:
        name = max(("forecasts", "pairs"), key=lambda name: len(getattr(insight, name)))
        parts = getattr(insight, name)
        kept = parts[: len(parts) // 2]
        left_out[f"{len(parts) - len(kept)} {name}"] = "they would not fit into one message"
        insight = insight.model_copy(update={name: kept})
    return insight


def _seconds(moment: datetime) -> float:
    """Spark writes moments in UTC; those without a zone are meant so."""
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
