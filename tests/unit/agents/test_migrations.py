"""Moving one client inside a cluster, step by step, with every step failing once."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import sent, subscribe
from tests.support.head_cluster import Cluster, move
from tests.support.moving_cluster import (
    ATTACHED,
    MOVED,
    ORDERED,
    STAYED,
    UNKNOWN,
    begin,
    ended,
    moving,
    the_order,
    timer,
)
from tidegate_agents.config import CLIENT_ATTEMPTS_MAX, BalancingConfig
from tidegate_agents.head.moving.migrations import FAILED_REST_RETRIES, MARKERS_MAX
from tidegate_agents.machine import ActionFailed, ReplyReceived, Undeliverable
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.markers import MarkerBind
from tidegate_protocol.balancing.migrations import (
    MigrateCancel,
    MigrateOrder,
    MigrationAck,
    MigrationStage,
)
from tidegate_protocol.balancing.places import CollectOrder
from tidegate_protocol.balancing.sessions import BalanceAccepted, BalancePlan
from tidegate_protocol.messages import (
    OutputPrepare,
    OutputRemove,
    Refusal,
    RefusalReason,
    SubscribeReply,
    UnsubscribeReply,
    UnsubscribeRequest,
)


def test_a_client_moves_and_only_then_its_old_queue_goes() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    order = the_order(cluster)
    assert (order.edge_from, order.number_from, order.edge, order.number) == ("e1", 0, "e2", 1)
    assert (order.url, order.queue, order.heads) == ("amqp://e2:1", "out.s.1", ("h",))
    # The markers need not wait for the client: they have to pass the backlog of the old queue.
    (marker,) = cluster.markers
    cluster.report(order, ORDERED, cluster.last_order(MigrateOrder))
    cluster.report(order, ATTACHED)
    assert cluster.markers == [marker]
    assert marker.targets == ("e1", "e2")
    assert marker.key.endswith(".h")
    assert cluster.removed == []
    assert cluster.places("s") == [("e1", 0), ("e2", 1)]
    cluster.report(order, MOVED)
    assert cluster.removed == [("e1", "s", 0)]
    assert cluster.places("s") == [("e2", 1)]
    assert ended(cluster) == (1, 0)
    assert cluster.grant("s").edge == "e2"


def test_a_client_that_stays_keeps_its_queue_and_the_new_one_goes() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    cluster.report(the_order(cluster), STAYED, reason="no way")
    assert cluster.removed == [("e2", "s", 1)]
    assert cluster.places("s") == [("e1", 0)]
    assert ended(cluster) == (0, 1)
    assert cluster.grant("s").subscription.number == 0


def test_a_client_that_did_not_manage_to_move_is_left_alone_for_a_while() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    cluster.report(the_order(cluster), STAYED)
    rest_s = FAILED_REST_RETRIES * BalancingConfig().retry_s
    cluster.period(rest_s - 0.1)
    cluster.balance("e1~1~2", "e2")
    assert cluster.plan("e1~1~2", move("s")) == BalanceAccepted(session="e1~1~2", moves=0)
    cluster.period(0.1)
    cluster.balance("e1~1~3", "e2")
    assert cluster.plan("e1~1~3", move("s")) == BalanceAccepted(session="e1~1~3", moves=1)


def test_a_client_that_was_never_told_of_its_move_may_be_moved_at_once() -> None:
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    cluster.mute = {OutputPrepare}
    begin(cluster, "s")
    for _ in range(3):
        cluster.fire("output h~7~m1", 2.0)
    assert ended(cluster) == (0, 1)
    cluster.mute = set()
    cluster.balance("e1~1~2", "e2")
    assert cluster.plan("e1~1~2", move("s")) == BalanceAccepted(session="e1~1~2", moves=1)


@pytest.mark.parametrize("stage", [ORDERED, ATTACHED, MOVED, STAYED])
def test_every_report_is_acknowledged_however_often_it_comes(stage: MigrationStage) -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    order = the_order(cluster)
    for _ in range(3):
        cluster.replies.clear()
        cluster.report(order, stage)
        assert cluster.replies == [MigrationAck(migration=order.migration)]
    assert len(cluster.markers) == 1, "a doubled report publishes no second marker"
    assert len(cluster.removed) == (stage in (MOVED, STAYED))


@pytest.mark.parametrize("kind", [OutputPrepare, MarkerBind])
def test_an_edge_that_never_answers_ends_the_migration_before_the_client_hears_of_it(kind: type) -> None:
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    cluster.mute = {kind}
    begin(cluster, "s")
    part = "output" if kind is OutputPrepare else "marker"
    for _ in range(3):
        assert cluster.decisions(d.MigrationEnded) == []
        cluster.fire(f"{part} h~7~m1", 2.0)
    assert cluster.decisions(d.MigrationEnded) == ["no-answer"]
    assert cluster.ordered(MigrateOrder) == []
    assert cluster.removed == [("e2", "s", 1)], "the edge may have made it all the same"
    cluster.mute = set()
    assert cluster.grant("s").edge == "e1"


@pytest.mark.parametrize("how", ["refusal", "undeliverable"])
def test_a_target_that_refuses_or_is_not_there_ends_the_migration(how: str) -> None:
    cluster = Cluster("e1", "e2")
    cluster.grant("s")
    cluster.mute = {OutputPrepare}
    cluster.balance("e1~1~1", "e2")
    (prepare,) = sent(
        cluster.ask(BalancePlan(session="e1~1~1", edge="e1", moves=(move("s"),), outcome=d.PlanOutcome.RELIEVED)),
        OutputPrepare,
    )
    assert prepare.request_id is not None
    if how == "refusal":
        cluster.run(ReplyReceived(prepare.request_id, Refusal(reason=RefusalReason.LIMIT, message="full")))
    else:
        cluster.run(Undeliverable(prepare.request_id))
    assert cluster.decisions(d.MigrationEnded) == ["refused" if how == "refusal" else "process-absent"]
    assert cluster.ordered(MigrateOrder) == []


def test_an_order_is_repeated_until_it_is_answered() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    order = the_order(cluster)
    cluster.fire(timer(order), 2.0)
    again = the_order(cluster)
    assert again.timeout_us < order.timeout_us
    assert again.model_copy(update={"timeout_us": 0}) == order.model_copy(update={"timeout_us": 0})
    cluster.report(again, ORDERED, cluster.last_order(MigrateOrder))
    assert len(cluster.ordered(MigrateOrder)) == 2


def test_a_client_that_never_answers_is_asked_and_then_given_up() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    order = the_order(cluster)
    for _ in range(CLIENT_ATTEMPTS_MAX):
        cluster.fire(timer(order), 2.0)
    assert len(cluster.ordered(MigrateOrder)) == CLIENT_ATTEMPTS_MAX
    for _ in range(CLIENT_ATTEMPTS_MAX):
        assert cluster.removed == []
        cluster.fire(timer(order), 2.0)
    assert len(cluster.ordered(MigrateCancel)) == CLIENT_ATTEMPTS_MAX
    assert cluster.removed == [("e2", "s", 1)], "only the new one"
    assert ended(cluster) == (0, 1)


def test_a_client_that_was_never_reached_need_not_be_asked() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    order = the_order(cluster)
    for _ in range(CLIENT_ATTEMPTS_MAX):
        request_id = cluster.last_order(MigrateOrder).request_id
        assert request_id is not None
        cluster.run(Undeliverable(request_id))
        cluster.fire(timer(order), 2.0)
    assert cluster.ordered(MigrateCancel) == []
    assert cluster.decisions(d.MigrationEnded) == ["client-absent"]


@pytest.mark.parametrize("stage", [ORDERED, ATTACHED])
@pytest.mark.parametrize("answer", [MOVED, STAYED, UNKNOWN])
def test_a_client_that_takes_too_long_is_asked_whether_it_moved(stage: MigrationStage, answer: MigrationStage) -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    order = the_order(cluster)
    cluster.report(order, stage)
    cluster.fire(timer(order), 22.0)
    cluster.fire(timer(order), 2.0)
    assert len(cluster.ordered(MigrateCancel)) == 2
    assert cluster.removed == []
    cluster.report(order, answer, cluster.last_order(MigrateCancel))
    assert cluster.removed == [("e1", "s", 0) if answer is MOVED else ("e2", "s", 1)]


def given_up() -> tuple[Cluster, MigrateOrder]:
    """A client that attached to its new queue was not heard of again, and its migration was given up."""
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    order = the_order(cluster)
    cluster.report(order, ATTACHED)
    for seconds in (22.0, *([2.0] * CLIENT_ATTEMPTS_MAX)):
        cluster.fire(timer(order), seconds)
    return cluster, order


def test_a_report_that_comes_after_giving_up_finds_nothing_lost() -> None:
    cluster, order = given_up()
    cluster.report(order, MOVED)
    assert cluster.places("s") == [("e1", 0)], "everything is there; the client comes back for it"
    assert cluster.grant("s").edge == "e1"


def test_a_late_report_of_a_move_is_believed_as_long_as_the_queue_is_there() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    order = the_order(cluster)
    cluster.report(order, ATTACHED)
    cluster.mute = {OutputRemove}
    for seconds in (22.0, *([2.0] * CLIENT_ATTEMPTS_MAX)):
        cluster.fire(timer(order), seconds)
    for _ in range(3):
        cluster.fire("remove e2 s 1", 2.0)  # e2 does not answer, so its queue stays
    cluster.mute = set()
    cluster.report(order, MOVED)
    assert cluster.places("s") == [("e2", 1)]
    assert cluster.grant("s").edge == "e2"


def test_what_a_slow_application_has_not_taken_yet_is_collected_before_the_old_queue_goes() -> None:
    """It was removed at once; what the client had of it and not yet handed over was lost when it crashed then."""
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    cluster.report(the_order(cluster), MOVED, unsettled=True)
    assert ended(cluster) == (1, 0)
    assert cluster.places("s") == [("e1", 0), ("e2", 1)]
    assert cluster.grant("s").edge == "e2"
    cluster.period()
    collect = cluster.ordered(CollectOrder)[-1]
    assert (collect.edge, collect.number) == ("e1", 0)
    cluster.report(collect, ATTACHED)
    cluster.report(collect, STAYED, unsettled=True)
    assert cluster.places("s") == [("e1", 0), ("e2", 1)], "the application is still busy with it"
    cluster.period(6.0)
    cluster.report(cluster.ordered(CollectOrder)[-1], STAYED)
    assert cluster.places("s") == [("e2", 1)]


def test_an_application_that_has_caught_up_has_nothing_to_collect() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    order = the_order(cluster)
    cluster.report(order, MOVED, unsettled=True)
    cluster.report(order, MOVED)
    assert cluster.places("s") == [("e2", 1)]
    cluster.period()
    assert cluster.ordered(CollectOrder) == []


def test_the_markers_are_published_again_for_a_client_that_starts_over_but_not_for_ever() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    order = the_order(cluster)
    cluster.report(order, ATTACHED)
    told = len(cluster.ordered(MigrateOrder))
    assert cluster.grant("s").edge == "e1", "during a migration the old place is the one to use"
    assert len(cluster.ordered(MigrateOrder)) == told + 1, "it is told the order again"
    cluster.report(order, ATTACHED)
    assert len(cluster.markers) == 2
    for _ in range(10):
        cluster.now += 2.0
        cluster.report(order, ATTACHED)
    assert len(cluster.markers) == MARKERS_MAX


def test_a_marker_that_can_not_be_published_cancels() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    cluster.report(the_order(cluster), ATTACHED)
    cluster.run(ActionFailed(cluster.markers[0], "no"))
    assert len(cluster.ordered(MigrateCancel)) == 1


@pytest.mark.parametrize("told", [False, True])
def test_unsubscribing_after_a_move_that_was_given_up_removes_the_place_that_was_kept(told: bool) -> None:
    """Its client had moved, could not say so, and calls its place by the number of one that was taken away."""
    cluster, _ = given_up()
    assert cluster.places("s") == [("e1", 0)]
    if told:
        cluster.now += 1.0
        cluster.grant("s")
    cluster.ask(UnsubscribeRequest(subscriber="s", number=1, pattern="a"))
    assert cluster.places("s") == ([("e1", 0)] if told else []), "a request from before it was told may be an old one"


@pytest.mark.parametrize("number", [0, 1])
def test_unsubscribing_in_the_middle_removes_both_places(number: int) -> None:
    """A client that has moved, and whose report is on its way, knows the new number."""
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    cluster.report(the_order(cluster), ATTACHED)
    cluster.ask(UnsubscribeRequest(subscriber="s", number=number))
    assert cluster.replies[-1] == UnsubscribeReply(subscriber="s", number=number)
    assert cluster.places("s") == []
    assert ended(cluster) == (0, 1)


def test_new_terms_in_the_middle_cancel_and_win_in_either_case() -> None:
    for stage in (STAYED, MOVED):
        cluster = Cluster("e1", "e2")
        moving(cluster, "s")
        order = the_order(cluster)
        cluster.report(order, ATTACHED)
        assert cluster.grant("s", deadline_us=77).edge == "e1"
        assert len(cluster.ordered(MigrateCancel)) == 1
        cluster.report(order, stage)
        ((edge, number),) = cluster.places("s")
        assert edge == ("e2" if stage is MOVED else "e1")
        assert cluster.outputs[edge]["s", number].deadline_us == 77


def test_a_confirmation_under_way_while_the_client_moves_is_answered_with_the_new_place() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    order = the_order(cluster)
    cluster.mute = {OutputPrepare}
    cluster.ask(subscribe("s"))
    cluster.report(order, MOVED)
    cluster.mute = set()
    cluster.fire("prepare s a", 2.0)
    reply = cluster.replies[-1]
    assert isinstance(reply, SubscribeReply)
    assert (reply.edge, reply.subscription.number) == ("e2", 1)


def test_no_more_than_allowed_are_under_way_and_the_rest_follows() -> None:
    cluster = Cluster("e1", "e2", balancing=BalancingConfig(migrations_max=2))
    moving(cluster, "r", "s", "t")
    assert [order.subscriber for order in cluster.ordered(MigrateOrder)] == ["r", "s"]
    cluster.report(cluster.ordered(MigrateOrder)[0], MOVED)
    assert [order.subscriber for order in cluster.ordered(MigrateOrder)] == ["r", "s", "t"]
    for order in cluster.ordered(MigrateOrder)[1:]:
        cluster.report(order, MOVED)
    assert ended(cluster) == (3, 0)


def test_a_removal_that_fails_is_tried_again_when_the_edge_is_back() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    cluster.mute = {OutputRemove}
    cluster.report(the_order(cluster), MOVED)
    for _ in range(3):
        cluster.fire("remove e1 s 0", 2.0)
    assert cluster.grant("s").edge == "e2", "what was left behind is not handed out"
    cluster.mute = set()
    cluster.period()
    assert cluster.places("s") == [("e2", 1)]


def test_what_was_left_behind_is_not_moved_again() -> None:
    cluster = Cluster("e1", "e2")
    moving(cluster, "s")
    cluster.mute = {OutputRemove}
    cluster.report(the_order(cluster), MOVED)
    for _ in range(3):
        cluster.fire("remove e1 s 0", 2.0)
    cluster.greet("e1")
    cluster.greet("e2")
    cluster.now += 60.0
    cluster.greet("e1")
    cluster.greet("e2")
    cluster.balance("e1~1~2", "e2")
    assert cluster.plan("e1~1~2", move("s")) == BalanceAccepted(session="e1~1~2", moves=0)
