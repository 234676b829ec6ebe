"""A head that starts: adopting bindings, reading registries, forgetting edges."""

from __future__ import annotations

from tests.support.agents_driver import Driver, of, replies, sent, subscribe, subscription
from tidegate_agents.machine import ChangeRoutes, DropLink, TimerFired
from tidegate_agents.registry import registry_digest
from tidegate_protocol.messages import (
    OutputPrepare,
    OutputRemove,
    Refusal,
    RefusalReason,
    RegistryPage,
    RegistryRequest,
    StatusReply,
    StatusRequest,
    SubscribeReply,
    Subscription,
    UnsubscribeRequest,
)


def page(edge: str, *subscriptions: Subscription, after: str | None = None) -> RegistryPage:
    return RegistryPage(edge=edge, digest=registry_digest(subscriptions), subscriptions=subscriptions, after=after)


def test_nothing_is_unbound_before_the_edge_was_read() -> None:
    driver = Driver(routes={"e1": frozenset({"a", "stale"})})
    assert not of(driver.first, ChangeRoutes)
    held = subscription()
    actions = driver.hello("e1", held)
    assert not of(actions, ChangeRoutes)
    (request,) = sent(actions, RegistryRequest, "e1")
    (change,) = of(driver.answer(request, page("e1", held)), ChangeRoutes)
    assert (change.add, change.remove) == ((), ("stale",))


def test_an_edge_that_holds_nothing_is_settled_by_its_hello() -> None:
    driver = Driver(routes={"e1": frozenset({"stale"})})
    (change,) = of(driver.hello("e1"), ChangeRoutes)
    assert change.remove == ("stale",)


def test_a_registry_is_read_page_by_page_and_a_lost_page_is_asked_for_again() -> None:
    driver = Driver()
    subscriptions = [subscription("s", n, f"p{n}") for n in range(3)]
    (first,) = sent(driver.hello("e1", *subscriptions), RegistryRequest)
    (second,) = sent(driver.answer(first, page("e1", *subscriptions[:2], after="out.s.1")), RegistryRequest)
    assert second.message == RegistryRequest(after="out.s.1")
    (again,) = sent(driver.give(TimerFired("registry e1")), RegistryRequest)
    assert again.message == second.message
    (change,) = of(driver.answer(again, page("e1", subscriptions[2])), ChangeRoutes)
    assert change.add == ("p0", "p1", "p2")
    assert not sent(driver.hello("e1", *subscriptions), RegistryRequest)


def test_a_reading_without_progress_is_abandoned() -> None:
    driver = Driver()
    (request,) = sent(driver.hello("e1", subscription()), RegistryRequest)
    driver.answer(request, page("e1", subscription(), after="out.s.0"))
    (again,) = sent(driver.give(TimerFired("registry e1")), RegistryRequest)
    driver.answer(again, page("e1", subscription(), after="out.s.0"))
    assert driver.agent.story[-1].kind == "registry-abandoned"
    assert sent(driver.hello("e1", subscription()), RegistryRequest)


def test_a_subscription_that_may_exist_already_is_put_off_at_the_start() -> None:
    driver = Driver(routes={"e1": frozenset({"a"})})
    driver.hello("e2")
    (refusal,) = replies(driver.tell(subscribe(pattern="a")), Refusal)
    assert refusal.reason is RefusalReason.NOT_READY
    (refusal,) = replies(driver.tell(UnsubscribeRequest(subscriber="s", number=0)), Refusal)
    assert refusal.reason is RefusalReason.NOT_READY
    # Another pattern can't be there, or it would be bound.
    assert sent(driver.tell(subscribe(pattern="b")), OutputPrepare, "e2")


def test_a_client_that_comes_back_finds_its_queue_after_a_restart_of_the_head() -> None:
    driver = Driver(routes={"e1": frozenset({"a"})})
    driver.hello("e2")
    held = subscription(number=4)
    (request,) = sent(driver.hello("e1", held), RegistryRequest)
    driver.answer(request, page("e1", held))
    (prepare,) = sent(driver.tell(subscribe()), OutputPrepare, "e1")
    (reply,) = replies(driver.ready(prepare), SubscribeReply)
    assert reply.queue == "out.s.4"


def test_after_the_grace_an_edge_that_stays_away_is_not_waited_for() -> None:
    driver = Driver(routes={"e1": frozenset({"a"})})
    driver.now += 5.0
    driver.hello("e2")
    assert sent(driver.tell(subscribe()), OutputPrepare, "e2")


def test_what_was_granted_elsewhere_meanwhile_is_removed_as_an_orphan() -> None:
    driver = Driver(routes={"e1": frozenset({"a"})})
    driver.now += 5.0
    driver.hello("e2")
    actions = driver.tell(subscribe())
    driver.bind(actions)
    driver.ready(sent(actions, OutputPrepare)[0])
    (request,) = sent(driver.hello("e1", subscription()), RegistryRequest)
    actions = driver.answer(request, page("e1", subscription()))
    assert sent(actions, OutputRemove, "e1")
    assert of(actions, ChangeRoutes)[0].remove == ("a",)


def test_what_changes_during_a_reading_is_left_alone() -> None:
    driver = Driver()
    driver.hello("e1")
    driver.now += 10.0
    (request,) = sent(driver.hello("e1", subscription("old")), RegistryRequest)
    actions = driver.tell(subscribe())
    driver.bind(actions)
    driver.ready(sent(actions, OutputPrepare)[0])
    driver.answer(request, page("e1", subscription("old")))
    (status,) = replies(driver.tell(StatusRequest()), StatusReply)
    assert status.edges[0].subscriptions == 2


def test_a_difference_on_a_busy_edge_is_not_read_at_once() -> None:
    driver = Driver()
    driver.hello("e1")
    driver.tell(subscribe())
    assert not sent(driver.hello("e1"), RegistryRequest)
    for _ in range(8):
        assert not sent(driver.hello("e1"), RegistryRequest)
    assert sent(driver.hello("e1"), RegistryRequest)


def test_an_edge_silent_for_very_long_is_forgotten_with_its_link() -> None:
    driver = Driver(routes={"e1": frozenset({"a"})}, edge_forget_s=60.0)
    assert not of(driver.tick(60.0), DropLink)
    assert of(driver.tick(1.0), DropLink) == [DropLink("e1")]
    assert replies(driver.tell(StatusRequest()), StatusReply)[0].edges == ()
