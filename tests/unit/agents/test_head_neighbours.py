"""Routes between heads: updates, versions, waiting, and who is alive."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import Driver, of, replies, sent, subscribe
from tidegate_agents.head import neighbours
from tidegate_agents.head.events import NeighbourAnew
from tidegate_agents.machine import (
    Action,
    ChangeRoutes,
    EnsureLink,
    LinkKind,
    Send,
    TimerFired,
    Undeliverable,
)
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.abroad import GuestList
from tidegate_protocol.messages import (
    OutputPrepare,
    OutputRemove,
    OutputRemoved,
    Refusal,
    RefusalReason,
    RoutesAccepted,
    RoutesUnknownBase,
    RoutesUpdate,
    StatusReply,
    StatusRequest,
    SubscribeReply,
    UnsubscribeRequest,
)


def update(version: int, base: int | None, *add: str, remove: tuple[str, ...] = (), head: str = "n1") -> RoutesUpdate:
    return RoutesUpdate(head=head, version=version, base=base, add=add, remove=remove, wait_s=2.0)


def content(request: Send) -> RoutesUpdate:
    assert isinstance(request.message, RoutesUpdate)
    return request.message


def started(*names: str) -> Driver:
    """A head with one edge, whose neighbours have accepted its first, empty set."""
    driver = Driver(*names)
    for request in sent(driver.first, RoutesUpdate):
        driver.accept(request)
    for name in names:
        driver.tell(GuestList(head=name, complete=True))
    driver.hello("e1")
    return driver


def subscribed(driver: Driver, pattern: str = "a") -> list[Action]:
    """Subscribe, with edge and bindings done: only neighbours are left."""
    actions = driver.tell(subscribe(pattern=pattern))
    return actions + driver.bind(actions) + driver.ready(sent(actions, OutputPrepare)[0])


def test_the_first_update_is_the_whole_set_even_if_empty() -> None:
    driver = Driver("n1", routes={"e1": frozenset({"a"})})
    assert EnsureLink("n1", LinkKind.HEAD, "amqp://n1") in driver.first
    (request,) = sent(driver.first, RoutesUpdate, "n1")
    assert content(request).base is None
    assert content(request).add == ("a",)  # what a predecessor bound is still offered
    assert content(sent(Driver("n1").first, RoutesUpdate)[0]).add == ()


def test_a_grant_waits_for_every_neighbour() -> None:
    driver = started("n1", "n2")
    actions = subscribed(driver)
    assert not replies(actions, SubscribeReply)
    first, second = sent(actions, RoutesUpdate)
    assert content(first).add == ("a",)
    assert 0 < content(first).wait_s < 4.0
    assert not replies(driver.accept(first), SubscribeReply)
    (reply,) = replies(driver.accept(second, "far"), SubscribeReply)
    assert reply.awaiting == ("far",)


def test_when_time_is_over_the_missing_heads_are_named() -> None:
    driver = started("n1")
    subscribed(driver)
    driver.now += 4.0
    (reply,) = replies(driver.give(TimerFired("wait grant s a")), SubscribeReply)
    assert reply.awaiting == ("n1",)


def test_a_neighbour_that_is_not_there_is_not_waited_for() -> None:
    driver = started("n1")
    (request,) = sent(subscribed(driver), RoutesUpdate)
    assert request.request_id is not None
    (reply,) = replies(driver.give(Undeliverable(request.request_id)), SubscribeReply)
    assert reply.awaiting == ("n1",)
    (reply,) = replies(subscribed(driver, "b"), SubscribeReply)
    assert reply.awaiting == ("n1",)
    # It is asked again with the same update, and heard of as soon as it is back.
    (again,) = sent(driver.give(TimerFired("update n1")), RoutesUpdate)
    assert content(again).version == content(request).version


def test_what_a_neighbour_awaits_is_told_to_later_subscribers_too() -> None:
    driver = started("n1")
    (request,) = sent(subscribed(driver, "a.#"), RoutesUpdate)
    driver.accept(request, "far")
    (reply,) = replies(subscribed(driver, "a.b"), SubscribeReply)
    assert reply.awaiting == ("far",)


def test_one_update_is_under_way_and_the_next_one_takes_all_that_came_meanwhile() -> None:
    driver = started("n1")
    (first,) = sent(subscribed(driver, "a"), RoutesUpdate)
    assert not sent(subscribed(driver, "b"), RoutesUpdate)
    assert not sent(subscribed(driver, "c"), RoutesUpdate)
    (second,) = sent(driver.accept(first), RoutesUpdate)
    assert content(second).base == content(first).version
    assert content(second).add == ("b", "c")


def test_an_unanswered_update_is_sent_again_unchanged() -> None:
    driver = started("n1")
    (first,) = sent(subscribed(driver), RoutesUpdate)
    driver.now += 10.0
    (again,) = sent(driver.give(TimerFired("update n1")), RoutesUpdate)
    assert (content(again).version, content(again).add) == (content(first).version, ("a",))
    assert again.request_id != first.request_id


def test_an_unknown_base_is_answered_with_the_whole_set_above_what_the_other_has() -> None:
    driver = started("n1")
    (first,) = sent(subscribed(driver), RoutesUpdate)
    high = content(first).version + 50
    (whole,) = sent(driver.answer(first, RoutesUnknownBase(head="n1", have=high)), RoutesUpdate)
    assert (content(whole).base, content(whole).add) == (None, ("a",))
    assert content(whole).version > high


def test_a_quiet_neighbour_is_asked_every_period_whether_it_still_has_our_routes() -> None:
    driver = started("n1")
    (probe,) = sent(driver.tick(), RoutesUpdate)
    assert content(probe).version == content(probe).base
    assert (content(probe).add, content(probe).remove) == ((), ())
    (whole,) = sent(driver.answer(probe, RoutesUnknownBase(head="n1", have=None)), RoutesUpdate)
    assert content(whole).base is None


def test_a_silent_neighbour_is_not_alive_until_heard_of() -> None:
    driver = started("n1")

    def alive() -> bool:
        return replies(driver.tell(StatusRequest()), StatusReply)[0].neighbours[0].alive

    assert alive()
    driver.tick(3.5)
    assert not alive()
    driver.tell(update(1, None))
    assert alive()


def test_large_sets_go_in_parts_that_end_with_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "ROUTES_PER_UPDATE_MAX", 2)
    driver = Driver("n1", routes={"e1": frozenset({"a", "b", "c", "d"})})
    (first,) = sent(driver.first, RoutesUpdate)
    assert (content(first).base, content(first).add) == (None, ("a", "b"))
    (second,) = sent(driver.accept(first), RoutesUpdate)
    assert (content(second).base, content(second).add) == (content(first).version, ("c", "d"))
    (third,) = sent(driver.accept(second), RoutesUpdate)
    assert content(third).add == ()
    assert content(third).version > content(second).version
    assert not sent(driver.accept(third), RoutesUpdate)


def test_parts_of_a_whole_set_unbind_nothing_before_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "ROUTES_PER_UPDATE_MAX", 2)
    driver = Driver("n1", routes={"n1": frozenset({"a", "c", "old"})})
    assert not of(driver.tell(update(5, None, "a", "b")), ChangeRoutes)[0].remove
    (change,) = of(driver.tell(update(6, 5, "c")), ChangeRoutes)
    assert (change.add, change.remove) == ((), ("old",))


def test_an_update_is_accepted_once_bound() -> None:
    driver = Driver("n1")
    actions = driver.tell(update(1, None, "a"))
    assert of(actions, ChangeRoutes)[0].target == "n1"
    assert not replies(actions, RoutesAccepted)
    (accepted,) = replies(driver.bind(actions), RoutesAccepted)
    assert (accepted.head, accepted.version, accepted.awaiting) == ("h", 1, ())


def test_an_update_is_passed_on_with_less_time_and_accepted_when_the_heads_behind_have() -> None:
    driver = Driver("n1", "n2")
    for request in sent(driver.first, RoutesUpdate):
        driver.accept(request)
    actions = driver.tell(update(1, None, "a"))
    (onward,) = [request for request in sent(actions, RoutesUpdate) if content(request).add]
    assert onward.to == "n2"
    assert content(onward).wait_s == pytest.approx(1.6)
    assert not replies(driver.bind(actions), RoutesAccepted)
    (accepted,) = replies(driver.accept(onward, "far"), RoutesAccepted)
    assert accepted.awaiting == ("far",)


def test_a_repeated_update_is_answered_again_and_an_old_one_is_not_applied() -> None:
    driver = Driver("n1")
    driver.bind(driver.tell(update(1, None, "a")))
    driver.bind(driver.tell(update(2, 1, "b")))
    again = driver.tell(update(2, 1, "b"))
    assert replies(again, RoutesAccepted)
    assert not of(again, ChangeRoutes)
    old = driver.tell(update(1, None, "a"))
    assert not of(old, ChangeRoutes)
    assert replies(old, RoutesUnknownBase)[0].have == 2


def test_a_change_against_an_unknown_version_is_not_applied() -> None:
    driver = Driver("n1")
    actions = driver.tell(update(9, 8, "a"))
    assert replies(actions, RoutesUnknownBase)[0].have is None
    assert not of(actions, ChangeRoutes)


def test_a_restarted_neighbours_set_replaces_the_old_one() -> None:
    driver = Driver("n1")
    driver.bind(driver.tell(update(1, None, "a", "b")))
    (change,) = of(driver.tell(update(1000, None, "b", "c")), ChangeRoutes)
    assert (change.add, change.remove) == (("c",), ("a",))


def test_a_restarted_neighbour_has_its_routes_before_anybody_is_told_that_it_begins_anew() -> None:
    driver, seen = Driver("n1"), []
    needs = driver.agent._context.routes.needs
    driver.agent._dispatch.on_event(NeighbourAnew, lambda event: seen.append(sorted(needs(event.neighbour))))
    driver.tell(update(1, None, "a"))
    driver.tell(update(2, 1, "b"))
    assert seen == [["a"]]


def test_adopted_routes_of_a_neighbour_stay_until_it_is_heard() -> None:
    driver = Driver("n1", routes={"n1": frozenset({"a", "old"})})
    assert not of(driver.first + driver.tick(), ChangeRoutes)
    (change,) = of(driver.tell(update(1, None, "a")), ChangeRoutes)
    assert (change.add, change.remove) == ((), ("old",))


def test_strangers_and_too_many_patterns_are_refused() -> None:
    driver = Driver("n1", patterns_per_link_max=1)
    (refusal,) = replies(driver.tell(update(1, None, head="stranger")), Refusal)
    assert refusal.reason is RefusalReason.UNKNOWN
    (refusal,) = replies(driver.tell(update(1, None, "a", "b")), Refusal)
    assert "patterns_per_link_max = 1" in refusal.message


def too_many(driver: Driver, request: Send, limit: int = 2) -> list[Action]:
    text = f"more than patterns_per_link_max = {limit}"
    return driver.answer(request, Refusal(reason=RefusalReason.LIMIT, message=text, field="add"))


def refused(driver: Driver) -> list[str]:
    return [decision.detail for decision in driver.agent.story if isinstance(decision, d.RoutesRefused)]


def one_too_many(driver: Driver) -> list[Action]:
    """Three patterns for a neighbour that takes two; what follows the refusal of the third."""
    for pattern in ("a", "b"):
        driver.accept(sent(subscribed(driver, pattern), RoutesUpdate)[0])
    (request,) = sent(subscribed(driver, "c"), RoutesUpdate)
    return too_many(driver, request)


def unsubscribed(driver: Driver, number: int) -> list[Action]:
    (remove,) = sent(driver.tell(UnsubscribeRequest(subscriber="s", number=number)), OutputRemove)
    actions = driver.answer(remove, OutputRemoved(edge="e1", subscriber="s", number=number))
    return actions + driver.bind(actions)


def test_a_neighbour_that_refuses_a_set_for_its_size_gets_the_whole_of_one_that_is_smaller() -> None:
    driver = started("n1")
    assert not sent(one_too_many(driver), RoutesUpdate), "the same again would be refused again"
    (whole,) = sent(unsubscribed(driver, 0), RoutesUpdate)
    assert (content(whole).base, content(whole).add) == (None, ("b", "c"))
    driver.accept(whole)
    (later,) = sent(subscribed(driver, "b.#"), RoutesUpdate)  # which covers b: two are left
    assert (content(later).base, content(later).add, content(later).remove) == (
        content(whole).version,
        ("b.#",),
        ("b",),
    )
    assert replies(driver.accept(later), SubscribeReply)[0].awaiting == ()


def test_nobody_waits_for_a_neighbour_that_takes_no_more_and_it_is_named() -> None:
    driver = started("n1")
    assert replies(one_too_many(driver), SubscribeReply)[0].awaiting == ("n1",)
    actions = subscribed(driver, "d")
    assert not sent(actions, RoutesUpdate)
    assert replies(actions, SubscribeReply)[0].awaiting == ("n1",)


def test_one_that_takes_no_more_hears_of_us_and_its_refusal_is_recorded_once() -> None:
    driver = started("n1")
    one_too_many(driver)
    for _ in range(2):
        (probe,) = sent(driver.tick(), RoutesUpdate)
        assert content(probe).version == content(probe).base
        assert not sent(driver.answer(probe, RoutesUnknownBase(head="n1", have=1)), RoutesUpdate)
    assert refused(driver) == ["more than patterns_per_link_max = 2"]
    # It has started anew, perhaps with another limit.
    (probe,) = sent(driver.tick(), RoutesUpdate)
    (whole,) = sent(driver.answer(probe, RoutesUnknownBase(head="n1", have=None)), RoutesUpdate)
    assert (content(whole).base, content(whole).add) == (None, ("a", "b", "c"))
    driver.accept(whole)
    (more,) = sent(subscribed(driver, "d"), RoutesUpdate)
    too_many(driver, more, 3)
    assert refused(driver) == ["more than patterns_per_link_max = 2", "more than patterns_per_link_max = 3"]


def test_a_set_of_which_a_part_is_refused_is_told_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "ROUTES_PER_UPDATE_MAX", 2)
    driver = Driver("n1", routes={"e1": frozenset({"a", "b", "c", "d", "e"})})
    (second,) = sent(driver.accept(sent(driver.first, RoutesUpdate)[0]), RoutesUpdate)
    assert not sent(too_many(driver, second, 3), RoutesUpdate)
    (whole,) = sent(driver.hello("e1"), RoutesUpdate)  # it has nothing: what was bound for it goes
    assert (content(whole).base, content(whole).add) == (None, ())
    driver.accept(whole)


def test_a_refusal_for_another_reason_is_repeated_and_recorded_once() -> None:
    driver = started("n1")
    (request,) = sent(subscribed(driver), RoutesUpdate)
    for _ in range(3):
        driver.answer(request, Refusal(reason=RefusalReason.NOT_READY, message="starting"))
        (again,) = sent(driver.give(TimerFired("update n1")), RoutesUpdate)
        assert content(again) == content(request)
        request = again
    assert refused(driver) == ["starting"]
