"""Plain messages of a subscription that moves: the overlap of two queues, counted by content."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.moving_client import PlainClient, collect, only
from tidegate._core.migration import LINGER
from tidegate._core.moves import Attach, Attached, SetTimer, TimerFired
from tidegate._core.overlap import (
    OVERLAP_S,
    RACE_POSITIONS,
    RACE_S,
    Overlap,
    PlainLog,
    fingerprint,
)
from tidegate._core.repetitions import OVERLAP


def test_what_came_through_both_queues_is_handed_over_once_and_in_order() -> None:
    client = PlainClient()
    client.comes(client.old, "1", "2", "3")
    new = client.begin()
    client.comes(new, "3", "4")
    client.comes(client.old, "4")
    client.marked(new)
    client.comes(new, "5", "6", "7")
    client.marked(client.old)
    assert client.handed == list("1234567")
    assert not client.machine.migrating


def test_what_the_new_queue_has_still_to_repeat_is_dropped_when_it_comes() -> None:
    client = PlainClient()
    new = client.begin()
    client.marked(client.old)
    client.comes(client.old, "1", "2", "3")
    client.marked(new)
    assert client.machine.plain != new, "the new queue owes three messages"
    client.comes(new, "1", "2", "3", "4")
    assert client.handed == list("1234")
    assert client.machine.plain == new, "nothing is owed any more"


def test_a_marker_that_overtakes_its_order_counts() -> None:
    client = PlainClient()
    client.comes(client.old, "1")
    client.marked(client.old)
    client.comes(client.old, "2", "3")
    new = client.begin()
    client.marked(new)
    client.comes(new, "2", "3", "4")
    assert client.handed == list("1234")


@pytest.mark.parametrize("before_bind", range(3))
@pytest.mark.parametrize("before_marker", range(3))
@pytest.mark.parametrize("after_old", range(3))
@pytest.mark.parametrize("after_new", range(3))
def test_a_sensor_that_says_the_same_again_and_again(
    before_bind: int, before_marker: int, after_old: int, after_new: int
) -> None:
    client = PlainClient()
    client.comes(client.old, *["same"] * (before_bind + before_marker))
    new = client.begin()
    client.marked(client.old)
    client.comes(client.old, *["same"] * after_old)
    client.comes(new, *["same"] * before_marker)
    client.marked(new)
    client.comes(new, *["same"] * after_new)
    published = before_bind + before_marker + max(after_old, after_new)
    assert len(client.handed) == published
    client.comes(new, *["same"] * (after_old - after_new + 2))
    assert len(client.handed) == before_bind + before_marker + max(after_old, after_new, after_old + 2)


def test_a_message_that_raced_with_the_marker_is_recognised_on_either_side() -> None:
    client = PlainClient(linger_s=2 * RACE_S)
    client.comes(client.old, "1", "2", pause_s=RACE_S / 4)
    client.marked(client.old)
    new = client.begin()
    client.marked(new)
    client.comes(new, "2", "3", pause_s=RACE_S / 4)
    client.carry_out(client.do(TimerFired(LINGER), after_s=2 * RACE_S))
    assert client.handed == list("123"), "2 was before the marker in the old queue, after it in the new one"
    client = PlainClient()
    new = client.begin()
    client.comes(new, "1", "2")
    client.marked(new)
    client.comes(client.old, "1")
    client.marked(client.old)
    assert client.handed == list("12"), "2 had not come through the old queue when that was left"
    client.comes(new, "3", "1")
    assert client.handed == list("1231"), "1 again is another message"


def test_a_value_that_comes_back_later_is_no_race() -> None:
    client = PlainClient()
    client.comes(client.old, "20 degrees")
    new = client.begin()
    client.now += 2 * RACE_S
    client.marked(client.old)
    client.marked(new)
    client.comes(new, "20 degrees")
    assert client.handed == ["20 degrees"] * 2


def test_what_never_comes_through_the_new_queue_costs_no_later_message() -> None:
    """A message that was routed before the bind, and enqueued in the old link behind the marker."""
    client = PlainClient()
    new = client.begin()
    client.marked(client.old)
    client.comes(client.old, "late")
    switched = client.mark(new)
    assert SetTimer(OVERLAP, OVERLAP_S) in switched
    client.do(TimerFired(OVERLAP))
    client.comes(new, "late")
    assert client.handed == ["late", "late"]
    client = PlainClient()
    new = client.begin()
    client.marked(client.old)
    client.comes(client.old, "late")
    client.marked(new)
    others = [str(number) for number in range(3 * RACE_POSITIONS)]
    client.comes(new, *others, "late")
    assert client.handed == ["late", *others, "late"]


def test_several_heads_and_contents_that_do_not_repeat() -> None:
    client = PlainClient()
    client.comes(client.old, "a1", "b1")
    new = client.begin(heads=("h0", "h1"))
    client.comes(new, "a1")
    client.marked(new, "h0")
    client.comes(new, "b1", "a2", "b2")
    client.marked(client.old, "h1")
    client.comes(client.old, "b2", "b3")
    client.marked(new, "h1")
    client.comes(new, "b3", "a3")
    client.marked(client.old, "h0")
    client.comes(new, "b4")
    assert [text for text in client.handed if text[0] == "a"] == ["a1", "a2", "a3"]
    assert [text for text in client.handed if text[0] == "b"] == ["b1", "b2", "b3", "b4"]


def test_several_heads_and_a_content_that_repeats_is_never_lost() -> None:
    for early in ("h0", "h1"):
        client = PlainClient()
        client.comes(client.old, "same", "same")
        new = client.begin(heads=("h0", "h1"))
        for head in (early, *{"h0", "h1"} - {early}):
            client.marked(new, head)
            client.comes(new, "same")
        client.marked(client.old, "h0")
        client.marked(client.old, "h1")
        assert len(client.handed) == 4


def test_what_is_collected_is_handed_over_and_does_not_count() -> None:
    client = PlainClient()
    _, actions = client.ask(collect())
    slot = only(actions, Attach).slot
    client.do(Attached(slot))
    client.comes(slot, "waited")
    assert client.handed == ["waited"]
    assert client.log.count == 0


def test_a_move_that_outgrows_the_log_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate._core.overlap.PLAIN_KEPT_MAX", 10)
    monkeypatch.setattr("tidegate._core.overlap.PLAIN_COUNTED_MAX", 100)
    client = PlainClient()
    client.begin()
    client.marked(client.old)
    client.comes(client.old, *["x"] * 100)
    assert client.machine.migrating
    client.comes(client.old, "x")
    assert not client.machine.migrating
    assert client.machine.moves == 0
    assert client.log.count - client.log.first == 10


def test_without_the_markers_nothing_is_taken_for_a_repetition() -> None:
    log = PlainLog()
    log.add(b"x", 0.0)
    overlap = Overlap(log, {}, {}, [(b"x", 0.0)], 1.0)
    assert not overlap
    assert not overlap.take(b"x")


def test_a_fingerprint_tells_contents_apart_and_nothing_else() -> None:
    contents = [
        fingerprint(*content)
        for content in (
            ("a.b", b"body", None, None),
            ("a.c", b"body", None, None),
            ("a.b", b"bodies", None, None),
            ("a.b", b"body", "id", None),
            ("a.b", b"body", None, {"x": 1}),
            ("a.b", b"body", None, {"x": "1"}),
        )
    ]
    assert len(set(contents)) == len(contents)
    assert fingerprint("a.b", b"body", None, {}) == contents[0]
    assert all(one != other for one, other in pairwise(contents))
