"""Figures of `ews-burst`: uplink utilization and queue depth over time as in seed 000 §V, and policies compared.

Drawn without a display, straight to PNG files. Needs matplotlib, which is an extra: `FiguresUnavailable` says so.
Knows recorded rows only and computes nothing but what it draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import SimulatorError
from .compare import BURST_FACTORS, CONTESTANTS, Comparison, Summary
from .ews import EDGES, topic_name, topic_number
from .recorder import Recorder
from .result import is_necessary_session, started_sessions
from .run import EwsRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES: Final = 8.0
HEIGHT_INCHES: Final = 4.5
DOTS_PER_INCH: Final = 100

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
    files = [draw_uplinks(run, folder / "uplink-utilization.png")]
    depth = draw_queue_depth(run, folder / "queue-depth.png")
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
    axes.set_title(f"Uplink utilization, {_describe(run)}", fontsize=11, pad=12)
    top = max((100 * row.utilization for row in run.recorder.samples), default=100.0)
    axes.set_ylim(0, max(120.0, top * 1.12))
    _mark_time(axes, run)
    _mark_sessions(axes, run)
    axes.legend(loc="lower right", ncols=2, fontsize=9)
    return _saved(figure, path)


def draw_queue_depth(run: EwsRun, path: Path, topic: int = 8) -> Path | None:
    """Queue depth and threshold of one topic over time (seed 000 Figure 4), on the edge that held it at the burst."""
    edge = _edge_of(run.recorder, topic, run.result.burst_at_s)
    if edge is None:
        return None
    name = topic_name(topic)
    rows = [(row.at_s, row.topics[name]) for row in run.recorder.samples if row.edge == edge and name in row.topics]
    figure, axes = _figure()
    axes.plot([at for at, _ in rows], [row.depth for _, row in rows], color="#0072b2", linewidth=1.8, label="depth")
    judged = [(at, row.threshold) for at, row in rows if row.threshold is not None]
    axes.plot(
        [at for at, _ in judged],
        [threshold for _, threshold in judged],
        color="#d55e00",
        linestyle="--",
        linewidth=1.4,
        label=f"threshold ({run.result.threshold})",
    )
    axes.set_ylabel("messages waiting, deepest queue")
    axes.set_title(f"Queue depth of topic {topic} on {edge}, {_describe(run)}", fontsize=11, pad=12)
    bottom = min([0.0, *(threshold for _, threshold in judged)])
    highest = max([1.0, *(row.depth for _, row in rows), *(threshold for _, threshold in judged)])
    axes.set_ylim(bottom * 1.1, highest * 1.15)
    _mark_time(axes, run)
    _mark_sessions(axes, run, only=edge)
    axes.legend(loc="upper left", fontsize=9)
    return _saved(figure, path)


def draw_comparison(comparison: Comparison, path: Path) -> Path:
    """Lateness, sessions and settling of all contestants over the burst factor."""
    figure = _new_figure(11.0, 4.2)
    panels = figure.subplots(1, 3)
    summaries = comparison.summaries
    _panel(panels[0], summaries, "late deliveries (%)", lambda one: 100 * one.late_fraction)
    _panel(panels[1], summaries, "sessions per run", lambda one: one.sessions)
    _panel(panels[2], summaries, "settled after the burst (s, median)", lambda one: one.settle_s)
    panels[0].set_yscale("symlog", linthresh=0.1)
    panels[0].set_yticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
    panels[0].set_ylim(-0.01, 100)
    workloads = len({row.workload for row in comparison.rows})
    figure.suptitle(f"ews-burst, {workloads} workloads, {comparison.control} control", fontsize=11)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _panel(axes: Axes, summaries: Sequence[Summary], title: str, value: Any) -> None:
    positions = {factor: position for position, factor in enumerate(BURST_FACTORS)}
    for contestant, colour, marker in zip(CONTESTANTS, _POLICY_COLOURS, _POLICY_MARKERS, strict=True):
        points = [(positions[one.burst_factor], value(one)) for one in summaries if one.label == contestant.label]
        shown = [(at, number) for at, number in points if number is not None]
        axes.plot(
            [at for at, _ in shown],
            [number for _, number in shown],
            color=colour,
            marker=marker,
            linewidth=1.4,
            label=contestant.label,
        )
    axes.set_xticks(list(positions.values()), [f"× {factor:g}" for factor in BURST_FACTORS])
    axes.set_xlim(-0.3, len(positions) - 0.7)
    axes.set_xlabel("burst factor")
    axes.set_title(title, fontsize=10)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    _plain(axes)


def _describe(run: EwsRun) -> str:
    result = run.result
    workload = f"random workload {result.seed}" if result.random else "the paper's workload"
    if result.backend != "sim":
        workload += f", on {result.backend}"
    threshold = f", {result.threshold} threshold" if result.policy == "peer-wd" else ""
    return f"policy {result.policy}{threshold}, {workload}"


def _edge_of(recorder: Recorder, topic: int, burst_at_s: float) -> str | None:
    name = topic_name(topic)
    holding = [row for row in recorder.samples if row.at_s <= burst_at_s and name in row.topics]
    if not holding:
        return None
    last = max(row.at_s for row in holding)
    # A topic that is spread over several edges is shown where most of it is.
    return max((row for row in holding if row.at_s == last), key=lambda row: row.topics[name].subscribers).edge


def _mark_time(axes: Axes, run: EwsRun) -> None:
    end, burst_at_s = run.result.duration_s, run.result.burst_at_s
    axes.set_xlim(0, end)
    axes.set_xlabel("time (s)")
    axes.grid(alpha=0.25)
    if end > burst_at_s:
        axes.axvline(burst_at_s, color="#999999", linewidth=1.0)
        top = axes.get_ylim()[1]
        text = f"burst × {run.result.burst_factor:g}"
        axes.text(burst_at_s - 0.6, top * 0.97, text, ha="right", va="top", fontsize=9)
    _plain(axes)


LABELS_MAX: Final = 4
"""How many sessions have their moves spelled out; more would hide the curves."""
MOVES_LABELLED_MAX: Final = 3


def _mark_sessions(axes: Axes, run: EwsRun, only: str | None = None) -> None:
    """A triangle for each session, in the colour of the edge that asked for it; hollow where it was unnecessary."""
    sessions = [row for row in started_sessions(run.recorder) if only is None or row.broker == only]
    top = axes.get_ylim()[1]
    moves: dict[str, list[str]] = {}
    for moved in run.recorder.moved:
        text = f"topic {topic_number(moved.topic)}: {moved.source} → {moved.target}"
        moves.setdefault(moved.session, []).append(text)
    kinds: set[bool] = set()
    for number, row in enumerate(sessions):
        needed = is_necessary_session(row)
        colour = _EDGE_COLOURS.get(row.broker, "#444444") if only is None else "#444444"
        axes.axvline(row.at_s, color=colour, linewidth=0.8, linestyle=(0, (2, 3)), alpha=0.7)
        axes.plot([row.at_s], [top], color=colour, clip_on=False, **_triangle(needed))
        kinds.add(needed)
        if len(sessions) <= LABELS_MAX:
            found = moves.get(row.decision.session, ["nobody moved"])
            more = [f"and {len(found) - MOVES_LABELLED_MAX} more"] if len(found) > MOVES_LABELLED_MAX else []
            text = "\n".join(found[:MOVES_LABELLED_MAX] + more)
            height = top * (0.965 - 0.15 * (number % 3))
            axes.text(row.at_s + 0.7, height, text, fontsize=8, va="top", color=colour)
    for needed in sorted(kinds, reverse=True):
        label = "session" if needed else "unnecessary session"
        axes.plot([], [], color="#444444", label=label, **_triangle(needed))


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


def _saved(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
