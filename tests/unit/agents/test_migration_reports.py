"""Reports about migrations that a restarted head does not know any more: believed, as far as it does no harm."""

from __future__ import annotations

import pytest

from tests.support.head_cluster import Cluster, move
from tests.support.moving_cluster import (
    ATTACHED,
    MOVED,
    STAYED,
    begin,
    restarted,
    the_order,
    timer,
)
from tidegate_agents.config import CLIENT_ATTEMPTS_MAX
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.abroad import AcceptEnd
from tidegate_protocol.balancing.migrations import (
    MigrateCancel,
    MigrateOrder,
    MigrationAck,
    MigrationReport,
    MigrationStage,
)
from tidegate_protocol.balancing.places import CollectOrder
from tidegate_protocol.messages import (
    OutputPrepare,
    OutputRemove,
    Refusal,
    RefusalReason,
)


def report(stage: MigrationStage, here: tuple[str, int], other: tuple[str, int]) -> MigrationReport:
    return MigrationReport(
        migration="h~6~m9",
        subscriber="s",
        stage=stage,
        pattern="a",
        edge=here[0],
        number=here[1],
        other_edge=other[0],
        other_number=other[1],
    )


def test_after_a_restart_a_client_that_moved_is_believed() -> None:
    cluster = restarted()
    cluster.ask(report(MOVED, ("e2", 1), ("e1", 0)))
    assert cluster.replies == [MigrationAck(migration="h~6~m9")]
    assert cluster.places("s") == [("e2", 1)]
    assert cluster.grant("s").edge == "e2"
    context = cluster.agent._context
    assert context.cooldowns.rests(("s", "a"), cluster.now), "it has been moved, and rests"


def add(cluster: Cluster, edge: str) -> None:
    cluster.outputs[edge] = {}
    cluster.greet(edge)


def test_after_a_restart_a_client_that_moved_is_believed_while_it_is_moved_on() -> None:
    """What it had left stayed there for ever, because it was in the next migration when it said so."""
    cluster = restarted()
    add(cluster, "e3")
    session = "e2~1~1"
    cluster.balance(session, "e3", source="e2")
    cluster.plan(session, move("s", number=1, target="e3"), source="e2")
    on = the_order(cluster)
    assert (on.edge_from, on.edge) == ("e2", "e3")
    cluster.ask(report(MOVED, ("e2", 1), ("e1", 0)))
    assert cluster.places("s") == [("e2", 1), ("e3", 2)]
    cluster.report(on, MOVED)
    assert cluster.places("s") == [("e3", 2)]


def test_after_a_restart_a_client_of_which_we_hear_that_it_moved_is_not_moved_on_at_once() -> None:
    """The session had begun before its report came; it was told to move again a tenth of a second later."""
    cluster = restarted()
    add(cluster, "e3")
    cluster.balance("e2~1~1", "e3", source="e2")
    cluster.mute = {OutputPrepare}
    cluster.plan("e2~1~1", move("s", number=1, target="e3"), source="e2")
    cluster.ask(report(MOVED, ("e2", 1), ("e1", 0)))
    assert cluster.places("s") == [("e2", 1)]
    assert cluster.ordered(MigrateOrder) == []
    assert cluster.decisions(d.MigrationEnded) == ["just-came"]


def test_after_a_restart_what_a_slow_client_left_is_collected() -> None:
    cluster = restarted()
    cluster.ask(report(MOVED, ("e2", 1), ("e1", 0)).model_copy(update={"unsettled": True}))
    assert cluster.places("s") == [("e1", 0), ("e2", 1)]
    cluster.period()
    cluster.report(cluster.ordered(CollectOrder)[-1], STAYED)
    assert cluster.places("s") == [("e2", 1)]


def test_after_a_restart_what_is_said_of_another_place_is_not_believed_while_it_is_moved() -> None:
    cluster = restarted()
    add(cluster, "e3")
    cluster.balance("e1~1~1", "e3")
    cluster.plan("e1~1~1", move("s", target="e3"))
    assert the_order(cluster).edge == "e3"
    cluster.ask(report(MOVED, ("e2", 1), ("e1", 0)))
    assert cluster.places("s") == [("e1", 0), ("e2", 1), ("e3", 2)]


@pytest.mark.parametrize("ordered", [True, False])
def test_after_a_restart_a_place_whose_client_never_came_goes_though_somebody_moves_it_on(ordered: bool) -> None:
    """The head had taken the place for the client's own, and removed what it was just moving."""
    first = Cluster("e1", "e2")
    first.grant("s")
    cluster = Cluster("e1", "e2", restarted=True)
    cluster.outputs = first.outputs
    for edge in cluster.outputs:
        cluster.greet(edge)
    cluster.mute = set() if ordered else {OutputPrepare}
    begin(cluster, "s")
    cluster.mute = set()
    end = AcceptEnd(migration="n~3~m1", head="n", moved=False, edge="e1", subscriber="s", pattern="a", number=0)
    cluster.ask(end)
    if ordered:
        refusal = cluster.replies[-1]
        assert isinstance(refusal, Refusal)
        assert refusal.reason is RefusalReason.NOT_READY
        assert cluster.removed == [], "only its client knows for certain, and is asked"
        for _ in range(CLIENT_ATTEMPTS_MAX):
            cluster.fire(timer(the_order(cluster)), 2.0)
        assert len(cluster.ordered(MigrateCancel)) == CLIENT_ATTEMPTS_MAX
        cluster.ask(end)
    assert cluster.places("s") == []
    cluster.ask(end)
    assert cluster.replies[-1] == MigrationAck(migration="n~3~m1")


def test_after_a_restart_a_client_that_stayed_is_believed() -> None:
    cluster = restarted()
    cluster.ask(report(STAYED, ("e1", 0), ("e2", 1)))
    assert cluster.places("s") == [("e1", 0)]


def test_after_a_restart_a_client_that_waits_for_markers_is_freed() -> None:
    cluster = restarted()
    cluster.ask(report(ATTACHED, ("e1", 0), ("e2", 1)))
    assert [cancel.migration for cancel in cluster.ordered(MigrateCancel)] == ["h~6~m9"]
    assert cluster.removed == []


def test_after_a_restart_the_older_place_is_granted_because_everything_is_in_it() -> None:
    cluster = restarted()
    assert cluster.grant("s").edge == "e1"
    assert cluster.removed == [], "nobody has said that the other one is not in use"


def test_what_was_granted_is_not_removed_by_a_report_of_somebody_who_stayed() -> None:
    cluster = restarted()
    cluster.ask(report(MOVED, ("e2", 1), ("e1", 0)))
    cluster.ask(report(STAYED, ("e1", 0), ("e2", 1)))
    assert cluster.places("s") == [("e2", 1)]


def test_a_report_about_queues_that_nobody_knows_changes_nothing() -> None:
    cluster = restarted()
    cluster.period(5.0)
    cluster.ask(report(MOVED, ("e3", 5), ("e1", 0)))
    cluster.ask(report(STAYED, ("e1", 0), ("e1", 0)))
    cluster.ask(report(STAYED, ("e2", 1), ("e3", 0)))
    assert cluster.removed == []


def test_a_client_that_has_moved_rests_even_if_its_new_edge_is_not_known_yet() -> None:
    """The edge was down when the client reported; once it was back, the client was moved again at once."""
    cluster = restarted()
    cluster.period(5.0)
    cluster.ask(report(MOVED, ("e3", 5), ("e1", 0)))
    assert cluster.agent._context.cooldowns.rests(("s", "a"), cluster.now)


def test_a_head_that_just_started_lets_clients_repeat_what_it_can_not_judge_yet() -> None:
    cluster = restarted()
    cluster.ask(report(MOVED, ("e3", 5), ("e1", 0)))
    assert cluster.replies == []
    cluster.period(5.0)
    cluster.replies.clear()
    cluster.ask(report(MOVED, ("e3", 5), ("e1", 0)))
    assert cluster.replies == [MigrationAck(migration="h~6~m9")]


def test_that_a_client_has_left_the_cluster_is_acknowledged_when_its_old_edge_has_told_what_it_holds() -> None:
    """Until then a crash would make us forget it, and nobody else knows."""
    cluster = restarted()
    record = cluster.agent._context.registry.edges["e1"]
    cluster.period(5.0)
    cluster.replies.clear()
    record.settled = False
    cluster.ask(report(MOVED, ("f1", 5), ("e1", 0)))
    assert cluster.replies == []
    record.settled = True
    cluster.ask(report(MOVED, ("f1", 5), ("e1", 0)))
    assert cluster.replies == [MigrationAck(migration="h~6~m9")]


def test_that_a_client_has_left_the_cluster_is_acknowledged_when_its_old_queue_is_gone() -> None:
    """Until then a crash would make us forget that nobody uses it."""
    cluster = restarted()
    cluster.period(5.0)
    cluster.mute = {OutputRemove}
    cluster.agent._removals.discard(("e1", ("s", 0)))
    cluster.replies.clear()
    cluster.ask(report(MOVED, ("f1", 5), ("e1", 0)))
    assert cluster.replies == []
    cluster.mute = set()
    cluster.fire("remove e1 s 0", 2.0)
    cluster.replies.clear()
    cluster.ask(report(MOVED, ("f1", 5), ("e1", 0)))
    assert cluster.replies == [MigrationAck(migration="h~6~m9")]
