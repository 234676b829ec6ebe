"""Who may say what, as a table: every key with every kind of account."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from tidegate_brokers.access.admission import FROM_BROKERS, FROM_EDGES, FROM_NEIGHBOURS, NOBODY, Admission, detour
from tidegate_protocol.balancing.loads import PieGlobal, PieLocal
from tidegate_protocol.messages import (
    ControlMessage,
    EdgeGoodbye,
    Message,
    OutputRemove,
    Probe,
    PublisherGoodbye,
    RoutesUpdate,
    UnsubscribeRequest,
)
from tidegate_protocol.names import HEAD_KEY, HOM_KEY, OPERATOR_KEY, broker_key, pie_global_key, pie_local_key
from tidegate_protocol.operations import PauseRequest
from tidegate_protocol.parts import LoadState

HEAD = Admission(head=True, own_names=True, brokers=True)
EDGE = Admission(head=False, brokers=True)
LOCAL = PieLocal(broker="e1", cluster="main", state=LoadState.LOW, busy=False, metrics={}, period_s=1.0)
GLOBAL = PieGlobal(cluster="north", head="north", state=LoadState.LOW, metrics={}, period_s=1.0)
ROUTES = RoutesUpdate(head="north", version=1, wait_s=0)
EVERYBODY = ("", "siren", "operator", "broker.head", "broker.north", "broker.e1", "broker.e2", "link.head", "broker.")

TABLE: list[tuple[Admission, str, ControlMessage, set[str]]] = [
    (HEAD, HOM_KEY, UnsubscribeRequest(subscriber="siren-1", number=0), {"siren"}),
    (HEAD, HOM_KEY, PublisherGoodbye(publisher="siren~1"), {"siren"}),
    (HEAD, OPERATOR_KEY, PauseRequest(paused=True), {"siren", "operator"}),
    (HEAD, HEAD_KEY, EdgeGoodbye(edge="e1"), {"broker.e1"}),
    (HEAD, HEAD_KEY, Probe(), {"", "broker.head", "broker.north", "broker.e1", "broker.e2", "broker."}),
    (HEAD, HEAD_KEY, ROUTES, set()),
    (HEAD, HEAD_KEY, OutputRemove(subscriber="siren", number=0), set()),
    (HEAD, pie_local_key("main"), LOCAL, {"broker.e1"}),
    (HEAD, pie_local_key("main"), EdgeGoodbye(edge="e1"), set()),
    (HEAD, pie_global_key("main"), GLOBAL, {"broker.north"}),
    (HEAD, broker_key("head"), GLOBAL, {"broker.north"}),
    (HEAD, broker_key("head"), ROUTES, {"broker.north"}),
    (HEAD, broker_key("head"), EdgeGoodbye(edge="e1"), set()),
    (HEAD, "elsewhere", EdgeGoodbye(edge="e1"), set()),
    (EDGE, pie_local_key("main"), LOCAL, {"broker.e1"}),
    (
        EDGE,
        broker_key("e1"),
        OutputRemove(subscriber="siren", number=0),
        {user for user in EVERYBODY if user.startswith("broker.")},
    ),
    (Admission(head=True), HEAD_KEY, EdgeGoodbye(edge="e1"), set(EVERYBODY)),
    (Admission(head=True, own_names=True), HOM_KEY, PublisherGoodbye(publisher="siren~1"), {"siren"}),
    (Admission(head=True), HOM_KEY, PublisherGoodbye(publisher="siren~1"), set(EVERYBODY)),
]


@pytest.mark.parametrize(("admission", "key", "message", "allowed"), TABLE)
def test_everybody_speaks_for_himself_only(
    admission: Admission, key: str, message: ControlMessage, allowed: set[str]
) -> None:
    named = {admission.claimed(key, message)}
    assert {user for user in EVERYBODY if admission.objection(user, key, message, named) is None} == allowed


@pytest.mark.parametrize(
    ("admission", "key", "message"),
    [
        (HEAD, HEAD_KEY, EdgeGoodbye(edge="e1")),
        (HEAD, broker_key("head"), ROUTES),
        (EDGE, broker_key("e1"), OutputRemove(subscriber="siren", number=0)),
        (EDGE, pie_local_key("main"), LOCAL),
    ],
)
def test_a_broker_of_an_earlier_version_is_taken_until_it_has_named_itself(
    admission: Admission, key: str, message: ControlMessage
) -> None:
    assert admission.objection("", key, message, {"broker.other"}) is None
    assert admission.objection("", key, message, {admission.claimed(key, message)}) is not None
    assert HEAD.objection("", OPERATOR_KEY, PauseRequest(paused=True)) is not None


def members(union: Any) -> Iterator[type[Message]]:
    """The classes of a union, however nested."""
    for each in get_args(union):
        if get_args(each):
            yield from members(each)
        elif isinstance(each, type) and issubclass(each, Message):
            yield each


@pytest.mark.parametrize("table", [FROM_EDGES, FROM_BROKERS, FROM_NEIGHBOURS], ids=["edges", "brokers", "neighbours"])
def test_every_kind_in_the_tables_names_its_sender_where_the_table_says(table: dict[str, str]) -> None:
    kinds = {each.model_fields["kind"].default: each for each in members(ControlMessage)}
    for kind, field in table.items():
        assert field == NOBODY or kinds[kind].model_fields[field].annotation is str


def test_answers_come_from_the_owner_of_the_client() -> None:
    assert HEAD.may_answer("siren", "siren-1")
    assert not HEAD.may_answer("desk", "siren-1")
    assert not HEAD.may_answer("", "siren-1")
    assert EDGE.may_answer("desk", "siren-1")


def test_a_detour_is_told_by_headers() -> None:
    assert detour(None) is None
    assert detour({}) is None
    assert detour({"x-stream-offset": 7}) is None
    assert detour({"CC": True, "x-death": True}) == "dead-lettered"
