"""Which of our edges could take subscriptions of another cluster: the answer to a neighbour without room.

Invariants:

- an edge is offered only if it said itself, just now, that it is LOW and not busy, and this head is LOW as well; the
  promises of running migrations are part of its load;
- a question that is repeated while it is under way joins it; every question is answered once, in time for the
  neighbour that waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.balancing.abroad import RemoteLoads, RemoteLoadsRequest
from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_protocol.balancing.sessions import CANDIDATES_MAX, LoadReply, LoadRequest
from tidegate_protocol.messages import LoadState
from tidegate_protocol.rendering import refusals

from ...config import HOP_WAIT_SHARE
from ...kit.calls import Answer
from ...kit.dispatch import Dispatch
from ...kit.gather import Gatherings
from ...kit.outbox import joined
from ...machine import ReplyAddress
from ..context import HeadContext
from ..load import HeadLoads
from ..moving.offers import candidate, fitting_candidates
from ..moving.sessions import Sessions
from ..neighbours import stranger
from ..publishers.paths import Paths

ASKED_MAX: Final = 64
"""Sessions of other clusters that ask for our edges at the same time."""


@dataclass(slots=True)
class _Asked:
    message: RemoteLoadsRequest
    replies: list[ReplyAddress]
    loads: dict[str, BrokerLoad] = field(default_factory=dict)


class Room:
    """What our edges could take from other clusters."""

    def __init__(self, context: HeadContext, loads: HeadLoads, paths: Paths, sessions: Sessions) -> None:
        self._context = context
        self._loads = loads
        self._paths = paths
        self._sessions = sessions
        self._asked: dict[str, _Asked] = {}
        self._gatherings = Gatherings(context, "remote-load", self._heard, self._finish)

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(RemoteLoadsRequest, self.on_request)
        self._gatherings.register(dispatch)

    def on_request(self, message: RemoteLoadsRequest, reply_to: ReplyAddress | None) -> None:
        """A neighbour without room asks which of our edges have some."""
        context = self._context
        if reply_to is None:
            return
        asked, unknown = self._asked.get(message.session), stranger(context, message.head)
        if asked is not None:
            asked.replies = joined(asked.replies, reply_to)
        elif unknown is not None:
            context.refuse(reply_to, unknown)
        elif context.paused:
            context.refuse(reply_to, refusals.paused(context.config.cluster))
        elif not context.config.publisher_url:
            context.refuse(reply_to, refusals.not_configured("publisher_url"))
        elif len(self._asked) >= ASKED_MAX:
            context.refuse(reply_to, refusals.limit("ASKED_MAX", ASKED_MAX))
        else:
            self._ask_edges(message, reply_to)

    def _ask_edges(self, message: RemoteLoadsRequest, reply_to: ReplyAddress) -> None:
        context, session = self._context, message.session
        self._asked[session] = _Asked(message, [reply_to])
        head_has_room = self._loads.state in (LoadState.LOW, LoadState.NOT_AVAILABLE) and not context.stopping
        names = [name for name in self._loads.able() if self._sessions.busy(name) is None] if head_has_room else []
        within_s = context.config.balancing.load_reply_timeout_s * HOP_WAIT_SHARE
        questions = dict.fromkeys(names[:CANDIDATES_MAX], LoadRequest(session=session))
        self._gatherings.ask(session, questions, within_s=within_s)

    def _heard(self, session: str, edge: str, answer: Answer) -> None:
        if isinstance(answer, LoadReply) and answer.load.broker == edge:
            load = answer.load
            if load.state is LoadState.LOW and not load.busy:
                self._asked[session].loads[edge] = load

    def _finish(self, session: str) -> None:
        asked = self._asked.pop(session)
        message, longer_us = asked.message, self._paths.hop_us(asked.message.head)
        loads = [asked.loads[name] for name in sorted(asked.loads)]
        found = [candidate(self._context, load, message.patterns, longer_us) for load in loads]
        self._context.reply(asked.replies, RemoteLoads(session=session, candidates=fitting_candidates(found)))
