"""Latencies in buckets of growing width: what a subscriber counts in, and what a digest is made of.

There are `STEPS` buckets to each doubling, so that the middle of a bucket is right to within 2 % from a microsecond to
days (below `STEPS` microseconds a bucket is one microsecond wide). A digest is sparse: the numbers of the buckets that
are not empty, ascending, and a count for each.

Invariants: bucket numbers grow with the latency. They are the same everywhere and for ever: a new scheme takes a new
version of the digest. Digests merge without loss, in any order, by adding the counts of equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

STEPS_BITS: Final = 5
STEPS: Final = 1 << STEPS_BITS
LATENCY_US_MAX: Final = (1 << 40) - 1
"""Twelve days. What is older counts as that."""
BUCKETS: Final = (40 - STEPS_BITS + 1) * STEPS


def bucket_of(latency_us: int) -> int:
    """The bucket of a latency from 0 to `LATENCY_US_MAX`."""
    shift = latency_us.bit_length() - STEPS_BITS - 1
    if shift <= 0:
        return latency_us
    return (shift << STEPS_BITS) + (latency_us >> shift)


def bucket_bounds_us(bucket: int) -> tuple[int, int]:
    """The least latency in a bucket, and the least one above it."""
    shift = (bucket >> STEPS_BITS) - 1
    if shift <= 0:
        return bucket, bucket + 1
    lowest = (bucket - (shift << STEPS_BITS)) << shift
    return lowest, lowest + (1 << shift)


def bucket_middle_us(bucket: int) -> float:
    """What stands for the latencies in a bucket."""
    lowest, above = bucket_bounds_us(bucket)
    return float(lowest) if above == lowest + 1 else (lowest + above) / 2


def difference(now: Sequence[int], before: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What was counted between two moments, as a digest; both are counts of all buckets."""
    changed = [
        (bucket, count - old) for bucket, (count, old) in enumerate(zip(now, before, strict=True)) if count > old
    ]
    return tuple(bucket for bucket, _ in changed), tuple(count for _, count in changed)


def merged(digests: Iterable[tuple[Sequence[int], Sequence[int]]]) -> dict[int, int]:
    """All digests together, by bucket."""
    total: dict[int, int] = {}
    for buckets, counts in digests:
        for bucket, count in zip(buckets, counts, strict=True):
            total[bucket] = total.get(bucket, 0) + count
    return dict(sorted(total.items()))


def quantile_us(counts: Mapping[int, int], share: float) -> float | None:
    """The latency that `share` of all did not exceed; None where there is none."""
    wanted = share * sum(counts.values())
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if counts[bucket] and seen >= wanted:
            return bucket_middle_us(bucket)
    return None
