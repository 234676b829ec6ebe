"""The form of decision records: pinned by golden files, labelled from closed sets, tolerant of other versions."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from enum import StrEnum
from math import inf

import pytest
from decision_samples import GOLDEN, SAMPLES, golden_text

from tidegate_protocol import decisions as d
from tidegate_protocol.rendering import clauses, said, sentence, why

by_kind = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind)


def test_every_kind_has_a_sample_and_a_golden_file() -> None:
    kinds = sorted(each.kind for each in d.DECISIONS)
    assert sorted(sample.kind for sample in SAMPLES) == kinds
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == kinds


def test_every_record_class_is_part_of_the_union() -> None:
    # By name: slots make a second class of each.
    written = {
        each.__name__ for each in d.Decision.__subclasses__() if each.__module__.startswith("tidegate_protocol.")
    }
    assert written - {"UnknownDecision"} == {each.__name__ for each in d.DECISIONS}


@by_kind
def test_samples_fill_in_every_field(sample: d.Decision) -> None:
    assert set(d.to_plain(sample)) == {"kind", *(each.name for each in fields(sample))}


@by_kind
def test_the_form_is_what_the_golden_file_says(sample: d.Decision) -> None:
    text = (GOLDEN / f"{sample.kind}.json").read_text()
    assert golden_text(sample) == text, "the form changed; see decision_samples.py if that is intended"
    assert d.from_plain(json.loads(text)) == sample


@by_kind
def test_labels_come_from_enums(sample: d.Decision) -> None:
    """A kind with an outcome or a reason has an enum for it; another one has the label that says so."""
    if sample.labels is None:
        assert sample.label == d.NO_REASON
        assert not any(hasattr(sample, name) for name in ("outcome", "reason"))
    else:
        assert issubclass(sample.labels, StrEnum)
        assert sample.label in set(sample.labels)
    assert sample.label in d.LABELS


@by_kind
def test_fields_of_a_newer_version_are_ignored(sample: d.Decision) -> None:
    assert d.from_plain({**d.to_plain(sample), "added-later": {"deep": [1, 2]}}) == sample


@by_kind
@pytest.mark.parametrize("spoilt", [None, [], {"deep": 1}, "\x00" * 5])
def test_a_form_that_cannot_be_read_is_unknown_and_no_error(sample: d.Decision, spoilt: object) -> None:
    for each in fields(sample):
        if each.name == "session":
            continue
        read = d.from_plain({**d.to_plain(sample), each.name: spoilt})
        assert isinstance(read, type(sample)) or read == d.UnknownDecision(decided=sample.kind, session=sample.session)


@pytest.mark.parametrize(
    ("data", "decided"),
    [({"kind": "prophecy"}, "prophecy"), ("session-empty", "session-empty"), ({}, "None"), (7, "7")],
)
def test_an_unknown_kind_is_told_as_such(data: object, decided: str) -> None:
    assert d.from_plain(data) == d.UnknownDecision(decided=decided)


def test_what_is_written_is_bounded() -> None:
    plan = next(sample for sample in SAMPLES if isinstance(sample, d.SessionPlanned))
    long = replace(plan, source="x" * 5_000, rejected=plan.rejected * 500, drain_factor=inf)
    plain = d.to_plain(long)
    assert len(str(plain["source"])) == d.TEXT_MAX
    assert isinstance(plain["rejected"], list)
    assert len(plain["rejected"]) == d.ITEMS_MAX
    assert "Infinity" not in json.dumps(plain)
    assert isinstance(d.from_plain(plain), d.SessionPlanned)


@by_kind
def test_every_kind_has_a_rendering(sample: d.Decision) -> None:
    words = said(sample)
    assert words.about
    assert words.what
    assert sentence(sample).startswith(words.about)


def test_every_outcome_of_every_kind_can_be_said() -> None:
    """Whatever enum stands in whatever field, there are words for it."""
    for sample in SAMPLES:
        for each in fields(sample):
            value = getattr(sample, each.name)
            for member in type(value) if isinstance(value, StrEnum) else ():
                assert sentence(replace(sample, **{each.name: member}))


def test_a_decision_of_another_version_can_be_said() -> None:
    assert "prophecy" in sentence(d.from_plain({"kind": "prophecy"}))


def test_a_head_tells_of_a_session_why_its_edge_asked() -> None:
    """`tidegate status` shows it beside the session."""
    offered = next(sample for sample in SAMPLES if isinstance(sample, d.SessionCandidates))
    assert offered.cause is not None
    assert why(offered) == clauses.cause(offered.cause)
    assert "2 candidates with room" in why(replace(offered, cause=None))
