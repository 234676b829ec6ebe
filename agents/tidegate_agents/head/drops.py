"""What operators want with dropped messages: passed on to the edges that it concerns, and their answers joined.

Invariants: nothing is kept here. An edge that is not there, or does not answer in time, is named as missing and holds
nobody up. A replay is wanted of one subscriber, never of all: what was dropped would come back at once to everybody
who did not keep up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.drops import MESSAGES_TOLD_MAX, OUTPUTS_TOLD_MAX, DropsOrder, DropsReply, DropsRequest
from tidegate_protocol.rendering import refusals

from ..kit.calls import Answer
from ..kit.dispatch import Dispatch
from ..kit.gather import Gatherings
from ..machine import ReplyAddress
from .context import HeadContext

PART: Final = "drops"
EDGE_WAIT_S: Final = 2.0
"""How long edges may take to answer: longer than they take to declare their stream anew."""
QUESTIONS_MAX: Final = 16
"""Questions under way at once."""


@dataclass(slots=True)
class _Question:
    reply_to: ReplyAddress | None
    answers: dict[str, DropsReply] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


class HeadDrops:
    """Questions of operators about dropped messages."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        self._questions: dict[str, _Question] = {}
        self._gatherings = Gatherings(context, PART, self._heard, self._finish)
        self._last = 0

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(DropsRequest, self._wanted)
        self._gatherings.register(dispatch)

    def _wanted(self, message: DropsRequest, reply_to: ReplyAddress | None) -> None:
        context = self._context
        edges = context.registry.edges
        if message.edge and message.edge not in edges:
            context.refuse(reply_to, refusals.no_such_edge(message.edge, sorted(edges)))
        elif message.order is DropsOrder.REPLAY and not message.subscriber:
            context.refuse(reply_to, refusals.replay_of_all())
        elif len(self._questions) >= QUESTIONS_MAX:
            context.refuse(reply_to, refusals.limit("QUESTIONS_MAX", QUESTIONS_MAX), EDGE_WAIT_S)
        else:
            self._last += 1
            name = str(self._last)
            wanted = [message.edge] if message.edge else sorted(edges)
            there = [edge for edge in wanted if edges[edge].alive]
            missing = [edge for edge in wanted if edge not in there]
            self._questions[name] = _Question(reply_to, missing=missing)
            self._gatherings.ask(name, dict.fromkeys(there, message), within_s=EDGE_WAIT_S)

    def _heard(self, name: str, edge: str, answer: Answer) -> None:
        question = self._questions[name]
        if isinstance(answer, DropsReply):
            question.answers[edge] = answer
        else:
            question.missing.append(edge)

    def _finish(self, name: str) -> None:
        question = self._questions.pop(name)
        answers = [question.answers[edge] for edge in sorted(question.answers)]
        outputs = sorted(
            (one for answer in answers for one in answer.outputs),
            key=lambda one: (-sum(one.reasons.values()), -one.held, one.queue, one.edge),
        )
        messages = [one for answer in answers for one in answer.messages]
        reply = DropsReply(
            outputs=tuple(outputs[:OUTPUTS_TOLD_MAX]),
            messages=tuple(messages[:MESSAGES_TOLD_MAX]),
            begun=sum(answer.begun for answer in answers),
            purged=sum(answer.purged for answer in answers),
            missing=tuple(sorted(question.missing)),
            without=tuple(sorted(edge for answer in answers for edge in answer.without)),
        )
        self._context.reply(question.reply_to, reply)
