"""Binding changes: ordered from RabbitMQ as the routes call for them, until each of them is in place.

Invariant: every change that was ordered and not yet confirmed is known (`outstanding`); a refused one is ordered again
under a new number, as far as it still agrees with what is needed.
"""

from __future__ import annotations

from ..kit.outbox import Outbox
from ..machine import ChangeRoutes
from ..topics.routes import RouteTable
from ..topics.waits import Waits


class Bindings:
    """The binding changes of one head that are under way."""

    def __init__(self, outbox: Outbox, routes: RouteTable, waits: Waits, retry_s: float) -> None:
        self._outbox = outbox
        self._routes = routes
        self._waits = waits
        self._retry_s = retry_s
        self._last = 0
        self._ordered: dict[int, ChangeRoutes] = {}
        self._latest: dict[str, int] = {}
        self._failed: dict[int, ChangeRoutes] = {}

    def flush(self) -> None:
        """Order the binding changes that the routes call for."""
        for change in self._routes.take_changes():
            self._order(ChangeRoutes(self._next(), change.target, change.add, change.remove))

    def outstanding(self, target: str) -> set[int]:
        """What to wait for until all bindings ordered on this link are in place: they are made in order."""
        waiting = {number for number, change in self._failed.items() if change.target == target}
        if target in self._latest:
            waiting.add(self._latest[target])
        return waiting

    def done(self, number: int) -> None:
        change = self._ordered.pop(number, None)
        if change is None:
            return
        if self._latest.get(change.target) == number:
            del self._latest[change.target]
        self._waits.change_done(number)

    def failed(self, failed: ChangeRoutes) -> list[str]:
        """RabbitMQ refused a binding: try again later, under a new number. Returns who waits for it."""
        if self._ordered.pop(failed.change_id, None) is None:
            return []
        if self._latest.get(failed.target) == failed.change_id:
            del self._latest[failed.target]
        again = ChangeRoutes(self._next(), failed.target, failed.add, failed.remove)
        self._failed[again.change_id] = again
        self._outbox.set_timer(f"rebind {again.change_id}", self._retry_s)
        return self._waits.change_failed(failed.change_id, again.change_id)

    def retry(self, number: int) -> None:
        """Order a failed change again, as far as it still agrees with what is needed."""
        change = self._failed.pop(number, None)
        if change is None:
            return
        if change.target not in self._routes.targets:
            self._waits.change_done(number)
            return
        add = tuple(p for p in change.add if self._routes.is_needed(change.target, p))
        kept = self._routes.leftovers(change.target)
        remove = tuple(p for p in change.remove if p not in kept and not self._routes.is_needed(change.target, p))
        self._order(ChangeRoutes(number, change.target, add, remove))

    def _order(self, change: ChangeRoutes) -> None:
        self._ordered[change.change_id] = change
        self._latest[change.target] = change.change_id
        self._outbox.do(change)

    def _next(self) -> int:
        self._last += 1
        return self._last

    def validate(self) -> None:
        """Raise AssertionError if the latest change of a link is not known as ordered."""
        for target, number in self._latest.items():
            assert self._ordered[number].target == target
