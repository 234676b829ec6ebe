"""Clients that are left alone for a while, because they were moved, or could not be moved, just now.

A client here is a subscriber and a pattern, wherever it is: what was moved is not moved again, and so never back to
where it came from, before its rest is over. Bounded: beyond `CLIENTS_MAX` the rest that ends first is cut short.
Time is an argument.
"""

from __future__ import annotations

import heapq
from typing import Final

from ..registry import Client

CLIENTS_MAX: Final = 100_000
"""How many resting clients are remembered."""


class Cooldowns:
    """Until when which client rests."""

    def __init__(self) -> None:
        self._until_s: dict[Client, float] = {}
        self._ends: list[tuple[float, Client]] = []

    def rest(self, client: Client, until_s: float) -> None:
        """Leave this client alone until then. A longer rest that it has already stays."""
        if until_s <= self._until_s.get(client, float("-inf")):
            return
        self._until_s[client] = until_s
        heapq.heappush(self._ends, (until_s, client))
        while len(self._until_s) > CLIENTS_MAX or len(self._ends) > 2 * CLIENTS_MAX:
            self._pop()

    def rests(self, client: Client, now: float) -> bool:
        return self._until_s.get(client, float("-inf")) > now

    def resting(self, now: float) -> list[Client]:
        """All clients that rest, in the order of names."""
        self.expire(now)
        return sorted(self._until_s)

    def expire(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            self._pop()

    def _pop(self) -> None:
        until_s, client = heapq.heappop(self._ends)
        # A rest that was prolonged has a later end of its own.
        if self._until_s.get(client) == until_s:
            del self._until_s[client]

    def validate(self) -> None:
        """Raise AssertionError if somebody would rest for ever."""
        ends = set(self._ends)
        assert all((until_s, client) in ends for client, until_s in self._until_s.items())
