"""Whose an id is: what accounts claim of each other never meets."""

from __future__ import annotations

from itertools import product

import pytest

from tidegate._core.config import Limits
from tidegate._core.delivery import AckLedger
from tidegate._core.identity import identity_of, parse_identity, stream_of
from tidegate._core.inbox import Inbox
from tidegate._core.message import Message
from tidegate._core.publishing import PublishingMachine
from tidegate_protocol.amqp.content import decode_properties
from tidegate_protocol.amqp.publications import encode_account

ID = "buoy~1:t.a:7"
VICTIM, RIVAL = "buoy", "rival"
LINK = "link.head"


def test_identities_of_different_accounts_differ_whatever_the_ids_are() -> None:
    ids = [ID, f"{VICTIM}\0{ID}", f"\0{ID}", f"{RIVAL}\0{VICTIM}\0{ID}"]
    for checked in (False, True):
        known = {
            (account, message_id): identity
            for account, message_id in product([VICTIM, RIVAL, None], ids)
            if (identity := identity_of(account, message_id, checked)) is not None
        }
        assert len(set(known.values())) == len(known)


@pytest.mark.parametrize(
    ("account", "message_id", "checked", "identity"),
    [
        (VICTIM, ID, True, f"{VICTIM}\0{ID}"),
        (VICTIM, ID, False, f"{VICTIM}\0{ID}"),
        (None, ID, False, ID),
        (None, ID, True, None),
        ("", ID, True, None),
        (VICTIM, None, True, None),
        (None, f"{VICTIM}\0{ID}", False, None),
        (LINK, ID, True, None),
        (LINK, ID, False, ID),
    ],
)
def test_what_a_delivery_is_known_by(
    account: str | None, message_id: str | None, checked: bool, identity: str | None
) -> None:
    assert identity_of(account, message_id, checked) == identity


def test_an_identity_tells_its_id_and_its_stream() -> None:
    for identity in (ID, f"{VICTIM}\0{ID}"):
        parsed = parse_identity(identity)
        assert parsed is not None
        assert str(parsed) == ID
        assert f"{stream_of(identity)}:7" == identity
    for foreign in (None, "", "7", "\0", f"{VICTIM}\0", f"{VICTIM}\0x\0{ID}"):
        assert parse_identity(foreign) is None


class Reader:
    """A subscription that takes deliveries by number, in a cluster that checks accounts."""

    def __init__(self, checked: bool = True, manual: bool = False) -> None:
        self.inbox = Inbox(1.0, manual=manual, prefetch=100, streams_max=10)
        self.inbox.checked_accounts = checked
        self.ledger: AckLedger = self.inbox.open_ledger()
        self.tag = 0

    def take(self, sequence: int, account: str | None, body: bytes = b"") -> Message | None:
        self.tag += 1
        message_id = f"buoy~1:t.a:{sequence}"
        new = self.inbox.receive(self.ledger, self.tag, "t.a", body, message_id, None, False, 0.0, account=account)
        return self.inbox.buffer.pop() if new else None


@pytest.mark.parametrize("rival", [RIVAL, None])
@pytest.mark.parametrize("checked", [True, False])
def test_ids_used_by_another_account_drop_nothing(rival: str | None, checked: bool) -> None:
    reader = Reader(checked)
    for sequence in (*range(10), 10**12):
        assert reader.take(sequence, rival) is not None
    taken = [reader.take(sequence, VICTIM) for sequence in range(10)]
    assert [message.sequence if message is not None else None for message in taken] == list(range(10))
    assert all(reader.take(sequence, VICTIM) is None for sequence in range(10))
    statistics = reader.inbox.statistics(0.0)
    assert (statistics.duplicates, statistics.reordered) == (10, 0)
    assert statistics.unchecked == (11 if rival is None and checked else 0)


def test_an_id_without_a_checked_account_is_delivered_each_time_and_not_shown() -> None:
    reader = Reader()
    taken = [reader.take(3, None) for _ in range(3)]
    assert [message.id if message is not None else "" for message in taken] == [None] * 3
    assert reader.inbox.statistics(0.0).foreign == 3


def test_without_checked_accounts_an_id_alone_counts_as_before() -> None:
    reader = Reader(checked=False)
    assert reader.take(3, None) is not None
    assert reader.take(3, None) is None


def test_a_repetition_is_acknowledged_with_its_original_and_not_with_a_rivals() -> None:
    reader = Reader(manual=True)
    original, rivals = reader.take(0, VICTIM), reader.take(0, RIVAL)
    assert original is not None
    assert rivals is not None
    assert reader.take(0, VICTIM) is None
    rivals.ack()
    assert reader.inbox.acknowledgements(reader.ledger, final=True) == [(2, False)]
    original.ack()
    assert reader.inbox.acknowledgements(reader.ledger, final=True) == [(3, True)]


@pytest.mark.parametrize("checked", [False, True])
def test_the_account_that_a_link_has_written_over_the_publishers_is_none(checked: bool) -> None:
    reader = Reader(checked=checked)
    first, again = reader.take(0, LINK), reader.take(0, LINK)
    assert first is not None
    assert first.account is None
    assert (again is None) is not checked
    assert reader.inbox.unchecked == (2 if checked else 0)


def test_a_publication_keeps_the_account_it_was_admitted_with() -> None:
    machine = PublishingMachine("buoy~1", Limits())
    draft = machine.draft("t.a", b"x", {"height": 1.5}, True)
    before = machine.admit(draft, 1_700_000_000_000_000)
    machine.sign(VICTIM)
    after = machine.admit(draft, 1_700_000_000_000_000)
    found = [decode_properties(each.properties, 0, len(each.properties)) for each in (before, after)]
    assert [each.get("user_id") for each in found] == [None, VICTIM]
    assert [each["message_id"] for each in found] == ["buoy~1:t.a:0", "buoy~1:t.a:1"]
    assert found[0]["headers"] == found[1]["headers"]


def test_an_account_that_amqp_cannot_carry_is_not_named() -> None:
    assert encode_account("") == encode_account("x" * 256) == b""
    assert encode_account("é") == b"\x02\xc3\xa9"
