"""Emptying an edge, and using it again."""

from __future__ import annotations

from collections import Counter

from tests.support.agents_driver import sent
from tests.support.head_cluster import Cluster
from tidegate_agents.config import CLIENT_ATTEMPTS_MAX
from tidegate_agents.head.moving.drains import LEAVING_PER_PERIOD, SETTLED_PERIODS
from tidegate_agents.machine import Send, SetTimer, Undeliverable
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.drains import DrainNotice, DrainReply, DrainRequest
from tidegate_protocol.balancing.migrations import MigrateCancel, MigrateOrder, MigrationStage
from tidegate_protocol.messages import Refusal, RefusalReason, UnsubscribeRequest

MOVED, STAYED = MigrationStage.MOVED, MigrationStage.STAYED


def drain(cluster: Cluster, edge: str = "e1", draining: bool = True) -> DrainReply:
    cluster.ask(DrainRequest(edge=edge, draining=draining))
    return next(reply for reply in reversed(cluster.replies) if isinstance(reply, DrainReply))


def leave(cluster: Cluster, count: int, edge: str = "e1") -> None:
    """Let the next `count` of the line begin to leave, each when it is due."""
    for _ in range(count):
        cluster.fire(f"drain {edge}", 1.0 / LEAVING_PER_PERIOD)


def test_everybody_leaves_a_drained_edge_together_by_pattern() -> None:
    cluster = Cluster("e1", "e2", "e3")
    for name in ("s", "t"):
        for pattern in ("a", "b"):
            cluster.grant(name, pattern)
    on_e1 = len(cluster.outputs["e1"])
    assert on_e1 > 0
    assert drain(cluster).left == on_e1
    leave(cluster, on_e1 - 1)
    orders = cluster.ordered(MigrateOrder)
    assert len(orders) == on_e1
    assert len({(order.pattern, order.edge) for order in orders}) == len({order.pattern for order in orders})
    for order in orders:
        cluster.report(order, MOVED)
    assert cluster.outputs["e1"] == {}
    assert drain(cluster) == DrainReply(edge="e1", draining=True, left=0)
    assert len(cluster.decisions(d.Drained)) == 1


def test_nothing_new_comes_to_an_edge_that_does_not_know_yet_that_it_is_drained() -> None:
    cluster = Cluster("e1", "e2")
    drain(cluster)
    cluster.greet("e1")  # says that it is not draining
    assert [cluster.grant(name, f"p{name}").edge for name in ("s", "t", "u")] == ["e2"] * 3


def test_an_edge_is_told_until_its_hello_says_so() -> None:
    cluster = Cluster("e1", "e2")
    drain(cluster)
    assert sent(cluster.period(), DrainNotice) == [Send("e1", DrainNotice(draining=True))]
    cluster.now += 1.0
    cluster.greet("e1", draining=True)
    cluster.greet("e2")
    assert sent(cluster.fire("tick"), DrainNotice) == []
    actions = cluster.ask(DrainRequest(edge="e1", draining=False))
    assert sent(actions, DrainNotice) == [Send("e1", DrainNotice(draining=False))]
    cluster.greet("e1", draining=True)  # on its way since before
    assert sent(cluster.fire("tick"), DrainNotice) == [Send("e1", DrainNotice(draining=False))]
    assert {cluster.grant("s", pattern).edge for pattern in ("a", "b")} == {"e1", "e2"}
    assert sent(cluster.period(), DrainNotice) == []


def test_a_head_that_restarts_goes_on_draining() -> None:
    first = Cluster("e1", "e2")
    first.grant("s")
    cluster = Cluster("e1", "e2", restarted=True)
    cluster.outputs = first.outputs
    cluster.greet("e2")
    cluster.greet("e1", draining=True)
    cluster.fire("tick")
    (order,) = cluster.ordered(MigrateOrder)
    assert (order.edge_from, order.edge) == ("e1", "e2")


def test_what_can_not_leave_is_tried_again_later() -> None:
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    drain(cluster)
    cluster.report(cluster.ordered(MigrateOrder)[-1], STAYED)
    cluster.period()
    assert len(cluster.ordered(MigrateOrder)) == 1
    cluster.period(5.0)
    assert len(cluster.ordered(MigrateOrder)) == 2
    assert drain(cluster).left == 1


def leave_for(cluster: Cluster, seconds: int) -> None:
    """Time passes: clients whose names begin with `away` are not there, all others move at once."""
    answered = 0
    for _ in range(seconds):
        cluster.period()
        leave(cluster, LEAVING_PER_PERIOD)
        for order in cluster.orders[answered:]:
            if order.request_id is not None and order.client.startswith("away"):
                cluster.run(Undeliverable(order.request_id))
            elif isinstance(order.message, MigrateOrder):
                cluster.report(order.message, MOVED)
        answered = len(cluster.orders)
        for migration in sorted({order.migration for order in cluster.ordered(MigrateOrder)}):
            if migration in cluster.agent._migrations:
                cluster.fire(f"migration {migration}")


def test_clients_that_are_away_do_not_keep_others_from_leaving() -> None:
    """Twenty of them took turns: each kept one of ten places for ten seconds, was left alone for five, and was first
    again.
    """
    cluster = Cluster("e1")
    for number in range(3 * LEAVING_PER_PERIOD):
        cluster.grant(f"away-{number}", "a")
    for number in range(LEAVING_PER_PERIOD):
        cluster.grant(f"here-{number}", "b")
    cluster.outputs["e2"] = {}
    cluster.greet("e2")
    drain(cluster)
    leave_for(cluster, 60)
    assert {subscriber[:4] for subscriber, _ in cluster.outputs["e1"]} == {"away"}
    tried = Counter(order.subscriber for order in cluster.ordered(MigrateOrder) if order.subscriber.startswith("away"))
    assert len(tried) == 3 * LEAVING_PER_PERIOD
    assert max(tried.values()) - min(tried.values()) <= CLIENT_ATTEMPTS_MAX, "they take turns"


def test_without_another_edge_everything_stays() -> None:
    cluster = Cluster("e1")
    cluster.grant("s")
    assert drain(cluster).left == 1
    assert len(cluster.decisions(d.DrainWaits)) == 1
    assert cluster.ordered(MigrateOrder) == []


def test_subscriptions_leave_one_after_another() -> None:
    cluster = Cluster("e1", "e2")
    for number in range(LEAVING_PER_PERIOD + 10):
        cluster.grant(f"s{number}")
    due = [action for action in cluster.ask(DrainRequest(edge="e1", draining=True)) if isinstance(action, SetTimer)]
    assert SetTimer("drain e1", 1.0 / LEAVING_PER_PERIOD) in due
    assert len(cluster.ordered(MigrateOrder)) == 1
    leave(cluster, 1)
    assert len(cluster.ordered(MigrateOrder)) == 2
    drain(cluster)  # asking how far it is makes nobody leave sooner
    assert len(cluster.ordered(MigrateOrder)) == 2
    leave(cluster, LEAVING_PER_PERIOD + 5)
    assert len(cluster.ordered(MigrateOrder)) == LEAVING_PER_PERIOD
    cluster.period()  # as many are under way as may be
    leave(cluster, 5)
    assert len(cluster.ordered(MigrateOrder)) == LEAVING_PER_PERIOD
    for order in list(cluster.ordered(MigrateOrder)):
        cluster.report(order, MOVED)
    cluster.period()
    leave(cluster, 10)
    assert len(cluster.ordered(MigrateOrder)) == LEAVING_PER_PERIOD + 10


def test_nobody_leaves_the_line_of_an_edge_that_is_used_again() -> None:
    cluster = Cluster("e1", "e2")
    for name in ("s", "t", "u"):
        cluster.grant(name)
    drain(cluster)
    drain(cluster, draining=False)
    leave(cluster, 3)
    assert len(cluster.ordered(MigrateOrder)) == 1


def test_who_unsubscribes_in_the_line_is_passed_over() -> None:
    cluster = Cluster("e1", "e2")
    for name in ("s", "t", "u"):
        cluster.grant(name)
    drain(cluster)
    cluster.ask(UnsubscribeRequest(subscriber="t", number=0, pattern="a"))
    leave(cluster, 2)
    assert [order.subscriber for order in cluster.ordered(MigrateOrder)] == ["s", "u"]


def test_using_an_edge_again_calls_back_those_who_were_leaving() -> None:
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    drain(cluster)
    assert drain(cluster, draining=False) == DrainReply(edge="e1", draining=False, left=1)
    assert len(cluster.ordered(MigrateCancel)) == 1
    cluster.report(cluster.ordered(MigrateOrder)[0], STAYED)
    assert cluster.places("s") == [("e1", 0)]
    cluster.period(10.0)
    assert len(cluster.ordered(MigrateOrder)) == 1


def test_an_edge_that_nobody_knows_is_named() -> None:
    cluster = Cluster("e1", "e2")
    cluster.ask(DrainRequest(edge="e9"))
    assert cluster.replies[-1] == Refusal(
        reason=RefusalReason.UNKNOWN, message="no edge e9 has been heard of; known: e1, e2", field="edge"
    )


def test_a_notice_that_comes_late_does_not_drain_an_edge_that_is_used_again() -> None:
    cluster = Cluster("e1")
    drain(cluster)
    drain(cluster, draining=False)
    for _ in range(3):
        assert sent(cluster.period(), DrainNotice) == []
    cluster.now += 1.0
    cluster.greet("e1", draining=True)  # only now the first notice has arrived
    assert sent(cluster.fire("tick"), DrainNotice) == [Send("e1", DrainNotice(draining=False))]
    assert cluster.grant("s", "a").edge == "e1"


def test_an_edge_that_has_been_in_use_for_long_may_be_drained_on_its_own_account() -> None:
    cluster = Cluster("e1")
    drain(cluster)
    drain(cluster, draining=False)
    for _ in range(SETTLED_PERIODS + 1):
        cluster.period()
    cluster.greet("e1", draining=True)
    assert sent(cluster.fire("tick"), DrainNotice) == []


def test_nobody_leaves_for_an_edge_whose_rabbitmq_has_an_alarm_while_there_is_another() -> None:
    cluster = Cluster("e1", "e2", "e3")
    assert cluster.grant("s").edge == "e1"
    edges = cluster.agent._context.registry.edges
    edges["e2"].alarms = ("memory",)
    drain(cluster)
    assert [order.edge for order in cluster.ordered(MigrateOrder)] == ["e3"]
