"""The form of telemetry records: pinned by golden files, tolerant of additions, strict about the rest."""

from __future__ import annotations

import json

import pytest
from telemetry_samples import GOLDEN, SAMPLES, golden_text

from tidegate_protocol import telemetry as t
from tidegate_protocol.errors import MalformedMessage

by_kind = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind)


def test_every_kind_has_a_sample_and_a_golden_file() -> None:
    assert len(set(t.KINDS)) == len(t.KINDS), "two classes share a kind"
    assert sorted(sample.kind for sample in SAMPLES) == sorted(t.KINDS)
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == sorted(t.KINDS)


@by_kind
def test_samples_fill_in_every_field(sample: t.TelemetryRecord) -> None:
    assert set(json.loads(t.encode(sample))) == set(type(sample).model_fields)


@by_kind
def test_encoding_is_what_the_golden_file_says(sample: t.TelemetryRecord) -> None:
    text = (GOLDEN / f"{sample.kind}.json").read_text()
    assert golden_text(sample) == text, "the form changed; see telemetry_samples.py if that is intended"
    assert t.decode(text.encode()) == sample


@by_kind
def test_records_begin_with_what_all_of_them_have(sample: t.TelemetryRecord) -> None:
    assert list(json.loads(t.encode(sample)))[:4] == ["version", "time_us", "cluster", "broker"]


@by_kind
def test_unknown_fields_are_ignored(sample: t.TelemetryRecord) -> None:
    body = {**json.loads(t.encode(sample)), "added-later": {"deep": [1, 2]}}
    assert t.decode(json.dumps(body).encode()) == sample


@by_kind
def test_another_version_is_refused(sample: t.TelemetryRecord) -> None:
    body = {**json.loads(t.encode(sample)), "version": 2}
    with pytest.raises(MalformedMessage, match="version") as caught:
        t.decode(json.dumps(body).encode())
    assert caught.value.reason == "unknown-version"


@by_kind
@pytest.mark.parametrize("field", ["time_us", "cluster", "broker"])
def test_a_record_without_its_origin_is_refused_by_name(sample: t.TelemetryRecord, field: str) -> None:
    body = json.loads(t.encode(sample))
    del body[field]
    with pytest.raises(MalformedMessage) as caught:
        t.decode(json.dumps(body).encode())
    assert caught.value.reason == "invalid-field"
    assert field in caught.value.detail


LATENCY = json.loads((GOLDEN / "latency.json").read_text())


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        (b"", "not-json", ""),
        (b"\xff", "not-json", ""),
        (b" " * (t.RECORD_BYTES_MAX + 1), "too-large", "bytes"),
        (b"[]", "invalid-field", ""),
        (b"{}", "unknown-kind", ""),
        (b'{"version":1,"kind":"gossip"}', "unknown-kind", "gossip"),
        (json.dumps({**LATENCY, "counts": [1]}).encode(), "invalid-field", "counts: 1 for 3 buckets"),
        (json.dumps({**LATENCY, "counts": [1, 0, 1]}).encode(), "invalid-field", "counts.1"),
        (json.dumps({**LATENCY, "buckets": [3, 3, 4]}).encode(), "invalid-field", "buckets: not ascending"),
        (json.dumps({**LATENCY, "buckets": [0, 1, 10**6]}).encode(), "invalid-field", "buckets.2"),
        (json.dumps({**LATENCY, "deadline_us": 0}).encode(), "invalid-field", "deadline_us"),
        (json.dumps({**LATENCY, "pattern": "a..b"}).encode(), "invalid-field", "pattern"),
        (json.dumps({**LATENCY, "late": -1}).encode(), "invalid-field", "late"),
    ],
)
def test_malformed_records_have_a_reason_and_name_the_field(body: bytes, reason: str, words: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        t.decode(body)
    assert caught.value.reason == reason
    assert words in caught.value.detail
