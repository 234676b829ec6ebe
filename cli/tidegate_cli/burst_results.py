"""Results of the burst experiment for a person: one run, or all policies side by side. Fits into 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from tidegate_experiments.burst import scenario as ews
from tidegate_experiments.burst.compare import Comparison, Summary
from tidegate_experiments.burst.result import EwsResult, MoveRow
from tidegate_protocol.rendering.words import counted

from .console import err, out
from .tables import NARROW, listing, table

_MOVES_SHOWN_MAX: Final = 12
_RUNS_MANY: Final = 100
"""From here on "100 of 101" would be too wide."""
_SHARE_REMARKED: Final = 0.9995
"""What is published below this is shown as less than 100 %."""


def show_run(result: EwsResult) -> None:
    """The numbers, who was where, what was late, and who moved."""
    console = out()
    console.print(f"{ews.NAME}: {result.description}", style="italic", markup=False)
    console.print(listing(_lines(result)))
    if result.published_share < _SHARE_REMARKED:
        console.print(
            f"Remark: {result.published_share:.1%} of the messages asked for were published; publishers had to wait."
        )
    for edge, topics in result.placement.items():
        console.print(f"{edge} held topics {', '.join(map(str, topics)) or 'none'} before the burst")
    for topic, late in result.late_by_topic.items():
        console.print(f"topic {topic}: {late:,} late, published from {result.first_late_by_topic_s[topic]:.1f} s on")
    for line in _moves(result):
        console.print(line)


def _lines(result: EwsResult) -> list[tuple[str, str]]:
    def at(seconds: float | None) -> str:
        return "never" if seconds is None else f"at {seconds:.1f} s"

    return [
        (
            "published, of what was asked for",
            f"{result.published:,} of {result.asked:,} ({result.published_share:.1%})",
        ),
        ("deliveries", f"{result.deliveries:,}"),
        ("late", f"{result.late:,} ({result.late_fraction:.2%})"),
        ("first late", at(result.first_late_s)),
        ("lost, doubled, out of order", f"{result.lost}, {result.duplicates}, {result.out_of_order}"),
        ("sessions (after the burst)", f"{result.sessions} ({result.sessions_after_burst})"),
        ("of these unnecessary", f"{result.unnecessary_sessions} ({result.unnecessary_after_burst})"),
        ("first session", at(result.first_session_s)),
        ("subscriptions moved", str(result.migrations)),
        ("backlog cleared", _cleared(result)),
        ("control messages", f"{result.control_messages:,} ({result.control_overhead:.2%} of all)"),
        ("wall time", f"{result.wall_s:.1f} s"),
        *[(name.replace("_", " "), f"{value:g}") for name, value in result.harness.items()],
    ]


def _moves(result: EwsResult) -> Iterator[str]:
    """The moves after the burst first: the experiment is about them."""
    after = [move for move in result.moves if move.at_s >= result.burst_at_s]
    before = [move for move in result.moves if move.at_s < result.burst_at_s]
    shown = [*after, *before][:_MOVES_SHOWN_MAX]
    for move in shown:
        yield _move(move) + (", before the burst" if move.at_s < result.burst_at_s else "")
    left = len(result.moves) - len(shown)
    if left:
        where = ", before the burst" if len(shown) >= len(after) else ""
        yield f"… and {counted(left, 'more move')}{where}"


def _move(move: MoveRow) -> str:
    subscribers = counted(move.subscribers, "subscriber")
    return f"at {move.at_s:.1f} s topic {move.topic} ({subscribers}) moved from {move.source} to {move.target}"


def show_comparison(comparison: Comparison) -> None:
    """One block of policies for each burst factor."""
    console = out()
    workloads = len({row.workload for row in comparison.rows})
    console.print(
        f"{ews.NAME}: {counted(workloads, 'workload')}, {comparison.control} control, "
        f"{comparison.duration_s:g} s, scale {comparison.scale:g}; means of the runs, and the median until settled",
        style="italic",
    )
    numbers = ("\nlate", "all in\ntime", "ses-\nsions", "un-\nneeded", "\nmoved", "\nsettled", "settled\nafter")
    shown = table("\npolicy", *(f">{name}" for name in numbers), whole=("\npolicy",), **NARROW)
    for factor, group in groupby(comparison.summaries, key=lambda summary: summary.burst_factor):
        summaries = list(group)
        shown.add_row(f"burst × {factor:g}", style="bold")
        for summary in summaries:
            shown.add_row(*_cells(summary), end_section=summary is summaries[-1])
    console.print(shown)
    for remark in comparison.remarks:
        console.print(f"Remark: {remark}.")
    for problem in comparison.claims_broken:
        err().print(problem, style="red")
    if not comparison.claims_broken:
        console.print("Wherever some policy kept all deadlines, peer-wd did, and it started no session without need.")


def _cells(summary: Summary) -> tuple[str, ...]:
    return (
        summary.label,
        f"{summary.late_fraction:.2%}",
        _of(summary.kept, summary.runs),
        f"{summary.sessions:.1f}",
        f"{summary.unnecessary_sessions:.1f}",
        f"{summary.migrations:.1f}",
        _of(summary.settled, summary.runs),
        "never" if summary.settle_s is None else f"{summary.settle_s:.1f} s",
    )


def _of(count: int, runs: int) -> str:
    return f"{count} of {runs}" if runs < _RUNS_MANY else f"{count}/{runs}"


def _cleared(result: EwsResult) -> str:
    if not result.backlogged:
        return "there was none"
    return "not by the end" if result.backlog_cleared_s is None else f"at {result.backlog_cleared_s:.1f} s"
