"""What an agent remembers of its decisions, with the moment of each, so that it can be asked why.

Invariant: everything is bounded. The latest decisions are kept whatever they are about; decisions of a session are kept
longer, so that thousands of placements do not push out why a client was moved. Of the sessions the latest are kept, and
of one session a bounded number of decisions: its first ones, which say why, and its last ones, which say what came of
it. Decides nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tidegate_protocol.decisions import Decision, LoadStateChanged, SessionRequested
from tidegate_protocol.operations import DECISIONS_TOLD_MAX, Told

from .memory import Recent

LATEST_MAX: Final = 2_000
SESSIONS_MAX: Final = 64
"""Sessions whose decisions are kept longer than others."""
FIRST_MAX: Final = 100
LAST_MAX: Final = 300
"""Decisions kept of one session: its first and its last ones."""
TOLD_BYTES_MAX: Final = 300_000
"""What the decisions of one answer may take; a control message holds about three times as much."""
BEFORE_S: Final = 10.0
AFTER_S: Final = 60.0
"""How long before the first and after the last decision of a session what else a broker decided belongs to it."""
AROUND: Final = (LoadStateChanged, SessionRequested)
"""What a broker decided around a session that belongs to its story: whether the load went down, or it asked again."""

Kind = TypeVar("Kind", bound=Decision)


@dataclass(frozen=True, slots=True)
class Dated:
    """A decision and when it was made, by the agent's own clock."""

    decision: Decision
    at_s: float


@dataclass(slots=True)
class _SessionStory:
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
        self._sessions: Recent[str, _SessionStory] = Recent(SESSIONS_MAX)

    def add(self, decision: Decision, now: float) -> None:
        dated = Dated(decision, now)
        self._latest.append(dated)
        name = decision.session
        if not name:
            return
        session = self._sessions.get(name) or _SessionStory()
        session.add(dated)
        self._sessions[name] = session

    @property
    def decisions(self) -> list[Decision]:
        """The latest ones, oldest first."""
        return [dated.decision for dated in self._latest]

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
            if isinstance(dated.decision, AROUND)
            if dated.decision.session != session and since_s <= dated.at_s <= until_s
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

    def last_of(self, kind: type[Kind], wanted: Callable[[Kind], bool]) -> Dated | None:
        """The latest of this kind that is wanted."""
        return self.last(lambda decision: isinstance(decision, kind) and wanted(decision))


def told(broker: str, dated: Dated, now: float) -> Told:
    """A decision as it is told to an operator, dated by its age."""
    ago_us = round(max(now - dated.at_s, 0.0) * 1e6)
    decision = dated.decision
    return Told(broker=broker, ago_us=ago_us, decision=decision.kind, session=decision.session[:120], record=decision)


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


def _size(told: Told) -> int:
    return len(told.model_dump_json())
