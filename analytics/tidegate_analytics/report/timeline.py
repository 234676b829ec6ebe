"""Sessions and moves on a time line: a lane per broker, bars for its sessions, arrows for who moved where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .material import US, Move, Session, Span
from .svg import BLUE, GREEN, GRID, INK, MUTED, ORANGE, RED, Canvas, Key, TimeAxis, shortened

_LANE: Final = 46
_BAR: Final = 14
_LANES_MAX: Final = 14
_IN_VAIN: Final = "#b6c2cd"
_BAR_MIN: Final = 4
"""Pixels: a session of milliseconds is seen all the same."""


def lanes_of(sessions: Sequence[Session], moves: Sequence[Move]) -> list[str]:
    """The brokers that took part, those with most to tell first if there are too many, in the order of their names."""
    told: dict[str, int] = {}
    for session in sessions:
        told[session.source] = told.get(session.source, 0) + 1
    for move in moves:
        for broker in (move.source, move.target):
            told[broker] = told.get(broker, 0) + 1
    most = sorted(told, key=lambda broker: (-told[broker], broker))[:_LANES_MAX]
    return sorted(most)


def draw_timeline(sessions: Sequence[Session], moves: Sequence[Move], span: Span, width: int) -> str:
    """Everything that was done, by time."""
    lanes = lanes_of(sessions, moves)
    left = 64 if width < 600 else 110
    bottom = 12 + _LANE * len(lanes)
    entries = [
        (BLUE, "session"),
        (ORANGE, "one that was not necessary"),
        (_IN_VAIN, "one in which nobody could be moved"),
        (GREEN, "clients moved, from lane to lane"),
        (RED, "a move that failed"),
    ]
    key = Key(entries, width)
    canvas = Canvas(width, bottom + 44 + key.height, "Sessions and moves over time")
    axis = TimeAxis(span, left, width - 12)
    middles = {lane: 12 + _LANE * place + _LANE / 2 for place, lane in enumerate(lanes)}
    for lane, middle in middles.items():
        canvas.text(0, middle + 4, shortened(lane, left - 8), colour=INK, bold=True)
        canvas.line(left, middle, width - 12, middle, GRID, width=2)
    for place, words in axis.ticks():
        canvas.line(place, bottom, place, bottom + 4, MUTED)
        canvas.text(place, bottom + 17, words, anchor="middle", size=11)
    canvas.text(width - 12, bottom + 33, axis.title, anchor="end")
    for session in sessions:
        if session.source in middles:
            _session(canvas, axis, session, middles[session.source], span)
    for move in moves:
        if move.source in middles and move.target in middles:
            _move(canvas, axis, move, middles)
    key.draw(canvas, bottom + 42)
    return canvas.svg()


def _session(canvas: Canvas, axis: TimeAxis, session: Session, middle: float, span: Span) -> None:
    begins = axis(session.began_us)
    ends = axis(session.ended_us if session.ended_us is not None else session.began_us)
    colour = _IN_VAIN if not session.moved else ORANGE if session.necessary is False else BLUE
    words = f"{session.session}: at {span.after_s(session.began_us):.1f} s, {session.moved} moved"
    if session.ended_us is not None:
        words += f", took {(session.ended_us - session.began_us) / US:.1f} s"
    canvas.rect(begins, middle - _BAR / 2, max(ends - begins, _BAR_MIN), _BAR, colour, radius=2, title=words)


def _move(canvas: Canvas, axis: TimeAxis, move: Move, middles: dict[str, float]) -> None:
    colour = RED if move.failed else GREEN
    place = axis((move.began_us + move.ended_us) / 2)
    first, last = middles[move.source], middles[move.target]
    words = f"{move.moved} of {move.pattern or 'publishers'} from {move.source} to {move.target}"
    if move.failed:
        words += f", {move.failed} failed"
    canvas.arrow(place, first, last, colour, width=min(1.2 + 0.25 * move.moved, 4.0), title=words)
