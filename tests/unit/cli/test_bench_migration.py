"""What `tidegate bench migration` takes for a gap, and what its processes are told."""

from __future__ import annotations

import pytest

from tidegate_experiments.benchmarks.migration import bottlenecks
from tidegate_experiments.benchmarks.migration_worker import MigrationAssignment
from tidegate_experiments.benchmarks.watches import Watch, Window
from tidegate_experiments.live.machine import MachineUse
from tidegate_simulator.judging import Wrong

USUAL_S = 0.01
INTERVAL_S = 0.05


def watched(arrivals: list[tuple[float, float]]) -> Watch:
    """A watch on messages that came at these moments, this old."""
    watch = Watch("s", "a", INTERVAL_S)
    for sequence, (at_s, age_s) in enumerate(arrivals):
        watch.take(at_s, age_s, sequence)
    return watch


def test_nothing_unusual_is_no_gap() -> None:
    watch = watched([(tick * INTERVAL_S, USUAL_S) for tick in range(20)])
    assert watch.gap_ms(Window(0.0, 1.0), USUAL_S) == pytest.approx(0.0, abs=1e-6)


def test_a_message_that_took_longer_is_a_gap_of_as_much() -> None:
    watch = watched([(0.0, USUAL_S), (0.05, USUAL_S), (0.12, USUAL_S + 0.08), (0.15, USUAL_S)])
    assert watch.gap_ms(Window(0.0, 1.0), USUAL_S) == pytest.approx(80.0)


def test_a_pause_counts_beyond_the_publishing_interval_however_young_the_next_message_is() -> None:
    watch = watched([(0.0, USUAL_S), (0.05, USUAL_S), (0.25, USUAL_S), (0.3, USUAL_S)])
    assert watch.gap_ms(Window(0.0, 1.0), USUAL_S) == pytest.approx(150.0)


def test_only_what_came_in_the_window_counts() -> None:
    watch = watched([(tick * INTERVAL_S, 1.0 if tick in (0, 40) else USUAL_S) for tick in range(41)])
    window = Window(0.39, 0.61)
    assert watch.gap_ms(window, USUAL_S) == pytest.approx(0.0, abs=1e-6)
    assert list(watch.ages_in(window)) == [USUAL_S] * 5


@pytest.mark.parametrize("window", [Window(0.08, 0.4), Window(0.0, 0.2), Window(0.1, 0.3)])
def test_a_pause_that_reaches_into_the_window_counts_whole(window: Window) -> None:
    watch = watched([(0.0, USUAL_S), (0.05, USUAL_S), (0.25, USUAL_S), (0.3, USUAL_S)])
    assert watch.gap_ms(window, USUAL_S) == pytest.approx(150.0)


def test_a_time_is_looked_at_in_stretches_without_a_subscribers_own_move() -> None:
    drain, own = Window(0.0, 10.0), Window(3.0, 4.5)
    parts = drain.parts(2.0, but=own)
    assert parts == [Window(0.0, 2.0), Window(4.5, 6.5), Window(6.5, 8.5)]
    assert not any(part.overlaps(own) for part in parts)
    assert len(drain.parts(2.0)) == len(drain.parts(2.0, but=Window(20.0, 21.0))) == 5
    assert drain.parts(2.0, but=Window(-1.0, 11.0)) == []


def test_a_machine_that_is_the_bottleneck_is_named() -> None:
    quiet = MachineUse({}, busy_share=0.8, steal_share=0.0)
    assert bottlenecks(45.0, [quiet, quiet]) == []
    assert "130 ms" in bottlenecks(130.0, [quiet])[0]
    assert "99.0%" in bottlenecks(45.0, [quiet, MachineUse({}, 0.99, 0.0)])[0]
    assert "5.0%" in bottlenecks(45.0, [MachineUse({}, 0.8, 0.05), quiet])[0]


def test_who_got_nothing_waited_for_the_whole_window() -> None:
    assert watched([]).gap_ms(Window(5.0, 8.0), USUAL_S) == pytest.approx(3_000.0)


def test_what_is_lost_doubled_or_out_of_order_is_counted() -> None:
    watch = Watch("s", "a", INTERVAL_S)
    for sequence in (0, 1, 1, 3, 2):
        watch.take(0.0, USUAL_S, sequence)
    assert watch.seen == 5
    assert watch.judge.counts == {Wrong.DOUBLED: 1, Wrong.OUT_OF_ORDER: 1}
    assert (watch.lost(7), watch.lost(4)) == (3, 0)


def test_a_task_comes_through_json_as_it_was() -> None:
    task = MigrationAssignment("process 0", "amqp://localhost", (("s0", "a"), ("s1", "b")), 5.0, INTERVAL_S)
    assert MigrationAssignment.from_json(task.to_json()) == task
