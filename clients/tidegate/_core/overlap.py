"""Which messages of plain AMQP publishers came through both queues of a subscription that moves.

A plain message carries no id that counts, so the deduplicator cannot recognise it. Its *fingerprint* is a hash over
everything the application sees of it: account, topic, body, id and headers. Nothing that depends on its way
(exchange, delivery tag, redelivered flag) is part of it. Two messages with one fingerprint are the same to the
application, so it is enough to count them.

The head routes every publication into both links, in the same order for each publishing channel, from the bind of the
new queue on; then it sends one marker down both. Let `old` be the sequence of plain messages that the old queue
brought and `new` that of the new queue. For one fingerprint:

    messages of `new` before its marker            were routed between bind and marker, so they are in `old` as well;
    messages of `old` before its marker            were routed before the bind, except for as many as `new` has there;
    messages of `old` after its marker             are in `new`, come there already or not.

So the first `skip` = (copies in `old` before the marker) - (copies in `new` before the marker) of `old` are older than
the bind; every later copy in `old` has one copy in `new`, and the two sequences pair up from there. Each pair was
delivered from the old queue: its copy in `new` is dropped, also when it comes after the switch. That is exact for
repeated contents too, with these limits:

- *Channels race.* A message that is routed at the moment of the marker may come before it in one link and after it in
  the other (at most one message per channel). A copy just before the marker in the old queue and one just behind it in
  the new queue are taken for such a message if the old queue, which is listened to a little longer, has gone on
  without another copy. Where a content repeats within `RACE_S`, a race cannot be told: one copy may be
  doubled, or lost if it was routed before the bind and came behind the marker.
- *Several heads* (a move between clusters) send a marker each, and a plain message does not say which head it came
  from. Where the markers disagree about a content that repeats, the largest `skip` counts: in doubt a message is
  delivered twice rather than lost. A content that occurs once in each queue is the same message then.
- *A link that was cut* sends again, and RabbitMQ redelivers what was unacknowledged. A repeated plain message is
  delivered twice then, with or without a move. Redeliveries are not counted, so they cost no other message.
- *What is collected* from an edge that had been away is delivered as it comes: no marker says where its overlap begins.

A pair that has not come through the new queue `OVERLAP_S` after the switch, or that stands `SLACK_POSITIONS` behind
its place, never comes: it is forgotten, so that no later message of the same content is taken for it.

Bounds: `PLAIN_KEPT_MAX` fingerprints at rest and `PLAIN_COUNTED_MAX` during a move. A move during which the old queue
brings more is given up, like a move during which more comes than can be held. Pure; time is an argument."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

FINGERPRINT_BYTES: Final = 16
PLAIN_KEPT_MAX: Final = 4_096
"""At rest: what came before a marker that overtook its order, and what may race with a marker."""
PLAIN_COUNTED_MAX: Final = 100_000
RACE_POSITIONS: Final = 16
"""A message that raced with a marker stands at most so many plain messages away from it."""
RACE_S: Final = 0.05
"""And comes at most so long before or after it, both queues taken together."""
SLACK_POSITIONS: Final = 2 * RACE_POSITIONS
OVERLAP_S: Final = 10.0


def fingerprint(
    topic: str,
    body: bytes,
    message_id: str | None,
    headers: Mapping[str, Any] | None,
    account: str | None = None,
) -> bytes:
    """What identifies the content of a plain message. Those of two accounts differ: neither makes up for the other."""
    envelope = repr((topic, message_id, len(body), headers or None, account))
    return blake2b(body, digest_size=FINGERPRINT_BYTES, key=blake2b(envelope.encode()).digest()).digest()


Plain = tuple[bytes, float]
"""The fingerprint of a plain message, and when it came."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a marker stands among the plain messages of its queue, and when it came."""

    position: int
    at_s: float


class PlainLog:
    """The plain messages that the queue in use brought last. The inbox adds each that it delivers."""

    def __init__(self) -> None:
        self.count = 0
        """How many were added in all: the position of the next one."""
        self._entries: deque[Plain] = deque()
        self._kept_max = PLAIN_KEPT_MAX

    def add(self, mark: bytes, now: float) -> None:
        self.count += 1
        self._entries.append((mark, now))
        while len(self._entries) > self._kept_max:
            self._entries.popleft()

    def keep(self, moving: bool) -> None:
        """Keep as much as a move needs, or as much as is needed at rest."""
        self._kept_max = PLAIN_COUNTED_MAX if moving else PLAIN_KEPT_MAX
        while len(self._entries) > self._kept_max:
            self._entries.popleft()

    def mark(self, now: float) -> Mark:
        """A marker came: it stands before the next message."""
        return Mark(self.count, now)

    @property
    def first(self) -> int:
        """The position of the oldest one that is kept."""
        return self.count - len(self._entries)

    def at_s(self, position: int) -> float:
        return self._entries[position - self.first][1]

    def positions(self, since: int, wanted: set[bytes]) -> dict[bytes, list[int]]:
        """Where each wanted content stands, and each content from `since` on."""
        found: dict[bytes, list[int]] = {}
        for position, (mark, _) in enumerate(self._entries, self.first):
            if position >= since or mark in wanted:
                found.setdefault(mark, []).append(position)
        return found


class Overlap:
    """Made at the switch; then asked for every plain message of the new queue, in order, whether the old one had it.

    `old` and `new` say per head where its marker stands in either queue; empty unless every marker has come through
    both: then nothing is known, and nothing is taken for a repetition. `held` are the messages that came through the
    new queue so far.
    """

    def __init__(
        self, log: PlainLog, old: Mapping[str, Mark], new: Mapping[str, Mark], held: Sequence[Plain], now: float
    ) -> None:
        self._log = log
        self._held = held
        self._now = now
        self._due: dict[bytes, deque[int]] = {}
        """Per content the places in the old queue of the copies that the new one still owes, from the marker on."""
        self._position = 0
        self._slack: int | None = SLACK_POSITIONS if len(old) == 1 else None
        if not old:
            return
        self._position = -min(mark.position for mark in new.values())
        marked = min(mark.position for mark in old.values())
        in_new: dict[bytes, list[int]] = {}
        for position, (content, _) in enumerate(held):
            in_new.setdefault(content, []).append(position)
        for content, in_old in log.positions(marked, set(in_new)).items():
            copies = in_new.get(content, [])
            skips = [self._skip(in_old, copies, old[head], new[head]) for head in old]
            # In doubt a content that repeats is delivered twice; one that does not is the same message in both queues.
            skip = min(skips) if len(in_old) == 1 and len(copies) <= 1 else max(skips)
            if skip < len(in_old):
                self._due[content] = deque(position - marked for position in in_old[skip:])

    def __bool__(self) -> bool:
        """Whether something is still owed."""
        return bool(self._due)

    def take(self, content: bytes) -> bool:
        """The next plain message of the new queue: whether the old queue had it."""
        position = self._position
        self._position += 1
        due = self._due.get(content)
        while due and self._slack is not None and due[0] < position - self._slack:
            due.popleft()
        # The old queue had what stands well before the marker; the log need not go back so far.
        repeated = bool(due) or position < -RACE_POSITIONS
        if due:
            due.popleft()
        if due is not None and not due:
            del self._due[content]
        return repeated

    def _skip(self, in_old: list[int], in_new: list[int], old: Mark, new: Mark) -> int:
        """How many copies of one content in the old queue are older than the bind."""
        before_old, before_new = bisect_left(in_old, old.position), bisect_left(in_new, new.position)
        skip = max(before_old - before_new, 0)
        if not skip or before_new == len(in_new):
            return skip
        last, first = in_old[before_old - 1], in_new[before_new]
        near = max(old.position - last, first - new.position + 1) <= RACE_POSITIONS
        apart_s = old.at_s - self._log.at_s(last) + self._held[first][1] - new.at_s
        if near and apart_s <= RACE_S and self._missed(in_old[before_old:], first - new.position, old):
            skip -= 1
        return skip

    def _missed(self, after: list[int], offset: int, old: Mark) -> bool:
        """Whether the old queue has passed the place at `offset` behind its marker without a copy near it."""
        until = old.position + offset + RACE_POSITIONS
        if after:
            return after[0] > until
        return self._now - old.at_s > RACE_S or self._log.count > until
