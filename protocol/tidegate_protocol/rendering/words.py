"""Numbers, names and lists as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from ..names import OUTPUT_PREFIX

LISTED_MAX: Final = 6
"""Names given one by one in a sentence; of more, only how many there are."""


def percent(share: float) -> str:
    """A utilization; it may pass 100 %."""
    return f"{100.0 * share:.1f} %" if 0.0 < share < 0.095 else f"{100.0 * share:.0f} %"


def amount(value: float) -> str:
    """A number of messages or a rate: no more digits than mean something."""
    if abs(value) >= 100.0 or value == round(value):
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else "0"


def messages(value: float) -> str:
    """How many wait, or may: estimates, so that below ten one digit after the point is enough."""
    return f"{value:.0f}" if abs(value) >= 9.95 or abs(value - round(value)) < 0.05 else f"{value:.1f}"


def compared(depth: float, limit: float) -> tuple[str, str]:
    """What waits and what may: with so many digits that they differ."""
    whole = messages(depth), messages(limit)
    return whole if whole[0] != whole[1] else (f"{depth:.4g}", f"{limit:.4g}")


def seconds(value: float) -> str:
    if abs(value) >= 120.0:
        return f"{value / 60.0:.0f} min"
    if abs(value) >= 20.0 or value == round(value):
        return f"{value:.0f} s"
    return f"{value:.2g} s"


def times(value: float) -> str:
    return f"{value:.2f} times"


def counted(number: float, one: str, many: str | None = None) -> str:
    """`1 subscriber`, `2 subscribers`."""
    plural = many if many is not None else f"{one}s"
    return f"{number:.0f} {one if round(number) == 1 else plural}"


def listed(names: Iterable[str], joined_by: str = "and") -> str:
    """`a, b and c`."""
    found = list(names)
    if len(found) > LISTED_MAX:
        found = [*found[: LISTED_MAX - 1], f"{len(found) - LISTED_MAX + 1} more"]
    if len(found) < 2:
        return "".join(found)
    return f"{', '.join(found[:-1])} {joined_by} {found[-1]}"


def when(ago_us: int, now: datetime | None) -> str:
    """`at 14:03:22 (22 s ago)`; without a clock only how long ago."""
    ago_s = ago_us / 1e6
    if now is None:
        return f"{seconds(round(ago_s))} ago"
    return f"at {clock(ago_us, now)} ({seconds(round(ago_s))} ago)"


def clock(ago_us: int, now: datetime) -> str:
    """The time of day of something that was so long ago."""
    return (now - timedelta(microseconds=ago_us)).strftime("%H:%M:%S")


def subscription(queue: str, pattern: str | None = None) -> str:
    """The subscription behind a queue: by its subscriber and, if that is known, its topic pattern."""
    name = queue.removeprefix(OUTPUT_PREFIX).rpartition(".")[0] or queue
    return f"{name} (subscribed to {pattern})" if pattern is not None else name


def sentence(text: str) -> str:
    """With a capital at its start and a full stop at its end."""
    text = text.strip()
    if not text:
        return ""
    return f"{text[0].upper()}{text[1:]}{'' if text[-1] in '.!?' else '.'}"
