"""Small charts over time in one picture, all with the same time axis: one moment is at one place in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from .material import Span
from .svg import GRID, INK, MUTED, Canvas, Key, Scale, TimeAxis, shortened, ticks

WIDE: Final = 900
NARROW: Final = 360
"""Pixels of a picture for a laptop, and for a phone; each is drawn for itself, so that text is legible on both."""
LEFT: Final = 44
RIGHT: Final = 8
TITLE: Final = 22
FOOT: Final = 22
GAP: Final = 14


@dataclass(frozen=True, slots=True)
class Panel:
    """One small chart: its scales, and the place of its plot."""

    canvas: Canvas
    x: TimeAxis
    y: Scale
    top: float
    bottom: float

    def level(self, value: float, colour: str, words: str = "", *, dash: str = "4 3", below: bool = False) -> None:
        """A line across, with words at its left end, where most courses begin low."""
        at = self.y(value)
        self.canvas.line(self.x.first, at, self.x.last, at, colour, dash=dash)
        if words:
            self.canvas.text(self.x.first + 3, at + (11 if below else -3), words, colour=colour, size=11)

    def places(self, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(self.x(at_us), self.y(value)) for at_us, value in points]


class PanelGrid:
    """Lays panels out: two beside each other where there is room."""

    def __init__(
        self, span: Span, width: int, count: int, height: int, label: str, entries: Iterable[tuple[str, str]]
    ) -> None:
        self._span = span
        self._columns = 2 if width >= WIDE and count > 1 else 1
        self._height = height
        rows = -(-count // self._columns)
        self._row_height = TITLE + height + FOOT + GAP
        self._column_width = (width - (self._columns - 1) * GAP) / self._columns
        bottom = rows * self._row_height
        key = Key(entries, width)
        self.canvas = Canvas(width, bottom + 22 + key.height, label)
        self.canvas.text(width - RIGHT, bottom + 12, TimeAxis(span, 0, width).title, anchor="end")
        key.draw(self.canvas, bottom + 20)

    def panel(self, number: int, title: str, subtitle: str, y_max: float, unit: str) -> Panel:
        """The panel with this number, from 0; its axes are drawn."""
        row, column = divmod(number, self._columns)
        left = column * (self._column_width + GAP)
        top = row * self._row_height + TITLE
        bottom = top + self._height
        x = TimeAxis(self._span, left + LEFT, left + self._column_width - RIGHT)
        panel = Panel(self.canvas, x, Scale(0.0, y_max, bottom, top), top, bottom)
        canvas, room = self.canvas, x.last - x.first
        head = shortened(title, room * 0.6, 13)
        canvas.text(x.first, top - 8, head, colour=INK, size=13, bold=True)
        rest = room - len(head) * 13 * 0.6 - 12
        if subtitle and rest > 40:
            canvas.text(x.last, top - 8, shortened(subtitle, rest), anchor="end")
        for value in ticks(0.0, y_max, max(2, self._height // 36)):
            canvas.line(x.first, panel.y(value), x.last, panel.y(value), GRID)
            canvas.text(x.first - 5, panel.y(value) + 4, f"{value:g}{unit}", anchor="end", size=11)
        for place, words in x.ticks():
            canvas.line(place, bottom, place, bottom + 4, MUTED)
            canvas.text(place, bottom + 24, words, anchor="middle", size=11)
        return panel
