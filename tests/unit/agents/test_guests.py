"""Clients from another cluster: told to their head when it begins anew, and waited for by one that does."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import Driver, of, replies, sent, subscribe, subscription
from tidegate_agents.config import ATTEMPTS_MAX
from tidegate_agents.head.abroad import guests
from tidegate_agents.head.moving.steps import NewPlace
from tidegate_agents.kit.subscriptions import registry_digest
from tidegate_agents.machine import Action, ChangeRoutes, Send, TimerFired, Undeliverable
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.abroad import Guest, GuestKey, GuestList, GuestsNoted
from tidegate_protocol.messages import (
    OutputPrepare,
    Refusal,
    RefusalReason,
    RegistryPage,
    RegistryRequest,
    RoutesUpdate,
    SubscribeReply,
    Subscription,
)


def guest(number: int = 0, origin: str | None = "n1") -> Subscription:
    return subscription(f"s{number}").model_copy(update={"origin": origin})


def host(*subscriptions: Subscription) -> Driver:
    """A head with the neighbours n1 and n2 that have told all, and one edge with these subscriptions."""
    driver = Driver("n1", "n2", publisher_url="amqp://h")  # type: ignore[arg-type]
    for name in ("n1", "n2"):
        driver.tell(GuestList(head=name, complete=True))
    driver.hello("e1")
    for one in subscriptions:
        driver.agent._context.ledger.found("e1", one)
    return driver


def anew(driver: Driver, neighbour: str = "n1", version: int = 1) -> list[Action]:
    return driver.tell(RoutesUpdate(head=neighbour, version=version, base=None, add=(), wait_s=1.0))


def lists(actions: list[Action]) -> list[tuple[Send, GuestList]]:
    found = sent(actions, GuestList)
    return [(send, send.message) for send in found if isinstance(send.message, GuestList)]


def test_a_head_that_begins_anew_is_told_its_own_clients() -> None:
    driver = host(guest(0), guest(1, "n2"), guest(2, None))
    ((send, message),) = lists(anew(driver))
    assert (send.to, message.head, message.complete) == ("n1", "h", True)
    (one,) = message.guests
    assert one.subscription == guest(0)
    assert (one.edge, one.url, one.queue, one.head, one.head_url) == ("e1", "amqp://e1:1", "out.s0.0", "h", "amqp://h")


def test_it_is_told_also_that_there_are_none() -> None:
    ((_, message),) = lists(anew(host()))
    assert (message.guests, message.complete) == ((), True)


def test_without_a_publisher_url_none_that_is_here_is_named_and_routes_are_served_all_the_same() -> None:
    driver = Driver("n1")
    driver.hello("e1")
    driver.agent._context.ledger.found("e1", guest(0))
    place = NewPlace("e7", 3, "amqp://e7", "out.s1.3", "n2", ("h", "n2"), "amqp://n2")
    driver.agent._context.ledger.departed(("s1", "a"), place, guest(1))
    actions = driver.tell(RoutesUpdate(head="n1", version=1, base=None, add=("storm",), wait_s=1.0))
    assert [change.add for change in of(actions, ChangeRoutes) if change.target == "n1"] == [("storm",)]
    ((_, message),) = lists(actions)
    assert [one.edge for one in message.guests] == ["e7"], "that one is found at another head"
    (decision,) = [decision for decision in driver.agent.story if isinstance(decision, d.GuestsUnheard)]
    assert decision.reason is d.GuestsUnheardReason.NO_URL


def test_it_is_told_of_those_that_went_on_from_here() -> None:
    driver = host()
    place = NewPlace("e7", 3, "amqp://e7", "out.s0.3", "n2", ("h", "n2"), "amqp://n2")
    driver.agent._context.ledger.departed(("s0", "a"), place, guest(0))
    ((_, message),) = lists(anew(driver))
    assert [(one.edge, one.head) for one in message.guests] == [("e7", "n2")]
    ((_, message),) = lists(anew(driver, "n2"))
    assert message.guests == (), "whom it has itself it need not be told of"


def test_it_is_told_of_one_that_was_on_its_way_when_it_began_anew() -> None:
    driver = host()
    context = driver.agent._context
    asked_s = driver.now
    driver.now += 1.0
    ((send, _),) = lists(anew(driver))
    driver.answer(send, GuestsNoted(head="n1"))
    context.ledger.found("e1", guest(0))
    driver.agent._guests.guest_came("n1", asked_s)
    ((send, message),) = lists(driver.tick())
    assert (send.to, [one.subscription for one in message.guests]) == ("n1", [guest(0)])
    driver.answer(send, GuestsNoted(head="n1"))
    assert not lists(driver.tick())
    # One that has not begun anew since knows by itself whom it has sent.
    driver.agent._guests.guest_came("n1", driver.now)
    driver.agent._guests.guest_came("n2", asked_s)
    assert not lists(driver.tick())


def test_many_are_told_one_list_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "GUESTS_MAX", 2)
    driver = host(*(guest(n) for n in range(5)))
    found = lists(anew(driver))
    told = []
    while found:
        ((send, message),) = found
        told.append((len(message.guests), message.complete))
        found = lists(driver.answer(send, GuestsNoted(head="n1")))
    assert told == [(2, False), (2, False), (1, True)]


def test_a_list_is_repeated_until_it_is_acknowledged_or_nobody_answers() -> None:
    driver = host(guest())
    ((send, message),) = lists(anew(driver))
    driver.answer(send, Refusal(reason=RefusalReason.NOT_READY, message="starting"))
    for _ in range(ATTEMPTS_MAX - 1):
        driver.now += 2.0
        ((send, again),) = lists(driver.give(TimerFired("guests n1")))
        assert again == message
    driver.now += 2.0
    assert not lists(driver.give(TimerFired("guests n1")))
    assert any(isinstance(decision, d.GuestsUnheard) for decision in driver.agent.story)
    assert lists(anew(driver, version=2)), "it begins anew once more"


def test_one_that_is_not_there_is_told_when_it_is() -> None:
    driver = host(guest())
    ((send, _),) = lists(anew(driver))
    assert send.request_id is not None
    driver.give(Undeliverable(send.request_id))
    assert not lists(driver.give(TimerFired("guests n1")))
    assert lists(anew(driver, version=2))


def test_what_an_edge_tells_later_is_told_on() -> None:
    """Both heads were restarted: the neighbour was told before this one had read its own edge."""
    driver = Driver("n1", "n2", routes={"e1": frozenset({"a"})}, publisher_url="amqp://h")  # type: ignore[arg-type]
    ((_, first),) = lists(anew(driver))
    assert (first.guests, first.complete) == ((), False)
    driver.agent._context.ledger.found("e1", guest())
    ((send, message),) = lists(driver.hello("e1", guest()))
    assert (send.to, [one.subscription for one in message.guests]) == ("n1", [guest()])
    assert message.complete


def test_an_edge_that_stays_silent_is_not_waited_for() -> None:
    driver = Driver("n1", routes={"e1": frozenset({"a"})}, publisher_url="amqp://h")  # type: ignore[arg-type]
    anew(driver)
    assert not lists(driver.tick(4.0))
    ((_, message),) = lists(driver.tick(1.0))
    assert message.complete
    assert not lists(driver.tick(1.0))


def told(*guests: Guest, complete: bool = True) -> GuestList:
    return GuestList(head="n1", guests=guests, complete=complete)


def over_there(number: int = 0) -> Guest:
    return Guest(
        subscription=guest(number, "h"),
        edge="e9",
        url="amqp://e9",
        queue=f"out.s{number}.0",
        head="n1",
        head_url="amqp://n1",
    )


def restarted() -> Driver:
    driver = Driver("n1")
    driver.hello("e1")
    return driver


def test_a_head_that_has_just_started_waits_for_what_its_neighbours_have() -> None:
    driver = restarted()
    (refusal,) = replies(driver.tell(subscribe("s0")), Refusal)
    assert (refusal.reason, refusal.retry_after_s) == (RefusalReason.NOT_READY, 1.0)
    driver.tell(told(over_there(1), complete=False))
    assert replies(driver.tell(subscribe("s0")), Refusal), "there is more to come"
    assert replies(driver.tell(told(over_there(0))), GuestsNoted)
    for name in ("s0", "s1"):
        (reply,) = replies(driver.tell(subscribe(name)), SubscribeReply)
        assert (reply.edge, reply.head, reply.head_url) == ("e9", "n1", "amqp://n1")
    assert sent(driver.tell(subscribe("s2")), OutputPrepare, "e1")


def test_it_does_not_wait_for_long_nor_for_one_that_is_not_there() -> None:
    driver = restarted()
    driver.now += 5.0
    assert sent(driver.tell(subscribe("s0")), OutputPrepare, "e1")
    driver = restarted()
    (update,) = sent(driver.first, RoutesUpdate)
    assert update.request_id is not None
    driver.give(Undeliverable(update.request_id))
    assert sent(driver.tell(subscribe("s0")), OutputPrepare, "e1")


def test_whom_it_has_itself_is_here_whatever_a_neighbour_says() -> None:
    driver = restarted()
    driver.agent._context.ledger.found("e1", subscription("s0"))
    driver.tell(told(over_there(0)))
    assert sent(driver.tell(subscribe("s0")), OutputPrepare, "e1")
    assert len(driver.agent._context.ledger.departures) == 0


@pytest.mark.parametrize("read_later", [False, True])
def test_a_neighbour_is_told_of_those_that_both_have_until_it_knows(read_later: bool) -> None:
    driver = restarted()
    if read_later:
        driver.tell(told(over_there(0)))
    held = subscription("s0", 7)
    (request,) = sent(driver.hello("e2", held), RegistryRequest)
    page = RegistryPage(edge="e2", digest=registry_digest([held]), subscriptions=(held,))
    actions = driver.answer(request, page)
    if not read_later:
        actions = driver.tell(told(over_there(0)))
    actions += driver.give(TimerFired("tick"))
    here = GuestKey(subscriber="s0", number=0)
    *_, (send, message) = lists(actions)
    assert (send.to, message.here) == ("n1", (here,))
    *_, (_, again) = lists(anew(driver, version=2))
    assert again.here == (here,), "it may have missed it"
    driver.answer(lists(anew(driver, version=3))[0][0], GuestsNoted(head="n1"))
    assert lists(anew(driver, version=4))[0][1].here == ()


def here_told(driver: Driver) -> list[tuple[str, int]]:
    """Whom n1 is told, with the next tick, to be here as well; it notes all of them."""
    found, told = lists(driver.tick()), []
    while found:
        ((send, message),) = found
        told += [(key.subscriber, key.number) for key in message.here]
        found = lists(driver.answer(send, GuestsNoted(head="n1")))
    return told


def test_it_is_told_once_that_both_have_a_client_unless_the_place_is_another_one_or_it_begins_anew() -> None:
    driver = host(guest(0))
    driver.tell(told(over_there(0)))
    assert here_told(driver) == [("s0", 0)]
    driver.tell(told(over_there(0)))
    assert not lists(driver.tick()), "it knows, and would answer with the same list"
    driver.agent._context.ledger.found("e1", guest(0).model_copy(update={"number": 4}))
    driver.tell(told(over_there(0)))
    assert here_told(driver) == [("s0", 0)]
    lists(anew(driver))
    driver.tell(told(over_there(0)))
    assert here_told(driver) == [("s0", 0)]


def test_many_that_both_have_are_told_but_not_more_than_can_be_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "GUESTS_MAX", 2)
    monkeypatch.setattr(guests, "HERE_MAX", 5)
    driver = host(*(guest(number) for number in range(7)))
    both = [over_there(number) for number in range(7)]
    driver.tell(told(*both))
    assert here_told(driver) == [(f"s{number}", 0) for number in range(5)]
    driver.tell(told(*both))
    assert not lists(driver.tick())


def test_whose_place_is_being_removed_is_not_here() -> None:
    driver = restarted()
    driver.agent._context.ledger.found("e1", subscription("s0"))
    driver.agent._removals.discard(("e1", ("s0", 0)))
    driver.tell(told(over_there(0)))
    (reply,) = replies(driver.tell(subscribe("s0")), SubscribeReply)
    assert (reply.edge, reply.head) == ("e9", "n1")


def test_a_stranger_is_refused() -> None:
    driver = restarted()
    message = GuestList(head="n9", guests=(over_there(),), complete=True)
    (refusal,) = replies(driver.tell(message), Refusal)
    assert (refusal.reason, refusal.field) == (RefusalReason.UNKNOWN, "head")
    assert len(driver.agent._context.ledger.departures) == 0
