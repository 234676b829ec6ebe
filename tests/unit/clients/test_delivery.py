"""Exactly once: whatever is repeated or comes back, each message is new once, and acknowledged only when
settled.
"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tidegate._core.delivery import GAP_AGE_S, GAPS_MAX, AckLedger, Deduplicator, Verdict

WANTED = (Verdict.NEW, Verdict.REORDERED)


def ids(sequences: list[int], prefix: str = "p~1:a.b") -> list[str]:
    return [f"{prefix}:{sequence}" for sequence in sequences]


@st.composite
def resent(draw: st.DrawFn) -> tuple[int, list[int]]:
    """What a link delivers that is cut now and then: it goes on from any earlier message."""
    count = draw(st.integers(1, 60))
    sent: list[int] = []
    position = 0
    for _ in range(draw(st.integers(0, 8))):
        end = draw(st.integers(position, count))
        sent += range(position, end)
        position = draw(st.integers(0, end))
    return count, [*sent, *range(position, count)]


@given(resent())
def test_messages_sent_again_from_any_point_arrive_once_and_in_order(case: tuple[int, list[int]]) -> None:
    count, sent = case
    deduplicator = Deduplicator(10)
    seen = [n for n, name in zip(sent, ids(sent), strict=True) if deduplicator.judge(name, 0.0) is Verdict.NEW]
    deduplicator.validate()
    assert seen == list(range(count))
    assert deduplicator.duplicates == len(sent) - count
    assert deduplicator.missing(1e9) == 0


@given(st.integers(1, 40).flatmap(lambda n: st.permutations([*range(n), *range(n // 2)])))
def test_any_order_with_repetitions_yields_each_message_once(sequences: list[int]) -> None:
    deduplicator = Deduplicator(10)
    seen = []
    for sequence, name in zip(sequences, ids(sequences), strict=True):
        if deduplicator.judge(name, 0.0) in WANTED:
            seen.append(sequence)
        deduplicator.validate()
    assert sorted(seen) == sorted(set(sequences))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=80))
def test_streams_do_not_disturb_each_other(deliveries: list[tuple[str, int]]) -> None:
    together = Deduplicator(10)
    alone = {publisher: Deduplicator(10) for publisher in "abc"}
    for publisher, sequence in deliveries:
        name = f"{publisher}~1:t:{sequence}"
        assert together.judge(name, 0.0) is alone[publisher].judge(name, 0.0)


def test_a_gap_counts_as_missing_only_after_its_time_and_no_longer_once_filled() -> None:
    deduplicator = Deduplicator(10)
    for name in ids([0, 1, 4]):
        deduplicator.judge(name, 100.0)
    assert deduplicator.missing(100.0 + GAP_AGE_S - 1) == 0
    assert deduplicator.missing(100.0 + GAP_AGE_S) == 2
    assert deduplicator.judge("p~1:a.b:2", 200.0) is Verdict.REORDERED
    assert deduplicator.missing(200.0) == 1


def test_what_came_before_the_first_message_is_delivered_but_not_owed() -> None:
    deduplicator = Deduplicator(10)
    assert [deduplicator.judge(name, 0.0) for name in ids([7, 5, 5])] == [
        Verdict.NEW,
        Verdict.REORDERED,
        Verdict.DUPLICATE,
    ]
    assert deduplicator.missing(1e9) == 0


def test_gaps_are_bounded_and_what_is_given_up_is_counted() -> None:
    deduplicator = Deduplicator(10)
    for name in ids(list(range(0, 2 * (GAPS_MAX + 10), 2))):
        deduplicator.judge(name, 0.0)
        deduplicator.validate()
    assert deduplicator.missing(0.0) == 9


@pytest.mark.parametrize(("first", "owed"), [(0, 9), (2 * GAPS_MAX + 10, 0)], ids=["skipped", "before the first"])
def test_gaps_that_are_filled_in_their_middle_are_bounded_too(first: int, owed: int) -> None:
    """What comes backwards, every second one missing, makes two gaps of one each time."""
    deduplicator = Deduplicator(10)
    last = 2 * GAPS_MAX + 10
    for name in ids([first, last, *range(last - 2, 0, -2)]):
        deduplicator.judge(name, 0.0)
        deduplicator.validate()
    assert deduplicator.missing(0.0) == owed, "the oldest is given up, and counts unless it was never owed"


def test_the_least_recently_seen_stream_is_forgotten_first() -> None:
    deduplicator = Deduplicator(2)
    for publisher in ("a", "b", "a", "c"):
        deduplicator.judge(f"{publisher}~1:t:0", 0.0)
    assert len(deduplicator) == 2
    assert deduplicator.forgotten_streams == 1
    assert deduplicator.judge("a~1:t:0", 0.0) is Verdict.DUPLICATE
    assert deduplicator.judge("b~1:t:0", 0.0) is Verdict.NEW


def test_foreign_ids_are_always_wanted() -> None:
    deduplicator = Deduplicator(2)
    deduplicator.judge("p~1:t:0", 0.0)
    for name in (None, "", "abc", "p~1:t:x", "p~1:t:-1", "a:b:3", "p~1:t:1_0"):
        assert deduplicator.judge(name, 0.0) is Verdict.FOREIGN
    assert deduplicator.foreign == 7


@given(st.integers(1, 40).flatmap(lambda n: st.permutations(range(1, n + 1))), st.integers(1, 8), st.data())
def test_only_settled_tags_are_acknowledged_and_each_once(
    order: list[int], singles_at: int, data: st.DataObject
) -> None:
    ledger = AckLedger(singles_at)
    settled: set[int] = set()
    acknowledged: set[int] = set()
    for tag in order:
        ledger.settle(tag)
        settled.add(tag)
        if data.draw(st.booleans()):
            for last, multiple in ledger.take():
                covered = set(range(1, last + 1)) - acknowledged if multiple else {last}
                # RabbitMQ closes the channel on a tag it does not know any more.
                assert last not in acknowledged
                assert covered <= settled
                acknowledged |= covered
        ledger.validate()
    for last, multiple in ledger.take():
        acknowledged |= set(range(1, last + 1)) if multiple else {last}
    assert acknowledged == set(order)
