"""Dropped messages as records: where each was dropped, what a copy keeps of it, and what the ledger tells."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aiormq.abc import DeliveredMessage
from hypothesis import given, strategies as st
from pamqp import commands, header

from tidegate_brokers.drops.form import QUEUE_HEADER, Dropped, fence, read_dead_letter, read_kept
from tidegate_brokers.drops.ledger import LATEST_MAX, Ledger
from tidegate_brokers.drops.replay import Room, _parts
from tidegate_brokers.plane.drops import NOTHING_KEPT, DropLimits, DropPlane
from tidegate_protocol.amqp.content import decode_properties
from tidegate_protocol.amqp.copies import RAW_HEADER, Death, encode_copy, envelope, last_death
from tidegate_protocol.decisions import DropReason
from tidegate_protocol.drops import DropsRequest
from tidegate_protocol.names import ACCOUNT_HEADER, REPLAY_EXCHANGE, REPLAYED_HEADER

QUEUE = "out.siren.0"


def properties(headers: dict[str, Any] | None = None, **others: Any) -> bytes:
    """As RabbitMQ sends them."""
    return commands.Basic.Properties(headers=headers, **others).marshal()


def death(queue: str = QUEUE, reason: str = "maxlen", exchange: str = "tidegate.deliver") -> dict[str, Any]:
    return {"count": 1, "reason": reason, "queue": queue, "exchange": exchange, "routing-keys": ["t.a"]}


def delivered(raw: bytes, body: bytes = b"x", topic: str = "t.a") -> DeliveredMessage:
    """What a reader of dead letters gets."""
    inner = commands.Basic.Properties(headers={RAW_HEADER: bytearray(raw)})
    return DeliveredMessage(
        delivery=commands.Basic.Deliver("c", 1, False, "e", topic),
        header=header.ContentHeader(0, len(body), inner),
        body=body,
        channel=None,  # type: ignore[arg-type]
    )


def dropped(queue: str = QUEUE, body: bytes = b"x", offset: int = -1) -> Dropped:
    return Dropped(queue, DropReason.LIMIT, "t.a", body, "buoy", 1, {}, offset)


def test_the_queue_is_rabbitmqs_word_and_not_the_publishers() -> None:
    lies = {"x-first-death-queue": "out.victim.0", "a-text": "x-deathA", "x-death": [death(), death("out.victim.0")]}
    assert last_death(properties(lies)) == Death(QUEUE, "maxlen", "tidegate.deliver")


@pytest.mark.parametrize(
    "headers", [None, {}, {"x-death": []}, {"x-death": "text"}, {"x-death": [1]}, {"x-death": [{"queue": 7}]}]
)
def test_what_can_not_be_told_is_nobodys(headers: dict[str, Any] | None) -> None:
    assert last_death(properties(headers)).queue == ""
    assert read_dead_letter(delivered(properties(headers)), 1).queue == ""


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(raw: bytes) -> None:
    read_dead_letter(delivered(raw), 1).kept()
    read_kept(delivered(raw)).replayed("broker.edge-1")


def test_a_copy_has_what_is_known_and_no_time_to_live() -> None:
    raw = properties(
        {"height": 1, "x-death": [death()], "CC": ["t.b"], "nested": {"a": 1}, "tidegate-fence": "f"},
        message_id="buoy~1:t.a:7",
        user_id="buoy",
        expiration="1000",
        content_type="text/plain",
        delivery_mode=1,
    )
    record = read_dead_letter(delivered(raw, b"body"), 5)
    assert (record.queue, record.reason, record.account, record.topic) == (QUEUE, DropReason.LIMIT, "buoy", "t.a")
    kept = record.kept()
    again = read_kept(delivered(kept, b"body"))
    assert (again.queue, again.reason, again.account, again.time_us) == (QUEUE, DropReason.LIMIT, "buoy", 5)
    assert again.fence == ""
    found = decode_properties(*whole(again.replayed("broker.edge-1")))
    assert found == {
        "content_type": "text/plain",
        "headers": {"height": 1, REPLAYED_HEADER: QUEUE, ACCOUNT_HEADER: "buoy"},
        "delivery_mode": 2,
        "message_id": "buoy~1:t.a:7",
        "user_id": "broker.edge-1",
    }


def whole(raw: bytes) -> tuple[bytes, int, int]:
    return raw, 0, len(raw)


def test_an_account_in_a_header_counts_only_where_an_edge_wrote_it() -> None:
    forged = {"x-death": [death()], ACCOUNT_HEADER: "victim", REPLAYED_HEADER: QUEUE}
    assert read_dead_letter(delivered(properties(forged, user_id="rival")), 1).account == "rival"
    again = {"x-death": [death(exchange=REPLAY_EXCHANGE)], ACCOUNT_HEADER: "buoy"}
    assert read_dead_letter(delivered(properties(again, user_id="broker.edge-1")), 1).account == "buoy"


def test_headers_that_are_too_large_for_a_frame_are_left_out() -> None:
    large = {f"h{n}": "x" * 8_000 for n in range(20)}
    found = decode_properties(*whole(encode_copy({"headers": large}, {QUEUE_HEADER: QUEUE})))
    assert found["headers"] == {QUEUE_HEADER: QUEUE}


def test_an_envelope_is_one_header_that_any_library_reads() -> None:
    raw = b"\xff" * 30
    read = commands.Basic.Properties()
    data = envelope(raw)
    read.unmarshal(struct.unpack(">H", data[:2])[0], data[2:])
    assert bytes(read.headers[RAW_HEADER]) == raw  # type: ignore[index]


def test_a_fence_is_known_by_its_token() -> None:
    assert read_kept(delivered(fence("token"))).fence == "token"


def test_the_ledger_holds_what_was_not_replayed_and_is_bounded() -> None:
    ledger = Ledger("edge-1")
    for number in range(2 * LATEST_MAX):
        ledger.counted(dropped(offset=number))
    ledger.counted(dropped("out.siren-x.0"))
    (told,) = ledger.outputs(ledger.wanted(DropsRequest(subscriber="siren")), 10)
    assert (told.held, told.held_bytes, told.reasons) == (20, 20, {DropReason.LIMIT: 20})
    assert len(ledger.messages([QUEUE])) == LATEST_MAX
    assert ledger.forget(QUEUE, 5, count=6) == 6
    assert (ledger.queues[QUEUE].held, ledger.queues[QUEUE].held_bytes) == (14, 14)
    assert ledger.forget(QUEUE, 30) == 14
    assert ledger.is_done(dropped(offset=30))
    assert not ledger.is_done(dropped(offset=31))
    assert not ledger.messages([QUEUE])
    assert ledger.wanted(DropsRequest(number=1)) == []
    assert ledger.forget_all() == 1
    assert not ledger.done


def test_a_batch_of_a_replay_is_far_below_what_the_queue_holds() -> None:
    room = Room(bytes_max=400, messages_max=12)
    parts = _parts([dropped(body=b"x" * size) for size in (40, 40, 40, 200, 10, 10, 10, 10)], room)
    assert [[len(one.body) for one in part] for part in parts] == [[40, 40], [40], [200], [10, 10, 10], [10]]
    assert all(len(part) <= room.batch_messages for part in parts)


def test_without_a_stream_the_policy_is_as_it_was() -> None:
    policy = {"definition": {"max-length-bytes": 1}}
    plane = DropPlane(NOTHING_KEPT)
    assert plane.dead_lettering(policy) == policy
    kept = DropPlane(DropLimits(60, 8_000_000))
    kept.kept = True
    assert kept.dead_lettering(policy)["definition"] == {
        "max-length-bytes": 1,
        "dead-letter-exchange": "tidegate.dropped",
    }
    assert kept.limits.arguments["x-stream-max-segment-size-bytes"] == 1_000_000
