"""What a head believes of clients that it sent to another cluster."""

from __future__ import annotations

import pytest

from tests.support.head_cluster import Cluster, move
from tidegate_agents.config import CLIENT_ATTEMPTS_MAX
from tidegate_agents.head.moving.steps import Move, NewPlace, Progress
from tidegate_protocol.balancing.migrations import MigrateCancel, MigrateOrder, MigrationAck, MigrationStage
from tidegate_protocol.names import output_queue

ATTACHED, MOVED, STAYED = MigrationStage.ATTACHED, MigrationStage.MOVED, MigrationStage.STAYED


class OtherCluster:
    """Makes every place at once, at edge f1 of head n, and hears how it ended."""

    def __init__(self) -> None:
        self.ended: list[bool] = []

    def prepare(self, move: Move, progress: Progress) -> None:
        subscriber = move.subscription.subscriber
        place = NewPlace("f1", 4, "amqp://f1:1", output_queue(subscriber, 4), "n", ("h", "n"), "amqp://n:1")
        progress.prepared(move.id, place)

    def publish_markers(self, move: Move, place: NewPlace) -> None:
        pass

    def end(self, move: Move, moved: bool) -> None:
        self.ended.append(moved)


def leaving() -> tuple[Cluster, OtherCluster, MigrateOrder]:
    """A client that was ordered to leave for another cluster, and has attached there."""
    cluster = Cluster("e1")
    cluster.grant("s")
    migrations = cluster.agent._migrations
    other = OtherCluster()
    migrations._abroad = other
    subscription = cluster.agent._context.registry.get("e1", ("s", 0))
    assert subscription is not None
    load = move("s", target="f1")
    assert migrations.start("session", "e1", subscription, "f1", "n", load, lambda move, moved: None)
    cluster.period(10.0)  # by now it has been there for a while
    (order,) = cluster.ordered(MigrateOrder)
    assert (order.edge_from, order.edge, order.head) == ("e1", "f1", "n")
    cluster.report(order, ATTACHED)
    cluster.replies.clear()
    return cluster, other, order


def test_a_client_that_leaves_in_time_is_told_that_it_may_stay_there() -> None:
    cluster, other, order = leaving()
    cluster.report(order, MOVED)
    assert other.ended == [True]
    cluster.report(order, MOVED)
    assert cluster.replies[-1] == MigrationAck(migration=order.migration)
    assert cluster.places("s") == []


@pytest.mark.parametrize("stage", [MOVED, STAYED])
def test_a_client_that_was_given_up_is_not_told_that_it_may_stay_there(stage: MigrationStage) -> None:
    """All its reports were lost, the other head was told to take the new place away, and then one came through: it was
    acknowledged, and the client stayed where its queue was about to go (seed 907222).
    """
    cluster, other, order = leaving()
    for seconds in (22.0, *([2.0] * CLIENT_ATTEMPTS_MAX)):
        cluster.fire(f"migration {order.migration}", seconds)
    assert len(cluster.ordered(MigrateCancel)) == CLIENT_ATTEMPTS_MAX
    assert other.ended == [False]
    for _ in range(3):
        cluster.report(order, stage)
    expected = [] if stage is MOVED else [MigrationAck(migration=order.migration)] * 3
    assert cluster.replies == expected
    assert cluster.removed == []
    home = cluster.grant("s")
    assert (home.edge, home.subscription.number) == ("e1", 0), "everything is there"
