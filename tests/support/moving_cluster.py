"""What tests of migrations have in common: clients of e1 that are to be moved to e2."""

from __future__ import annotations

from tests.support.head_cluster import Cluster, move
from tidegate_protocol.balancing.migrations import (
    MigrateOrder,
    MigrationStage,
)
from tidegate_protocol.balancing.sessions import BalanceCandidates, SessionPhase

MOVED, STAYED, ATTACHED = MigrationStage.MOVED, MigrationStage.STAYED, MigrationStage.ATTACHED
ORDERED, UNKNOWN = MigrationStage.ORDERED, MigrationStage.UNKNOWN


def moving(cluster: Cluster, *subscribers: str) -> None:
    """Grant these subscribers pattern `a` on e1, and begin to move all of them to e2."""
    for subscriber in subscribers:
        assert cluster.grant(subscriber).edge == "e1"
    begin(cluster, *subscribers)


def begin(cluster: Cluster, *subscribers: str) -> None:
    assert isinstance(cluster.balance("e1~1~1", "e2"), BalanceCandidates)
    cluster.plan("e1~1~1", *(move(name) for name in subscribers))


def the_order(cluster: Cluster) -> MigrateOrder:
    return cluster.ordered(MigrateOrder)[-1]


def ended(cluster: Cluster) -> tuple[int, int]:
    """How many moved and failed, as the brokers were told at the end."""
    ends = {notice for _, notice in cluster.notices if notice.phase is SessionPhase.ENDED}
    assert {edge for edge, notice in cluster.notices if notice in ends} == {"e1", "e2"}
    (notice,) = ends
    return notice.moved, notice.failed


def timer(order: MigrateOrder) -> str:
    return f"migration {order.migration}"


def restarted() -> Cluster:
    """A head that was restarted in the middle of a migration from e1 to e2."""
    first = Cluster("e1", "e2")
    moving(first, "s")
    cluster = Cluster("e1", "e2", restarted=True)
    cluster.outputs = first.outputs
    for edge in cluster.outputs:
        cluster.greet(edge)
    assert cluster.places("s") == [("e1", 0), ("e2", 1)]
    cluster.replies.clear()
    return cluster
