"""What an operator of a tenant may do and see: it looks and never acts, and is told no name of another tenant's client.

Whoever asks is known by the account of its message, which RabbitMQ has checked. Invariants:

- an answer to such an operator names its tenant's clients and the cluster's brokers, and nobody else: queues, culprits
  and decisions about others are left out, and a client of others is as unknown as one that does not exist;
- a decision is told if it is about a client of its own, without the alternatives and the words of others that came with
  it, or if it is of a kind that names no client;
- in a cluster that has such operators, who does not name its account is told nothing.

The right to ask at all is RabbitMQ's to judge (`tidegate_brokers.access.roles`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

from tidegate_protocol.decisions import (
    BalancingSwitched,
    Decision,
    Drained,
    DrainOrdered,
    EdgeForgotten,
    EdgePresence,
    NeighbourPresence,
    RulesTaken,
    UnknownDecision,
)
from tidegate_protocol.messages import OPERATOR_KINDS, ControlMessage, Refusal, StatusReply
from tidegate_protocol.operations import (
    BrokerState,
    Culprit,
    Explained,
    ExplainReply,
    ExplainRequest,
    OverviewReply,
    QueueState,
    SessionState,
    Told,
)
from tidegate_protocol.rendering import refusals
from tidegate_protocol.rights import OperatorRights, Rules, may_see

from ..kit.memory import Recent
from ..machine import MessageReceived, ReplyAddress

LOOKING: Final = frozenset({"status-request", "overview-request", "explain-request"})
"""The kinds that change nothing, and whose answers can be veiled."""
NAMELESS: Final = (
    BalancingSwitched,
    Drained,
    DrainOrdered,
    EdgeForgotten,
    EdgePresence,
    NeighbourPresence,
    RulesTaken,
)
"""Decisions about brokers alone."""
VEILED_MAX: Final = 1_000
"""Questions of such operators that are not answered yet."""

Sees = Callable[[str], bool]


class Veil:
    """Between a head and operators of tenants."""

    def __init__(self) -> None:
        self._asked: Recent[ReplyAddress, tuple[OperatorRights, str]] = Recent(VEILED_MAX)
        """Who asked, and about which name."""

    def objection(self, event: MessageReceived, rules: Rules | None) -> Refusal | None:
        """Why this is not done for who asks it; None if it is, and its answer will be veiled where need be."""
        kind, account = event.message.kind, event.account
        if rules is None or kind not in OPERATOR_KINDS or not rules.has_veiled:
            return None
        operator = rules.operator(account)
        if operator is None:
            return refusals.unnamed_operator(kind) if not account else None
        if operator.tenant is None:
            return None
        if kind not in LOOKING:
            return refusals.only_looks(account, operator.tenant, kind)
        if event.reply_to is not None and not operator.sees_others:
            about = event.message.about if isinstance(event.message, ExplainRequest) else ""
            self._asked[event.reply_to] = operator, about
        return None

    def veiled(self, to: ReplyAddress, message: ControlMessage, rules: Rules | None) -> ControlMessage:
        """The answer as the asker may see it."""
        asked = self._asked.pop(to, None)
        if asked is None:
            return message
        operator, about = asked
        return veiled(message, about, lambda client: may_see(operator, client, rules))


def veiled(message: ControlMessage, about: str, sees: Sees) -> ControlMessage:
    """An answer to an operator who asked about this name, without the names that it may not see."""
    match message:
        case Refusal(field="about"):
            return refusals.nothing_of_that_name(about, (), ())
        case OverviewReply():
            return message.model_copy(
                update={
                    "brokers": tuple(_broker(one, sees) for one in message.brokers),
                    "sessions": tuple(_session(one, sees) for one in message.sessions),
                    "culprits": _culprits(message.culprits, sees),
                }
            )
        case ExplainReply():
            if message.what in (Explained.SUBSCRIBER, Explained.PUBLISHER) and not sees(message.about):
                return refusals.nothing_of_that_name(about, (), ())
            return message.model_copy(
                update={
                    "decisions": tuple(told for one in message.decisions if (told := _told(one, sees)) is not None),
                    "brokers": tuple(_broker(one, sees) for one in message.brokers),
                    "queues": _queues(message.queues, sees),
                    "sessions": tuple(_session(one, sees) for one in message.sessions),
                    "culprits": _culprits(message.culprits, sees),
                }
            )
        case _:
            assert isinstance(message, StatusReply | Refusal), f"{message.kind} is not veiled"
            return message


def _broker(one: BrokerState, sees: Sees) -> BrokerState:
    return one.model_copy(update={"queues": _queues(one.queues, sees)})


def _queues(queues: tuple[QueueState, ...], sees: Sees) -> tuple[QueueState, ...]:
    return tuple(queue for queue in queues if sees(queue.subscriber))


def _culprits(culprits: tuple[Culprit, ...], sees: Sees) -> tuple[Culprit, ...]:
    return tuple(culprit for culprit in culprits if sees(culprit.client))


def _session(one: SessionState, sees: Sees) -> SessionState:
    began = _decision(one.began, sees)
    return one.model_copy(update={"began": UnknownDecision() if began is None else began})


def _told(one: Told, sees: Sees) -> Told | None:
    record = _decision(one.record, sees)
    return None if record is None else one.model_copy(update={"record": record})


def _decision(one: Decision, sees: Sees) -> Decision | None:
    """A decision without the names of others; None if nothing would be left of it."""
    if isinstance(one, NAMELESS):
        return one
    client = getattr(one, "subscriber", "") or getattr(one, "publisher", "")
    if not isinstance(client, str) or not client or not sees(client):
        return None
    emptied: dict[str, Any] = {"rejected": (), "detail": ""}
    there = {each.name for each in fields(one)}
    return replace(one, **{name: value for name, value in emptied.items() if name in there})
