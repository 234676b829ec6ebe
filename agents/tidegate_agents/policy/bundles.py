"""Who makes the load, and who should go first: the analysis of an overloaded broker.

Seed 000 §IV.C. Clients of one topic pattern form a bundle, because moving half of them makes every message
cross two links instead of one; bundles are put in the order in which they are to be offloaded, which depends on
the metric that is overloaded. The orders of Table IV are data, `OFFLOADING`, in which groups that the paper
holds equal share a rank.

Invariant: the order is total and does not depend on the order in which clients are given. Nothing here moves or even
chooses anyone, that is a session's work. What a move would do to both brokers is in `effects`.

Where a subscription overlaps another pattern of the same edge, a message of both comes in once and is counted
twice: estimates of downlink and matching err on the careful side for the target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Final, Protocol

from ..load.metrics import Metric, Role

NAMED_MAX: Final = 16
"""How many bundles a decision names."""


class Group(StrEnum):
    """What decides the order. First where the other side of a client's topic is, then how its queue is."""

    REMOTE = "remote"
    """S_r, P_r: the other side is in other clusters only."""
    BOTH = "remote-and-local"
    """S_rl, P_rl."""
    LOCAL = "local"
    """S_l, P_l."""
    NONE = "none"
    """S_n, P_n: there is no other side."""
    EMPTY = "empty"
    """S_empty: nothing waits."""
    WAITING = "waiting"
    """S_w-no: messages wait, in time."""
    OVERLOADED = "overloaded"
    """S_overload: the queue is past its threshold."""


OFFLOADING: Final[Mapping[tuple[Role, Metric], tuple[frozenset[Group], ...]]] = MappingProxyType(
    {
        key: tuple(frozenset(rank) for rank in ranks)
        for key, ranks in {
            (Role.EDGE, Metric.DOWNLINK): [{Group.REMOTE}, {Group.BOTH}, {Group.LOCAL}, {Group.NONE}],
            (Role.EDGE, Metric.UPLINK): [{Group.REMOTE}, {Group.BOTH}, {Group.LOCAL}, {Group.NONE}],
            # A subscription without traffic costs the matcher a filter and nobody else anything.
            (Role.EDGE, Metric.MATCHING): [{Group.NONE}, {Group.REMOTE, Group.BOTH, Group.LOCAL}],
            # The overloaded ones stay: moving what is not late makes room without risking what nearly is.
            (Role.EDGE, Metric.QUEUE_DEPTH): [{Group.EMPTY}, {Group.WAITING}, {Group.OVERLOADED}],
            (Role.HEAD, Metric.DOWNLINK): [{Group.NONE}, {Group.REMOTE}, {Group.BOTH}, {Group.LOCAL}],
            # What nobody subscribes to does not use the uplink.
            (Role.HEAD, Metric.UPLINK): [{Group.REMOTE}, {Group.BOTH}, {Group.LOCAL}, {Group.NONE}],
        }.items()
    }
)
"""Seed 000 Table IV for edges, §IV.C.2 for heads: who goes first."""


class EdgeClient(Protocol):
    """What an analysis reads of one subscription, as the detector keeps it."""

    @property
    def name(self) -> str: ...

    @property
    def pattern(self) -> str: ...

    @property
    def enqueue_per_s(self) -> float: ...

    @property
    def message_bytes(self) -> float: ...

    @property
    def allowed_wait_s(self) -> float: ...

    @property
    def depth(self) -> float: ...

    @property
    def local(self) -> bool: ...

    @property
    def remote(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class PublisherLoad:
    """One publisher's topic on a head, and which links carry it on: to edges, and to neighbouring heads."""

    name: str
    topic: str
    messages_per_s: float
    message_bytes: float
    edges: int = 0
    neighbours: frozenset[str] = frozenset()

    @property
    def bytes_per_s(self) -> float:
        return self.messages_per_s * self.message_bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    """The clients of one topic (pattern) on one broker, and what they are worth together.

    Subscribers cost the downlink once, all together, and the uplink each; publishers the downlink each.
    """

    topic: str
    clients: tuple[str, ...]
    bytes_in_per_s: float
    bytes_out_per_s: float
    messages_in_per_s: float
    place: Group
    queue: Group | None = None
    """None for publishers: heads have no output queues."""
    allowed_wait_s: float | None = None
    """The shortest among its subscribers; None for publishers."""
    depth: float = 0.0
    """The deepest among its subscribers."""


def subscriber_bundles(clients: Iterable[EdgeClient], overloaded: AbstractSet[str] = frozenset()) -> tuple[Bundle, ...]:
    """The bundles of an edge, by pattern. `overloaded` names the subscriptions past their threshold.

    A bundle is as close to being late as the member that is closest.
    """
    members: dict[str, list[EdgeClient]] = {}
    for client in clients:
        pattern = client.pattern
        found = members.get(pattern)
        if found is None:
            members[pattern] = [client]
        else:
            found.append(client)
    return tuple(_bundle(pattern, members[pattern], overloaded) for pattern in sorted(members))


def subscriber_bundle(members: Collection[EdgeClient], overloaded: AbstractSet[str] = frozenset()) -> Bundle:
    """One bundle: of all subscribers of a pattern, or of some where a bundle has to be split."""
    (pattern,) = {client.pattern for client in members}
    return _bundle(pattern, members, overloaded)


def _bundle(pattern: str, members: Collection[EdgeClient], overloaded: AbstractSet[str]) -> Bundle:
    # Whole lists at a time: this is the larger part of an analysis where an edge has many thousands of subscriptions.
    names = [client.name for client in members]
    rates = [client.enqueue_per_s * client.message_bytes for client in members]
    bytes_out = 0.0
    for rate in rates:  # not sum(): newer Pythons round it differently, and decisions are to be the same everywhere
        bytes_out += rate
    # Every subscriber of a pattern is sent the same messages; the largest value is the least out of date.
    bytes_in, messages_in = max(rates, default=0.0), max([client.enqueue_per_s for client in members], default=0.0)
    depth = max([client.depth for client in members], default=0.0)
    wait = min([client.allowed_wait_s for client in members], default=inf)
    local = True in [client.local for client in members]
    remote = True in [client.remote for client in members]
    late = not overloaded.isdisjoint(names)
    names.sort()
    queue = Group.OVERLOADED if late else Group.WAITING if depth > 0.0 else Group.EMPTY
    return Bundle(pattern, tuple(names), bytes_in, bytes_out, messages_in, _place(local, remote), queue, wait, depth)


def publisher_bundles(clients: Iterable[PublisherLoad]) -> tuple[Bundle, ...]:
    """The bundles of a head, by topic."""
    members: dict[str, list[PublisherLoad]] = {}
    for client in clients:
        members.setdefault(client.topic, []).append(client)
    return tuple(_publisher_bundle(topic, members[topic]) for topic in sorted(members))


def _publisher_bundle(topic: str, members: Collection[PublisherLoad]) -> Bundle:
    ordered = sorted(members, key=lambda client: client.name)
    local = any(client.edges > 0 for client in ordered)
    return Bundle(
        topic=topic,
        clients=tuple(client.name for client in ordered),
        bytes_in_per_s=sum(client.bytes_per_s for client in ordered),
        bytes_out_per_s=sum(client.bytes_per_s * (client.edges + len(client.neighbours)) for client in ordered),
        messages_in_per_s=sum(client.messages_per_s for client in ordered),
        place=_place(local, any(client.neighbours for client in ordered)),
    )


def _place(local: bool, remote: bool) -> Group:
    if remote:
        return Group.BOTH if local else Group.REMOTE
    return Group.LOCAL if local else Group.NONE


def offloading_order(role: Role, metric: Metric, bundles: Iterable[Bundle]) -> tuple[Bundle, ...]:
    """Who goes first when `metric` is overloaded: by group, then the larger allowed wait, then by name.

    Publishers have no allowed wait; the paper gives no order inside their groups. The larger load goes first,
    so that fewer have to move.
    """

    def position(bundle: Bundle) -> tuple[int, float, float, str, tuple[str, ...]]:
        wait, load = bundle.allowed_wait_s, 0.0
        if wait is None:
            wait, load = 0.0, bundle.bytes_in_per_s
        return _rank(role, metric, bundle), -wait, -load, bundle.topic, bundle.clients

    return tuple(sorted(bundles, key=position))


def _rank(role: Role, metric: Metric, bundle: Bundle) -> int:
    group = bundle.queue if metric is Metric.QUEUE_DEPTH else bundle.place
    assert group is not None, "a bundle of publishers has no queue"
    return _RANKS[role, metric][group]


_RANKS: Final = {
    key: {group: rank for rank, groups in enumerate(ranks) for group in groups} for key, ranks in OFFLOADING.items()
}
