"""How heads and edges name a subscription on an edge, and compare all of them by a digest.

The digest is the sum, modulo 2^64, of the first eight bytes of the SHA-256 of each subscription's line
`<subscriber> <number> <pattern> <deadline_us> <expires_s>`, followed by its origin if it has one. A sum does not depend
on the order and can be changed by one subscription at a time, which a digest over sorted lines can't. It guards against
forgetting, not against forgery.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Final

from tidegate_protocol.messages import Subscription

DIGESTS_REMEMBERED_MAX: Final = 4_096
"""A subscription comes and goes with the same line, and checks add all of them up again."""

Key = tuple[str, int]
"""Subscriber and number: what names an output queue on its edge."""


def key_of(subscription: Subscription) -> Key:
    """The key under which an edge keeps `subscription`."""
    return subscription.subscriber, subscription.number


class RegistryDigest:
    """The digest of a set of subscriptions, changed by one at a time."""

    __slots__ = ("_sum", "count")

    def __init__(self, subscriptions: Iterable[Subscription] = ()) -> None:
        self._sum = 0
        self.count = 0
        for subscription in subscriptions:
            self.add(subscription)

    def add(self, subscription: Subscription) -> None:
        self._sum = (self._sum + _line_digest(subscription)) % (1 << 64)
        self.count += 1

    def remove(self, subscription: Subscription) -> None:
        self._sum = (self._sum - _line_digest(subscription)) % (1 << 64)
        self.count -= 1

    @property
    def text(self) -> str:
        """Sixteen hexadecimal digits."""
        return f"{self._sum:016x}"


def registry_digest(subscriptions: Iterable[Subscription]) -> str:
    """The digest of all these subscriptions."""
    return RegistryDigest(subscriptions).text


def _line_digest(subscription: Subscription) -> int:
    s = subscription
    line = f"{s.subscriber} {s.number} {s.pattern} {s.deadline_us} {s.expires_s}"
    if s.origin is not None:
        line += f" {s.origin}"
    if s.origin_edge is not None:
        line += f" {s.origin_edge} {s.origin_number}"
    return _digest(line)


@lru_cache(maxsize=DIGESTS_REMEMBERED_MAX)
def _digest(line: str) -> int:
    return int.from_bytes(sha256(line.encode()).digest()[:8], "big")
