"""Exactly once to the application: which deliveries are new, and which may be acknowledged.

A cut link makes a shovel send again, a publisher that reconnects publishes again, and RabbitMQ redelivers what was not
acknowledged. Duplicates and backward steps are therefore everyday events, and the `Deduplicator` is always on. Per
account, publisher and topic it keeps a watermark (one above the highest sequence seen) and, as intervals, the gaps
below it:

- a sequence at the watermark or above is new; the sequences it skips become a gap;
- a sequence in a gap is late but wanted: it is delivered, counted as reordered, and the gap shrinks;
- any other sequence below the watermark is a duplicate.

Everything before the first message seen of a publisher is a gap too, because the first messages may be the ones that
were reordered. That gap never counts as missing: the messages may be older than the subscription. Any other gap counts
as missing when it has been open for `GAP_AGE_S`; a message that fills it after that is delivered, and no longer counts.

An `AckLedger` belongs to one channel and dies with it. The deduplicator outlives all channels, so that a subscription
moves to another queue without forgetting anything. Neither knows queues, consumers or connections; time is an argument.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from enum import Enum
from math import inf
from typing import Final

from .identity import parse_identity

GAPS_MAX: Final = 64
"""Gaps kept per publisher and topic.

The oldest is given up for the newest, and what it lacks counts as missing.
"""
GAP_AGE_S: Final = 30.0
"""Longer than any reconnect of a link takes (shovels try every second) with room for a restart of RabbitMQ.
"""


class Verdict(Enum):
    """What to do with a delivery."""

    NEW = "new"
    REORDERED = "reordered"
    DUPLICATE = "duplicate"
    FOREIGN = "foreign"


class Stream:
    """The sequences of one publisher of one account on one topic."""

    __slots__ = ("ends", "next_sequence", "opened_at", "starts")

    def __init__(self, first_sequence: int) -> None:
        self.next_sequence = first_sequence + 1
        # Parallel lists of disjoint intervals [start, end), ascending. opened_at is None for the gap before the first
        # message, which never counts as missing.
        self.starts: list[int] = [0] if first_sequence else []
        self.ends: list[int] = [first_sequence] if first_sequence else []
        self.opened_at: list[float | None] = [None] if first_sequence else []

    def open_gap(self, start: int, end: int, now: float) -> int:
        """Remember that [start, end) was skipped. Returns how many sequences were given up to make room."""
        self.starts.append(start)
        self.ends.append(end)
        self.opened_at.append(now)
        return self.give_up_oldest()

    def fill(self, sequence: int) -> bool:
        """Take `sequence` out of its gap; False if it is in none."""
        place = bisect_right(self.starts, sequence) - 1
        if place < 0 or sequence >= self.ends[place]:
            return False
        start, end, opened_at = self.starts[place], self.ends[place], self.opened_at[place]
        pieces = [(low, high) for low, high in ((start, sequence), (sequence + 1, end)) if low < high]
        self.starts[place : place + 1] = [low for low, _ in pieces]
        self.ends[place : place + 1] = [high for _, high in pieces]
        self.opened_at[place : place + 1] = [opened_at] * len(pieces)
        return True

    def missing(self, now: float) -> int:
        """How many sequences have been open for longer than `GAP_AGE_S`."""
        return sum(
            end - start
            for start, end, opened_at in zip(self.starts, self.ends, self.opened_at, strict=True)
            if opened_at is not None and now - opened_at >= GAP_AGE_S
        )

    def give_up(self) -> int:
        """How many sequences are still owed, at the end of this stream's life."""
        return self.missing(float("inf"))

    def give_up_oldest(self) -> int:
        """Keep the bound on gaps. Returns how many sequences that gives up."""
        if len(self.starts) <= GAPS_MAX:
            return 0
        lost = self.ends[0] - self.starts[0] if self.opened_at[0] is not None else 0
        del self.starts[0], self.ends[0], self.opened_at[0]
        return lost


class Deduplicator:
    """Follows every publisher and topic of one subscription, up to a bound."""

    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        # By the part of the identity before the sequence, so that it is taken apart only when it is new.
        self._streams: OrderedDict[str, Stream] = OrderedDict()
        self.duplicates = 0
        self.reordered = 0
        self.foreign = 0
        self.forgotten_streams = 0
        self._given_up = 0

    def judge(self, identity: str | None, now: float) -> Verdict:
        """Say what the delivery with this identity is, and remember that it was seen."""
        prefix, _, digits = identity.rpartition(":") if identity else ("", "", "")
        stream = self._streams.get(prefix)
        if stream is None:
            return self._first(identity, prefix)
        if not (digits.isascii() and digits.isdigit()):
            self.foreign += 1
            return Verdict.FOREIGN
        sequence = int(digits)
        self._streams.move_to_end(prefix)
        expected = stream.next_sequence
        if sequence == expected:
            stream.next_sequence = sequence + 1
            return Verdict.NEW
        if sequence > expected:
            self._given_up += stream.open_gap(expected, sequence, now)
            stream.next_sequence = sequence + 1
            return Verdict.NEW
        if stream.fill(sequence):
            # Filling the middle of a gap makes two of one.
            self._given_up += stream.give_up_oldest()
            self.reordered += 1
            return Verdict.REORDERED
        self.duplicates += 1
        return Verdict.DUPLICATE

    def expected(self, prefix: str) -> int | None:
        """The sequence that follows the highest one seen of a stream, named by the part of its identities before the
        sequence; None for a stream not seen (or not any more).
        """
        stream = self._streams.get(prefix)
        return None if stream is None else stream.next_sequence

    def missing(self, now: float) -> int:
        """Sequences that were skipped and did not come within `GAP_AGE_S`."""
        return self._given_up + sum(stream.missing(now) for stream in list(self._streams.values()))

    def __len__(self) -> int:
        return len(self._streams)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        assert len(self._streams) <= self._streams_max
        for stream in self._streams.values():
            assert len(stream.starts) == len(stream.ends) == len(stream.opened_at) <= GAPS_MAX
            edges = [edge for pair in zip(stream.starts, stream.ends, strict=True) for edge in pair]
            assert edges == sorted(edges)
            assert all(start < end for start, end in zip(stream.starts, stream.ends, strict=True))
            assert not edges or edges[-1] < stream.next_sequence

    def _first(self, identity: str | None, prefix: str) -> Verdict:
        parsed = parse_identity(identity)
        if parsed is None:
            self.foreign += 1
            return Verdict.FOREIGN
        if len(self._streams) >= self._streams_max:
            _, oldest = self._streams.popitem(last=False)
            self.forgotten_streams += 1
            self._given_up += oldest.give_up()
        self._streams[prefix] = Stream(parsed.sequence)
        return Verdict.NEW


class AckLedger:
    """Delivery tags of one channel: which are settled, and what to acknowledge in bulk.

    RabbitMQ numbers the deliveries of a channel 1, 2, 3 … One acknowledgement "up to tag n" stands for all
    before it, so the ledger follows the highest tag below which everything is settled. An application that
    settles in another order and keeps one message for long would fill the prefetch with what it has settled;
    from `singles_at` such messages on, they are acknowledged one by one; by default never."""

    __slots__ = ("_ahead", "_bulk", "_contiguous", "_done_singly", "_sent", "_singles_at", "alive", "last")

    def __init__(self, singles_at: float = inf) -> None:
        self.alive = True
        self.last = 0
        """The last delivery that went to the inbox; set there."""
        self._singles_at = singles_at
        self._contiguous = 0
        self._bulk = 0
        self._sent = 0
        self._ahead: set[int] = set()
        self._done_singly: set[int] = set()

    def settle(self, tag: int) -> int:
        """The application is done with `tag`. Returns how many settled deliveries await acknowledgement."""
        if tag == self._contiguous + 1:
            self._contiguous = self._bulk = tag
            if self._ahead or self._done_singly:
                self._catch_up()
        elif tag > self._contiguous and tag not in self._done_singly:
            self._ahead.add(tag)
        return self._bulk - self._sent + len(self._ahead)

    @property
    def outstanding(self) -> bool:
        """Whether something that went to the inbox is not settled yet."""
        return self._contiguous < self.last

    def take(self, final: bool = False) -> list[tuple[int, bool]]:
        """What to acknowledge now, as pairs of tag and "all up to it"; `final` leaves nothing for later."""
        acks: list[tuple[int, bool]] = []
        if self._bulk > self._sent:
            acks.append((self._bulk, True))
            self._sent = self._bulk
        if self._ahead and (final or len(self._ahead) >= self._singles_at):
            acks += [(tag, False) for tag in sorted(self._ahead)]
            self._done_singly |= self._ahead
            self._ahead.clear()
        return acks

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        assert self._sent <= self._bulk <= self._contiguous
        assert all(tag > self._contiguous + 1 for tag in self._ahead | self._done_singly)
        assert not self._ahead & self._done_singly

    def _catch_up(self) -> None:
        while True:
            tag = self._contiguous + 1
            if tag in self._ahead:
                self._ahead.discard(tag)
                # RabbitMQ takes a tag that was acknowledged before for an error, so a bulk never ends with
                # one.
                self._bulk = tag
            elif tag in self._done_singly:
                self._done_singly.discard(tag)
            else:
                return
            self._contiguous = tag
