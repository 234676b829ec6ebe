"""The heat map of topics whose rates go together."""

from __future__ import annotations

from typing import Final

from .material import Correlations
from .svg import INK, MUTED, Canvas, shortened

_CELL_MAX: Final = 40
_WORDS_FROM: Final = 30
"""A cell of so many pixels has room for its number."""
_RISING: Final = (192, 40, 61)
_OPPOSED: Final = (0, 114, 178)


def shade(coefficient: float) -> str:
    """White at 0, red towards 1, blue towards −1."""
    end = _RISING if coefficient >= 0 else _OPPOSED
    share = min(abs(coefficient), 1.0)
    return "#" + "".join(f"{round(255 + (channel - 255) * share):02x}" for channel in end)


def draw_correlations(found: Correlations, width: int) -> str:
    """Topics by number across, and with their names down."""
    count = len(found.topics)
    left = min(230.0, width * 0.36)
    cell = min(_CELL_MAX, (width - left - 4) / count)
    bottom = 20 + cell * count
    canvas = Canvas(width, bottom + 42, "Correlation of the rates of topics")
    for row, name in enumerate(found.topics):
        top = 20 + row * cell
        canvas.text(0, top + cell / 2 + 4, f"{row + 1}", colour=MUTED, size=11)
        canvas.text(18, top + cell / 2 + 4, shortened(name, left - 26), colour=INK)
        canvas.text(left + (row + 0.5) * cell, 13, f"{row + 1}", anchor="middle", size=11)
        for column, other in enumerate(found.topics):
            _cell(canvas, found, row, column, left + column * cell, top, cell, name, other)
    _scale(canvas, left, bottom + 22)
    return canvas.svg()


def _cell(
    canvas: Canvas, found: Correlations, row: int, column: int, x: float, y: float, size: float, name: str, other: str
) -> None:
    if row == column:
        canvas.rect(x, y, size - 1, size - 1, "#eef1f4")
        return
    coefficient = found.coefficients[row][column]
    if coefficient is None:
        canvas.rect(x, y, size - 1, size - 1, "#f7f9fa", title=f"{name} or {other} hardly changes")
        return
    told = (min(name, other), max(name, other)) in found.told
    words = f"{name} and {other}: {coefficient:.2f}"
    canvas.rect(x, y, size - 1, size - 1, shade(coefficient), title=words + (", not by chance" if told else ""))
    if size >= _WORDS_FROM:
        ink = "#ffffff" if abs(coefficient) > 0.6 else INK
        text = f"{coefficient:.1f}".replace("-", "−").replace("−0.0", "0.0")
        canvas.text(x + size / 2 - 0.5, y + size / 2 + 4, text, anchor="middle", size=11, colour=ink)
    if told:
        canvas.rect(x + 1, y + 1, size - 3, size - 3, "none", stroke=INK)


def _scale(canvas: Canvas, left: float, y: float) -> None:
    for step in range(9):
        value = (step - 4) / 4
        canvas.rect(left + step * 14, y - 9, 14, 11, shade(value))
    canvas.text(left - 6, y, "−1", anchor="end", size=11)
    canvas.text(left + 9 * 14 + 6, y, "+1", size=11)
