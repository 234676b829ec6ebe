"""Asking other clusters for room: which edges of the neighbouring heads could take load from a session here.

What always holds: only neighbours are asked whose cluster is not known to be without room; every question is answered
once, by the candidates of those who answered in time; why the others offered none is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.balancing import CANDIDATES_MAX, BalanceRequest, Candidate, RemoteLoads, RemoteLoadsRequest
from tidegate_protocol.messages import ControlMessage, LoadState, Refusal

from .context import HeadContext
from .dispatch import Dispatch
from .machine import Decision

ASKING_MAX: Final = 64
"""Sessions that ask other clusters at the same time."""

Found = Callable[[str, tuple[Candidate, ...]], None]
"""Called with the session and the candidates, once per question, possibly with nobody."""


@dataclass(slots=True)
class _Asking:
    waiting: dict[str, str] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)


class RemoteCandidates:
    """Asks the neighbouring heads for edges with room."""

    def __init__(self, context: HeadContext, states: Callable[[], Mapping[str, LoadState]], found: Found) -> None:
        """`states` are those of the neighbouring clusters, as far as they have reported lately."""
        self._context = context
        self._states = states
        self._found = found
        self._asking: dict[str, _Asking] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_request("remote-loads", self._answered, self._undeliverable)
        dispatch.on_timer("remote-loads", self._timed_out)
        dispatch.checks.append(self.validate)

    def ask(self, session: str, request: BalanceRequest) -> None:
        """Find edges of other clusters that could take load. Answered once, maybe at once."""
        context = self._context
        self.stop(session)
        asking = self._asking[session] = _Asking()
        if len(self._asking) > ASKING_MAX:
            asking.rejected[context.config.head] = f"ASKING_MAX = {ASKING_MAX} sessions ask other clusters already"
            self._finish_if_done(session, asking)
            return
        states = self._states()
        message = RemoteLoadsRequest(session=session, head=context.config.head, patterns=request.patterns)
        for name in sorted(context.routes.offers):
            if states.get(name, LoadState.LOW) is not LoadState.LOW:
                asking.rejected[name] = f"its cluster is {states[name]}"
            else:
                asking.waiting[name] = context.request(name, message, "remote-loads", f"{session} {name}")
        context.set_timer(f"remote-loads {session}", context.config.balancing.load_reply_timeout_s)
        self._finish_if_done(session, asking)

    def stop(self, session: str) -> None:
        """The session has ended; nobody wants to know any more."""
        asking = self._asking.pop(session, None)
        if asking is not None:
            self._context.cancel_timer(f"remote-loads {session}")
            for request_id in asking.waiting.values():
                self._context.drop_request(request_id)

    def _answered(self, subject: str, message: ControlMessage) -> None:
        session, _, name = subject.partition(" ")
        asking = self._asking.get(session)
        if asking is None or asking.waiting.pop(name, None) is None:
            return
        if isinstance(message, RemoteLoads) and message.session == session:
            asking.candidates += [one for one in message.candidates if one.head == name]
            if not message.candidates:
                asking.rejected[name] = "none of its edges has room"
        else:
            text = message.message if isinstance(message, Refusal) else f"answered with {message.kind}"
            asking.rejected[name] = text
        self._finish_if_done(session, asking)

    def _undeliverable(self, subject: str) -> None:
        session, _, name = subject.partition(" ")
        asking = self._asking.get(session)
        if asking is not None and asking.waiting.pop(name, None) is not None:
            asking.rejected[name] = "its process is not there"
            self._finish_if_done(session, asking)

    def _timed_out(self, session: str) -> None:
        asking = self._asking.get(session)
        if asking is None:
            return
        for name, request_id in sorted(asking.waiting.items()):
            self._context.drop_request(request_id)
            asking.rejected[name] = "did not answer in time"
        asking.waiting = {}
        self._finish_if_done(session, asking)

    def _finish_if_done(self, session: str, asking: _Asking) -> None:
        if asking.waiting:
            return
        self.stop(session)
        context = self._context
        # An edge of that name may be one of our own: names are unique in a cluster only, and plans go by name.
        found = [one for one in asking.candidates if one.load.broker not in context.registry.edges]
        found.sort(key=lambda one: (one.head, one.load.broker))
        reason = " ".join(f"{one.head}:{one.load.broker}" for one in found) or "nobody has room"
        numbers = {"candidates": float(len(found))}
        context.decide(
            Decision("remote-candidates", context.config.head, reason[:1_000], numbers, asking.rejected, session)
        )
        self._found(session, tuple(found[:CANDIDATES_MAX]))

    def validate(self) -> None:
        """Raise AssertionError if a session waits for nobody."""
        assert len(self._asking) <= ASKING_MAX
        assert all(asking.waiting for asking in self._asking.values())
