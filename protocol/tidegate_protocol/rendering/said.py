"""The form of a rendering: whom a decision is about, what was decided, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Said:
    """One decision in words. `<about> <what>: <why>` is a sentence."""

    about: str
    """Whom it is about: a broker, a client, a queue."""
    what: str
    """What was decided or found."""
    why: str = ""
    """Why, or with which outcome."""
