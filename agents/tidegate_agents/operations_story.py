"""What an agent remembers of its decisions, with the moment of each, so that it can be asked why.

What always holds: everything is bounded. The latest decisions are kept whatever they are about; those of a session
longer, so that thousands of placements do not push out why somebody was moved. Of the sessions the latest are kept,
and of one session a bounded number of decisions: its first ones, which say why, and its last ones, which say what came
of it. Decides nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

from tidegate_protocol.operations import DECISIONS_TOLD_MAX, Told

from .machine import Decision

LATEST_MAX: Final = 2_000
SESSIONS_MAX: Final = 64
"""Sessions whose decisions are kept longer than others."""
FIRST_MAX: Final = 100
LAST_MAX: Final = 300
"""Decisions kept of one session: its first and its last ones."""
TOLD_BYTES_MAX: Final = 300_000
"""What the decisions of one answer may take; a control message holds about three times as much."""
NUMBERS_TOLD_MAX: Final = 64
REJECTED_TOLD_MAX: Final = 64
TEXT_TOLD_MAX: Final = 300
BEFORE_S: Final = 10.0
AFTER_S: Final = 60.0
"""How long before the first and after the last decision of a session what else a broker decided belongs to it."""
AROUND: Final = frozenset({"load-state", "session-requested"})
"""What a broker decided around a session that belongs to its story: whether the load went down, or it asked again."""


@dataclass(frozen=True, slots=True)
class Dated:
    """A decision and when it was made, by the agent's own clock."""

    decision: Decision
    at_s: float


@dataclass(slots=True)
class _Session:
    first: list[Dated] = field(default_factory=list)
    last: deque[Dated] = field(default_factory=lambda: deque(maxlen=LAST_MAX))
    dropped: int = 0

    def add(self, dated: Dated) -> None:
        if len(self.first) < FIRST_MAX:
            self.first.append(dated)
            return
        self.dropped += len(self.last) == LAST_MAX
        self.last.append(dated)


class Chronicle:
    """The decisions of one agent."""

    def __init__(self) -> None:
        self._latest: deque[Dated] = deque(maxlen=LATEST_MAX)
        self._sessions: dict[str, _Session] = {}

    def add(self, decision: Decision, now: float) -> None:
        dated = Dated(decision, now)
        self._latest.append(dated)
        name = decision.session
        if not name:
            return
        session = self._sessions.pop(name, None) or _Session()
        session.add(dated)
        self._sessions[name] = session  # at the end: the one that was added to last is forgotten last
        if len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]

    def __contains__(self, session: str) -> bool:
        return session in self._sessions

    @property
    def sessions(self) -> list[str]:
        """Those remembered, the one that something happened in last at the end."""
        return list(self._sessions)

    def of_session(self, session: str) -> list[Dated]:
        """All about one session, oldest first."""
        found = self._sessions.get(session)
        return [] if found is None else [*found.first, *found.last]

    def dropped(self, session: str) -> int:
        """How many decisions of a session are not kept."""
        found = self._sessions.get(session)
        return 0 if found is None else found.dropped

    def around_session(self, session: str) -> list[Dated]:
        """All about one session, and how this broker fared shortly before, meanwhile and after."""
        own = self.of_session(session)
        if not own:
            return []
        since_s, until_s = own[0].at_s - BEFORE_S, own[-1].at_s + AFTER_S
        others = [
            dated
            for dated in self._latest
            if dated.decision.kind in AROUND and dated.decision.session != session and since_s <= dated.at_s <= until_s
        ]
        return sorted([*others, *own], key=lambda dated: dated.at_s)

    def matching(self, wanted: Callable[[Decision], bool], count: int) -> list[Dated]:
        """The latest `count` that are wanted, oldest first."""
        found: list[Dated] = []
        for dated in reversed(self._latest):
            if len(found) >= count:
                break
            if wanted(dated.decision):
                found.append(dated)
        return found[::-1]

    def last(self, wanted: Callable[[Decision], bool]) -> Dated | None:
        return next(iter(self.matching(wanted, 1)), None)


def told(broker: str, dated: Dated, now: float) -> Told:
    """A decision as it is told to an operator: cut to what an answer can hold, and dated by its age."""
    decision = dated.decision
    numbers = {name: value for name, value in decision.numbers.items() if isfinite(value)}
    return Told(
        broker=broker,
        ago_us=round(max(now - dated.at_s, 0.0) * 1e6),
        decision=decision.kind,
        subject=decision.subject[:TEXT_TOLD_MAX],
        reason=decision.reason[:1_000],
        numbers=dict(list(numbers.items())[:NUMBERS_TOLD_MAX]),
        rejected={name: why[:TEXT_TOLD_MAX] for name, why in list(decision.rejected.items())[:REJECTED_TOLD_MAX]},
        session=decision.session[:120],
    )


def bounded(decisions: list[Told]) -> tuple[tuple[Told, ...], int]:
    """As many as fit into an answer, and how many do not: the ones in the middle are left out, because the first ones
    say why and the last ones what came of it.
    """
    left, kept_first, kept_last = TOLD_BYTES_MAX, 0, 0
    total = len(decisions)
    while kept_first + kept_last < min(total, DECISIONS_TOLD_MAX):
        at_front = kept_first <= kept_last
        decision = decisions[kept_first] if at_front else decisions[total - 1 - kept_last]
        left -= _size(decision)
        if left < 0:
            break
        kept_first, kept_last = (kept_first + 1, kept_last) if at_front else (kept_first, kept_last + 1)
    kept = decisions[:kept_first] + decisions[total - kept_last :]
    return tuple(kept), total - len(kept)


def _size(decision: Told) -> int:
    texts = len(decision.subject) + len(decision.reason) + len(decision.session) + len(decision.broker)
    numbers = sum(len(name) + 24 for name in decision.numbers)
    rejected = sum(len(name) + len(why) + 8 for name, why in decision.rejected.items())
    return 150 + texts + numbers + rejected
