"""Figures of `ews-burst`: uplink utilization and queue depth over time as in seed 000 §V, and policies compared.

Drawn without a display, straight to PNG files. Needs matplotlib, which is an extra: `FiguresUnavailable` says so.
Knows recorded rows only and computes nothing but what it draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, nan
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

from tidegate_simulator.errors import SimulatorError

from .compare import BURST_FACTORS, CONTESTANTS, Comparison, Summary
from .recorder import DecisionRow, Recorder, TopicRow
from .result import BACKLOG_MESSAGES, is_necessary_session, started_sessions
from .run import EwsRun
from .scenario import BURST_S, EDGES, topic_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES: Final = 8.0
HEIGHT_INCHES: Final = 4.5
DOTS_PER_INCH: Final = 100
LEGEND_INCHES: Final = 0.35
LINE_INCHES: Final = 0.15
"""Of the text below a figure."""
LEGEND_COLUMNS: Final = 8
DESCRIPTION_COLUMNS: Final = 110
SESSIONS_TOLD_MAX: Final = 6
"""How many sessions have their moves spelled out."""
MOVES_TOLD_MAX: Final = 5
MARKERS_APART: Final = 0.07
"""Of the distance between two burst factors."""

FIGURE_FILES: Final = ("uplink-utilization.png", "queue-depth.png")

_EDGE_COLOURS: Final = dict(zip(EDGES, ("#0072b2", "#d55e00", "#009e73", "#8a5fa8"), strict=True))
"""Told apart by people who don't see red and green, too."""
_EDGE_STYLES: Final = dict(zip(EDGES, ("-", "-", "--", "-."), strict=True))
_POLICY_COLOURS: Final = ("#0072b2", "#56b4e9", "#d55e00", "#009e73", "#777777")
_POLICY_MARKERS: Final = ("o", "s", "^", "D", "x")


class FiguresUnavailable(SimulatorError):
    """Matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__("drawing figures needs matplotlib; install it with: pip install 'tidegate[figures]'")


def check_available() -> None:
    """Raise `FiguresUnavailable` where nothing could be drawn."""
    _new_figure(1.0, 1.0)


def draw_run(run: EwsRun, folder: Path) -> tuple[Path, ...]:
    """The figures of one run; returns their files."""
    uplinks, depths = (folder / name for name in FIGURE_FILES)
    files = [draw_uplinks(run, uplinks)]
    depth = draw_queue_depth(run, depths)
    return (*files, depth) if depth is not None else tuple(files)


def draw_uplinks(run: EwsRun, path: Path) -> Path:
    """Uplink utilization of all edges over time (seed 000 Figures 3 and 5)."""
    figure, axes = _figure()
    for edge in EDGES:
        rows = [row for row in run.recorder.samples if row.edge == edge]
        axes.plot(
            [row.at_s for row in rows],
            [100 * row.utilization for row in rows],
            color=_EDGE_COLOURS[edge],
            linestyle=_EDGE_STYLES[edge],
            linewidth=1.6,
            label=edge,
        )
    axes.axhline(100, color="#444444", linewidth=0.8, linestyle=":")
    axes.set_ylabel("uplink utilization, offered (%)")
    top = max((100 * row.utilization for row in run.recorder.samples), default=100.0)
    axes.set_ylim(0, max(120.0, top * 1.08))
    return _finished(figure, axes, run, "Uplink utilization", path)


def draw_queue_depth(run: EwsRun, path: Path) -> Path | None:
    """Queue depth and threshold over time (seed 000 Figure 4) of the topic that was in danger most, where it was."""
    found = in_danger(run.recorder, run.result.burst_at_s)
    if found is None:
        return None
    topic, edge = found
    # Where the topic is away from the edge for a while, nothing is drawn.
    rows = [(row.at_s, row.topics.get(topic)) for row in run.recorder.samples if row.edge == edge]
    depths = [(at, row.depth if row else nan) for at, row in rows]
    judged = [(at, row.threshold if row and row.threshold is not None else nan) for at, row in rows]
    figure, axes = _figure()
    axes.plot(*zip(*depths, strict=True), color="#0072b2", linewidth=1.8, label="depth")
    axes.plot(
        *zip(*judged, strict=True),
        color="#d55e00",
        linestyle="--",
        linewidth=1.4,
        label=f"threshold ({run.result.threshold})",
    )
    axes.set_ylabel("messages waiting, deepest queue")
    values = [value for _, value in (*depths, *judged) if isfinite(value)]
    axes.set_ylim(min([0.0, *values]) * 1.1, max([1.0, *values]) * 1.08)
    return _finished(figure, axes, run, f"Queue depth of topic {topic_number(topic)} on {edge}", path, only=edge)


NO_DANGER: Final = (False, -1.0, 0.0)
"""Whether something waits, how far above the threshold, how much."""


def in_danger(recorder: Recorder, burst_at_s: float) -> tuple[str, str] | None:
    """The topic that, in two samples in a row after the burst, was furthest above its threshold or, if none was above,
    nearest to it; and the edge on which that was. A single sample may be that of a threshold in the middle of a step.
    """
    before: dict[tuple[str, str], tuple[bool, float, float]] = {}
    worst: tuple[bool, float, float] | None = None
    found: tuple[str, str] | None = None
    for row in recorder.samples:
        for topic, queues in row.topics.items():
            where = topic, row.edge
            # Less than a backlog is the grain of single messages, however low the threshold.
            danger = (queues.depth > BACKLOG_MESSAGES, _above(queues), queues.depth)
            lasting = min(danger, before.get(where, NO_DANGER))
            before[where] = danger
            if row.at_s >= burst_at_s and (worst is None or lasting > worst):
                worst, found = lasting, where
    return found


def _above(queues: TopicRow) -> float:
    """How far a depth is above its threshold, or below it, in parts of the larger of the two: -1 where nothing waits,
    0 at the threshold, near 1 far above it; more if the threshold is below 0.
    """
    if queues.threshold is None:
        return -1.0
    return (queues.depth - queues.threshold) / max(queues.depth, abs(queues.threshold), 1.0)


def draw_comparison(comparison: Comparison, path: Path) -> Path:
    """Lateness, sessions and settling of all contestants over the burst factor."""
    figure = _new_figure(11.0, 4.4)
    panels = figure.subplots(1, 3)
    summaries = comparison.summaries
    _panel(panels[0], summaries, "late deliveries (%)", lambda one: 100 * one.late_fraction)
    _panel(panels[1], summaries, "sessions per run", lambda one: one.sessions)
    _settling_panel(panels[2], summaries, comparison.duration_s - BURST_S)
    panels[0].set_yscale("symlog", linthresh=0.1)
    panels[0].set_yticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
    panels[0].set_ylim(-0.01, 100)
    workloads = len({row.workload for row in comparison.rows})
    title = f"ews-burst, {workloads} {'workload' if workloads == 1 else 'workloads'}, {comparison.control} control"
    title += f", {comparison.duration_s:g} s" + (f", scale {comparison.scale:g}" if comparison.scale != 1.0 else "")
    figure.suptitle(title, fontsize=11)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _settling_panel(axes: Axes, summaries: Sequence[Summary], longest_s: float) -> None:
    """The median of all runs. One that did not settle counts as longer than any that did: who settles only where that
    is easy would look fast otherwise.
    """
    never = longest_s * 1.12
    _panel(
        axes,
        summaries,
        "settled after the burst (s, median of all runs)",
        lambda one: never if one.settle_all_s is None else one.settle_all_s,
    )
    axes.axhline(longest_s, color="#444444", linewidth=0.8, linestyle=":")
    axes.set_ylim(0, longest_s * 1.2)
    ticks = [tick for tick in axes.get_yticks() if tick < longest_s]
    axes.set_yticks([*ticks, never], [*(f"{tick:g}" for tick in ticks), "not\nsettled"])


def _panel(axes: Axes, summaries: Sequence[Summary], title: str, value: Callable[[Summary], float]) -> None:
    positions = {factor: position for position, factor in enumerate(BURST_FACTORS)}
    for number, contestant in enumerate(CONTESTANTS):
        # Side by side, for many have the same value; and the default, which is the first, above all others.
        aside = (number - (len(CONTESTANTS) - 1) / 2) * MARKERS_APART
        points = [
            (positions[one.burst_factor] + aside, value(one)) for one in summaries if one.label == contestant.label
        ]
        axes.plot(
            [at for at, _ in points],
            [number for _, number in points],
            color=_POLICY_COLOURS[number],
            marker=_POLICY_MARKERS[number],
            linewidth=1.2,
            markersize=5.5,
            label=contestant.label,
            zorder=3 + len(CONTESTANTS) - number,
            clip_on=False,
        )
    axes.set_xticks(list(positions.values()), [f"× {factor:g}" for factor in BURST_FACTORS])
    axes.set_xlim(-0.4, len(positions) - 0.6)
    axes.set_xlabel("burst factor")
    axes.set_title(title, fontsize=10)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    _plain(axes)


def _finished(figure: Any, axes: Axes, run: EwsRun, what: str, path: Path, only: str | None = None) -> Path:
    """What all figures over time have in common: what run it is, the burst, the sessions, and a legend beside the
    curves, where it hides none of them.
    """
    axes.set_title("\n".join([what, *wrap(run.result.description, DESCRIPTION_COLUMNS)]), fontsize=9.5, pad=12)
    end, burst_at_s = run.result.duration_s, run.result.burst_at_s
    axes.set_xlim(0, end)
    axes.set_xlabel("time (s)")
    axes.grid(alpha=0.25)
    axes.axvline(burst_at_s, color="#999999", linewidth=1.2, label=f"burst × {run.result.burst_factor:g}")
    _plain(axes)
    moves = _mark_sessions(axes, run, only)
    figure.set_figheight(HEIGHT_INCHES + LINE_INCHES * len(moves))
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="lower center",
        ncols=LEGEND_COLUMNS,
        fontsize=9,
        frameon=False,
        title="\n".join(moves) or None,
        title_fontsize=8,
        alignment="center",
    )
    below = (LEGEND_INCHES + LINE_INCHES * len(moves)) / figure.get_figheight()
    figure.tight_layout(rect=(0, below, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _mark_sessions(axes: Axes, run: EwsRun, only: str | None) -> list[str]:
    """A triangle for each session, in the colour of the edge that asked for it; hollow where it was unnecessary.
    Returns, if they are few, what each of them moved.
    """
    sessions = [row for row in started_sessions(run.recorder) if only is None or row.broker == only]
    top = axes.get_ylim()[1]
    kinds: set[bool] = set()
    for row in sessions:
        needed = is_necessary_session(row)
        colour = _EDGE_COLOURS.get(row.broker, "#444444") if only is None else "#444444"
        axes.axvline(row.at_s, color=colour, linewidth=0.8, linestyle=(0, (2, 3)), alpha=0.7)
        axes.plot([row.at_s], [top], color=colour, clip_on=False, **_triangle(needed))
        kinds.add(needed)
    for needed in sorted(kinds, reverse=True):
        label = "session" if needed else "unnecessary session"
        axes.plot([], [], color="#444444", label=label, **_triangle(needed))
    return [_moves(row, run.recorder) for row in sessions] if len(sessions) <= SESSIONS_TOLD_MAX else []


def _moves(session: DecisionRow, recorder: Recorder) -> str:
    moved = [one for one in recorder.moved if one.session == session.decision.session]
    texts = [f"topic {topic_number(one.topic)} {one.source} → {one.target}" for one in moved[:MOVES_TOLD_MAX]]
    if len(moved) > MOVES_TOLD_MAX:
        texts.append(f"{len(moved) - MOVES_TOLD_MAX} more")
    return f"session at {session.at_s:.1f} s: {', '.join(texts) or 'nobody moved'}"


def _triangle(filled: bool) -> dict[str, Any]:
    return {
        "marker": "v",
        "markersize": 7,
        "linestyle": "none",
        "fillstyle": "full" if filled else "none",
        "zorder": 5,
    }


def _plain(axes: Axes) -> None:
    axes.spines["top"].set_visible(False)
    axes.spines["right"].set_visible(False)


def _figure() -> tuple[Any, Axes]:
    figure = _new_figure(WIDTH_INCHES, HEIGHT_INCHES)
    return figure, figure.subplots()


def _new_figure(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FiguresUnavailable from error
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    return figure
