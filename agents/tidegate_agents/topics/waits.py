"""Waiting for routes: until bindings of our own are in place and neighbours have confirmed theirs.

A wait ends when everything it waits for has come. Neighbours get a time budget: those that are not alive, or
have not confirmed when the budget is used up, are named in `awaiting` instead. Bindings of our own get no
budget, because a route that is not bound here is not live at all.

Knows nothing of who waits; a wait has a key, and a finished one is handed out by `take_finished`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

K = TypeVar("K", int, str)


@dataclass(slots=True)
class Wait:
    """What is still missing. `neighbours` maps each to the number of the offer change it has to confirm."""

    key: str
    deadline_s: float
    changes: set[int] = field(default_factory=set)
    neighbours: dict[str, int] = field(default_factory=dict)
    awaiting: set[str] = field(default_factory=set)

    @property
    def finished(self) -> bool:
        return not self.changes and not self.neighbours


class Waits:
    """All waits of a head, found by key, by binding change and by neighbour."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}
        self._by_change: dict[int, set[str]] = {}
        self._by_neighbour: dict[str, set[str]] = {}
        self._finished: dict[str, Wait] = {}

    def open(self, wait: Wait) -> None:
        """Start waiting; a wait with the same key is replaced."""
        self.close(wait.key)
        self._waits[wait.key] = wait
        for change in wait.changes:
            self._by_change.setdefault(change, set()).add(wait.key)
        for name in wait.neighbours:
            self._by_neighbour.setdefault(name, set()).add(wait.key)
        self._check(wait)

    def close(self, key: str) -> None:
        """Stop waiting, if anybody was."""
        self._finished.pop(key, None)
        wait = self._waits.pop(key, None)
        if wait is None:
            return
        for change in wait.changes:
            _discard(self._by_change, change, key)
        for name in wait.neighbours:
            _discard(self._by_neighbour, name, key)

    def change_done(self, change: int) -> None:
        for key in sorted(self._by_change.pop(change, ())):
            wait = self._waits[key]
            wait.changes.discard(change)
            self._check(wait)

    def change_failed(self, change: int, retried_as: int) -> list[str]:
        """A change will be tried again under another number. Returns who waits for it; they may give up."""
        keys = sorted(self._by_change.pop(change, ()))
        for key in keys:
            wait = self._waits[key]
            wait.changes = (wait.changes - {change}) | {retried_as}
            self._by_change.setdefault(retried_as, set()).add(key)
        return keys

    def neighbour_confirmed(self, name: str, changes: int, awaiting: Iterable[str]) -> None:
        """`name` has what it was offered up to change number `changes`, but for the heads in `awaiting`."""
        names = set(awaiting)
        for key in sorted(self._by_neighbour.get(name, ())):
            if self._waits[key].neighbours[name] <= changes:
                self._give_up(key, name, names)

    def neighbour_lost(self, name: str) -> None:
        """Nobody need wait for `name`: it is not there, or does not take what we have for it."""
        for key in sorted(self._by_neighbour.get(name, ())):
            self._give_up(key, name, {name})

    def expired(self, key: str) -> None:
        """The time budget is used up."""
        wait = self._waits.get(key)
        for name in sorted(wait.neighbours) if wait else ():
            self._give_up(key, name, {name})

    def longest_left_s(self, name: str, now: float) -> float | None:
        """The largest budget left among those who wait for `name`; None if nobody does."""
        keys = self._by_neighbour.get(name)
        return max(max(self._waits[key].deadline_s - now, 0.0) for key in keys) if keys else None

    def take_finished(self) -> list[Wait]:
        """The waits that have ended since this was last asked."""
        if not self._finished:
            return []  # asked after every event
        finished, self._finished = list(self._finished.values()), {}
        return finished

    def _give_up(self, key: str, name: str, awaiting: set[str]) -> None:
        wait = self._waits[key]
        del wait.neighbours[name]
        wait.awaiting |= awaiting
        _discard(self._by_neighbour, name, key)
        self._check(wait)

    def _check(self, wait: Wait) -> None:
        if wait.finished:
            del self._waits[wait.key]
            self._finished[wait.key] = wait

    def validate(self) -> None:
        """Raise AssertionError if an index disagrees with the waits."""
        assert all(not wait.finished for wait in self._waits.values())
        by_change = {(change, key) for key, wait in self._waits.items() for change in wait.changes}
        by_neighbour = {(name, key) for key, wait in self._waits.items() for name in wait.neighbours}
        assert by_change == _pairs(self._by_change)
        assert by_neighbour == _pairs(self._by_neighbour)

    def __contains__(self, key: str) -> bool:
        return key in self._waits


def _discard(index: dict[K, set[str]], at: K, key: str) -> None:
    keys = index.get(at, set())
    keys.discard(key)
    if not keys:
        index.pop(at, None)


def _pairs(index: Mapping[K, set[str]]) -> set[tuple[K, str]]:
    return {(at, key) for at, keys in index.items() for key in keys}
