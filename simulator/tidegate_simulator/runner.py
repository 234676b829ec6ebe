"""Runs schedules of the swarm, one or many, and says what became of each.

Invariant: a result depends on the seed alone, not on how many processes share the work or in which order they finish;
results come in the order of the seeds, one by one; whatever a run raises is a failure of its seed, with the traceback,
and ends no other run. A run that never comes to rest is told as that: nothing of ours has raised.
"""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from .checkers import Violation, all_checkers
from .checkers.view import backlogged
from .counts import NAMES, Counts
from .errors import RunawayError
from .scenario import Scenario
from .swarm import random_scenario
from .workers import map_in_order
from .world import World, rare_collection

SEEDS_PER_TASK: Final = 4
"""Handed to a process at once: few enough that progress shows, enough that handing over costs nothing."""

THOROUGH_EVERY: Final = 8
SPARING_STEPS: Final = 10
"""Validating a broker's agent takes longer than its step: after each in one schedule of eight, else after every tenth.
What is broken in between mostly stays so, or shows in the schedules that look every time.
"""
DRAINING_MAX_S: Final = 300.0
"""How long after the publishers have stopped what waits may take to be delivered. An overload that nobody could help
against leaves much behind, and so does an application that is slow; what else is left after this is stuck.
"""
DRAINING_STEP_S: Final = 2.0
PROBLEMS_KEPT_MAX: Final = 20
"""As many as a person reads; of a bug that all schedules have, there are thousands."""

Plant = Callable[[], AbstractContextManager[object]]
"""Makes a machine misbehave for the time of a run, to show that the checkers notice."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one schedule."""

    seed: int
    violations: tuple[Violation, ...] = ()
    trace_hash: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    """The traceback of what the run raised."""
    runaway: str = ""
    """Where a run was given up that had too many steps."""
    trace: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return bool(self.violations) or bool(self.error) or bool(self.runaway)

    @property
    def problems(self) -> tuple[str, ...]:
        """One text for each thing that went wrong."""
        found = [str(violation) for violation in self.violations]
        if self.error:
            found.append(f"raised (seed {self.seed}): {self.error}")
        if self.runaway:
            found.append(
                f"no end (seed {self.seed}): {self.runaway}; look at the end of its trace, and at what loads it: "
                "rates, periods and delays"
            )
        return tuple(found)


def run_seed(seed: int, *, plant: Plant | None = None, trace_lines_max: int = 0) -> Result:
    """Run the schedule of one seed with all checkers on."""
    return run_scenario(random_scenario(seed), plant=plant, trace_lines_max=trace_lines_max)


def run_scenario(scenario: Scenario, *, plant: Plant | None = None, trace_lines_max: int = 0) -> Result:
    """Run one scenario with all checkers on."""
    checkers, counts = all_checkers(), Counts()
    error, runaway, world = "", "", None
    with plant() if plant is not None else nullcontext(), rare_collection():
        try:
            world = World(
                scenario,
                observers=(*checkers, counts),
                trace_lines_max=trace_lines_max,
                validate_every_step=True,
                agents_validated_every=1 if scenario.seed % THOROUGH_EVERY == 0 else SPARING_STEPS,
            )
            _run(world)
        except RunawayError as given_up:
            runaway = str(given_up)
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
        runaway=runaway,
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


def run_many(seeds: Iterable[int], jobs: int = 1) -> list[Result]:
    """Run the schedules of all these seeds, `jobs` at a time."""
    return list(run_each(seeds, jobs))


def run_each(seeds: Iterable[int], jobs: int = 1) -> Generator[Result, None, None]:
    """The same one by one, as they are done: of many seeds not all results have to be kept."""
    if jobs == 1:
        yield from map(run_seed, seeds)
    else:
        yield from map_in_order(run_seed, seeds, jobs=jobs, at_once=SEEDS_PER_TASK)


class Totals:
    """What many results come to, added up one by one; of the good ones nothing else is kept."""

    def __init__(self) -> None:
        self.schedules = 0
        self.with_sessions = 0
        self.with_moves = 0
        self.failing: list[int] = []
        """Their seeds."""
        self.problems: list[str] = []
        """The first of them."""
        self.problems_left_out = 0
        self._counts: Counter[str] = Counter(dict.fromkeys(NAMES, 0))
        self._digest = hashlib.sha256()

    def add(self, result: Result) -> None:
        """Results have to come in the order of their seeds."""
        self.schedules += 1
        self.with_sessions += result.counts.get("sessions", 0) > 0
        self.with_moves += result.counts.get("moves", 0) > 0
        self._counts.update(result.counts)
        self._digest.update(f"{result.seed}:{result.trace_hash}\n".encode())
        if result.failed:
            room = PROBLEMS_KEPT_MAX - len(self.problems)
            self.failing.append(result.seed)
            self.problems += result.problems[:room]
            self.problems_left_out += len(result.problems[room:])

    @property
    def counts(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))

    @property
    def trace_hash(self) -> str:
        """One hash over the traces of all results."""
        return self._digest.hexdigest()


def combined(results: Iterable[Result]) -> Totals:
    """The totals of these results."""
    totals = Totals()
    for result in sorted(results, key=lambda result: result.seed):
        totals.add(result)
    return totals
