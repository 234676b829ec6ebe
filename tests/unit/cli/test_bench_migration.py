"""What `tidegate bench migration` takes for a gap, and what its processes are told."""

from __future__ import annotations

import pytest

from tidegate_cli.benchmarks.migration_worker import Task
from tidegate_cli.benchmarks.watches import Watch

USUAL_S = 0.01
INTERVAL_S = 0.05


def watched(arrivals: list[tuple[float, float]]) -> Watch:
    """A watch on messages that came at these moments, this old."""
    watch = Watch("s", "a", INTERVAL_S)
    for sequence, (at_s, age_s) in enumerate(arrivals):
        watch.take(at_s, age_s, "p", sequence)
    return watch


def test_nothing_unusual_is_no_gap() -> None:
    watch = watched([(tick * INTERVAL_S, USUAL_S) for tick in range(20)])
    assert watch.gap_ms(0.0, 1.0, USUAL_S) == pytest.approx(0.0, abs=1e-6)


def test_a_message_that_took_longer_is_a_gap_of_as_much() -> None:
    watch = watched([(0.0, USUAL_S), (0.05, USUAL_S), (0.12, USUAL_S + 0.08), (0.15, USUAL_S)])
    assert watch.gap_ms(0.0, 1.0, USUAL_S) == pytest.approx(80.0)


def test_a_pause_counts_beyond_the_publishing_interval_however_young_the_next_message_is() -> None:
    watch = watched([(0.0, USUAL_S), (0.05, USUAL_S), (0.25, USUAL_S), (0.3, USUAL_S)])
    assert watch.gap_ms(0.0, 1.0, USUAL_S) == pytest.approx(150.0)


def test_only_what_came_in_the_window_counts() -> None:
    watch = watched([(0.0, 1.0), (1.0, USUAL_S), (1.05, USUAL_S), (1.1, USUAL_S), (9.0, 3.0)])
    assert watch.gap_ms(0.9, 2.0, USUAL_S) == pytest.approx(0.0, abs=1e-6)
    assert list(watch.ages_between(0.9, 2.0)) == [USUAL_S] * 3


def test_who_got_nothing_waited_for_the_whole_window() -> None:
    assert watched([]).gap_ms(5.0, 8.0, USUAL_S) == pytest.approx(3_000.0)


def test_what_is_lost_doubled_or_out_of_order_is_counted() -> None:
    watch = Watch("s", "a", INTERVAL_S)
    for sequence in (0, 1, 1, 3, 2):
        watch.take(0.0, USUAL_S, "p", sequence)
    assert (watch.seen, watch.doubled, watch.out_of_order) == (5, 1, 1)
    assert (watch.lost(7), watch.lost(4)) == (3, 0)


def test_a_task_comes_through_json_as_it_was() -> None:
    task = Task("process 0", "amqp://localhost", (("s0", "a"), ("s1", "b")), 5.0, INTERVAL_S)
    assert Task.from_json(task.to_json()) == task
