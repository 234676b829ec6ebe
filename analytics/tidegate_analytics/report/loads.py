"""Charts of load: what each uplink was asked for, with states, and what waited in queues against what might have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .material import US, BrokerLoad, QueueDepth, QueuePoint, Session, Span
from .panels import PanelGrid
from .svg import BLUE, INK, MUTED, ORANGE, PURPLE, STATE_COLOURS

_HEIGHT: Final = 92
_STRIP: Final = 7
_GAP_WINDOWS: Final = 6
"""A line is not drawn across more windows than that without a sample."""


class Lines(NamedTuple):
    """Where the load management begins to look at an uplink, and where it is full."""

    low: float = 0.90
    full: float = 1.0


def draw_loads(loads: Sequence[BrokerLoad], sessions: Sequence[Session], span: Span, width: int, lines: Lines) -> str:
    """A panel per edge: utilization, the strip of its states, and a mark where clients were moved away."""
    entries = [
        (BLUE, "offered to the uplink, % of its bandwidth"),
        *[(colour, f"state {state}") for state, colour in STATE_COLOURS.items()],
        (PURPLE, "clients were moved away"),
    ]
    grid = PanelGrid(span, width, len(loads), _HEIGHT, "Uplink utilization of edges over time", entries)
    top = max(max(point.uplink for point in load.points) for load in loads)
    y_max = max(120.0, 110.0 * top)
    for number, load in enumerate(loads):
        highest = load.highest.uplink
        panel = grid.panel(number, load.broker, f"at most {highest:.0%}", y_max, " %")
        panel.level(100 * lines.low, "#b7791f", f"low {lines.low:.0%}", below=True)
        panel.level(100 * lines.full, MUTED, "full", dash="")
        for session in sessions:
            if session.source == load.broker and session.moved:
                place = panel.x(session.began_us)
                grid.canvas.line(place, panel.top, place, panel.bottom, PURPLE, dash="2 3")
        points = panel.places([(point.at_us, 100 * point.uplink) for point in load.points])
        grid.canvas.path(points, BLUE)
        half_us = span.window_s * US // 2
        for point in load.points:
            left, right = panel.x(point.at_us - half_us), panel.x(point.at_us + half_us)
            grid.canvas.rect(left, panel.bottom + 3, right - left + 0.3, _STRIP, STATE_COLOURS[point.state])
    return grid.canvas.svg()


def draw_queues(queues: Sequence[QueueDepth], span: Span, width: int) -> str:
    """A panel per subscription: depth and threshold, and where it was moved to another edge."""
    entries = [
        (BLUE, "messages that wait (depth)"),
        (ORANGE, "messages that may wait (threshold)"),
        (PURPLE, "moved to another edge"),
    ]
    grid = PanelGrid(span, width, len(queues), _HEIGHT, "Queue depth against threshold over time", entries)
    for number, queue in enumerate(queues):
        top = max(max(point.depth, min(point.threshold, 4 * point.depth + 10)) for point in queue.points)
        title = f"{queue.subscriber} · {queue.pattern}"
        panel = grid.panel(number, title, f"deadline {queue.deadline_us / US:g} s", max(5.0, 1.15 * top), "")
        for piece in _pieces(queue.points, span):
            places = panel.places([(point.at_us, max(point.threshold, 0.0)) for point in piece])
            grid.canvas.path(places, ORANGE, dash="5 3")
            grid.canvas.path(panel.places([(point.at_us, point.depth) for point in piece]), BLUE)
        free, line = 0.0, 0
        for before, after in zip(queue.points, queue.points[1:], strict=False):
            if before.broker != after.broker:
                place, words = panel.x((before.at_us + after.at_us) / 2), f"to {after.broker}"
                # Moves in quick succession have their words one below the other.
                line = line + 1 if place < free else 0
                free = place + 8 * len(words)
                grid.canvas.line(place, panel.top, place, panel.bottom, PURPLE, dash="2 3")
                grid.canvas.text(place + 4, panel.top + 11 + 12 * line, words, colour=INK, size=11)
    return grid.canvas.svg()


def _pieces(points: Sequence[QueuePoint], span: Span) -> list[list[QueuePoint]]:
    """Cut where nothing is known for long: a queue is told while it is among those nearest to their thresholds."""
    pieces: list[list[QueuePoint]] = []
    for point in points:
        if not pieces or point.at_us - pieces[-1][-1].at_us > max(_GAP_WINDOWS * span.window_s, 25) * US:
            pieces.append([])
        pieces[-1].append(point)
    return pieces
