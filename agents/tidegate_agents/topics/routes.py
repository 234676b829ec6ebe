"""The routes of a head: what each link has to carry, and what each neighbour has to be told.

A *target* is what a link leads to: an edge or a neighbouring head. Invariants:

- the bindings of a link are the covering set of the patterns its target needs. Two bindings of one queue
  never double a message, so what is covered need not be bound;
- a neighbour is offered the covering set of what all *other* targets need (reverse-path forwarding), so
  nothing is sent back where it came from;
- patterns a predecessor left bound (*leftovers*) count as needed, for the link and for the offers, until the
  owner of that link has said what it needs (`settle`); until then none of them is unbound.

Everything is kept as changes: `take_changes` gives what has to be bound and unbound since it was last asked.
Knows nothing of messages, time or who is alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set as AbstractSet
from dataclasses import dataclass, field

from .covering import CoverChange, CoveringSet


class Mirror:
    """A set kept elsewhere, with what it lacks and what it has too many of, so that changes can be sent in
    parts.
    """

    __slots__ = ("held", "missing", "surplus")

    def __init__(self, held: Iterable[str] = ()) -> None:
        self.held: set[str] = set(held)
        self.missing: set[str] = set()
        self.surplus: set[str] = set()

    def want(self, pattern: str) -> None:
        self.surplus.discard(pattern)
        if pattern not in self.held:
            self.missing.add(pattern)

    def unwant(self, pattern: str) -> None:
        self.missing.discard(pattern)
        if pattern in self.held:
            self.surplus.add(pattern)

    def take(self, limit: int | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What to add and what to remove next, at most `limit` of each, counted as done.

        Nothing is removed before all is added: what is removed may be covered only by what is still to come.
        """
        add = tuple(sorted(self.missing)[:limit])
        self.missing.difference_update(add)
        self.held.update(add)
        remove = () if self.missing else tuple(sorted(self.surplus)[:limit])
        self.surplus.difference_update(remove)
        self.held.difference_update(remove)
        return add, remove

    def reset(self, wanted: AbstractSet[str]) -> None:
        """The other side has lost it all."""
        self.held, self.missing, self.surplus = set(), set(wanted), set()

    def __bool__(self) -> bool:
        """Whether there is anything to take."""
        return bool(self.missing or self.surplus)


@dataclass(frozen=True, slots=True)
class LinkChange:
    """Bind, then unbind, on the link to `target`."""

    target: str
    add: tuple[str, ...]
    remove: tuple[str, ...]


@dataclass(slots=True)
class _Target:
    needs: CoveringSet = field(default_factory=CoveringSet)
    leftovers: set[str] = field(default_factory=set)
    bound: Mirror = field(default_factory=Mirror)


@dataclass(slots=True)
class Offer:
    """What one neighbour is to be told. `changes` counts how often that has changed."""

    patterns: CoveringSet = field(default_factory=CoveringSet)
    mirror: Mirror = field(default_factory=Mirror)
    changes: int = 0


class RouteTable:
    """Needs per target; bindings per link; offers per neighbour."""

    def __init__(self, neighbours: Iterable[str] = ()) -> None:
        self._targets: dict[str, _Target] = {}
        self._dirty: set[str] = set()
        self.offers: dict[str, Offer] = {name: Offer() for name in sorted(neighbours)}
        for name in self.offers:
            self._targets[name] = _Target()

    @property
    def targets(self) -> AbstractSet[str]:
        return self._targets.keys()

    def adopt(self, target: str, patterns: Iterable[str]) -> None:
        """Take over what is bound on the link to `target` already; call it before anything else for that
        target.
        """
        entry = self._target(target)
        entry.leftovers = set(patterns)
        entry.bound = Mirror(entry.leftovers)
        for pattern in sorted(entry.leftovers):
            self._changed(target, entry.needs.add(pattern))

    def settle(self, target: str) -> None:
        """The owner of the link has said all it needs: leftovers nobody asked for go."""
        entry = self._target(target)
        leftovers, entry.leftovers = entry.leftovers, set()
        for pattern in sorted(leftovers):
            self._changed(target, entry.needs.remove(pattern))
        for pattern in leftovers:
            if not entry.needs.is_maximal(pattern):
                entry.bound.unwant(pattern)
                self._dirty.add(target)

    def keep_until_settled(self, target: str) -> None:
        """Make leftovers of what is bound now: the owner is about to say anew, in parts, what it needs."""
        entry = self._target(target)
        for pattern in sorted(entry.needs.maximal - entry.leftovers):
            entry.leftovers.add(pattern)
            self._changed(target, entry.needs.add(pattern))

    def need(self, target: str, pattern: str) -> None:
        """`target` needs `pattern` once more."""
        self._changed(target, self._target(target).needs.add(pattern))

    def release(self, target: str, pattern: str) -> None:
        """`target` needs `pattern` once less."""
        self._changed(target, self._target(target).needs.remove(pattern))

    def drop_target(self, target: str) -> None:
        """Forget a target whose link is taken down; its needs leave the offers."""
        entry = self._targets[target]
        for pattern in sorted(entry.needs.maximal):
            self._offer(target, CoverChange(left=(pattern,)))
        del self._targets[target]
        self._dirty.discard(target)

    def take_changes(self) -> list[LinkChange]:
        """What has to be bound and unbound, link by link; counted as done."""
        changes: list[LinkChange] = []
        if not self._dirty:
            return changes  # asked after every event
        for target in sorted(self._dirty):
            add, remove = self._targets[target].bound.take()
            if add or remove:
                changes.append(LinkChange(target, add, remove))
        self._dirty.clear()
        return changes

    def needs(self, target: str) -> AbstractSet[str]:
        """The covering set of what `target` needs: the bindings its link has or is about to have."""
        return self._targets[target].needs.maximal if target in self._targets else frozenset()

    def distinct(self, target: str) -> int:
        """How many different patterns `target` needs, covered or not."""
        return len(self._targets[target].needs) if target in self._targets else 0

    def leftovers(self, target: str) -> AbstractSet[str]:
        return frozenset(self._targets[target].leftovers) if target in self._targets else frozenset()

    def is_needed(self, target: str, pattern: str) -> bool:
        """Whether `pattern` has to be bound on the link to `target`, by itself."""
        return target in self._targets and self._targets[target].needs.is_maximal(pattern)

    def is_carried(self, target: str, pattern: str) -> bool:
        """Whether everything matching `pattern` is carried to `target`, once the changes taken are done."""
        return target in self._targets and self._targets[target].needs.covers(pattern)

    def _target(self, target: str) -> _Target:
        entry = self._targets.get(target)
        if entry is None:
            entry = self._targets[target] = _Target()
        return entry

    def _changed(self, target: str, change: CoverChange) -> None:
        if not change:
            return
        entry = self._targets[target]
        for pattern in change.entered:
            entry.bound.want(pattern)
        for pattern in change.left:
            if pattern not in entry.leftovers:
                entry.bound.unwant(pattern)
            else:
                entry.bound.missing.discard(pattern)
        self._dirty.add(target)
        self._offer(target, change)

    def _offer(self, target: str, change: CoverChange) -> None:
        """Tell all but `target` itself. Entered before left, so that no offer shrinks in between."""
        for name, offer in self.offers.items():
            if name == target:
                continue
            for pattern in change.entered:
                self._offer_changed(offer, offer.patterns.add(pattern))
            for pattern in change.left:
                self._offer_changed(offer, offer.patterns.remove(pattern))

    def _offer_changed(self, offer: Offer, change: CoverChange) -> None:
        for pattern in change.entered:
            offer.mirror.want(pattern)
        for pattern in change.left:
            offer.mirror.unwant(pattern)
        offer.changes += bool(change)

    def validate(self) -> None:
        """Raise AssertionError if links or offers disagree with the needs. Slow: for tests."""
        for name, entry in self._targets.items():
            entry.needs.validate()
            future = (entry.bound.held | entry.bound.missing) - entry.bound.surplus
            wanted = set(entry.needs.maximal)
            assert future | entry.leftovers == wanted | entry.leftovers, f"bindings of the link to {name}"
            assert wanted <= future, f"a needed pattern is not bound on the link to {name}"
        for name, offer in self.offers.items():
            offer.patterns.validate()
            needed = Counter(p for t, e in self._targets.items() if t != name for p in e.needs.maximal)
            assert {p: offer.patterns.count(p) for p in offer.patterns} == needed, f"offer to {name}"
            future = (offer.mirror.held | offer.mirror.missing) - offer.mirror.surplus
            assert future == offer.patterns.maximal, f"what {name} is told"
