"""Runs schedules of the swarm, one or many, and says what became of each.

What always holds: a result depends on the seed alone, not on how many processes share the work or in which order
they finish; results come in the order of the seeds; whatever a run raises is a failure of its seed, with the
traceback, and ends no other run.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from .checkers import Violation, all_checkers
from .checkers.view import backlogged
from .counts import Counts
from .scenario import Scenario
from .swarm import random_scenario
from .workers import map_in_order
from .world import World

SEEDS_PER_TASK: Final = 4
"""Handed to a process at once: few enough that progress shows, enough that handing over costs nothing."""

THOROUGH_EVERY: Final = 8
SPARING_STEPS: Final = 10
"""Validating a broker's agent takes longer than its step: after each in one schedule of eight, else after every tenth.
What is broken in between mostly stays so, or shows in the schedules that look every time.
"""
DRAINING_MAX_S: Final = 300.0
"""How long after the publishers have stopped what waits may take to be delivered. An overload that nobody could help
against leaves much behind; what is left after this is stuck.
"""
DRAINING_STEP_S: Final = 2.0

Plant = Callable[[], AbstractContextManager[object]]
"""Makes a machine misbehave for the time of a run, to show that the checkers notice."""

Progress = Callable[[int, int], None]
"""How many schedules are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one schedule."""

    seed: int
    violations: tuple[Violation, ...] = ()
    trace_hash: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    """The traceback of what the run raised."""
    trace: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return bool(self.violations) or bool(self.error)

    @property
    def problems(self) -> tuple[str, ...]:
        """One text for each thing that went wrong."""
        found = tuple(str(violation) for violation in self.violations)
        return (*found, f"raised (seed {self.seed}): {self.error}") if self.error else found


def run_seed(seed: int, *, plant: Plant | None = None, trace_lines_max: int = 0) -> Result:
    """Run the schedule of one seed with all checkers on."""
    return run_scenario(random_scenario(seed), plant=plant, trace_lines_max=trace_lines_max)


def run_scenario(scenario: Scenario, *, plant: Plant | None = None, trace_lines_max: int = 0) -> Result:
    """Run one scenario with all checkers on."""
    checkers, counts = all_checkers(), Counts()
    error, world = "", None
    with plant() if plant is not None else nullcontext():
        try:
            world = World(
                scenario,
                observers=(*checkers, counts),
                trace_lines_max=trace_lines_max,
                validate_every_step=True,
                agents_validated_every=1 if scenario.seed % THOROUGH_EVERY == 0 else SPARING_STEPS,
            )
            _run(world)
        except Exception:  # whatever it is, it is this seed's failure, and the others go on
            error = traceback.format_exc()
    violations = [violation for checker in checkers for violation in checker.violations]
    violations.sort(key=lambda violation: (violation.at_s, violation.name, violation.text))
    return Result(
        seed=scenario.seed,
        violations=tuple(violations),
        trace_hash=world.trace_hash if world is not None else "",
        counts=counts.totals(),
        error=error,
        trace=tuple(world.trace) if world is not None and trace_lines_max else (),
    )


def _run(world: World) -> None:
    """Run a scenario, give what waits the time to be delivered, and then everything the time to come to rest."""
    world.start()
    kernel, scenario = world.kernel, world.scenario
    kernel.run(scenario.duration_s)
    while backlogged(world) and kernel.now < scenario.duration_s + DRAINING_MAX_S:
        kernel.run(kernel.now + DRAINING_STEP_S)
    kernel.run(kernel.now + scenario.settle_s)
    for name in sorted(world.brokers):
        world.agent(name).validate()
    for observer in world.observers:
        observer.ended(world, kernel.now)


def run_many(seeds: Iterable[int], jobs: int = 1, progress: Progress | None = None) -> list[Result]:
    """Run the schedules of all these seeds, `jobs` at a time."""
    wanted = list(seeds)
    results: list[Result] = []
    for result in _results(wanted, jobs):
        results.append(result)
        if progress is not None:
            progress(len(results), len(wanted))
    return results


def _results(seeds: Sequence[int], jobs: int) -> Iterator[Result]:
    if jobs == 1 or len(seeds) < 2:
        yield from map(run_seed, seeds)
    else:
        yield from map_in_order(run_seed, seeds, jobs=jobs, at_once=SEEDS_PER_TASK)


def combined_hash(results: Iterable[Result]) -> str:
    """One hash over the traces of all results, in the order of the seeds."""
    digest = hashlib.sha256()
    for result in sorted(results, key=lambda result: result.seed):
        digest.update(f"{result.seed}:{result.trace_hash}\n".encode())
    return digest.hexdigest()


def combined_counts(results: Iterable[Result]) -> dict[str, int]:
    """The counts of all results, added up."""
    totals: dict[str, int] = {}
    for result in results:
        for name, count in result.counts.items():
            totals[name] = totals.get(name, 0) + count
    return dict(sorted(totals.items()))
