"""The judge: says of each subscriber what was lost, doubled, out of order or late.

Publishers number their messages without gaps per *stream* (publisher and topic), so what was published is known by how
many messages each stream had. Plain messages carry no ids: they are judged by the sequence that only the caller knows.

- *doubled*: handed over before, in the same life of the client. A client without memory (a new life) cannot know what
  its predecessor had got and not acknowledged;
- *out of order*: handed over after something newer of its stream, in the same life, unless it was collected from an
  edge that had been away;
- *lost*: owed and handed over in no life. The caller says from which message on a stream is owed;
- *late*: handed over later than its deadline after it was published.

Relies on nothing that it judges. It is part of the simulator, because checkers, experiments, benchmarks, the demo and
tests may all import that, and no client or broker has any use for a judge. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

NAMED_MAX: Final = 5
"""How many messages are named of each kind of wrong."""
LATE_TOLERANCE_S: Final = 1e-9
"""A message that takes just its deadline is in time, whatever the rounding of sums."""


class Wrong(StrEnum):
    """What can be wrong with a message."""

    LOST = "lost"
    DOUBLED = "doubled"
    OUT_OF_ORDER = "out-of-order"
    LATE = "late"


def is_late(age_s: float, deadline_s: float) -> bool:
    return age_s > deadline_s + LATE_TOLERANCE_S


def stream_of(message_id: str) -> tuple[str, int]:
    """Publisher and topic as one text, and the sequence."""
    stream, _, digits = message_id.rpartition(":")
    return stream, int(digits)


class Stream:
    """What came of one stream in one life: everything from `first` up to `following`, but for `missing`."""

    __slots__ = ("first", "following", "missing")

    def __init__(self) -> None:
        self.first: int | None = None
        self.following = 0
        self.missing: set[int] = set()

    def __contains__(self, sequence: int) -> bool:
        return self.first is not None and self.first <= sequence < self.following and sequence not in self.missing

    def take(self, sequence: int) -> Wrong | None:
        """The next message that came."""
        following = self.following
        if self.first is None:
            self.first = sequence
        elif sequence > following:
            self.missing.update(range(following, sequence))
        elif sequence < following:
            return self._older(self.first, sequence)
        self.following = sequence + 1
        return None

    def _older(self, first: int, sequence: int) -> Wrong:
        if sequence in self.missing:
            self.missing.remove(sequence)
        elif sequence < first:
            self.missing.update(range(sequence + 1, first))
            self.first = sequence
        else:
            return Wrong.DOUBLED
        return Wrong.OUT_OF_ORDER


class Judge:
    """What one subscriber's application was handed, and what is wrong with that."""

    def __init__(self) -> None:
        self.deliveries = 0
        self.counts: Counter[Wrong] = Counter()
        self.offenders: dict[Wrong, list[str]] = {}
        """The first few of each kind, each with the reason."""
        self._lives: list[dict[str, Stream]] = [{}]

    def take(self, stream: str, sequence: int, *, life: int = 0, collected: bool = False) -> Wrong | None:
        """The application was handed a message: what is wrong with it, if anything."""
        self.deliveries += 1
        while life >= len(self._lives):
            self._lives.append({})
        seen = self._lives[life].get(stream)
        if seen is not None and seen.following == sequence:
            seen.following = sequence + 1  # nearly all of them: written out, because every delivery of a run is judged
            return None
        if seen is None:
            seen = self._lives[life][stream] = Stream()
        wrong = seen.take(sequence)
        if wrong is None or (collected and wrong is Wrong.OUT_OF_ORDER):
            return None
        self.note(wrong, f"{stream}:{sequence} when {stream}:{seen.following} was due")
        return wrong

    def note(self, wrong: Wrong, offender: str) -> None:
        """Count an offender, and remember it if it is one of the first."""
        self.counts[wrong] += 1
        named = self.offenders.setdefault(wrong, [])
        if len(named) < NAMED_MAX:
            named.append(offender)

    def following(self, stream: str, life: int | None = None) -> int:
        """The sequence that follows the highest one that came, in any life or in this."""
        lives = self._lives if life is None else self._lives[life : life + 1]
        return max((seen[stream].following for seen in lives if stream in seen), default=0)

    def came(self, stream: str, sequence: int) -> bool:
        """Whether a message was handed over, in whatever life."""
        return any(stream in seen and sequence in seen[stream] for seen in self._lives)

    def lost(self, stream: str, published: int, owed_from: int | None = None) -> list[int]:
        """Of the first `published` messages of a stream those that were owed and did not come: from `owed_from` on, or
        from the first that came, or, where none came, all of them.
        """
        seen = [life[stream] for life in self._lives if stream in life]
        if owed_from is None:
            owed_from = min((one.first or 0 for one in seen), default=0)
        if len(seen) == 1 and (first := seen[0].first) is not None and first <= owed_from:
            # Most often all came: no need to look at each.
            held = (one for one in sorted(seen[0].missing) if owed_from <= one < published)
            return [*held, *range(max(seen[0].following, owed_from), published)]
        return [one for one in range(owed_from, published) if not any(one in life for life in seen)]


def total(judges: Iterable[Judge], wrong: Wrong) -> int:
    """How often something was wrong, over several subscribers."""
    return sum(judge.counts[wrong] for judge in judges)
