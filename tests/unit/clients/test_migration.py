"""The client's side of a migration, step by step: what it answers and holds, when it switches, how it goes back."""

from __future__ import annotations

import pytest

from tests.support.moving_client import (
    MOVED,
    REQUEST,
    STAYED,
    UNKNOWN,
    Client,
    cancel,
    collect,
    granted,
    none_of,
    only,
    order,
    reported,
)
from tidegate._core.attachment import SubscriptionTimes
from tidegate._core.delivery import Deduplicator
from tidegate._core.hold import Admission
from tidegate._core.migration import SubscriptionMachine
from tidegate._core.moves import (
    Answer,
    Answered,
    Attach,
    Attached,
    AttachmentLost,
    CancelTimer,
    ChangeHead,
    ClosedByApplication,
    Detach,
    Detached,
    LeaveHead,
    Opened,
    Ordered,
    Release,
    Request,
    SetTimer,
    TellRefusal,
    TimerFired,
    parse_marker,
)
from tidegate._core.reports import ATTEMPTS_MAX, OUTCOMES_MAX
from tidegate_protocol.balancing.migrations import MigrateCancel, MigrationAck, MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import PlaceReply, PlaceRequest
from tidegate_protocol.messages import Refusal, SubscribeRequest
from tidegate_protocol.names import marker_key
from tidegate_protocol.parts import RefusalReason


def test_markers_are_told_from_messages() -> None:
    assert parse_marker(marker_key("h0~1~m1", "h2")) == ("h0~1~m1", "h2")
    assert parse_marker("t.x") is None
    assert parse_marker("tidegate.marker.x") is None


def test_the_deduplicator_says_what_it_expects() -> None:
    deduplicator = Deduplicator(10)
    assert deduplicator.expected("p~1:t") is None
    for sequence in (4, 7, 5):
        deduplicator.judge(f"p~1:t:{sequence}", 0.0)
    assert deduplicator.expected("p~1:t") == 8


def test_a_migration_holds_switches_releases_and_reports() -> None:
    client = Client()
    new = client.begin()
    assert client.deliver(client.old, "p~1:t:3")[0] is Admission.WATCHED
    assert client.deliver(new, "p~1:t:4")[0] is Admission.HELD
    assert client.mark(new) == []
    actions = client.mark(client.old)
    release = only(actions, Release)
    assert [item.identity for item in release.items] == ["p~1:t:4"]
    assert only(actions, Detach).slot == client.old
    # What was taken from the old queue may be unsettled still: the head hears of it when that is done.
    assert none_of(actions, Request)
    report = client.do(Detached(client.old))
    assert reported(report).stage is MOVED
    assert (reported(report).edge, reported(report).other_edge) == ("b1", "b0")
    assert client.machine.admit(client.old, "p~1:t:9", None) is Admission.STRAY
    assert client.machine.admit(new, "p~1:t:5", None) is Admission.PASS
    again = client.do(TimerFired(only(report, SetTimer).name))
    assert reported(again) == reported(report)
    client.do(Answered(only(report, Request).key, MigrationAck(migration="h0~1~m1")))
    assert client.do(TimerFired(only(report, SetTimer).name)) == []
    assert client.machine.at_rest


def test_a_marker_that_comes_through_the_old_queue_before_the_order_counts() -> None:
    client = Client()
    client.deliver(client.old, "p~1:t:3")
    assert client.mark(client.old) == []
    assert client.mark(client.old, n=2) == [], "of a move that never comes"
    new = client.begin()
    client.deliver(new, "p~1:t:4")
    assert [item.identity for item in only(client.mark(new), Release).items] == ["p~1:t:4"]


def test_a_marker_of_a_place_left_since_does_not_count() -> None:
    client = Client()
    assert client.mark(client.old) == []
    client.do(AttachmentLost(client.old, gone=True))
    asked = only(client.do(TimerFired("ask"), after_s=10.0), Request)
    again = only(client.do(Answered(asked.key, granted("b2", 5))), Attach).slot
    client.do(Attached(again))
    new = client.begin(edge_from="b2", number_from=5)
    assert client.mark(new) == []
    assert only(client.mark(again), Release).items == ()


def test_the_switch_waits_for_what_was_enqueued_behind_the_marker() -> None:
    client = Client()
    new = client.begin()
    client.deliver(client.old, "p~1:t:3")
    client.deliver(new, "p~1:t:5")
    client.mark(new)
    assert client.mark(client.old) == []
    _, actions = client.deliver(client.old, "p~1:t:4")
    assert [item.identity for item in only(actions, Release).items] == ["p~1:t:5"]


def test_the_old_queue_goes_on_for_a_moment_for_the_sake_of_a_silent_publisher() -> None:
    """Enqueued behind the marker, and nothing of its publisher comes through the new queue to show it."""
    client = Client(linger_s=0.1)
    new = client.begin()
    client.deliver(client.old, "p~1:t:3")
    client.mark(new)
    assert only(client.mark(client.old), SetTimer).after_s == 0.1
    admission, actions = client.deliver(client.old, "p~1:t:4")
    assert admission is Admission.WATCHED
    assert actions == []
    assert only(client.do(TimerFired("linger"), after_s=0.1), Release).items == ()
    assert client.deduplicator.expected("p~1:t") == 5


def test_what_shows_up_while_it_lingers_is_waited_for() -> None:
    client = Client(linger_s=0.1)
    new = client.begin()
    client.mark(new)
    client.mark(client.old)
    client.deliver(new, "p~1:t:5")
    assert client.do(TimerFired("linger"), after_s=0.1) == []
    _, actions = client.deliver(client.old, "p~1:t:5")
    assert [item.identity for item in only(actions, Release).items] == ["p~1:t:5"]


def test_a_stream_that_was_never_seen_waits_for_the_old_queue_unless_it_begins() -> None:
    client = Client()
    new = client.begin()
    client.deliver(new, "p~1:t:0")
    client.deliver(new, "q~1:t:8")
    client.mark(new)
    assert client.mark(client.old) == []
    _, actions = client.deliver(client.old, "q~1:t:8")
    assert len(only(actions, Release).items) == 2


def test_the_markers_of_all_heads_are_waited_for() -> None:
    client = Client()
    new = client.begin(heads=("h0", "h1"), head="h1", head_url="amqp://h1")
    for slot, head in ((new, "h0"), (new, "h1"), (client.old, "h0")):
        assert client.mark(slot, head) == []
    # One of another migration, and one that came through the wrong queue, are none.
    assert client.mark(client.old, "h1", n=2) == []
    assert client.mark(new, "h1") == []
    actions = client.mark(client.old, "h1")
    assert only(actions, ChangeHead) == ChangeHead("h1", "amqp://h1")
    report = client.do(Detached(client.old))
    # The head that ordered it hears how it ended; then it is left.
    assert only(report, Request).head_url == ""
    assert only(client.do(Answered(only(report, Request).key, MigrationAck(migration="h0~1~m1"))), LeaveHead).url == ""
    lost = client.do(AttachmentLost(new, gone=True))
    assert only(lost, Request).head_url == "amqp://h1"


def test_a_client_whose_move_was_given_up_by_its_old_head_goes_back_there() -> None:
    """It moved to another cluster, nobody heard of it, and the old head had the new queue removed."""
    client = Client()
    new = client.begin(head="h1", head_url="amqp://h1")
    client.mark(new)
    client.mark(client.old)
    report = client.do(Detached(client.old))
    assert reported(report).stage is MOVED
    lost = client.do(AttachmentLost(new, gone=True))
    assert only(lost, Request).head_url == "", "the old head has kept the old queue"
    assert only(lost, LeaveHead).url == "amqp://h1"
    assert client.do(TimerFired(only(report, SetTimer).name)) == [], "the old head must not hear that it moved"
    answer, _ = client.ask(MigrateCancel(migration="h0~1~m1", subscriber="s1", pattern="t.#"))
    assert answer.stage is MigrationStage.UNKNOWN


@pytest.mark.parametrize("why", ["time-out", "cancel", "loss", "failed attach"])
def test_every_failure_leads_back_and_is_said(why: str) -> None:
    client = Client()
    if why == "failed attach":
        _, actions = client.ask(order())
        new = only(actions, Attach).slot
    else:
        new = client.begin()
        client.deliver(new, "p~1:t:4")
    if why == "cancel":
        answer, actions = client.ask(cancel())
    else:
        event = TimerFired("migration") if why == "time-out" else AttachmentLost(new, problem="cut")
        actions = client.do(event)
        answer = reported(actions)
    assert (answer.stage, answer.edge, answer.other_edge, answer.other_number) == (STAYED, "b0", "b1", 1)
    assert only(actions, Detach).slot == new
    assert none_of(actions, Release)
    assert client.machine.held_count == 0
    assert client.machine.admit(new, "p~1:t:5", None) is Admission.STRAY
    assert client.machine.admit(client.old, "p~1:t:5", None) is Admission.PASS
    # The order comes again, and is answered without another attempt.
    again, actions = client.ask(order())
    assert again.stage is STAYED
    assert none_of(actions, Attach)


def test_the_old_attachment_is_made_again_and_the_migration_goes_on() -> None:
    client = Client()
    new = client.begin()
    client.deliver(new, "p~1:t:1")
    assert none_of(client.do(AttachmentLost(client.old)), Detach)
    old = only(client.do(TimerFired("attach"), 0.1), Attach).slot
    client.do(Attached(old))
    assert client.machine.admit(client.old, "p~1:t:0", None) is Admission.STRAY
    client.deliver(old, "p~1:t:0")
    client.mark(new)
    actions = client.mark(old)
    assert only(actions, Detach).slot == old
    assert client.machine.place is not None
    assert client.machine.place.edge == "b1"


def test_if_the_old_queue_is_gone_what_is_held_is_all_there_is() -> None:
    client = Client()
    new = client.begin()
    client.deliver(new, "p~1:t:4")
    actions = client.do(AttachmentLost(client.old, gone=True))
    assert len(only(actions, Release).items) == 1
    assert reported(actions).stage is MOVED


def test_orders_are_answered_with_the_stage_the_outcome_or_a_refusal() -> None:
    client = Client()
    answer, actions = client.ask(order(1))
    assert client.ask(order(1))[0].stage is MigrationStage.ORDERED
    client.do(Attached(only(actions, Attach).slot))
    assert client.ask(order(1))[0].stage is MigrationStage.ATTACHED
    answer, actions = client.ask(order(2))
    assert (answer.stage, answer.edge, answer.other_number) == (STAYED, "b0", 2)
    assert none_of(actions, Attach)
    answer, _ = client.ask(PlaceRequest(subscriber="s1", pattern="t.#"))
    assert answer == PlaceReply(subscriber="s1", pattern="t.#", edge="b0", number=0, migration="h0~1~m1")
    client.ask(cancel(1))
    # What was declined stays declined although there is room now.
    assert client.ask(order(2))[0].stage is STAYED
    answer, actions = client.ask(order(3, edge_from="b5"))
    assert (answer.stage, answer.edge) == (STAYED, "b0")
    assert none_of(actions, Attach)
    answer, _ = client.ask(order(4, edge_from="b5", edge="b0", number=0))
    assert answer.stage is MOVED
    answer, _ = client.ask(cancel(5))
    assert (answer.stage, answer.edge) == (UNKNOWN, "b0")
    answer, actions = client.ask(order(5))
    assert (answer.stage, answer.other_edge) == (STAYED, "b1")
    assert none_of(actions, Attach)
    answer, _ = client.ask(order(6, subscriber="s2"))
    assert answer.reason is RefusalReason.UNKNOWN


def test_outcomes_are_remembered_up_to_a_bound() -> None:
    client = Client()
    for n in range(1, OUTCOMES_MAX + 2):
        client.ask(cancel(n))
    assert client.ask(order(2))[0].stage is STAYED
    assert client.ask(order(1))[0].stage is MigrationStage.ORDERED


def test_before_the_first_grant_nothing_is_said_about_places() -> None:
    machine = SubscriptionMachine(REQUEST, 10, Deduplicator(10).expected)
    asked = only(machine.handle(Opened(), 0.0), Request)
    for message in (order(), cancel(), collect(), PlaceRequest(subscriber="s1", pattern="t.#")):
        answer = only(machine.handle(Ordered(message, "head"), 0.0), Answer).message
        assert isinstance(answer, Refusal)
        assert answer.retry_after_s is not None
    again = only(machine.handle(TimerFired("ask"), 1.0), Request)
    assert again == asked
    refusal = Refusal(reason=RefusalReason.INVALID, message="no")
    assert only(machine.handle(Answered(asked.key, refusal), 1.0), TellRefusal).refusal == refusal
    later = Refusal(reason=RefusalReason.NO_EDGE, message="soon", retry_after_s=3.0)
    assert only(machine.handle(Answered(asked.key, later), 1.0), SetTimer) == SetTimer("ask", 3.0)
    machine.validate()


def test_a_report_is_given_up_after_a_bounded_number_of_attempts() -> None:
    client = Client()
    client.begin()
    actions = client.do(TimerFired("migration"))
    key, sent = only(actions, Request).key, 1
    while not none_of(actions := client.do(TimerFired(key), 5.0), Request):
        sent += 1
    assert sent == ATTEMPTS_MAX
    assert client.machine.at_rest


def test_a_late_ack_of_attached_does_not_count_for_moved() -> None:
    client = Client()
    _, actions = client.ask(order())
    new = only(actions, Attach).slot
    attached = only(client.do(Attached(new)), Request)
    client.mark(new)
    client.mark(client.old)
    moved = client.do(Detached(client.old))
    client.do(Answered(attached.key, MigrationAck(migration="h0~1~m1")))
    assert reported(client.do(TimerFired(only(moved, SetTimer).name))).stage is MOVED


def test_the_report_does_not_wait_forever_for_unsettled_messages() -> None:
    client = Client()
    new = client.begin()
    client.mark(new)
    timer = [action for action in client.mark(client.old) if isinstance(action, SetTimer)][-1]
    report = reported(client.do(TimerFired(timer.name)))
    assert report.stage is MOVED
    assert report.unsettled, "the application may still have to take what the old queue brought"
    assert none_of(client.do(Detached(client.old)), Request)


@pytest.mark.parametrize("slow", [False, True])
def test_an_application_that_is_slow_is_told_of_with_the_move(slow: bool) -> None:
    client = Client()
    new = client.begin()
    client.mark(new)
    client.mark(client.old)
    assert client.ask(cancel())[0].unsettled, "asked before it has left the old queue"
    assert client.ask(order())[0].stage is MigrationStage.ATTACHED, "a repeated order does not end what the report will"
    report = reported(client.do(Detached(client.old, unsettled=slow)))
    assert (report.stage, report.unsettled) == (MOVED, slow)
    assert client.ask(cancel())[0].unsettled is slow


def test_more_than_the_prefetch_is_not_held() -> None:
    client = Client(prefetch=3)
    new = client.begin()
    for n in range(3):
        assert client.deliver(new, f"p~1:t:{n}") == (Admission.HELD, [])
    _, actions = client.deliver(new, "p~1:t:3")
    assert reported(actions).stage is STAYED


def test_a_place_that_can_not_be_reached_is_reported_and_left() -> None:
    client = Client()
    slot, asked = client.old, None
    for _ in range(20):
        actions = client.do(AttachmentLost(slot))
        asked = next((action for action in actions if isinstance(action, Request)), None)
        if asked is not None:
            break
        slot = only(client.do(TimerFired("attach"), only(actions, SetTimer).after_s), Attach).slot
    assert asked is not None
    assert isinstance(asked.message, SubscribeRequest)
    assert asked.message.unreachable == "b0"
    assert client.now >= SubscriptionTimes().unreachable_s
    # It comes back, but the head has decided by then; a question that was asked is followed to its answer.
    slot = only(client.do(TimerFired("attach"), 5.0), Attach).slot
    client.do(Attached(slot))
    repeated = only(client.do(TimerFired("ask")), Request)
    assert isinstance(repeated.message, SubscribeRequest)
    assert repeated.message.unreachable is None
    actions = client.do(Answered(asked.key, granted("b2", 9)))
    assert only(actions, Detach).slot == slot
    assert only(actions, Attach).place.edge == "b2"
    assert client.do(Answered(asked.key, granted("b3", 11))) == []


def test_a_queue_lost_after_the_move_is_asked_for_and_old_reports_are_forgotten() -> None:
    client = Client()
    new = client.begin()
    client.mark(new)
    client.mark(client.old)
    report = client.do(Detached(client.old))
    asked = only(client.do(AttachmentLost(new, gone=True)), Request)
    # The head has not heard that we moved, so the old queue is still there, with everything in it.
    actions = client.do(Answered(asked.key, granted("b0", 0)))
    assert only(actions, Attach).place.edge == "b0"
    assert client.do(TimerFired(only(report, SetTimer).name)) == []
    answer, _ = client.ask(cancel())
    assert (answer.stage, answer.edge, answer.other_edge) == (STAYED, "b0", "b1")


def test_a_head_that_forgot_the_migration_does_not_end_it() -> None:
    client = Client()
    client.begin()
    for _ in range(2):
        actions = client.do(AttachmentLost(client.old), 6.0)
        client.old = only(client.do(TimerFired("attach")), Attach).slot
    asked = only(actions, Request)
    assert none_of(client.do(Answered(asked.key, granted("b1", 1))), Detach)
    assert client.machine.migrating
    actions = client.do(TimerFired("migration"))
    assert sum(isinstance(action, Request) and action.key.startswith("subscribe") for action in actions) == 1


def test_closing_leaves_everything_and_answers_nothing_but_refusals() -> None:
    client = Client()
    new = client.begin()
    actions = client.do(ClosedByApplication())
    assert {action.slot for action in actions if isinstance(action, Detach)} == {client.old, new}
    assert CancelTimer("migration") in actions
    assert client.do(TimerFired("migration")) == []
    assert client.machine.admit(new, "p~1:t:0", None) is Admission.STRAY
    assert isinstance(client.ask(order())[0], Refusal)


def test_closed_it_still_says_how_a_move_ended_that_its_head_has_not_heard_of() -> None:
    """Its old head was frozen when it moved, and then never learned that the old queue was to go."""
    client = Client()
    new = client.begin()
    client.do(Attached(new))
    client.mark(client.old)
    client.mark(new)
    client.do(ClosedByApplication())
    answer = client.ask(cancel())[0]
    assert isinstance(answer, MigrationReport)
    assert answer.stage is MOVED
    assert client.ask(order())[0] == answer
    assert isinstance(client.ask(order(migration="another"))[0], Refusal)
