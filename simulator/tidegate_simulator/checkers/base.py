"""What a checker is, and what it finds.

A checker watches a run and reports violations; it never stops one and never changes anything, so that the trace of a
run is the same with and without it. It is better wrong about nothing than quiet about something: whatever it lets
pass on purpose is argued where it does so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate_simulator.observer import Observer

if TYPE_CHECKING:
    from tidegate_simulator.world import World

VIOLATIONS_MAX: Final = 10
"""Per checker and run. More of the same would tell nothing new."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never happen, and did."""

    name: str
    seed: int
    at_s: float
    text: str

    def __str__(self) -> str:
        return f"{self.name} (seed {self.seed}, at {self.at_s:.3f} s): {self.text}"


class Checker(Observer):
    """Collects what one rule finds."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.seed = 0
        self.violations: list[Violation] = []

    def started(self, world: World) -> None:
        self.seed = world.scenario.seed

    def report(self, now: float, text: str, name: str = "") -> None:
        """Note a violation, under the name of the checker or a more exact one."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(name or self.name, self.seed, now, text))
