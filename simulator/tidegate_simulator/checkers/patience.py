"""When a client has waited long enough: what is collected may then come before what precedes it.

A client that collects holds back what is ahead of what it has delivered, because something older may still come through
the queue in use. It waits as long as that comes nearer, and then for a share of the time that it has for collecting
(`tidegate._core.collector`, docs/sdk.md). Behind the backlog of others on a narrow uplink, the queue in use may bring
nothing for longer than that, and the client can't tell it from a queue that never will. What it hands over then
precedes nothing: the order of all that comes through the queue in use is judged as if it had not come.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate._core.collector import PATIENCE_SHARE
from tidegate_protocol.balancing.places import CollectOrder

Key = tuple[str, int, str]
"""A subscriber, its life, and a stream."""


@dataclass(frozen=True, slots=True)
class _Collection:
    """An order to collect what waits elsewhere."""

    id: str
    ordered_s: float
    patience_s: float


class Patience:
    """How long which client has waited in vain for what precedes something it has collected."""

    def __init__(self) -> None:
        self._collections: dict[str, _Collection] = {}
        """Per subscriber the last one that was ordered."""
        self._came_s: dict[Key, float] = {}
        """When something last came through the queue in use."""
        self._over: set[Key] = set()
        """Where something was handed over without what precedes it, because the time to wait was over."""

    def ordered(self, subscriber: str, order: CollectOrder, now: float) -> None:
        """A subscriber is told to collect; that it is told again changes nothing."""
        known = self._collections.get(subscriber)
        if known is None or known.id != order.migration:
            self._collections[subscriber] = _Collection(order.migration, now, PATIENCE_SHARE * order.timeout_us / 1e6)

    def came(self, key: Key, now: float) -> None:
        """Something came through the queue in use."""
        self._came_s[key] = now

    def is_over(self, key: Key, ahead: bool, now: float) -> bool:
        """Whether what is collected now proves nothing about order. `ahead`: something before it has not come."""
        collection = self._collections.get(key[0])
        if ahead and collection is not None:
            stalled_s = now - max(self._came_s.get(key, 0.0), collection.ordered_s)
            if stalled_s >= collection.patience_s:
                self._over.add(key)
        return key in self._over
