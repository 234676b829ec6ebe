"""The ledger of places: the one writer of what every place is to its client, and of what is being done about it.

A *place* is the output queue of one subscription on one edge: an edge's name, a subscriber and a number. A *client* is
a subscriber with a pattern. Normally a client has one place. It has more while it is moved, and after a crash that left
a queue behind. Then the head must know which place the client uses, which may hold something that the client lacks, and
which is of no use: a place that is removed too early loses messages, one that is never removed stays for ever.

The state of a place says what it is to its client:

| state | the place |
| --- | --- |
| ABSENT | is not known to exist |
| ASKED | is being made, because its client asked for a subscription |
| RESERVED | is made for a client that is to move there and lives elsewhere: never handed out |
| KNOWN | is listed by its edge; this run of the head has not heard whether its client uses it |
| USED | is where its client was told to live by this run, or said that it lives |
| ABANDONED | is not where its client lives any more, and may hold what its client lacks: collected, then removed |
| DISCARDED | is used by nobody and holds nothing that anybody lacks: removed again and again until it is gone |
| REMOVED | was deleted on our order a moment ago. Should it show up again, an order to make it was overtaken |

`TRANSITIONS` says which state may follow which. What the head is doing about a place is an `Operation`; several may
run at one place, each kind once, and `BEGINS_IN` says in which states each may begin. A place that is moved away
from is USED with a MIGRATION running, one that is collected from is ABANDONED with a COLLECTION running. An operation
that fails leaves the state as it was.

Invariant: registry, routes and states change together, here and nowhere else. A place is in the registry if and only
if its state is neither ABSENT nor REMOVED; only a DISCARDED one may be either, because its edge may list it later. A
step that the tables do not have is a bug of ours, and an AssertionError.

Of a client the ledger knows what is under way with it (an allocation, a migration, each at most once), when it was last
told its place, when it unsubscribed, and, if it was moved to another cluster, where it went (`Departure`). A client
that starts anew asks the head it was configured with; what waits for it is in its queue over there, so it is sent after
it. A head that restarts has forgotten all departures and is told by the heads that have those clients (`guests`).

The ledger holds facts and decides nothing: it sends no message, asks no edge, and knows no other part of the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Protocol

from tidegate_protocol.messages import Subscription

from ...kit.memory import Recent
from ...kit.subscriptions import Key
from ...topics.routes import RouteTable
from ..moving.steps import NewPlace
from ..registry import Client, Place, Registry, client_of, place_of

DISCARDED_MAX: Final = 10_000
"""How many discarded places are remembered, the latest ones. What falls out of it is a place in doubt."""
GONE_MAX: Final = 10_000
"""How many places that are gone are remembered, the latest ones."""
GONE_PERIODS: Final = 30
"""For how many periods: longer than a control message may be on its way."""
CLIENTS_MAX: Final = 10_000
"""Of how many clients with which nothing is under way it is remembered when they were told their place, or left."""
DEPARTURES_MAX: Final = 50_000
"""How many clients are remembered that were moved to another cluster, the latest ones."""


class PlaceState(Enum):
    """What a place is to its client."""

    ABSENT = auto()
    ASKED = auto()
    RESERVED = auto()
    KNOWN = auto()
    USED = auto()
    ABANDONED = auto()
    DISCARDED = auto()
    REMOVED = auto()


class Operation(Enum):
    """What the head is doing about a place."""

    ALLOCATION = auto()
    """Its client asked for it."""
    PREPARATION = auto()
    """It is made ready for a client that is to move there."""
    MIGRATION = auto()
    """Its client is moved away from it."""
    COLLECTION = auto()
    """Its client takes what was left there."""
    REMOVAL = auto()
    """Its edge is deleting it."""


ABSENT, ASKED, RESERVED, KNOWN = PlaceState.ABSENT, PlaceState.ASKED, PlaceState.RESERVED, PlaceState.KNOWN
USED, ABANDONED, DISCARDED, REMOVED = PlaceState.USED, PlaceState.ABANDONED, PlaceState.DISCARDED, PlaceState.REMOVED

_GONE: Final = frozenset({ABSENT, REMOVED})
LIVED_IN: Final = frozenset({ASKED, KNOWN, USED})
"""Where a client may live, as far as we know."""
SPOKEN_FOR: Final = frozenset({ASKED, RESERVED, USED, ABANDONED})
"""What is not taken away because somebody says that its client never came there."""

PROMISED: Final = frozenset({RESERVED, USED})
"""What a client was told to use by this run, or will be."""
NEEDED: Final = frozenset({USED, ABANDONED})
"""What is kept although its client says that it lives elsewhere: this run told it otherwise, or it has to collect."""

_ENDS: Final = frozenset({DISCARDED, ABSENT, REMOVED})
TRANSITIONS: Final[dict[PlaceState, frozenset[PlaceState]]] = {
    ABSENT: frozenset({ASKED, RESERVED, KNOWN, DISCARDED, REMOVED}),
    REMOVED: frozenset({ASKED, RESERVED, KNOWN, DISCARDED, ABSENT}),
    ASKED: _ENDS | {USED, ABANDONED},
    RESERVED: _ENDS | {USED},
    KNOWN: _ENDS | {USED, ABANDONED},
    USED: _ENDS | {KNOWN, ABANDONED},
    ABANDONED: _ENDS | {USED},
    DISCARDED: frozenset({ASKED, RESERVED, KNOWN, ABSENT, REMOVED}),
}

BEGINS_IN: Final[dict[Operation, frozenset[PlaceState]]] = {
    Operation.ALLOCATION: LIVED_IN | {ABANDONED},
    Operation.PREPARATION: frozenset({RESERVED}),
    Operation.MIGRATION: LIVED_IN | _GONE,  # whether it is still there is seen when its turn comes
    Operation.COLLECTION: frozenset({ABANDONED}),
    Operation.REMOVAL: frozenset(PlaceState),
}


class Moment(Protocol):
    """Who knows the time."""

    @property
    def now(self) -> float: ...


@dataclass(slots=True)
class _Record:
    """One place."""

    state: PlaceState = ABSENT
    running: frozenset[Operation] = frozenset()
    changed_s: float = float("-inf")
    """When the place last came, went, or had an operation begun or ended."""
    change: int = 0
    """The number of that change, of all changes of this run."""


@dataclass(slots=True)
class _Client:
    """One client."""

    running: dict[Operation, str] = field(default_factory=dict)
    """What is under way with it, and how the part that does it calls that."""
    told_s: float = float("-inf")
    """When it was last told its place: what it says of its place from before does not count any more."""
    left_s: float = float("-inf")
    """When it last unsubscribed."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a client went, and its subscription there."""

    place: NewPlace
    subscription: Subscription


_NOTHING: Final = _Record()
_NOBODY: Final = _Client()


class Ledger:
    """The places of one head's cluster."""

    def __init__(self, moment: Moment, registry: Registry, routes: RouteTable, period_s: float) -> None:
        self._moment = moment
        self._registry = registry
        self._routes = routes
        self._gone_s = GONE_PERIODS * period_s
        self.changes = 0
        """How many changes there were so far."""
        self._records: dict[Place, _Record] = {}
        self._by_state: dict[PlaceState, dict[Place, None]] = {state: {} for state in PlaceState}
        """The places in each state, in the order in which they came to it."""
        self._busy: set[Place] = set()
        """The places at which an operation is under way."""
        self._clients: dict[Client, _Client] = {}
        self._departures: Recent[Client, Departure] = Recent(DEPARTURES_MAX)

    # Reading

    def state(self, place: Place) -> PlaceState:
        return self._records.get(place, _NOTHING).state

    def runs(self, operation: Operation, place: Place) -> bool:
        """Whether this operation is under way at this place."""
        return operation in self._records.get(place, _NOTHING).running

    def may_begin(self, operation: Operation, place: Place) -> bool:
        """Whether this operation may begin at this place, by its state."""
        return self.state(place) in BEGINS_IN[operation]

    def is_busy(self, place: Place) -> bool:
        """Whether any operation is: what an edge lists about it may be out of date."""
        return place in self._busy

    def busy_on(self, edge: str) -> list[Key]:
        """The places on this edge at which any operation is under way."""
        return sorted(key for name, key in self._busy if name == edge)

    def is_leaving(self, place: Place) -> bool:
        """Whether nobody may be told to live there, because it is being removed or will be."""
        return self.state(place) is DISCARDED or self.runs(Operation.REMOVAL, place)

    def has_changed(self, place: Place, since: int) -> bool:
        """Whether this place has changed since that change, or is changing: what its edge listed may be older."""
        record = self._records.get(place, _NOTHING)
        return place in self._busy or record.change > since

    def removed_s(self, place: Place) -> float:
        """When it was deleted on our order, if that is a short while ago."""
        record = self._records.get(place, _NOTHING)
        lately = record.state is REMOVED and record.changed_s + self._gone_s > self._moment.now
        return record.changed_s if lately else float("-inf")

    def all_in(self, state: PlaceState) -> Iterator[Place]:
        """The places in this state, in the order in which they came to it."""
        return iter(tuple(self._by_state[state]))

    def places(self, client: Client) -> list[Place]:
        """All places of a client that there are, in the order of edges' names."""
        return [place_of(edge, subscription) for edge, subscription in self._registry.find(*client)]

    def places_in(self, client: Client, *states: PlaceState) -> list[Place]:
        return [place for place in self.places(client) if self.state(place) in states]

    def homes(self, client: Client) -> list[Place]:
        """Where a client may live: what is reserved for it, left by it, or about to go is none of that."""
        return [place for place in self.places_in(client, *LIVED_IN) if not self.is_leaving(place)]

    def has_place(self, client: Client) -> bool:
        """Whether a client has a place here that is there to stay."""
        return any(not self.is_leaving(place) for place in self.places(client))

    # Reading about clients

    def under_way(self, operation: Operation, client: Client) -> str | None:
        """What the part that does it calls this operation of this client; None if it is not under way."""
        return self._clients.get(client, _NOBODY).running.get(operation)

    def is_free(self, client: Client) -> bool:
        """Whether neither an allocation nor a migration explains the places that this client has."""
        return not self._clients.get(client, _NOBODY).running

    def was_told(self, client: Client, since_s: float) -> bool:
        """Whether the client was told its place at that moment or later."""
        return self._clients.get(client, _NOBODY).told_s >= since_s

    def has_left(self, client: Client) -> bool:
        """Whether the client unsubscribed a short while ago and has no place any more."""
        left_s = self._clients.get(client, _NOBODY).left_s
        return left_s + self._gone_s > self._moment.now and not self.has_place(client)

    def departure(self, client: Client) -> Departure | None:
        return self._departures.get(client)

    @property
    def departures(self) -> Mapping[Client, Departure]:
        """The clients that were moved to another cluster, oldest first."""
        return self._departures

    # Places come

    def ask(self, edge: str, subscription: Subscription) -> None:
        """A new place was asked for by its client."""
        self._enter(edge, subscription, ASKED)

    def reserve(self, edge: str, subscription: Subscription) -> None:
        """A new place is made for a client that lives elsewhere."""
        self._enter(edge, subscription, RESERVED)

    def found(self, edge: str, subscription: Subscription) -> None:
        """Its edge lists this place, or lists it on other terms. If its client was told to live elsewhere, it may hold
        what its client never got.
        """
        place = place_of(edge, subscription)
        elsewhere = any(other != place for other in self.places_in(client_of(subscription), USED))
        self.renew(edge, subscription)
        if elsewhere:
            self.abandon(place)

    def renew(self, edge: str, subscription: Subscription) -> None:
        """The place is there, on these terms."""
        gone = self.state(place_of(edge, subscription)) in _GONE
        self._enter(edge, subscription, KNOWN if gone else None)

    def _enter(self, edge: str, subscription: Subscription, state: PlaceState | None) -> None:
        before = self._registry.add(edge, subscription)
        self._routes.need(edge, subscription.pattern)
        if before is not None:
            self._routes.release(edge, before.pattern)
        place = place_of(edge, subscription)
        if state is not None:
            self._set(place, state)
        self._touch(place)

    # What they are to their clients

    def use(self, place: Place) -> None:
        """Its client lives there from now on, and nowhere else."""
        self._set(place, USED)
        known = self._registry.get(*place)
        assert known is not None, f"{place} is used but not there"
        self.returned(client_of(known))

    def abandon(self, place: Place) -> None:
        """Its client lives elsewhere and may not have got all that waits there. What is discarded stays so."""
        if self.state(place) is not DISCARDED:
            self._set(place, ABANDONED)

    def doubt(self, place: Place) -> None:
        """Its client is said to live elsewhere: as far as we told it to live here, that does not hold any more."""
        if self.state(place) is USED:
            self._set(place, KNOWN)

    def discard(self, place: Place) -> None:
        """Nobody uses it; should its edge list it only later, then still nobody does."""
        self._set(place, DISCARDED, again=True)
        if len(self._by_state[DISCARDED]) > DISCARDED_MAX:
            self._undo_discard(next(iter(self._by_state[DISCARDED])))

    def keep(self, place: Place) -> bool:
        """Somebody uses it after all. False if it is too late: its edge is deleting it."""
        if self.runs(Operation.REMOVAL, place):
            return False
        if self.state(place) is DISCARDED:
            self._undo_discard(place)
        return True

    def _undo_discard(self, place: Place) -> None:
        self._set(place, ABSENT if self._registry.get(*place) is None else KNOWN)

    # Places go

    def withdraw(self, place: Place) -> None:
        """Its edge does not list it, or is not there. A discarded place stays so, in case it is listed later."""
        self._leave(place)
        if self.state(place) not in (DISCARDED, REMOVED):
            self._set(place, ABSENT)

    def removed(self, place: Place) -> None:
        """Its edge has deleted it, as it was told to."""
        self._leave(place)
        self._set(place, REMOVED, again=True)

    def _leave(self, place: Place) -> None:
        gone = self._registry.remove(place[0], *place[1])
        if gone is not None:
            self._routes.release(place[0], gone.pattern)
        self._touch(place)

    def forget_gone(self) -> None:
        """Every period: forget the places that have been gone for long enough."""
        until_s = self._moment.now - self._gone_s
        for state in (ABSENT, REMOVED):
            places = self._by_state[state]
            for place in list(places):
                record = self._records[place]
                if record.changed_s > until_s and len(places) <= GONE_MAX:
                    break
                if not record.running:
                    del places[place], self._records[place]

    # Operations

    def begin(self, operation: Operation, place: Place, client: Client | None = None, subject: str = "") -> None:
        """Something is being done about this place, and with this client under this name."""
        self._touch(place)
        record = self._records[place]
        assert operation not in record.running, f"{operation.name} is under way at {place} already"
        assert record.state in BEGINS_IN[operation], f"no {operation.name} of {place}, which is {record.state.name}"
        record.running |= {operation}
        self._busy.add(place)
        if client is not None:
            running = self._client(client).running
            assert operation not in running, f"{operation.name} is under way with {client} already"
            running[operation] = subject

    def end(self, operation: Operation, place: Place, client: Client | None = None) -> None:
        record = self._records[place]
        assert operation in record.running, f"{operation.name} is not under way at {place}"
        record.running -= {operation}
        if not record.running:
            self._busy.discard(place)
        self._touch(place)
        if client is not None:
            del self._clients[client].running[operation]

    # Clients

    def told(self, client: Client) -> None:
        """The client is being told its place."""
        self._client(client).told_s = self._moment.now

    def left(self, client: Client) -> None:
        """The client has unsubscribed; an edge that has not told yet what it holds may have a place of it too."""
        self._client(client).left_s = self._moment.now

    def departed(self, client: Client, place: NewPlace, subscription: Subscription) -> None:
        """The client has moved to another cluster."""
        self._departures[client] = Departure(place, subscription.model_copy(update={"number": place.number}))

    def returned(self, client: Client) -> None:
        """The client is here, or wants to be."""
        self._departures.pop(client, None)

    def _client(self, client: Client) -> _Client:
        """The record of a client, put last; made if it is new."""
        record = self._clients.pop(client) if client in self._clients else _Client()
        self._clients[client] = record
        if len(self._clients) > CLIENTS_MAX:
            idle = next((one for one, other in self._clients.items() if not other.running), client)
            if idle != client:
                del self._clients[idle]
        return record

    # Writing

    def _touch(self, place: Place) -> None:
        record = self._records.get(place)
        if record is None:
            record = self._records[place] = _Record()
            self._by_state[ABSENT][place] = None
        self.changes += 1
        record.change, record.changed_s = self.changes, self._moment.now
        edge = self._registry.edges.get(place[0])
        if edge is not None:
            edge.changed_s = self._moment.now

    def _set(self, place: Place, state: PlaceState, *, again: bool = False) -> None:
        """`again`: a place that is in this state already comes to it once more."""
        record = self._records.get(place)
        if record is None:
            record = self._records[place] = _Record()
        elif record.state is state and not again:
            return
        before = record.state
        assert state is before or state in TRANSITIONS[before], f"{place}: {before.name} can't become {state.name}"
        self._by_state[before].pop(place, None)
        self._by_state[state][place] = None
        record.state = state

    def validate(self) -> None:
        """Raise AssertionError if states, registry and routes disagree."""
        for place, record in self._records.items():
            assert place in self._by_state[record.state], f"{place} is not found as {record.state.name}"
            there = self._registry.get(*place) is not None
            assert there == (record.state not in _GONE) or record.state is DISCARDED, f"{place} is {record.state.name}"
        assert self._busy == {place for place, record in self._records.items() if record.running}
        assert sum(len(places) for places in self._by_state.values()) == len(self._records)
        assert len(self._by_state[DISCARDED]) <= DISCARDED_MAX
        for name, edge in self._registry.edges.items():
            for key, subscription in edge.subscriptions.items():
                assert (name, key) in self._records, f"{subscription} is on {name} and has no record"
                assert self._routes.is_carried(name, subscription.pattern), f"{subscription} is not carried to {name}"
