"""Who decided what, in the order of time: the table at the end of every explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from rich.table import Table

from tidegate_protocol.decisions import Decision, MigrationEnded
from tidegate_protocol.operations import Told
from tidegate_protocol.rendering import said
from tidegate_protocol.rendering.words import clock

from ..tables import table

LINES_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Line:
    """A decision, and how many more like it followed at once."""

    told: Told
    more: int = 0


def timeline(decisions: Sequence[Told], now: datetime | None) -> list[Table]:
    """One table, or none if nothing was decided."""
    lines = _shortened(decisions)
    if not lines:
        return []
    moment = "ago" if now is None else "time"
    shown = table(f">{moment}", "broker", "what", "why, or how", title="course", whole=(moment, "broker"))
    for line in lines[-LINES_MAX:]:
        told, spoken = line.told, said(line.told.record)
        what = spoken.what if spoken.about == told.broker else f"{spoken.about} {spoken.what}"
        more = f"(and {line.more} more)" if line.more else ""
        at = f"{told.ago_us / 1e6:.1f} s" if now is None else clock(told.ago_us, now)
        shown.add_row(at, told.broker, what, f"{spoken.why} {more}".strip())
    return [shown]


def _shortened(decisions: Sequence[Told]) -> list[Line]:
    """A line for a decision that was repeated in a row, and for all migrations: a session may have a thousand."""
    shown: list[Line] = []
    for told in decisions:
        last = shown[-1] if shown else None
        if last is not None and _alike(last.told.record, told.record):
            shown[-1] = replace(last, more=last.more + 1)
        else:
            shown.append(Line(told))
    return shown


def _alike(one: Decision, other: Decision) -> bool:
    if isinstance(one, MigrationEnded):
        return isinstance(other, MigrationEnded) and one.outcome is other.outcome
    return said(one) == said(other)
