"""Buckets of latencies: monotone, narrow, and mergeable without loss."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from tidegate_protocol.latency import (
    BUCKETS,
    LATENCY_US_MAX,
    bucket_bounds_us,
    bucket_middle_us,
    bucket_of,
    difference,
    merged,
    quantile_us,
)

latencies = st.integers(0, LATENCY_US_MAX)


@given(latencies)
def test_a_latency_is_within_its_bucket_and_near_its_middle(latency_us: int) -> None:
    bucket = bucket_of(latency_us)
    lowest, above = bucket_bounds_us(bucket)
    assert 0 <= bucket < BUCKETS
    assert lowest <= latency_us < above
    assert abs(bucket_middle_us(bucket) - latency_us) <= 0.02 * latency_us


@given(latencies, latencies)
def test_buckets_are_in_the_order_of_latencies(one: int, other: int) -> None:
    assert (bucket_of(one) <= bucket_of(other)) == (one <= other) or bucket_of(one) == bucket_of(other)


def test_buckets_leave_nothing_out() -> None:
    bounds = [bucket_bounds_us(bucket) for bucket in range(BUCKETS)]
    assert bounds[0][0] == 0
    assert all(one[1] == other[0] for one, other in pairwise(bounds))
    assert bounds[-1][1] == LATENCY_US_MAX + 1


@given(st.lists(st.lists(latencies, max_size=30), max_size=5))
def test_digests_of_parts_merge_to_the_digest_of_the_whole(parts: list[list[int]]) -> None:
    counts, digests = [0] * BUCKETS, []
    for part in parts:
        before = counts.copy()
        for latency_us in part:
            counts[bucket_of(latency_us)] += 1
        digests.append(difference(counts, before))
    whole = merged([difference(counts, [0] * BUCKETS)])
    assert merged(digests) == whole == merged(reversed(digests))
    assert sum(whole.values()) == sum(map(len, parts))


@given(st.lists(latencies, min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_near_the_true_one(values: list[int], share: float) -> None:
    counts = [0] * BUCKETS
    for value in values:
        counts[bucket_of(value)] += 1
    found = quantile_us(merged([difference(counts, [0] * BUCKETS)]), share)
    true = next(value for rank, value in enumerate(sorted(values), start=1) if rank >= share * len(values))
    assert found is not None
    assert abs(found - true) <= 0.02 * true + 1e-9


def test_where_there_is_nothing_there_is_no_quantile() -> None:
    assert quantile_us({}, 0.5) is None
