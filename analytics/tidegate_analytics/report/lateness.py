"""Lateness of topics over time: a row per topic, a cell per window, blue for latency by the deadline, red for late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .material import US, LatenessPoint, Span, TopicLateness
from .panels import NARROW
from .svg import GRID, INK, MUTED, Canvas, TimeAxis, shortened

_ROW: Final = 24
_CELL: Final = 18
_BLUES: Final = ("#eaf2f8", "#c9dfee", "#9cc5e0", "#64a3cc", "#3179ad")
"""p99 up to 20, 40, 60, 80 and 100 % of the deadline."""
_REDS: Final = ((0.01, "#f6b8a6"), (0.1, "#e8765c"), (0.5, "#c0283d"), (1.01, "#7d0f24"))
"""Late up to 1, 10, 50 and 100 % of the messages."""


def draw_lateness(topics: Sequence[TopicLateness], span: Span, width: int) -> str:
    """All topics that were chosen."""
    narrow = width <= NARROW
    left = 108 if narrow else 210
    right = 62 if narrow else 200
    bottom = 28 + _ROW * len(topics)
    canvas = Canvas(width, bottom + 86, "Lateness of topics over time")
    axis = TimeAxis(span, left, width - right)
    canvas.text(0, 14, "topic, deadline", size=12)
    canvas.text(width, 14, "late" if narrow else "late of received", anchor="end", size=12)
    for number, topic in enumerate(topics):
        _row(canvas, axis, topic, 22 + number * _ROW, span, left, width, narrow=narrow)
    for place, words in axis.ticks():
        canvas.line(place, bottom - 4, place, bottom, MUTED)
        canvas.text(place, bottom + 13, words, anchor="middle", size=11)
    canvas.text(width - right, bottom + 29, axis.title, anchor="end")
    _legend(canvas, bottom + 50, width)
    return canvas.svg()


def _row(
    canvas: Canvas, axis: TimeAxis, topic: TopicLateness, top: float, span: Span, left: float, width: float, *,
    narrow: bool,
) -> None:  # fmt: skip
    deadline = f"{topic.deadline_us / US:g} s"
    name = shortened(topic.pattern, left - 16 - len(deadline) * 7)
    canvas.text(0, top + 14, name, colour=INK)
    canvas.text(left - 8, top + 14, deadline, anchor="end", size=11)
    canvas.rect(axis.first, top, axis.last - axis.first, _CELL, "#f5f7fa")
    for point in topic.points:
        begins, ends = axis(point.at_us), axis(point.at_us + span.detail_s * US)
        words = f"{topic.pattern}: {point.late} of {point.received} late"
        if point.p99_us is not None:
            words += f", p99 {point.p99_us / US:.3f} s of {deadline}"
        canvas.rect(begins, top, ends - begins + 0.2, _CELL, colour_of(point, topic.deadline_us), title=words)
    share = f"{topic.late_share:.1%}" if topic.late else "none"
    told = share if narrow or not topic.late else f"{share}  ({topic.late:,} of {topic.received:,})"
    canvas.text(width, top + 14, told, anchor="end", colour=INK if topic.late else MUTED, bold=bool(topic.late))
    canvas.line(0, top + _CELL + 3, width, top + _CELL + 3, GRID)


def colour_of(point: LatenessPoint, deadline_us: int) -> str:
    """Red as soon as one message was late, or else by the latency that 99 % kept."""
    if point.late and point.received:
        share = point.late / point.received
        return next(colour for bound, colour in _REDS if share < bound)
    if point.p99_us is None:
        return "#ffffff"
    step = int(point.p99_us / deadline_us * len(_BLUES))
    return _BLUES[min(max(step, 0), len(_BLUES) - 1)]


def _legend(canvas: Canvas, y: float, width: float) -> None:
    """Two scales, one below the other."""
    scales = (
        ("p99 up to … % of deadline, none late", _BLUES, ("20", "40", "60", "80", "100")),
        ("up to … % of the messages late", tuple(colour for _, colour in _REDS), ("1", "10", "50", "100")),
    )
    for number, (words, colours, bounds) in enumerate(scales):
        top = y + number * 20
        for place, (colour, bound) in enumerate(zip(colours, bounds, strict=True)):
            canvas.rect(place * 24, top - 9, 24, 11, colour)
            canvas.text(place * 24 + 12, top, bound, anchor="middle", size=9, colour=INK if place < 3 else "#ffffff")
        canvas.text(24 * 5 + 8, top, shortened(words, width - 130, 11), size=11)
