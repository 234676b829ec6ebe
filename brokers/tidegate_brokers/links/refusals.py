"""Why RabbitMQ refused a message, and which other messages it would refuse for the same reason. Pure.

RabbitMQ closes the channel, or the connection, with a code and a text. The code tells a message that is at fault from a
link that is; the text says the limit that was passed, so that a relay need not send megabytes to have them refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.amqp.content import decode_properties
from tidegate_protocol.decisions import SetAsideReason
from tidegate_protocol.ids import MessageId
from tidegate_protocol.quarantine import SetAside

from ..rabbit.raw import Closed, RawMessage

DETAIL_LENGTH_MAX: Final = 300
TEXT_LENGTH_MAX: Final = 300

_BY_CODE: Final = {
    403: SetAsideReason.KEY,
    406: SetAsideReason.CONTENT,
    501: SetAsideReason.HEADERS_TOO_LARGE,
    502: SetAsideReason.CONTENT,
    505: SetAsideReason.CONTENT,
    541: SetAsideReason.FAILURE,
}
"""What a message can be refused with. Any other code, and a connection lost without a word, says nothing about it."""
_TOO_LARGE: Final = re.compile(r"larger than (?:configured )?max size (\d+)")
_ACCOUNT: Final = re.compile(r"user_id property set to")


@dataclass(frozen=True, slots=True)
class Refused:
    """A message is at fault, and why."""

    reason: SetAsideReason
    text: str


def refusal(closed: Closed) -> Refused | None:
    """What a closed channel says about the one message that was on it; None if the message is not at fault."""
    reason = _BY_CODE.get(closed.code)
    if reason is None:
        return None
    if _TOO_LARGE.search(closed.text):
        reason = SetAsideReason.TOO_LARGE
    elif _ACCOUNT.search(closed.text):
        reason = SetAsideReason.ACCOUNT
    return Refused(reason, closed.text[:DETAIL_LENGTH_MAX])


@dataclass(slots=True)
class Known:
    """What a far end is known to refuse, learned from what it has refused.

    Invariant: forgotten with the relay that learned it, since a limit may be raised at any time.
    """

    user: str
    """The account of the link: it may always name itself."""
    bytes_max: int | None = None
    account: Refused | None = None
    _large: Refused | None = field(default=None, repr=False)

    def learn(self, refused: Refused) -> None:
        """Take over what a refusal says about others."""
        found = _TOO_LARGE.search(refused.text)
        if refused.reason is SetAsideReason.TOO_LARGE and found is not None:
            self.bytes_max, self._large = int(found[1]), refused
        elif refused.reason is SetAsideReason.ACCOUNT:
            self.account = refused

    def objection(self, message: RawMessage) -> Refused | None:
        """Why this message would be refused; None if it must be tried."""
        if self.bytes_max is not None and len(message.body) > self.bytes_max:
            return self._large
        if self.account is not None:
            user = decode_properties(message.properties, 0, len(message.properties)).get("user_id")
            return self.account if user is not None and user != self.user else None
        return None


def entry_of(entry: str, target: str, refused: Refused, message: RawMessage, at_us: int) -> SetAside:
    """The record of a message that is set aside."""
    found = decode_properties(message.properties, 0, len(message.properties))
    identity = MessageId.parse(found.get("message_id"))
    return SetAside(
        id=entry,
        target=target,
        reason=refused.reason,
        detail=refused.text[:DETAIL_LENGTH_MAX],
        account=str(found.get("user_id") or "")[:TEXT_LENGTH_MAX],
        publisher="" if identity is None else identity.publisher,
        topic=message.key.decode("utf-8", "replace"),
        size_bytes=len(message.body),
        at_us=at_us,
    )
