"""A counted multiset of topic patterns and its covering set: the patterns no other one makes superfluous.

Invariants:

- the covering set holds exactly the maximal patterns: every member is covered by one of them, and none of
  them by another;
- of several patterns that match the same topics (`#.*` and `*.#`) the lexicographically smallest stands for
  all, so the result depends on what is in the multiset and not on the order in which it came;
- every member that is not maximal hangs below one maximal pattern that covers it, its *witness*. Taking a
  maximal pattern away therefore only concerns those that hang below it.

A pattern's *stem* is its words before the first wildcard, its *anchor* its last word behind the stem that is no
wildcard. If one pattern covers another, its stem is a prefix of the other's and its anchor one of the other's words,
so both are looked up by stem and anchor: with thousands of patterns like `sensor.17.*` or `#.17.#` an operation costs
a few comparisons. At worst, when all stems are empty and all anchors equal, adding costs one pass over the maximal
patterns, and taking away one such pass per pattern that hung below. A pattern without wildcards covers itself alone:
it is found by those that cover it, but never looked at as one that might, which keeps the many of them on a head's
links cheap.

Knows nothing of links, brokers or messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

from tidegate_protocol.topics import ANY_WORDS, ONE_WORD, covers


@dataclass(frozen=True, slots=True)
class CoverChange:
    """What entered and what left a covering set by one operation, sorted."""

    entered: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entered or self.left)


NO_CHANGE = CoverChange()


Stem = tuple[str, ...]
Key = TypeVar("Key")

STEMS_REMEMBERED_MAX: Final = 65_536
"""A pattern is looked at several times per link, and the same patterns are on many links."""


@lru_cache(maxsize=STEMS_REMEMBERED_MAX)
def stems(pattern: str) -> tuple[Stem, ...]:
    """All prefixes of the words before the first wildcard: none of them first, all of them, the stem, last."""
    words = pattern.split(".")
    first = next((place for place, word in enumerate(words) if word in (ONE_WORD, ANY_WORDS)), len(words))
    return tuple(tuple(words[:length]) for length in range(first + 1))


@lru_cache(maxsize=STEMS_REMEMBERED_MAX)
def literals(pattern: str) -> frozenset[str]:
    """The words that are no wildcards."""
    return frozenset(pattern.split(".")) - {ONE_WORD, ANY_WORDS}


@lru_cache(maxsize=STEMS_REMEMBERED_MAX)
def anchor(pattern: str) -> str:
    """The last word behind the stem that is no wildcard; empty where there is none."""
    behind = pattern.split(".")[len(stems(pattern)[-1]) :]
    return next((word for word in reversed(behind) if word not in (ONE_WORD, ANY_WORDS)), "")


def is_exact(pattern: str) -> bool:
    """Whether a pattern has no wildcard: it covers itself and nothing else."""
    return ONE_WORD not in pattern and ANY_WORDS not in pattern


class CoveringSet:
    """A multiset of patterns that keeps its covering set up to date and says how it changed."""

    __slots__ = ("_at_stem", "_below", "_counts", "_maximal", "_under_stem", "_with_word", "_witness")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._counts: dict[str, int] = {}
        self._maximal: set[str] = set()
        self._at_stem: dict[Stem, dict[str, set[str]]] = {}
        """The maximal patterns with wildcards, by stem and then by anchor."""
        self._under_stem: dict[Stem, set[str]] = {}
        self._with_word: dict[str, set[str]] = {}
        """The maximal patterns, by each of their words."""
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
        """The covering set; a live view."""
        return self._maximal

    def is_maximal(self, pattern: str) -> bool:
        """Whether `pattern` is in the covering set."""
        return pattern in self._maximal

    def covers(self, pattern: str) -> bool:
        """Whether everything that `pattern` matches is matched by one member."""
        return pattern in self._counts or self._coverer(pattern) is not None

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
        self._demote(pattern)
        entered: set[str] = set()
        left: set[str] = {pattern}
        orphans = self._below.pop(pattern, set())
        for orphan in orphans:
            del self._witness[orphan]
        for orphan in sorted(orphans):
            self._insert(orphan, entered, left)
        return _net(entered, left)

    def _insert(self, pattern: str, entered: set[str], left: set[str]) -> None:
        above = self._coverer(pattern)
        if above is not None and not (pattern < above and covers(pattern, above)):
            self._hang(pattern, above)
            return
        self._promote(pattern)
        entered.add(pattern)
        if is_exact(pattern):
            return
        words = stems(pattern)[-1]
        others = self._under_stem[words]
        anchored = anchor(pattern)
        if anchored and len(self._with_word[anchored]) < len(others):
            others = self._with_word[anchored]
        covered = [other for other in others if other != pattern and covers(pattern, other)]
        whole = ".".join(words)
        if not anchored and whole in self._maximal and covers(pattern, whole):
            covered.append(whole)
        for other in covered:
            self._demote(other)
            left.add(other)
            for orphan in self._below.pop(other, ()):
                self._hang(orphan, pattern)
            self._hang(other, pattern)

    def _coverer(self, pattern: str) -> str | None:
        """The maximal pattern that covers `pattern`, or any of them. Which one never shows in a result."""
        for words in stems(pattern):
            anchors = self._at_stem.get(words)
            if anchors is None:
                continue
            for anchored in ("", *literals(pattern)):
                for candidate in anchors.get(anchored, ()):
                    if covers(candidate, pattern):
                        return candidate
        return None

    def _promote(self, pattern: str) -> None:
        prefixes = stems(pattern)
        self._maximal.add(pattern)
        if is_exact(pattern):
            prefixes = prefixes[:-1]
        else:
            self._below[pattern] = set()
            _include(self._at_stem.setdefault(prefixes[-1], {}), anchor(pattern), pattern)
        for words in prefixes:
            _include(self._under_stem, words, pattern)
        for word in literals(pattern):
            _include(self._with_word, word, pattern)

    def _demote(self, pattern: str) -> None:
        prefixes = stems(pattern)
        self._maximal.discard(pattern)
        if is_exact(pattern):
            prefixes = prefixes[:-1]
        else:
            anchors = self._at_stem[prefixes[-1]]
            _discard(anchors, anchor(pattern), pattern)
            if not anchors:
                del self._at_stem[prefixes[-1]]
        for words in prefixes:
            _discard(self._under_stem, words, pattern)
        for word in literals(pattern):
            _discard(self._with_word, word, pattern)

    def _hang(self, pattern: str, witness: str) -> None:
        self._witness[pattern] = witness
        self._below[witness].add(pattern)

    def validate(self) -> None:
        """Raise AssertionError if the covering set is not what it has to be. Quadratic: for tests."""
        maximal = self._maximal
        covering = {pattern for pattern in maximal if not is_exact(pattern)}
        indexed = {p for anchors in self._at_stem.values() for patterns in anchors.values() for p in patterns}
        assert indexed == covering, "the index by stem"
        with_word: dict[str, set[str]] = {}
        for pattern in maximal:
            for word in literals(pattern):
                _include(with_word, word, pattern)
        assert self._with_word == with_word, "the index by word"
        assert self._under_stem.get((), set()) == maximal, "the index below stems"
        assert all(count > 0 for count in self._counts.values()), "a pattern counted zero times"
        assert maximal | self._witness.keys() == self._counts.keys(), "a pattern neither maximal nor below one"
        assert not maximal & self._witness.keys(), "a pattern both maximal and below one"
        assert self._below.keys() == covering, "patterns hang below something that is not maximal"
        for pattern, witness in self._witness.items():
            assert witness in maximal, f"{pattern} hangs below {witness}, which is not maximal"
            assert covers(witness, pattern), f"{pattern} hangs below {witness}, which does not cover it"
            assert pattern > witness or not covers(pattern, witness), f"{pattern} should stand for {witness}"
        for pattern in maximal:
            assert not any(covers(other, pattern) for other in covering if other != pattern), f"{pattern} is covered"


def _include(index: dict[Key, set[str]], key: Key, pattern: str) -> None:
    found = index.get(key)
    if found is None:
        index[key] = {pattern}
    else:
        found.add(pattern)


def _discard(index: dict[Key, set[str]], key: Key, pattern: str) -> None:
    index[key].discard(pattern)
    if not index[key]:
        del index[key]


def _net(entered: set[str], left: set[str]) -> CoverChange:
    if entered and not left:
        return CoverChange(tuple(sorted(entered)))
    return CoverChange(tuple(sorted(entered - left)), tuple(sorted(left - entered)))
