"""What a head knows about its cluster: edges, their subscriptions, publishers.

Invariants:

- a subscription is known under its edge, subscriber and number, and is found by subscriber and pattern as
  well;
- every operation costs a constant number of steps, however many subscriptions an edge holds; the digest too
  is kept up to date rather than computed;
- the clients that have one pattern in more than one place are known (`doubled`);
- a number is not given to a subscriber again soon: what is still under way about an old queue must not hit a new one;
- a publisher that has not been heard of for long enough is forgotten by `expire_publishers`, oldest first.

Knows nothing of messages, routes or decisions; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import Final

from tidegate_protocol.messages import Capacity, Subscription

from ..kit.memory import Recent
from ..kit.subscriptions import Key, RegistryDigest, key_of, registry_digest
from ..policy.placement import EdgeView

Place = tuple[str, Key]
"""An edge, and a queue there."""
Client = tuple[str, str]
"""One subscription of one subscriber (its name and the pattern): the owner of a place."""

NUMBER_MAX: Final = 1_000_000
"""The largest number of an output queue; then they start anew, past those in use."""

NUMBERS_REMEMBERED_MAX: Final = 10_000
"""Of how many subscribers without any subscription the last number is remembered."""


def place_of(edge: str, subscription: Subscription) -> Place:
    """The place of `subscription` on `edge`."""
    return edge, key_of(subscription)


def client_of(subscription: Subscription) -> Client:
    """Whose subscription it is."""
    return subscription.subscriber, subscription.pattern


@dataclass(slots=True)
class EdgeRecord:
    """One edge as the head sees it."""

    name: str
    client_url: str = ""
    link_url: str = ""
    passes_accounts: bool | None = None
    """Whether its link passes on the accounts of publishers; None until it has said so since we started."""
    capacity: Capacity = field(default_factory=Capacity)
    draining: bool = False
    drain_ordered: bool | None = None
    """Whether an operator wants it drained, or not drained any more, until its hellos agree; None otherwise."""
    says_draining: bool = False
    alarms: tuple[str, ...] = ()
    """What its own hello says."""
    alive: bool = False
    heard_s: float = 0.0
    settled: bool = False
    """Whether the edge's own list of subscriptions has been compared with ours since we started."""
    changed_s: float = float("-inf")
    """When something last changed on it, or began to, as far as we know."""
    listed: int = 0
    """How many subscriptions its last hello said that it holds."""
    subscriptions: dict[Key, Subscription] = field(default_factory=dict)
    patterns: dict[str, int] = field(default_factory=dict)
    digest: RegistryDigest = field(default_factory=RegistryDigest)

    @property
    def ready(self) -> bool:
        """Whether it is there and we know what it holds."""
        return self.alive and self.settled

    def view(self) -> EdgeView:
        """What placement may see. Reads through to this record without copying it."""
        return EdgeView(self.name, self.capacity, len(self.subscriptions), MappingProxyType(self.patterns))


class Registry:
    """Edges with their subscriptions, indexed by subscriber; publishers with their expiry."""

    def __init__(self) -> None:
        self.edges: dict[str, EdgeRecord] = {}
        self._by_pattern: dict[Client, set[tuple[str, int]]] = {}
        self._numbers: dict[str, _Numbers] = {}
        self._departed: Recent[str, int] = Recent(NUMBERS_REMEMBERED_MAX)
        """The last number of subscribers that have nothing left."""
        self.doubled: set[Client] = set()
        """Subscriber and pattern of all that are in several places."""
        self.publishers: dict[str, float] = {}
        """Until when each counts as present, in this order."""
        self.owner: Callable[[str], str] = lambda client: ""
        """The account of a client that is entered; empty where it is not known."""
        self.held: dict[str, int] = {}
        """Subscriptions by account."""
        self.publishing: dict[str, int] = {}
        """Publishers by account."""
        self._publisher_owners: dict[str, str] = {}

    # Edges

    def edge(self, name: str) -> EdgeRecord:
        """The record of an edge, made if it is new."""
        if name not in self.edges:
            self.edges[name] = EdgeRecord(name)
        return self.edges[name]

    def forget_edge(self, name: str) -> None:
        """Drop an edge and all that was known to be on it."""
        for key in sorted(self.edges[name].subscriptions):
            self.remove(name, *key)
        del self.edges[name]

    # Subscriptions

    def add(self, edge: str, subscription: Subscription) -> Subscription | None:
        """Enter a subscription; return the one it replaces."""
        before = self.remove(edge, *key_of(subscription))
        record = self.edges[edge]
        record.subscriptions[key_of(subscription)] = subscription
        record.patterns[subscription.pattern] = record.patterns.get(subscription.pattern, 0) + 1
        record.digest.add(subscription)
        place = (edge, subscription.number)
        client = client_of(subscription)
        places = self._by_pattern.setdefault(client, set())
        places.add(place)
        if len(places) > 1:
            self.doubled.add(client)
        numbers = self._numbers_of(subscription.subscriber)
        numbers.take(subscription.number)
        _count(self.held, numbers.account, 1)
        return before

    def remove(self, edge: str, subscriber: str, number: int) -> Subscription | None:
        """Take a subscription out; None if it was not there."""
        record = self.edges.get(edge)
        subscription = record.subscriptions.pop((subscriber, number), None) if record else None
        if record is None or subscription is None:
            return None
        record.patterns[subscription.pattern] -= 1
        if not record.patterns[subscription.pattern]:
            del record.patterns[subscription.pattern]
        record.digest.remove(subscription)
        places = self._by_pattern[subscriber, subscription.pattern]
        places.discard((edge, number))
        if len(places) <= 1:
            self.doubled.discard((subscriber, subscription.pattern))
        if not places:
            del self._by_pattern[subscriber, subscription.pattern]
        numbers = self._numbers[subscriber]
        numbers.release(number)
        _count(self.held, numbers.account, -1)
        if not numbers.used:
            self._departed[subscriber] = self._numbers.pop(subscriber).last
        return subscription

    def _numbers_of(self, subscriber: str) -> _Numbers:
        if subscriber not in self._numbers:
            self._numbers[subscriber] = _Numbers(self._departed.pop(subscriber, -1), self.owner(subscriber))
        return self._numbers[subscriber]

    def get(self, edge: str, key: Key) -> Subscription | None:
        record = self.edges.get(edge)
        return record.subscriptions.get(key) if record else None

    def find(self, subscriber: str, pattern: str) -> list[tuple[str, Subscription]]:
        """Where this subscriber has this pattern, in the order of edges' names. Normally one, or none."""
        places = self._by_pattern.get((subscriber, pattern), ())
        return [(edge, self.edges[edge].subscriptions[subscriber, number]) for edge, number in sorted(places)]

    def holders(self, key: Key) -> list[str]:
        """The edges that hold a subscription of this subscriber and number. Normally one, or none."""
        return [name for name in sorted(self.edges) if key in self.edges[name].subscriptions]

    def count_of(self, subscriber: str) -> int:
        """How many subscriptions a subscriber has."""
        numbers = self._numbers.get(subscriber)
        return numbers.total if numbers else 0

    def next_number(self, subscriber: str, at_least: int = 0) -> int:
        """The number for the next queue of this subscriber: after the last one it was given, past those in use."""
        numbers = self._numbers.get(subscriber)
        used: Mapping[int, int] = numbers.used if numbers else {}
        last = numbers.last if numbers else self._departed.pop(subscriber, -1)
        number = max(last + 1, at_least) % (NUMBER_MAX + 1)
        while number in used:
            number = (number + 1) % (NUMBER_MAX + 1)
        if numbers is not None:
            numbers.last = number
        else:
            self._departed[subscriber] = number
        return number

    def __len__(self) -> int:
        return sum(len(record.subscriptions) for record in self.edges.values())

    # Publishers

    def publisher_heard(self, publisher: str, until_s: float) -> None:
        """A publisher showed up; it counts as present until `until_s`, longer than all heard of before."""
        if self.publishers.pop(publisher, None) is None:
            owner = self._publisher_owners[publisher] = self.owner(publisher)
            _count(self.publishing, owner, 1)
        self.publishers[publisher] = until_s

    def publisher_gone(self, publisher: str) -> None:
        if self.publishers.pop(publisher, None) is not None:
            _count(self.publishing, self._publisher_owners.pop(publisher), -1)

    def publishers_of(self, account: str) -> list[str]:
        """The publishers of an account that are here, in the order of their ids."""
        return sorted(publisher for publisher, owner in self._publisher_owners.items() if owner == account)

    def expire_publishers(self, now: float) -> list[str]:
        """Forget the publishers whose time is over."""
        gone = list(takewhile(lambda publisher: self.publishers[publisher] <= now, self.publishers))
        for publisher in gone:
            self.publisher_gone(publisher)
        return gone

    # Checks

    def validate(self) -> None:
        """Raise AssertionError if an index disagrees with the edges."""
        everything = [(name, s) for name, record in self.edges.items() for s in record.subscriptions.values()]
        for record in self.edges.values():
            assert record.digest.text == registry_digest(record.subscriptions.values()), record.name
            assert record.digest.count == len(record.subscriptions), record.name
            counts: dict[str, int] = {}
            for key, subscription in record.subscriptions.items():
                assert key == key_of(subscription), key
                counts[subscription.pattern] = counts.get(subscription.pattern, 0) + 1
            assert counts == record.patterns, record.name
        indexed = {(edge, s, p, n) for (s, p), places in self._by_pattern.items() for edge, n in places}
        assert indexed == {(edge, s.subscriber, s.pattern, s.number) for edge, s in everything}
        assert sum(n.total for n in self._numbers.values()) == len(everything)
        assert self.doubled == {client for client, places in self._by_pattern.items() if len(places) > 1}
        assert not self._numbers.keys() & self._departed.keys(), "a subscriber that is here and gone"
        held: dict[str, int] = {}
        for numbers in self._numbers.values():
            _count(held, numbers.account, numbers.total)
        assert held == self.held, "subscriptions by account"
        assert self._publisher_owners.keys() == self.publishers.keys(), "a publisher without an owner"
        assert sum(self.publishing.values()) == len(self.publishers), "publishers by account"
        assert list(self.publishers.values()) == sorted(self.publishers.values()), "a publisher that expires too late"

    def __iter__(self) -> Iterator[tuple[str, Subscription]]:
        for name in sorted(self.edges):
            for key in sorted(self.edges[name].subscriptions):
                yield name, self.edges[name].subscriptions[key]


def _count(counts: dict[str, int], account: str, more: int) -> None:
    """Count for an account; one with nothing is left out."""
    total = counts.get(account, 0) + more
    if total:
        counts[account] = total
    else:
        counts.pop(account, None)


class _Numbers:
    """The numbers in use by one subscriber, and the last one given to it."""

    __slots__ = ("account", "last", "total", "used")

    def __init__(self, last: int, account: str = "") -> None:
        self.account = account
        self.used: dict[int, int] = {}
        self.total = 0
        self.last = last

    def take(self, number: int) -> None:
        self.used[number] = self.used.get(number, 0) + 1
        self.total += 1
        self.last = max(self.last, number)

    def release(self, number: int) -> None:
        self.used[number] -= 1
        self.total -= 1
        if not self.used[number]:
            del self.used[number]
