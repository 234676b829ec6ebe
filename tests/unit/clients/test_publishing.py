"""The publisher's machine: numbers without gaps, a bounded window, and order across lost channels and
rejections.
"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tidegate import InvalidMessage, InvalidTopic, InvalidValue, Limits, NotConfirmed
from tidegate._core.publishing import PublishingMachine
from tidegate._core.window import Publication


def admit(machine: PublishingMachine, topic: str = "a.b", body: bytes = b"x") -> Publication:
    return machine.admit(machine.draft(topic, body, None, True), 1_000_000)


def test_sequences_have_no_gaps_per_topic_even_after_an_invalid_publication() -> None:
    machine = PublishingMachine("p~1", Limits())
    assert [admit(machine, topic).id for topic in ("a", "b", "a")] == ["p~1:a:0", "p~1:b:0", "p~1:a:1"]
    with pytest.raises(InvalidMessage):
        machine.draft("a", "text", None, True)  # type: ignore[arg-type]
    assert admit(machine, "a").id == "p~1:a:2"


def test_the_window_is_bounded_by_number_and_by_bytes() -> None:
    machine = PublishingMachine("p~1", Limits(window=2))
    assert [(admit(machine).order, machine.full) for _ in range(2)] == [(1, False), (2, True)]
    machine = PublishingMachine("p~1", Limits(window_bytes=10))
    admit(machine, body=b"x" * 10)
    before = machine.full
    machine.take(0.0)
    machine.acked(1, False)
    assert (before, machine.full) == (True, False)


def test_what_was_in_flight_is_sent_again_first_and_in_order() -> None:
    machine = PublishingMachine("p~1", Limits())
    first = [admit(machine) for _ in range(4)]
    machine.opened()
    assert machine.take(0.0) == first
    machine.acked(2, False)
    later = admit(machine)
    machine.lost()
    machine.opened()
    assert machine.take(0.0) == [first[0], first[2], first[3], later]
    assert machine.acked(4, True) == 4
    machine.validate()
    assert machine.unsettled == 0


def test_a_rejected_publication_goes_before_newer_ones_after_a_pause() -> None:
    machine = PublishingMachine("p~1", Limits())
    first, second = admit(machine), admit(machine)
    machine.take(0.0)
    machine.nacked(1, False, 0.0, 0.0)
    third = admit(machine)
    assert machine.take(100.0) == []
    machine.acked(2, False)
    assert second.settled
    due_in_s = machine.due_in_s(0.0)
    assert due_in_s is not None
    assert due_in_s > 0
    assert machine.take(0.0) == []
    assert machine.take(due_in_s) == [first, third]


def test_a_publication_rejected_too_often_fails_and_is_reported_once() -> None:
    machine = PublishingMachine("p~1", Limits(publish_attempts=3))
    publication = admit(machine)
    for attempt in range(3):
        assert machine.take(1000.0 * attempt) == [publication]
        machine.nacked(attempt + 1, False, 1000.0 * attempt, 0.5)
    assert isinstance(publication.error, NotConfirmed)
    assert publication.error.attempts == 3
    assert machine.take_failure() is publication.error
    assert machine.take_failure() is None


def test_abandoning_fails_whatever_is_left() -> None:
    machine = PublishingMachine("p~1", Limits())
    sent, waiting = admit(machine), None
    machine.take(0.0)
    waiting = admit(machine)
    assert machine.abandon("closed") == 2
    assert isinstance(sent.error, NotConfirmed)
    assert isinstance(waiting.error, NotConfirmed)


@given(st.lists(st.sampled_from(["admit", "take", "ack", "ack-all", "nack", "lose"]), max_size=60), st.data())
def test_every_publication_is_settled_once_and_sent_in_order_after_each_loss(
    steps: list[str], data: st.DataObject
) -> None:
    machine = PublishingMachine("p~1", Limits(window=20, publish_attempts=1000))
    machine.opened()
    everything: list[Publication] = []
    tag, now = 0, 0.0
    for step in steps:
        now += 10.0
        if step == "admit" and not machine.full:
            everything.append(admit(machine))
        elif step == "take":
            taken = machine.take(now)
            tag += len(taken)
            orders = [publication.order for publication in taken]
            assert orders == sorted(orders)
        elif step in ("ack", "ack-all") and tag:
            machine.acked(data.draw(st.integers(1, tag)), step == "ack-all")
        elif step == "nack" and tag:
            machine.nacked(data.draw(st.integers(1, tag)), data.draw(st.booleans()), now, 0.5)
        elif step == "lose":
            machine.opened()
            tag = 0
        machine.validate()
    machine.opened()
    left = machine.take(now)
    assert left == [publication for publication in everything if not publication.settled]
    machine.acked(len(left), True)
    assert all(publication.settled and publication.error is None for publication in everything)
    assert machine.settled_up_to(machine.last_order)


def test_bad_publications_are_refused_with_the_field() -> None:
    machine = PublishingMachine("p~1", Limits(body_bytes=10, topics=1))
    with pytest.raises(InvalidTopic):
        machine.draft("a.*", b"", None, True)
    with pytest.raises(InvalidTopic):
        machine.draft("a" * 300, b"", None, True)
    with pytest.raises(InvalidMessage) as over:
        machine.draft("a", b"x" * 11, None, True)
    assert over.value.field == "body"
    with pytest.raises(InvalidMessage) as unserialisable:
        machine.draft("a", b"", {"when": object()}, True)  # type: ignore[dict-item]
    assert "when" in unserialisable.value.field
    admit(machine, "a")
    with pytest.raises(InvalidValue, match=r"limits\.topics"):
        machine.draft("b", b"", None, True)
