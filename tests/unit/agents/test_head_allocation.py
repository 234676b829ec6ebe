"""Subscribing and unsubscribing at a head."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import Driver, of, replies, sent, subscribe, subscription
from tidegate_agents.kit.subscriptions import registry_digest
from tidegate_agents.machine import (
    ActionFailed,
    ChangeRoutes,
    EnsureLink,
    SetTimer,
    StopRequested,
    TimerFired,
    Undeliverable,
)
from tidegate_protocol.messages import (
    EdgeGoodbye,
    EdgeWelcome,
    OutputPrepare,
    OutputRemove,
    OutputRemoved,
    PublisherGoodbye,
    PublisherHello,
    PublisherWelcome,
    Refusal,
    RefusalReason,
    RegistryPage,
    RegistryRequest,
    StatusReply,
    StatusRequest,
    SubscribeReply,
    UnsubscribeReply,
    UnsubscribeRequest,
)


def granted(driver: Driver, subscriber: str = "s", pattern: str = "a") -> SubscribeReply:
    """Subscribe with everybody answering at once."""
    actions = driver.tell(subscribe(subscriber, pattern))
    later = driver.bind(actions)
    for prepare in sent(actions, OutputPrepare):
        later += driver.ready(prepare)
    (reply,) = replies(later, SubscribeReply)
    return reply


def test_an_edge_is_welcomed_and_linked_once() -> None:
    driver = Driver()
    actions = driver.hello("e1")
    assert replies(actions, EdgeWelcome)
    assert [link.target for link in of(actions, EnsureLink)] == ["e1"]
    assert not of(driver.hello("e1"), EnsureLink)


def test_an_edge_whose_rabbitmq_has_an_alarm_is_the_last_choice() -> None:
    driver = Driver()
    driver.hello("e1", alarms=("memory",))
    driver.hello("e2")
    assert [granted(driver, f"s{n}", f"t{n}").edge for n in range(3)] == ["e2"] * 3
    driver.hello("e2", alarms=("disk",))
    assert granted(driver, "s3", "t3").edge in ("e1", "e2"), "nobody is refused because all are short of something"


def test_a_grant_waits_for_the_edge_and_for_the_binding() -> None:
    driver = Driver()
    driver.hello("e1")
    actions = driver.tell(subscribe())
    (prepare,) = sent(actions, OutputPrepare, "e1")
    (change,) = of(actions, ChangeRoutes)
    assert (change.target, change.add) == ("e1", ("a",))
    assert not replies(driver.ready(prepare), SubscribeReply)
    (reply,) = replies(driver.bind(actions), SubscribeReply)
    assert (reply.edge, reply.url, reply.queue) == ("e1", "amqp://e1:1", "out.s.0")
    assert driver.agent.story[-1].kind == "placement"


def test_a_repeated_request_gets_the_same_answer() -> None:
    driver = Driver()
    driver.hello("e1")
    first = granted(driver)
    actions = driver.tell(subscribe())
    assert not of(actions, ChangeRoutes)
    assert replies(driver.ready(sent(actions, OutputPrepare)[0]), SubscribeReply) == [first]


def test_repetitions_under_way_are_answered_together() -> None:
    driver = Driver()
    driver.hello("e1")
    actions = driver.tell(subscribe())
    assert driver.tell(subscribe()) == []
    driver.bind(actions)
    assert len(replies(driver.ready(sent(actions, OutputPrepare)[0]), SubscribeReply)) == 2


def test_new_terms_keep_edge_and_number() -> None:
    driver = Driver()
    driver.hello("e1")
    driver.hello("e2")
    first = granted(driver)
    actions = driver.tell(subscribe(deadline_us=77))
    (prepare,) = sent(actions, OutputPrepare, first.edge)
    (reply,) = replies(driver.ready(prepare), SubscribeReply)
    assert (reply.subscription.number, reply.subscription.deadline_us) == (0, 77)


def test_a_second_pattern_gets_the_next_number() -> None:
    driver = Driver()
    driver.hello("e1")
    assert [granted(driver, pattern=p).subscription.number for p in ("a", "b", "c")] == [0, 1, 2]


@pytest.mark.parametrize("failure", ["silent", "undeliverable", "refusal"])
def test_an_edge_that_fails_is_passed_over(failure: str) -> None:
    driver = Driver()
    driver.hello("e1")
    driver.hello("e2")
    actions = driver.tell(subscribe())
    (prepare,) = sent(actions, OutputPrepare, "e1")
    if failure == "silent":
        actions = driver.give(TimerFired("prepare s a"))
        assert sent(actions, OutputRemove, "e1")
    elif failure == "undeliverable":
        assert prepare.request_id is not None
        actions = driver.give(Undeliverable(prepare.request_id))
    else:
        actions = driver.answer(prepare, Refusal(reason=RefusalReason.LIMIT, message="full"))
    (again,) = sent(actions, OutputPrepare, "e2")
    changes = {change.target: change for change in of(actions, ChangeRoutes)}
    assert changes["e1"].remove == changes["e2"].add == ("a",)
    driver.bind(actions)
    (reply,) = replies(driver.ready(again), SubscribeReply)
    # Another number than the first edge was asked for: it may have made its queue after all.
    assert (reply.edge, reply.subscription.number) == ("e2", 1)


def test_at_most_three_edges_are_tried() -> None:
    driver = Driver()
    for number in range(5):
        driver.hello(f"e{number}")
    driver.tell(subscribe())
    for _ in range(2):
        assert sent(driver.give(TimerFired("prepare s a")), OutputPrepare)
    (refusal,) = replies(driver.give(TimerFired("prepare s a")), Refusal)
    assert refusal.reason is RefusalReason.NO_EDGE
    assert "did not answer in time" in refusal.message
    assert refusal.retry_after_s


def test_without_an_edge_a_client_is_told_to_ask_again() -> None:
    (refusal,) = replies(Driver().tell(subscribe()), Refusal)
    assert refusal.reason is RefusalReason.NO_EDGE
    assert refusal.retry_after_s


def test_draining_silent_and_departed_edges_get_nothing_new() -> None:
    driver = Driver()
    driver.hello("e1", draining=True)
    driver.hello("e2")
    driver.hello("e3")
    driver.tell(EdgeGoodbye(edge="e2"))
    driver.tick(3.5)
    (refusal,) = replies(driver.tell(subscribe()), Refusal)
    assert refusal.reason is RefusalReason.NO_EDGE
    driver.hello("e1", draining=True)
    driver.hello("e3")
    assert sent(driver.tell(subscribe()), OutputPrepare)[0].to == "e3"


def test_an_existing_subscription_is_granted_while_its_edge_is_away() -> None:
    driver = Driver()
    driver.hello("e1")
    driver.hello("e2")
    first = granted(driver)
    (prepare,) = sent(driver.tell(subscribe()), OutputPrepare, first.edge)
    assert prepare.request_id is not None
    assert replies(driver.give(Undeliverable(prepare.request_id)), SubscribeReply) == [first]


def test_unsubscribing_unbinds_once_the_queue_is_gone_and_may_be_repeated() -> None:
    driver = Driver()
    driver.hello("e1")
    granted(driver)
    request = UnsubscribeRequest(subscriber="s", number=0)
    actions = driver.tell(request)
    (remove,) = sent(actions, OutputRemove, "e1")
    assert not of(actions, ChangeRoutes)
    assert driver.tell(request) == []
    actions = driver.answer(remove, OutputRemoved(edge="e1", subscriber="s", number=0))
    assert len(replies(actions, UnsubscribeReply)) == 2
    assert of(actions, ChangeRoutes)[0].remove == ("a",)
    assert replies(driver.tell(request), UnsubscribeReply)


def test_unsubscribing_from_an_edge_that_is_away_changes_nothing() -> None:
    driver = Driver()
    driver.hello("e1")
    granted(driver)
    (remove,) = sent(driver.tell(UnsubscribeRequest(subscriber="s", number=0)), OutputRemove)
    assert remove.request_id is not None
    actions = driver.give(Undeliverable(remove.request_id))
    assert replies(actions, Refusal)[0].reason is RefusalReason.NOT_READY
    assert not of(actions, ChangeRoutes)


def test_a_removal_is_repeated_a_few_times() -> None:
    driver = Driver()
    driver.hello("e1")
    granted(driver)
    driver.tell(UnsubscribeRequest(subscriber="s", number=0))
    for _ in range(2):
        assert sent(driver.give(TimerFired("remove e1 s 0")), OutputRemove)
    (refusal,) = replies(driver.give(TimerFired("remove e1 s 0")), Refusal)
    assert refusal.reason is RefusalReason.NOT_READY


def test_subscribing_to_what_is_being_removed_is_put_off() -> None:
    driver = Driver()
    driver.hello("e1")
    granted(driver)
    driver.tell(UnsubscribeRequest(subscriber="s", number=0))
    (refusal,) = replies(driver.tell(subscribe()), Refusal)
    assert refusal.reason is RefusalReason.CONFLICT


def test_unsubscribing_from_what_is_being_made_is_put_off() -> None:
    driver = Driver()
    driver.hello("e1")
    driver.tell(subscribe())
    (refusal,) = replies(driver.tell(UnsubscribeRequest(subscriber="s", number=0)), Refusal)
    assert refusal.reason is RefusalReason.CONFLICT


def test_an_expired_queue_ends_the_subscription() -> None:
    driver = Driver()
    driver.hello("e1")
    granted(driver)
    driver.now += 10
    (request,) = sent(driver.hello("e1"), RegistryRequest, "e1")
    actions = driver.answer(request, RegistryPage(edge="e1", digest=registry_digest(())))
    assert of(actions, ChangeRoutes)[0].remove == ("a",)


def test_a_binding_that_fails_is_refused_and_tried_again() -> None:
    driver = Driver()
    driver.hello("e1")
    actions = driver.tell(subscribe())
    (change,) = of(actions, ChangeRoutes)
    actions = driver.give(ActionFailed(change, "resource error"))
    (refusal,) = replies(actions, Refusal)
    assert refusal.reason is RefusalReason.FAILED
    assert "resource error" in refusal.message
    assert sent(actions, OutputRemove, "e1")
    (retried,) = of(driver.give(TimerFired("rebind 2")), ChangeRoutes)
    assert retried.add == ()  # nobody needs it any more


@pytest.mark.parametrize(
    ("limit", "named"),
    [
        ({"subscriptions_per_subscriber_max": 1}, "subscriptions_per_subscriber_max"),
        ({"subscriptions_max": 1}, "subscriptions_max"),
    ],
)
def test_a_limit_refuses_and_is_named(limit: dict[str, int], named: str) -> None:
    driver = Driver(**limit)  # type: ignore[arg-type]
    driver.hello("e1")
    granted(driver)
    (refusal,) = replies(driver.tell(subscribe(pattern="b")), Refusal)
    assert refusal.reason is RefusalReason.LIMIT
    assert f"{named} = 1" in refusal.message


def test_pending_allocations_edges_publishers_and_patterns_are_limited() -> None:
    driver = Driver(pending_max=1, edges_max=1, publishers_max=1, patterns_per_link_max=1)
    driver.hello("e1")
    assert "edges_max = 1" in replies(driver.hello("e2"), Refusal)[0].message
    driver.tell(PublisherHello(publisher="p~1"))
    assert "publishers_max = 1" in replies(driver.tell(PublisherHello(publisher="q~1")), Refusal)[0].message
    actions = driver.tell(subscribe())
    assert "pending_max = 1" in replies(driver.tell(subscribe("t")), Refusal)[0].message
    driver.bind(actions)
    driver.ready(sent(actions, OutputPrepare)[0])
    assert "patterns_per_link_max = 1" in replies(driver.tell(subscribe("t", "b")), Refusal)[0].message


def test_a_part_that_fails_in_a_tick_does_not_keep_the_others_from_theirs() -> None:
    driver = Driver(publisher_period_s=2.0)
    driver.tell(PublisherHello(publisher="p~1"))

    def fail() -> None:
        raise ZeroDivisionError

    def fail_too() -> None:
        raise KeyError("k")

    driver.agent._dispatch.ticks[:0] = [fail, fail_too]
    with pytest.raises(ZeroDivisionError) as caught:
        driver.tick(6.0)
    assert "KeyError('k')" in caught.value.__notes__[0], "nothing is lost"
    actions = driver.tell(StatusRequest())
    assert replies(actions, StatusReply)[0].publishers == 0, "it was forgotten in that tick"
    assert [timer.name for timer in of(actions, SetTimer)] == ["tick"], "and there will be another"


def test_publishers_are_welcomed_counted_and_forgotten() -> None:
    driver = Driver(publisher_period_s=2.0)
    (welcome,) = replies(driver.tell(PublisherHello(publisher="p~1", topics=("a",))), PublisherWelcome)
    assert welcome.period_s == 2.0
    driver.tell(PublisherHello(publisher="q~1"))

    def publishers() -> int:
        return replies(driver.tell(StatusRequest()), StatusReply)[0].publishers

    assert publishers() == 2
    driver.tell(PublisherGoodbye(publisher="q~1"))
    assert publishers() == 1
    driver.tick(6.0)
    assert publishers() == 0


def test_wrong_cluster_and_a_heads_name_are_refused() -> None:
    driver = Driver("n1")
    assert replies(driver.hello("e1", cluster="other"), Refusal)[0].field == "cluster"
    assert replies(driver.hello("n1"), Refusal)[0].reason is RefusalReason.CONFLICT


def test_status_tells_what_is_there() -> None:
    driver = Driver()
    driver.hello("e1")
    granted(driver)
    driver.now += 2.0
    (status,) = replies(driver.tell(StatusRequest()), StatusReply)
    (edge,) = status.edges
    assert (edge.edge, edge.alive, edge.subscriptions, edge.seen_ago_s) == ("e1", True, 1, 2.0)


def test_a_message_that_is_not_for_a_head_is_refused_and_counted() -> None:
    driver = Driver()
    (refusal,) = replies(driver.tell(OutputPrepare(subscription=subscription())), Refusal)
    assert refusal.reason is RefusalReason.INVALID
    assert driver.agent.ignored == 1


def test_stopping_answers_whoever_waits() -> None:
    driver = Driver()
    driver.hello("e1")
    driver.tell(subscribe())
    assert replies(driver.give(StopRequested()), Refusal)[0].reason is RefusalReason.NOT_READY
    assert replies(driver.tell(subscribe()), Refusal)[0].reason is RefusalReason.NOT_READY
