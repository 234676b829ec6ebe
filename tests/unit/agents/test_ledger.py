"""The ledger of places: its tables, what it refuses, what it remembers and for how long."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import subscription
from tidegate_agents.config import HeadConfig
from tidegate_agents.head.context import HeadContext
from tidegate_agents.head.neighbours import Neighbours
from tidegate_agents.head.places import ledger as places_ledger
from tidegate_agents.head.places.knowledge import END, PATIENT_GRACES, PLACE, SEND_AWAY, Act, Knowledge
from tidegate_agents.head.places.ledger import (
    ABANDONED,
    ABSENT,
    ASKED,
    BEGINS_IN,
    DISCARDED,
    GONE_PERIODS,
    KNOWN,
    REMOVED,
    RESERVED,
    TRANSITIONS,
    USED,
    Ledger,
    Operation,
    PlaceState,
)
from tidegate_protocol.decisions import Rejection

E1 = ("e1", ("s", 0))
E2 = ("e2", ("s", 1))
CLIENT = ("s", "a")


def head() -> HeadContext:
    """A head with two edges that have told what they hold: nothing."""
    context = HeadContext(HeadConfig("h", "c", 1))
    for name in ("e1", "e2"):
        context.registry.edge(name).settled = True
    return context


def in_state(ledger: Ledger, state: PlaceState) -> None:
    """Bring the place `E1` into this state, by the steps that a head takes."""
    match state:
        case PlaceState.ASKED:
            ledger.ask("e1", subscription())
        case PlaceState.RESERVED:
            ledger.reserve("e1", subscription())
        case PlaceState.KNOWN | PlaceState.USED | PlaceState.ABANDONED:
            ledger.found("e1", subscription())
    match state:
        case PlaceState.USED:
            ledger.use(E1)
        case PlaceState.ABANDONED:
            ledger.abandon(E1)
        case PlaceState.DISCARDED:
            ledger.discard(E1)
        case PlaceState.REMOVED:
            ledger.removed(E1)


def test_every_state_and_every_operation_is_in_its_table_and_can_be_reached() -> None:
    assert TRANSITIONS.keys() == set(PlaceState)
    assert BEGINS_IN.keys() == set(Operation)
    for state in PlaceState:
        context = head()
        in_state(context.ledger, state)
        assert context.ledger.state(E1) is state
        context.validate()


@pytest.mark.parametrize("state", [state for state in PlaceState if USED not in {*TRANSITIONS[state], state}])
def test_nobody_is_told_to_live_in_a_place_that_is_not_there_or_is_to_go(state: PlaceState) -> None:
    ledger = head().ledger
    in_state(ledger, state)
    with pytest.raises(AssertionError, match="can't become USED"):
        ledger.use(E1)


def test_what_is_reserved_for_a_client_is_not_collected_from() -> None:
    ledger = head().ledger
    in_state(ledger, RESERVED)
    with pytest.raises(AssertionError, match="RESERVED can't become ABANDONED"):
        ledger.abandon(E1)


def test_what_is_reserved_for_a_client_is_not_handed_out_to_it() -> None:
    ledger = head().ledger
    ledger.found("e2", subscription(number=1))
    in_state(ledger, RESERVED)
    assert (ledger.places(CLIENT), ledger.homes(CLIENT)) == ([E1, E2], [E2])


def test_what_is_discarded_is_not_collected_from_any_more() -> None:
    ledger = head().ledger
    in_state(ledger, DISCARDED)
    ledger.abandon(E1)
    assert ledger.state(E1) is DISCARDED


@pytest.mark.parametrize(
    ("operation", "state"),
    [(operation, state) for operation, states in BEGINS_IN.items() for state in PlaceState if state not in states],
)
def test_an_operation_begins_only_where_it_makes_sense(operation: Operation, state: PlaceState) -> None:
    ledger = head().ledger
    in_state(ledger, state)
    with pytest.raises(AssertionError, match=f"no {operation.name}"):
        ledger.begin(operation, E1)


def test_an_operation_runs_once_at_a_place_and_leaves_the_state_alone() -> None:
    ledger = head().ledger
    in_state(ledger, USED)
    ledger.begin(Operation.MIGRATION, E1, CLIENT, "m1")
    assert (ledger.under_way(Operation.MIGRATION, CLIENT), ledger.is_free(CLIENT)) == ("m1", False)
    assert ledger.busy_on("e1") == [E1[1]]
    with pytest.raises(AssertionError, match="under way"):
        ledger.begin(Operation.MIGRATION, E1, CLIENT, "m2")
    ledger.end(Operation.MIGRATION, E1, CLIENT)
    assert (ledger.state(E1), ledger.is_free(CLIENT), ledger.is_busy(E1)) == (USED, True, False)
    with pytest.raises(AssertionError, match="not under way"):
        ledger.end(Operation.MIGRATION, E1)


def test_a_place_that_an_edge_lists_late_is_abandoned_if_its_client_lives_elsewhere() -> None:
    ledger = head().ledger
    ledger.found("e2", subscription(number=1))
    ledger.found("e1", subscription())
    assert [ledger.state(place) for place in (E1, E2)] == [KNOWN, KNOWN], "nobody was told to live anywhere"
    ledger.withdraw(E1)
    ledger.use(E2)
    ledger.found("e1", subscription())
    assert ledger.state(E1) is ABANDONED
    assert ledger.homes(CLIENT) == [E2]


def test_a_discarded_place_is_remembered_while_its_edge_does_not_list_it_and_can_be_kept_until_it_is_deleted() -> None:
    context = head()
    ledger = context.ledger
    in_state(ledger, KNOWN)
    ledger.discard(E1)
    ledger.withdraw(E1)
    assert ledger.state(E1) is DISCARDED
    assert ledger.keep(E1)
    assert ledger.state(E1) is ABSENT
    in_state(ledger, KNOWN)
    ledger.discard(E1)
    assert (ledger.has_place(CLIENT), ledger.is_leaving(E1)) == (False, True)
    ledger.begin(Operation.REMOVAL, E1)
    assert not ledger.keep(E1), "its edge is deleting it"
    ledger.end(Operation.REMOVAL, E1)
    assert ledger.keep(E1)
    assert ledger.state(E1) is KNOWN
    context.validate()


def test_of_too_many_discarded_places_the_oldest_is_a_place_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_ledger, "DISCARDED_MAX", 1)
    context = head()
    for edge, number in (("e1", 0), ("e2", 1)):
        context.ledger.found(edge, subscription(number=number))
        context.ledger.discard((edge, ("s", number)))
    assert [context.ledger.state(place) for place in (E1, E2)] == [KNOWN, DISCARDED]
    context.validate()


def test_what_is_gone_is_remembered_for_a_while_and_no_longer() -> None:
    context = head()
    ledger = context.ledger
    in_state(ledger, ASKED)
    context.now = 5.0
    ledger.removed(E1)
    assert (ledger.state(E1), ledger.removed_s(E1)) == (REMOVED, 5.0)
    context.now += GONE_PERIODS * context.config.period_s
    assert ledger.removed_s(E1) == float("-inf")
    ledger.forget_gone()
    assert ledger.state(E1) is ABSENT
    context.validate()


def test_a_change_is_noticed_while_an_operation_runs_and_after_it() -> None:
    ledger = head().ledger
    in_state(ledger, USED)
    since = ledger.changes
    assert not ledger.has_changed(E1, since)
    ledger.begin(Operation.ALLOCATION, E1)
    assert ledger.has_changed(E1, ledger.changes)
    ledger.end(Operation.ALLOCATION, E1)
    assert ledger.has_changed(E1, since)
    assert not ledger.has_changed(E1, ledger.changes)


def test_a_client_that_lives_here_has_not_departed() -> None:
    ledger = head().ledger
    in_state(ledger, KNOWN)
    new = places_ledger.NewPlace("f1", 4, "amqp://f1", "out.s.4", "h1", ("h", "h1"), "amqp://h1")
    ledger.departed(CLIENT, new, subscription())
    ledger.use(E1)
    assert ledger.departure(CLIENT) is None


def test_of_many_clients_those_are_forgotten_first_with_which_nothing_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places_ledger, "CLIENTS_MAX", 2)
    ledger = head().ledger
    in_state(ledger, USED)
    ledger.begin(Operation.MIGRATION, E1, CLIENT, "m1")
    for subscriber in ("s1", "s2"):
        ledger.told((subscriber, "a"))
    assert ledger.under_way(Operation.MIGRATION, CLIENT) == "m1"
    assert [ledger.was_told((subscriber, "a"), 0.0) for subscriber in ("s1", "s2")] == [False, True]


@pytest.mark.parametrize(("act", "waits"), [(PLACE, False), (END, True), (SEND_AWAY, True)])
def test_an_edge_that_has_not_told_is_waited_for_as_long_as_the_act_needs(act: Act, waits: bool) -> None:
    context = head()
    knowledge = Knowledge(context, Neighbours(context))
    assert knowledge.gap(act, CLIENT) is None
    edge = context.registry.edge("e2")
    edge.settled, edge.alive, edge.listed = False, True, 1
    unknown = knowledge.gap(act, CLIENT)
    assert unknown is not None
    assert (unknown.reason, unknown.other) == (Rejection.EDGE_UNREAD, "e2")
    context.now = PATIENT_GRACES * context.config.adopt_grace_s - 0.1
    assert knowledge.gap(act, CLIENT) is not None
    edge.alive = False
    assert (knowledge.gap(act, CLIENT) is not None) == waits, "a silent edge is waited for in the first seconds only"


def test_a_client_with_something_to_collect_stays_in_its_cluster() -> None:
    context = head()
    knowledge = Knowledge(context, Neighbours(context))
    in_state(context.ledger, ABANDONED)
    unknown = knowledge.gap(SEND_AWAY, CLIENT)
    assert unknown is not None
    assert (unknown.reason, unknown.other) == (Rejection.UNCOLLECTED, "e1")
    assert knowledge.gap(PLACE, CLIENT) is None
