"""How far each stream has been read: the offsets that Spark keeps in the checkpoint.

A position belongs to a stream on a broker, because two brokers may have streams of the same name. It holds two numbers:
`next`, the first offset not read yet, and `first`, the one at which this query began to read the stream. The second is
there so that a batch is a pure function of what Spark wrote down: when a query dies in its first batch, Spark asks for
the initial offset again, and "latest" would then be later than it was.

The JSON of equal offsets is equal as text (Spark compares texts), hence the sorting. Nothing here knows RabbitMQ or
Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from .errors import BadCheckpoint

VERSION: Final = 1


class StreamKey(NamedTuple):
    """A stream of a broker."""

    broker: str
    stream: str


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading began, and where it goes on."""

    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """A position for every stream. `initial` marks the offsets before the first batch, which are in no checkpoint."""

    positions: Mapping[StreamKey, Position]
    initial: bool = False

    def __iter__(self) -> Iterator[StreamKey]:
        return iter(sorted(self.positions))

    def get(self, key: StreamKey) -> Position | None:
        return self.positions.get(key)

    def to_json(self) -> dict[str, Any]:
        """The form that Spark stores."""
        brokers: dict[str, dict[str, dict[str, int]]] = {}
        for key in self:
            position = self.positions[key]
            streams = brokers.setdefault(key.broker, {})
            streams[key.stream] = {"first": position.first, "next": position.next}
        return {"version": VERSION, "initial": self.initial, "brokers": brokers}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offsets:
        """Read what `to_json` made, maybe in another life."""
        if value.get("version") != VERSION:
            raise BadCheckpoint(f"its version is {value.get('version')!r} and not {VERSION}")
        try:
            positions = {
                StreamKey(broker, stream): Position(_offset(numbers["first"]), _offset(numbers["next"]))
                for broker, streams in value["brokers"].items()
                for stream, numbers in streams.items()
            }
            return cls(positions, bool(value["initial"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadCheckpoint(f"it has another form ({error!r})") from error


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no offset")
    return value


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets from `start` up to, and without, `end` of one stream."""

    key: StreamKey
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def ranges_between(start: Offsets, end: Offsets) -> list[Range]:
    """What a batch from `start` to `end` has to read.

    A stream without a start (it is new, or this is the first batch) begins where `end` says that it began. `end` may
    have moved that beginning past the start (offsets that are gone are skipped), or have put its end before the start
    (the stream was made anew and is read from its own beginning).
    """
    ranges = []
    for key in end:
        position = end.positions[key]
        before = None if start.initial else start.get(key)
        anew = before is None or position.next < before.next
        begin = position.first if before is None or anew else max(before.next, position.first)
        if begin < position.next:
            ranges.append(Range(key, begin, position.next))
    return ranges


def share(backlogs: Mapping[StreamKey, int], rows_max: int) -> dict[StreamKey, int]:
    """Divide at most `rows_max` rows between streams: the small ones whole, the large ones equally.

    What can't be divided goes to the largest backlogs; with at least as many rows as streams everyone gets some.
    """
    granted: dict[StreamKey, int] = {}
    left = rows_max
    waiting = sorted(backlogs, key=lambda key: (backlogs[key], key))
    for index, key in enumerate(waiting):
        others = len(waiting) - index
        # The last ones, with the largest backlogs, get what remains of the division.
        granted[key] = min(backlogs[key], left // others)
        left -= granted[key]
    return granted


def split(part: Range, rows_per_part: int) -> list[Range]:
    """Cut a range into as few parts as possible of at most `rows_per_part` rows, and of nearly equal size."""
    count = -(-len(part) // rows_per_part)
    cuts = [part.start + len(part) * index // count for index in range(count + 1)] if count else []
    return [Range(part.key, low, high) for low, high in pairwise(cuts)]


def plan(ranges: Iterable[Range], rows_per_part: int, parts_max: int) -> list[Range]:
    """Cut all ranges; larger parts are made when there would be more than about `parts_max`."""
    ranges = list(ranges)
    rows = sum(len(one) for one in ranges)
    size = max(rows_per_part, -(-rows // parts_max))
    return [part for one in ranges for part in split(one, size)]
