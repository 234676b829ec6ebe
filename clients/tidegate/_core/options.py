"""The arguments of both kinds of clients: checked and completed before any I/O, as values for the engines."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Final, Literal

from tidegate_protocol.errors import InvalidName, InvalidValue
from tidegate_protocol.ids import check_name, publisher_id
from tidegate_protocol.messages import DEADLINE_US_MAX, SubscribeRequest
from tidegate_protocol.topics import check_pattern

from .config import PREFETCH_MAX, Limits
from .inbox import Inbox

Acknowledge = Literal["auto", "manual"]
EXPIRES_S_MAX: Final = 30 * 24 * 3600
INCARNATION_CHANCES: Final = 36**3
NAME_RANDOM_MAX: Final = 16
"""Characters of a made-up name that are left to chance, and a few more."""


def make_publisher_id(name: str | None, user: str) -> str:
    """The id of one run of a publisher; without a name it gets one that belongs to its account.

    The incarnation is the time in milliseconds, so that a restart gets a new one, and a random part, because two
    publishers of one name started at the same moment would take each other's messages for repetitions.
    """
    if name is None:
        name = f"{_start(user, 'publisher')}-{secrets.token_hex(4)}"
    return publisher_id(name, int(time.time() * 1000) * INCARNATION_CHANCES + secrets.randbelow(INCARNATION_CHANCES))


def make_subscriber_name(name: str | None, user: str) -> str:
    """A name for a subscriber that was given none: unique, and one that belongs to its account."""
    return f"{_start(user, 'subscriber')}-{secrets.token_hex(6)}" if name is None else check_name(name, "name")


def _start(user: str, otherwise: str) -> str:
    """What names of an account start with; a head may refuse others. Some accounts have names that clients can't."""
    try:
        return check_name(f"{user}-{'0' * NAME_RANDOM_MAX}").rpartition("-")[0]
    except InvalidName:
        return otherwise


def make_limits(limits: Limits | None, window: int | None = None) -> Limits:
    limits = limits or Limits()
    if window is None:
        return limits
    if isinstance(window, bool) or not isinstance(window, int):
        raise InvalidValue("window", window, "is not a whole number", "use the number of unconfirmed publications")
    return replace(limits, window=window)


def make_request(subscriber: str, pattern: str, deadline: float, expires_s: int) -> SubscribeRequest:
    """A checked request; `deadline` in seconds."""
    check_pattern(pattern)
    number = isinstance(deadline, int | float) and not isinstance(deadline, bool)
    if not number or not 1e-6 <= deadline <= DEADLINE_US_MAX / 1e6:
        raise InvalidValue(
            "deadline",
            deadline,
            "is no usable time",
            f"use seconds above 0 and up to {DEADLINE_US_MAX // 1_000_000}",
        )
    if isinstance(expires_s, bool) or not isinstance(expires_s, int) or not 0 < expires_s <= EXPIRES_S_MAX:
        raise InvalidValue("expires_s", expires_s, "is no usable time", f"use whole seconds from 1 to {EXPIRES_S_MAX}")
    return SubscribeRequest(
        subscriber=subscriber, pattern=pattern, deadline_us=round(deadline * 1e6), expires_s=expires_s
    )


def make_inbox(pattern: str, deadline: float, acknowledge: str, prefetch: int | None, limits: Limits) -> Inbox:
    if acknowledge not in ("auto", "manual"):
        raise InvalidValue("acknowledge", acknowledge, "is unknown", "use 'auto' or 'manual'")
    if prefetch is None:
        prefetch = limits.prefetch
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 0 < prefetch <= PREFETCH_MAX:
        raise InvalidValue("prefetch", prefetch, "is out of range", f"use a whole number from 1 to {PREFETCH_MAX}")
    return Inbox(deadline, acknowledge == "manual", prefetch, limits.streams, limits.prefetch_bytes, pattern)
