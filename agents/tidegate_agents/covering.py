"""A counted multiset of topic patterns and its covering set: the patterns that no other one makes
superfluous.

What always holds:

- the covering set holds exactly the maximal patterns: every member is covered by one of them, and none of
  them by another;
- of several patterns that match the same topics (`#.*` and `*.#`) the lexicographically smallest stands for
  all, so the result depends on what is in the multiset and not on the order in which it came;
- every member that is not maximal hangs below one maximal pattern that covers it, its *witness*. Taking a
  maximal pattern away therefore only concerns those that hang below it.

A pattern without wildcards covers nothing but itself, so it is only compared with the maximal patterns that
have wildcards; where most patterns are plain topics an operation costs a few comparisons. At worst adding
costs one pass over the maximal patterns, and taking away one pass per pattern that hung below.

Knows nothing of links, brokers or messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tidegate_protocol.topics import covers


@dataclass(frozen=True, slots=True)
class CoverChange:
    """What entered and what left a covering set by one operation, sorted."""

    entered: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entered or self.left)


NO_CHANGE = CoverChange()


def has_wildcard(pattern: str) -> bool:
    """Whether a pattern can match more than one topic."""
    return "*" in pattern or "#" in pattern


class CoveringSet:
    """A multiset of patterns that keeps its covering set up to date and says how it changed."""

    __slots__ = ("_below", "_counts", "_plain", "_wild", "_witness")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._counts: dict[str, int] = {}
        self._wild: set[str] = set()
        self._plain: set[str] = set()
        self._witness: dict[str, str] = {}
        self._below: dict[str, set[str]] = {}
        for pattern in patterns:
            self.add(pattern)

    def __len__(self) -> int:
        """How many distinct patterns there are, maximal or not."""
        return len(self._counts)

    def __contains__(self, pattern: str) -> bool:
        return pattern in self._counts

    def __iter__(self) -> Iterator[str]:
        """The distinct patterns, maximal or not, sorted."""
        return iter(sorted(self._counts))

    def count(self, pattern: str) -> int:
        """How often `pattern` was added and not yet removed."""
        return self._counts.get(pattern, 0)

    @property
    def maximal(self) -> AbstractSet[str]:
        """The covering set."""
        return self._wild | self._plain

    def is_maximal(self, pattern: str) -> bool:
        """Whether `pattern` is in the covering set; cheaper than asking `maximal`."""
        return pattern in self._wild or pattern in self._plain

    def covers(self, pattern: str) -> bool:
        """Whether everything that `pattern` matches is matched by one member."""
        return pattern in self._counts or any(covers(wild, pattern) for wild in self._wild)

    def add(self, pattern: str) -> CoverChange:
        """Count `pattern` once more."""
        count = self._counts.get(pattern, 0)
        self._counts[pattern] = count + 1
        if count:
            return NO_CHANGE
        entered: set[str] = set()
        left: set[str] = set()
        self._insert(pattern, entered, left)
        return _net(entered, left)

    def remove(self, pattern: str) -> CoverChange:
        """Count `pattern` once less; it must be there."""
        count = self._counts.get(pattern, 0)
        if count == 0:
            raise KeyError(pattern)
        if count > 1:
            self._counts[pattern] = count - 1
            return NO_CHANGE
        del self._counts[pattern]
        witness = self._witness.pop(pattern, None)
        if witness is not None:
            self._below[witness].discard(pattern)
            return NO_CHANGE
        self._maximal_of(pattern).discard(pattern)
        entered: set[str] = set()
        left: set[str] = {pattern}
        orphans = self._below.pop(pattern, set())
        for orphan in orphans:
            del self._witness[orphan]
        for orphan in sorted(orphans):
            self._insert(orphan, entered, left)
        return _net(entered, left)

    def _insert(self, pattern: str, entered: set[str], left: set[str]) -> None:
        above = next((wild for wild in self._wild if covers(wild, pattern)), None)
        if above is not None and not (pattern < above and covers(pattern, above)):
            self._hang(pattern, above)
            return
        self._maximal_of(pattern).add(pattern)
        self._below[pattern] = set()
        entered.add(pattern)
        if not has_wildcard(pattern):
            return
        for other in [o for o in self.maximal if o != pattern and covers(pattern, o)]:
            self._maximal_of(other).discard(other)
            left.add(other)
            for orphan in self._below.pop(other):
                self._hang(orphan, pattern)
            self._hang(other, pattern)

    def _hang(self, pattern: str, witness: str) -> None:
        self._witness[pattern] = witness
        self._below[witness].add(pattern)

    def _maximal_of(self, pattern: str) -> set[str]:
        return self._wild if has_wildcard(pattern) else self._plain

    def validate(self) -> None:
        """Raise AssertionError if the covering set is not what it has to be. Quadratic: for tests."""
        maximal = self.maximal
        assert all(count > 0 for count in self._counts.values()), "a pattern counted zero times"
        assert maximal | self._witness.keys() == self._counts.keys(), (
            "a pattern neither maximal nor below one"
        )
        assert not maximal & self._witness.keys(), "a pattern both maximal and below one"
        assert self._below.keys() == maximal, "patterns hang below something that is not maximal"
        for pattern, witness in self._witness.items():
            assert witness in maximal, f"{pattern} hangs below {witness}, which is not maximal"
            assert covers(witness, pattern), f"{pattern} hangs below {witness}, which does not cover it"
            assert pattern > witness or not covers(pattern, witness), f"{pattern} should stand for {witness}"
        for pattern in maximal:
            assert not any(covers(other, pattern) for other in maximal if other != pattern), (
                f"{pattern} is covered"
            )


def _net(entered: set[str], left: set[str]) -> CoverChange:
    return CoverChange(tuple(sorted(entered - left)), tuple(sorted(left - entered)))
