"""Subscriptions in two places, and what waits on an edge that was away."""

from __future__ import annotations

import itertools

import pytest

from tests.support.agents_driver import subscribe
from tests.support.head_cluster import Cluster
from tests.support.moving_cluster import moving, restarted
from tidegate_agents.config import ATTEMPTS_MAX, CLIENT_ATTEMPTS_MAX
from tidegate_agents.head.places import doubts as places
from tidegate_agents.head.places.doubts import ORDERS_MAX, PAUSE_MAX_S
from tidegate_agents.head.places.ledger import ABANDONED
from tidegate_agents.machine import ActionFailed, ReplyReceived, Undeliverable
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.markers import MarkerBind
from tidegate_protocol.balancing.migrations import MigrationAck, MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import CollectOrder, PlaceReply, PlaceRequest
from tidegate_protocol.balancing.sessions import PlannedMove
from tidegate_protocol.decisions import Rejected, Rejection
from tidegate_protocol.messages import (
    ControlMessage,
    OutputPrepare,
    OutputRemove,
    Refusal,
    RefusalReason,
    SubscribeReply,
    UnsubscribeReply,
    UnsubscribeRequest,
)
from tidegate_protocol.names import marker_key

STAYED, ORDERED, UNKNOWN = MigrationStage.STAYED, MigrationStage.ORDERED, MigrationStage.UNKNOWN


def tell_place(cluster: Cluster, edge: str | None, number: int | None, migration: str | None = None) -> None:
    request = cluster.last_order(PlaceRequest)
    assert request.request_id is not None
    reply = PlaceReply(subscriber="s", pattern="a", edge=edge, number=number, migration=migration)
    cluster.run(ReplyReceived(request.request_id, reply))


@pytest.mark.parametrize(("used", "other"), [(("e1", 0), ("e2", 1)), (("e2", 1), ("e1", 0))])
def test_a_client_found_twice_is_asked_and_the_other_place_collected_before_it_goes(
    used: tuple[str, int], other: tuple[str, int]
) -> None:
    cluster = restarted()
    cluster.period()
    assert cluster.ordered(PlaceRequest) == [PlaceRequest(subscriber="s", pattern="a")]
    tell_place(cluster, *used)
    cluster.period()
    (order,) = cluster.ordered(CollectOrder)
    assert (order.edge, order.number, order.heads) == (*other, ("h",))
    assert [marker.targets for marker in cluster.markers] == [(other[0],)]
    assert cluster.removed == []
    cluster.report(order, STAYED)
    assert cluster.replies[-1] == MigrationAck(migration=order.migration)
    assert cluster.places("s") == [used]
    assert cluster.grant("s").edge == used[0]


@pytest.mark.parametrize("answer", ["silence", "undeliverable", "nowhere", "migrating", "refusal", "elsewhere"])
def test_an_answer_that_settles_nothing_leads_to_another_question_later(answer: str) -> None:
    cluster = restarted()
    asked = []
    for _ in range(60):
        cluster.period()
        if len(cluster.ordered(PlaceRequest)) == len(asked):
            continue
        asked.append(cluster.now)
        request_id = cluster.last_order(PlaceRequest).request_id
        assert request_id is not None
        if answer == "silence":
            cluster.fire("place s a")
        elif answer == "undeliverable":
            cluster.run(Undeliverable(request_id))
        elif answer == "refusal":
            cluster.run(ReplyReceived(request_id, Refusal(reason=RefusalReason.UNKNOWN, message="who?")))
        elif answer == "migrating":
            tell_place(cluster, "e1", 0, "h~6~m1")
        elif answer == "elsewhere":
            tell_place(cluster, "e9", 0)
        else:
            tell_place(cluster, None, None)
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert len(pauses) >= 3
    assert pauses == sorted(pauses)
    assert pauses[-1] > pauses[0]
    assert cluster.removed == []
    assert cluster.ordered(CollectOrder) == []


def test_nobody_is_asked_about_what_a_migration_explains() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    for _ in range(5):
        cluster.period()
    assert cluster.ordered(PlaceRequest) == []


# Edges that were away


def unreachable(cluster: Cluster, edge: str) -> ControlMessage:
    cluster.ask(subscribe("s").model_copy(update={"unreachable": edge}))
    return cluster.replies[-1]


def away(cluster: Cluster, *edges: str) -> None:
    for _ in range(10):
        cluster.period(1.0, *edges)


def test_a_client_keeps_its_place_while_its_edge_is_silent_for_a_short_time() -> None:
    cluster = Cluster("e1", "e2")
    assert cluster.grant("s").edge == "e1"
    for _ in range(5):
        cluster.period(1.0, "e1")
    cluster.mute = set()
    reply = unreachable(cluster, "e1")
    assert isinstance(reply, SubscribeReply)
    assert reply.edge == "e1"


def test_a_client_that_can_reach_its_silent_edge_stays_there() -> None:
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    away(cluster, "e1")
    assert cluster.grant("s").edge == "e1"


def abandoned() -> Cluster:
    """A cluster whose edge e1 is away, and whose client lives on e2 by now."""
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    away(cluster, "e1")
    reply = unreachable(cluster, "e1")
    assert isinstance(reply, SubscribeReply)
    assert (reply.edge, reply.subscription.number) == ("e2", 1)
    return cluster


def test_a_client_of_an_edge_that_is_away_gets_another_place_and_fetches_the_rest_later() -> None:
    cluster = abandoned()
    assert cluster.grant("s").edge == "e2", "asked again it is the same"
    cluster.period(1.0, "e1")
    assert cluster.ordered(CollectOrder) == []
    assert cluster.ordered(PlaceRequest) == [], "there is no doubt where it is"
    cluster.period()
    (order,) = cluster.ordered(CollectOrder)
    assert (order.edge, order.number, order.url) == ("e1", 0, "amqp://e1:1")
    cluster.report(order, ORDERED, cluster.last_order(CollectOrder))
    assert cluster.removed == []
    cluster.report(order, STAYED)
    assert cluster.places("s") == [("e2", 1)]


def test_without_another_edge_a_client_is_told_to_ask_again_and_keeps_its_place() -> None:
    cluster = Cluster("e1")
    cluster.grant("s")
    away(cluster, "e1")
    assert isinstance(unreachable(cluster, "e1"), Refusal)
    cluster.period()
    assert cluster.grant("s").subscription.number == 0
    assert cluster.ordered(CollectOrder) == []


def collections_that_fail(cluster: Cluster, failure: str) -> list[float]:
    """Let an hour pass in which all orders fail like that; returns when collections began."""
    if failure == "bind":
        cluster.mute = {MarkerBind}
    began: dict[str, float] = {}
    for _ in range(3_600 // 5):
        cluster.period(5.0)
        for name in cluster.agent._doubts._collections:
            began.setdefault(name, cluster.now)
        for name in list(cluster.agent._doubts._collections):
            fail(cluster, name, failure)
    assert cluster.removed == []
    assert cluster.places("s") == [("e1", 0), ("e2", 1)]
    return list(began.values())


def fail(cluster: Cluster, collection: str, failure: str) -> None:
    if failure == "bind":
        for _ in range(ATTEMPTS_MAX):
            cluster.fire(f"marker {collection}")
        return
    order, request = cluster.ordered(CollectOrder)[-1], cluster.last_order(CollectOrder)
    assert request.request_id is not None
    if failure == "undeliverable":
        cluster.run(Undeliverable(request.request_id))
    elif failure.startswith("refusal "):
        refusal = Refusal(reason=RefusalReason(failure.removeprefix("refusal ")), message="not this one")
        cluster.run(ReplyReceived(request.request_id, refusal))
    elif failure == "unknown":
        cluster.ask(report_unknown(order))
    elif failure == "marker":
        cluster.run(ActionFailed(cluster.markers[-1], "no"))
    elif failure == "slow":
        cluster.report(order, ORDERED, request)
        cluster.fire(f"collect {order.migration}")
    else:
        for _ in range(CLIENT_ATTEMPTS_MAX):
            cluster.fire(f"collect {order.migration}")


@pytest.mark.parametrize("failure", ["slow", "unknown", "refusal unknown"])
def test_nothing_is_removed_uncollected_and_a_client_may_fail_so_often(failure: str) -> None:
    cluster = abandoned()
    assert len(collections_that_fail(cluster, failure)) == ORDERS_MAX


@pytest.mark.parametrize(
    "failure", ["silence", "undeliverable", "refusal conflict", "refusal not-ready", "bind", "marker"]
)
def test_a_place_is_not_given_up_while_its_client_can_not_collect_it_but_seldom_tried(failure: str) -> None:
    """Its client was switched off for ten minutes, or busy with what another edge had kept: nobody told it ever again
    to collect, and it lost what waited when RabbitMQ expired the queue.
    """
    cluster = abandoned()
    began = collections_that_fail(cluster, failure)
    assert len(began) > ORDERS_MAX
    pauses = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MAX_S
    assert cluster.now - began[-1] <= PAUSE_MAX_S


def test_a_client_that_asks_for_its_place_is_told_soon_to_collect_what_it_failed_at() -> None:
    cluster = abandoned()
    assert len(collections_that_fail(cluster, "slow")) == ORDERS_MAX
    retry_s = cluster.agent._context.config.balancing.retry_s
    began = []
    for _ in range(30):  # it starts over and over: that makes nothing happen more often than after a failure
        assert cluster.grant("s").edge == "e2"
        cluster.period()
        for name in list(cluster.agent._doubts._collections):
            began.append(cluster.now)
            fail(cluster, name, "slow")
    assert {later - earlier for earlier, later in itertools.pairwise(began)} == {retry_s}
    cluster.period(retry_s)
    cluster.report(cluster.ordered(CollectOrder)[-1], STAYED)
    assert cluster.places("s") == [("e2", 1)]


def test_clients_that_never_answer_keep_nobody_from_collecting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "COLLECTIONS_MAX", 1)
    cluster = Cluster("e1", "e2")
    names = ("mute-1", "mute-2", "mute-3", "there")
    assert {cluster.grant(name).edge for name in names} == {"e1"}
    away(cluster, "e1")
    for name in names:
        cluster.ask(subscribe(name).model_copy(update={"unreachable": "e1"}))
    collecting: list[str] = []
    for _ in range(len(names)):
        cluster.period(10.0)
        order = cluster.ordered(CollectOrder)[-1]
        collecting.append(order.subscriber)
        for _ in range(CLIENT_ATTEMPTS_MAX):
            cluster.fire(f"collect {order.migration}")
    assert collecting == list(names)


def report_unknown(order: CollectOrder) -> ControlMessage:
    return MigrationReport(
        migration=order.migration, subscriber="s", stage=UNKNOWN, pattern="a", edge="e2", number=1, reason="too slow"
    )


def test_a_client_that_lives_where_it_was_to_collect_from_is_believed() -> None:
    cluster = abandoned()
    cluster.period()
    order = cluster.ordered(CollectOrder)[-1]
    cluster.report(order, UNKNOWN)
    assert cluster.grant("s").edge == "e1"
    assert cluster.removed == []
    cluster.period()
    assert (cluster.ordered(CollectOrder)[-1].edge, cluster.places("s")) == ("e2", [("e1", 0), ("e2", 1)])


def test_unsubscribing_removes_abandoned_places_too_even_of_an_edge_that_is_away() -> None:
    cluster = abandoned()
    cluster.mute = {OutputRemove}
    cluster.ask(UnsubscribeRequest(subscriber="s", number=1))
    for _ in range(3):
        cluster.fire("remove e1 s 0", 2.0)
    cluster.mute = set()
    cluster.fire("remove e2 s 1", 2.0)
    cluster.period()
    assert cluster.places("s") == []
    assert cluster.ordered(CollectOrder) == []


def test_unsubscribing_removes_what_was_made_under_another_number_and_forgotten() -> None:
    """The place meant was gone, the answer lost, and the head restarted: what a failed move had left was not found."""
    first = Cluster("e1", "e2")
    first.grant("s")
    cluster = Cluster("e1", "e2", restarted=True)
    ((place, output),) = first.outputs["e1"].items()
    cluster.outputs["e2"] = {(place[0], 1): output.model_copy(update={"number": 1})}
    cluster.greet("e1")
    cluster.greet("e2")
    assert cluster.places("s") == [("e2", 1)]
    cluster.ask(UnsubscribeRequest(subscriber="s", number=0))
    assert cluster.places("s") == [("e2", 1)], "without a pattern nobody knows what is meant"
    cluster.ask(UnsubscribeRequest(subscriber="s", number=0, pattern="a"))
    assert cluster.places("s") == []
    assert isinstance(cluster.replies[-1], UnsubscribeReply)


def test_what_an_edge_lists_while_its_client_is_leaving_goes_too() -> None:
    """The head had just started and knew one of two places; the other was read before that was gone, and stayed."""
    first = Cluster("e1", "e2")
    first.grant("s")
    cluster = Cluster("e1", "e2", restarted=True)
    ((place, output),) = first.outputs["e1"].items()
    cluster.outputs = {"e1": {place: output}, "e2": {(place[0], 1): output.model_copy(update={"number": 1})}}
    cluster.now += 10.0
    cluster.greet("e2")
    cluster.mute = {OutputRemove}
    cluster.ask(UnsubscribeRequest(subscriber="s", number=1, pattern="a"))
    cluster.greet("e1")
    cluster.mute = set()
    cluster.fire("remove e2 s 1", 2.0)
    cluster.fire("remove e1 s 0")
    assert cluster.places("s") == []
    assert isinstance(cluster.replies[-1], UnsubscribeReply)


def test_an_old_request_to_unsubscribe_does_not_end_the_subscription_made_since() -> None:
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    cluster.ask(UnsubscribeRequest(subscriber="s", number=0, pattern="a"))
    again = cluster.grant("s").subscription.number
    assert again != 0
    cluster.ask(UnsubscribeRequest(subscriber="s", number=0, pattern="a"))
    assert [number for _, number in cluster.places("s")] == [again]


def test_unsubscribing_while_another_place_is_being_made_waits_for_that() -> None:
    """The new place was discarded before it was granted, and then granted all the same."""
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    away(cluster, "e1")
    cluster.mute = {OutputPrepare}
    cluster.ask(subscribe("s").model_copy(update={"unreachable": "e1"}))
    cluster.ask(UnsubscribeRequest(subscriber="s", number=0))
    refusal = cluster.replies[-1]
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.retry_after_s) == (RefusalReason.CONFLICT, 1.0)
    cluster.mute = set()
    reply = unreachable(cluster, "e1")
    while not isinstance(reply, SubscribeReply):
        cluster.fire("prepare s a", 2.0)
        cluster.period(1.0, "e1")
        reply = unreachable(cluster, "e1")
    cluster.ask(UnsubscribeRequest(subscriber="s", number=0))
    cluster.period()
    assert cluster.places("s") == []


def test_a_place_found_on_an_edge_that_nobody_expected_is_collected_not_removed() -> None:
    """The head was restarted and has granted another place before the edge was heard of."""
    first = Cluster("e1")
    first.grant("s")
    cluster = Cluster("e2")
    cluster.now += 10.0
    cluster.greet("e2")
    assert cluster.grant("s").edge == "e2"
    cluster.outputs["e1"] = first.outputs["e1"]
    cluster.greet("e1")
    cluster.period()
    (order,) = cluster.ordered(CollectOrder)
    assert order.edge == "e1"
    assert cluster.removed == []


def test_nobody_goes_to_another_cluster_before_it_has_collected() -> None:
    """Only its own head can have a client collect; one that belongs to another head would never be told."""
    cluster = abandoned()
    ((edge, number),) = [place for place in cluster.places("s") if place[0] != "e1"]
    context, migrations = cluster.agent._context, cluster.agent._migrations
    subscription = context.registry.get(edge, ("s", number))
    assert subscription is not None

    def move(target_head: str) -> str | Rejected:
        load = PlannedMove(subscriber="s", number=number, target="e9")
        return migrations.start("x", edge, subscription, "e9", target_head, load, lambda move, moved, why: None)

    assert move("another") == Rejected(f"out.s.{number}", Rejection.UNCOLLECTED, "e9", other="e1")
    (left,) = context.ledger.all_in(ABANDONED)
    context.ledger.withdraw(left)
    assert isinstance(move("another"), str)


def test_a_client_that_collects_slowly_may_go_on() -> None:
    cluster = abandoned()
    for _ in range(3 * ORDERS_MAX):
        cluster.period(6.0)
        order = cluster.ordered(CollectOrder)[-1]
        cluster.report(order, MigrationStage.ATTACHED)
        cluster.fire(f"collect {order.migration}")
    assert len({order.migration for order in cluster.ordered(CollectOrder)}) == 3 * ORDERS_MAX


def test_a_client_that_starts_anew_is_told_again_what_to_collect() -> None:
    """It had begun before it crashed: nobody told it again until the time for the first attempt was over."""
    cluster = abandoned()
    cluster.period()
    order = cluster.ordered(CollectOrder)[-1]
    cluster.report(order, MigrationStage.ATTACHED)
    cluster.fire(f"collect {order.migration}")
    assert cluster.decisions(d.CollectionEnded) != []
    cluster = abandoned()
    cluster.period()
    order = cluster.ordered(CollectOrder)[-1]
    cluster.report(order, MigrationStage.ATTACHED)
    cluster.grant("s")
    cluster.fire(f"collect {order.migration}", 2.0)
    assert cluster.ordered(CollectOrder) == [order, order]
    cluster.period()
    assert len(cluster.markers) == 2, "the first one may have gone through before"
    assert cluster.decisions(d.CollectionEnded) == []
    cluster.report(order, STAYED)
    assert cluster.places("s") == [("e2", 1)]


def test_a_client_that_waits_for_a_marker_gets_another_one() -> None:
    """A limited queue drops what is oldest, markers too: the client waited in vain until the time was over."""
    cluster = abandoned()
    cluster.period()
    order = cluster.ordered(CollectOrder)[-1]
    timeout_s = cluster.agent._context.config.balancing.migration_timeout_s
    cluster.period(timeout_s)
    assert len(cluster.markers) == 1, "it has not come yet"
    cluster.report(order, MigrationStage.ATTACHED)
    cluster.mute = {MarkerBind}
    cluster.period()
    for _ in range(3):
        cluster.fire(f"marker {order.migration}", 2.0)
    assert cluster.decisions(d.CollectionEnded) == []
    cluster.mute = set()
    cluster.period(timeout_s)
    assert [marker.key for marker in cluster.markers] == [marker_key(order.migration, "h")] * 2
    cluster.period(timeout_s - 1.0)
    assert len(cluster.markers) == 2
    cluster.report(order, STAYED)
    assert cluster.places("s") == [("e2", 1)]
    cluster.period(timeout_s)
    assert len(cluster.markers) == 2
    assert len({one.migration for one in cluster.ordered(CollectOrder)}) == 1
