"""Policies side by side: every contestant on every workload at every burst factor, and what they came to.

Invariant: all contestants of one workload and factor get the very same traffic; the outcome does not depend on how many
processes share the work; rows come in the order of workload, factor and contestant.

The claim that is checked (`claims_broken`): where some policy keeps every deadline, the deadline-aware one does, too,
and it never starts a session that was not necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from math import inf
from statistics import mean, median
from typing import Any, Final

from tidegate_agents.load.threshold import ThresholdKind
from tidegate_simulator.workers import map_in_order

from .result import PUBLISHED_SHARE_MIN, EwsResult
from .run import run_ews
from .scenario import BURST_S, DURATION_S, EwsOptions

BURST_FACTORS: Final = (1.5, 2.0, 3.0, 5.0)
SEEDS_MAX: Final = 1_000
JOBS_MAX: Final = 64

Progress = Callable[[int, int], None]
"""How many runs are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy as it is compared."""

    label: str
    policy: str
    threshold: ThresholdKind = ThresholdKind.PROJECTED

    @property
    def deadline_aware(self) -> bool:
        return self.policy == "peer-wd"


CONTESTANTS: Final = (
    Contestant("peer-wd (projected)", "peer-wd"),
    Contestant("peer-wd (paper)", "peer-wd", ThresholdKind.PAPER),
    Contestant("peer", "peer"),
    Contestant("random", "random"),
    Contestant("none", "none"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One run to be made. Workload 0 is the paper's own, the others are random."""

    contestant: Contestant
    workload: int
    burst_factor: float
    instant: bool
    duration_s: float
    scale: float

    @property
    def options(self) -> EwsOptions:
        return EwsOptions(
            policy=self.contestant.policy,
            seed=self.workload,
            random=self.workload > 0,
            burst_factor=self.burst_factor,
            threshold=self.contestant.threshold,
            instant=self.instant,
            duration_s=self.duration_s,
            scale=self.scale,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """What one run came to. Fields that a result has, too, are copied from it by their names."""

    label: str
    workload: int
    burst_factor: float
    deliveries: int
    late: int
    late_fraction: float
    sessions: int
    sessions_after_burst: int
    unnecessary_sessions: int
    migrations: int
    settled_s: float | None
    lost: int
    duplicates: int
    out_of_order: int
    asked: int = 0
    published: int = 0
    """Fewer than were asked for where publishers had to wait."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One contestant at one burst factor, over all workloads."""

    label: str
    burst_factor: float
    runs: int
    late: int
    late_fraction: float
    """Of all deliveries of all its runs."""
    kept: int
    """Runs without a late delivery."""
    sessions: float
    unnecessary_sessions: float
    migrations: float
    """These three: the mean of a run."""
    settled: int
    settle_s: float | None
    """The median, in seconds after the burst, of the runs that settled; of how many is `settled`."""
    settle_all_s: float | None
    """The median of all runs, where one that did not settle takes longer than any that did; None if that is one such,
    so that nobody looks fast for having settled only where it was easy."""
    published_fraction: float
    """Of what was asked for, in all its runs."""


@dataclass(frozen=True, slots=True)
class Comparison:
    rows: tuple[Row, ...]
    control: str
    duration_s: float
    scale: float

    @property
    def summaries(self) -> tuple[Summary, ...]:
        return tuple(_summaries(self.rows))

    @property
    def claims_broken(self) -> tuple[str, ...]:
        return tuple(claims_broken(self.rows))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the numbers has to know: at which burst factors less was published than asked for."""
        return tuple(_remarks(self.rows))


def cases(seeds: int, *, instant: bool = True, duration_s: float = DURATION_S, scale: float = 1.0) -> tuple[Case, ...]:
    """The paper's workload and `seeds` random ones, at each factor, by each contestant."""
    if not 0 <= seeds <= SEEDS_MAX:
        raise ValueError(f"{seeds} seeds are not between 0 and {SEEDS_MAX}")
    made = tuple(
        Case(contestant, workload, factor, instant, duration_s, scale)
        for workload in range(seeds + 1)
        for factor in BURST_FACTORS
        for contestant in CONTESTANTS
    )
    # All share what can be wrong about them, so that one is enough to find out before the first run.
    _ = made[0].options
    return made


def compare(wanted: Sequence[Case], *, jobs: int = 1, progress: Progress | None = None) -> Comparison:
    """Run all cases, `jobs` at a time."""
    if not wanted:
        raise ValueError("nothing to compare")
    if not 1 <= jobs <= JOBS_MAX:
        raise ValueError(f"{jobs} jobs are not between 1 and {JOBS_MAX}")
    rows: list[Row] = []
    for row in _results(wanted, jobs):
        rows.append(row)
        if progress is not None:
            progress(len(rows), len(wanted))
    first = wanted[0]
    return Comparison(tuple(rows), first.options.control, first.duration_s, first.scale)


def _results(wanted: Sequence[Case], jobs: int) -> Iterator[Row]:
    yield from map(run_case, wanted) if jobs == 1 else map_in_order(run_case, wanted, jobs=jobs)


def run_case(case: Case) -> Row:
    """One run, and only what is compared of it."""
    return row_of(case, run_ews(case.options).result)


def row_of(case: Case, result: EwsResult) -> Row:
    compared = {field.name: getattr(result, field.name) for field in fields(Row) if hasattr(result, field.name)}
    return Row(label=case.contestant.label, workload=case.workload, **compared)


def claims_broken(rows: Iterable[Row]) -> Iterator[str]:
    """Where the deadline-aware policy was late although another was not, or moved what it need not have moved."""
    aware = {contestant.label for contestant in CONTESTANTS if contestant.deadline_aware}
    groups: dict[tuple[int, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.workload, row.burst_factor), []).append(row)
        if row.lost or row.duplicates or row.out_of_order:
            yield (
                f"{_where(row)}: {row.label} lost {row.lost}, doubled {row.duplicates}, "
                f"disordered {row.out_of_order} messages"
            )
    for group in groups.values():
        best = min(group, key=lambda row: (row.late, row.label))
        for row in group:
            if row.label not in aware:
                continue
            if best.late == 0 and row.late > 0:
                yield f"{_where(row)}: {row.label} was late {row.late} times, {best.label} never"
            if row.unnecessary_sessions:
                yield f"{_where(row)}: {row.label} had {row.unnecessary_sessions} unnecessary sessions"


def _remarks(rows: Sequence[Row]) -> Iterator[str]:
    for factor in sorted({row.burst_factor for row in rows}):
        short = [row for row in rows if row.burst_factor == factor and row.published < PUBLISHED_SHARE_MIN * row.asked]
        if short:
            least = min(row.published / row.asked for row in short)
            workloads = ", ".join(map(str, sorted({row.workload for row in short})))
            yield (
                f"burst × {factor:g}: workload {workloads} is smaller than asked for, as the head's link is full and "
                f"publishers wait; down to {least:.0%} of the messages were published"
            )


def _where(row: Row) -> str:
    workload = f"workload {row.workload}" if row.workload else "the paper's workload"
    return f"{workload}, burst factor {row.burst_factor:g}"


def _summaries(rows: Sequence[Row]) -> Iterator[Summary]:
    groups: dict[tuple[float, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.burst_factor, row.label), []).append(row)
    order = {contestant.label: position for position, contestant in enumerate(CONTESTANTS)}
    for (factor, label), group in sorted(groups.items(), key=lambda item: (item[0][0], order[item[0][1]])):
        settled = [row.settled_s - BURST_S for row in group if row.settled_s is not None]
        middle = median([*settled, *[inf] * (len(group) - len(settled))])
        asked = sum(row.asked for row in group)
        late, deliveries = sum(row.late for row in group), sum(row.deliveries for row in group)
        yield Summary(
            label=label,
            burst_factor=factor,
            runs=len(group),
            late=late,
            late_fraction=round(late / deliveries, 6) if deliveries else 0.0,
            kept=sum(row.late == 0 for row in group),
            sessions=round(mean(row.sessions for row in group), 2),
            unnecessary_sessions=round(mean(row.unnecessary_sessions for row in group), 2),
            migrations=round(mean(row.migrations for row in group), 2),
            settled=len(settled),
            settle_s=round(median(settled), 2) if settled else None,
            settle_all_s=round(middle, 2) if middle < inf else None,
            published_fraction=round(sum(row.published for row in group) / asked, 6) if asked else 1.0,
        )


def as_markdown(comparison: Comparison) -> str:
    """The summaries as a table."""
    lines = [
        "| burst | policy | late | deadlines kept | sessions | unnecessary | migrations | settled after |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {' | '.join(cells(summary))} |" for summary in comparison.summaries]
    if comparison.remarks:
        lines += ["", *(f"- {remark}" for remark in comparison.remarks)]
    return "\n".join(lines) + "\n"


def cells(summary: Summary) -> tuple[str, ...]:
    """One summary as a person reads it."""
    settled = "never" if summary.settle_s is None else f"{summary.settle_s:.1f} s"
    if summary.settle_s is not None and summary.settled < summary.runs:
        settled += f" ({summary.settled} of {summary.runs} runs)"
    return (
        f"× {summary.burst_factor:g}",
        summary.label,
        f"{summary.late_fraction:.2%}",
        f"{summary.kept} of {summary.runs}",
        f"{summary.sessions:.1f}",
        f"{summary.unnecessary_sessions:.1f}",
        f"{summary.migrations:.1f}",
        settled,
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "experiment": "ews-burst",
        "control": comparison.control,
        "duration_s": comparison.duration_s,
        "scale": comparison.scale,
        "claims_broken": list(comparison.claims_broken),
        "remarks": list(comparison.remarks),
        "summaries": [asdict(summary) for summary in comparison.summaries],
        "rows": [asdict(row) for row in comparison.rows],
    }
