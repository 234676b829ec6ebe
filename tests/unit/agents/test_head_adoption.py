"""A head that starts: adopting bindings, reading registries, forgetting edges."""

from __future__ import annotations

from tests.support.agents_driver import Driver, of, replies, sent, subscribe, subscription
from tidegate_agents.head.places.knowledge import PATIENT_GRACES
from tidegate_agents.head.places.ledger import GONE_PERIODS
from tidegate_agents.kit.subscriptions import registry_digest
from tidegate_agents.machine import ChangeRoutes, DropLink, Send, TimerFired
from tidegate_protocol.balancing.markers import MarkerBind
from tidegate_protocol.decisions import RegistryOutcome, RegistryRead
from tidegate_protocol.messages import (
    OutputPrepare,
    OutputRemove,
    OutputRemoved,
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


def test_nothing_is_unbound_before_its_last_page_was_read() -> None:
    held = [subscription("s", n, f"p{n}") for n in range(3)]
    driver = Driver(routes={"e1": frozenset({"p0", "p1", "p2", "stale"})})
    (first,) = sent(driver.hello("e1", *held), RegistryRequest)
    actions = driver.answer(first, page("e1", *held[:2], after="out.s.1"))
    assert not of(actions, ChangeRoutes), "the patterns of the next page are needed as much"
    (second,) = sent(actions, RegistryRequest)
    (change,) = of(driver.answer(second, page("e1", held[2])), ChangeRoutes)
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
    assert driver.agent.story[-1] == RegistryRead("e1", RegistryOutcome.WRONG_ANSWER)
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


def test_an_edge_that_is_heard_of_is_waited_for_longer() -> None:
    """Its answers were lost for some seconds; its client got another place, and left before it could collect."""
    driver = Driver(routes={"e1": frozenset({"a"})})
    driver.hello("e2")
    grace_s = driver.agent._context.config.adopt_grace_s
    for _ in range(PATIENT_GRACES - 1):
        driver.now += grace_s
        driver.hello("e1", subscription(number=4))
        (refusal,) = replies(driver.tell(subscribe()), Refusal)
        assert "e1 may hold it" in refusal.message
    driver.now += grace_s
    assert sent(driver.tell(subscribe()), OutputPrepare, "e2"), "but not for ever"


def test_what_was_granted_elsewhere_meanwhile_is_kept_until_it_is_collected() -> None:
    driver = Driver(routes={"e1": frozenset({"a"})})
    driver.now += 5.0
    driver.hello("e2")
    actions = driver.tell(subscribe())
    driver.bind(actions)
    driver.ready(sent(actions, OutputPrepare)[0])
    (request,) = sent(driver.hello("e1", subscription()), RegistryRequest)
    actions = driver.answer(request, page("e1", subscription()))
    assert not sent(actions, OutputRemove, "e1"), "its client may never have got what waits there"
    assert not of(actions, ChangeRoutes)
    assert sent(driver.tick(), MarkerBind, "e1"), "it is about to be collected"


def test_what_an_edge_made_for_an_allocation_that_gave_it_up_is_removed_as_an_orphan() -> None:
    driver = Driver()
    driver.hello("e1")
    driver.hello("e2")
    (prepare,) = sent(driver.tell(subscribe()), OutputPrepare, "e1")
    driver.give(TimerFired("prepare s a"))  # e1 does not answer; e2 is asked
    assert isinstance(prepare.message, OutputPrepare)
    driver.now += 10.0
    (request,) = sent(driver.hello("e1", prepare.message.subscription), RegistryRequest)
    actions = driver.answer(request, page("e1", prepare.message.subscription))
    assert sent(actions, OutputRemove, "e1")


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


def removed_again(driver: Driver, held: Subscription) -> list[Send]:
    """What is removed when e1 says that it holds this subscription."""
    driver.hello("e1")
    driver.tick(2.0)  # a hello that crosses with a change means nothing yet
    (request,) = sent(driver.hello("e1", held), RegistryRequest)
    return sent(driver.answer(request, page("e1", held)), OutputRemove, "e1")


def test_a_queue_that_shows_up_again_after_its_removal_is_nobodys() -> None:
    """The order to make it was repeated, and its copy overtaken by the order to remove it."""
    driver = Driver()
    held = subscription()
    (request,) = sent(driver.hello("e1", held), RegistryRequest)
    driver.bind(driver.answer(request, page("e1", held)))
    (remove,) = sent(driver.tell(UnsubscribeRequest(subscriber="s", number=0)), OutputRemove, "e1")
    driver.bind(driver.answer(remove, OutputRemoved(edge="e1", subscriber="s", number=0)))
    assert len(removed_again(driver, held)) == 1


def test_but_not_for_ever() -> None:
    driver = Driver()
    held = subscription()
    (request,) = sent(driver.hello("e1", held), RegistryRequest)
    driver.bind(driver.answer(request, page("e1", held)))
    (remove,) = sent(driver.tell(UnsubscribeRequest(subscriber="s", number=0)), OutputRemove, "e1")
    driver.bind(driver.answer(remove, OutputRemoved(edge="e1", subscriber="s", number=0)))
    for _ in range(GONE_PERIODS + 1):
        driver.hello("e1")
        driver.tick()
    assert removed_again(driver, held) == []


def test_a_second_place_of_a_client_that_has_left_is_nobodys() -> None:
    """Its head was restarted in the middle of a move, and heard of the other place only after the goodbye."""
    driver = Driver()
    held, other = subscription(), subscription(number=1)
    (request,) = sent(driver.hello("e1", held), RegistryRequest)
    driver.bind(driver.answer(request, page("e1", held)))
    (remove,) = sent(driver.tell(UnsubscribeRequest(subscriber="s", number=0)), OutputRemove, "e1")
    driver.bind(driver.answer(remove, OutputRemoved(edge="e1", subscriber="s", number=0)))
    (request,) = sent(driver.hello("e2", other), RegistryRequest)
    assert len(sent(driver.answer(request, page("e2", other)), OutputRemove, "e2")) == 1
