"""Predicted against measured: every dot is one metric of one broker after one session; on the diagonal it came true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .material import Predicted
from .svg import BLUE, GRID, INK, MUTED, ORANGE, Canvas, Key, Scale, ticks

_SIDES: Final = {"source": BLUE, "target": ORANGE}
_WIDTH_MAX: Final = 340
_WITHIN: Final = 0.05
"""The band that is shaded: five percentage points off."""


def draw_predictions(predictions: Sequence[Predicted], width: int) -> str:
    """A square, as large as is sensible."""
    width = min(width, _WIDTH_MAX)
    size = width - 66
    left, top = 58.0, 10.0
    entries = [(BLUE, "edge that moved clients away"), (ORANGE, "edge that took them"), ("#dde6ee", "within 5 points")]
    key = Key(entries, width)
    canvas = Canvas(width, top + size + 44 + key.height, "Predicted against measured utilization")
    most = max(max(one.predicted, one.measured) for one in predictions)
    high = max(0.2, 1.08 * most)
    x, y = Scale(0, high, left, left + size), Scale(0, high, top + size, top)
    band = _WITHIN
    corners = [(0.0, band), (high - band, high), (high, high), (high, high - band), (band, 0.0), (0.0, 0.0)]
    canvas.path([(x(one), y(other)) for one, other in corners], "", fill="#eef3f7")
    for value in ticks(0, high, 5):
        canvas.line(x(value), top, x(value), top + size, GRID)
        canvas.line(left, y(value), left + size, y(value), GRID)
        canvas.text(x(value), top + size + 16, f"{value:.0%}", anchor="middle", size=11)
        canvas.text(left - 6, y(value) + 4, f"{value:.0%}", anchor="end", size=11)
    canvas.line(x(0), y(0), x(high), y(high), MUTED, dash="4 3")
    for one in predictions:
        words = (
            f"{one.session}: {one.metric} of {one.broker} predicted {one.predicted:.1%}, measured {one.measured:.1%}"
        )
        canvas.dot(x(one.predicted), y(one.measured), _SIDES.get(one.side, MUTED), radius=4.5, title=words)
    canvas.text(left + size, top + size + 34, "predicted utilization", anchor="end", colour=INK)
    canvas.text(left + 6, top + 14, "↑ measured", colour=INK)
    key.draw(canvas, top + size + 42)
    return canvas.svg()
