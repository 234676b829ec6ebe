"""Edges of ours that take subscriptions from another cluster.

Invariant: to its cluster, such an edge is in a session, from the first to the last of the subscriptions that are on
their way to it. It takes them from one head at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate_protocol.balancing.abroad import AcceptRequest
from tidegate_protocol.balancing.sessions import SessionNotice, SessionPhase
from tidegate_protocol.decisions import Rejected

from ...machine import Send
from ..context import HeadContext
from ..moving.sessions import Sessions


@dataclass(slots=True)
class _Session:
    """What an edge takes; the session is named after the first migration of it."""

    id: str
    head: str
    started_s: float
    left: set[str] = field(default_factory=set)
    moved: int = 0
    failed: int = 0


class Hosting:
    """The edges that take subscriptions from other clusters, by name."""

    def __init__(self, context: HeadContext, sessions: Sessions) -> None:
        self._context = context
        self._sessions = sessions
        self._hosting: dict[str, _Session] = {}

    def busy(self, message: AcceptRequest) -> Rejected | None:
        """Why the edge can't take this one now; None if it can."""
        hosting = self._hosting.get(message.edge)
        return None if hosting is not None and hosting.head == message.head else self._sessions.busy(message.edge)

    def began(self, message: AcceptRequest) -> None:
        """One more subscription is on its way."""
        hosting = self._hosting.get(message.edge)
        if hosting is None:
            hosting = self._hosting[message.edge] = _Session(message.migration, message.head, self._context.now)
            self._sessions.reserve(message.edge, hosting.id)
            self._notify(message.edge, hosting, SessionPhase.STARTED)
        hosting.left.add(message.migration)

    def ended(self, message: AcceptRequest, moved: bool) -> None:
        """A subscription has come, or will not come."""
        hosting = self._hosting[message.edge]
        hosting.left.discard(message.migration)
        hosting.moved += moved
        hosting.failed += not moved
        if not hosting.left:
            del self._hosting[message.edge]
            self._sessions.release(message.edge, hosting.id)
            self._notify(message.edge, hosting, SessionPhase.ENDED)

    def _notify(self, edge: str, hosting: _Session, phase: SessionPhase) -> None:
        notice = SessionNotice(
            session=hosting.id,
            phase=phase,
            source=hosting.head,
            moved=hosting.moved,
            failed=hosting.failed,
            duration_us=round((self._context.now - hosting.started_s) * 1e6),
        )
        self._context.do(Send(edge, notice))

    def validate(self, expected: set[tuple[str, str]]) -> None:
        """Raise AssertionError unless these edges and migrations are counted, and the edges count as busy."""
        counted = {(edge, migration) for edge, hosting in self._hosting.items() for migration in hosting.left}
        assert counted == expected, "what is on its way to which edge"
        for edge, hosting in self._hosting.items():
            assert hosting.left, f"{edge} takes nothing"
            assert self._sessions.busy(edge) is not None, f"{edge} takes load but is not busy"
