"""Clients that were moved to another cluster, and where they went.

A client that starts anew asks the head it was configured with, which is the one it came from. What waits for it is in
its queue over there: it must be sent after it, or that queue would never be read. What always holds: a client that is
here again is forgotten; so is the oldest beyond `DEPARTURES_MAX`. A head that restarts has forgotten all of them, as
everything that is soft, and is told by those who have them (`guests`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidegate_protocol.messages import Subscription

from .migration_steps import NewPlace

DEPARTURES_MAX: Final = 50_000
"""How many clients are remembered."""

Client = tuple[str, str]
"""Subscriber and pattern."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a client went, and its subscription there."""

    place: NewPlace
    subscription: Subscription


class Departures:
    """The clients of this head that are elsewhere now, by subscriber and pattern."""

    def __init__(self) -> None:
        self._departures: dict[Client, Departure] = {}

    def remember(self, client: Client, place: NewPlace, subscription: Subscription) -> None:
        """The client has moved to another cluster."""
        self._departures.pop(client, None)
        moved = subscription.model_copy(update={"number": place.number})
        self._departures[client] = Departure(place, moved)
        if len(self._departures) > DEPARTURES_MAX:
            del self._departures[next(iter(self._departures))]

    def forget(self, client: Client) -> None:
        """The client is here, or wants to be."""
        self._departures.pop(client, None)

    def find(self, client: Client) -> Departure | None:
        return self._departures.get(client)

    def __iter__(self) -> Iterator[Departure]:
        return iter(self._departures.values())

    def __len__(self) -> int:
        return len(self._departures)
