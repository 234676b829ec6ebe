"""Policies side by side: the claim about the deadline-aware one, and that the check of it can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tidegate_experiments.burst.compare import (
    BURST_FACTORS,
    CONTESTANTS,
    Case,
    Comparison,
    Row,
    as_json,
    as_markdown,
    cases,
    claims_broken,
    compare,
)
from tidegate_experiments.burst.figures import draw_comparison


def small(*factors: float) -> list[Case]:
    """The paper's workload with a fifth of the messages."""
    return [case for case in cases(0, duration_s=60.0, scale=0.2) if case.burst_factor in factors]


def test_every_contestant_meets_every_case() -> None:
    wanted = cases(3)
    assert len(wanted) == 4 * len(BURST_FACTORS) * len(CONTESTANTS)
    assert {case.options.random for case in wanted if case.workload == 0} == {False}
    assert {case.options.random for case in wanted if case.workload > 0} == {True}
    assert len({case.options for case in wanted}) == len(wanted)


def test_where_some_policy_keeps_the_deadlines_the_deadline_aware_one_does() -> None:
    done: list[tuple[int, int]] = []
    comparison = compare(small(1.5, 2.0), progress=lambda *step: done.append(step))
    assert comparison.claims_broken == ()
    assert done == [(number, 10) for number in range(1, 11)]
    late = {(row.label, row.burst_factor): row.late for row in comparison.rows}
    assert late["peer-wd (projected)", 2.0] == late["peer-wd (paper)", 2.0] == 0
    assert late["none", 2.0] > 0
    by_label = {row.label: row for row in comparison.rows if row.burst_factor == 2.0}
    assert by_label["peer"].unnecessary_sessions > 0


def test_the_outcome_does_not_depend_on_the_number_of_processes() -> None:
    wanted = [replace(case, duration_s=36.0) for case in small(2.0)[:2]]
    assert compare(wanted, jobs=2) == compare(wanted, jobs=1)


def row(label: str, **changed: object) -> Row:
    plain = Row(label, 0, 2.0, 1000, 0, 0.0, 1, 1, 0, 8, 62.0, 0, 0, 0)
    return replace(plain, **changed)  # type: ignore[arg-type]


AWARE, OTHER = "peer-wd (projected)", "peer"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([row(AWARE), row(OTHER, late=5)], []),
        ([row(AWARE, late=5), row(OTHER, late=2)], []),
        ([row(AWARE, late=5), row(OTHER)], ["was late 5 times, peer never"]),
        ([row(AWARE, unnecessary_sessions=1), row(OTHER)], ["1 unnecessary"]),
        ([row(AWARE), row(OTHER, unnecessary_sessions=3)], []),
        ([row(AWARE), row(OTHER, lost=1)], ["peer lost 1"]),
    ],
)
def test_a_broken_claim_is_named(rows: list[Row], told: list[str]) -> None:
    found = list(claims_broken(rows))
    assert len(found) == len(told)
    assert all(text in problem for text, problem in zip(told, found, strict=True))


def test_table_numbers_and_figure(tmp_path: Path) -> None:
    rows = tuple(
        row(contestant.label, burst_factor=factor, late=10, late_fraction=0.01, settled_s=None if factor > 2 else 50.0)
        for factor in BURST_FACTORS
        for contestant in CONTESTANTS
    )
    comparison = Comparison(rows, "instant", 90.0, 1.0)
    lines = as_markdown(comparison).splitlines()
    assert len(lines) == 2 + len(rows)
    assert lines[2] == "| × 1.5 | peer-wd (projected) | 1.00% | 0 of 1 | 1.0 | 0.0 | 8.0 | 20.0 s |"
    assert lines[-1].endswith("| never |")
    plain = as_json(comparison)
    assert len(plain["rows"]) == len(plain["summaries"]) == len(rows)
    assert draw_comparison(comparison, tmp_path / "x" / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_who_settles_only_where_it_is_easy_is_not_called_fast() -> None:
    rows = [row(OTHER, workload=number, settled_s=at_s) for number, at_s in enumerate((31.0, None, None))]
    rows += [row(AWARE, workload=number, settled_s=at_s) for number, at_s in enumerate((31.0, 50.0, None))]
    aware, other = Comparison(tuple(rows), "instant", 90.0, 1.0).summaries
    assert (other.settled, other.settle_s, other.settle_all_s) == (1, 1.0, None)
    assert (aware.settled, aware.settle_s, aware.settle_all_s) == (2, 10.5, 20.0)


def test_less_published_than_asked_for_is_remarked() -> None:
    rows = (row(AWARE, asked=1000, published=1000), row(OTHER, workload=3, asked=1000, published=700))
    comparison = Comparison(rows, "instant", 90.0, 1.0)
    (remark,) = comparison.remarks
    assert "workload 3" in remark
    assert "70%" in remark
    assert remark in as_markdown(comparison)
    assert as_json(comparison)["remarks"] == [remark]


def test_a_comparison_without_a_burst_is_refused() -> None:
    with pytest.raises(ValueError, match="use a duration above 30"):
        cases(1, duration_s=20.0)


@pytest.mark.parametrize(("seeds", "jobs"), [(-1, 1), (10_000, 1), (0, 0), (0, 1_000)])
def test_impossible_comparisons_are_refused(seeds: int, jobs: int) -> None:
    with pytest.raises(ValueError, match="not between"):
        compare(cases(seeds), jobs=jobs)
