"""The inbox of one subscription: deliveries are judged, buffered, handed over and settled here.

    (stray? drop) → receive → (duplicate? drop) → buffer → hand_over → settle → acknowledge in bulk

Invariants:

- a delivery is acknowledged only after its message was settled: by the application in manual mode, by the hand-over in
  automatic mode;
- it is acknowledged on the channel it came by. A subscription that moves has two channels for a while, each with a
  ledger of its own;
- a duplicate is acknowledged at once, or together with its original while that is unsettled;
- the buffer holds at most what RabbitMQ may have under way, which the prefetch bounds per channel.

The synchronous client calls `receive` and `acknowledgements` in its I/O thread, and the other methods in the
application's threads. No lock is needed: both sides share deques only (`buffer`, `_settled`), and the ends of a deque
are safe to use from two threads. Time is an argument.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidegate_protocol.amqp.content import UnreadableHeaders
from tidegate_protocol.form import published_us, stamped_us
from tidegate_protocol.ids import MessageId
from tidegate_protocol.names import LINK_ACCOUNT_START
from tidegate_protocol.topics import ANY_WORDS

from .config import PREFETCH_BYTES_DEFAULT
from .delivery import AckLedger, Deduplicator, Verdict
from .delivery_window import DeliveryWindow
from .identity import identity_of, is_replayed, replayed_account
from .message import Message
from .overlap import PlainLog, fingerprint
from .statistics import Histogram, Statistics
from .straying import TopicFilter

logger = logging.getLogger(__name__)

ACK_DELAY_S: Final = 0.05
"""The longest a settled message waits for others to be acknowledged with it."""
ACK_SHARE: Final = 8
"""Acknowledge when this part of the prefetch is settled: often enough never to stall, rarely enough to cost
nothing.
"""
CLOCK_SLACK_US: Final = 5_000_000
"""A publication may come to its head so long after its time: it waited in the publisher's window, or on a link between
heads. A time before that is a wrong clock, or can't be told from one."""
STAMP_STEP_US: Final = 1_000
"""The head's stamp is cut to whole milliseconds."""
MALFORMED_LOG_S: Final = 60.0
"""Between two log lines about messages of one subscription whose headers can't be read."""


class Inbox:
    """Deliveries of one subscription between RabbitMQ and the application."""

    def __init__(
        self,
        deadline_s: float,
        manual: bool,
        prefetch: int,
        streams_max: int,
        prefetch_bytes: int = PREFETCH_BYTES_DEFAULT,
        pattern: str = ANY_WORDS,
    ) -> None:
        self.deadline_s = deadline_s
        self.manual = manual
        self.prefetch = prefetch
        self.window = DeliveryWindow(prefetch, prefetch_bytes)
        self.ack_batch = max(1, prefetch // ACK_SHARE)
        self.buffer: deque[Message] = deque()
        self.received = 0
        self.late = 0
        self.latencies = Histogram()
        self.on_settled: Callable[[], None] = _nothing
        """Called when the application settled a message in manual mode; the client sends it on to the engine.
        """
        self._deadline_us = round(deadline_s * 1e6)
        self._deduplicator = Deduplicator(streams_max)
        self._unsettled: dict[str, Message] = {}
        self._settled: deque[Message] = deque()
        self.checked_accounts = False
        """Whether the cluster vouches for accounts, as the head says: then ids without one count for nothing."""
        self.checked_times = False
        """Whether the head's RabbitMQ stamps publications, as the head says: then a publisher's clock is checked."""
        self.late_unchecked = 0
        """Messages that are late by a time that was not checked, or not found right."""
        self.judge = self._deduplicator.judge
        """Says by its identity whether a delivery is new. For drivers that hand each message over at once and keep
        none."""
        self.expected = self._deduplicator.expected
        """The sequence that follows what was delivered of a stream."""
        self.plain = PlainLog()
        """The plain messages that went into the buffer last."""
        self.collected = 0
        self.malformed = 0
        """Messages delivered without their headers, which can't be read."""
        self.unchecked = 0
        """Messages delivered without their ids, for which no account was checked."""
        self.replayed = 0
        """Messages that had been dropped from the output queue, and came all the same."""
        self.topics = TopicFilter(pattern)
        """Knows the topics that were asked for."""
        self._malformed_logged_s = float("-inf")

    def open_ledger(self) -> AckLedger:
        """The ledger of a new channel; when that channel is gone its ledger is to be set to not alive."""
        return AckLedger(self.ack_batch)

    def identify(self, account: str | None, message_id: str | None, headers: Mapping[str, Any] | None) -> str | None:
        """What a delivery is known by here (`identity`)."""
        if headers and is_replayed(account, headers, self.checked_accounts):
            account = replayed_account(headers)
        return identity_of(account, message_id, self.checked_accounts)

    def receive(
        self,
        ledger: AckLedger,
        tag: int,
        topic: str,
        body: bytes,
        message_id: str | None,
        headers: Mapping[str, Any] | None,
        redelivered: bool,
        now: float,
        collected: bool = False,
        account: str | None = None,
    ) -> bool:
        """Take a delivery. Returns whether it went into the buffer.

        `collected`: it was fetched from an edge that had been away, and may come after newer ones. `account`: who
        published it, as RabbitMQ has checked; that of a link, which has written its own over it, is none.
        """
        ledger.last = tag
        self.window.came(len(body))
        replayed = is_replayed(account, headers, self.checked_accounts)
        if replayed:
            account = replayed_account(headers or {})
        identity = identity_of(account, message_id, self.checked_accounts)
        verdict = self._deduplicator.judge(identity, now)
        if verdict is Verdict.DUPLICATE:
            assert identity is not None
            self._repeated(identity, ledger, tag)
            return False
        if type(headers) is UnreadableHeaders:
            self._note_malformed(topic, message_id, headers.reason, now)
        if (identity is None or identity is message_id) and account and account.startswith(LINK_ACCOUNT_START):
            account = None
        if verdict is Verdict.FOREIGN:
            if identity is None and MessageId.parse(message_id) is not None:
                self.unchecked += 1
            identity = None
            # What is redelivered may have been entered already; what is collected came by another way.
            if not redelivered and not collected:
                self.plain.add(fingerprint(topic, body, message_id, headers, account), now)
            message_id = None
        time_us = published_us(headers)
        message = Message(topic, body, message_id, headers, redelivered, self.deadline_s, time_us, account)
        if self.checked_times:
            message.published_us, message.time_checked = checked_time(time_us, stamped_us(headers))
        else:
            message.time_checked = verdict is not Verdict.FOREIGN
        message.ledgers.append((ledger, tag))
        if identity is not None:
            message.identity = identity
            self._unsettled[identity] = message
        if self.manual:
            message._settle = self.settle
        if collected or replayed:
            message.collected, message.replayed = collected, replayed
            self.collected += collected
            self.replayed += replayed
        self.buffer.append(message)
        return True

    def _repeated(self, identity: str, ledger: AckLedger, tag: int) -> None:
        """A repetition is acknowledged with what it repeats, or at once if that is settled."""
        original = self._unsettled.get(identity)
        if original is None:
            ledger.settle(tag)
        else:
            original.ledgers.append((ledger, tag))

    def _note_malformed(self, topic: str, message_id: str | None, reason: str, now: float) -> None:
        self.malformed += 1
        if now - self._malformed_logged_s >= MALFORMED_LOG_S:
            self._malformed_logged_s = now
            logger.warning(
                "can't read the headers of message %r on topic %r; it is delivered without attributes (%d so far): %s",
                message_id,
                topic,
                self.malformed,
                reason,
            )

    def hand_over(self, message: Message, now_s: float) -> Message:
        """Complete a message at the moment the application gets it; `now_s` is seconds since 1970."""
        message.received_at = now_s
        self.received += 1
        if message.published_us is not None and not message.replayed:
            age_us = int(now_s * 1e6) - message.published_us
            message.late = age_us > self._deadline_us
            if message.time_checked:
                self.latencies.add(age_us)
                self.late += message.late
            else:
                self.late_unchecked += message.late
        return message

    def settle(self, message: Message) -> None:
        """The application is done with `message`, or got it in automatic mode."""
        self._settled.append(message)
        if self.manual:
            self.on_settled()

    @property
    def settled_count(self) -> int:
        """Settled messages that `acknowledgements` has not seen yet."""
        return len(self._settled)

    def acknowledgements(self, ledger: AckLedger, final: bool = False) -> list[tuple[int, bool]]:
        """What to acknowledge now on the channel of `ledger`, as pairs of tag and "all up to it"."""
        self.enter_settled()
        return ledger.take(final)

    def enter_settled(self) -> None:
        """Enter what the application has settled into the ledgers of the channels it came by."""
        settled = self._settled
        for _ in range(len(settled)):
            message = settled.popleft()
            if message.identity is not None:
                self._unsettled.pop(message.identity, None)
            for origin, tag in message.ledgers:
                if origin.alive:
                    origin.settle(tag)

    @property
    def duplicates(self) -> int:
        return self._deduplicator.duplicates

    @property
    def reordered(self) -> int:
        return self._deduplicator.reordered

    def missing(self, now: float) -> int:
        """Messages that were skipped and have not come."""
        return self._deduplicator.missing(now)

    def statistics(self, now: float) -> Statistics:
        """A snapshot. `now` is the clock that `receive` got."""
        return Statistics(
            received=self.received,
            late=self.late,
            duplicates=self.duplicates,
            reordered=self.reordered,
            missing=self.missing(now),
            foreign=self._deduplicator.foreign,
            collected=self.collected,
            malformed=self.malformed,
            unchecked=self.unchecked,
            replayed=self.replayed,
            late_unchecked=self.late_unchecked,
            stray=self.topics.stray,
            latency_count=self.latencies.count,
            latency_mean_s=self.latencies.mean_s(),
            latency_max_s=self.latencies.max_us / 1e6,
            latency_p50_s=self.latencies.quantile_s(0.50),
            latency_p95_s=self.latencies.quantile_s(0.95),
            latency_p99_s=self.latencies.quantile_s(0.99),
        )


def checked_time(time_us: int | None, stamp_us: int | None) -> tuple[int | None, bool]:
    """A publisher's time as the head's stamp bounds it, and whether it may be counted as late by it.

    Nothing is published after it came to its head: a clock that is ahead is cut down to the stamp. Without a time of
    its publisher's, a message was published when it came.
    """
    if stamp_us is None:
        return time_us, False
    if time_us is None:
        return stamp_us, True
    return min(time_us, stamp_us + STAMP_STEP_US), time_us >= stamp_us - CLOCK_SLACK_US


def _nothing() -> None:
    """Until a client is interested."""
