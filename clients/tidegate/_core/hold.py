"""What a subscription holds back while it moves, and when it may release it.

For a while both queues of a moving subscription get the same messages. Deliveries of the new queue are held here, in
their order, until both conditions are met:

- the marker of every head has come through both queues. By then everything that a head sent to the old queue before its
  marker has been delivered;
- for every account, publisher and topic held here, the first held message follows or overlaps what was delivered. A
  marker alone is not enough: RabbitMQ promises no order between channels, so that now and then a message that was
  routed before the new queue was bound is enqueued in the old queue behind the marker.

A publisher that is silent shows no such gap; for its sake the old queue is listened to for `linger_s` more. The second
condition is always met in the end, because the old queue gets everything that the new queue gets. Messages of plain
AMQP publishers have no sequence: `overlap` tells which of them the old queue has brought.

Invariant: at most `messages_max` deliveries are held, and none of them is acknowledged. A prefetch of the same size
makes RabbitMQ stop there; one delivery more makes the hold overfull, and the migration is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, Final

from tidegate_protocol.balancing.migrations import MigrateOrder, MigrationStage

from .attachment import Slot
from .identity import parse_identity, stream_of
from .moves import HeldDelivery
from .overlap import Mark, Overlap, Plain, PlainLog

Expected = Callable[[str], int | None]
"""The sequence that follows what was delivered of a stream (the part of an identity before its sequence)."""

EARLY_MARKERS_MAX: Final = 64


class EarlyMarkers:
    """Markers that came through the queue in use before the order that they belong to: it may be on its way still."""

    def __init__(self) -> None:
        self._seen: deque[tuple[tuple[str, int], str, str, Mark]] = deque(maxlen=EARLY_MARKERS_MAX)

    def remember(self, place: tuple[str, int], migration: str, head: str, mark: Mark) -> None:
        self._seen.append((place, migration, head, mark))

    def marks(self, place: tuple[str, int], migration: str) -> list[tuple[str, Mark]]:
        """The heads whose markers of this migration came through the queue at `place`, and where each stood."""
        return [(head, mark) for at, name, head, mark in self._seen if (at, name) == (place, migration)]


class Admission(Enum):
    """What the driver of a `SubscriptionMachine` does with a delivery that is no marker.

    A delivery is judged (and only then may be acknowledged) when it is passed or released, never before. A plain
    message of the queue in use that is delivered, and is no redelivery, goes into the log then. After every admission
    but PASS and STRAY the driver carries out `progress`.
    """

    PASS = "pass"
    """Judge and deliver: the common case."""
    WATCHED = "watched"
    """Judge and deliver."""
    COLLECTED = "collected"
    """Judge and deliver, marked as collected."""
    HELD = "held"
    """Neither deliver nor acknowledge: it comes back with `Release`."""
    SURPLUS = "surplus"
    """Acknowledge, do not deliver: a plain message that the queue before had brought."""
    STRAY = "stray"
    """Drop, do not acknowledge: its attachment was given up."""


class Hold:
    """Deliveries of the new queue, and the markers of both."""

    def __init__(self, heads: tuple[str, ...], messages_max: int, expected: Expected) -> None:
        self._messages_max = messages_max
        self._expected = expected
        self._items: list[HeldDelivery] = []
        self._missing_old = set(heads)
        self._missing_new = set(heads)
        self._plain: list[Plain] = []
        """The plain messages among the items, in their order."""
        self._marks_old: dict[str, Mark] = {}
        self._marks_new: dict[str, Mark] = {}
        """Per head where its marker stands. Of a marker that is sent again the first counts."""
        # The first sequence that waits, per stream, until it is known to follow what was delivered.
        self._unmet: dict[str, int] = {}
        self._streams: set[str] = set()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def overfull(self) -> bool:
        return len(self) > self._messages_max

    @property
    def missing(self) -> tuple[int, int]:
        """How many markers have not come through the old queue and through the new one."""
        return len(self._missing_old), len(self._missing_new)

    @property
    def unmet(self) -> int:
        """How many streams may still lack something of the old queue."""
        return len(self._unmet)

    @property
    def lacking(self) -> str:
        """What the switch waits for, for people."""
        old, new = self.missing
        return f"markers missing {old} old, {new} new; streams behind: {self.unmet}"

    def take(self, slot: int, identity: str | None, payload: Any, content: bytes | None) -> None:
        """Keep a delivery of the new queue back."""
        stream = stream_of(identity) if identity else ""
        if stream not in self._streams:
            parsed = parse_identity(identity)
            if parsed is None:
                self._items.append(HeldDelivery(slot, identity, payload, content=content))
                if content is not None:
                    self._plain.append((content, inf))
                return
            self._streams.add(stream)
            # Nothing comes before sequence 0.
            if parsed.sequence:
                self._unmet[stream] = parsed.sequence
        self._items.append(HeldDelivery(slot, identity, payload))

    def marker_old(self, head: str, mark: Mark) -> None:
        if head in self._missing_old:
            self._missing_old.discard(head)
            self._marks_old[head] = mark

    def marker_new(self, head: str, now: float) -> None:
        if head in self._missing_new:
            self._missing_new.discard(head)
            self._marks_new[head] = Mark(len(self._plain), now)

    def came(self, now: float) -> None:
        """What was taken last came now."""
        if self._plain and self._plain[-1][1] == inf:
            self._plain[-1] = (self._plain[-1][0], now)

    def outgrown(self, log: PlainLog) -> bool:
        """Whether the log lacks something that the old queue brought behind a marker."""
        return any(mark.position < log.first for mark in self._marks_old.values())

    def ready(self) -> bool:
        """Whether everything may be released. Cheap enough to be asked after every delivery."""
        if self._missing_old or self._missing_new:
            return False
        while self._unmet:
            # All have to be met, so it is enough to look at one that is not; what is met once stays so.
            stream, first = next(iter(self._unmet.items()))
            expected = self._expected(stream)
            if expected is None or first > expected:
                return False
            del self._unmet[stream]
        return True

    def release(self, log: PlainLog, now: float) -> tuple[tuple[HeldDelivery, ...], tuple[HeldDelivery, ...], Overlap]:
        """Everything to be judged and delivered; the surplus; and what the new queue has still to repeat."""
        complete = not self._missing_old and not self._missing_new
        old, new = (self._marks_old, self._marks_new) if complete else ({}, {})
        overlap = Overlap(log, old, new, self._plain, now)
        items: list[HeldDelivery] = []
        surplus: list[HeldDelivery] = []
        for item in self._items:
            repeated = item.content is not None and overlap.take(item.content)
            (surplus if repeated else items).append(item)
        return tuple(items), tuple(surplus), overlap

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        assert self._unmet.keys() <= self._streams
        assert len(self) <= self._messages_max + 1


@dataclass(slots=True)
class RunningMigration:
    """The one under way."""

    order: MigrateOrder
    head_url: str
    """The head that ordered it and hears how it ends."""
    slot: Slot
    hold: Hold
    marker: str
    stage: MigrationStage = MigrationStage.ORDERED
    switch_s: float | None = None
    """When it may switch, once everything is there."""
