"""What both clients do with their arguments before any I/O: check them, fill in defaults, make the values of
the engines.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Final, Literal

from tidegate_protocol.errors import InvalidValue
from tidegate_protocol.ids import check_name, publisher_id
from tidegate_protocol.messages import DEADLINE_US_MAX, SubscribeRequest
from tidegate_protocol.topics import check_pattern

from ._config import PREFETCH_MAX, Limits
from ._inbox import Inbox

Acknowledge = Literal["auto", "manual"]
EXPIRES_S_MAX: Final = 30 * 24 * 3600
INCARNATION_CHANCES: Final = 36**3


def make_publisher_id(name: str | None) -> str:
    """The id of one run of a publisher.

    The incarnation is the time in milliseconds, so that a restart gets a new one, and a random part, because two
    publishers of one name started at the same moment would take each other's messages for repetitions.
    """
    if name is None:
        name = f"publisher-{secrets.token_hex(4)}"
    return publisher_id(name, int(time.time() * 1000) * INCARNATION_CHANCES + secrets.randbelow(INCARNATION_CHANCES))


def make_subscriber_name(name: str | None) -> str:
    """A name nobody else has for a subscriber that was given none."""
    return f"subscriber-{secrets.token_hex(6)}" if name is None else check_name(name, "name")


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


def make_inbox(deadline: float, acknowledge: str, prefetch: int | None, limits: Limits) -> Inbox:
    if acknowledge not in ("auto", "manual"):
        raise InvalidValue("acknowledge", acknowledge, "is unknown", "use 'auto' or 'manual'")
    if prefetch is None:
        prefetch = limits.prefetch
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 0 < prefetch <= PREFETCH_MAX:
        raise InvalidValue("prefetch", prefetch, "is out of range", f"use a whole number from 1 to {PREFETCH_MAX}")
    return Inbox(deadline, acknowledge == "manual", prefetch, limits.streams)
