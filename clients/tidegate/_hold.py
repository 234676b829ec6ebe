"""What a subscription keeps back while it moves, and when it may be released.

Two queues get the same messages for a while. What comes from the new one waits here, in its order, until

- the marker of every head has come through both queues: what each head sent before its marker to the old queue
  has been delivered by then; and
- for every publisher and topic that waits here, the first one waiting follows or overlaps what was delivered. A
  marker alone is not enough: RabbitMQ promises no order between channels, and now and then a message that was
  routed before the new queue was bound is enqueued in the old one behind the marker.

A publisher that is silent shows no such gap; for its sake the old queue is listened to a little longer (`linger_s`).
The second condition is met sooner or later without any help, because the old queue gets everything that the new
one gets. Messages of foreign clients have no sequence: those that came before the first marker of the new queue
are surplus, since the old queue had them before its own.

At most `messages_max` wait here. They are not acknowledged, so a prefetch of as many stops RabbitMQ from sending
more; a delivery beyond that is taken and makes the hold overfull, which ends the migration."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from tidegate_protocol.ids import MessageId

from ._moves import Held

Expected = Callable[[str], int | None]
"""The sequence that follows what was delivered of a stream (the part of a message id before its sequence)."""

EARLY_MARKERS_MAX: Final = 64


class EarlyMarkers:
    """Markers that came through the queue in use before the order that they belong to: it may be on its way still."""

    def __init__(self) -> None:
        self._seen: deque[tuple[tuple[str, int], str, str]] = deque(maxlen=EARLY_MARKERS_MAX)

    def remember(self, place: tuple[str, int], migration: str, head: str) -> None:
        self._seen.append((place, migration, head))

    def heads(self, place: tuple[str, int], migration: str) -> list[str]:
        """Whose markers of this migration came through the queue at `place`."""
        return [head for at, name, head in self._seen if (at, name) == (place, migration)]


class Admission(Enum):
    """What to do with a delivery; see `_migration`."""

    PASS = "pass"
    WATCHED = "watched"
    COLLECTED = "collected"
    HELD = "held"
    STRAY = "stray"


class Hold:
    """Deliveries of the new queue, and the markers of both."""

    def __init__(self, heads: tuple[str, ...], messages_max: int, expected: Expected) -> None:
        self._messages_max = messages_max
        self._expected = expected
        self._items: list[Held] = []
        self._surplus: list[Held] = []
        self._missing_old = set(heads)
        self._missing_new = set(heads)
        self._marked_new = False
        # The first sequence that waits, per stream, until it is known to follow what was delivered.
        self._unmet: dict[str, int] = {}
        self._streams: set[str] = set()

    def __len__(self) -> int:
        return len(self._items) + len(self._surplus)

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

    def take(self, slot: int, message_id: str | None, payload: Any) -> None:
        """Keep a delivery of the new queue back."""
        item = Held(slot, message_id, payload)
        stream = message_id.rpartition(":")[0] if message_id else ""
        if stream not in self._streams:
            parsed = MessageId.parse(message_id)
            if parsed is None:
                (self._items if self._marked_new else self._surplus).append(item)
                return
            self._streams.add(stream)
            # Nothing comes before sequence 0.
            if parsed.sequence:
                self._unmet[stream] = parsed.sequence
        self._items.append(item)

    def marker_old(self, head: str) -> None:
        self._missing_old.discard(head)

    def marker_new(self, head: str) -> None:
        self._marked_new = True
        self._missing_new.discard(head)

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

    def release(self) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
        """Everything to be judged and delivered, and the surplus."""
        return tuple(self._items), tuple(self._surplus)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        assert self._unmet.keys() <= self._streams
        assert len(self) <= self._messages_max + 1
