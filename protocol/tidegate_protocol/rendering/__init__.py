"""English: decisions, refusals and answers in words, for the log, `tidegate explain`, `status`, `plan` and the demo.

This is the only folder in which sentences are made of records and members of enums get words; `tidegate explain` joins
them. It is part of the protocol because brokers log sentences, agents send refusals, the command line shows both, and
none of these may import another.

Invariants: every kind in `DECISIONS` has a rendering, found in one table; a rendering reads fields and decides nothing;
no program reads the words back, so that they may be changed at any time (`tests/unit/test_english.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..decisions import Decision, UnknownDecision
from . import accounts, brokers, drops, links, load, moves, publishers, rights, sessions
from .said import Said

RENDERINGS: Final[Mapping[type[Decision], Callable[[Any], Said]]] = {
    **load.RENDERINGS,
    **sessions.RENDERINGS,
    **moves.RENDERINGS,
    **publishers.RENDERINGS,
    **accounts.RENDERINGS,
    **brokers.RENDERINGS,
    **rights.RENDERINGS,
    **drops.RENDERINGS,
    **links.RENDERINGS,
}


def said(decision: Decision) -> Said:
    """A decision in words: who, what, why."""
    if isinstance(decision, UnknownDecision):
        return Said(decision.decided, "was decided by a broker of another version", "")
    return RENDERINGS[type(decision)](decision)


def sentence(decision: Decision) -> str:
    """A decision in one line, without a full stop."""
    words = said(decision)
    text = f"{words.about} {words.what}".strip()
    return f"{text}: {words.why}" if words.why else text


def why(decision: Decision) -> str:
    """Why it was decided, or with which outcome; what it is where there is no more to say."""
    words = said(decision)
    return words.why or words.what


__all__ = ["RENDERINGS", "Said", "said", "sentence", "why"]
