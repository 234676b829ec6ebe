"""Links that can't be jammed, the pure parts: what is a refusal, which link stands still, how an entry is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tidegate_agents.machine import Event, LinkLimitFits, LinkObserved
from tidegate_brokers.links import quarantine
from tidegate_brokers.links.desk import show, wanted
from tidegate_brokers.links.limits import Limits, differences
from tidegate_brokers.links.refusals import Known, Refused, entry_of, refusal
from tidegate_brokers.links.watching import (
    FORGIVEN_S,
    REFUSALS_NEEDED,
    RETRY_FIRST_S,
    RETRY_MAX_S,
    STILL_S,
    LinkWatch,
)
from tidegate_brokers.rabbit.raw import LOST, Closed, RawMessage
from tidegate_brokers.settings.urls import ServerUrl
from tidegate_protocol.amqp.content import USER_ID
from tidegate_protocol.amqp.publications import encode_account, encode_properties
from tidegate_protocol.decisions import LinkLimit, LinkLimitDiffers, SetAsideReason
from tidegate_protocol.messages import Probe, Takes
from tidegate_protocol.quarantine import QuarantineRequest, SetAside, Verb

TOO_LARGE = "PRECONDITION_FAILED - message size 2000 is larger than configured max size 1000"
ACCOUNT = "PRECONDITION_FAILED - user_id property set to 'villain' but authenticated user was 'link.head'"


def named(account: str) -> bytes:
    return USER_ID.to_bytes(2, "big") + encode_account(account)


@pytest.mark.parametrize(
    ("closed", "reason"),
    [
        (Closed(406, TOO_LARGE), SetAsideReason.TOO_LARGE),
        (Closed(406, ACCOUNT), SetAsideReason.ACCOUNT),
        (Closed(406, "PRECONDITION_FAILED - invalid delivery mode"), SetAsideReason.CONTENT),
        (Closed(403, "ACCESS_REFUSED - write access to topic 'x'"), SetAsideReason.KEY),
        (Closed(501, "FRAME_ERROR"), SetAsideReason.HEADERS_TOO_LARGE),
        (Closed(541, "INTERNAL_ERROR"), SetAsideReason.FAILURE),
        (Closed(404, "NOT_FOUND - no exchange"), None),
        (Closed(LOST, ""), None),
    ],
)
def test_a_closed_channel_says_whether_the_message_is_at_fault(closed: Closed, reason: SetAsideReason | None) -> None:
    found = refusal(closed)
    assert (None if found is None else found.reason) == reason


def test_what_was_learned_of_one_message_is_applied_to_others() -> None:
    known = Known("link.head")
    large, small = RawMessage(b"t", b"\x00\x00", bytes(1001)), RawMessage(b"t", b"\x00\x00", bytes(1000))
    other, own = RawMessage(b"t", named("villain"), b""), RawMessage(b"t", named("link.head"), b"")
    assert [known.objection(one) for one in (large, small, other, own)] == [None] * 4
    for text in (TOO_LARGE, ACCOUNT):
        refused = refusal(Closed(406, text))
        assert refused is not None
        known.learn(refused)
    found = [known.objection(one) for one in (large, small, other, own)]
    assert [one and one.reason for one in found] == [SetAsideReason.TOO_LARGE, None, SetAsideReason.ACCOUNT, None]


def test_an_entry_says_who_sent_the_message_as_far_as_that_is_known() -> None:
    properties = encode_properties("buoy~1:t.a:7", 1, b"", True, encode_account("buoy"))
    refused = Refused(SetAsideReason.CONTENT, "x" * 1000)
    entry = entry_of("q-1-1", "edge-1", refused, RawMessage(b"t.\xff", properties, b"12"), 5)
    assert (entry.account, entry.publisher, entry.topic, entry.size_bytes) == ("buoy", "buoy~1", "t.\ufffd", 2)
    bare = entry_of("q-1-2", "edge-1", refused, RawMessage(b"", b"", b""), 5)
    assert (bare.account, bare.publisher, bare.topic) == ("", "", "")


ENTRY = SetAside(id="q-1-1", target="edge-1", reason=SetAsideReason.CONTENT, account="buoy")


@given(st.binary(max_size=255), st.binary(max_size=2_000), st.binary(max_size=100))
def test_a_message_comes_out_of_the_quarantine_as_it_went_in(key: bytes, properties: bytes, body: bytes) -> None:
    message = RawMessage(key, properties, body)
    assert quarantine.decode(quarantine.encode(ENTRY, message)) == (ENTRY, message)


@given(st.binary(max_size=300))
def test_what_is_no_entry_is_left_alone(properties: bytes) -> None:
    assert quarantine.decode(RawMessage(b"", properties, b"")) is None


def test_of_a_message_with_very_large_properties_record_and_body_are_kept() -> None:
    message = RawMessage(b"t", bytes(quarantine.ENVELOPE_BYTES_MAX), b"body")
    found = quarantine.decode(quarantine.encode(ENTRY, message))
    assert found == (ENTRY.model_copy(update={"whole": False}), RawMessage(b"t", b"", b"body"))


def test_a_request_chooses_by_ids_or_else_by_link_and_account() -> None:
    chosen = [
        QuarantineRequest(verb=Verb.LIST),
        QuarantineRequest(verb=Verb.LIST, ids=("q-1-1",), account="nobody"),
        QuarantineRequest(verb=Verb.LIST, target="edge-1", account="buoy"),
    ]
    assert all(wanted(one, ENTRY) for one in chosen)
    for other in ({"ids": ("q-1-2",)}, {"target": "edge-2"}, {"account": "siren"}):
        assert not wanted(QuarantineRequest(verb=Verb.LIST, **other), ENTRY)  # type: ignore[arg-type]


@given(st.binary(max_size=500), st.binary(max_size=500))
def test_any_message_can_be_shown(properties: bytes, body: bytes) -> None:
    show(RawMessage(b"t", properties, body))


# Which links stand still


def refused_often(watch: LinkWatch, times: int, now: float) -> None:
    for number in range(times):
        watch.saw_shovel("edge-1", "terminated", f'<<"{TOO_LARGE}">>', now + number)


def test_a_shovel_that_is_refused_again_and_again_stands_still() -> None:
    watch = LinkWatch()
    refused_often(watch, REFUSALS_NEEDED - 1, 0.0)
    assert not watch.stuck("edge-1", 1.0)
    refused_often(watch, 1, 1.0)
    assert watch.stuck("edge-1", 2.0)


def test_a_far_end_that_is_away_is_no_reason_to_act() -> None:
    watch = LinkWatch()
    for second in range(100):
        watch.saw_shovel("edge-1", "terminated", "{error,econnrefused}", float(second))
        watch.saw_queue("edge-1", 50, 7, float(second))
        assert not watch.stuck("edge-1", float(second))


def test_refusals_that_are_long_ago_are_forgiven() -> None:
    watch = LinkWatch()
    refused_often(watch, REFUSALS_NEEDED - 1, 0.0)
    refused_often(watch, 1, REFUSALS_NEEDED + FORGIVEN_S + 1.0)
    assert not watch.stuck("edge-1", FORGIVEN_S + 10.0)


def test_a_shovel_that_runs_and_carries_nothing_stands_still() -> None:
    watch = LinkWatch()
    for second in range(int(STILL_S)):
        watch.saw_shovel("edge-1", "running", "", float(second))
        watch.saw_queue("edge-1", 50, 7, float(second))
        assert not watch.stuck("edge-1", float(second))
    assert watch.stuck("edge-1", STILL_S)
    watch.saw_queue("edge-1", 50, 8, STILL_S)
    assert not watch.stuck("edge-1", STILL_S), "something was acknowledged"
    watch.saw_queue("edge-1", 0, 8, 2 * STILL_S)
    watch.saw_queue("edge-1", 1, 8, 3 * STILL_S)
    assert not watch.stuck("edge-1", 3 * STILL_S), "nothing waited in between"


def test_help_that_did_not_help_is_tried_again_less_and_less_often() -> None:
    watch, now = LinkWatch(), 0.0
    for attempt in range(12):
        watch.helped("edge-1", False, now)
        wait_s = min(RETRY_FIRST_S * 2.0**attempt, RETRY_MAX_S)
        refused_often(watch, REFUSALS_NEEDED, now + wait_s - 4.0)
        assert not watch.stuck("edge-1", now + wait_s - 0.1)
        assert watch.stuck("edge-1", now + wait_s)
        now += wait_s
    watch.helped("edge-1", True, now)
    refused_often(watch, REFUSALS_NEEDED, now)
    assert watch.stuck("edge-1", now + REFUSALS_NEEDED)
    watch.keep_only(set())
    assert not watch.stuck("edge-1", now + REFUSALS_NEEDED)


# Limits that differ


@pytest.mark.parametrize(
    ("near", "far", "found"),
    [
        ((1000, 100), (1000, 100), []),
        ((1000, 100), (2000, 200), []),
        ((1000, 100), (None, None), []),
        ((None, None), (None, None), []),
        ((2000, 100), (1000, 100), [LinkLimit.MESSAGE]),
        ((None, 100), (1000, 50), [LinkLimit.MESSAGE, LinkLimit.FRAME]),
    ],
)
def test_a_far_end_that_takes_less_is_named(
    near: tuple[int | None, int | None], far: tuple[int | None, int | None], found: list[LinkLimit]
) -> None:
    takes = [Takes(message_bytes=message, frame_bytes=frame) for message, frame in (near, far)]
    assert [one.reason for one in differences("head", takes[0], "edge-1", takes[1])] == found


def test_what_differs_is_told_once_and_when_it_fits_again() -> None:
    told: list[Event] = []
    limits = Limits("head", ServerUrl.parse("amqp://localhost"), told.append)
    small, large = (Probe(broker="edge-1", takes=Takes(message_bytes=size)) for size in (1000, None))
    limits.heard(small)
    assert not told, "nothing is known of the own RabbitMQ"
    limits._own = Takes(message_bytes=None)
    for probe in (small, small, Probe(), large, large):
        limits.heard(probe)
    differs = LinkLimitDiffers("head", "edge-1", LinkLimit.MESSAGE, None, 1000)
    assert told == [LinkObserved(differs), LinkLimitFits("edge-1")]
