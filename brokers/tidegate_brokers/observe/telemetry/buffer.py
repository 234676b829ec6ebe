"""Records that wait to be written, bounded by number and by bytes.

A record that does not fit pushes out the oldest ones: after a long silence the stream then goes on with the newest
records, behind a single gap. Adding is a handful of operations and never waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

RECORDS_MAX: Final = 10_000
BYTES_MAX: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record as it goes out."""

    kind: str
    body: bytes


class RecordBuffer:
    """A queue that forgets."""

    def __init__(self, records_max: int = RECORDS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._records: deque[Encoded] = deque()
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def length_bytes(self) -> int:
        return self._bytes

    def put(self, record: Encoded) -> int:
        """Add a record; returns how many were dropped for it (itself, where it alone is too large)."""
        self._records.append(record)
        self._bytes += len(record.body)
        dropped = 0
        while len(self._records) > self._records_max or self._bytes > self._bytes_max:
            self._bytes -= len(self._records.popleft().body)
            dropped += 1
        return dropped

    def take(self, count: int) -> list[Encoded]:
        """Up to `count` of the oldest."""
        taken = [self._records.popleft() for _ in range(min(count, len(self._records)))]
        self._bytes -= sum(len(record.body) for record in taken)
        return taken
