"""What a broker or a client said instead of the answer that was asked for."""

from __future__ import annotations

from tidegate_protocol.decisions import MoveOutcome, Rejected, Rejection, WhyNot
from tidegate_protocol.messages import ControlMessage, Refusal

from .calls import Answer, Silence


def detail_of(message: ControlMessage) -> str:
    """The text of a refusal, or the kind of any other message: the `detail` of a decision."""
    return message.message if isinstance(message, Refusal) else message.kind


def rejected_for(name: str, answer: Answer) -> Rejected:
    """Why the broker `name` is not taken: it gave this answer, or none."""
    if isinstance(answer, Silence):
        return Rejected(name, Rejection.PROCESS_ABSENT if answer is Silence.ABSENT else Rejection.NO_ANSWER)
    return Rejected(name, Rejection.REFUSED, detail=detail_of(answer))


def why_not(name: str, answer: Answer) -> WhyNot:
    """Why a move can't go on: the broker `name` gave this answer, or none."""
    if isinstance(answer, Silence):
        return WhyNot(MoveOutcome.PROCESS_ABSENT if answer is Silence.ABSENT else MoveOutcome.NO_ANSWER, (name,))
    return WhyNot(MoveOutcome.REFUSED, (name,), detail_of(answer))
