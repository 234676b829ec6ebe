"""Asking other clusters for room: which edges of the neighbouring heads could take load from a session here.

Invariant: a neighbour whose cluster is known to have no room is not asked. Every question is answered once, with the
candidates of all neighbours that answered in time; why each other neighbour offered none is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.balancing.abroad import RemoteLoads, RemoteLoadsRequest
from tidegate_protocol.balancing.sessions import CANDIDATES_MAX, BalanceRequest, Candidate
from tidegate_protocol.decisions import Rejected, Rejection, RemoteBroker, RemotesAsked
from tidegate_protocol.messages import LoadState

from ...kit.answers import rejected_for
from ...kit.calls import Answer
from ...kit.dispatch import Dispatch
from ...kit.gather import Gatherings
from ..context import HeadContext
from ..load import HeadLoads

ASKING_MAX: Final = 64
"""Sessions that ask other clusters at the same time."""

Found = Callable[[str, tuple[Candidate, ...]], None]
"""Called with the session and the candidates, once per question, possibly with nobody."""


@dataclass(slots=True)
class _Asking:
    found: Found
    candidates: list[Candidate] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


class RemoteCandidates:
    """Asks the neighbouring heads for edges with room."""

    def __init__(self, context: HeadContext, loads: HeadLoads) -> None:
        self._context = context
        self._loads = loads
        self._asking: dict[str, _Asking] = {}
        self._gatherings = Gatherings(context, "remote-loads", self._heard, self._finish)

    def register(self, dispatch: Dispatch) -> None:
        self._gatherings.register(dispatch)
        dispatch.checks.append(self.validate)

    def ask(self, session: str, request: BalanceRequest, found: Found) -> None:
        """Find edges of other clusters that could take load. Answered once, maybe at once."""
        context = self._context
        self.stop(session)
        asking = self._asking[session] = _Asking(found)
        if len(self._asking) > ASKING_MAX:
            limit = float(ASKING_MAX)
            asking.rejected.append(Rejected(context.config.head, Rejection.LIMIT, limit=limit, other="ASKING_MAX"))
            self._finish(session)
            return
        states = self._loads.cluster_states()
        message = RemoteLoadsRequest(session=session, head=context.config.head, patterns=request.patterns)
        full = {name for name in context.routes.offers if states.get(name, LoadState.LOW) is not LoadState.LOW}
        asking.rejected += [Rejected(name, Rejection.STATE, state=states[name]) for name in sorted(full)]
        questions = dict.fromkeys(context.routes.offers.keys() - full, message)
        self._gatherings.ask(session, questions, within_s=context.config.balancing.load_reply_timeout_s)

    def stop(self, session: str) -> None:
        """The session has ended; nobody wants to know any more."""
        if self._asking.pop(session, None) is not None:
            self._gatherings.stop(session)

    def _heard(self, session: str, head: str, answer: Answer) -> None:
        asking = self._asking[session]
        if not isinstance(answer, RemoteLoads) or answer.session != session:
            asking.rejected.append(rejected_for(head, answer))
        elif answer.candidates:
            asking.candidates += [candidate for candidate in answer.candidates if candidate.head == head]
        else:
            asking.rejected.append(Rejected(head, Rejection.NO_ROOM))

    def _finish(self, session: str) -> None:
        context, asking = self._context, self._asking.pop(session)
        # An edge of that name may be one of our own: names are unique in a cluster only, and plans go by name.
        found = [one for one in asking.candidates if one.load.broker not in context.registry.edges]
        found.sort(key=lambda one: (one.head, one.load.broker))
        named = tuple(RemoteBroker(one.head, one.load.broker) for one in found)
        context.decide(RemotesAsked(context.config.head, named, tuple(asking.rejected), session=session))
        asking.found(session, tuple(found[:CANDIDATES_MAX]))

    def validate(self) -> None:
        """Raise AssertionError if a session waits for nobody."""
        assert len(self._asking) <= ASKING_MAX
        assert all(session in self._gatherings for session in self._asking)
