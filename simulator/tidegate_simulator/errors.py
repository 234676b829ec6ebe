"""Errors of the simulator.

    SimulatorError          root
    ├── ScenarioError       a scenario that can't be simulated      (.field, .problem, .remedy)
    └── RunawayError        a run that never comes to rest          (.now, .steps)

An agent that breaks one of its own invariants raises AssertionError: that is our bug and no error of the caller.
"""

from __future__ import annotations


class SimulatorError(Exception):
    """Root of this package's errors."""


class ScenarioError(SimulatorError):
    """A scenario that is impossible: which field, what is wrong with it, and what would be right."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        self.field = field
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{field} {problem}; {remedy}")


class RunawayError(SimulatorError):
    """More steps than any run needs."""

    def __init__(self, now: float, steps: int) -> None:
        self.now = now
        self.steps = steps
        super().__init__(f"more than {steps} steps, at {now:.3f} s of virtual time; something feeds itself")
