"""Clients that were moved to another cluster: remembered, sent after, forgotten when they are here again."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import Driver, replies, sent, subscribe, subscription
from tidegate_agents.config import HeadConfig
from tidegate_agents.head.context import HeadContext
from tidegate_agents.head.moving.steps import NewPlace
from tidegate_agents.head.places import ledger as places_ledger
from tidegate_agents.head.places.ledger import Ledger
from tidegate_protocol.messages import OutputPrepare, SubscribeReply

PLACE = NewPlace("e9", 4, "amqp://e9", "out.s.4", "h1", ("h0", "h1"), "amqp://h1")


def ledger() -> Ledger:
    return HeadContext(HeadConfig("h0", "c0", 1)).ledger


def test_remembered_under_the_number_it_has_there() -> None:
    known = ledger()
    known.departed(("s", "a"), PLACE, subscription(number=1))
    found = known.departure(("s", "a"))
    assert found is not None
    assert found.place == PLACE
    assert found.subscription == subscription(number=4)
    assert known.departure(("s", "b")) is None


def test_forgotten_when_it_is_here_again() -> None:
    known = ledger()
    known.departed(("s", "a"), PLACE, subscription())
    known.returned(("s", "a"))
    known.returned(("s", "a"))
    assert known.departure(("s", "a")) is None


def test_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_ledger, "DEPARTURES_MAX", 2)
    known = ledger()
    for subscriber in ("s0", "s1", "s0", "s2"):
        known.departed((subscriber, "a"), PLACE, subscription(subscriber))
    assert len(known.departures) == 2
    assert known.departure(("s1", "a")) is None


def driver() -> Driver:
    """A head with one edge, from which `s` was moved to another cluster."""
    made = Driver()
    made.bind(made.hello("e0"))
    made.agent._context.ledger.departed(("s", "a"), PLACE, subscription())
    return made


def test_a_client_that_started_anew_is_sent_after_its_queue() -> None:
    head = driver()
    for _ in range(2):
        actions = head.tell(subscribe())
        (reply,) = replies(actions, SubscribeReply)
        assert (reply.edge, reply.queue, reply.head, reply.head_url) == ("e9", "out.s.4", "h1", "amqp://h1")
        assert reply.subscription.number == 4
        assert not sent(actions, OutputPrepare)


def test_somebody_else_gets_a_place_here() -> None:
    head = driver()
    assert sent(head.tell(subscribe("other")), OutputPrepare, "e0")
    assert sent(head.tell(subscribe("s", "b")), OutputPrepare, "e0")


def test_a_client_that_can_not_reach_that_edge_gets_a_place_here_and_is_forgotten() -> None:
    head = driver()
    (prepare,) = sent(actions := head.tell(subscribe().model_copy(update={"unreachable": "e9"})), OutputPrepare, "e0")
    granted = head.bind(actions) + head.ready(prepare)
    (reply,) = replies(granted, SubscribeReply)
    assert (reply.edge, reply.head) == ("e0", None)
    assert len(head.agent._context.ledger.departures) == 0
