"""Who may say what: from the account of a control message to the kinds and names that it may use.

RabbitMQ has compared the property `user_id` with the sender's account, and allows every account certain keys of the
control exchange (`roles.py`). It can't know whether a message names its sender; that is judged here, from tables:

| key | from | may say |
| --- | --- | --- |
| `hom`, `answer` | the account of a client | what is about a client of its own (`names.py`) |
| `operator` | the account of an operator | what operators say |
| `head` | `broker.<edge>` | what an edge says, of itself |
| `pie.local.<cluster>` | `broker.<broker>` | its own load |
| `broker.<head>`, `pie.global.<cluster>` | `broker.<other head>` | what a neighbour says, of itself |
| `broker.<edge>` | an account of a broker | orders |

Two ways lead past RabbitMQ's rules on keys: a queue that dead-letters into the control exchange, and the headers `CC`
and `BCC`, which 3.10 does not check. Nobody of ours uses either, so that nothing which came that way is taken, whoever
sent it.

A broker of an earlier version does not name its account. It is taken as it comes, so that brokers can be upgraded one
after another, until it has named itself once: RabbitMQ's rules on keys hold for it all the same.

Pure; the tables are the only place where this is said.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate_protocol.messages import ControlMessage, client_of
from tidegate_protocol.names import (
    ANSWER_KEY,
    HEAD_KEY,
    HOM_KEY,
    OPERATOR_KEY,
    broker_key,
    pie_global_key,
    pie_local_key,
)

from .names import owns
from .roles import broker_user

NOT_YOURS: Final = "not-yours"
"""The reason under which messages are counted whose account may not say what they say."""
BROKER_USER_START: Final = broker_user("")
BROKER_KEY_START: Final = broker_key("")
PIE_LOCAL_START: Final = pie_local_key("")
PIE_GLOBAL_START: Final = pie_global_key("")

ANY_BROKER: Final = BROKER_USER_START
"""Claimed by messages that do not say which broker sent them."""
NOBODY: Final = ""
"""In place of a field: the kind does not name its sender."""
FROM_EDGES: Final[Mapping[str, str]] = {
    "edge-hello": "edge",
    "edge-goodbye": "edge",
    "output-removed": "edge",
    "balance-request": "edge",
    "balance-plan": "edge",
    "probe": NOBODY,
}
"""What an edge says unasked, and which field names it. Its answers go to the address in the question."""
FROM_BROKERS: Final[Mapping[str, str]] = {"pie-local": "broker"}
FROM_NEIGHBOURS: Final[Mapping[str, str]] = {
    "routes-update": "head",
    "guest-list": "head",
    "remote-loads-request": "head",
    "accept-request": "head",
    "accept-end": "head",
    "marker-request": "head",
    "published-topics": "head",
    "head-load-request": "head",
    "publisher-expect": "head",
    "fence-seen": "head",
    "pie-global": "head",
    "probe": NOBODY,
}

UNREADABLE: Final = "x-unreadable"
DETOURS: Final[Mapping[str, str]] = {
    "x-death": "dead-lettered",
    "CC": "copied",
    "BCC": "copied",
    UNREADABLE: "unreadable-headers",
}
"""Headers of messages that may have come past the rules on keys, and the reason under which each is counted. The last
one stands for headers that can't be read: one of the others may be among them."""


def detour(headers: Mapping[str, object] | None) -> str | None:
    """Why a control message with these headers is dropped; None for one that came the direct way."""
    return next((reason for name, reason in DETOURS.items() if name in headers), None) if headers else None


@dataclass(frozen=True, slots=True)
class Admission:
    """What one process takes from whom."""

    head: bool
    """Whether it is a head."""
    own_names: bool = False
    """Whether clients speak only for names of their account."""
    brokers: bool = False
    """Whether brokers and operators speak only as themselves: all of them name their accounts."""

    def objection(
        self, user: str, key: str, message: ControlMessage, named: Container[str] = frozenset()
    ) -> str | None:
        """Why a message that came by `key` is not taken from `user`; None if it is. Answers are judged by what was
        asked (`may_answer`).

        `named`: the accounts (`claimed`) of brokers that have named themselves before. Others may be of an earlier
        version, which does not, and are taken as they come.
        """
        if key == HOM_KEY:
            client = client_of(message)
            if self.own_names and (client is None or not owns(user, client)):
                return f"{user or 'nobody'} may not speak for {client}"
            return None
        if not self.brokers or key == ANSWER_KEY:
            return None
        if key == OPERATOR_KEY:
            return None if user and "." not in user else f"{user or 'nobody'} is no operator"
        fields = self._fields(key)
        if fields is not None and message.kind not in fields:
            return f"{user or 'nobody'} may not send {message.kind} to {key}"
        claimed = self.claimed(key, message)
        if not user:
            # On a head only probes name nobody: harmless, and sent by brokers of any version.
            known = claimed in named and not (self.head and claimed == ANY_BROKER)
            return f"{claimed} names itself otherwise" if known else None
        if claimed == ANY_BROKER:
            return None if user.startswith(BROKER_USER_START) else f"{user} is no broker"
        return None if user == claimed else f"{user} may not speak for {claimed}"

    def claimed(self, key: str, message: ControlMessage) -> str:
        """The account that a broker's message claims to be from."""
        field = (self._fields(key) or {}).get(message.kind, NOBODY)
        return broker_user(getattr(message, field)) if field else ANY_BROKER

    def may_answer(self, user: str, client: str) -> bool:
        """Whether `user` may answer an order that was given to `client`."""
        return not self.own_names or owns(user, client)

    def _fields(self, key: str) -> Mapping[str, str] | None:
        """The kinds that may come by a key, and what names their sender; None where that is not fixed."""
        if key.startswith(PIE_LOCAL_START):
            return FROM_BROKERS
        if not self.head:
            return None
        if key == HEAD_KEY:
            return FROM_EDGES
        if key.startswith((BROKER_KEY_START, PIE_GLOBAL_START)):
            return FROM_NEIGHBOURS
        return {}
