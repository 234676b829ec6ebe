"""Lanes and delay lines with a clock that is a number: order, bandwidth, sharing, what a late timer may make up."""

from __future__ import annotations

from itertools import groupby
from random import Random

import pytest

from tidegate_embedded.shaping import (
    CATCH_UP_S,
    QUEUE_BYTES_MIN,
    QUEUE_S,
    SLICE_BYTES,
    SLICE_S,
    DelayLine,
    Lane,
)

RATE = 100_000.0
Sent = list[tuple[float, str, bytes]]


def drain(lane: Lane[str], now_s: float) -> Sent:
    """Run the lane empty as a perfect timer would; what left when."""
    sent: Sent = []
    while (due_s := lane.next_due_s()) is not None:
        assert due_s >= now_s, "time runs forward"
        now_s = due_s
        popped = lane.pop_due(now_s)
        assert popped, "when something is due, something comes"
        sent += [(now_s, flow, bytes(data)) for flow, data in popped]
    return sent


def joined(sent: Sent, flow: str) -> bytes:
    return b"".join(data for _, sender, data in sent if sender == flow)


def test_a_lane_passes_bandwidth_times_time() -> None:
    lane: Lane[str] = Lane(RATE)
    lane.push("a", bytes(500_000), 10.0)
    sent = drain(lane, 10.0)
    assert sent[-1][0] == pytest.approx(15.0)
    passed = 0
    for at_s, _, data in sent:
        passed += len(data)
        assert passed == pytest.approx((at_s - 10.0) * RATE)
    assert max(len(data) for _, _, data in sent) == SLICE_BYTES
    assert (lane.queued_bytes, lane.passed_bytes) == (0, 500_000)


def test_nothing_leaves_before_it_has_been_sent_completely() -> None:
    lane: Lane[str] = Lane(RATE)
    lane.push("a", bytes(1000), 10.0)
    assert lane.pop_due(10.0099) == []
    assert lane.next_due_s() == pytest.approx(10.01)
    assert [len(data) for _, data in lane.pop_due(10.0101)] == [1000]
    assert lane.next_due_s() is None


def test_a_fast_lane_takes_slices_that_a_timer_can_follow() -> None:
    lane: Lane[str] = Lane(100e6)
    lane.push("a", bytes(1_000_000), 0.0)
    assert {len(data) for _, _, data in drain(lane, 0.0)} == {int(100e6 * SLICE_S)}


@pytest.mark.parametrize("rate", [1.0, 500.0, SLICE_BYTES / CATCH_UP_S / 2])
def test_the_slowest_lane_moves(rate: float) -> None:
    """A slice may take longer than what a late timer may make up."""
    lane: Lane[str] = Lane(rate)
    lane.push("a", bytes(3 * SLICE_BYTES), 0.0)
    assert drain(lane, 0.0)[-1][0] == pytest.approx(3 * SLICE_BYTES / rate)


def test_all_flows_share_one_queue_in_the_order_of_arrival() -> None:
    lane: Lane[str] = Lane(RATE)
    lane.push("busy", b"1" * 50_000, 0.0)
    lane.push("quiet", b"2" * 100, 0.0)
    lane.push("busy", b"3" * 5_000, 0.0)
    sent = drain(lane, 0.0)
    assert [flow for flow, _ in groupby(flow for _, flow, _ in sent)] == ["busy", "quiet", "busy"]
    [quiet_s] = [at_s for at_s, flow, _ in sent if flow == "quiet"]
    assert quiet_s == pytest.approx(0.501), "the quiet flow waits behind the busy one, as on a real uplink"


def test_bytes_of_a_flow_come_out_as_they_went_in() -> None:
    chance = Random(4711)
    lane: Lane[str] = Lane(RATE)
    fed = dict.fromkeys("abc", b"")
    sent: Sent = []
    now_s = 0.0
    for _ in range(300):
        flow, data = chance.choice("abc"), chance.randbytes(chance.randrange(1, 6000))
        fed[flow] += data
        lane.push(flow, data, now_s)
        now_s += chance.random() * 0.05
        sent += [(now_s, sender, bytes(part)) for sender, part in lane.pop_due(now_s)]
        if chance.random() < 0.1:
            lane.set_rate(chance.choice([RATE / 2, RATE * 3, None]), now_s)
    lane.set_rate(RATE, now_s)
    sent += drain(lane, now_s)
    assert {flow: joined(sent, flow) for flow in "abc"} == fed


def test_an_idle_lane_saves_nothing_up() -> None:
    lane: Lane[str] = Lane(RATE)
    lane.push("a", bytes(1000), 0.0)
    drain(lane, 0.0)
    lane.push("a", bytes(100_000), 1000.0)
    assert drain(lane, 1000.0)[-1][0] == pytest.approx(1001.0)


def test_a_late_timer_makes_up_a_little_and_no_more() -> None:
    lane: Lane[str] = Lane(RATE)
    lane.push("a", bytes(1_000_000), 0.0)
    late = sum(len(data) for _, data in lane.pop_due(5.0))
    assert CATCH_UP_S * RATE - SLICE_BYTES < late <= CATCH_UP_S * RATE + SLICE_BYTES


def test_timers_that_are_always_a_little_late_cost_no_bandwidth() -> None:
    lane: Lane[str] = Lane(RATE)
    lane.push("a", bytes(1_000_000), 0.0)
    now_s = 0.0
    while (due_s := lane.next_due_s()) is not None:
        now_s = due_s + CATCH_UP_S / 2
        lane.pop_due(now_s)
    assert now_s == pytest.approx(10.0, abs=CATCH_UP_S)


def test_a_lane_without_bandwidth_holds_nothing() -> None:
    lane: Lane[str] = Lane(None)
    lane.push("a", bytes(10_000_000), 0.0)
    assert [len(data) for _, data in lane.pop_due(0.0)] == [10_000_000]
    assert not lane.is_full
    assert lane.next_due_s() is None


def test_a_new_bandwidth_holds_from_now_on() -> None:
    lane: Lane[str] = Lane(RATE)
    lane.push("a", bytes(300_000), 0.0)
    passed = 0
    while (due_s := lane.next_due_s()) is not None and due_s <= 1.0:
        passed += sum(len(data) for _, data in lane.pop_due(due_s))
    lane.set_rate(RATE / 10, 1.0)
    assert drain(lane, 1.0)[-1][0] == pytest.approx(1.0 + (300_000 - passed) / (RATE / 10))


def test_a_lane_is_full_after_seconds_of_its_bandwidth() -> None:
    lane: Lane[str] = Lane(RATE)
    seen = []
    for size in (int(RATE * QUEUE_S) - 1, 1):
        lane.push("a", bytes(size), 0.0)
        seen.append(lane.is_full)
    assert seen == [False, True]
    assert Lane[str](1.0).queue_bytes_max == QUEUE_BYTES_MIN, "the slowest lane still takes a few messages"


def test_marks_keep_their_place() -> None:
    lane: Lane[str] = Lane(RATE)
    lane.push("a", bytes(3000), 0.0)
    lane.push("a", b"", 0.0)
    lane.push("b", b"after", 0.0)
    sent = drain(lane, 0.0)
    assert [(flow, len(data)) for _, flow, data in sent] == [("a", 2048), ("a", 952), ("a", 0), ("b", 5)]


def test_a_flow_that_is_gone_leaves_room_for_the_others() -> None:
    lane: Lane[str] = Lane(RATE)
    gone, other = "gone", "other"
    lane.push(gone, bytes(400_000), 0.0)
    lane.push(other, b"here", 0.0)
    assert lane.is_full
    lane.forget(gone)
    assert lane.queued_bytes == 4
    assert joined(drain(lane, 0.0), other) == b"here"


def test_a_delay_line_gives_back_in_order_after_the_delay() -> None:
    line = DelayLine(0.5)
    line.push(memoryview(b"one"), 1.0)
    line.push(memoryview(b"two"), 1.2)
    assert line.pop_due(1.49) == []
    assert line.next_due_s() == pytest.approx(1.5)
    assert [bytes(data) for data in line.pop_due(1.5)] == [b"one"]
    assert line.held_bytes == 3
    assert [bytes(data) for data in line.pop_due(2.0)] == [b"two"]
    assert line.next_due_s() is None


def test_a_shrinking_delay_overtakes_nothing() -> None:
    line = DelayLine(1.0)
    line.push(memoryview(b"slow"), 0.0)
    line.delay_s = 0.1
    line.push(memoryview(b"quick"), 0.2)
    assert line.pop_due(0.9) == []
    assert [bytes(data) for data in line.pop_due(1.0)] == [b"slow", b"quick"]
    line.push(memoryview(b"later"), 2.0)
    assert [bytes(data) for data in line.pop_due(2.2)] == [b"later"]
