"""The inbox: late is measured at hand-over; only what the application settled is acknowledged."""

from __future__ import annotations

import pytest

from tidegate._core.delivery import AckLedger
from tidegate._core.inbox import MALFORMED_LOG_S, Inbox, checked_time
from tidegate._core.statistics import Histogram
from tidegate_protocol.amqp.content import UnreadableHeaders


def receive(inbox: Inbox, ledger: AckLedger, tag: int, sequence: int, published_us: int = 1_000_000) -> bool:
    headers = {"tidegate-published-us": published_us}
    return inbox.receive(ledger, tag, "t", b"", f"p~1:t:{sequence}", headers, False, 0.0)


def test_late_is_what_is_older_than_the_deadline_at_hand_over() -> None:
    inbox = Inbox(1.5, False, 10, 10)
    ledger = inbox.open_ledger()
    receive(inbox, ledger, 1, 0)
    receive(inbox, ledger, 2, 1)
    assert not inbox.hand_over(inbox.buffer.popleft(), 2.5).late
    message = inbox.hand_over(inbox.buffer.popleft(), 2.6)
    assert message.late
    assert message.age_s == pytest.approx(1.6)
    statistics = inbox.statistics(0.0)
    assert (statistics.received, statistics.late, statistics.latency_count) == (2, 1, 2)
    assert statistics.latency_max_s == pytest.approx(1.6, rel=1e-3)


def test_manual_mode_acknowledges_nothing_by_itself() -> None:
    inbox = Inbox(1.0, True, 80, 10)
    ledger = inbox.open_ledger()
    for tag in (1, 2, 3):
        receive(inbox, ledger, tag, tag)
    messages = [inbox.hand_over(inbox.buffer.popleft(), 1.0) for _ in range(3)]
    assert inbox.acknowledgements(ledger) == []
    messages[0].ack()
    messages[0].ack()
    assert inbox.acknowledgements(ledger) == [(1, True)]
    messages[2].ack()
    assert inbox.acknowledgements(ledger) == []
    assert inbox.acknowledgements(ledger, final=True) == [(3, False)]


def test_a_redelivery_of_what_is_unsettled_waits_for_the_application() -> None:
    inbox = Inbox(1.0, True, 8, 10)
    receive(inbox, inbox.open_ledger(), 1, 0)
    message = inbox.hand_over(inbox.buffer.popleft(), 1.0)
    ledger = inbox.open_ledger()
    assert not receive(inbox, ledger, 1, 0)
    assert inbox.acknowledgements(ledger) == []
    message.ack()
    assert inbox.acknowledgements(ledger) == [(1, True)]


def test_a_duplicate_of_what_is_settled_is_acknowledged() -> None:
    inbox = Inbox(1.0, False, 8, 10)
    ledger = inbox.open_ledger()
    receive(inbox, ledger, 1, 0)
    inbox.settle(inbox.buffer.popleft())
    assert inbox.acknowledgements(ledger) == [(1, True)]
    assert not receive(inbox, ledger, 2, 0)
    assert inbox.acknowledgements(ledger) == [(2, True)]
    assert inbox.statistics(0.0).duplicates == 1


def test_an_acknowledgement_goes_to_the_channel_its_delivery_came_by() -> None:
    inbox = Inbox(1.0, True, 8, 10)
    old, new, gone = inbox.open_ledger(), inbox.open_ledger(), inbox.open_ledger()
    for ledger, sequence in ((old, 0), (new, 1), (gone, 2)):
        receive(inbox, ledger, 1, sequence)
    gone.alive = False
    assert old.outstanding
    for message in inbox.buffer:
        message.ack()
    assert inbox.acknowledgements(old) == [(1, True)]
    assert not old.outstanding
    assert inbox.acknowledgements(new) == [(1, True)]
    assert inbox.acknowledgements(gone) == []


def test_what_was_collected_is_marked_and_counted() -> None:
    inbox = Inbox(1.0, False, 8, 10)
    ledger = inbox.open_ledger()
    receive(inbox, ledger, 1, 0)
    assert inbox.receive(ledger, 2, "t", b"", "p~1:t:1", None, False, 0.0, collected=True)
    assert not inbox.receive(ledger, 3, "t", b"", "p~1:t:0", None, False, 0.0, collected=True)
    assert [message.collected for message in inbox.buffer] == [False, True]
    assert inbox.statistics(0.0).collected == 1


def test_what_an_edge_replays_has_its_publishers_account_is_never_late_and_comes_once() -> None:
    inbox = Inbox(1.0, False, 8, 10)
    inbox.checked_accounts = True
    ledger = inbox.open_ledger()
    sent = {"tidegate-published-us": 1_000_000}
    again = {**sent, "tidegate-replayed": "out.siren.0", "tidegate-account": "buoy"}
    assert inbox.receive(ledger, 1, "t", b"", "p~1:t:1", sent, False, 0.0, account="buoy")
    assert inbox.receive(ledger, 2, "t", b"", "p~1:t:0", again, False, 0.0, account="broker.edge-1")
    assert not inbox.receive(ledger, 3, "t", b"", "p~1:t:0", again, False, 0.0, account="broker.edge-1")
    first, replayed = (inbox.hand_over(message, 100.0) for message in list(inbox.buffer))
    assert (first.replayed, first.late) == (False, True)
    assert (replayed.account, replayed.replayed, replayed.late) == ("buoy", True, False)
    statistics = inbox.statistics(0.0)
    assert (statistics.replayed, statistics.late, statistics.duplicates, statistics.latency_count) == (1, 1, 1, 1)


def test_a_publisher_can_not_pass_for_an_edge_that_replays() -> None:
    inbox = Inbox(1.0, False, 8, 10)
    inbox.checked_accounts = True
    forged = {"tidegate-published-us": 1, "tidegate-replayed": "out.siren.0", "tidegate-account": "buoy"}
    assert inbox.receive(inbox.open_ledger(), 1, "t", b"", "p~1:t:0", forged, False, 0.0, account="rival")
    assert (inbox.buffer[0].account, inbox.buffer[0].replayed) == ("rival", False)
    assert inbox.identify("rival", "p~1:t:0", forged) == "rival\0p~1:t:0"
    assert inbox.identify("broker.edge-1", "p~1:t:0", forged) == "buoy\0p~1:t:0"


@pytest.mark.parametrize(
    ("time_us", "stamp_us", "told"),
    [
        (9_000_000, 9_000_500, (9_000_000, True)),
        (9_000_999, 9_000_000, (9_000_999, True)),
        (90_000_000, 9_000_000, (9_001_000, True)),
        (None, 9_000_000, (9_000_000, True)),
        (4_000_000, 9_000_000, (4_000_000, True)),
        (3_999_999, 9_000_000, (3_999_999, False)),
        (9_000_000, None, (9_000_000, False)),
        (None, None, (None, False)),
    ],
)
def test_a_publishers_time_is_bounded_by_the_heads(
    time_us: int | None, stamp_us: int | None, told: tuple[int | None, bool]
) -> None:
    assert checked_time(time_us, stamp_us) == told


def test_lateness_by_a_clock_that_nobody_checked_counts_apart() -> None:
    inbox = Inbox(1.0, False, 8, 10)
    ledger = inbox.open_ledger()
    receive(inbox, ledger, 1, 0)
    inbox.receive(ledger, 2, "t", b"", None, {"tidegate-published-us": 1}, False, 0.0)
    inbox.checked_times = True
    receive(inbox, ledger, 3, 1)
    messages = [inbox.hand_over(message, 100.0) for message in list(inbox.buffer)]
    assert [(message.late, message.time_checked) for message in messages] == [
        (True, True),
        (True, False),
        (True, False),
    ]
    statistics = inbox.statistics(0.0)
    assert (statistics.late, statistics.late_unchecked, statistics.latency_count) == (1, 2, 1)


def test_foreign_messages_are_delivered_and_counted() -> None:
    inbox = Inbox(1.0, False, 8, 10)
    assert inbox.receive(inbox.open_ledger(), 1, "t", b"x", "theirs", None, False, 0.0)
    message = inbox.hand_over(inbox.buffer.popleft(), 5.0)
    assert (message.id, message.publisher, message.sequence, message.published_at, message.age_s) == (None,) * 5
    assert not message.late
    assert inbox.statistics(0.0).foreign == 1


def test_a_plain_message_that_is_delivered_again_does_not_count_twice_for_a_move() -> None:
    inbox = Inbox(1.0, False, 8, 10)
    for ledger, redelivered in ((inbox.open_ledger(), False), (inbox.open_ledger(), True)):
        assert inbox.receive(ledger, 1, "t", b"x", None, None, redelivered, 0.0)
    assert len(inbox.buffer) == 2, "nobody can tell whether the application has it"
    assert inbox.plain.count == 1


def test_messages_without_readable_headers_are_delivered_counted_and_logged_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox = Inbox(1.0, False, 8, 10)
    ledger = inbox.open_ledger()
    unreadable = UnreadableHeaders("a header of an unknown type")
    for tag, (sequence, now) in enumerate([(0, 0.0), (1, 1.0), (1, 2.0), (2, MALFORMED_LOG_S)], start=1):
        inbox.receive(ledger, tag, "t", b"body", f"p~1:t:{sequence}", unreadable, False, now)
    messages = [inbox.hand_over(message, 5.0) for message in inbox.buffer]
    assert [(message.sequence, message.body, message.attributes) for message in messages] == [
        (0, b"body", {}),
        (1, b"body", {}),
        (2, b"body", {}),
    ]
    assert inbox.statistics(0.0).malformed == 3, "the duplicate was not delivered"
    assert [record.args for record in caplog.records] == [
        ("p~1:t:0", "t", 1, "a header of an unknown type"),
        ("p~1:t:2", "t", 3, "a header of an unknown type"),
    ]


def test_quantiles_are_right_to_a_few_per_cent() -> None:
    histogram = Histogram()
    for millisecond in range(1, 1001):
        histogram.add(millisecond * 1000)
    for share in (0.5, 0.95, 0.99):
        assert histogram.quantile_s(share) == pytest.approx(share, rel=0.035)
    assert histogram.mean_s() == pytest.approx(0.5005)
    histogram.add(-5)
    histogram.add(1 << 60)
    assert histogram.max_us == 1 << 60
