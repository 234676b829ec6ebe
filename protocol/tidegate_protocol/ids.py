"""Names of clients, brokers and clusters, and message ids.

Names become parts of queue names and routing keys, so they hold no dot, colon or wildcard. A publisher's id is its
name and an *incarnation*: a publisher that is restarted counts from zero again, and without the incarnation its new
messages would look like repetitions of its old ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from .errors import InvalidName

NAME_LENGTH_MAX: Final = 48
PUBLISHER_ID_LENGTH_MAX: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PUBLISHER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*~[0-9a-z]+")
# No leading zeros, so that one id has one spelling; no more digits than the length of a message id allows for.
_SEQUENCE: Final = re.compile(r"0|[1-9][0-9]{0,19}")


def check_name(value: str, field: str = "name") -> str:
    """Return `value` if it may name a client, a broker or a cluster; raise `InvalidName` otherwise."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidName(
            field, value, "is not a name", "use letters, digits, '-' and '_', starting with a letter or digit"
        )
    if len(value) > NAME_LENGTH_MAX:
        raise InvalidName(field, value, f"has {len(value)} characters", f"use at most {NAME_LENGTH_MAX}")
    return value


def publisher_id(name: str, incarnation: int) -> str:
    """The id under which one run of a publisher numbers its messages."""
    return check_publisher_id(f"{check_name(name, 'publisher')}~{_base36(incarnation)}")


def check_publisher_id(value: str) -> str:
    """Return `value` if it is a publisher's id, short enough for a message id; raise `InvalidName` otherwise."""
    if not _PUBLISHER_ID.fullmatch(value):
        raise InvalidName("publisher", value, "is not a publisher's id", "use '<name>~<incarnation>'")
    if len(value) > PUBLISHER_ID_LENGTH_MAX:
        problem, remedy = f"has {len(value)} characters", f"use at most {PUBLISHER_ID_LENGTH_MAX}"
        raise InvalidName("publisher", value, problem, remedy)
    return value


@dataclass(frozen=True, slots=True)
class MessageId:
    """`<publisher>:<topic>:<sequence>`: sequences count from 0 without gaps per publisher and topic."""

    publisher: str
    topic: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.stream}:{self.sequence}"

    @property
    def stream(self) -> str:
        """What its sequence counts: the publisher and the topic, as the id spells them."""
        return f"{self.publisher}:{self.topic}"

    @classmethod
    def parse(cls, text: str | None) -> MessageId | None:
        """Read an id; None for anything else, because foreign clients set ids of their own or none at all."""
        if not text:
            return None
        publisher, _, rest = text.partition(":")
        topic, _, digits = rest.rpartition(":")
        if not topic or not _SEQUENCE.fullmatch(digits) or not _PUBLISHER_ID.fullmatch(publisher):
            return None
        return cls(publisher, topic, int(digits))


def _base36(number: int) -> str:
    assert number >= 0
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
        if not number:
            return digits
