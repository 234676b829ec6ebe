"""What an edge kept for a client that lives elsewhere by now: how it is fetched, and how its order is kept."""

from __future__ import annotations

import pytest

from tests.support.moving_client import STAYED, UNKNOWN, Client, cancel, collect, only, reported
from tidegate._core.hold import Admission
from tidegate._core.moves import (
    Attach,
    Attached,
    AttachmentLost,
    CancelTimer,
    Detach,
    Detached,
    Release,
    Request,
    SetTimer,
    SubscriptionAction,
    TimerFired,
)
from tidegate_protocol.balancing.migrations import MigrationStage
from tidegate_protocol.messages import Refusal


def begin_collecting(client: Client) -> int:
    """Order a collection and attach to its queue; returns its slot."""
    answer, actions = client.ask(collect())
    assert answer.stage is MigrationStage.ORDERED
    slot = only(actions, Attach).slot
    client.do(Attached(slot))
    return slot


def holding(sequence: int) -> tuple[Client, int]:
    """A client that was delivered 1, and holds what it collected, up to the marker; and the slot that collects."""
    client = Client()
    client.deliver(client.old, "p~1:t:1")
    slot = begin_collecting(client)
    client.deliver(slot, f"p~1:t:{sequence}")
    assert client.mark(slot, n=7) == []
    return client, slot


def released(actions: list[SubscriptionAction]) -> list[tuple[str | None, bool]]:
    """What is handed over, and whether as collected."""
    items = [item for action in actions if isinstance(action, Release) for item in action.items]
    return [(item.identity, item.collected) for item in items]


def test_what_waited_on_another_edge_is_collected_and_then_given_up() -> None:
    client = Client()
    client.deliver(client.old, "p~1:t:2")
    slot = begin_collecting(client)
    assert client.deliver(slot, "p~1:t:1")[0] is Admission.COLLECTED
    assert client.deliver(client.old, "p~1:t:3")[0] is Admission.PASS
    assert isinstance(client.ask(collect(8, "b8"))[0], Refusal)
    assert client.ask(collect())[0].stage is MigrationStage.ATTACHED
    assert client.ask(cancel(7))[0].stage is MigrationStage.ATTACHED
    actions = client.mark(slot, n=7)
    assert only(actions, Detach).slot == slot
    report = reported(client.do(Detached(slot)))
    assert (report.stage, report.edge, report.other_edge, report.other_number) == (STAYED, "b0", "b9", 5)
    assert client.ask(collect())[0].stage is STAYED


def test_collected_messages_wait_while_a_migration_runs() -> None:
    client = Client()
    slot = begin_collecting(client)
    new = client.begin()
    assert len(client.machine.slots) == 3
    assert client.deliver(slot, "p~1:t:1")[0] is Admission.HELD
    assert client.mark(slot, n=7) == []
    client.deliver(new, "p~1:t:2")
    client.deliver(client.old, "p~1:t:1")
    client.mark(new)
    actions = client.mark(client.old)
    assert released(actions) == [("p~1:t:2", False), ("p~1:t:1", True)]
    assert [action.slot for action in actions if isinstance(action, Detach)] == [client.old, slot]


def test_what_is_collected_follows_what_a_migration_releases() -> None:
    client = Client()
    slot = begin_collecting(client)
    new = client.begin()
    client.deliver(slot, "p~1:t:3")
    client.mark(slot, n=7)
    client.deliver(client.old, "p~1:t:1")
    client.deliver(new, "p~1:t:2")
    client.mark(new)
    actions = client.mark(client.old)
    assert released(actions) == [("p~1:t:2", False)]
    assert SetTimer("linger", 0.0) in actions
    client.deduplicator.judge("p~1:t:2", client.now)
    actions = client.do(TimerFired("linger"))
    assert released(actions) == [("p~1:t:3", True)]
    assert only(actions, Detach).slot == slot


def test_what_is_ahead_of_the_place_in_use_waits_for_it() -> None:
    """A head was killed in the middle of a move, and finds the queue it had prepared: all that is in there is newer
    than the backlog of the queue in use.
    """
    client = Client()
    client.deliver(client.old, "p~1:t:1")
    slot = begin_collecting(client)
    for sequence in (4, 5):
        assert client.deliver(slot, f"p~1:t:{sequence}") == (Admission.HELD, [])
    assert client.deliver(slot, "q~1:t:0")[0] is Admission.COLLECTED
    assert client.mark(slot, n=7) == []
    assert client.deliver(client.old, "p~1:t:2") == (Admission.WATCHED, [])
    actions = client.deliver(client.old, "p~1:t:3")[1]
    assert released(actions) == [("p~1:t:4", True), ("p~1:t:5", True)]
    assert only(actions, Detach).slot == slot
    assert client.deliver(client.old, "p~1:t:4")[0] is Admission.PASS


def test_what_never_comes_is_not_waited_for_until_the_time_is_over() -> None:
    client, slot = holding(4)
    assert client.do(TimerFired("collect-patience"), 4.4) == [SetTimer("collect-patience", pytest.approx(0.1))]
    actions = client.do(TimerFired("collect-patience"), 0.1)
    assert released(actions) == [("p~1:t:4", True)]
    assert only(actions, Detach).slot == slot
    assert CancelTimer("collect") in actions


def test_it_is_waited_for_as_long_as_it_comes_nearer() -> None:
    client, _ = holding(5)
    client.now += 4.0
    assert client.deliver(client.old, "p~1:t:2") == (Admission.WATCHED, [])
    assert client.do(TimerFired("collect-patience"), 0.5) == [SetTimer("collect-patience", 4.0)]
    actions = client.do(TimerFired("collect-patience"), 4.0)
    assert released(actions) == [("p~1:t:5", True)]


def test_what_is_held_of_a_lost_queue_comes_again_with_the_next() -> None:
    client, slot = holding(4)
    assert client.machine.held_count == 1
    client.do(AttachmentLost(slot))
    assert client.machine.held_count == 0
    assert client.deliver(client.old, "p~1:t:2")[0] is Admission.PASS


def test_a_queue_that_was_not_emptied_is_not_given_up() -> None:
    client = Client()
    _, actions = client.ask(collect())
    slot = only(actions, Attach).slot
    client.do(AttachmentLost(slot))
    client.do(Attached(only(client.do(TimerFired("collect-attach")), Attach).slot))
    report = reported(client.do(TimerFired("collect")))
    assert (report.stage, report.other_edge) == (UNKNOWN, None)
    # It may be tried again; a queue that is gone has nothing to give.
    _, actions = client.ask(collect())
    gone = client.do(AttachmentLost(only(actions, Attach).slot, gone=True))
    assert reported(gone).stage is STAYED


def test_collecting_from_the_place_in_use_makes_the_client_ask() -> None:
    client = Client()
    answer, actions = client.ask(collect(edge="b0", number=0))
    assert answer.stage is UNKNOWN
    assert answer.other_edge is None
    assert only(actions, Request).key.startswith("subscribe:")
