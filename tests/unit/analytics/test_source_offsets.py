"""Offsets of the Spark source: their JSON, what lies between two of them, sharing a limit, cutting ranges."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from rabbitmq_stream_source.errors import BadCheckpoint
from rabbitmq_stream_source.offsets import (
    Offsets,
    Position,
    Range,
    StreamKey,
    plan,
    ranges_between,
    share,
    split,
)

A, B = StreamKey("north", "a"), StreamKey("south", "a")
keys = st.builds(StreamKey, st.text(max_size=5), st.text(max_size=5))
offsets = st.integers(0, 2**63 - 1)


def at(first: int, following: int, **others: tuple[int, int]) -> Offsets:
    """Stream A at a position, and others by name."""
    positions = {A: Position(first, following)}
    positions |= {StreamKey("north", name): Position(*numbers) for name, numbers in others.items()}
    return Offsets(positions)


@given(st.dictionaries(keys, st.builds(Position, offsets, offsets)), st.booleans())
def test_offsets_survive_the_checkpoint(positions: dict[StreamKey, Position], initial: bool) -> None:
    stored = json.dumps(Offsets(positions, initial).to_json())
    assert Offsets.from_json(json.loads(stored)) == Offsets(positions, initial)


def test_equal_offsets_are_equal_as_text() -> None:
    one, other = {A: Position(0, 1), B: Position(0, 2)}, {B: Position(0, 2), A: Position(0, 1)}
    assert json.dumps(Offsets(one).to_json()) == json.dumps(Offsets(other).to_json())


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"version": 2, "initial": False, "brokers": {}},
        {"version": 1, "initial": False},
        {"version": 1, "initial": False, "brokers": {"b": {"s": 3}}},
        {"version": 1, "initial": False, "brokers": {"b": {"s": {"first": 0, "next": -1}}}},
        {"version": 1, "initial": False, "brokers": {"b": {"s": {"first": 0, "next": "1"}}}},
    ],
)
def test_a_checkpoint_of_another_kind_is_refused(stored: dict[str, object]) -> None:
    with pytest.raises(BadCheckpoint, match="checkpointLocation"):
        Offsets.from_json(stored)


def test_a_batch_reads_what_lies_between() -> None:
    assert ranges_between(at(0, 5), at(0, 9)) == [Range(A, 5, 9)]
    assert ranges_between(at(0, 5), at(0, 5)) == []


def test_a_new_stream_is_read_from_where_it_was_found() -> None:
    assert ranges_between(at(0, 5), at(0, 5, new=(3, 8))) == [Range(StreamKey("north", "new"), 3, 8)]


def test_the_first_batch_begins_where_it_began_the_first_time() -> None:
    """Spark asks for the initial offset again when the first batch is run again; "latest" is another one by then."""
    asked_again = Offsets({A: Position(100, 100)}, initial=True)
    assert ranges_between(asked_again, at(10, 60)) == [Range(A, 10, 60)]


def test_lost_offsets_are_passed_over() -> None:
    assert ranges_between(at(0, 5), at(20, 30)) == [Range(A, 20, 30)]


def test_a_stream_made_anew_is_read_from_its_beginning() -> None:
    assert ranges_between(at(0, 500), at(0, 30)) == [Range(A, 0, 30)]


def test_a_stream_that_is_gone_is_not_read() -> None:
    assert ranges_between(at(0, 5, gone=(0, 7)), at(0, 9, gone=(0, 7))) == [Range(A, 5, 9)]


@given(st.dictionaries(keys, st.integers(0, 10_000), max_size=8), st.integers(1, 20_000))
def test_sharing_keeps_the_limit_and_wastes_nothing(backlogs: dict[StreamKey, int], rows_max: int) -> None:
    granted = share(backlogs, rows_max)
    assert granted.keys() == backlogs.keys()
    assert all(0 <= granted[key] <= backlogs[key] for key in backlogs)
    assert sum(granted.values()) == min(rows_max, sum(backlogs.values()))


@given(st.dictionaries(keys, st.integers(1, 10_000), min_size=1, max_size=8), st.integers(8, 20_000))
def test_nobody_goes_without_and_the_large_ones_share_equally(backlogs: dict[StreamKey, int], rows_max: int) -> None:
    granted = share(backlogs, rows_max)
    assert all(granted.values())
    cut = [granted[key] for key in backlogs if granted[key] < backlogs[key]]
    if cut:
        assert max(cut) - min(cut) <= 1
        assert max(granted.values()) <= max(cut)


@given(offsets, st.integers(0, 5_000), st.integers(1, 700))
def test_a_range_is_cut_without_gap_or_overlap(start: int, rows: int, rows_per_part: int) -> None:
    parts = split(Range(A, start, start + rows), rows_per_part)
    assert [offset for part in parts for offset in range(part.start, part.end)] == list(range(start, start + rows))
    assert len(parts) == -(-rows // rows_per_part)
    if parts:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_partitions_are_bounded_in_number() -> None:
    huge = [Range(A, 0, 10**12), Range(B, 0, 10**12)]
    parts = plan(huge, 1_000, parts_max=100)
    assert len(parts) == 100
    assert sum(map(len, parts)) == 2 * 10**12
    assert len(plan(huge, 10**12, parts_max=100)) == 2
    assert plan([], 1_000, parts_max=100) == []
