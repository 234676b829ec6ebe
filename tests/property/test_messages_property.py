"""Round trips of control messages and ids, with messages made from the declarations themselves.

A new kind, or a new field of a type that is known here, is tested without a line being written.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel

from tests.unit.protocol.decision_samples import SAMPLES
from tidegate_protocol import decisions as d, messages as m, telemetry as t
from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.ids import MessageId, publisher_id
from tidegate_protocol.latency import BUCKETS
from tidegate_protocol.rendering import sentence
from tidegate_protocol.reports import LatencyCounts
from tidegate_protocol.topics import ANY_WORDS_MAX, TOPIC_BYTES_MAX, check_pattern, check_topic

SHORT_STRING_BYTES_MAX = 255
REASONS = {"too-large", "not-json", "unknown-kind", "unknown-version", "invalid-field"}

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}", fullmatch=True)
publisher_ids = st.builds(publisher_id, names, st.integers(0, 36**15 - 1))
words = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp"), exclude_characters=".*#"),
    min_size=1,
    max_size=8,
)


def fits(value: str) -> bool:
    return len(value.encode()) <= TOPIC_BYTES_MAX


topics = st.lists(words, min_size=1, max_size=6).map(".".join).filter(fits)
patterns = (
    st.lists(words | st.sampled_from("*#"), min_size=1, max_size=6)
    .filter(lambda found: found.count("#") <= ANY_WORDS_MAX)
    .map(".".join)
    .filter(fits)
)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)

histograms = st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 2**53), max_size=5).map(
    lambda counts: {"buckets": st.just(tuple(sorted(counts))), "counts": st.just(tuple(counts.values()))}
)

KNOWN: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (m.Name, names),
    (m.Pattern, patterns),
    (m.Topic, topics),
    (m.PublisherId, publisher_ids),
    (m.Text, texts),
    (m.Url, texts),
    (str, texts),
    (bool, st.booleans()),
    (int, st.integers(0, 2**53)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (d.Decision, st.sampled_from(SAMPLES)),
]
"""Decisions within messages are the samples: each kind of them is made from its declaration by a test of its own."""


@cache
def values(hint: Any) -> st.SearchStrategy[Any]:
    """A strategy for one type as it is written in a message."""
    for known, strategy in KNOWN:
        if hint == known:
            return strategy
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is NoneType:
        return st.none()
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of(*(values(each) for each in arguments))
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin is Annotated:
        return bounded(arguments[0], arguments[1:])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if is_dataclass(hint):
        return parts(hint)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        hints = get_type_hints(hint, include_extras=True)
        made = {name: values(hints[name]) for name in hint.model_fields}
        if issubclass(hint, LatencyCounts):
            return histograms.flatmap(lambda found: st.builds(hint, **{**made, **found}))
        return st.builds(hint, **made)
    raise AssertionError(f"no strategy for {hint}: add it to KNOWN")


@cache
def parts(kind: Any) -> st.SearchStrategy[Any]:
    """Records of decisions, and what they consist of."""
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{each.name: values(hints[each.name]) for each in fields(kind)})


def bounded(kind: Any, annotations: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    limits: dict[str, Any] = {}
    for constraint in (each for field in annotations for each in getattr(field, "metadata", ())):
        limits.update({name: getattr(constraint, name) for name in constraint.__slots__})
        limits.update(getattr(constraint, "__dict__", {}))
    if get_origin(kind) is tuple:
        return st.lists(values(get_args(kind)[0]), min_size=limits.get("min_length", 0), max_size=3).map(tuple)
    if kind is str and "pattern" in limits:
        return st.from_regex(limits["pattern"], fullmatch=True).filter(lambda made: len(made) <= limits["max_length"])
    if kind not in (int, float):
        return values(kind)
    above, low, high = limits.get("gt"), limits.get("ge"), limits.get("le")
    if kind is int:
        return st.integers(above + 1 if above is not None else low, 2**53 if high is None else high)
    return st.floats(
        min_value=above if above is not None else low,
        exclude_min=above is not None,
        max_value=1e300 if high is None else high,
        allow_nan=False,
    )


CLASSES = get_args(get_args(m.ControlMessage)[0])
each_kind = settings(max_examples=30)
"""For tests of one kind each: there are some 150, which share the types of their fields."""


@pytest.mark.parametrize("kind", CLASSES, ids=lambda each: each.__name__)
@each_kind
@given(data=st.data())
def test_every_message_survives_the_wire(kind: type[m.ControlMessage], data: st.DataObject) -> None:
    message = data.draw(values(kind))
    body = m.encode(message)
    assert m.decode(body) == message
    assert m.encode(m.decode(body)) == body


@pytest.mark.parametrize("kind", t.RECORD_CLASSES, ids=lambda each: each.__name__)
@each_kind
@given(data=st.data())
def test_every_record_survives_the_stream(kind: type[t.TelemetryRecord], data: st.DataObject) -> None:
    record = data.draw(values(kind))
    body = t.encode(record)
    assert t.decode(body) == record
    assert t.encode(t.decode(body)) == body


@pytest.mark.parametrize("kind", d.DECISIONS, ids=lambda each: each.kind)
@each_kind
@given(data=st.data())
def test_every_decision_is_read_as_it_was_written_and_can_be_said(kind: type[d.Decision], data: st.DataObject) -> None:
    decision = data.draw(parts(kind))
    plain = json.loads(json.dumps(d.to_plain(decision)))
    assert d.from_plain(plain) == decision
    assert decision.label in d.LABELS
    assert sentence(decision)


@given(data=st.data())
def test_a_decision_with_anything_in_a_field_can_be_labelled_said_and_passed_on(data: st.DataObject) -> None:
    plain = d.to_plain(data.draw(parts(data.draw(st.sampled_from(d.DECISIONS)))))
    scalar = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    junk = st.recursive(scalar, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2))
    plain[data.draw(st.sampled_from(sorted(plain)))] = data.draw(junk)
    read = d.from_plain(plain)
    assert read.label in d.LABELS
    assert isinstance(sentence(read), str)
    assert d.from_plain(d.to_plain(read)) == read


@given(data=st.data())
def test_a_field_of_a_record_replaced_by_anything_is_refused_with_a_reason_or_understood(data: st.DataObject) -> None:
    body = json.loads(t.encode(data.draw(values(data.draw(st.sampled_from(t.RECORD_CLASSES))))))
    field = data.draw(st.sampled_from(sorted(body)))
    body[field] = data.draw(st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.none()))
    reason, detail = None, field
    try:
        record = t.decode(json.dumps(body).encode())
    except MalformedMessage as error:
        reason, detail = error.reason, error.detail
    else:
        assert t.decode(t.encode(record)) == record
    assert reason is None or reason in REASONS
    assert field in detail or reason == "unknown-kind" or field in ("buckets", "counts")


@given(data=st.data())
def test_a_field_replaced_by_anything_is_refused_with_a_reason_or_understood(data: st.DataObject) -> None:
    body = json.loads(m.encode(data.draw(values(data.draw(st.sampled_from(CLASSES))))))
    scalar = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    junk = st.recursive(scalar, lambda inner: st.lists(inner, max_size=2))
    body[data.draw(st.sampled_from(sorted(body)))] = data.draw(junk)
    reason: str | None = None
    try:
        message = m.decode(json.dumps(body).encode())
    except MalformedMessage as error:
        reason = error.reason
    else:
        assert m.decode(m.encode(message)) == message
    assert reason is None or reason in REASONS


@given(st.binary(max_size=200))
def test_noise_is_malformed_and_nothing_worse(body: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        m.decode(body)
    assert caught.value.reason in REASONS


@given(publisher_ids, topics, st.integers(0, 10**20 - 1))
def test_message_ids_survive_the_wire_and_fit_it(publisher: str, topic: str, sequence: int) -> None:
    identity = MessageId(publisher, topic, sequence)
    assert MessageId.parse(str(identity)) == identity
    assert len(str(identity).encode()) <= SHORT_STRING_BYTES_MAX


@given(st.text(max_size=60) | st.from_regex(r"[a-z~]{1,6}:[a-z:.]{0,6}:[0-9]{0,25}", fullmatch=True))
def test_reading_an_id_never_fails_and_what_is_read_is_what_was_written(text: str) -> None:
    identity = MessageId.parse(text)
    assert identity is None or str(identity) == text


@given(topics, patterns)
def test_generated_topics_and_patterns_are_legal(topic: str, pattern: str) -> None:
    assert check_topic(topic) == topic
    assert check_pattern(pattern) == pattern
