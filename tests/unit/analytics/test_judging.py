"""What the lake takes, and why not. The table of all reasons is tested through Spark, in the lake's own tests."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from tests.unit.protocol.telemetry_samples import SAMPLES
from tidegate_analytics.judging import AGE_MAX_S, FUTURE_MAX_S, REASONS, judge
from tidegate_analytics.schemas import WHOLE_MAX
from tidegate_protocol.telemetry import decode, encode

SAMPLE = next(sample for sample in SAMPLES if sample.kind == "latency")
NOW_US = SAMPLE.time_us
SECOND_US = 1_000_000
SCALARS = st.none() | st.integers() | st.text()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind)
def test_every_kind_is_taken_as_it_is(sample: object) -> None:
    verdict = judge(encode(sample), NOW_US)  # type: ignore[arg-type]
    assert (verdict.reason, verdict.time_us) == (None, NOW_US)
    assert verdict.record is not None
    assert decode(verdict.record.encode()) == sample


@pytest.mark.parametrize(
    ("now_us", "reason"),
    [
        (NOW_US - FUTURE_MAX_S * SECOND_US, None),
        (NOW_US - FUTURE_MAX_S * SECOND_US - 1, "future-time"),
        (NOW_US + AGE_MAX_S * SECOND_US, None),
        (NOW_US + AGE_MAX_S * SECOND_US + 1, "past-time"),
    ],
)
def test_a_clock_may_be_off_so_much_and_not_more(now_us: int, reason: str | None) -> None:
    verdict = judge(encode(SAMPLE), now_us)
    assert verdict.reason == reason
    if reason is not None:
        assert verdict.detail is not None
        assert f"set the clock of {SAMPLE.broker}" in verdict.detail


@pytest.mark.parametrize(("value", "reason"), [(WHOLE_MAX, None), (WHOLE_MAX + 1, "impossible-value")])
def test_whole_numbers_are_exact_or_refused(value: int, reason: str | None) -> None:
    body = json.dumps({**json.loads(encode(SAMPLE)), "received": value}).encode()
    assert judge(body, NOW_US).reason == reason


@given(
    st.binary(max_size=300)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_any_bytes_get_a_verdict(body: bytes) -> None:
    assert judge(body, NOW_US).reason in REASONS


@given(
    st.dictionaries(
        st.sampled_from(sorted(json.loads(encode(SAMPLE)))), st.none() | st.integers() | st.floats() | st.text()
    )
)
def test_any_fields_get_a_verdict(fields: dict[str, object]) -> None:
    verdict = judge(json.dumps({**json.loads(encode(SAMPLE)), **fields}).encode(), NOW_US)
    assert (verdict.reason is None) == (verdict.record is not None)
    assert verdict.reason is None or verdict.reason in REASONS
