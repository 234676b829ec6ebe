"""The wire form of control messages: pinned by golden files, tolerant of additions, strict about the rest."""

from __future__ import annotations

import json
import math

import pytest
from control_samples import GOLDEN, SAMPLES, golden_text, message_classes
from pydantic import ValidationError

from tidegate_protocol import messages as m, reports
from tidegate_protocol.balancing.loads import MetricReport
from tidegate_protocol.errors import MalformedMessage, ProtocolError
from tidegate_protocol.latency import BUCKETS
from tidegate_protocol.topics import TOPIC_BYTES_MAX

by_kind = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind)


def test_every_kind_has_a_sample_and_a_golden_file() -> None:
    kinds = sorted(each.model_fields["kind"].default for each in message_classes())
    assert len(set(kinds)) == len(kinds), "two classes share a kind"
    assert sorted(sample.kind for sample in SAMPLES) == kinds
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == kinds


def test_client_kinds_are_kinds() -> None:
    assert {sample.kind for sample in SAMPLES} >= m.CLIENT_KINDS


@by_kind
def test_samples_fill_in_every_field(sample: m.ControlMessage) -> None:
    # `encode` leaves out None, so only a full sample pins the name of every field.
    assert set(json.loads(m.encode(sample))) == set(type(sample).model_fields)


@by_kind
def test_encoding_is_what_the_golden_file_says(sample: m.ControlMessage) -> None:
    text = (GOLDEN / f"{sample.kind}.json").read_text()
    assert golden_text(sample) == text, "the wire form changed; see control_samples.py if that is intended"
    assert m.decode(text.encode()) == sample


@by_kind
def test_unknown_fields_are_ignored(sample: m.ControlMessage) -> None:
    body = {**json.loads(m.encode(sample)), "added-later": {"deep": [1, 2]}}
    assert m.decode(json.dumps(body).encode()) == sample


def test_unknown_fields_are_ignored_in_parts_of_a_message() -> None:
    body = json.loads((GOLDEN / "output-prepare.json").read_text())
    body["subscription"]["added-later"] = True
    assert m.decode(json.dumps(body).encode()) == next(s for s in SAMPLES if s.kind == "output-prepare")


@by_kind
def test_another_version_is_refused(sample: m.ControlMessage) -> None:
    body = {**json.loads(m.encode(sample)), "v": 2}
    with pytest.raises(MalformedMessage) as caught:
        m.decode(json.dumps(body).encode())
    assert caught.value.reason == "unknown-version"


@by_kind
def test_fields_of_optional_value_may_be_left_out(sample: m.ControlMessage) -> None:
    """What `encode` leaves out (None), `decode` must fill in again."""
    required = {name for name, field in type(sample).model_fields.items() if field.is_required()}
    values = {name: getattr(sample, name) for name in required}
    bare = type(sample)(**values)
    assert m.decode(m.encode(bare)) == bare


GOOD = {"v": 1, "kind": "subscribe-request", "subscriber": "siren-7", "pattern": "a.#", "deadline_us": 1}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not-json"),
        (b"{", "not-json"),
        (b"\xff\xfe\x00", "not-json"),
        (b"[" * 100_000, "not-json"),
        (b" " * (m.CONTROL_BYTES_MAX + 1), "too-large"),
        (b"null", "invalid-field"),
        (b"[]", "invalid-field"),
        (b'"subscribe-request"', "invalid-field"),
        (b"{}", "unknown-kind"),
        (b'{"v":1,"kind":"teleport-request"}', "unknown-kind"),
        (b'{"v":1,"kind":7}', "unknown-kind"),
        (b'{"v":1,"kind":null}', "unknown-kind"),
        (b'{"v":"one","kind":"status-request"}', "unknown-version"),
        (b'{"v":1,"kind":"subscribe-request"}', "invalid-field"),
        (json.dumps({**GOOD, "subscriber": "a.b"}).encode(), "invalid-field"),
        (json.dumps({**GOOD, "subscriber": "x" * 49}).encode(), "invalid-field"),
        (json.dumps({**GOOD, "pattern": "a..b"}).encode(), "invalid-field"),
        (json.dumps({**GOOD, "pattern": "\ud800"}).encode(), "not-json"),
        (json.dumps({**GOOD, "deadline_us": 0}).encode(), "invalid-field"),
        (json.dumps({**GOOD, "deadline_us": m.DEADLINE_US_MAX + 1}).encode(), "invalid-field"),
        (json.dumps({**GOOD, "deadline_us": 0.5}).encode(), "invalid-field"),
        (json.dumps({**GOOD, "deadline_us": None}).encode(), "invalid-field"),
        (json.dumps({**GOOD, "expires_s": -1}).encode(), "invalid-field"),
        (b'{"v":1,"kind":"publisher-goodbye","publisher":"no-incarnation"}', "invalid-field"),
        (b'{"v":1,"kind":"edge-welcome","head":"h","cluster":"c","period_s":Infinity}', "invalid-field"),
    ],
)
def test_malformed_messages_have_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        m.decode(body)
    assert caught.value.reason == reason
    assert caught.value.detail
    assert isinstance(caught.value, ProtocolError)


def published(**numbers: float) -> bytes:
    """A report of a publisher whose fields of these names are something else than usual."""
    topic = {"topic": "a", "messages": 1, "bytes": 1, "gaps": 1, "gap_s_sum": 1.0, "gap_s2_sum": 1.0}
    topic |= {name: number for name, number in numbers.items() if name in topic}
    body = {"v": 1, "kind": "publisher-report", "publisher": "p~1", "elapsed_us": 1, "round_trip_us": 1}
    body |= {name: number for name, number in numbers.items() if name in body}
    return json.dumps({**body, "topics": [topic]}).encode()


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("messages", 10**12),
        ("bytes", 10**15),
        ("gaps", 10**12),
        ("gap_s_sum", 1e9),
        ("gap_s2_sum", 1e18),
        ("elapsed_us", 10**13),
        ("round_trip_us", 2**63 - 1),
    ],
)
def test_what_a_publisher_reports_can_be_reckoned_with(field: str, most: float) -> None:
    assert m.decode(published(**{field: most})).kind == "publisher-report"
    for number in (most * 2, 10**308, 10**400):
        with pytest.raises(MalformedMessage) as caught:
            m.decode(published(**{field: number}))
        assert caught.value.reason == "invalid-field"


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("subscriber-report", ("digests", 0, "latency_us_sum")),
        ("subscriber-report", ("digests", 0, "received")),
        ("publisher-hello", ("round_trip_us",)),
        ("unsubscribe-request", ("number",)),
        ("probe-reply", ("clock_us",)),
        ("pie-local", ("period_s",)),
        ("head-load", ("load", "bytes_in_per_s")),
        ("edge-hello", ("capacity", "uplink_bytes_per_s")),
    ],
)
def test_numbers_that_nobody_could_reckon_with_are_refused(kind: str, path: tuple[str | int, ...]) -> None:
    body = json.loads((GOLDEN / f"{kind}.json").read_text())
    part = body
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = 10**400 if isinstance(part[path[-1]], int) else 1e300
    with pytest.raises(MalformedMessage) as caught:
        m.decode(json.dumps(body).encode())
    assert caught.value.reason == "invalid-field"


def test_the_good_message_beside_the_malformed_ones_is_good() -> None:
    assert m.decode(json.dumps(GOOD).encode()).kind == "subscribe-request"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks_are_refused_at_the_source(value: float) -> None:
    with pytest.raises(ValidationError):
        MetricReport(value=value)


def test_messages_are_frozen() -> None:
    with pytest.raises(ValidationError):
        m.StatusRequest().kind = "status-reply"  # type: ignore[assignment]


# A quotation mark takes two bytes in JSON, so this is the largest legal pattern on the wire.
WIDEST = '"' * TOPIC_BYTES_MAX
NAME = "n" * 48


def test_the_largest_routes_update_is_one_that_its_receiver_takes() -> None:
    patterns = (WIDEST,) * m.ROUTES_PER_UPDATE_MAX
    update = m.RoutesUpdate(head=NAME, version=2**63, base=2**63, add=patterns, remove=patterns, wait_s=60)
    assert m.decode(m.encode(update)) == update


def test_the_largest_registry_page_is_one_that_its_receiver_takes() -> None:
    subscription = m.Subscription(
        subscriber=NAME,
        number=1_000_000,
        pattern=WIDEST,
        deadline_us=m.DEADLINE_US_MAX,
        expires_s=30 * 24 * 3600,
    )
    page = m.RegistryPage(
        edge=NAME, digest="d" * 1_000, after="a" * 1_000, subscriptions=(subscription,) * m.REGISTRY_PAGE_MAX
    )
    assert m.decode(m.encode(page)) == page


def test_the_largest_publisher_hello_is_one_that_its_receiver_takes() -> None:
    hello = m.PublisherHello(publisher="p~" + "0" * 62, topics=(WIDEST,) * m.TOPICS_PER_PUBLISHER_MAX)
    assert m.decode(m.encode(hello)) == hello


def test_the_largest_subscriber_report_is_one_that_its_receiver_takes() -> None:
    digest = reports.SubscriptionDigest(
        pattern=WIDEST,
        edge=NAME,
        deadline_us=m.DEADLINE_US_MAX,
        elapsed_us=10**12,
        received=10**9,
        latency_us_sum=10**15,
        buckets=tuple(range(BUCKETS)),
        counts=(10**6,) * BUCKETS,
    )
    gap = reports.MigrationGap(migration="m" * 120, pattern=WIDEST, source=NAME, target=NAME, gap_us=10**12)
    report = reports.SubscriberReport(
        subscriber=NAME,
        run=10**15,
        number=10**9,
        digests=(digest,) * reports.DIGESTS_PER_REPORT_MAX,
        gaps=(gap,) * reports.GAPS_PER_REPORT_MAX,
    )
    assert m.decode(m.encode(report)) == report


def test_what_is_wrong_with_a_message_fits_into_a_refusal() -> None:
    with pytest.raises(MalformedMessage) as caught:
        m.decode(json.dumps({"v": 1, "kind": "k" * 100_000}).encode())
    assert caught.value.reason == "unknown-kind"
    assert m.Refusal(reason=m.RefusalReason.INVALID, message=str(caught.value))


HOSTILE = "#.a.#.a.#.a.#.a.#.a.#.a.#.a"


def test_a_request_whose_pattern_makes_routing_slow_is_refused_with_the_field_and_the_remedy() -> None:
    request = m.SubscribeRequest(subscriber="a", pattern="a.b", deadline_us=1)
    with pytest.raises(MalformedMessage) as caught:
        m.decode(m.encode(request).replace(b"a.b", HOSTILE.encode()))
    assert caught.value.reason == "invalid-field"
    assert "pattern" in caught.value.detail
    assert "at most 2 times" in caught.value.detail


def test_a_registry_page_loses_only_the_subscription_that_nobody_may_bind() -> None:
    kept, lost = (
        m.Subscription(subscriber=name, number=0, pattern=pattern, deadline_us=1, expires_s=1)
        for name, pattern in (("kept", "quake.*"), ("lost", "a.b"))
    )
    page = m.RegistryPage(edge="one", digest="d", subscriptions=(kept, lost))
    read = m.decode(m.encode(page).replace(b"a.b", HOSTILE.encode()))
    assert isinstance(read, m.RegistryPage)
    assert read.subscriptions == (kept,)


def test_a_routes_update_may_name_a_pattern_that_nobody_may_bind() -> None:
    update = m.RoutesUpdate(head="north", version=1, add=("quake.*", HOSTILE), remove=(HOSTILE,), wait_s=1)
    assert m.decode(m.encode(update)) == update
