"""Bounded memory: the latest entries are kept, the oldest are forgotten.

Invariant: there are at most `entries_max` entries, and they are in the order in which they were last written. An entry
that is written again is the newest. Reading changes nothing. Knows no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(MutableMapping[K, V]):
    """A mapping that forgets its oldest entry when it would hold more than `entries_max`."""

    __slots__ = ("_entries", "entries_max")

    def __init__(self, entries_max: int) -> None:
        assert entries_max > 0, "a memory that keeps nothing"
        self.entries_max = entries_max
        self._entries: dict[K, V] = {}

    def __setitem__(self, key: K, value: V) -> None:
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self.entries_max:
            del self._entries[next(iter(self._entries))]

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    def __delitem__(self, key: K) -> None:
        del self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """The keys, oldest first."""
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def forget_while(self, over: Callable[[V], bool]) -> None:
        """Forget the oldest entries as long as their values are over; the first that is not ends it."""
        while self._entries:
            key = next(iter(self._entries))
            if not over(self._entries[key]):
                return
            del self._entries[key]

    def validate(self) -> None:
        """Raise AssertionError if more is kept than may be."""
        assert len(self._entries) <= self.entries_max
