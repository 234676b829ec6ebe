"""How long work tells its progress, without knowing who shows it."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""Takes the name of a step, how much of the step is done, and of how much."""


def unseen(step: str, done: int, total: int) -> None:
    """The report of work whose progress is not shown."""
