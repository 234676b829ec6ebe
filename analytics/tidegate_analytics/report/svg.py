"""SVG by hand: a canvas, scales, and ticks that people like. Knows nothing of what is drawn.

Invariants: text that comes from outside is escaped. Numbers have two decimals at most, so that pages stay small. A
value beyond a scale is drawn at its end and never outside of the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10
from typing import Final

from .material import US, Span

INK: Final = "#1f2933"
MUTED: Final = "#52606d"
GRID: Final = "#e4e7eb"
BLUE: Final = "#0072b2"
ORANGE: Final = "#d55e00"
GREEN: Final = "#009e73"
PURPLE: Final = "#8a5fa8"
RED: Final = "#c0283d"
"""Told apart by people who don't see red and green, too: they differ in lightness."""
STATE_COLOURS: Final = {"LOW": "#a9d8c6", "HIGH": "#f2c14e", "OVERLOAD": RED, "N/A": "#c3cad1"}

_STEPS_S: Final = (
    1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800,
    604_800, 1_209_600, 2_592_000, 7_776_000, 31_536_000,
)  # fmt: skip
_RELATIVE_S_MAX: Final = 900
"""Up to a quarter of an hour, seconds since the start say more than the time of day."""
_CHARACTER: Final = 0.56
"""Width of a character, as a share of its height."""


def number(value: float) -> str:
    """As short as it can be."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def shortened(text: str, width: float, size: float = 12) -> str:
    """As much of a text as fits; the end of a topic says more than its beginning, so the middle is left out."""
    fits = max(4, int(width / (size * _CHARACTER)))
    if len(text) <= fits:
        return text
    tail = (fits - 1) * 2 // 3
    return f"{text[: fits - 1 - tail]}…{text[-tail:]}"


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places."""

    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return self.first + (self.last - self.first) * min(max(share, 0.0), 1.0)


class Canvas:
    """One picture. It scales with the page; its units are pixels at full size."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width = width
        self.height = height
        self._label = label
        self._parts: list[str] = []

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", colour: str = MUTED, size: float = 12,
        bold: bool = False,
    ) -> None:  # fmt: skip
        weight = ' font-weight="600"' if bold else ""
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._parts.append(
            f'<text x="{number(x)}" y="{number(y)}" fill="{colour}" font-size="{number(size)}"{place}{weight}>'
            f"{escape(text)}</text>"
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = GRID, *, width: float = 1, dash: str = ""
    ) -> None:
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" stroke="{colour}" '
            f'stroke-width="{number(width)}"{dashed}/>'
        )

    def path(
        self, points: Sequence[tuple[float, float]], colour: str, *, width: float = 1.8, dash: str = "", fill: str = ""
    ) -> None:
        """A line through points, or with `fill` the area they enclose."""
        if not points:
            return
        steps = " ".join(f"{number(x)} {number(y)}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        if fill:
            self._parts.append(f'<path d="M{steps}Z" fill="{fill}" stroke="none"/>')
        elif len(points) == 1:
            self.dot(*points[0], colour, radius=width)
        else:
            self._parts.append(
                f'<path d="M{steps}" fill="none" stroke="{colour}" stroke-width="{number(width)}" '
                f'stroke-linejoin="round"{dashed}/>'
            )

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, *, stroke: str = "", title: str = "",
        radius: float = 0,
    ) -> None:  # fmt: skip
        border = f' stroke="{stroke}" stroke-width="1.5"' if stroke else ""
        rounded = f' rx="{number(radius)}"' if radius else ""
        shape = (
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(max(width, 0.0))}" height="{number(height)}" '
            f'fill="{fill}"{border}{rounded}'
        )
        self._parts.append(shape + (f"><title>{escape(title)}</title></rect>" if title else "/>"))

    def dot(self, x: float, y: float, colour: str, *, radius: float = 4, hollow: bool = False, title: str = "") -> None:
        ink = f'fill="#fff" stroke="{colour}" stroke-width="2"' if hollow else f'fill="{colour}"'
        shape = f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" {ink} fill-opacity="0.85"'
        self._parts.append(shape + (f"><title>{escape(title)}</title></circle>" if title else "/>"))

    def arrow(self, x: float, y1: float, y2: float, colour: str, *, width: float = 1.6, title: str = "") -> None:
        """Straight up or down."""
        head = 6 if y2 > y1 else -6
        self.line(x, y1, x, y2 - head / 2, colour, width=width)
        shape = f"M{number(x - 4)} {number(y2 - head)}L{number(x + 4)} {number(y2 - head)}L{number(x)} {number(y2)}Z"
        tip = f"<title>{escape(title)}</title>" if title else ""
        self._parts.append(f'<path d="{shape}" fill="{colour}">{tip}</path>')

    def svg(self) -> str:
        """The element."""
        return (
            f'<svg viewBox="0 0 {number(self.width)} {number(self.height)}" width="{number(self.width)}" '
            f'height="{number(self.height)}" role="img" aria-label="{escape(self._label)}">{"".join(self._parts)}</svg>'
        )


class Key:
    """Coloured squares with words, in as many lines as it takes."""

    LINE: Final = 18

    def __init__(self, entries: Iterable[tuple[str, str]], width: float) -> None:
        self._lines: list[list[tuple[float, str, str]]] = [[]]
        left = 0.0
        for colour, words in entries:
            needed = 17 + len(words) * 12 * _CHARACTER
            if left and left + needed > width:
                self._lines.append([])
                left = 0.0
            self._lines[-1].append((left, colour, words))
            left += needed + 16

    @property
    def height(self) -> float:
        return self.LINE * len(self._lines)

    def draw(self, canvas: Canvas, top: float) -> None:
        for number, line in enumerate(self._lines):
            y = top + 12 + number * self.LINE
            for left, colour, words in line:
                canvas.rect(left, y - 9, 12, 10, colour, radius=2)
                canvas.text(left + 17, y, words)


def nice_step(span: float, count: int) -> float:
    """1, 2 or 5 times a power of ten, so that about `count` of it make up the span."""
    raw = span / max(count, 1)
    power = 10.0 ** floor(log10(raw)) if raw > 0 else 1.0
    return next(step * power for step in (1, 2, 5, 10) if step * power >= raw * 0.999)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round values from low to high."""
    step = nice_step(high - low, count)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [each * step for each in range(first, last + 1)]


def window_s(seconds: float, count: int) -> int:
    """A window that people like, so that at most `count` of them make up so many seconds."""
    return next((step for step in _STEPS_S if step * count >= seconds), _STEPS_S[-1])


class TimeAxis:
    """Where times are, and what is written there."""

    def __init__(self, span: Span, first: float, last: float) -> None:
        self._span = span
        self.first = first
        self.last = last
        self.relative = span.seconds <= _RELATIVE_S_MAX
        self._scale = Scale(span.start_us, span.end_us, first, last)

    def __call__(self, at_us: float) -> float:
        return self._scale(at_us)

    @property
    def title(self) -> str:
        start = datetime.fromtimestamp(self._span.start_us / US, UTC)
        return f"seconds since {start:%H:%M:%S} UTC" if self.relative else f"time, UTC, from {start:%Y-%m-%d %H:%M}"

    def ticks(self) -> list[tuple[float, str]]:
        """Places and words, as many as fit."""
        fit = max(2, int((self.last - self.first) / 64))
        step_s = window_s(self._span.seconds, fit)
        if self.relative:
            return [
                (self(self._span.start_us + at * US), f"{at:g} s") for at in ticks_of(0, self._span.seconds, step_s)
            ]
        start_s, end_s = self._span.start_us / US, self._span.end_us / US
        found = []
        for at in ticks_of(start_s, end_s, step_s):
            moment = datetime.fromtimestamp(at, UTC)
            words = f"{moment:%m-%d}" if step_s >= 86_400 or at % 86_400 == 0 else f"{moment:%H:%M}"
            found.append((self(at * US), words))
        return found


def ticks_of(low: float, high: float, step: float) -> list[float]:
    """Multiples of a step from low to high."""
    return [each * step for each in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
