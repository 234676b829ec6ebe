"""Pauses between attempts at the same thing: each is twice as long as the one before, up to a longest one.

Invariant: the next pause is never shorter than the first one, nor longer than `longest_s` unless the first one is.
Knows no time; its owner adds a pause to the moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """The pauses of one thing that is tried again and again."""

    first_s: float
    longest_s: float
    next_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def take(self) -> float:
        """The pause after another failed attempt; the one after the next attempt is twice as long."""
        pause_s, self.next_s = self.next_s, min(2.0 * self.next_s, max(self.longest_s, self.first_s))
        return pause_s

    def reset(self) -> None:
        """An attempt has succeeded, or there is a new reason: pauses are short again."""
        self.next_s = self.first_s
